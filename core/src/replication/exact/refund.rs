//! What was charged in vain.

use super::plan::{ChargeCall, Plan, Transaction};
use crate::model::exact::{self, Charge, ChargeError, ChargeResult, ExactRequestId, Verdict};
use crate::model::wire;
use crate::region::log::{LogCharge, Micros};
use crate::replication::exact::timeout::within_us;
use alloc::vec;
use alloc::vec::Vec;

/// How late a store's clock may be read, in microseconds.
const GRACE_US: u64 = 100_000;
/// A clock that is being set goes slower than another one by one part in this many at most.
const DRIFT_PARTS: u64 = 500;
/// How long a refund is attempted, in microseconds.
const GIVE_UP_AFTER_US: u64 = 60_000_000;

/// Charges of logs, and transactions of ledgers, that wait to be refunded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingRefund {
    /// The charges.
    pub charges: Vec<LogCharge>,
    /// The transactions.
    pub transactions: Vec<Transaction>,
    /// When it was asked for. By then the transactions had been made.
    pub(super) since: Micros,
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
        PendingRefund { charges, transactions, since: now, due: now, until }
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

    /// How long ago its transactions were made at least by the database's clock, in microseconds.
    pub(super) fn age_us(&self, now: Micros) -> u64 {
        let age_us = now.since(self.since);
        age_us.saturating_sub(age_us / DRIFT_PARTS)
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
