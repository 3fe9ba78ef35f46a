//! The exact limits of a region: an aggregator's exact requests and refunds, on logs and ledgers that a test breaks.

use super::harness::Random;
use crate::model::exact::{self, ChargeResult, ExactKey, ExactRequestId, Verdict};
use crate::model::key::Key;
use crate::model::wire;
use crate::region::log::{EntryId, LogCharge, Logs, LogsLimits, Micros};
use crate::replication::exact::plan::{LedgerCharge, Transaction};
use crate::replication::exact::refund::Withdrawal;
use crate::replication::exact::refunding::Refunding;
use crate::replication::exact::request::Request;
use crate::replication::exact::timeout::within_us;
use crate::replication::exact::{Call, ExactState, Machine, Reply};
use crate::replication::{Failure, Next};
use std::collections::{BTreeMap, BTreeSet};
use std::vec::Vec;

/// A worker's exact request: the worker's place in the world, and the id of the request.
type RequestId = ((usize, usize), u64);

/// An admitted attempt at a ledger.
#[derive(Clone, Debug)]
struct Attempt {
    number: u64,
    request: ExactRequestId,
    at: u64,
    cost: u64,
    /// The worker has refunded it without its number, so it remains.
    is_orphaned: bool,
}

#[derive(Debug)]
pub(super) struct ExactStore {
    state: ExactState,
    logs: Logs,
    /// Admitted attempts, by zone and bucket, in the order of time.
    ledgers: BTreeMap<(u32, Vec<u8>), Vec<Attempt>>,
    /// Rate and window of each zone.
    pub(super) zones: BTreeMap<u32, (u64, u64)>,
    pub(super) transactions: u64,
    /// The least and the most that a response is delayed.
    pub(super) delay_ms: (u64, u64),
    /// One response in so many is lost; 0: none is lost.
    pub(super) loses_one_in: u64,
    /// Charges nothing, and responds that all is undecided.
    pub(super) unavailable: bool,
    /// Logs are charged, but their answers are lost.
    pub(super) loses_answers: bool,
    pub(super) exact_requests: Vec<(RequestId, wire::ExactRequest)>,
    received: BTreeSet<RequestId>,
    pub(super) refunded: BTreeSet<RequestId>,
}

impl Default for ExactStore {
    fn default() -> Self {
        ExactStore {
            state: ExactState::new(false),
            logs: Logs::new(LogsLimits::default()),
            ledgers: BTreeMap::new(),
            zones: BTreeMap::new(),
            transactions: 0,
            delay_ms: (0, 0),
            loses_one_in: 0,
            unavailable: false,
            loses_answers: false,
            exact_requests: Vec::new(),
            received: BTreeSet::new(),
            refunded: BTreeSet::new(),
        }
    }
}

impl ExactStore {
    pub(super) fn draw_delay_ms(&mut self, random: &mut Random) -> Option<u64> {
        let (least, most) = self.delay_ms;
        let lost = self.loses_one_in > 0 && random.below(self.loses_one_in) == 0;
        (!lost).then(|| 1 + least + random.below(most - least + 1))
    }

    pub(super) fn respond(
        &mut self,
        worker: (usize, usize),
        request: &wire::ExactRequest,
        now: u64,
    ) -> wire::ExactResponse {
        let id = (worker, request.id);
        assert!(self.received.insert(id), "two exact requests with one id");
        assert!(request.timeout_ms > 0);
        self.exact_requests.push((id, request.clone()));
        let charges = exact::charges(request).unwrap();
        let name = ExactRequestId::of(sender(worker), request.id);
        let mut machine = Request::new(name, &charges, within_us(request.timeout_ms), time(now));
        self.drive(&mut machine, name, now);
        self.refund_due(now);
        let results = machine.results();
        wire::ExactResponse { id: request.id, results: results.iter().map(ChargeResult::to_wire).collect() }
    }

    /// Removes the charges of an exact request.
    pub(super) fn refund(&mut self, worker: (usize, usize), refund: &wire::Refund, now: u64) {
        let withdrawal = Withdrawal::read(sender(worker), refund).unwrap().unwrap();
        self.refunded.insert((worker, refund.request.as_ref().unwrap().id));
        for (place, charge) in withdrawal.charges.iter().enumerate() {
            if let (ExactKey::Ledger { zone, bucket }, None) = (&charge.key, withdrawal.results.get(place)) {
                let attempts = self.ledgers.entry((*zone, bucket.to_vec())).or_default();
                let own = attempts.iter_mut().filter(|attempt| attempt.request == withdrawal.id);
                own.for_each(|attempt| attempt.is_orphaned = true);
            }
        }
        self.state.withdraw(&withdrawal, time(now));
        self.refund_due(now);
    }

