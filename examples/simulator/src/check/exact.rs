//! Limits that are held exactly: no window of the store's clock holds more than the limit, what passed stands charged, what did
//! not pass is given back, nothing is denied that would have fitted, and a rule says what becomes of what nobody decided.
//!
//! Two things may stand that no request passed for. What nobody could take back: the worker or the aggregator that would
//! have is dead, or a ledger's answer with the attempt's number was lost. And a question that arrives after its refund, held
//! up by the network: a store does not remember refunds. Both count until their window is over.

use super::Check;
use crate::plan::Exact as Kind;
use crate::plan::keys::{self, Shape};
use crate::plan::traffic::Arrival;
use std::collections::{BTreeMap, BTreeSet};
use weir_core::limiter::{Cause, Decision, Outcome};
use weir_core::model::exact::ExactRequestId;

/// A key is at rest when nothing was asked of it for so long: refunds wait for a late answer before.
const REST_US: u64 = 12_000_000;
/// A denial comes so long after it was made: its way back, and whole milliseconds.
const LATE_US: u64 = 20_000;

/// Who keeps a log or a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeper {
    /// A region's Redis.
    Redis(usize),
    /// An aggregator without one, by number in the world.
    Aggregator(usize),
    /// All regions' database.
    Database,
}

/// What was charged.
#[derive(Clone, Copy, Debug)]
pub struct Use {
    /// Where.
    pub keeper: Keeper,
    /// For which question.
    pub name: ExactRequestId,
    /// When, by the keeper's clock.
    pub at_us: u64,
    /// How much.
    pub cost: u64,
}

/// All keys of exact limits.
#[derive(Debug, Default)]
pub struct Exact {
    keys: BTreeMap<(usize, u64), Account>,
    asked: BTreeSet<ExactRequestId>,
}

#[derive(Debug, Default)]
struct Account {
    /// In order of time: what was charged, whether it stands, and whether its keeper still has it.
    uses: Vec<(Use, Standing)>,
    refunded: BTreeSet<ExactRequestId>,
    /// Costs of requests that passed, as the limit was decided.
    decided: u64,
    /// Of all that may stand.
    all: u64,
    asked_us: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Counts,
    /// Its keeper has lost it, with all that it had.
    Lost,
    Refunded,
}

impl Exact {
    /// A keeper has charged something; what its window holds with that. `None` if it did before.
    pub fn charged(&mut self, key: &[u8], one: Use, window_us: u64) -> Option<u64> {
        let account = self.keys.entry(keys::parse(key)?).or_default();
        if account
            .uses
            .iter()
            .any(|(other, standing)| other.name == one.name && *standing == Standing::Counts)
        {
            return None;
        }
        if account.refunded.contains(&one.name) {
            account.all += one.cost;
        }
        account.uses.push((one, Standing::Counts));
        let counts = |(other, standing): &&(Use, Standing)| {
            *standing == Standing::Counts && other.keeper == one.keeper && one.at_us < other.at_us + window_us
        };
        Some(account.uses.iter().rev().filter(counts).map(|(other, _)| other.cost).sum())
    }

    /// A question's charge was taken back, if there was one.
    pub fn refunded(&mut self, key: &[u8], name: ExactRequestId) {
        let Some(account) = keys::parse(key).and_then(|key| self.keys.get_mut(&key)) else { return };
        account.refunded.insert(name);
        for (one, standing) in &mut account.uses {
            if one.name == name {
                *standing = Standing::Refunded;
            }
        }
    }

    /// Whether a query arrives for the first time.
    pub fn is_first(&mut self, name: ExactRequestId) -> bool {
        self.asked.insert(name)
    }

    /// Something may stand that nobody can take back.
    pub fn doubted(&mut self, key: &[u8], cost: u64) {
        if let Some(key) = keys::parse(key) {
            self.keys.entry(key).or_default().all += cost;
        }
    }

    /// A keeper has lost all that it had.
    pub fn lost(&mut self, keeper: Keeper) {
        for (one, standing) in self.keys.values_mut().flat_map(|account| &mut account.uses) {
            if one.keeper == keeper && *standing == Standing::Counts {
                *standing = Standing::Lost;
            }
        }
    }

    /// What became of this request is not going to be known: what it was charged may stand.
    pub fn gave_up(&mut self, arrival: &Arrival, shapes: &[Shape]) {
        for (rule, _) in exact_rules(arrival, shapes) {
            self.keys.entry((rule, arrival.identifier)).or_default().all += arrival.cost;
        }
    }
}

impl Check {
    /// Judges a request's decision by its exact rules. `region` is where it was made.
    pub(crate) fn decided_exactly(
        &mut self,
        (region, now_us): (usize, u64),
        arrival: &Arrival,
        outcome: &Outcome,
        shapes: &[Shape],
    ) {
        for (rule, shape) in exact_rules(arrival, shapes) {
            let account = self.exact.keys.entry((rule, arrival.identifier)).or_default();
            account.asked_us = now_us;
            let undecided = outcome.exact.undecided >> rule & 1 == 1;
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

    /// What its keepers held in the window speaks against it, also what was taken back or lost since: a denial is
    /// remembered for as long as it would hold.
    fn denied_exactly(
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

    /// What passed stands charged, and what did not is given back.
    pub(crate) fn finish_exact(&mut self, now_us: u64) {
        let mut wrong = Vec::new();
        for (key, account) in &self.exact.keys {
            let stands = account.uses.iter().filter(|(_, standing)| *standing != Standing::Refunded);
            let stands: u64 = stands.map(|(one, _)| one.cost).sum();
            let (decided, all) = (account.decided, account.all);
            if now_us >= account.asked_us + REST_US && !(decided..=all).contains(&stands) {
                wrong.push(format!("{stands} of {key:?} are charged, where {decided} to {all} passed"));
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
