//! What was charged in vain, and the calls that refund it.

use super::plan::{ChargeCall, Plan, Transaction};
use super::{Call, ExactState, Machine, Reply, shown};
use crate::model::breaker::Shown;
use crate::model::exact::{self, Charge, ChargeError, ChargeResult, ExactRequestId, Verdict};
use crate::model::wire;
use crate::region::log::{LogCharge, Micros};
use crate::replication::exact::timeout::within_us;
use crate::replication::{Failure, Next};
use alloc::vec;
use alloc::vec::Vec;

/// Timeout of a refund that no request waits for, in microseconds.
pub const REFUND_US: u64 = 1_000_000;
/// How late a store's clock may be read, in microseconds.
const GRACE_US: u64 = 100_000;
/// How long a refund is attempted, in microseconds.
const GIVE_UP_AFTER_US: u64 = 60_000_000;

/// Charges of logs, and transactions of ledgers, that wait to be refunded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingRefund {
    /// The charges.
    pub charges: Vec<LogCharge>,
    /// The transactions.
    pub transactions: Vec<Transaction>,
    /// From when on it may be made.
    pub(super) due: Micros,
    /// Until when it is attempted.
    pub(super) until: Micros,
}

impl PendingRefund {
    /// A refund of what was certainly charged, due at once.
    pub fn now(charges: Vec<LogCharge>, transactions: Vec<Transaction>, now: Micros) -> PendingRefund {
        let windows = charges.iter().map(|charge| charge.key.parts().duration_ms.saturating_mul(1_000));
        let longest = windows.max().filter(|_| transactions.is_empty()).unwrap_or(GIVE_UP_AFTER_US);
        let until = now.after(longest.min(GIVE_UP_AFTER_US));
        PendingRefund { charges, transactions, due: now, until }
    }

    /// A refund of what may be charged up to `deadline`, due after it: from then on the store refuses to charge it.
    pub fn of_undecided(charges: Vec<LogCharge>, deadline: Micros, now: Micros) -> PendingRefund {
        let refund = PendingRefund::now(charges, Vec::new(), now);
        let later = deadline.after(GRACE_US).since(now);
        PendingRefund { due: refund.due.after(later), until: refund.until.after(later), ..refund }
    }

    /// A refund of all that a request was charged according to its decisions. A log without a decision may have been charged.
    pub fn of(
        request: ExactRequestId,
        charges: &[Charge],
        results: &[ChargeResult],
        now: Micros,
    ) -> Option<PendingRefund> {
        let plan = Plan::of(request, charges)?;
        let charged = |place: usize| {
            results.get(place).is_none_or(|r| matches!(r.verdict, Verdict::Allowed | Verdict::Undecided))
        };
        let mut logs = vec![false; plan.logs.len()];
        let mut transactions = Vec::new();
        for (place, call) in plan.calls.iter().enumerate() {
            match call {
                ChargeCall::Log(log) => {
                    if let Some(log) = logs.get_mut(*log) {
                        *log |= charged(place);
                    }
                }
                ChargeCall::Ledger(charge) => {
                    let id = results.get(place).filter(|_| charged(place)).and_then(|r| r.transaction);
                    transactions.extend(id.map(|id| charge.transaction(id)));
                }
            }
        }
        let charges = plan.logs.into_iter().zip(logs).filter(|(log, charged)| *charged && log.cost > 0);
        let refund = PendingRefund::now(charges.map(|(log, _)| log).collect(), transactions, now);
        (!refund.is_empty()).then_some(refund)
    }

    /// Whether nothing is left to refund.
    pub fn is_empty(&self) -> bool {
        self.charges.is_empty() && self.transactions.is_empty()
    }

    /// Number of charges and transactions.
    pub fn len(&self) -> usize {
        self.charges.len() + self.transactions.len()
    }
}

/// The refund of a request by its sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Withdrawal {
    /// The request.
    pub id: ExactRequestId,
    /// Its charges.
    pub charges: Vec<Charge>,
    /// Its results, as far as the sender received them.
    pub results: Vec<ChargeResult>,
    /// If results are missing, the request may still be on its way and charge something within this time, in microseconds.
    pub still_us: u64,
}

impl Withdrawal {
    /// Reads a refund of `sender`; `None` if it is empty.
    pub fn read(sender: u64, refund: &wire::Refund) -> Result<Option<Withdrawal>, ChargeError> {
        let Some(request) = &refund.request else { return Ok(None) };
        Ok(Some(Withdrawal {
            id: ExactRequestId::of(sender, request.id),
            charges: exact::charges(request)?,
            results: refund.results.iter().map(ChargeResult::from_wire).collect(),
            still_us: within_us(request.timeout_ms),
        }))
    }

    /// Leaves out the transactions that are not the sender's own; returns their number.
    pub fn disown(&mut self, is_own: impl Fn(u64) -> bool) -> u64 {
        let mut foreign = 0;
        for result in &mut self.results {
            if result.transaction.is_some_and(|id| !is_own(id)) {
                result.transaction = None;
                foreign += 1;
            }
        }
        foreign
    }

