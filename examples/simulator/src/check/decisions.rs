//! Checks each decision against the true use: an Envoy admits nothing that its own use forbids, and denies nothing
//! that the use of all Envoys allows. Admissions that only exceed use not yet received are no violation; `measure`
//! compares those with its references.

use super::truth::{Node, Share};
use super::{CellId, Check};
use crate::plan::HOLD_MS;
use crate::plan::keys::{self, Shape};
use crate::plan::traffic::Arrival;
use smallvec::SmallVec;
use weir_core::limiter::{ANSWER_SERVES_MS, Cause, Decision as Decided, Outcome};
use weir_core::model::key::NodeId;
use weir_core::model::time::UnixMs;
use weir_core::model::window::Position;
use weir_core::model::wire::Query;

/// A decision this near to the border of two cells may have been made in either, because frames move the worker's
/// time a little.
const BORDER_MS: u64 = 10;
/// How long a denial by the region is applied to its key.
const REFUSED_MS: u64 = BORDER_MS + ANSWER_SERVES_MS;
/// Time from a change of a cell until the first check whether the cell is at rest.
pub(crate) const FIRST_CHECK_US: u64 = 20_000;

/// The process that decided, and the time.
#[derive(Clone, Copy, Debug)]
pub struct Decision {
    /// The process.
    pub node: NodeId,
    /// The Unix time by which the worker decides.
    pub unix: UnixMs,
    /// Virtual time, in microseconds.
    pub now_us: u64,
}

impl Check {
    /// Records a decision. Returns the cells to check for rest, each with the time of the check.
    pub(crate) fn decided(
        &mut self,
        by: &Decision,
        arrival: &Arrival,
        outcome: &Outcome,
        shapes: &[Shape],
    ) -> SmallVec<[(CellId, u64); 1]> {
        let mut watched = SmallVec::new();
        let Some(node) = self.truth.number(by.node) else { return watched };
        match outcome.decision {
            Decided::Wait => {}
            Decided::Allow(_) => {
                for (rule, shape) in
                    keys::rules(arrival.rules).filter_map(|rule| Some((rule, shapes.get(rule)?)))
                {
                    if shape.rule.exact.is_some() {
                        continue;
                    }
                    let refused = shape.rule.shadow && outcome.shadow_denied.contains(rule as u16);
                    let cost = shape.judged_cost(arrival.cost);
                    if refused || cost == 0 {
                        continue;
                    }
                    let at = Position::at(by.unix, shape.cell_ms);
                    let cell = cell_of(shape, &at, arrival);
                    if !shape.rule.shadow {
                        let cost = cost + self.reserves(shape, cell, node);
                        self.passed(by, node, cell, &at, cost, shape.rule.limit);
                    }
                    if shape.rule.reserve > 0 {
                        // The cost is recorded when the response states it.
                        continue;
                    }
                    watched.extend(self.admitted(node, cell, &at, arrival.cost, by.now_us));
                }
            }
            Decided::Deny(denial) if denial.cause == Cause::Limit => {
                let rule = usize::from(denial.budget.rule);
                if let Some(shape) = shapes.get(rule).filter(|shape| shape.rule.exact.is_none()) {
                    let at = Position::at(by.unix, shape.cell_ms);
                    let cell = cell_of(shape, &at, arrival);
                    let cost = shape.judged_cost(arrival.cost);
                    self.denied(by, cell, &at, cost, denial.budget.limit);
                }
            }
            Decided::Deny(_) => {}
        }
        watched
    }

    /// Records the cost of an open request that its response states. Returns the cells to check for rest, each with
    /// the time of the check. The request was admitted at `since_us`. If the response arrived after the reserve had
    /// expired, because its worker was frozen, the reserve counts as spent in any of the cells since then.
    pub(crate) fn settled(
        &mut self,
        by: &Decision,
        arrival: &Arrival,
        since_us: u64,
        shapes: &[Shape],
    ) -> SmallVec<[(CellId, u64); 1]> {
        let mut watched = SmallVec::new();
        let Some(node) = self.truth.number(by.node) else { return watched };
        let took_ms = (by.now_us - since_us) / 1_000;
        if took_ms >= HOLD_MS - BORDER_MS {
            self.unsettled(by, arrival, took_ms, shapes);
            return watched;
        }
        for shape in keys::rules(arrival.rules).filter_map(|rule| shapes.get(rule)) {
            let at = Position::at(by.unix, shape.cell_ms);
            let cell = cell_of(shape, &at, arrival);
            if arrival.cost > 0 {
                watched.extend(self.admitted(node, cell, &at, arrival.cost, by.now_us));
                if let Some((cell, at)) = self.truth.share(cell, node, by.now_us) {
                    cell.shares[at].exceeded += arrival.cost.saturating_sub(shape.rule.reserve);
                }
            }
            self.returns(shape, cell, node, (&at, arrival.cost), by.now_us);
        }
        watched
    }

