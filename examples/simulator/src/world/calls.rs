//! Calls of aggregators to stores: on their way, at the store, completed, or timed out.

use super::World;
use super::event::{Event, Inbox};
use super::network::Path;
use super::request::{Caller, Guarded, Reply, Request, Store};
use super::stores::PipelineStep;
use crate::check::exact::Keeper;
use std::collections::BTreeMap;
use weir_core::replication::Failure;
use weir_core::replication::regional::receipts::{Ended, Receipt};

/// Longest time of a statement of a database that is not slow, in microseconds.
const STATEMENT_US: u64 = 2_000;
/// Longest time between two steps of a pipeline at a Redis that is not slow, in microseconds.
const STEP_US: u64 = 100;

/// Calls without a reply so far.
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
    receipt: Option<Receipt>,
}

impl World<'_> {
    /// An aggregator calls a store; the call times out after `within_ms`.
    pub(super) fn call(&mut self, at: usize, store: Store, request: Request, within_ms: u64, caller: Caller) {
        let path = self.path_to(at, store);
        let (sent, receipt) = self.with_receipt(at, &request);
        match store {
            Store::Redis(_) => self.counts.redis_commands += sent.size(),
            Store::Database => {
                self.counts.database_statements += request.size();
                self.counts.database_rows += request.rows();
            }
        }
        self.calls.last += 1;
        let id = self.calls.last;
        let there = self.network.pass(path);
        let arrives = self.now_us + there.delay_us;
        if !there.lost {
            let copy = there.twice.then(|| Box::new(sent.clone()));
            self.queue.plan(arrives, Event::StoreTakes(store, at, id, Box::new(sent)));
            if let Some(copy) = copy {
                self.queue.plan(arrives, Event::StoreTakes(store, at, id, copy));
            }
        }
        self.queue.plan(self.now_us + within_ms * 1_000, Event::Replied(id, None));
        let incarnation = self.aggregators[at].incarnation;
        self.calls.pending.insert(id, Pending { aggregator: at, incarnation, caller, request, receipt });
    }

    /// What is sent for a request: if it writes, with its receipt.
    fn with_receipt(&mut self, at: usize, request: &Request) -> (Request, Option<Receipt>) {
        let process = self.aggregators[at].process.as_mut().filter(|_| request.is_guarded());
        let begun = process.and_then(|process| Some((process.id, process.receipts.begin(0)?)));
        match begun {
            Some((reader, receipt)) => {
                let guarded = Guarded { request: Box::new(request.clone()), reader, receipt };
                (Request::Guarded(guarded), Some(receipt))
            }
            None => (request.clone(), None),
        }
    }

    /// A call reaches its store.
    pub(super) fn store_takes(&mut self, store: Store, at: usize, id: u64, request: Box<Request>) {
        if self.is_store_frozen(store) {
            self.held_mut(store).push((at, id, request));
            return;
        }
        let is_running = self.is_store_running(store);
        if is_running && let Some(next) = self.execute_step(store, at, id, &request) {
            // A slow store is slow at each of the steps.
            let took_us = match store {
                Store::Redis(_) => self.chance.steps.below(STEP_US + 1),
                Store::Database => self.chance.statements.below(STATEMENT_US + 1),
            };
            let next_us = self.now_us + took_us + self.slow_us(store) / 2;
            return self.queue.plan(next_us, Event::StoreTakes(store, at, id, Box::new(next)));
        }
        let is_last_step = matches!(*request, Request::Feed(..) | Request::Receipt(..));
        let slow_us = if is_last_step { 0 } else { self.slow_us(store) };
        let reply = match is_running {
            true => self.execute(store, at, *request),
            // A stopped store refuses the connection at once.
            false => {
                self.counts.unreached += u64::from(matches!(*request, Request::Exact(_)));
                request.failed(Failure::Unreachable)
            }
        };
        let back = self.network.pass(self.path_to(at, store));
        if !back.lost {
            self.queue.plan(self.now_us + slow_us + back.delay_us, Event::Replied(id, Some(Box::new(reply))));
        }
    }

    /// A reply arrives, or the call times out.
    pub(super) fn replied(&mut self, id: u64, reply: Option<Box<Reply>>) {
        let Some(pending) = self.calls.pending.get(&id) else { return };
        let host = &mut self.aggregators[pending.aggregator];
        if host.is_frozen() && host.incarnation == pending.incarnation {
            host.inbox.push_back(Inbox::Reply(id, reply));
            return;
        }
        let Some(pending) = self.calls.pending.remove(&id) else { return };
        let Pending { aggregator, incarnation, caller, request, receipt } = pending;
        if self.aggregators[aggregator].incarnation != incarnation {
            if let Caller::Exact(work) = caller {
                self.exact_ended(&work);
            }
            return;
        }
        let (reply, ended) = match reply.map(|reply| *reply) {
            Some(Reply::Guarded(reply, true)) => (*reply, Ended::Recorded),
            Some(Reply::Guarded(reply, false)) => (*reply, Ended::Unrecorded),
            Some(reply) => (reply, Ended::Unanswered),
            None => (request.failed(Failure::Timeout), Ended::Unanswered),
        };
        if let Some((receipt, process)) = receipt.zip(self.aggregators[aggregator].process.as_mut()) {
            process.receipts.end(&receipt, ended);
        }
        match caller {
            Caller::Machine(number) => self.machine_replied(aggregator, number, request, reply),
            Caller::Queries(queries, stream) => self.conclude_queries(aggregator, *queries, stream, reply),
            Caller::Exact(work) => self.exact_replied(aggregator, work, &request, reply),
            Caller::None => {}
        }
    }

    pub(super) fn path_to(&self, at: usize, store: Store) -> Path {
        let host = &self.aggregators[at];
        match store {
            Store::Redis(region) => Path::Redis { region, aggregator: host.number },
            Store::Database => Path::Database(host.region),
        }
    }

    /// Executes a step of a packet or of a pipeline that another one follows, and returns that one.
    fn execute_step(&mut self, store: Store, at: usize, id: u64, request: &Request) -> Option<Request> {
        let (region, unix_ms) = (self.aggregators[at].region, self.unix_ms());
        match request {
            Request::Guarded(guarded) => {
                self.note_step(region, id, PipelineStep::First);
                self.redis.get_mut(region)?.record(guarded, guarded.receipt.first);
                Some(Request::Writes(guarded.clone()))
            }
            Request::Writes(guarded) => {
                self.note_step(region, id, PipelineStep::Writes);
                let reply = self.execute(store, at, (*guarded.request).clone());
                Some(Request::Receipt(guarded.clone(), Box::new(reply)))
            }
            Request::Receipt(..) => {
                self.note_step(region, id, PipelineStep::Last);
                None
            }
            Request::Packet(packet) if packet.version.is_some() => Some(Request::Write(packet.clone())),
            Request::Packet(packet) => Some(Request::Feed(packet.clone())),
            Request::Write(packet) => {
                self.database.write(region, packet, unix_ms);
                Some(Request::Feed(packet.clone()))
            }
            _ => None,
        }
    }

    fn execute(&mut self, store: Store, at: usize, request: Request) -> Reply {
        let region = self.aggregators[at].region;
        if let Request::Exact(call) = &request {
            let keeper = match store {
                Store::Redis(region) => Keeper::Redis(region),
                Store::Database => Keeper::Database,
            };
            return Reply::Exact(self.execute_exactly(keeper, call), None);
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

    /// Delivers what an aggregator publishes to all subscribed aggregators of the region.
    fn spread(&mut self, region: usize, message: &[u8]) {
        for number in 0..self.plan.topology.aggregators {
            let at = self.aggregator_at(region, number);
            let host = &self.aggregators[at];
            let passage = self.network.pass(Path::Peers(region));
            let is_cut = self.network.is_cut(Path::Redis { region, aggregator: number });
            self.counts.messages += 1;
            if !host.receives_broadcasts() || passage.lost || is_cut {
                continue;
            }
            let incarnation = host.incarnation;
            let sooner = self.now_us + passage.delay_us;
            let arrives = if passage.overtakes { sooner } else { sooner.max(host.last_broadcast_us) };
            self.aggregators[at].last_broadcast_us = arrives.max(host.last_broadcast_us);
            for _ in 0..1 + usize::from(passage.twice) {
                self.queue.plan(arrives, Event::Received(at, incarnation, message.into()));
            }
        }
    }
}