    /// The refunds to make: one now, and one of logs that may still be charged.
    pub(super) fn refunds(&self, now: Micros) -> Vec<PendingRefund> {
        let Some(refund) = PendingRefund::of(self.id, &self.charges, &self.results, now) else {
            return Vec::new();
        };
        let is_complete = self.results.len() >= self.charges.len();
        let again = (!is_complete)
            .then(|| PendingRefund::of_undecided(refund.charges.clone(), now.after(self.still_us), now));
        again.into_iter().chain([refund]).collect()
    }
}

/// Refunds: all logs at once, then one transaction after the other. What could not be refunded is refunded later.
#[derive(Clone, Debug)]
pub struct Refunding {
    left: PendingRefund,
    deadline: Micros,
    /// When the logs were called.
    since: Micros,
    is_of_queue: bool,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Logs,
    LogsCalled,
    /// The transaction at this index is next.
    Ledgers(usize),
    LedgerCalled(usize),
    Over,
}

impl Refunding {
    /// Makes a refund by `deadline`.
    pub fn new(refund: PendingRefund, deadline: Micros) -> Refunding {
        let since = Micros::default();
        Refunding { left: refund, deadline, since, is_of_queue: false, stage: Stage::Logs }
    }

    /// Makes a refund of the queue.
    pub(super) fn of_queue(refund: PendingRefund, now: Micros) -> Refunding {
        Refunding { is_of_queue: true, ..Refunding::new(refund, now.after(REFUND_US)) }
    }

    /// What is not refunded yet.
    pub fn left(&self) -> &PendingRefund {
        &self.left
    }

    fn logs_replied(&mut self, state: &mut ExactState, results: Vec<Result<bool, Failure>>, now: Micros) {
        state.showed(shown(&results), self.since, now);
        let mut results = results.into_iter();
        self.left.charges.retain(|charge| {
            state.denials.remove(&charge.key);
            match results.next() {
                Some(Ok(true)) => state.counters.refunded += 1,
                // A key with a value of another type will not become a log, so there is nothing to refund.
                Some(Ok(false) | Err(Failure::OfTheCell)) => state.counters.missing += 1,
                Some(Err(_)) | None => return true,
            }
            false
        });
    }

    fn ledger_replied(&mut self, state: &mut ExactState, at: usize, refunded: Option<bool>) -> usize {
        match refunded {
            Some(true) => state.counters.refunded += 1,
            Some(false) => state.counters.missing += 1,
            None => return at + 1,
        }
        if at < self.left.transactions.len() {
            self.left.transactions.remove(at);
        }
        at
    }

    fn end(&mut self, state: &mut ExactState, now: Micros) {
        let left = core::mem::take(&mut self.left);
        match self.is_of_queue {
            true => state.counters.given_up.extend(state.later.ended(left, now)),
            false if left.is_empty() => {}
            false => state.refund_later(left),
        }
    }
}

impl Machine for Refunding {
    fn next(&mut self, state: &mut ExactState, now: Micros) -> Next<Call> {
        if self.stage == Stage::Logs {
            self.stage = Stage::Ledgers(0);
            if !self.left.charges.is_empty() {
                if state.permits(self.deadline, now) {
                    (self.since, self.stage) = (now, Stage::LogsCalled);
                    return Next::Call(Call::RefundLogs(self.left.charges.clone()));
                }
                self.left.charges.iter().for_each(|charge| state.denials.remove(&charge.key));
            }
        }
        match self.stage {
            Stage::Ledgers(at) => match self.left.transactions.get(at) {
                Some(transaction) => {
                    self.stage = Stage::LedgerCalled(at);
                    return Next::Call(Call::RefundLedger(transaction.clone()));
                }
                None => self.end(state, now),
            },
            Stage::Over => {}
            Stage::Logs | Stage::LogsCalled | Stage::LedgerCalled(_) => self.end(state, now),
        }
        self.stage = Stage::Over;
        Next::Over
    }

    fn replied(&mut self, state: &mut ExactState, reply: Reply, now: Micros) {
        self.stage = match (self.stage, reply) {
            (Stage::LogsCalled, Reply::LogsRefunded(results)) => {
                self.logs_replied(state, results, now);
                Stage::Ledgers(0)
            }
            (Stage::LedgerCalled(at), Reply::LedgerRefunded(refunded)) => {
                Stage::Ledgers(self.ledger_replied(state, at, refunded))
            }
            (stage, _) => stage,
        };
    }

    fn cancel(&mut self, state: &mut ExactState, now: Micros) {
        if self.stage == Stage::LogsCalled {
            state.showed(Shown::Nothing, self.since, now);
        }
        if self.stage != Stage::Over {
            self.stage = Stage::Over;
            self.end(state, now);
        }
    }

    fn deadline(&self) -> Micros {
        self.deadline
    }
}
