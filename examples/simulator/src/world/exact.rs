//! Exact limits: an aggregator's exact requests and refunds, and the logs and ledgers of the stores.
//!
//! The log is the core's; it is held by Redis, or by the only aggregator of a region. The ledger is the simplest one
//! that follows the documented rule: a transaction counts while it is younger than the window. The aggregator charges
//! logs before ledgers, refunds what was charged before a denial, and refunds undecided charges once they can no
//! longer be made.

use super::World;
use super::network::StreamId;
use super::request::{Caller, LedgerCharge, PendingExact, PendingRefund, Reply, Request, Store, Transaction};
use crate::check::exact::{Keeper, Use};
use crate::plan::keys;
use std::collections::BTreeMap;
use weir_core::model::exact::{self, Charge, ChargeResult, ExactRequestId, Limit, Verdict};
use weir_core::model::wire;
use weir_core::region::log::{Decided, EntryId, LogCharge, Logs, Micros, Outcome};
use weir_core::replication::Failure;

/// The part of a request's timeout that the aggregator leaves for the reply's delay, in milliseconds.
const RESERVE_MS: u64 = 10;
/// Time from the deadline of an undecided charge until it is refunded.
const GRACE_US: u64 = 100_000;
/// Interval between two attempts of a refund, and the time after which the aggregator stops trying.
const RETRY_US: u64 = 250_000;
const GIVE_UP_US: u64 = 60_000_000;
/// Timeout of a refund call, in milliseconds.
const REFUND_MS: u64 = 1_000;

/// The database's ledger: the transactions that count in each bucket. Its zones are the rules of the plan.
pub type Ledger = BTreeMap<Box<[u8]>, Vec<Transaction>>;

