//! Checks exact limits: no window of the keeper's clock holds more than the limit, admitted requests stay charged,
//! others are refunded, no request is denied that would have fitted, no cached denial of an aggregator outlives its grounds
//! by more than it may, and undecided requests are treated as their rule states.
//!
//! Two kinds of charges may remain although their request was not admitted; both count until their window is over.
//! First, charges that no part can refund: the worker or aggregator that would have done so has ended, or a ledger's
//! reply with the transaction's number was lost. Second, charges of a request that the network delays until after
//! its refund, because stores do not record refunds.

use super::Check;
use crate::plan::Exact as Kind;
use crate::plan::keys::{self, Shape};
use crate::plan::traffic::Arrival;
use std::collections::{BTreeMap, BTreeSet};
use weir_core::limiter::{Cause, Decision, Outcome};
use weir_core::model::exact::ExactRequestId;
use weir_core::region::log::LogCharge;
use weir_core::replication::exact::denials::LONGEST_US;

/// A key is at rest if no request has used it for this long: refunds wait for late replies.
const REST_US: u64 = 12_000_000;
/// Longest time from a denial at its keeper until it is recorded here: the reply's delay, and rounding to
/// milliseconds.
const LATE_US: u64 = 20_000;

/// The part that holds a log or a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeper {
    /// A region's Redis.
    Redis(usize),
    /// An aggregator of a region without Redis, by its number in the world.
    Aggregator(usize),
    /// The database.
    Database,
}

/// A charge.
#[derive(Clone, Copy, Debug)]
pub struct Use {
    /// The keeper that charged it.
    pub keeper: Keeper,
    /// The exact request.
    pub name: ExactRequestId,
    /// The time by the keeper's clock.
    pub at_us: u64,
    /// The cost.
    pub cost: u64,
}

/// The charges of all keys with exact limits.
#[derive(Debug, Default)]
pub struct Exact {
    keys: BTreeMap<(usize, u64), Account>,
    received: BTreeSet<ExactRequestId>,
}

#[derive(Debug, Default)]
struct Account {
    /// All charges, in order of time.
    uses: Vec<(Use, ChargeState)>,
    refunded: BTreeSet<ExactRequestId>,
    /// Requests that did not pass.
    in_vain: BTreeSet<ExactRequestId>,
    /// Requests whose charges may remain nevertheless.
    may_remain: BTreeSet<ExactRequestId>,
    /// Cost of requests that were admitted by a decision of the limit.
    decided: u64,
    /// Cost of all charges that may remain.
    all: u64,
    last_used_us: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChargeState {
    Counts,
    /// The keeper has lost its data.
    Lost {
        at_us: u64,
    },
    Refunded {
        at_us: u64,
    },
}

impl ChargeState {
    /// Whether the charge has counted at some time since `since_us`.
    fn has_counted_since(self, since_us: u64) -> bool {
        match self {
            ChargeState::Counts => true,
            ChargeState::Lost { at_us } | ChargeState::Refunded { at_us } => at_us >= since_us,
        }
    }
}

impl Exact {
    /// Records a charge. Returns the use of the keeper's window with it, or `None` if the charge had been recorded
    /// before.
    pub fn charged(&mut self, key: &[u8], one: Use, window_us: u64) -> Option<u64> {
        let account = self.keys.entry(keys::parse(key)?).or_default();
        if account.uses.iter().any(|(other, state)| other.name == one.name && *state == ChargeState::Counts) {
            return None;
        }
        if account.refunded.contains(&one.name) {
            account.all += one.cost;
            account.may_remain.insert(one.name);
        }
        account.uses.push((one, ChargeState::Counts));
        let counts = |(other, state): &&(Use, ChargeState)| {
            *state == ChargeState::Counts && other.keeper == one.keeper && one.at_us < other.at_us + window_us
        };
        Some(account.uses.iter().rev().filter(counts).map(|(other, _)| other.cost).sum())
    }

