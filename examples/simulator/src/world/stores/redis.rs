//! A region's Redis: the simplest store that behaves like its scripts and commands. `calls` does publish and
//! subscribe.

use crate::world::request::{Guarded, Listed, Reply, Request};
use std::collections::BTreeMap;
use weir_core::model::key::{Key, NodeId};
use weir_core::model::time::UnixMs;
use weir_core::model::window::MAX_COUNT;
use weir_core::region::exchange::{BASELINE, LowerBound, Merge, Merged, Proposal};
use weir_core::replication::members::Member;
use weir_core::replication::regional::clock::SharedTime;
use weir_core::replication::regional::hot::{HOT_SHARDS, SHARD_CELLS};
use weir_core::replication::regional::marker::{Incarnations, Marker, Server};
use weir_core::replication::regional::receipts::Step;

/// Least lifetime of a cell, independent of its expiry by other clocks, in milliseconds.
const MARGIN_MS: u64 = 60_000;
/// A node or an aggregator is live for this long after it was named, in milliseconds.
const LIVE_MS: u64 = 3_000;
/// Interval between two removals of expired data, in milliseconds.
const SWEEP_MS: u64 = 1_000;

type At = (Key, u64);

/// The Redis server.
#[derive(Clone, Debug, Default)]
pub struct Redis {
    /// The cells by key and number.
    pub cells: BTreeMap<At, Cell>,
    hot: BTreeMap<At, u64>,
    marker: Option<Marker>,
    /// How often a replica was promoted.
    promotions: u128,
    nodes: BTreeMap<NodeId, u64>,
    aggregators: BTreeMap<Member, u64>,
    time: Option<SharedTime>,
    swept_ms: u64,
    /// Cells that were written since the last check.
    pub written: Vec<At>,
}

/// A cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The component of each node.
    pub parts: BTreeMap<NodeId, u64>,
    limit: u64,
    /// What the cell counts at least, whatever its parts add up to.
    lower_bound: u64,
    expires_ms: u64,
}

impl Default for Cell {
    fn default() -> Self {
        Cell { parts: BTreeMap::new(), limit: u64::MAX, lower_bound: 0, expires_ms: 0 }
    }
}

impl Redis {
    /// Executes a request at the server's time.
    pub fn execute(&mut self, request: Request, now_ms: u64) -> Reply {
        self.sweep(now_ms);
        match request {
            Request::Merge(merges) => {
                Reply::Merged(merges.iter().map(|merge| Ok(self.merge(merge, now_ms))).collect())
            }
            Request::Raise(lower_bounds) => Reply::Merged(
                lower_bounds.iter().map(|lower_bound| Ok(self.raise_to(lower_bound, now_ms))).collect(),
            ),
            Request::Cells(cells) => Reply::Merged(cells.iter().map(|at| Ok(self.merged(at))).collect()),
            Request::NameHot(cells) => {
                self.hot.extend(cells.into_iter().map(|cell| ((cell.key, cell.sequence), cell.expires.0)));
                Reply::Done(Ok(()))
            }
            Request::Shard(shard) => {
                let named = self.hot.keys().filter(|(key, _)| shard_of(key) == shard);
                Reply::Named(Ok(named.take(SHARD_CELLS).cloned().collect()))
            }
            Request::Nodes(aggregator, mine, proposal) => {
                let region_us = SharedTime::agree(&mut self.time, &proposal, now_ms.saturating_mul(1_000));
                self.nodes.extend(mine.into_iter().map(|node| (node, now_ms)));
                self.aggregators.insert(aggregator, now_ms);
                let is_live = |named_ms: u64| now_ms.saturating_sub(named_ms) <= LIVE_MS;
                self.nodes.retain(|_, named_ms| is_live(*named_ms));
                self.aggregators.retain(|_, named_ms| is_live(*named_ms));
                let (nodes, aggregators) =
                    (self.nodes.keys().copied().collect(), self.aggregators.keys().copied().collect());
                Reply::Alive(Ok(Listed { nodes, aggregators, region_us }))
            }
            Request::Receipt(guarded, reply) => {
                Reply::Guarded(reply, self.record(&guarded, guarded.receipt.last))
            }
            Request::Look(look) => {
                let server = Server { process: self.promotions + 1, promotion: self.promotions };
                let read = Marker::read(&mut self.marker, 0, &look, Some(server), UnixMs(now_ms));
                Reply::Incarnations(Ok(Incarnations { seen: vec![read], ..Incarnations::default() }))
            }
            // Other requests are for the database.
            _ => Reply::Done(Ok(())),
        }
    }

    /// Records a step of the receipt of a pipeline, and returns whether the marker has it.
    pub fn record(&mut self, guarded: &Guarded, step: Step) -> bool {
        Marker::record(&mut self.marker, &guarded.reader, &guarded.receipt, step)
    }

    /// Loses all data.
    pub fn wipe(&mut self) {
        *self = Redis { swept_ms: self.swept_ms, promotions: self.promotions, ..Redis::default() };
    }

