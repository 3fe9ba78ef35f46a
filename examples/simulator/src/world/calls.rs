//! Calls of aggregators to stores: on their way, at the store, answered, or given up when their time is over.
//!
//! Leaves to others: what a store does (`redis`, `database`), what a caller makes of the answer (`machines`).

use super::World;
use super::aggregator::Inbox;
use super::exact::{Asking, PendingRefund, Trial};
use super::network::Path;
use super::queue::Event;
use super::streams::StreamId;
use std::collections::BTreeMap;
use weir_core::model::exact::{ChargeResult, ExactRequestId};
use weir_core::model::key::{Key, OriginId};
use weir_core::region::HotCell;
use weir_core::region::exchange::{LowerBound, Merge, Merged, Publication, Stored};
use weir_core::region::log::{Decided, LogCharge};
use weir_core::replication::Failure;
use weir_core::replication::globe::lease::Holder;
use weir_core::replication::regional::queries::Queries;
use weir_core::replication::regional::watch::Incarnations;

/// A store, by where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// A region's Redis.
    Redis(usize),
    /// What all regions share.
    Database,
}

/// What a store is asked.
#[derive(Clone, Debug)]
pub enum Request {
    /// Raise cells.
    Merge(Vec<Merge>),
    /// Raise cells to a floor.
    Raise(Vec<LowerBound>),
    /// Name cells in the hot index.
    NameHot(Vec<HotCell>),
    /// Which cells does a shard of the index name?
    Shard(usize),
    /// What is held of these?
    Cells(Vec<(Key, u64)>),
    /// These are alive; who else?
    Origins(Vec<OriginId>),
    /// Tell all who listen.
    Publish(Vec<u8>),
    /// Which life is it? A look of `reader`, which gives the marker the id `fresh` if it has none, or still `renewed`.
    Incarnations { fresh: u128, reader: [u8; 16], renewed: Option<u128> },
    /// Which life has the table?
    TableIncarnation,
    /// Raise rows of a region.
    Write(Vec<Publication>),
    /// The sum of all other regions.
    Import,
    /// What the region itself has published.
    Own,
    /// Who may serve the region?
    Lease([u8; 16]),
    /// Whoever has it gives it up.
    Release([u8; 16]),
    /// Charge exact logs, unless this moment is over.
    ChargeLogs(Vec<LogCharge>, u64),
    /// Take charges of logs back.
    RefundLogs(Vec<LogCharge>),
    /// Record an attempt.
    ChargeLedger(Trial),
    /// Let an attempt of a bucket no longer count.
    RefundLedger(ExactRequestId, Box<[u8]>),
}

/// What it says.
#[derive(Clone, Debug)]
pub enum Reply {
    /// To each cell.
    Merged(Vec<Result<Merged, Failure>>),
    /// It is done.
    Done(Result<(), Failure>),
    /// Cells that are named.
    Named(Result<Vec<(Key, u64)>, Failure>),
    /// Who is alive.
    Alive(Result<Vec<OriginId>, Failure>),
    /// Markers.
    Incarnations(Result<Incarnations, Failure>),
    /// The table's life.
    TableIncarnation(Result<u64, Failure>),
    /// Rows.
    Rows(Result<Vec<Stored>, Failure>),
    /// Who has the lease.
    Holder(Result<Holder, Failure>),
    /// By each log.
    Decided(Vec<Result<Decided, Failure>>),
    /// By the ledger.
    Ruled(Result<ChargeResult, Failure>),
}

/// Who waits for an answer.
#[derive(Debug)]
pub enum Caller {
    /// A machine, by its number in the aggregator.
    Machine(usize),
    /// The questions of a frame, and the stream that it came on.
    Queries(Box<Queries>, StreamId),
    /// A question about exact limits.
    Exact(Box<Asking>),
    /// Whoever takes something back.
    PendingRefund(Box<PendingRefund>),
    /// Nobody.
    Nobody,
}

/// Calls that are under way.
#[derive(Debug, Default)]
pub struct Calls {
    pending: BTreeMap<u64, Pending>,
    last: u64,
}

#[derive(Debug)]
struct Pending {
    aggregator: usize,
    incarnation: u64,
    caller: Caller,
    request: Request,
}

impl Request {
    /// How many commands or statements it is.
    pub fn size(&self) -> u64 {
        let cells = match self {
            Request::Merge(merges) => merges.len(),
            Request::Raise(lower_bounds) => lower_bounds.len(),
            Request::NameHot(cells) => cells.len(),
            Request::Cells(cells) => cells.len(),
            // Rows are written many at once.
            Request::Write(rows) => rows.len().div_ceil(500),
            Request::ChargeLogs(charges, _) | Request::RefundLogs(charges) => charges.len(),
            _ => 1,
        };
        cells as u64
    }

    /// The answer where there is none.
    fn failed(&self, failure: Failure) -> Reply {
        let each = |cells: usize| Reply::Merged(vec![Err(failure); cells]);
        match self {
            Request::Merge(merges) => each(merges.len()),
            Request::Raise(lower_bounds) => each(lower_bounds.len()),
            Request::Cells(cells) => each(cells.len()),
            Request::NameHot(_)
            | Request::Publish(_)
            | Request::Write(_)
            | Request::Release(_)
            | Request::RefundLogs(_)
            | Request::RefundLedger(..) => Reply::Done(Err(failure)),
            Request::ChargeLogs(charges, _) => Reply::Decided(vec![Err(failure); charges.len()]),
            Request::ChargeLedger(_) => Reply::Ruled(Err(failure)),
            Request::Shard(_) => Reply::Named(Err(failure)),
            Request::Origins(_) => Reply::Alive(Err(failure)),
            Request::Incarnations { .. } => Reply::Incarnations(Err(failure)),
            Request::TableIncarnation => Reply::TableIncarnation(Err(failure)),
            Request::Import | Request::Own => Reply::Rows(Err(failure)),
            Request::Lease(_) => Reply::Holder(Err(failure)),
        }
    }
}