    /// Records the refund of an exact request's charge, if there is one.
    pub fn refunded(&mut self, key: &[u8], name: ExactRequestId, at_us: u64) {
        let Some(account) = keys::parse(key).and_then(|key| self.keys.get_mut(&key)) else { return };
        account.refunded.insert(name);
        for (one, state) in &mut account.uses {
            if one.name == name {
                *state = ChargeState::Refunded { at_us };
            }
        }
    }

    /// An exact request did not pass: the aggregator has denied it, or the worker refunds it.
    pub fn in_vain(&mut self, key: &[u8], name: ExactRequestId) {
        if let Some(key) = keys::parse(key) {
            self.keys.entry(key).or_default().in_vain.insert(name);
        }
    }

    /// The use of a key, in a window that ends now, of charges that have counted at some time since `since_us`.
    fn used_since(&self, keeper: Keeper, charge: &LogCharge, since_us: u64, now_us: u64) -> u64 {
        let account = keys::parse(charge.key.as_bytes()).and_then(|key| self.keys.get(&key));
        let window_us = charge.key.parts().duration_ms.saturating_mul(1_000);
        let counted = account.iter().flat_map(|account| &account.uses).filter(|(one, state)| {
            let is_in_window = one.keeper == keeper && now_us < one.at_us.saturating_add(window_us);
            is_in_window && state.has_counted_since(since_us)
        });
        counted.map(|(one, _)| one.cost).sum()
    }

    /// Whether an exact request arrives for the first time.
    pub fn is_first(&mut self, name: ExactRequestId) -> bool {
        self.received.insert(name)
    }

    /// A charge may remain because no part can refund it.
    pub fn may_remain(&mut self, key: &[u8], name: ExactRequestId, cost: u64) {
        if let Some(key) = keys::parse(key) {
            let account = self.keys.entry(key).or_default();
            account.all += cost;
            account.may_remain.insert(name);
        }
    }

    /// A keeper has lost all its data.
    pub fn lost(&mut self, keeper: Keeper, at_us: u64) {
        for (one, state) in self.keys.values_mut().flat_map(|account| &mut account.uses) {
            if one.keeper == keeper && *state == ChargeState::Counts {
                *state = ChargeState::Lost { at_us };
            }
        }
    }

    /// A call of an API has ended for which a key was charged by a decision of its limit.
    pub fn kept(&mut self, key: (usize, u64), cost: u64, now_us: u64) {
        let account = self.keys.entry(key).or_default();
        account.all += cost;
        account.decided += cost;
        account.last_used_us = now_us;
    }

    /// The decision about this request will not be recorded, so its charges may remain.
    pub fn abandoned(&mut self, arrival: &Arrival, shapes: &[Shape]) {
        for (rule, _) in exact_rules(arrival, shapes) {
            self.keys.entry((rule, arrival.identifier)).or_default().all += arrival.cost;
        }
    }
}

impl Check {
    /// Checks a decision against the exact rules. `region` is the region of the decision.
    pub(crate) fn decided_exactly(
        &mut self,
        (region, now_us): (usize, u64),
        arrival: &Arrival,
        outcome: &Outcome,
        shapes: &[Shape],
    ) {
        for (rule, shape) in exact_rules(arrival, shapes) {
            let account = self.exact.keys.entry((rule, arrival.identifier)).or_default();
            account.last_used_us = now_us;
            let undecided = outcome.exact.undecided.contains(rule as u16);
            match outcome.decision {
                Decision::Allow(_) => {
                    account.all += arrival.cost;
                    if !shape.rule.shadow && !undecided {
                        account.decided += arrival.cost;
                    }
                    if undecided && shape.rule.deny_on_failure && !shape.rule.shadow {
                        self.violated("exact", now_us, || {
                            format!("{arrival:?} passed undecided, which rule {rule} denies")
                        });
                    }
                }
                Decision::Deny(denial) if usize::from(denial.budget.rule) == rule => match denial.cause {
                    Cause::Limit => self.denied_exactly((rule, shape), region, arrival, now_us),
                    Cause::Undecided if !shape.rule.deny_on_failure => {
                        self.violated("exact", now_us, || {
                            format!("{arrival:?} was denied undecided, which rule {rule} lets pass")
                        });
                    }
                    _ => {}
                },
                Decision::Deny(_) | Decision::Wait => {}
            }
        }
    }

