//! Exact limits: drives the core's machines of an aggregator's exact requests and refunds, and executes their calls as the
//! stores do.
//!
//! The log is the core's; it is held by Redis, or by the only aggregator of a region. The ledger is the simplest one
//! that follows the documented rule: a transaction counts while it is younger than the window.

use super::World;
use super::event::{Due, Event};
use super::network::StreamId;
use super::request::{Caller, ExactCall, ExactWork, PendingExact, Reply, Request, Store};
use crate::check::exact::{Keeper, Use};
use crate::plan::keys;
use std::collections::BTreeMap;
use weir_core::model::exact::{self, Charge, ChargeResult, ExactKey, ExactRequestId, Verdict};
use weir_core::model::time::MonoMs;
use weir_core::model::wire;
use weir_core::region::log::{LogCharge, LogDecision, Logs, Micros, Outcome};
use weir_core::replication::exact::ledger::{Tried, Tries};
use weir_core::replication::exact::plan::{LedgerCharge, Transaction};
use weir_core::replication::exact::refund::{PendingRefund, Withdrawal};
use weir_core::replication::exact::refunding::Refunding;
use weir_core::replication::exact::timeout::within_us;
use weir_core::replication::exact::{Call, Reply as ExactReply, request};
use weir_core::replication::{Failure, Next};

/// The database's ledger: the transactions that count in each bucket. Its zones are the rules of the plan.
pub type Ledger = BTreeMap<Box<[u8]>, Vec<Recorded>>;

