//! The invariants. The checkers compute the true use from decisions, and compare it with the state of each part.
//!
//! - `truth`: the true use of each cell: for each node, what it admitted, what its table holds as spent, and what
//!   its region granted.
//! - `tables`: checks each write of a table and of Redis.
//! - `decisions`: checks each decision.
//! - `budget`: checks what token budgets promise.
//! - `exact`: checks exact limits.
//! - `rest`: checks the final state of all parts.

mod budget;
mod decisions;
pub(crate) mod exact;
pub(crate) mod rest;
mod tables;
#[cfg(test)]
mod tests;
pub(crate) mod truth;

use crate::measure::figures::{Peak, Violation};
use crate::plan::keys::Shape;
use crate::plan::{Link, Part, Plan, Wrong};
use std::collections::BTreeMap;
use truth::Truth;
use weir_core::limiter::WAITING_TICK_MS;
use weir_core::limiter::table::{Bucket, tolerated_ms};
use weir_core::model::key::NodeId;

pub use decisions::Decision;
pub(crate) use decisions::FIRST_CHECK_US;
pub use truth::CellId;

/// Most violations that are recorded; further ones usually repeat them.
const MAX_VIOLATIONS: usize = 100;
/// By how much the time of a region may become worse at once, in milliseconds: an Envoy measures it with half of a round
/// trip as its error.
const MOST_OFF_MS: u64 = 500;
/// How much longer than each of its timeouts a request may wait: a tick, a late timer, and clocks in whole
/// milliseconds.
const LATE_US: u64 = (WAITING_TICK_MS + 4) * 1_000;

/// All checkers and their state.
#[derive(Debug)]
pub struct Check {
    /// The true use.
    pub(crate) truth: Truth,
    /// The true use of exact limits.
    pub(crate) exact: exact::Exact,
    budgets: budget::Budgets,
    /// Times until cells converged.
    pub(crate) convergence_ms: Vec<u64>,
    begin_us: u64,
    violations: Vec<Violation>,
    peaks: BTreeMap<String, (u64, u64)>,
    /// Since when each Envoy has been running without a freeze; `u64::MAX` while it is frozen.
    running_since_us: BTreeMap<usize, u64>,
    /// For each rule: when the clock of a process last stepped by more than the rule's cells tolerate.
    stepped_us: Vec<Option<u64>>,
    /// For each process and rule: offset of the clock that numbers the rule's cells from the monotonic clock, in
    /// milliseconds, and the cell in which that was noted.
    numbered_by: BTreeMap<NodeId, Vec<(i64, u64)>>,
    /// For each worker of a process: offset of its clock from the monotonic clock, in milliseconds.
    offsets_ms: BTreeMap<(NodeId, usize), i64>,
    has_redis: bool,
    /// Number of faults of the plan.
    faults: u64,
    /// A fault of the plan makes a Redis unavailable or slow.
    store_fails: bool,
    /// No fault of the plan ends the part that has a region's time.
    keeps_time: bool,
    /// A fault of the plan freezes an Envoy or impairs its streams.
    reconnects: bool,
    /// A buffer for buckets.
    bucket: Bucket,
}

impl Check {
    /// Creates the checkers for a world of `plan`.
    pub(crate) fn new(shapes: &[Shape], plan: &Plan) -> Check {
        let has_redis = plan.topology.aggregators > 1;
        let mut truth = Truth::new(shapes, plan.topology.regions, plan.topology.envoys);
        truth.behind_ms = plan.faults.iter().map(|fault| behind_ms(&fault.what)).sum();
        Check {
            truth,
            exact: exact::Exact::default(),
            budgets: budget::Budgets::default(),
            convergence_ms: Vec::new(),
            begin_us: plan.settle_ms * 1_000,
            violations: Vec::new(),
            peaks: BTreeMap::new(),
            running_since_us: BTreeMap::new(),
            stepped_us: vec![None; shapes.len()],
            numbered_by: BTreeMap::new(),
            offsets_ms: BTreeMap::new(),
            has_redis,
            keeps_time: !plan.faults.iter().any(|fault| match has_redis {
                true => fails_stores(&fault.what),
                false => ends_aggregators(&fault.what),
            }),
            faults: plan.faults.len() as u64,
            store_fails: plan.faults.iter().any(|fault| fails_stores(&fault.what)),
            reconnects: plan.faults.iter().any(|fault| disconnects_envoys(&fault.what)),
            bucket: Bucket::default(),
        }
    }