    /// Checks that the keepers' use of the window justifies a denial. Use that was refunded or lost since counts too,
    /// because a denial is cached for as long as it would hold.
    pub(crate) fn denied_exactly(
        &mut self,
        (rule, shape): (usize, &Shape),
        region: usize,
        arrival: &Arrival,
        now_us: u64,
    ) {
        let is_ledger = shape.rule.exact == Some(Kind::Ledger);
        let Some(account) = self.exact.keys.get(&(rule, arrival.identifier)) else { return };
        let slack_us = u64::from(shape.rule.timeout_ms) * 1_000 + LATE_US;
        let since_us = now_us.saturating_sub(shape.rule.window_ms * 1_000 + slack_us);
        let counted = account.uses.iter().filter(|(one, _)| one.at_us >= since_us);
        let here = counted.filter(|(one, _)| match one.keeper {
            Keeper::Redis(of) => of == region,
            Keeper::Aggregator(_) | Keeper::Database => true,
        });
        let used: u64 = here.map(|(one, _)| one.cost).sum();
        let limit = shape.rule.limit;
        if used + arrival.cost <= limit {
            self.violated("exact", now_us, || {
                let what = if is_ledger { "ledger" } else { "log" };
                format!("{arrival:?} was denied by the {what} of rule {rule}, which held {used} of {limit}")
            });
        }
    }

    /// Checks that an aggregator's cached denial had grounds at its log not longer ago than it may be cached.
    pub(crate) fn denied_by_cache(&mut self, keeper: Keeper, charge: &LogCharge, now_us: u64) {
        let used = self.exact.used_since(keeper, charge, now_us.saturating_sub(LONGEST_US), now_us);
        if used.saturating_add(charge.cost) <= charge.most {
            self.violated("exact", now_us, || {
                let key = keys::parse(charge.key.as_bytes());
                format!("a cached denial of {} at {key:?}, which held {used} of {}", charge.cost, charge.most)
            });
        }
    }

    /// Checks that the charges that remain are those of admitted requests.
    pub(crate) fn finish_exact(&mut self, now_us: u64) {
        let mut wrong = Vec::new();
        for (key, account) in &self.exact.keys {
            if now_us < account.last_used_us + REST_US {
                continue;
            }
            let is_refunded = |state: &ChargeState| matches!(state, ChargeState::Refunded { .. });
            let remaining = account.uses.iter().filter(|(_, state)| !is_refunded(state));
            let remaining: u64 = remaining.map(|(one, _)| one.cost).sum();
            let (decided, all) = (account.decided, account.all);
            if !(decided..=all).contains(&remaining) {
                wrong.push(format!(
                    "{remaining} of {key:?} are charged, where {decided} to {all} were admitted"
                ));
            }
            let in_vain = account.uses.iter().find(|(one, state)| {
                let counts = *state == ChargeState::Counts;
                counts && account.in_vain.contains(&one.name) && !account.may_remain.contains(&one.name)
            });
            if let Some((one, _)) = in_vain {
                wrong.push(format!("{one:?} of {key:?} is charged for a request that did not pass"));
            }
        }
        wrong.into_iter().for_each(|what| self.violated("exact", now_us, || what));
    }
}

/// The exact rules that apply to a request.
fn exact_rules<'a>(arrival: &Arrival, shapes: &'a [Shape]) -> impl Iterator<Item = (usize, &'a Shape)> {
    let rules = keys::rules(arrival.rules).filter_map(|rule| Some((rule, shapes.get(rule)?)));
    rules.filter(|(_, shape)| shape.rule.exact.is_some())
}
