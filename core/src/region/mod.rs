//! An aggregator's view of its region: every origin's component of every live cell, and who wants to hear of it.
//!
//! Each origin owns one component of a cell and only ever raises it; merging is `max`. What a filter is told
//! (`region_others`) is summed from components after the merge, so it never falls. A consult is granted or not
//! against the sum at this moment, and a grant raises the asker's component at once: two origins cannot be granted
//! the same remainder.
//!
//! Pushes go to the origins that touched a key in this or the last window, and to all where a key is past half its
//! limit. They are collected as a set of keys, so a slow subscriber costs memory by keys, not by requests, and the
//! newest state is what it gets.
//!
//! What peers may make it hold is bounded; the bounds multiply, as a key costs what its origins cost:
//!
//! - keys by [`RegionLimits::max_keys`], beyond which those of low use are evicted, and by time: one that no window touches any
//!   more is forgotten;
//! - cells of a key by the plausible sequences, now ± [`MAX_WINDOW_SKEW`] windows;
//! - components of a cell and followers of a key by `MAX_ORIGINS_A_KEY` each, however many origins come and go:
//!   a further origin's counts and consults are refused, and it hears of the key only while that is hot;
//! - origins that are there at the same time, and with them subscribers, by [`RegionLimits::max_origins`];
//! - what a subscriber is still to be told by the keys that changed since it last took something;
//! - the work of one step of a snapshot or of forgetting by `MAX_KEYS_A_STEP`.
//!
//! Behind a region there may be stores, which the shell drives: one that the region's aggregators share (`replay`),
//! and one that all regions share (`publish`). What was lost on all sides is made up for by `baseline`.
//!
//! In reading order: `filters` (what filters say and hear), `cells` and [`cell`] (what is kept), `replay`, `publish`,
//! `baseline`, and `work` (the queues between them); [`top`] for people who look.
//!
//! Leaves to others: streams, clocks and stores (`aggregator`); what a filter does with it (`limiter`).

mod baseline;
pub mod cell;
mod cells;
pub mod exchange;
mod filters;
mod keys;
pub mod log;
mod publish;
mod replay;
mod subscribers;
pub mod top;
mod work;

use crate::model::key::{Key, KeyParts, OriginId};
use crate::model::time::{MonoMs, UnixMs};
use crate::model::window::{MAX_COUNT, Position};
use crate::model::wire;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use keys::Keys;
use replay::Backing;
use subscribers::Subscribers;
use work::{Errand, Work};

pub use cell::{CellState, Component};
pub use cells::SHORTEST_PUBLISHED_MS;
pub use publish::{Choice, Due, most_used};
pub use replay::{HotCell, Proposed};

/// An origin counts as alive for this long after its last frame.
pub const ORIGIN_ALIVE_MS: u64 = 2_000;
/// An origin is forgotten after this long without a frame.
const SILENT_MS: u64 = 3_600_000;
/// How many windows a sequence may lie from the aggregator's own; more means that a clock is wrong.
pub const MAX_WINDOW_SKEW: u64 = 2;

/// Most that one node is taken to have used of one key in a second: a million requests, each with a cost of a million.
pub const MOST_A_SECOND: u64 = 1 << 40;
/// So many seconds are added to the time that a cell has lasted, as clocks differ.
const CLOCKS_DIFFER_S: u64 = 60;
/// Most nodes of one peer (an address) that are counted: one that invents nodes leaves the others at least this part of
/// the slack that they had.
pub const MAX_NODES_OF_PEER: usize = 64;

/// Bounds of a [`Region`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionLimits {
    /// Most keys held; for a further one a key of low use is evicted. If there is none, it is refused and counted.
    pub max_keys: usize,
    /// Most origins at the same time; frames of further ones are refused. An origin is forgotten with its last stream,
    /// or after an hour without a frame: how many come and go, one after the other, is not bounded by this.
    pub max_origins: usize,
}

impl Default for RegionLimits {
    fn default() -> Self {
        RegionLimits { max_keys: 2_000_000, max_origins: 4_096 }
    }
}