    /// Records that the reserve of an open request may have been spent, in the cell of the decision or in one of
    /// those of the `took_ms` before.
    pub(crate) fn unsettled(&mut self, by: &Decision, arrival: &Arrival, took_ms: u64, shapes: &[Shape]) {
        let Some(node) = self.truth.number(by.node) else { return };
        for shape in keys::rules(arrival.rules).filter_map(|rule| shapes.get(rule)) {
            if shape.rule.reserve == 0 {
                continue;
            }
            let at = Position::at(by.unix, shape.cell_ms);
            let cell = cell_of(shape, &at, arrival);
            let cost = arrival.cost.max(shape.rule.reserve);
            let back = took_ms.saturating_sub(at.elapsed_ms).div_ceil(shape.cell_ms);
            for sequence in at.sequence.saturating_sub(back)..=at.sequence {
                if let Some((cell, at)) = self.truth.share(CellId { sequence, ..cell }, node, by.now_us) {
                    cell.shares[at].reserved += cost;
                    cell.changed_us = by.now_us;
                }
            }
        }
    }

    /// The region granted a query.
    pub(crate) fn granted(&mut self, node: NodeId, query: &Query, now_us: u64) {
        let own = query.own.saturating_add(query.cost);
        self.of_query(node, query, now_us, |share| share.granted = own.max(share.granted));
    }

    /// The region received a query.
    pub(crate) fn proposed(&mut self, node: NodeId, query: &Query, now_us: u64) {
        let own = query.own.saturating_add(query.cost);
        self.of_query(node, query, now_us, |share| share.proposed = own.max(share.proposed));
    }

    fn of_query(&mut self, node: NodeId, query: &Query, now_us: u64, note: impl FnOnce(&mut Share)) {
        let Some(node) = self.truth.number(node) else { return };
        let Some((rule, identifier)) = keys::parse(&query.key) else {
            if let Some(rule) = keys::parse_rule(&query.key) {
                self.truth.diverts(rule, query.sequence, node, query.own.saturating_add(query.cost));
            }
            return;
        };
        let id = CellId { rule, sequence: query.sequence, identifier };
        let Some((cell, at)) = self.truth.share(id, node, now_us) else { return };
        let before = cell.shares[at].at_rest();
        note(&mut cell.shares[at]);
        if cell.shares[at].at_rest() > before {
            cell.changed_us = now_us;
        }
    }

    fn admitted(
        &mut self,
        node: u32,
        id: CellId,
        at: &Position,
        cost: u64,
        now_us: u64,
    ) -> Option<(CellId, u64)> {
        let border = self.neighbour(id, at);
        if let Some(neighbour) = border
            && let Some((cell, at)) = self.truth.share(neighbour, node, now_us)
        {
            cell.shares[at].neighbour += cost;
        }
        let (cell, at) = self.truth.share(id, node, now_us)?;
        let share = &mut cell.shares[at];
        share.admitted = share.admitted.saturating_add(cost);
        if border.is_some() {
            share.border += cost;
        }
        cell.changed_us = now_us;
        (!std::mem::replace(&mut cell.watched, true)).then_some((id, now_us + FIRST_CHECK_US))
    }

    /// The other cell to which the decision may belong.
    fn neighbour(&self, id: CellId, at: &Position) -> Option<CellId> {
        if at.until_next_ms() <= BORDER_MS {
            Some(CellId { sequence: id.sequence + 1, ..id })
        } else if at.elapsed_ms < BORDER_MS {
            Some(CellId { sequence: id.sequence.saturating_sub(1), ..id })
        } else {
            // Others' counts of the next cell move a worker whose clock is behind into that cell.
            let next = CellId { sequence: id.sequence + 1, ..id };
            self.truth.cell(next).is_some().then_some(next)
        }
    }