    /// Continues with older data: on another server if that was a replica, otherwise on the same.
    pub fn set_back(&mut self, older: Redis, is_replica: bool) {
        *self = Redis { promotions: self.promotions + u128::from(is_replica), ..older };
    }

    fn merge(&mut self, merge: &Merge, now_ms: u64) -> Merged {
        let at = (merge.key.clone(), merge.sequence);
        let resolution = u64::from(merge.key.parts().resolution.max(1));
        let cells_before = (1..=resolution).map_while(|back| merge.sequence.checked_sub(back));
        let before: Vec<Merged> =
            cells_before.map(|sequence| self.merged(&(merge.key.clone(), sequence))).collect();
        let cell = self.cells.entry(at.clone()).or_default();
        let is_short = cell.lower_bound > sum(cell);
        for (node, own) in &merge.parts {
            let above = cell.parts.get(node).filter(|_| is_short && merge.above.contains(node));
            let new = above.map_or(0, |held| own.saturating_sub(*held));
            cell.lower_bound = cell.lower_bound.saturating_add(new);
            raise(cell, *node, *own);
        }
        cell.lower_bound = cell.lower_bound.max(merge.lower_bound).min(MAX_COUNT);
        cell.limit = cell.limit.min(merge.limit);
        let granted = merge.proposal.map(|proposal| {
            let fits = fits(cell, &before, &proposal);
            if fits {
                if cell.lower_bound > sum(cell) {
                    let new = proposal.own.saturating_sub(own(cell, &proposal));
                    cell.lower_bound = cell.lower_bound.saturating_add(new).min(MAX_COUNT);
                }
                raise(cell, proposal.node, proposal.own);
            }
            fits
        });
        cell.expires_ms = cell.expires_ms.max(merge.expires.0).max(now_ms + MARGIN_MS);
        self.written.push(at.clone());
        let wanted = before.into_iter().filter(|_| merge.wants_previous);
        let previous = wanted.map(|cell| cell.current).collect();
        Merged { granted, previous, ..self.merged(&at) }
    }

    fn raise_to(&mut self, lower_bound: &LowerBound, now_ms: u64) -> Merged {
        let at = (lower_bound.key.clone(), lower_bound.sequence);
        let cell = self.cells.entry(at.clone()).or_default();
        let missing = lower_bound.total.saturating_sub(cell.parts.values().sum());
        if missing > 0 {
            *cell.parts.entry(BASELINE).or_default() += missing;
        }
        cell.expires_ms = cell.expires_ms.max(lower_bound.expires.0).max(now_ms + MARGIN_MS);
        self.written.push(at.clone());
        self.merged(&at)
    }

    fn merged(&self, at: &At) -> Merged {
        let Some(cell) = self.cells.get(at) else { return Merged { limit: u64::MAX, ..Merged::default() } };
        let current = cell.parts.iter().map(|(node, own)| (*node, *own)).collect();
        let (limit, lower_bound) = (cell.limit, cell.lower_bound);
        Merged { granted: None, current, previous: Vec::new(), limit, lower_bound }
    }

    fn sweep(&mut self, now_ms: u64) {
        if now_ms.saturating_sub(self.swept_ms) < SWEEP_MS {
            return;
        }
        self.swept_ms = now_ms;
        self.cells.retain(|_, cell| cell.expires_ms > now_ms);
        self.hot.retain(|_, expires_ms| *expires_ms > now_ms);
    }
}

fn raise(cell: &mut Cell, node: NodeId, own: u64) {
    let held = cell.parts.entry(node).or_default();
    *held = own.max(*held);
}

fn own(cell: &Cell, proposal: &Proposal) -> u64 {
    cell.parts.get(&proposal.node).copied().unwrap_or(0)
}

fn sum(cell: &Cell) -> u64 {
    cell.parts.values().fold(0, |sum, own| sum.saturating_add(*own))
}

fn fits(cell: &Cell, before: &[Merged], proposal: &Proposal) -> bool {
    let held = own(cell, proposal);
    let (others, own) = (sum(cell).max(cell.lower_bound).saturating_sub(held), held.max(proposal.own));
    let total = |cell: &Merged| {
        let sum = cell.current.iter().fold(0, |sum: u64, (_, own)| sum.saturating_add(*own));
        sum.max(cell.lower_bound)
    };
    let previous = before.iter().map(total).fold(proposal.global_previous, u64::saturating_add);
    let previous = previous.min(MAX_COUNT);
    let share = u128::from(previous) * u128::from(proposal.covered_ms) / u128::from(proposal.cell_ms.max(1));
    let used = u128::from(others.saturating_add(own).saturating_add(proposal.global_current)) + share;
    used <= u128::from(proposal.limit)
}

fn shard_of(key: &Key) -> usize {
    key.as_bytes().iter().map(|byte| usize::from(*byte)).sum::<usize>() % HOT_SHARDS
}