/// A recorded transaction of a ledger.
#[derive(Clone, Copy, Debug)]
pub struct Recorded {
    number: u64,
    name: ExactRequestId,
    at_us: u64,
    cost: u64,
}

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
        let name = ExactRequestId::of(worker, request.id);
        // Only a simulated network delivers a request twice. The second may be charged although the first was denied.
        if !self.check.exact.is_first(name) {
            charges.iter().for_each(|charge| self.check.exact.may_remain(key_of(charge), name, charge.cost));
        }
        let id = request.id;
        let request =
            request::Request::new(name, &charges, within_us(request.timeout_ms), Micros(self.now_us));
        let pending = PendingExact { stream, id, charges, request };
        self.drive_exact(at, Box::new(ExactWork::Request(Box::new(pending))));
        self.make_refunds(at);
    }

    /// A worker refunds a request that was not admitted in the end.
    pub(super) fn exact_refunded(&mut self, at: usize, worker: u64, refund: &wire::Refund) {
        let Ok(Some(withdrawal)) = Withdrawal::read(worker, refund) else { return };
        for (place, charge) in withdrawal.charges.iter().enumerate() {
            // Without the transaction's number there is nothing to refund.
            if withdrawal.results.get(place).is_none() {
                self.record_unknown_charge(charge, withdrawal.id);
            }
            self.check.exact.in_vain(key_of(charge), withdrawal.id);
        }
        let Some(process) = self.aggregators[at].process.as_mut() else { return };
        process.exact.withdraw(&withdrawal, Micros(self.now_us));
        self.make_refunds(at);
    }

    /// Makes the refunds that are due, and plans the next ones.
    pub(super) fn make_refunds(&mut self, at: usize) {
        let now = Micros(self.now_us);
        while let Some(process) = self.aggregators[at].process.as_mut()
            && let Some(refunding) = Refunding::due(&mut process.exact, now)
        {
            self.drive_exact(at, Box::new(ExactWork::Refund(refunding)));
        }
        self.take_counters(at);
        let host = &mut self.aggregators[at];
        let Some(process) = host.process.as_mut() else { return };
        let next = process.exact.next_due();
        if next != process.refunds_planned
            && let Some(due) = next
        {
            self.queue.plan(due.0, Event::Aggregator(at, host.incarnation, Due::Refunds));
        }
        process.refunds_planned = next;
    }

    /// The pause of a request is over.
    pub(super) fn exact_continues(&mut self, at: usize, number: u64) {
        let process = self.aggregators[at].process.as_mut();
        if let Some((work, call)) = process.and_then(|process| process.pausing.remove(&number)) {
            match call {
                Some(call) => self.call_exactly(at, work, call),
                None => self.drive_exact(at, work),
            }
            self.make_refunds(at);
        }
    }

    /// A store has replied, or the call has timed out.
    pub(super) fn exact_replied(
        &mut self,
        at: usize,
        mut work: Box<ExactWork>,
        sent: &Request,
        reply: Reply,
    ) {
        let (Request::Exact(sent), Reply::Exact(reply, failure)) = (sent, reply) else { return };
        let mut sent = sent.clone();
        let Some(process) = self.aggregators[at].process.as_mut() else { return };
        let pause_ms = sent.tries.as_mut().and_then(|tries| {
            let tried = match failure {
                None => Tried::Answered,
                Some(Failure::Unreachable) => Tried::Unreachable,
                Some(Failure::Timeout) => Tried::TimedOut,
                Some(_) => Tried::Failed,
            };
            tries.end(&mut process.ledger, tried, MonoMs(self.now_us / 1_000))
        });
        if let Some(pause_ms) = pause_ms {
            return self.pause_exactly(at, work, Some(sent), pause_ms);
        }
        if let (Call::ChargeLedger(charge), ExactReply::LedgerCharged(result)) = (&sent.what, &reply)
            && result.verdict == Verdict::Undecided
            && let Some(name) = sent.of
        {
            self.check.exact.may_remain(&charge.bucket, name, charge.cost);
        }
        work.machine().replied(&mut process.exact, reply, Micros(self.now_us));
        self.drive_exact(at, work);
        self.make_refunds(at);
    }

    /// Makes the calls of a machine until it waits for a reply, or is over.
    pub(super) fn drive_exact(&mut self, at: usize, mut work: Box<ExactWork>) {
        let now = Micros(self.now_us);
        let Some(process) = self.aggregators[at].process.as_mut() else { return };
        match work.machine().next(&mut process.exact, now) {
            Next::Call(what) => {
                let call = self.call_of(what, &mut work);
                self.call_exactly(at, work, call);
            }
            Next::Sleep(ms) => self.pause_exactly(at, work, None, ms),
            Next::Wait { .. } | Next::Yield | Next::Over => match *work {
                ExactWork::Request(pending) => self.respond_exactly(at, *pending),
                ExactWork::Call(pending) => self.step_api_call(at, pending),
                ExactWork::Refund(_) => {}
            },
        }
    }

    /// Calls a store, or replies for it if there is none, or if its circuit breaker is open.
    fn call_exactly(&mut self, at: usize, mut work: Box<ExactWork>, mut call: ExactCall) {
        let now = Micros(self.now_us);
        let host = &mut self.aggregators[at];
        let store = if call.is_of_logs() { Store::Redis(host.region) } else { Store::Database };
        let Some(process) = host.process.as_mut() else { return };
        let begins = |tries: &mut Tries| tries.begin(&mut process.ledger, MonoMs(now.0 / 1_000));
        let reply = match call.tries.as_mut().is_none_or(begins) {
            true => self.without_store(at, &call),
            false => Some(call.failed(Failure::Busy)),
        };
        let Some(reply) = reply else {
            let within_ms = call.until_us.saturating_sub(now.0) / 1_000;
            return self.call(at, store, Request::Exact(call), within_ms, Caller::Exact(work));
        };
        let Some(process) = self.aggregators[at].process.as_mut() else { return };
        work.machine().replied(&mut process.exact, reply, now);
        self.drive_exact(at, work);
    }

    /// Continues after a pause.
    fn pause_exactly(&mut self, at: usize, work: Box<ExactWork>, call: Option<ExactCall>, ms: u64) {
        let host = &mut self.aggregators[at];
        let incarnation = host.incarnation;
        let Some(process) = host.process.as_mut() else { return };
        process.pauses += 1;
        process.pausing.insert(process.pauses, (work, call));
        let over = Event::Aggregator(at, incarnation, Due::Exact(process.pauses));
        self.queue.plan(self.now_us + ms * 1_000, over);
    }

    /// A request has been decided.
    fn respond_exactly(&mut self, at: usize, pending: PendingExact) {
        let results = pending.request.results();
        let name = pending.request.id();
        if results.iter().any(ChargeResult::is_denied) {
            pending.charges.iter().for_each(|charge| self.check.exact.in_vain(key_of(charge), name));
        }
        self.check_cached_denial(at, &pending.request);
        let results = results.iter().map(ChargeResult::to_wire).collect();
        let results = vec![wire::ExactResponse { id: pending.id, results }];
        self.reply(pending.stream, wire::RegionFrame { results, ..wire::RegionFrame::default() });
    }

    /// Checks a denial of the aggregator's cache.
    pub(super) fn check_cached_denial(&mut self, at: usize, request: &request::Request) {
        if let Some(charge) = request.denied_by_cache() {
            let keeper = self.keeper_of_logs(at);
            self.check.denied_by_cache(keeper, charge, self.now_us);
        }
    }

    /// Takes note of the refunds that were given up.
    fn take_counters(&mut self, at: usize) {
        let Some(process) = self.aggregators[at].process.as_mut() else { return };
        let given_up = process.exact.take_counters().given_up;
        given_up.iter().for_each(|refund| self.refund_lost(refund));
    }

    /// The aggregator of a call has ended.
    pub(super) fn exact_ended(&mut self, work: &ExactWork) {
        match work {
            ExactWork::Refund(refunding) => self.refund_lost(refunding.left()),
            ExactWork::Call(pending) => self.abandon_api_call(pending),
            // The worker refunds it.
            ExactWork::Request(_) => {}
        }
    }

    /// Records that no aggregator makes a refund, so the charges remain.
    pub(super) fn refund_lost(&mut self, refund: &PendingRefund) {
        for LogCharge { key, id, cost, .. } in &refund.charges {
            self.check.exact.may_remain(key.as_bytes(), id.request, *cost);
        }
        for Transaction { id, bucket, .. } in &refund.transactions {
            let recorded = self.ledger.get(bucket).into_iter().flatten().find(|one| one.number == *id);
            if let Some(Recorded { name, cost, .. }) = recorded.copied() {
                self.check.exact.may_remain(bucket, name, cost);
            }
        }
    }

    /// Records that a ledger may hold a transaction whose number the aggregator has not received.
    fn record_unknown_charge(&mut self, charge: &Charge, name: ExactRequestId) {
        if let ExactKey::Ledger { bucket, .. } = &charge.key {
            self.check.exact.may_remain(bucket, name, charge.cost);
        }
    }

    fn keeper_of_logs(&self, at: usize) -> Keeper {
        match self.has_redis() {
            true => Keeper::Redis(self.aggregators[at].region),
            false => Keeper::Aggregator(at),
        }
    }

    fn call_of(&self, what: Call, work: &mut ExactWork) -> ExactCall {
        let of = match work {
            ExactWork::Request(pending) => Some(pending.request.id()),
            ExactWork::Call(pending) => Some(pending.id),
            ExactWork::Refund(_) => None,
        };
        let until_us = work.machine().deadline().0;
        let call = ExactCall { what, of, until_us, tries: None };
        let has_tries = self.has_database() && !call.is_of_logs();
        ExactCall { tries: has_tries.then(|| Tries::new(MonoMs(until_us / 1_000))), ..call }
    }

    /// The reply to a call for which there is no store: logs are in memory, and ledgers do not decide.
    fn without_store(&mut self, at: usize, call: &ExactCall) -> Option<ExactReply> {
        match &call.what {
            Call::ChargeLogs(_) | Call::RefundLogs(_) if self.has_redis() => None,
            Call::ChargeLogs(_) | Call::RefundLogs(_) => {
                Some(self.execute_exactly(Keeper::Aggregator(at), call))
            }
            Call::ChargeLedger(_) | Call::RefundLedger(_) if self.has_database() => None,
            Call::ChargeLedger(_) => Some(ExactReply::LedgerCharged(ChargeResult::UNDECIDED)),
            Call::RefundLedger(_) => Some(ExactReply::LedgerRefunded(Some(false))),
        }
    }

    /// The reply of a store to a call. It refuses charges after their deadline.
    pub(super) fn execute_exactly(&mut self, keeper: Keeper, call: &ExactCall) -> ExactReply {
        let is_late = call.until_us < self.now_us;
        match (&call.what, call.of) {
            (Call::ChargeLogs(_) | Call::ChargeLedger(_), _) if is_late => call.failed(Failure::Timeout),
            (Call::ChargeLogs(charges), _) => {
                ExactReply::LogsCharged(charges.iter().map(|one| self.charge_log(keeper, one)).collect())
            }
            (Call::RefundLogs(charges), _) => ExactReply::LogsRefunded(
                charges.iter().map(|charge| Ok(self.refund_log(keeper, charge))).collect(),
            ),
            (Call::ChargeLedger(charge), Some(name)) => {
                ExactReply::LedgerCharged(self.charge_ledger(charge, name))
            }
            (Call::ChargeLedger(_), None) => call.failed(Failure::Refused),
            (Call::RefundLedger(transaction), _) => {
                ExactReply::LedgerRefunded(Some(self.refund_ledger(transaction)))
            }
        }
    }

    fn charge_log(&mut self, keeper: Keeper, charge: &LogCharge) -> Result<LogDecision, Failure> {
        let now = Micros(self.now_us);
        let logs = self.logs_of(keeper).ok_or(Failure::Unavailable)?;
        let decided = logs.decide(now, charge).map_err(|_| Failure::Refused)?;
        if decided.outcome == Outcome::Allowed && charge.cost > 0 {
            let window_us = charge.key.parts().duration_ms * 1_000;
            let one = Use { keeper, name: charge.id.request, at_us: now.0, cost: charge.cost };
            let most = self.most_of(charge.key.as_bytes()).min(charge.most);
            self.exact_charged(charge.key.as_bytes(), one, (most, window_us));
        }
        Ok(decided)
    }

    /// The highest limit of the rules that count a key.
    fn most_of(&self, key: &[u8]) -> u64 {
        let counted = keys::parse(key).map(|(rule, _)| rule);
        let rules = self.shapes.iter().enumerate();
        let count_it = rules.filter(|(number, shape)| Some(shape.rule.counts(*number)) == counted);
        count_it.map(|(_, shape)| shape.rule.limit).max().unwrap_or(0)
    }

    fn refund_log(&mut self, keeper: Keeper, charge: &LogCharge) -> bool {
        let refunded = self.logs_of(keeper).is_some_and(|logs| logs.refund(&charge.key, charge.id));
        self.check.exact.refunded(charge.key.as_bytes(), charge.id.request, self.now_us);
        refunded
    }

    fn logs_of(&mut self, keeper: Keeper) -> Option<&mut Logs> {
        match keeper {
            Keeper::Redis(region) => self.logs.get_mut(region),
            Keeper::Aggregator(at) => self.aggregators[at].process.as_mut().map(|process| &mut process.logs),
            Keeper::Database => None,
        }
    }

    fn charge_ledger(&mut self, charge: &LedgerCharge, name: ExactRequestId) -> ChargeResult {
        let now_us = self.now_us;
        let Some(shape) = self.shapes.get(charge.zone as usize) else { return ChargeResult::UNDECIDED };
        let (most, window_ms) = (shape.rule.limit, shape.rule.window_ms);
        let transactions = self.ledger.entry(charge.bucket.clone()).or_default();
        // A row stays when its window is over, so that it can still be refunded.
        let counts = |transaction: &&Recorded| now_us < transaction.at_us + window_ms * 1_000;
        let used: u64 = transactions.iter().filter(counts).map(|transaction| transaction.cost).sum();
        // A transaction is recorded once. Repeated messages exist only in the simulated network.
        let recorded = transactions.iter().find(|transaction| transaction.name == name).copied();
        let fits = recorded.is_some() || used + charge.cost <= most;
        self.transactions += 1;
        let number = recorded.map_or(self.transactions, |recorded| recorded.number);
        if fits && recorded.is_none() && charge.cost > 0 {
            transactions.push(Recorded { number, name, at_us: now_us, cost: charge.cost });
            let one = Use { keeper: Keeper::Database, name, at_us: now_us, cost: charge.cost };
            self.exact_charged(&charge.bucket, one, (most, window_ms * 1_000));
        }
        let verdict = match fits {
            true => Verdict::Allowed,
            false => Verdict::Denied { retry_after_ms: (charge.cost <= most).then_some(window_ms) },
        };
        ChargeResult { verdict, limit: most, remaining: 0, reset_ms: 0, window_ms, transaction: Some(number) }
    }

    fn refund_ledger(&mut self, transaction: &Transaction) -> bool {
        let Some(transactions) = self.ledger.get_mut(&transaction.bucket) else { return false };
        let Some(place) = transactions.iter().position(|one| one.number == transaction.id) else {
            return false;
        };
        let refunded = transactions.remove(place);
        self.check.exact.refunded(&transaction.bucket, refunded.name, self.now_us);
        true
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

/// What the checkers call the limit of a charge.
pub(super) fn key_of(charge: &Charge) -> &[u8] {
    charge.key.as_bytes()
}
