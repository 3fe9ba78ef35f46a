//! A request, in the order of its calls.

use super::denials::CachedDenial;
use super::logs::{Charging, NoAnswer};
use super::plan::{LogAnswer, Plan};
use super::refund::PendingRefund;
use super::refunding::Refunding;
use super::state::{Call, ExactState, Machine, Reply};
use crate::model::exact::{Charge, ChargeResult, ExactRequestId};
use crate::region::log::{LogCharge, LogDecision, Micros, Outcome};
use crate::replication::Next;
use alloc::vec;
use alloc::vec::Vec;

/// Decides every charge of a request: all pass, or none is charged.
///
/// A repeated request charges nothing twice in a log, but may meet a denial cached in the meantime. Charges of one log count
/// as one: the sum of their costs against the lowest of their limits. More than [`crate::model::exact::MAX_CHARGES`] are
/// undecided.
#[derive(Clone, Debug)]
pub struct Request {
    id: ExactRequestId,
    charges: usize,
    /// `None` for too many charges.
    plan: Option<Plan>,
    began: Micros,
    deadline: Micros,
    cached: Option<CachedDenial>,
    logs: Vec<Result<LogDecision, NoAnswer>>,
    ledgers: Vec<ChargeResult>,
    /// A limit has denied.
    in_vain: bool,
    stage: Stage,
}

#[derive(Clone, Debug)]
enum Stage {
    Begun,
    Logs(Charging),
    Ledgers,
    LedgerCalled,
    Refunding(Refunding),
    Over,
}

impl Request {
    /// A request of `charges`, to be decided within the given time.
    pub fn new(id: ExactRequestId, charges: &[Charge], within_us: u64, now: Micros) -> Request {
        Request {
            id,
            charges: charges.len(),
            plan: Plan::of(id, charges),
            began: now,
            deadline: now.after(within_us),
            cached: None,
            logs: Vec::new(),
            ledgers: Vec::new(),
            in_vain: false,
            stage: Stage::Begun,
        }
    }

    /// Its id.
    pub fn id(&self) -> ExactRequestId {
        self.id
    }

    /// The decision on every charge, in order, once the machine is over.
    pub fn results(&self) -> Vec<ChargeResult> {
        let Some(plan) = &self.plan else { return vec![ChargeResult::UNDECIDED; self.charges] };
        let answer = |log: usize| match (self.cached, self.logs.get(log)) {
            (Some(found), _) if found.log == log => LogAnswer::Decided(found.decided),
            (Some(_), _) => LogAnswer::Untried,
            (None, Some(Ok(decided))) => LogAnswer::Decided(*decided),
            (None, _) => LogAnswer::Undecided,
        };
        plan.results(answer, &self.ledgers, self.in_vain)
    }

    /// The charge that a cached denial has denied.
    pub fn denied_by_cache(&self) -> Option<&LogCharge> {
        self.plan.as_ref()?.logs.get(self.cached?.log)
    }

    /// Takes the decisions of the logs, and schedules the refund of charges that may still be made, for the time at which they
    /// can be made no longer.
    fn logs_decided(&mut self, state: &mut ExactState, now: Micros) {
        let mut unknown = Vec::new();
        for (charge, decided) in self.logs() {
            match decided {
                Ok(decided) => state.denials.insert(charge, decided, self.began),
                Err(NoAnswer::Unknown) if charge.cost > 0 => unknown.push(charge.clone()),
                Err(_) => {}
            }
        }
        let is_denied = self.logs().any(|(_, decided)| decided.is_ok_and(|decided| !passes(&decided)));
        self.in_vain = is_denied;
        if !unknown.is_empty() {
            state.refund_later(PendingRefund::of_undecided(unknown, self.deadline, now));
        }
    }

    fn logs(&self) -> impl Iterator<Item = (&LogCharge, &Result<LogDecision, NoAnswer>)> {
        self.plan.iter().flat_map(|plan| &plan.logs).zip(&self.logs)
    }

