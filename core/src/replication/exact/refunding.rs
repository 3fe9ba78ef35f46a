//! The calls that refund what was charged in vain.

use super::plan::Transaction;
use super::refund::PendingRefund;
use super::state::{Call, ExactState, Machine, Reply, shown};
use crate::model::breaker::Shown;
use crate::region::log::Micros;
use crate::replication::{Failure, Next};
use alloc::vec::Vec;

/// Timeout of a refund that no request waits for, in microseconds.
pub(super) const REFUND_US: u64 = 1_000_000;

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

    /// The next refund of the queue that is due. Run it to its end.
    pub fn due(state: &mut ExactState, now: Micros) -> Option<Refunding> {
        let refund = state.later.due(now)?;
        Some(Refunding { is_of_queue: true, ..Refunding::new(refund, now.after(REFUND_US)) })
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
                    let age_us = self.left.age_us(now);
                    return Next::Call(Call::RefundLedger(Transaction { age_us, ..transaction.clone() }));
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
