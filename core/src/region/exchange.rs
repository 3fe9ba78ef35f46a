//! The values exchanged between a region and its stores, the same for every kind of store.
//!
//! A regional store (Redis) holds components of cells. [`Merge`] raises some and requests the others, which are
//! returned as [`Merged`]. A global store (MySQL, SQLite) holds one count for each region and cell: [`Publication`] is
//! written, [`Stored`] is read. All counts are absolute, so that every message may be repeated.

use crate::model::key::{Key, NodeId};
use crate::model::time::UnixMs;
use alloc::vec::Vec;

/// Owner of the use that the region is known to have had and that no node accounts for. It is set
/// after all more precise counts were lost, and raised where another aggregator has evidence of more. It is never an Envoy's id, as [`NodeId::parse`] refuses it.
pub const BASELINE: NodeId = NodeId([0; 16]);

/// One node's count in one cell.
pub type Part = (NodeId, u64);

/// The ids of the incarnations of the regional store's servers, in the order of their markers; 0 where none was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreIds(pub Vec<u64>);

impl StoreIds {
    /// Whether two aggregators have read the same incarnations. What one of them has not read, as a server was away, is no difference.
    pub fn agree(&self, other: &StoreIds) -> bool {
        let both = || self.0.iter().zip(&other.0).filter(|(one, other)| **one != 0 && **other != 0);
        both().next().is_some() && both().all(|(one, other)| one == other)
    }
}

/// One cell to be raised in the regional store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merge {
    /// The key.
    pub key: Key,
    /// The cell's number.
    pub sequence: u64,
    /// Raised by maximum. A count of 0 marks its node as a follower of the cell.
    pub parts: Vec<Part>,
    /// The lowest limit known to apply; `u64::MAX` if unknown.
    pub limit: u64,
    /// The least that the region has used, if the components add up to less; otherwise 0. The store keeps the highest, and
    /// grants nothing that does not fit above it.
    pub lower_bound: u64,
    /// The nodes of `parts` that have sent their whole use before: by what they have used since, the store raises its lower
    /// bound.
    pub above: Vec<NodeId>,
    /// When the store drops the cell.
    pub expires: UnixMs,
    /// Granted or denied in the same atomic step.
    pub proposal: Option<Proposal>,
    /// Whether the cells before are read as well: all that a window touches, as many as the key's resolution.
    pub wants_previous: bool,
    /// The store's incarnation, as numbered by the region, for which this was created.
    pub incarnation: u32,
}

/// A proposal to spend more, if it fits the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// The proposing node.
    pub node: NodeId,
    /// Its component if granted.
    pub own: u64,
    /// The limit.
    pub limit: u64,
    /// Other regions' use of the cell.
    pub global_current: u64,
    /// Other regions' use of the cells before.
    pub global_previous: u64,
    /// Milliseconds of the cells before that count: of a single cell those that the window still covers, else all. At
    /// most `cell_ms`.
    pub covered_ms: u64,
    /// Length of a cell; at least 1.
    pub cell_ms: u64,
}

/// What the regional store holds of a cell after a [`Merge`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// Whether the proposal was granted, if there was one.
    pub granted: Option<bool>,
    /// All components of the cell.
    pub current: Vec<Part>,
    /// All components of each cell before, newest first; empty if they were not read.
    pub previous: Vec<Vec<Part>>,
    /// The lowest limit written for the cell; `u64::MAX` if none was.
    pub limit: u64,
    /// The lower bound of the cell, with what was used since it was written; 0 if there is none.
    pub lower_bound: u64,
}

/// The least that the whole region is known to have used in a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LowerBound {
    /// The key.
    pub key: Key,
    /// The cell's number.
    pub sequence: u64,
    /// The sum that the components must reach.
    pub total: u64,
    /// When the store drops the cell.
    pub expires: UnixMs,
}

/// This region's use of one cell, for the other regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// The key.
    pub key: Key,
    /// The cell's number.
    pub sequence: u64,
    /// What the region has used: the sum of its components, or its lower bound if that is more. Without imported counts.
    pub count: u64,
    /// The lowest limit that the region has applied to the cell; `u64::MAX` if unknown. It makes other regions publish early, and denies
    /// nothing there.
    pub limit: u64,
    /// The time from which no window touches the cell.
    pub expires: UnixMs,
}

/// What a global store holds of one region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredRegion {
    /// The region's name.
    pub region: Vec<u8>,
    /// Its cells.
    pub cells: Vec<Stored>,
}

/// What a global store holds of one cell of one region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The key.
    pub key: Key,
    /// The cell's number.
    pub sequence: u64,
    /// The count.
    pub count: u64,
    /// The lowest limit that the region has applied to the cell; `u64::MAX` if unknown.
    pub limit: u64,
}

/// A part of the rows that a global store holds, in the order of their places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The cells that were asked for, by region.
    pub regions: Vec<StoredRegion>,
    /// Where the page ended; `None` if no rows are left.
    pub end: Option<PageEnd>,
}

/// The place of a row in a global store: rows are ordered by the time at which they expire, so that no expired row is read. Places only
/// grow, as a row's expiry only grows; a row that moves while others are read is read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PageEnd {
    /// When the row expires.
    pub expires: UnixMs,
    /// The number of the row among those that expire then.
    pub row: u64,
}

impl PageEnd {
    /// The place after all rows that have expired at `now`.
    pub fn expired_at(now: UnixMs) -> PageEnd {
        PageEnd { expires: now, row: u64::MAX }
    }
}
