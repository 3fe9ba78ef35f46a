//! What the exact requests and refunds of an aggregator share, and how each of them makes its calls.

use super::denials::Denials;
use super::later::Later;
use super::plan::{LedgerCharge, Transaction};
use super::refund::{PendingRefund, Withdrawal};
use crate::model::breaker::{Breaker, Shown, State};
use crate::model::exact::ChargeResult;
use crate::model::schedule::Schedule;
use crate::model::time::MonoMs;
use crate::region::log::{LogCharge, LogDecision, Micros};
use crate::replication::failure::did_nothing;
use crate::replication::{Failure, Next};
use alloc::vec::Vec;

/// A call to a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Let each log decide. All charges are independent.
    ChargeLogs(Vec<LogCharge>),
    /// Let a ledger decide and record an attempt.
    ChargeLedger(LedgerCharge),
    /// Refund charges of logs.
    RefundLogs(Vec<LogCharge>),
    /// Refund an attempt that a ledger allowed.
    RefundLedger(Transaction),
}

/// The reply to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To [`Call::ChargeLogs`], in the order of the charges.
    LogsCharged(Vec<Result<LogDecision, Failure>>),
    /// To [`Call::ChargeLedger`]; undecided if the ledger has not decided.
    LedgerCharged(ChargeResult),
    /// To [`Call::RefundLogs`], in the order of the charges: whether each was there.
    LogsRefunded(Vec<Result<bool, Failure>>),
    /// To [`Call::RefundLedger`]: whether it counted until now; `None` if the ledger has not answered.
    LedgerRefunded(Option<bool>),
}

/// Calls of one request or refund, in their order.
pub trait Machine {
    /// What to do now: make a call, wait for some milliseconds, or nothing more. [`Machine::replied`] follows each call.
    fn next(&mut self, state: &mut ExactState, now: Micros) -> Next<Call>;

    /// Takes the reply to the last call.
    fn replied(&mut self, state: &mut ExactState, reply: Reply, now: Micros);

    /// Ends the machine before its last call is over. Its reply will not be taken.
    fn cancel(&mut self, state: &mut ExactState, now: Micros);

    /// By when all calls must be over. A store makes no charge after it.
    fn deadline(&self) -> Micros;
}

/// What the exact requests and refunds of an aggregator share.
#[derive(Clone, Debug)]
pub struct ExactState {
    pub(super) denials: Denials,
    pub(super) later: Later,
    /// Protects the store of the logs. Logs in memory need none.
    breaker: Option<Breaker>,
    pub(super) counters: Counters,
}

/// What has happened since the driver last took it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests that a cached denial decided.
    pub cached_denials: u64,
    /// Refunds of charges that were there.
    pub refunded: u64,
    /// Refunds of charges that were not there.
    pub missing: u64,
    /// Refunds that found no room, or were attempted in vain until the end.
    pub given_up: Vec<PendingRefund>,
}

impl ExactState {
    /// For logs in the region's store, or in the aggregator's own memory.
    pub fn new(are_logs_stored: bool) -> ExactState {
        let policy = Schedule::default().store_breaker;
        ExactState {
            denials: Denials::default(),
            later: Later::default(),
            breaker: are_logs_stored.then(|| Breaker::new(policy)),
            counters: Counters::default(),
        }
    }

    /// The state of the circuit breaker, if there is one.
    pub fn breaker_state(&self, now: Micros) -> Option<State> {
        Some(self.breaker.as_ref()?.state(mono(now)))
    }

    /// Schedules the refund of what a request has been charged, or may still be.
    pub fn withdraw(&mut self, withdrawal: &Withdrawal, now: Micros) {
        withdrawal.refunds(now).into_iter().for_each(|refund| self.refund_later(refund));
    }

    /// When a refund of the queue is due.
    pub fn next_due(&self) -> Option<Micros> {
        self.later.next_due()
    }

    /// The refunds that wait.
    pub fn waiting(&self) -> impl Iterator<Item = &PendingRefund> {
        self.later.waiting()
    }

    /// What has happened since this was last called.
    pub fn take_counters(&mut self) -> Counters {
        core::mem::take(&mut self.counters)
    }

    pub(super) fn refund_later(&mut self, refund: PendingRefund) {
        self.counters.given_up.extend(self.later.push(refund));
    }

    /// Whether the store of the logs may be called. The result must be passed to [`ExactState::showed`].
    pub(super) fn permits(&mut self, deadline: Micros, now: Micros) -> bool {
        let patience_ms = deadline.since(now) / 1_000;
        self.breaker.as_mut().is_none_or(|breaker| breaker.allows_within(patience_ms, mono(now)))
    }

    /// Records what a call to the store of the logs has shown.
    pub(super) fn showed(&mut self, shown: Shown, since: Micros, now: Micros) {
        if let Some(breaker) = &mut self.breaker {
            breaker.showed(shown, mono(since), mono(now));
        }
    }
}

fn mono(now: Micros) -> MonoMs {
    MonoMs(now.0 / 1_000)
}

/// What the parts of a call have shown. It is answered if one of them is.
pub(super) fn shown<T>(results: &[Result<T, Failure>]) -> Shown {
    let has = |failure| results.iter().any(|result| result.as_ref().err() == Some(&failure));
    match did_nothing(results) {
        false => Shown::Answered,
        true if has(Failure::Busy) => Shown::Nothing,
        true if has(Failure::Timeout) => Shown::TimedOut,
        true => Shown::Failed,
    }
}