    /// After a denial: refunds what was charged. An undecided charge overturns nothing: its rule decides whether the request
    /// passes, and the charges that were decided stay valid in either case.
    fn concluded(&self, now: Micros) -> Stage {
        match self.in_vain {
            true => Stage::Refunding(Refunding::new(self.charged(now), self.deadline)),
            false => Stage::Over,
        }
    }

    /// The request did not pass after all: what it was charged counts as untried, and is refunded without waiting.
    pub(super) fn overturn(&mut self, state: &mut ExactState, now: Micros) {
        self.in_vain = true;
        let refund = self.charged(now);
        if !refund.is_empty() {
            state.refund_later(refund);
        }
    }

    /// The refund of all that was certainly charged.
    fn charged(&self, now: Micros) -> PendingRefund {
        let passed = self
            .logs()
            .filter(|(charge, decided)| charge.cost > 0 && decided.is_ok_and(|decided| passes(&decided)));
        let charges = passed.map(|(charge, _)| charge.clone()).collect();
        let transactions =
            self.plan.as_ref().map(|plan| plan.transactions(&self.ledgers)).unwrap_or_default();
        PendingRefund::now(charges, transactions, now)
    }

    /// The call of the next ledger, up to the first that denies.
    fn next_ledger(&self) -> Option<Call> {
        let charge = self.plan.as_ref()?.ledgers().nth(self.ledgers.len()).filter(|_| !self.in_vain)?;
        Some(Call::ChargeLedger(charge.clone()))
    }

    /// What follows in this stage: a call or a pause, or `None` if the next stage has begun.
    fn step(&mut self, state: &mut ExactState, now: Micros) -> Option<Next<Call>> {
        match core::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Begun => {
                let plan = self.plan.as_ref()?;
                self.cached = state.denials.find(&plan.logs, self.began);
                match self.cached {
                    Some(_) => {
                        self.in_vain = true;
                        state.counters.cached_denials += 1;
                    }
                    None => self.stage = Stage::Logs(Charging::new(plan.logs.clone(), self.deadline)),
                }
                None
            }
            Stage::Logs(mut charging) => match charging.next(state, now) {
                Next::Over => {
                    self.logs = charging.results();
                    self.logs_decided(state, now);
                    self.stage = Stage::Ledgers;
                    None
                }
                next => {
                    self.stage = Stage::Logs(charging);
                    Some(next)
                }
            },
            Stage::Ledgers => match self.next_ledger() {
                Some(call) => {
                    self.stage = Stage::LedgerCalled;
                    Some(Next::Call(call))
                }
                None => {
                    self.stage = self.concluded(now);
                    None
                }
            },
            Stage::Refunding(mut refunding) => match refunding.next(state, now) {
                Next::Over => None,
                next => {
                    self.stage = Stage::Refunding(refunding);
                    Some(next)
                }
            },
            Stage::LedgerCalled | Stage::Over => Some(Next::Over),
        }
    }
}

impl Machine for Request {
    fn next(&mut self, state: &mut ExactState, now: Micros) -> Next<Call> {
        loop {
            if let Some(next) = self.step(state, now) {
                return next;
            }
        }
    }

    fn replied(&mut self, state: &mut ExactState, reply: Reply, now: Micros) {
        match &mut self.stage {
            Stage::Logs(charging) => charging.replied(state, reply, now),
            Stage::Refunding(refunding) => refunding.replied(state, reply, now),
            Stage::LedgerCalled => {
                let result = match reply {
                    Reply::LedgerCharged(result) => result,
                    _ => ChargeResult::UNDECIDED,
                };
                self.in_vain |= result.is_denied();
                self.ledgers.push(result);
                self.stage = Stage::Ledgers;
            }
            Stage::Begun | Stage::Ledgers | Stage::Over => {}
        }
    }

    fn cancel(&mut self, state: &mut ExactState, now: Micros) {
        match core::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Logs(mut charging) => charging.cancel(state, now),
            Stage::Refunding(mut refunding) => refunding.cancel(state, now),
            _ => {}
        }
    }

    fn deadline(&self) -> Micros {
        self.deadline
    }
}

fn passes(decided: &LogDecision) -> bool {
    decided.outcome == Outcome::Allowed
}
