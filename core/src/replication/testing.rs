//! Helpers of this module's unit tests.

use super::{Alone, RegionState};
use crate::model::key::{HashKey, Key, KeyParts, NodeId};
use crate::model::time::{MonoMs, Now, UnixMs};
use crate::model::wire::{Count, FilterFrame, Query, Report};
use crate::region::RegionLimits;
use std::vec;

pub const WINDOW_MS: u64 = 60_000;
pub const SEQUENCE: u64 = 1_000;
pub const NOW: Now = Now { unix: UnixMs(SEQUENCE * WINDOW_MS), mono: MonoMs(50_000) };
pub const NODE: NodeId = NodeId([1; 16]);

pub fn state() -> RegionState {
    RegionState::new(RegionLimits::default(), HashKey(1, 2))
}

/// With a store whose markers were read.
pub fn backed() -> RegionState {
    let mut state = state().with_store(crate::model::schedule::Schedule::default().store_breaker);
    state.store().unwrap().found();
    state.region.set_store_ids(crate::region::exchange::StoreIds(std::vec![1]));
    state
}

pub fn at(state: &mut RegionState, ms: u64) -> Alone<'_> {
    Alone { state, now: Now { unix: UnixMs(NOW.unix.0 + ms), mono: NOW.mono.after(ms) } }
}

pub fn node(number: u8) -> NodeId {
    NodeId([number; 16])
}

pub fn key(identifier: &str) -> Key {
    let parts = KeyParts {
        workspace: b"w",
        namespace: b"n",
        identifier: identifier.as_bytes(),
        duration_ms: WINDOW_MS,
        epoch: 0,
        resolution: 1,
    };
    Key::new(&parts).unwrap()
}

/// A report of `own` used in the cell of `i`, whose limit is 10.
pub fn report(id: u64, own: u64) -> FilterFrame {
    let counts = vec![count("i", own)];
    FilterFrame { report: Some(Report { id, counts }), ..FilterFrame::default() }
}

pub fn count(identifier: &str, own: u64) -> Count {
    Count { key: key(identifier).as_bytes().to_vec(), sequence: SEQUENCE, own, limit: 10, ..Count::default() }
}

/// The sum of all components stored for the cell of `i`.
pub fn sum(state: &RegionState) -> u64 {
    let explained = state.region.explain(b"w", b"n", b"i");
    let components = explained.first().map_or(&[][..], |key| &key.cells[0].components);
    components.iter().map(|component| component.own).sum()
}

pub fn query(id: u64, cost: u64, limit: u64) -> Query {
    let key = key("i").as_bytes().to_vec();
    Query { id, key, sequence: SEQUENCE, own: 0, cost, limit, ..Query::default() }
}