impl World<'_> {
    /// An aggregator asks a store, which has so long.
    pub(super) fn call(&mut self, at: usize, store: Store, request: Request, within_ms: u64, caller: Caller) {
        let path = self.path_to(at, store);
        match store {
            Store::Redis(_) => self.counts.redis_commands += request.size(),
            Store::Database => self.counts.database_statements += request.size(),
        }
        self.calls.last += 1;
        let id = self.calls.last;
        let there = self.network.pass(path);
        let arrives = self.now_us + there.delay_us;
        if !there.lost {
            let copy = there.twice.then(|| Box::new(request.clone()));
            self.queue.plan(arrives, Event::StoreTakes(store, at, id, Box::new(request.clone())));
            if let Some(copy) = copy {
                self.queue.plan(arrives, Event::StoreTakes(store, at, id, copy));
            }
        }
        self.queue.plan(self.now_us + within_ms * 1_000, Event::Answered(id, None));
        let incarnation = self.aggregators[at].incarnation;
        self.calls.pending.insert(id, Pending { aggregator: at, incarnation, caller, request });
    }

    /// A call reaches its store.
    pub(super) fn store_takes(&mut self, store: Store, at: usize, id: u64, request: Box<Request>) {
        if self.is_store_frozen(store) {
            self.held_mut(store).push((at, id, request));
            return;
        }
        let slow_us = self.slow_us(store);
        let reply = match self.is_store_there(store) {
            true => self.execute(store, at, *request),
            // Nobody listens: its machine says so at once.
            false => request.failed(Failure::Unavailable),
        };
        let back = self.network.pass(self.path_to(at, store));
        if !back.lost {
            self.queue
                .plan(self.now_us + slow_us + back.delay_us, Event::Answered(id, Some(Box::new(reply))));
        }
    }

    /// An answer comes, or the time for it is over.
    pub(super) fn answered(&mut self, id: u64, reply: Option<Box<Reply>>) {
        let Some(pending) = self.calls.pending.get(&id) else { return };
        let host = &mut self.aggregators[pending.aggregator];
        if host.is_frozen() && host.incarnation == pending.incarnation {
            host.inbox.push_back(Inbox::Answer(id, reply));
            return;
        }
        let Some(pending) = self.calls.pending.remove(&id) else { return };
        let Pending { aggregator, incarnation, caller, request } = pending;
        if self.aggregators[aggregator].incarnation != incarnation {
            if let Caller::PendingRefund(refund) = caller {
                self.doubt_refund(&refund);
            }
            return;
        }
        let reply = reply.map_or_else(|| request.failed(Failure::Timeout), |reply| *reply);
        match caller {
            Caller::Machine(number) => self.machine_hears(aggregator, number, request, reply),
            Caller::Queries(queries, stream) => self.conclude_questions(aggregator, *queries, stream, reply),
            Caller::Exact(asking) => self.exact_answered(aggregator, *asking, reply),
            Caller::PendingRefund(refund) => self.refund_answered(aggregator, *refund, reply),
            Caller::Nobody => {}
        }
    }

    pub(super) fn path_to(&self, at: usize, store: Store) -> Path {
        let host = &self.aggregators[at];
        match store {
            Store::Redis(region) => Path::Redis(region, host.number),
            Store::Database => Path::Database(host.region),
        }
    }

    fn execute(&mut self, store: Store, at: usize, request: Request) -> Reply {
        let region = self.aggregators[at].region;
        if let Some(reply) = self.execute_exactly(store, &request) {
            return reply;
        }
        match store {
            Store::Redis(region) => {
                let unix_ms = self.unix_ms();
                if let Request::Publish(message) = request {
                    self.spread(region, &message);
                    return Reply::Done(Ok(()));
                }
                let reply = self.redis[region].execute(request, unix_ms);
                self.check_redis(region);
                reply
            }
            Store::Database => {
                let unix_ms = self.unix_ms();
                self.database.execute(region, request, unix_ms)
            }
        }
    }

    /// What one aggregator publishes goes to all who listen.
    fn spread(&mut self, region: usize, message: &[u8]) {
        for number in 0..self.plan.topology.aggregators {
            let at = self.aggregator_at(region, number);
            let host = &self.aggregators[at];
            let passage = self.network.pass(Path::Peers(region));
            let is_cut = self.network.is_cut(Path::Redis(region, number));
            self.counts.messages += 1;
            if !host.receives_broadcasts() || passage.lost || is_cut {
                continue;
            }
            let incarnation = host.incarnation;
            let sooner = self.now_us + passage.delay_us;
            let arrives = if passage.overtakes { sooner } else { sooner.max(host.heard_us) };
            self.aggregators[at].heard_us = arrives.max(host.heard_us);
            for _ in 0..1 + usize::from(passage.twice) {
                self.queue.plan(arrives, Event::Received(at, incarnation, message.into()));
            }
        }
    }
}
