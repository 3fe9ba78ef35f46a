//! Start and end of an aggregator's program. It ends at once or with an orderly shutdown.

use super::machines::Machine;
use super::{Peer, Process, SUBSCRIBE_US, Shutdown};
use crate::check::exact::Keeper;
use crate::world::World;
use crate::world::event::{Due, End, Event};
use crate::world::network::StreamId;
use crate::world::request::{Caller, Request, Store};
use crate::world::stores::database;
use std::collections::{BTreeMap, VecDeque};
use weir_core::model::key::HashKey;
use weir_core::region::RegionLimits;
use weir_core::region::log::{Logs, LogsLimits};
use weir_core::replication::exact::ExactState;
use weir_core::replication::exact::ledger::LedgerBreaker;
use weir_core::replication::global::import::Importer;
use weir_core::replication::global::lease::{Keeping, TTL_MS, Taking};
use weir_core::replication::global::recover::Recovery;
use weir_core::replication::global::sync::GlobalSync;
use weir_core::replication::grace_period::GracePeriod;
use weir_core::replication::regional::clock::RegionClock;
use weir_core::replication::regional::hot::HotReader;
use weir_core::replication::regional::joining::Joining;
use weir_core::replication::regional::receipts::Receipts;
use weir_core::replication::regional::replay::Replay;
use weir_core::replication::regional::watch::Watch;
use weir_core::replication::regional::{broadcast, heartbeat};
use weir_core::replication::state::{RegionState, TICK_MS};
use weir_core::replication::{Alone, Event as RegionEvent, Events as RegionEvents};

/// During a shutdown, a stream without a frame for this long has no frames on the way.
const QUIET_US: u64 = 30_000;
/// Longest time for which streams are served during a shutdown.
const DRAIN_US: u64 = 2_000_000;
/// Interval of the checks whether a shutdown is complete.
const SHUTDOWN_CHECK_US: u64 = 10_000;

