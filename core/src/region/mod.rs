//! An aggregator's counts of its region: every node's component of every live cell, and which nodes receive changes of
//! it.
//!
//! Each node owns one component of a cell and only ever raises it; a merge takes the maximum. What a filter receives
//! (`region_others`) is summed from components after the merge, so it never falls. A query is granted or denied against
//! the sum at this moment, and a grant raises the querying node's component at once. Therefore two nodes cannot be
//! granted the same remainder.
//!
//! Changes of a key are pushed to its *followers*, the nodes that touched it in this or the last window; and to all
//! subscribers if the key is past half its limit. They are collected as a set of keys. A slow subscriber therefore
//! costs memory by keys, not by requests, and receives the newest state only.
//!
//! What peers can make the region hold is bounded. The bounds multiply, as the memory of a key depends on its nodes:
//!
//! - keys by [`RegionLimits::max_keys`], beyond which those of low use are evicted, and by time: a key that no window
//!   touches any more is dropped;
//! - cells of a key by the plausible sequences, now ± [`MAX_WINDOW_SKEW`] windows;
//! - components of a cell and followers of a key by `MAX_NODES_A_KEY` each, however many nodes come and go: a further
//!   node's counts and queries are refused, and it receives the key only while that is hot. Nodes of one peer leave components to those
//!   of others;
//! - nodes that are alive at the same time, and with them subscribers, by [`RegionLimits::max_nodes`];
//! - what waits to be pushed to a subscriber, by the keys that changed since its last push;
//! - the work of one step of a snapshot or of dropping old cells by `MAX_KEYS_A_STEP`.
//!
//! A region may have stores, which the aggregator calls: one that the region's aggregators share (`replay`), and one
//! that all regions share (`publish`). What all of them have lost is restored by `baseline`.
//!
//! In reading order: `filters` (reports, queries, pushes), `key_state` and [`cell`] (what is stored), `replay` and `work` (the regional store),
//! `global` (the other regions), `baseline`; [`shares`] (of the room for keys); [`nodes`] (which are alive); [`top`] for status pages.

mod baseline;
pub mod cell;
pub mod exchange;
mod filters;
mod global;
mod key_state;
mod keys;
pub mod log;
pub mod nodes;
mod plausibility;
mod replay;
mod reserved;
pub mod shares;
mod subscribers;
pub mod top;
mod work;

use crate::model::key::{HashKey, Key, NodeId};
use crate::model::time::{MonoMs, UnixMs};
use crate::model::wire;
use alloc::vec::Vec;
use cell::others::OtherRegions;
use global::publish::Publishing;
use keys::Keys;
use nodes::Nodes;
use replay::Backing;
use shares::Grants;
use subscribers::Subscribers;
use work::{Errand, Work};

pub use cell::others::{MAX_OTHER_REGIONS, OtherComponent, OtherComponents, OtherRegion};
pub use cell::sharing::{Due, LONE_TOLERANCE_PART, THRESHOLD_MARGIN, TOLERANCE_PART};
pub use cell::{CellState, Component};
pub use global::publish::ImportedCell;
pub use key_state::{LiveLimit, SHORTEST_PUBLISHED_MS};
pub use plausibility::{MAX_WINDOW_SKEW, MOST_A_SECOND, Refused};
pub use replay::{HotCell, Proposed};
pub use reserved::Reserved;

/// Bounds of a [`Region`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionLimits {
    /// Most keys held. For a further one, a key of low use is evicted. If there is none, the new key is refused and
    /// counted.
    pub max_keys: usize,
    /// Most nodes at the same time; frames of further ones are refused. A node is removed with its last stream, or
    /// after an hour without a frame. This does not bound how many come and go one after the other.
    pub max_nodes: usize,
}

impl Default for RegionLimits {
    fn default() -> Self {
        RegionLimits { max_keys: 2_000_000, max_nodes: 4_096 }
    }
}

/// The result of merging a report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReportResult {
    /// Counts that came without a baseline: the position of each in the report, and what the region holds of it.
    pub baselines: Vec<(u32, wire::Snapshot)>,
    /// Counts that were refused: the position of each in the report, and the reason.
    pub refused: Vec<(u32, Refused)>,
}

/// One key with its live cells, in order of sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyCells {
    /// The key.
    pub key: Key,
    /// Its live cells.
    pub cells: Vec<CellState>,
    /// The limit that was applied last; `None` if it is not known, but only the lowest one of each cell.
    pub newest_limit: Option<u64>,
    /// What nodes that report here have reserved of it, as they reported it last.
    pub reserved: Vec<Reserved>,
}