    /// A process of an Envoy begins.
    pub(crate) fn begins(&mut self, node: NodeId, envoy: usize) {
        self.truth.begins(node, envoy);
    }

    /// A process has ended.
    pub(crate) fn ends(&mut self, node: NodeId) {
        self.truth.ends(node);
        self.numbered_by.remove(&node);
        self.offsets_ms.retain(|(of, _), _| *of != node);
    }

    /// A worker of a process decides by a clock with this offset from its monotonic clock, where `true_ms` is right. Small steps
    /// ahead add up while a cell lasts, as they do in entries. A region never leaves the right time while its store or its only aggregator
    /// has it: at most an Envoy, which begins with its machine's clock, steps to it.
    pub(crate) fn decides_by(
        &mut self,
        (node, worker): (NodeId, usize),
        offset_ms: i64,
        true_ms: i64,
        now_us: u64,
    ) {
        let rules = self.stepped_us.len();
        let before_ms = self.offsets_ms.insert((node, worker), offset_ms).unwrap_or(offset_ms);
        let (was_off, is_off) = (before_ms.abs_diff(true_ms), offset_ms.abs_diff(true_ms));
        if self.keeps_time && is_off > was_off.saturating_add(MOST_OFF_MS) {
            self.violated("clock", now_us, || format!("{node} is off by {is_off} ms after {was_off} ms"));
        }
        let numbered_by = self.numbered_by.entry(node).or_insert_with(|| vec![(offset_ms, 0); rules]);
        for (rule, ((by, cell), stepped_us)) in numbered_by.iter_mut().zip(&mut self.stepped_us).enumerate() {
            let cell_ms = self.truth.cell_ms(rule);
            if by.abs_diff(offset_ms) > tolerated_ms(cell_ms) {
                (*by, *stepped_us) = (offset_ms, Some(now_us));
            }
            let current = now_us / 1_000 / cell_ms.max(1);
            let begins = std::mem::replace(cell, current) != current;
            *by = if begins { offset_ms } else { offset_ms.min(*by) };
        }
    }

    /// Whether a clock that stepped may have moved a cell that was first used at `first_used_us`. Counts age by elapsed
    /// time, so for a window their cell numbers differ from the true ones. After a step back, an entry waits up to
    /// two windows and a cell until the clock reaches its cell.
    pub(crate) fn is_unsteady(&self, rule: usize, first_used_us: u64) -> bool {
        let stepped_us = self.stepped_us.get(rule).copied().flatten();
        stepped_us
            .is_some_and(|stepped_us| first_used_us <= stepped_us + 4 * self.truth.window_ms(rule) * 1_000)
    }

    /// An aggregator's memory is lost, and with it all that no store holds.
    pub(crate) fn region_lost(&mut self, region: usize, now_us: u64, at_once: bool) {
        // If a store holds what was acknowledged, only what the store had not received is lost.
        if !self.has_redis || (at_once && self.store_fails) {
            self.lost(region, now_us);
        }
    }

    /// A region's store has lost all data.
    pub(crate) fn wiped(&mut self, region: usize, now_us: u64) {
        self.lost(region, now_us);
    }

    /// An aggregator of a region holds its maximum of keys.
    pub(crate) fn crowded(&mut self, region: usize) {
        if let Some(crowded) = self.truth.crowded.get_mut(region) {
            *crowded = true;
        }
    }

    fn lost(&mut self, region: usize, now_us: u64) {
        if let Some(lost_us) = self.truth.lost_us.get_mut(region) {
            *lost_us = Some(now_us);
        }
    }