impl World<'_> {
    /// An exact request of a worker reaches an aggregator.
    pub(super) fn exact_requested(
        &mut self,
        at: usize,
        stream: StreamId,
        worker: u64,
        request: &wire::ExactRequest,
    ) {
        let Ok(charges) = exact::charges(request) else {
            return self.check.violated("exact", self.now_us, || format!("{request:?} cannot be read"));
        };
        let patience_ms = u64::from(request.timeout_ms).saturating_sub(RESERVE_MS).max(1);
        let pending = PendingExact {
            stream,
            id: request.id,
            name: ExactRequestId::of(worker, request.id),
            results: vec![None; charges.len()],
            charges,
            deadline_us: self.now_us + patience_ms * 1_000,
        };
        let logs = pending.logs();
        // Only a simulated network delivers a request twice. The second may be charged although the first was denied.
        if !self.check.exact.is_first(pending.name) {
            logs.iter().for_each(|charge| self.check.exact.may_remain(charge.key.as_bytes(), charge.cost));
            pending.charges.iter().for_each(|charge| self.record_unknown_charge(charge));
        }
        if logs.is_empty() {
            return self.charge_ledgers(at, pending);
        }
        if self.has_redis() {
            let request = Request::ChargeLogs(logs, pending.deadline_us);
            return self.call_store(at, Store::Redis(self.aggregators[at].region), request, pending);
        }
        let decided = self.charge_logs(Keeper::Aggregator(at), &logs);
        self.logs_decided(at, pending, decided);
    }

    fn call_store(&mut self, at: usize, store: Store, request: Request, pending: PendingExact) {
        let within_ms = pending.deadline_us.saturating_sub(self.now_us) / 1_000;
        self.call(at, store, request, within_ms, Caller::Exact(Box::new(pending)));
    }

    /// A store has replied, or the call has timed out.
    pub(super) fn exact_replied(&mut self, at: usize, mut pending: PendingExact, reply: Reply) {
        match reply {
            Reply::Decided(decided) => self.logs_decided(at, pending, decided),
            Reply::Charged(result) => {
                let next = pending.next_ledger();
                if let (Err(_), Some(place)) = (&result, next) {
                    self.record_unknown_charge(&pending.charges[place]);
                }
                if let Some(place) = next {
                    pending.results[place] = Some(result.unwrap_or(ChargeResult::UNDECIDED));
                }
                self.charge_ledgers(at, pending);
            }
            _ => {}
        }
    }

    fn logs_decided(&mut self, at: usize, mut pending: PendingExact, decided: Vec<Result<Decided, Failure>>) {
        let logs = pending.logs();
        let mut undecided = Vec::new();
        for (charge, decided) in logs.iter().zip(decided) {
            let place = usize::from(charge.id.place);
            pending.results[place] = Some(match decided {
                Ok(decided) => decided.result(charge.most, charge.key.parts().duration_ms),
                Err(_) => {
                    undecided.push(charge.clone());
                    ChargeResult::UNDECIDED
                }
            });
        }
        if !undecided.is_empty() {
            let due_us = pending.deadline_us.max(self.now_us) + GRACE_US;
            self.refund(at, Request::RefundLogs(undecided), due_us);
        }
        self.charge_ledgers(at, pending);
    }

    /// Charges the next ledger. Sends the response if a limit has denied or no ledger remains.
    fn charge_ledgers(&mut self, at: usize, mut pending: PendingExact) {
        while let Some(place) = pending.next_ledger().filter(|_| !pending.is_denied()) {
            let Limit::Ledger { zone, bucket } = &pending.charges[place].limit else { break };
            if self.has_database() {
                let (cost, until_us) = (pending.charges[place].cost, pending.deadline_us);
                let charge =
                    LedgerCharge { name: pending.name, zone: *zone, bucket: bucket.clone(), cost, until_us };
                return self.call_store(at, Store::Database, Request::ChargeLedger(charge), pending);
            }
            pending.results[place] = Some(ChargeResult::UNDECIDED);
        }
        let denied = pending.is_denied();
        if denied {
            let passed = |result: &Option<ChargeResult>| result.is_some_and(|result| result.is_allowed());
            let passed: Vec<bool> = pending.results.iter().map(passed).collect();
            self.refund_charges(at, pending.name, &pending.charges, &passed);
        }
        let results = pending.results.iter().map(|result| match result {
            Some(result) if denied && result.is_allowed() => {
                ChargeResult { verdict: Verdict::Untried, ..*result }
            }
            Some(result) => *result,
            None => ChargeResult { verdict: Verdict::Untried, ..ChargeResult::UNDECIDED },
        });
        let results = results.map(|result| result.to_wire()).collect();
        let results = vec![wire::ExactResponse { id: pending.id, results }];
        self.reply(pending.stream, wire::RegionFrame { results, ..wire::RegionFrame::default() });
    }

    /// A worker refunds a request that was not admitted in the end.
    pub(super) fn exact_refunded(&mut self, at: usize, worker: u64, refund: &wire::Refund) {
        let Some(request) = &refund.request else { return };
        let Ok(charges) = exact::charges(request) else { return };
        let name = ExactRequestId::of(worker, request.id);
        let results: Vec<ChargeResult> = refund.results.iter().map(ChargeResult::from_wire).collect();
        let charged = |place: usize| match (&charges[place].limit, results.get(place)) {
            (_, Some(result)) if result.verdict == Verdict::Allowed => true,
            (Limit::Log { .. }, result) => result.is_none_or(|result| result.verdict == Verdict::Undecided),
            // Without the transaction's number there is nothing to refund.
            (Limit::Ledger { .. }, _) => false,
        };
        let charged: Vec<bool> = (0..charges.len()).map(charged).collect();
        for (place, charge) in charges.iter().enumerate() {
            if matches!(charge.limit, Limit::Ledger { .. }) && results.get(place).is_none() {
                self.record_unknown_charge(charge);
            }
        }
        self.refund_charges(at, name, &charges, &charged);
        if results.len() < charges.len() {
            // The exact request may still be on its way and charge something before its deadline.
            let due_us = self.now_us + u64::from(request.timeout_ms) * 1_000;
            let logs = logs(name, &charges);
            if !logs.is_empty() {
                self.refund(at, Request::RefundLogs(logs), due_us);
            }
        }
    }

    fn refund_charges(&mut self, at: usize, name: ExactRequestId, charges: &[Charge], which: &[bool]) {
        let mut logs = logs(name, charges);
        logs.retain(|log| which[usize::from(log.id.place)]);
        if !logs.is_empty() {
            self.refund(at, Request::RefundLogs(logs), self.now_us);
        }
        for (charge, _) in charges.iter().zip(which).filter(|(_, which)| **which) {
            if let Limit::Ledger { bucket, .. } = &charge.limit {
                self.refund(at, Request::RefundLedger(name, bucket.clone()), self.now_us);
            }
        }
    }

    /// Schedules a refund for `due_us`.
    fn refund(&mut self, at: usize, what: Request, due_us: u64) {
        let refund = PendingRefund { what, due_us, until_us: due_us + GIVE_UP_US };
        if due_us <= self.now_us {
            return self.send_refund(at, refund);
        }
        if let Some(process) = self.aggregators[at].process.as_mut() {
            process.refunds.push(refund);
        }
    }

    /// Sends the refunds that are due.
    pub(super) fn refunds_due(&mut self, at: usize) {
        let now_us = self.now_us;
        let Some(process) = self.aggregators[at].process.as_mut() else { return };
        let due: Vec<PendingRefund> =
            process.refunds.extract_if(.., |refund| refund.due_us <= now_us).collect();
        due.into_iter().for_each(|refund| self.send_refund(at, refund));
    }

    fn send_refund(&mut self, at: usize, refund: PendingRefund) {
        let store = match &refund.what {
            Request::RefundLogs(charges) if !self.has_redis() => {
                return self.refund_logs(Keeper::Aggregator(at), charges);
            }
            Request::RefundLogs(_) => Store::Redis(self.aggregators[at].region),
            _ => Store::Database,
        };
        self.call(at, store, refund.what.clone(), REFUND_MS, Caller::PendingRefund(Box::new(refund)));
    }

    /// A refund was made, or its call has failed.
    pub(super) fn refund_replied(&mut self, at: usize, refund: PendingRefund, reply: Reply) {
        let due_us = self.now_us + RETRY_US;
        if matches!(reply, Reply::Done(Ok(()))) {
            return;
        }
        match self.aggregators[at].process.as_mut().filter(|_| due_us < refund.until_us) {
            Some(process) => process.refunds.push(PendingRefund { due_us, ..refund }),
            None => self.record_failed_refund(&refund),
        }
    }

    /// Records that an aggregator ended before it could make a refund, so the charge remains.
    pub(super) fn record_failed_refund(&mut self, refund: &PendingRefund) {
        if let Request::RefundLogs(charges) = &refund.what {
            charges.iter().for_each(|charge| self.check.exact.may_remain(charge.key.as_bytes(), charge.cost));
        } else if let Request::RefundLedger(name, bucket) = &refund.what {
            let counted = self.ledger.get(bucket).into_iter().flatten().find(|one| one.name == *name);
            self.check.exact.may_remain(bucket, counted.map_or(0, |one| one.cost));
        }
    }

    /// Records that a ledger may hold a transaction whose number the aggregator has not received.
    fn record_unknown_charge(&mut self, charge: &Charge) {
        if let Limit::Ledger { bucket, .. } = &charge.limit {
            self.check.exact.may_remain(bucket, charge.cost);
        }
    }

    /// The reply of a store to a request about exact limits; `None` for other requests.
    pub(super) fn execute_exactly(&mut self, store: Store, request: &Request) -> Option<Reply> {
        let keeper = match store {
            Store::Redis(region) => Keeper::Redis(region),
            Store::Database => Keeper::Database,
        };
        match request {
            // A store refuses charges after their deadline.
            Request::ChargeLogs(charges, until_us) if *until_us < self.now_us => {
                Some(Reply::Decided(vec![Err(Failure::Timeout); charges.len()]))
            }
            Request::ChargeLogs(charges, _) => Some(Reply::Decided(self.charge_logs(keeper, charges))),
            Request::RefundLogs(charges) => {
                self.refund_logs(keeper, charges);
                Some(Reply::Done(Ok(())))
            }
            Request::ChargeLedger(charge) if charge.until_us < self.now_us => {
                Some(Reply::Charged(Err(Failure::Timeout)))
            }
            Request::ChargeLedger(charge) => Some(Reply::Charged(Ok(self.charge_ledger(charge)))),
            Request::RefundLedger(name, bucket) => {
                if let Some(transactions) = self.ledger.get_mut(bucket) {
                    transactions.retain(|transaction| transaction.name != *name);
                }
                self.check.exact.refunded(bucket, *name);
                Some(Reply::Done(Ok(())))
            }
            _ => None,
        }
    }

    fn charge_logs(&mut self, keeper: Keeper, charges: &[LogCharge]) -> Vec<Result<Decided, Failure>> {
        let now = Micros(self.now_us);
        let mut decisions = Vec::new();
        for charge in charges {
            let Some(logs) = self.logs_of(keeper) else {
                return vec![Err(Failure::Unavailable); charges.len()];
            };
            let decided = logs.decide(now, charge).map_err(|_| Failure::Unavailable);
            if decided.is_ok_and(|decided| decided.outcome == Outcome::Allowed) && charge.cost > 0 {
                let window_us = charge.key.parts().duration_ms * 1_000;
                let one = Use { keeper, name: charge.id.request, at_us: now.0, cost: charge.cost };
                self.exact_charged(charge.key.as_bytes(), one, (charge.most, window_us));
            }
            decisions.push(decided);
        }
        decisions
    }

    fn refund_logs(&mut self, keeper: Keeper, charges: &[LogCharge]) {
        for charge in charges {
            if let Some(logs) = self.logs_of(keeper) {
                logs.refund(&charge.key, charge.id);
            }
            self.check.exact.refunded(charge.key.as_bytes(), charge.id.request);
        }
    }

    fn logs_of(&mut self, keeper: Keeper) -> Option<&mut Logs> {
        match keeper {
            Keeper::Redis(region) => self.logs.get_mut(region),
            Keeper::Aggregator(at) => self.aggregators[at].process.as_mut().map(|process| &mut process.logs),
            Keeper::Database => None,
        }
    }

    fn charge_ledger(&mut self, charge: &LedgerCharge) -> ChargeResult {
        let now_us = self.now_us;
        let Some(shape) = self.shapes.get(charge.zone as usize) else { return ChargeResult::UNDECIDED };
        let (most, window_ms) = (shape.rule.limit, shape.rule.window_ms);
        let transactions = self.ledger.entry(charge.bucket.clone()).or_default();
        transactions.retain(|transaction| now_us < transaction.at_us + window_ms * 1_000);
        let used: u64 = transactions.iter().map(|transaction| transaction.cost).sum();
        // A transaction is recorded once. Repeated messages exist only in the simulated network.
        let is_recorded = transactions.iter().any(|transaction| transaction.name == charge.name);
        let fits = is_recorded || used + charge.cost <= most;
        if fits && !is_recorded && charge.cost > 0 {
            transactions.push(Transaction { name: charge.name, at_us: now_us, cost: charge.cost });
            let one = Use { keeper: Keeper::Database, name: charge.name, at_us: now_us, cost: charge.cost };
            self.exact_charged(&charge.bucket, one, (most, window_ms * 1_000));
        }
        let verdict = match fits {
            true => Verdict::Allowed,
            false => Verdict::Denied { retry_after_ms: (charge.cost <= most).then_some(window_ms) },
        };
        ChargeResult { verdict, limit: most, remaining: 0, reset_ms: 0, window_ms, transaction: Some(1) }
    }

    fn exact_charged(&mut self, key: &[u8], one: Use, (most, window_us): (u64, u64)) {
        let now_us = self.now_us;
        if let Some(counts) = self.check.exact.charged(key, one, window_us).filter(|counts| *counts > most) {
            let key = keys::parse(key);
            self.check.violated("exact", now_us, || {
                format!("{:?} charged {counts} of {most} in one window of {key:?}", one.keeper)
            });
        }
    }
}

impl PendingExact {
    fn logs(&self) -> Vec<LogCharge> {
        logs(self.name, &self.charges)
    }

    fn next_ledger(&self) -> Option<usize> {
        let open = |(charge, result): (&Charge, &Option<ChargeResult>)| {
            matches!(charge.limit, Limit::Ledger { .. }) && result.is_none()
        };
        self.charges.iter().zip(&self.results).position(open)
    }

    fn is_denied(&self) -> bool {
        self.results.iter().flatten().any(ChargeResult::is_denied)
    }
}

/// The logs among the charges of an exact request. Each rule has its own keys, so no two logs are the same.
fn logs(request: ExactRequestId, charges: &[Charge]) -> Vec<LogCharge> {
    let log = |(place, charge): (u8, &Charge)| match &charge.limit {
        Limit::Log { key, most } => Some(LogCharge {
            key: key.clone(),
            id: EntryId { request, place },
            cost: charge.cost,
            most: *most,
        }),
        Limit::Ledger { .. } => None,
    };
    (0..).zip(charges).filter_map(log).collect()
}
