//! What a region and the stores behind it say to each other: values only, the same for every store.
//!
//! A regional store (Redis) holds components of cells. [`Merge`] raises some and asks for the others, [`Merged`] is
//! its word. A global store (MySQL, SQLite) holds one count for each region and cell: [`Publication`] is this
//! region's, [`Stored`] the sum of the others'. All counts are absolute, so anything may be said again.
//!
//! Leaves to others: when it is said (`replay`, `publish`), and how stores keep it (`aggregator`).

use crate::model::key::{Key, OriginId};
use crate::model::time::UnixMs;
use alloc::vec::Vec;

/// Owns what a region is known to have used and no living part can tell the origin of: set once for a cell, after
/// everything that knew more was lost. Never an Envoy's id, as [`OriginId::parse`] refuses it.
pub const BASELINE: OriginId = OriginId([0; 16]);

/// One origin's count in one cell.
pub type Part = (OriginId, u64);

/// One cell, to be raised in the regional store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merge {
    /// Whose cell.
    pub key: Key,
    /// Which cell.
    pub sequence: u64,
    /// Raised by max. A count of 0 says that the origin follows the cell.
    pub parts: Vec<Part>,
    /// Lowest limit known to apply; `u64::MAX` if unknown.
    pub limit: u64,
    /// The store forgets the cell then.
    pub expires: UnixMs,
    /// Granted or refused in the same step.
    pub proposal: Option<Proposal>,
    /// Whether the cells before are read as well: as many as the key's resolution says, all that a window touches.
    pub wants_previous: bool,
    /// In which of the store's lives, as the region counts them, this was to be said.
    pub incarnation: u32,
}

/// More is to be spent, if it fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// Who proposes.
    pub origin: OriginId,
    /// Its component if granted.
    pub own: u64,
    /// What it must fit into.
    pub limit: u64,
    /// Other regions' use of the cell.
    pub global_current: u64,
    /// Other regions' use of the cells before.
    pub global_previous: u64,
    /// Milliseconds of the cells before that count: of a single one those that the window still covers, else all. At most
    /// `cell_ms`.
    pub covered_ms: u64,
    /// Length of a cell; at least 1.
    pub cell_ms: u64,
}

/// What the regional store holds of a cell after a [`Merge`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// The word on the proposal, if there was one.
    pub granted: Option<bool>,
    /// All components of the cell.
    pub current: Vec<Part>,
    /// All components of each cell before, newest first; empty if they were not read.
    pub previous: Vec<Vec<Part>>,
    /// Lowest limit that anybody named for the cell; `u64::MAX` if nobody did.
    pub limit: u64,
}

/// At least this much is known to have been used in a cell by the whole region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LowerBound {
    /// Whose cell.
    pub key: Key,
    /// Which cell.
    pub sequence: u64,
    /// The sum that the components must reach.
    pub total: u64,
    /// The store forgets the cell then.
    pub expires: UnixMs,
}

/// This region's use of one cell, for the other regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// Whose cell.
    pub key: Key,
    /// Which cell.
    pub sequence: u64,
    /// Sum of the region's components; nothing that was imported.
    pub count: u64,
    /// No window touches the cell from then on.
    pub expires: UnixMs,
}

/// What a global store holds of one cell: the sum of other regions, or this region's own figure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Whose cell.
    pub key: Key,
    /// Which cell.
    pub sequence: u64,
    /// How much.
    pub count: u64,
}