    /// An Envoy or one of its workers is frozen, or continues.
    pub(crate) fn set_frozen(&mut self, envoy: usize, now_us: u64, begins: bool) {
        self.running_since_us.insert(envoy, if begins { u64::MAX } else { now_us });
    }

    /// Checks the time that a request waited against the sum of its timeouts.
    pub(crate) fn waited(&mut self, envoy: usize, waited_us: u64, timeouts_ms: &[u32], now_us: u64) {
        let running_since_us = self.running_since_us.get(&envoy).copied().unwrap_or(0);
        let was_running = running_since_us <= now_us.saturating_sub(waited_us);
        let bound_us = timeouts_ms
            .iter()
            .map(|timeout_ms| u64::from(*timeout_ms) * 1_000 + LATE_US)
            .sum::<u64>()
            .max(LATE_US);
        if was_running && waited_us > bound_us {
            self.violated("wait", now_us, || {
                format!("a request waited {waited_us} µs with {timeouts_ms:?} ms")
            });
        }
    }

    /// The limiter resolved a request that was not waiting.
    pub(crate) fn resolved_twice(&mut self, request: u64, now_us: u64) {
        self.violated("answers", now_us, || format!("request {request} was decided twice"));
    }

    /// Checks an amount that a part holds against its bound.
    pub(crate) fn held(&mut self, what: &str, much: u64, bound: u64, now_us: u64) {
        if !self.peaks.contains_key(what) {
            self.peaks.insert(what.to_owned(), (0, bound));
        }
        let Some((most, highest_bound)) = self.peaks.get_mut(what) else { return };
        let rises = much > *most;
        (*most, *highest_bound) = (much.max(*most), bound.max(*highest_bound));
        // The highest bound so far applies: a queue may be emptied later than the state that filled it.
        let bound = *highest_bound;
        if rises && much > bound {
            self.violated("bounds", now_us, || format!("{what}: {much} of at most {bound}"));
        }
    }

    /// Records a violation.
    pub(crate) fn violated(&mut self, checker: &'static str, now_us: u64, what: impl FnOnce() -> String) {
        if self.violations.len() < MAX_VIOLATIONS {
            let at_ms = (now_us as i64 - self.begin_us as i64) / 1_000;
            self.violations.push(Violation { at_ms, checker, what: what() });
        }
    }

    /// All recorded violations.
    pub(crate) fn violations(&self) -> Vec<Violation> {
        self.violations.clone()
    }

    /// The largest recorded amounts, with their bounds.
    pub(crate) fn peaks(&self) -> Vec<Peak> {
        let peak = |(what, (most, bound)): (&String, &(u64, u64))| Peak {
            what: what.clone(),
            most: *most,
            bound: *bound,
        };
        self.peaks.iter().map(peak).collect()
    }
}

/// How far a fault sets a clock back, in milliseconds.
fn behind_ms(wrong: &Wrong) -> u64 {
    match wrong {
        Wrong::Skew { ms, .. } => ms.min(&0).unsigned_abs(),
        _ => 0,
    }
}

fn ends_aggregators(what: &Wrong) -> bool {
    matches!(
        what,
        Wrong::Crash { part: Part::Aggregator { .. } } | Wrong::Restart { part: Part::Aggregator { .. } }
    )
}

fn disconnects_envoys(what: &Wrong) -> bool {
    match what {
        Wrong::Freeze { part } => matches!(part, Part::Envoy { .. } | Part::Worker { .. }),
        Wrong::Cut { link } | Wrong::Lose { link, .. } | Wrong::Delay { link, .. } => {
            matches!(link, Link::Streams { .. } | Link::Worker { .. })
        }
        _ => false,
    }
}

fn fails_stores(what: &Wrong) -> bool {
    match what {
        Wrong::Freeze { part }
        | Wrong::Crash { part }
        | Wrong::Restart { part }
        | Wrong::Slow { part, .. } => {
            matches!(part, Part::Redis { .. })
        }
        Wrong::Cut { link } | Wrong::Lose { link, .. } | Wrong::Delay { link, .. } => {
            matches!(link, Link::Redis { .. })
        }
        _ => false,
    }
}