    /// Makes the refunds that are due.
    pub(super) fn refund_due(&mut self, now: u64) {
        while let Some(mut refunding) = Refunding::due(&mut self.state, time(now)) {
            self.drive(&mut refunding, ExactRequestId([0; 16]), now);
        }
    }

    /// The sum of the charges in a log.
    pub(super) fn charged(&mut self, key: &[u8], now: u64) -> u64 {
        let (key, id) = (Key::parse(key).unwrap(), EntryId { request: ExactRequestId([0; 16]), place: 0 });
        let query = LogCharge { key, id, cost: 0, most: u64::MAX };
        self.logs.decide(time(now), &query).unwrap().used
    }

    /// The sum of the charges in a ledger.
    pub(super) fn recorded(&self, zone: u32, bucket: &[u8]) -> u64 {
        self.attempts(zone, bucket).map(|one| one.cost).sum()
    }

    /// The sum of the charges in a ledger that remain although the worker has refunded them: it had not received their
    /// numbers.
    pub(super) fn orphaned(&self, zone: u32, bucket: &[u8]) -> u64 {
        self.attempts(zone, bucket).filter(|one| one.is_orphaned).map(|one| one.cost).sum()
    }

    fn attempts(&self, zone: u32, bucket: &[u8]) -> impl Iterator<Item = &Attempt> {
        self.ledgers.get(&(zone, bucket.to_vec())).into_iter().flatten()
    }

    fn drive(&mut self, machine: &mut impl Machine, request: ExactRequestId, now: u64) {
        loop {
            match machine.next(&mut self.state, time(now)) {
                Next::Call(call) => {
                    let reply = self.reply(&call, request, now);
                    machine.replied(&mut self.state, reply, time(now));
                }
                Next::Over => return,
                other => panic!("{other:?}"),
            }
        }
    }

    fn reply(&mut self, call: &Call, request: ExactRequestId, now: u64) -> Reply {
        match call {
            Call::ChargeLogs(charges) if self.unavailable => {
                Reply::LogsCharged(charges.iter().map(|_| Err(Failure::Refused)).collect())
            }
            Call::ChargeLogs(charges) => {
                let decided = charges.iter().map(|charge| {
                    let decided = self.logs.decide(time(now), charge).unwrap();
                    if self.loses_answers { Err(Failure::Timeout) } else { Ok(decided) }
                });
                Reply::LogsCharged(decided.collect())
            }
            Call::ChargeLedger(_) if self.unavailable => Reply::LedgerCharged(ChargeResult::UNDECIDED),
            Call::ChargeLedger(charge) => Reply::LedgerCharged(self.attempt(charge, request, now)),
            Call::RefundLogs(charges) => Reply::LogsRefunded(
                charges.iter().map(|charge| Ok(self.logs.refund(&charge.key, charge.id))).collect(),
            ),
            Call::RefundLedger(Transaction { id, zone, bucket, .. }) => {
                let attempts = self.ledgers.entry((*zone, bucket.to_vec())).or_default();
                let before = attempts.len();
                attempts.retain(|one| one.number != *id);
                Reply::LedgerRefunded(Some(attempts.len() < before))
            }
        }
    }

    fn attempt(&mut self, charge: &LedgerCharge, request: ExactRequestId, now: u64) -> ChargeResult {
        let LedgerCharge { zone, bucket, cost } = charge;
        let (most, window) = self.zones[zone];
        self.transactions += 1;
        let number = self.transactions;
        let attempts = self.ledgers.entry((*zone, bucket.to_vec())).or_default();
        let live = || attempts.iter().filter(|one| one.at + window > now);
        let used: u64 = live().map(|one| one.cost).sum();
        let reset_ms = live().next().map_or(0, |oldest| oldest.at + window - now);
        let fits = used + cost <= most;
        let verdict = match fits {
            true => Verdict::Allowed,
            false => {
                let mut left = used;
                let mut leaves = live().find(|one| {
                    left -= one.cost;
                    left + cost <= most
                });
                Verdict::Denied { retry_after_ms: leaves.take().map(|one| one.at + window - now) }
            }
        };
        let remaining = most.saturating_sub(used) - if fits { *cost } else { 0 };
        if fits {
            attempts.push(Attempt { number, request, at: now, cost: *cost, is_orphaned: false });
        }
        ChargeResult {
            verdict,
            limit: most,
            remaining,
            reset_ms,
            window_ms: window,
            transaction: Some(number),
        }
    }
}

/// The number by which an aggregator knows a worker.
fn sender((process, worker): (usize, usize)) -> u64 {
    (process * 1_000 + worker) as u64
}

fn time(ms: u64) -> Micros {
    Micros(ms * 1_000)
}