impl World<'_> {
    /// Starts a program with an empty state.
    pub(in crate::world) fn start_aggregator(&mut self, at: usize) {
        let (has_store, has_database) = (self.has_redis(), self.has_database());
        let schedule = self.plan.schedule.intervals();
        let host = &mut self.aggregators[at];
        host.incarnation += 1;
        host.restarts = false;
        let mut chance = self.chance.root.fork("aggregator", at as u64).fork("incarnation", host.incarnation);
        let limits = RegionLimits { max_keys: self.plan.topology.region_keys, ..RegionLimits::default() };
        let mut state = RegionState::new(limits, HashKey(chance.next(), chance.next()));
        if has_store {
            state = state.with_store(schedule.store_breaker);
        }
        if has_database {
            state = state.with_database(schedule.global_breaker, false);
        }
        let mut id = [0; 16];
        id[..8].copy_from_slice(&chance.next().to_be_bytes());
        host.process = Some(Process {
            state,
            id,
            region_clock: RegionClock::default(),
            machines: Vec::new(),
            receipts: Receipts::default(),
            logs: Logs::new(LogsLimits::default()),
            exact: ExactState::new(has_store),
            ledger: LedgerBreaker::default(),
            pausing: BTreeMap::new(),
            pauses: 0,
            refunds_planned: None,
            notified: RegionEvents::new(),
            peers: BTreeMap::new(),
            late: VecDeque::new(),
            serves: false,
            prepares: true,
            recovers_next: false,
            subscribed: false,
            push_paused: false,
            shutdown: None,
        });
        let mono = host.clock.mono(self.now_us);
        match (has_store, has_database) {
            (true, _) => self.spawn(at, Machine::Joining(Joining::new(schedule, mono))),
            (false, true) => self.spawn(at, Machine::Taking(Taking::new(mono))),
            (false, false) => self.prepare(at, None),
        }
    }

    /// Reads the markers of Redis and the database before the program serves. `has_joined` states whether Redis has answered, if there is one.
    pub(in crate::world) fn prepare(&mut self, at: usize, has_joined: Option<bool>) {
        if let Some(has_joined) = has_joined {
            let schedule = self.plan.schedule.intervals();
            let mono = self.aggregators[at].clock.mono(self.now_us);
            self.spawn(at, Machine::Watch(Watch::before_serving(schedule, has_joined, mono)));
        }
        if self.has_database() {
            let schedule = self.plan.schedule.intervals();
            let random = self.chance.stores.next();
            let mono = self.aggregators[at].clock.mono(self.now_us);
            let has_redis = self.has_redis();
            if let Some(process) = self.aggregators[at].process.as_mut() {
                process.recovers_next = !has_redis;
            }
            self.spawn(at, Machine::Importer(Importer::before_serving(schedule, mono, random)));
            match has_redis {
                true => self.spawn(at, Machine::Recovery(Recovery::new(schedule))),
                false => self.spawn_sync(at),
            }
        }
        if let Some(process) = self.aggregators[at].process.as_mut() {
            process.prepares = false;
        }
        self.serve_when_ready(at);
    }

    /// Reads the region's own counts once the first packet was exchanged.
    pub(in crate::world) fn recover_next(&mut self, at: usize) {
        let mono = self.aggregators[at].clock.mono(self.now_us);
        let Some(process) = self.aggregators[at].process.as_mut() else { return };
        if std::mem::take(&mut process.recovers_next) {
            let schedule = self.plan.schedule.intervals();
            self.spawn(at, Machine::Recovery(Recovery::before_serving(schedule, mono)));
        }
    }

    fn spawn_sync(&mut self, at: usize) {
        let schedule = self.plan.schedule.intervals();
        let one = self.chance.stores.next();
        let host = &self.aggregators[at];
        let Some(id) = host.process.as_ref().map(|process| process.id) else { return };
        let (name, mono) = (database::name(host.region), host.clock.mono(self.now_us));
        let sync = GlobalSync::new(schedule, id, &name, mono, one);
        self.spawn(at, Machine::Sync(Box::new(sync)));
    }

    /// Begins to serve once all machines that read before have read all, or have waited long enough.
    pub(in crate::world) fn serve_when_ready(&mut self, at: usize) {
        let (has_store, has_database) = (self.has_redis(), self.has_database());
        let now_us = self.now_us;
        let host = &mut self.aggregators[at];
        let (incarnation, now) = (host.incarnation, host.now(now_us));
        let Some(process) = host.process.as_mut() else { return };
        let is_ready = process.machines.iter().flatten().all(|running| running.may_serve(now.mono));
        if process.serves || process.prepares || process.recovers_next || !is_ready {
            return;
        }
        process.serves = true;
        let mut access = Alone { state: &mut process.state, now };
        process.machines.iter_mut().flatten().for_each(|running| running.serve(&mut access));
        let schedule = self.plan.schedule.intervals();
        let one = self.chance.stores.next();
        let id = process.id;
        let tick = now_us + one % (TICK_MS * 1_000);
        self.queue.plan(tick, Event::Aggregator(at, incarnation, Due::Tick));
        let mut machines = Vec::new();
        if has_database && has_store {
            self.spawn_sync(at);
        }
        if has_store {
            machines.push(Machine::Replay(Replay::new(schedule)));
            machines.push(Machine::Heartbeat(heartbeat::Heartbeat::new(id, schedule)));
            machines.push(Machine::Broadcaster(broadcast::Broadcaster::new(id, schedule)));
            machines.push(Machine::HotReader(HotReader::new(schedule)));
            self.queue.plan(now_us + SUBSCRIBE_US, Event::Aggregator(at, incarnation, Due::Subscribed));
        } else {
            machines.push(Machine::GracePeriod(GracePeriod::anew(schedule, now.unix)));
            if has_database {
                machines.push(Machine::Keeping(Keeping::new(now.mono.after(TTL_MS))));
            }
        }
        for machine in machines {
            self.spawn(at, machine);
        }
    }

    /// Ends a program: with an orderly shutdown, or at once.
    pub(in crate::world) fn end_aggregator(&mut self, at: usize, in_order: bool) {
        let now_us = self.now_us;
        let host = &mut self.aggregators[at];
        let incarnation = host.incarnation;
        let Some(process) = host.process.as_mut() else { return };
        if in_order && process.serves {
            process.shutdown.get_or_insert(Shutdown { since_us: now_us, last: None });
            self.queue.plan(now_us, Event::Aggregator(at, incarnation, Due::Shutdown));
        } else {
            self.check.region_lost(host.region, now_us, !in_order);
            self.end_aggregator_now(at);
        }
    }

    pub(in crate::world) fn end_aggregator_now(&mut self, at: usize) {
        let host = &mut self.aggregators[at];
        host.inbox.clear();
        let Some(process) = host.process.take() else { return };
        process.exact.waiting().for_each(|refund| self.refund_lost(refund));
        process.pausing.values().for_each(|(work, _)| self.exact_ended(work));
        self.check.exact.lost(Keeper::Aggregator(at), self.now_us);
        let host = &mut self.aggregators[at];
        // Events that were planned for this incarnation are void for the next one.
        host.incarnation += 1;
        for id in self.streams.ids() {
            if self.streams.get(id).is_some_and(|stream| stream.aggregator == at)
                && self.is_open(id, End::Aggregator)
            {
                self.closed(id, End::Aggregator);
            }
        }
    }

    /// Continues a shutdown: ends streams without frames on the way, waits until the store has their last counts,
    /// then ends the program.
    pub(super) fn continue_shutdown(&mut self, at: usize) {
        let now_us = self.now_us;
        let last_replay_us = self.plan.schedule.intervals().last_replay_ms * 1_000;
        let host = &mut self.aggregators[at];
        let (incarnation, region) = (host.incarnation, host.region);
        let Some(process) = host.process.as_mut() else { return };
        let Some(mut shutdown) = process.shutdown else { return };
        let late = now_us - shutdown.since_us > DRAIN_US;
        let over = |peer: &Peer| late || now_us - peer.last_frame_us.max(shutdown.since_us) > QUIET_US;
        let quiet: Vec<StreamId> =
            process.peers.iter().filter(|(_, peer)| over(peer)).map(|(id, _)| *id).collect();
        let all = quiet.len() == process.peers.len();
        if all && shutdown.last.is_none() {
            // The round after the next: it names in the hot index what became hot in the round before.
            shutdown.last = Some((process.state.next_round() + 1, now_us + last_replay_us));
            process.shutdown = Some(shutdown);
        }
        process.state.notify(RegionEvent::Replay);
        let (replayed, id) = (process.state.replayed(), process.id);
        quiet.into_iter().for_each(|id| self.leave(at, id));
        let stored = |(round, until): (u64, u64)| replayed >= round || now_us >= until;
        if !shutdown.last.is_some_and(|last| !self.has_redis() || stored(last)) {
            self.queue.plan(now_us + SHUTDOWN_CHECK_US, Event::Aggregator(at, incarnation, Due::Shutdown));
            return;
        }
        if self.has_database() && !self.has_redis() {
            self.call(at, Store::Database, Request::Release(id), 700, Caller::None);
        }
        self.check.region_lost(region, now_us, false);
        let restarts = self.aggregators[at].restarts;
        self.end_aggregator_now(at);
        if restarts {
            self.start_aggregator(at);
        }
    }
}
