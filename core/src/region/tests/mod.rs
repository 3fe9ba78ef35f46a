//! Tests of a region: each method by itself, and a simulated world of several regions with faults.
//!
//! In reading order: `filters` and `laws` (reports and queries), `replay`, `publish`, `baseline` (stores), and `world`
//! (all of it together, driven at random).

mod baseline;
mod eviction;
mod filters;
mod hard_limit;
mod laws;
mod publish;
mod replay;
mod top;
mod world;

use super::cell::MAX_NODES_A_KEY;
use super::exchange::{BASELINE, Merge, Merged, Part};
use super::shares::Grants;
use super::*;
use crate::model::key::{HashKey, KeyParts};
use crate::model::window::MAX_COUNT;
use std::vec;
use std::vec::Vec;

pub(super) const CELL_MS: u64 = 60_000;
pub(super) const NOW: UnixMs = UnixMs(1_000 * CELL_MS);
pub(super) const SEQUENCE: u64 = 1_000;

pub(super) fn node(n: u8) -> NodeId {
    NodeId([n; 16])
}

/// As many nodes as a key has room for.
pub(super) fn crowd() -> impl Iterator<Item = NodeId> {
    (1..=MAX_NODES_A_KEY as u128).map(|n| NodeId(n.to_be_bytes()))
}

pub(super) fn key(identifier: &str) -> Key {
    let identifier = identifier.as_bytes();
    let parts = KeyParts {
        workspace: b"w",
        namespace: b"n",
        identifier,
        duration_ms: CELL_MS,
        epoch: 0,
        resolution: 1,
    };
    Key::new(&parts).unwrap()
}

pub(super) fn count(identifier: &str, sequence: u64, own: u64) -> wire::Count {
    wire::Count { key: key(identifier).as_bytes().to_vec(), sequence, own, limit: 10, ..Default::default() }
}

pub(super) fn query(own: u64, cost: u64) -> wire::Query {
    let key = key("k").as_bytes().to_vec();
    wire::Query { id: 1, key, sequence: SEQUENCE, own, cost, limit: 10, ..Default::default() }
}

pub(super) fn region() -> Region {
    Region::new(RegionLimits::default(), HashKey(1, 2))
}

/// Imports the count of another region.
pub(super) fn other(
    region: &mut Region,
    key: &Key,
    sequence: u64,
    count: u64,
    now: UnixMs,
) -> Result<bool, Refused> {
    let other = region.other_region(b"another")?;
    let stored = exchange::Stored { key: key.clone(), sequence, count, limit: u64::MAX };
    region.import(other, &stored, now).map(|imported| imported.created)
}

/// A region of which `regions` share a database.
pub(super) fn one_of(regions: u64) -> Region {
    let mut region = region();
    region.set_regions(regions);
    region
}

/// The rows of all that is due, sooner or later.
pub(super) fn rows(region: &mut Region) -> Vec<exchange::Publication> {
    rows_at(region, Due::AtInterval, NOW)
}

pub(super) fn rows_at(region: &mut Region, least: Due, now: UnixMs) -> Vec<exchange::Publication> {
    region.next_rows(least, 99, now)
}

pub(super) fn counts(rows: &[exchange::Publication]) -> Vec<(u64, u64)> {
    rows.iter().map(|row| (row.sequence, row.count)).collect()
}

/// All snapshots pushed to `to`, and whether they completed its snapshot.
pub(super) fn pushed(region: &mut Region, to: NodeId, now: UnixMs) -> (Vec<(u64, u64, u64)>, bool) {
    let (mut snapshots, mut complete) = (Vec::new(), false);
    while let Some(push) = region.next_push(to, now) {
        snapshots.extend(
            push.snapshots.iter().map(|snapshot| (snapshot.sequence, snapshot.own, snapshot.region_others)),
        );
        complete |= push.complete;
    }
    (snapshots, complete)
}

/// A region with a store.
pub(super) fn backed() -> Region {
    let mut region = region();
    region.attach_store();
    region
}

/// The answer of a store that holds `parts`.
pub(super) fn holding(parts: &[Part]) -> Merged {
    Merged { current: parts.to_vec(), limit: u64::MAX, ..Merged::default() }
}

/// Passes the answer of a store that was empty before the merge.
pub(super) fn took(region: &mut Region, merge: &Merge) {
    region.merged(merge, &holding(&merge.parts), NOW);
}

/// The only cell of `k`.
pub(super) fn cell(region: &Region) -> CellState {
    cell_of(region, "k", SEQUENCE)
}

pub(super) fn cell_of(region: &Region, identifier: &str, sequence: u64) -> CellState {
    let explained = region.explain(b"w", b"n", identifier.as_bytes());
    let cells = explained.iter().flat_map(|explained| &explained.cells);
    cells.into_iter().find(|cell| cell.sequence == sequence).cloned().unwrap()
}

pub(super) fn parts(cell: &CellState) -> Vec<Part> {
    cell.components.iter().map(|component| (component.node, component.own)).collect()
}