/// Why a count was not merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The key's bytes are not a key.
    #[error("malformed key")]
    Key,
    /// More than two windows away from now.
    #[error("sequence is more than two windows away from now")]
    Sequence,
    /// A component beyond [`MAX_COUNT`], or beyond [`MOST_A_SECOND`] for as long as its cell lasts.
    #[error("implausible component")]
    Component,
    /// [`RegionLimits`] are reached, or as many origins as a key has room for have touched it.
    #[error("the region is full")]
    Full,
    /// The process forgot what it has spent, and the store that may know cannot be asked.
    #[error("the baseline is not known while the regional store is away")]
    Baseline,
}

/// What became of a report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reported {
    /// What the region holds of each count that came without a baseline, and its place in the report.
    pub baselines: Vec<(u32, wire::Snapshot)>,
    /// Counts that are not stored: the place in the report, and the reason.
    pub refused: Vec<(u32, Refused)>,
}

/// One key, explained: its cells in order of sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Explained {
    /// The key.
    pub key: Key,
    /// Its live cells.
    pub cells: Vec<CellState>,
}

/// Figures for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionStats {
    /// Keys held.
    pub keys: usize,
    /// Origins alive.
    pub live_origins: usize,
    /// Keys waiting to be pushed, summed over subscribers.
    pub pending_pushes: usize,
    /// Cells that are kept.
    pub windows: u64,
    /// Cells made because somebody used them.
    pub windows_created: u64,
    /// Cells forgotten.
    pub windows_forgotten: u64,
    /// Keys evicted, as there was no room for others.
    pub keys_evicted: u64,
    /// Cells waiting to be raised in the regional store.
    pub pending_replays: usize,
    /// Cells waiting to be told to the region's other aggregators.
    pub pending_shares: usize,
    /// Cells waiting to be told to other regions.
    pub pending_publications: usize,
}

/// The state machine. Drive it with frames and with [`Region::tick`]; it never looks at a clock.
#[derive(Debug)]
pub struct Region {
    max_origins: usize,
    keys: Keys,
    /// When each origin was last heard, by the clock that never steps: else a step would make all others dead for a moment, and
    /// each would spend as if it were alone.
    origins: BTreeMap<OriginId, MonoMs>,
    /// Those that have reported something, and of which peer they are.
    nodes: BTreeMap<OriginId, u64>,
    /// Origins that the region's other aggregators hear of.
    elsewhere: BTreeSet<OriginId>,
    subscribers: Subscribers,
    work: Work,
    backing: Backing,
    /// The walk over all cells that the loss of the global store has made necessary; the slot to go on from.
    republish: Option<usize>,
    imported: u64,
}

impl Region {
    /// An empty region; `secret` is random and unknown to clients.
    pub fn new(limits: RegionLimits, secret: (u64, u64)) -> Region {
        Region {
            max_origins: limits.max_origins,
            keys: Keys::new(limits.max_keys, secret),
            origins: BTreeMap::new(),
            nodes: BTreeMap::new(),
            elsewhere: BTreeSet::new(),
            subscribers: Subscribers::default(),
            work: Work::default(),
            backing: Backing::default(),
            republish: None,
            imported: 0,
        }
    }

    /// Notes that `origin` is alive. False if there are too many origins already.
    pub fn heard(&mut self, origin: OriginId, now: MonoMs) -> bool {
        if !self.origins.contains_key(&origin) && self.origins.len() >= self.max_origins {
            self.origins.retain(|_, last| now.since(*last) < SILENT_MS);
            self.nodes.retain(|origin, _| self.origins.contains_key(origin));
        }
        if !self.origins.contains_key(&origin) && self.origins.len() >= self.max_origins {
            return false;
        }
        let last = self.origins.entry(origin).or_default();
        *last = now.max(*last);
        true
    }

    /// Notes that `origin`, whose streams come from `peer`, has reported something: from now on it counts as a node, unless
    /// [`MAX_NODES_OF_PEER`] of the same peer do. True if it did not before.
    pub fn count_node(&mut self, origin: OriginId, peer: u64) -> bool {
        if !self.origins.contains_key(&origin) || self.nodes.contains_key(&origin) {
            return false;
        }
        let of_peer = self.nodes.values().filter(|of| **of == peer).count();
        if of_peer < MAX_NODES_OF_PEER {
            self.nodes.insert(origin, peer);
        }
        of_peer < MAX_NODES_OF_PEER
    }

    /// Notes that the last stream of `origin` ended, so that it no longer counts as alive.
    pub fn gone(&mut self, origin: OriginId) {
        self.origins.remove(&origin);
        self.nodes.remove(&origin);
        self.subscribers.remove(origin);
    }