/// Counters and gauges for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionStats {
    /// Keys held.
    pub keys: usize,
    /// Nodes alive.
    pub live_nodes: usize,
    /// Keys waiting to be pushed, summed over subscribers.
    pub pending_pushes: usize,
    /// Cells stored.
    pub windows: u64,
    /// Cells created because a node used them.
    pub windows_created: u64,
    /// Cells dropped.
    pub windows_forgotten: u64,
    /// Keys evicted to make room for others.
    pub keys_evicted: u64,
    /// Cells waiting to be written to the regional store.
    pub pending_replays: usize,
    /// Cells waiting to be published to the region's other aggregators.
    pub pending_shares: usize,
    /// Keys waiting to be published to other regions.
    pub pending_publications: usize,
}

/// The state machine. It is driven by frames and by [`Region::tick`], and never reads a clock.
#[derive(Debug)]
pub struct Region {
    keys: Keys,
    /// Its nodes.
    pub nodes: Nodes,
    subscribers: Subscribers,
    work: Work,
    backing: Backing,
    others: OtherRegions,
    publishing: Publishing,
    imported: u64,
    /// What the region had published before a loss is being read, or is only in lower bounds.
    is_restoring: bool,
}

impl Region {
    /// An empty region. `secret` must be random and unknown to clients.
    pub fn new(limits: RegionLimits, secret: HashKey) -> Region {
        Region {
            keys: Keys::new(limits.max_keys, secret),
            nodes: Nodes::new(limits.max_nodes),
            subscribers: Subscribers::default(),
            work: Work::default(),
            backing: Backing::default(),
            others: OtherRegions::default(),
            publishing: Publishing::default(),
            imported: 0,
            is_restoring: false,
        }
    }

    /// Records that the last stream of `node` ended, so that it no longer counts as alive.
    pub fn gone(&mut self, node: NodeId) {
        self.nodes.remove(node);
        self.subscribers.remove(node);
    }

    /// What the region had published before a loss is being read, until the lower bounds that were found are in components. Until then
    /// subscribers' snapshots are not reported as complete. Returns whether that has changed.
    pub fn set_restoring(&mut self, is_restoring: bool) -> bool {
        core::mem::replace(&mut self.is_restoring, is_restoring) != is_restoring
    }

    /// Sets what the credentials of applications grant, by which the room for keys is shared. Namespaces that have keys keep
    /// their places.
    pub fn set_grants(&mut self, grants: Grants) {
        self.keys.shares.set_grants(grants);
    }

    /// Whether all hot cells of the region are stored here, and can be pushed.
    fn is_complete(&self) -> bool {
        self.backing.is_complete() && !self.is_restoring
    }

    /// Drops cells that no window touches any more, and records excesses. Returns true if it should be called again soon, as one call
    /// drops a bounded number only.
    pub fn tick(&mut self, now: UnixMs) -> bool {
        let cells = self.live_cells();
        self.work.sweep(&mut self.keys, usize::try_from(cells).unwrap_or(usize::MAX));
        self.publishing.due.sweep(&self.keys);
        self.judge_excesses(now);
        self.keys.expire(now)
    }

    /// Every live cell of the identifier, for all its windows.
    pub fn explain(&self, workspace: &[u8], namespace: &[u8], identifier: &[u8]) -> Vec<KeyCells> {
        self.keys
            .of_identifier(workspace, namespace, identifier)
            .into_iter()
            .map(|(key, state)| KeyCells {
                key: key.clone(),
                cells: state.cells().to_vec(),
                newest_limit: state.newest_limit.limit(),
                reserved: state.reserved.held().collect(),
            })
            .collect()
    }

    /// Counters and gauges for metrics.
    pub fn stats(&self, now: MonoMs) -> RegionStats {
        RegionStats {
            keys: self.keys.len(),
            live_nodes: self.nodes.alive(now),
            pending_pushes: self.subscribers.pending(),
            windows: self.live_cells(),
            windows_created: self.work.created,
            windows_forgotten: self.keys.forgotten(),
            keys_evicted: self.keys.evicted(),
            pending_replays: self.pending_merges(),
            pending_shares: self.work.len(Errand::Share),
            pending_publications: self.waiting_keys(),
        }
    }

    fn live_cells(&self) -> u64 {
        (self.work.created + self.imported).saturating_sub(self.keys.forgotten())
    }
}

#[cfg(test)]
mod tests;