    /// Checks that an admission fits into the limit by the Envoy's own use.
    fn passed(&mut self, by: &Decision, node: u32, id: CellId, at: &Position, cost: u64, limit: u64) {
        let Some(process) = self.truth.node(node).copied() else { return };
        let used = self.truth.used(id, |id| {
            let share = self.truth.share_of(id, node);
            share.admitted.saturating_sub(share.border)
        });
        // Frames may have moved the worker's time.
        let (used, at) = used.later(at, BORDER_MS.min(at.until_next_ms() - 1));
        let Some(beyond) = self.beyond(&process, node, id, limit) else { return };
        if used.admits(&at, cost, limit.saturating_add(beyond)) {
            return;
        }
        let first_used_us = self.truth.first_used_us(id).unwrap_or(0);
        if !self.is_unsteady(id.rule, first_used_us) {
            self.violated("limit", by.now_us, || {
                format!(
                    "Envoy {} admitted {cost} of {id:?} with {used:?} of its own, limit {limit} and {beyond} beyond it",
                    process.envoy
                )
            });
        }
    }

    /// What an Envoy may admit of a key beyond its limit by its own use, because it has evicted keys: what its overflow cell holds,
    /// which lacks a key's former use, also what answers made of it beyond their reserve; and the limit once for each fault, as an Envoy
    /// that does not reach its region begins without what it has evicted. `None`: any amount, as the region has no room for what it
    /// evicts.
    fn beyond(&self, process: &Node, node: u32, id: CellId, limit: u64) -> Option<u64> {
        if !process.incomplete {
            return Some(0);
        }
        let is_refused = self.truth.share_of(id, node).refused || self.truth.is_crowded(process.region);
        let overflow = |id| {
            let held = self.truth.diverted(id, Some(node));
            let exceeded = self.truth.share_of(id, node).exceeded;
            if held > 0 { held.saturating_add(exceeded) } else { 0 }
        };
        let overflow = self.truth.cells_of_window(id).map(overflow).sum::<u64>();
        (!is_refused).then(|| overflow.saturating_add(self.faults.saturating_mul(limit)))
    }

    /// Checks that a denial for a used-up limit is right by the use of all Envoys.
    fn denied(&mut self, by: &Decision, id: CellId, at: &Position, cost: u64, limit: u64) {
        let after = CellId { sequence: id.sequence + 1, ..id };
        let process = self.truth.number(by.node).and_then(|number| self.truth.node(number));
        // Identifiers that share an overflow cell are denied for each other's use. A baseline may contain a grant that was
        // never spent, and new use is added to it.
        let shares = process.is_some_and(|process| process.incomplete);
        let most = |share: &Share| share.most() + if shares { share.proposed } else { 0 };
        let shared = |id| if shares { self.truth.diverted(id, None) } else { 0 };
        let all = |id| self.truth.sum(id, |_| true, most) + shared(id);
        let used = self.truth.used(id, all);
        let first_used_us = self.truth.first_used_us(id).unwrap_or(u64::MAX);
        let inexact =
            (0..self.truth.lost_us.len()).any(|region| self.truth.is_inexact(region, first_used_us));
        // A worker whose clock is behind may be in the cell before one that others have begun.
        let ahead = self.truth.used(after, all);
        let start = at.seen_from(id.sequence + 1);
        let earlier = Position { elapsed_ms: at.elapsed_ms.saturating_sub(REFUSED_MS), ..*at };
        if !used.admits(&earlier, cost, limit)
            || inexact
            || self.is_unsteady(id.rule, first_used_us.min(by.now_us))
        {
            return;
        }
        let first = at.elapsed_ms < REFUSED_MS;
        if ahead.admits(&start, cost, limit) && !first {
            self.violated("denial", by.now_us, || {
                format!("{cost} of {id:?} was denied, though the use of all is {used:?}, limit {limit}")
            });
        }
    }
}

/// The cell that a request is charged to under a rule.
fn cell_of(shape: &Shape, at: &Position, arrival: &Arrival) -> CellId {
    CellId { rule: shape.counts, sequence: at.sequence, identifier: arrival.identifier }
}