    /// Nodes heard of within [`ORIGIN_ALIVE_MS`], here or by another aggregator of the region.
    pub fn live_origins(&self, now: MonoMs) -> usize {
        let here = self.origins_here(now).count();
        here + self.elsewhere.iter().filter(|origin| !self.nodes.contains_key(*origin)).count()
    }

    /// The same, as `origin` is told it: with itself, even if it has reported nothing yet.
    pub fn live_origins_with(&self, origin: OriginId, now: MonoMs) -> usize {
        let is_counted = self.nodes.contains_key(&origin) || self.elsewhere.contains(&origin);
        self.live_origins(now) + usize::from(!is_counted)
    }

    /// Nodes heard of here within [`ORIGIN_ALIVE_MS`].
    pub fn origins_here(&self, now: MonoMs) -> impl Iterator<Item = OriginId> + '_ {
        let alive = move |last: &MonoMs| now.since(*last) <= ORIGIN_ALIVE_MS;
        let alive = self.origins.iter().filter(move |(_, last)| alive(last)).map(|(origin, _)| *origin);
        alive.filter(|origin| self.nodes.contains_key(origin))
    }

    /// Takes the origins that are alive anywhere in the region, in place of those named before.
    pub fn set_origins_elsewhere(&mut self, origins: &[OriginId]) {
        self.elsewhere = origins.iter().copied().take(self.max_origins).collect();
    }

    /// Forgets cells that no window touches any more. True if it should be called
    /// again soon, as there is more to forget than it takes on at once.
    pub fn tick(&mut self, now: UnixMs) -> bool {
        let cells = self.live_cells();
        self.work.sweep(&mut self.keys, usize::try_from(cells).unwrap_or(usize::MAX));
        self.keys.expire(now)
    }

    /// Every live cell of the identifier, whatever its window.
    pub fn explain(&self, workspace: &[u8], namespace: &[u8], identifier: &[u8]) -> Vec<Explained> {
        self.keys
            .of_identifier(workspace, namespace, identifier)
            .into_iter()
            .map(|(key, state)| Explained { key: key.clone(), cells: state.cells().to_vec() })
            .collect()
    }

    /// Figures for metrics.
    pub fn stats(&self, now: MonoMs) -> RegionStats {
        RegionStats {
            keys: self.keys.len(),
            live_origins: self.live_origins(now),
            pending_pushes: self.subscribers.pending(),
            windows: self.live_cells(),
            windows_created: self.work.created,
            windows_forgotten: self.keys.forgotten(),
            keys_evicted: self.keys.evicted(),
            pending_replays: self.pending_merges(),
            pending_shares: self.work.len(Errand::Share),
            pending_publications: self.work.len(Errand::Publish),
        }
    }

    fn live_cells(&self) -> u64 {
        (self.work.created + self.imported).saturating_sub(self.keys.forgotten())
    }
}

/// Whether a count can be one, and the present position in the key's windows. No key is made yet: most are known.
fn checked(key: &[u8], sequence: u64, component: u64, now: UnixMs) -> Result<Position, Refused> {
    let parts = KeyParts::decode(key).map_err(|_| Refused::Key)?;
    let at = Position::at(now, parts.cell_ms());
    if sequence.abs_diff(at.sequence) > MAX_WINDOW_SKEW.saturating_mul(u64::from(parts.resolution)) {
        return Err(Refused::Sequence);
    }
    if component > MAX_COUNT {
        return Err(Refused::Component);
    }
    Ok(at)
}

/// The same of what one node says that it has used.
fn checked_own(key: &[u8], sequence: u64, own: u64, now: UnixMs) -> Result<Position, Refused> {
    let at = checked(key, sequence, own, now)?;
    if own > most_by_now(sequence, at.cell_ms, now) { Err(Refused::Component) } else { Ok(at) }
}

/// Most that one node is taken to have used in a cell by now.
fn most_by_now(sequence: u64, cell_ms: u64, now: UnixMs) -> u64 {
    let lasted_ms = now.0.saturating_sub(sequence.saturating_mul(cell_ms)).min(cell_ms);
    let seconds = (lasted_ms / 1_000).saturating_add(CLOCKS_DIFFER_S);
    seconds.saturating_mul(MOST_A_SECOND).min(MAX_COUNT)
}

#[cfg(test)]
mod tests;
