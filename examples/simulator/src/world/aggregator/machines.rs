//! The core's background tasks of an aggregator, as machines driven by events: their steps, calls and pauses, and the
//! events that wake them.

use crate::world::World;
use crate::world::event::{Due, Event};
use crate::world::request::{Caller, Listed, Reply, Request, Store};
use prost::Message;
use weir_core::model::schedule::Schedule;
use weir_core::model::time::MonoMs;
use weir_core::model::wire::Changes;
use weir_core::replication::global::import::Importer;
use weir_core::replication::global::lease::{Keeping, Taking, Then, WITHIN_MS};
use weir_core::replication::global::recover::Recovery;
use weir_core::replication::global::sync::GlobalSync;
use weir_core::replication::grace_period::GracePeriod;
use weir_core::replication::members::Member;
use weir_core::replication::regional::broadcast::Broadcaster;
use weir_core::replication::regional::clock::TimeProposal;
use weir_core::replication::regional::heartbeat::{self, Alive, Heartbeat};
use weir_core::replication::regional::hot::{self, HotReader};
use weir_core::replication::regional::joining::Joining;
use weir_core::replication::regional::marker::Look;
use weir_core::replication::regional::receipts::Receipts;
use weir_core::replication::regional::replay::{self, Replay};
use weir_core::replication::regional::watch::Watch;
use weir_core::replication::{Alone, Event as RegionEvent, Events as RegionEvents, Next};

/// Time until a program whose region lease another one took is started again.
const RESTART_US: u64 = 1_000_000;

/// A background task.
#[derive(Debug)]
pub enum Machine {
    /// Sends changes to Redis.
    Replay(Replay),
    /// Reads the marker of Redis.
    Watch(Watch),
    /// Sends heartbeats with the aggregator's nodes to Redis and the peers.
    Heartbeat(Heartbeat),
    /// Broadcasts messages to the peers.
    Broadcaster(Broadcaster),
    /// Reads the hot index.
    HotReader(HotReader),
    /// Raises lower bounds in the recovery grace period.
    GracePeriod(GracePeriod),
    /// Exchanges packets with the database.
    Sync(Box<GlobalSync>),
    /// Imports all counts of other regions.
    Importer(Importer),
    /// Restores the region's own counts from the database.
    Recovery(Recovery),
    /// Takes the region's time before the program serves.
    Joining(Joining),
    /// Takes the region lease before the program serves.
    Taking(Taking),
    /// Renews the region lease.
    Keeping(Keeping),
}

/// A machine, and what it waits for.
#[derive(Debug)]
pub struct Running {
    machine: Machine,
    /// The events that wake it.
    awaits: Option<RegionEvents>,
    /// The number of its last pause.
    pause: u64,
    /// When its last call began.
    called: MonoMs,
}

/// What the calls of a process state of itself.
struct Me<'a> {
    id: [u8; 16],
    proposal: TimeProposal,
    receipts: &'a Receipts,
}

/// The next step of a machine.
enum Step {
    Call(Store, Request, u64),
    Sleep(u64),
    Wait(RegionEvents, Option<u64>),
    Yield,
    Over,
}

impl World<'_> {
    /// Starts a machine.
    pub(in crate::world) fn spawn(&mut self, at: usize, machine: Machine) {
        let Some(process) = self.aggregators[at].process.as_mut() else { return };
        let number = process.machines.len();
        process.machines.push(Some(Running { machine, awaits: None, pause: 0, called: MonoMs(0) }));
        self.drive(at, number);
    }

    /// A pause of a machine is over, or its wait has timed out.
    pub(in crate::world) fn pause_over(&mut self, at: usize, number: usize, pause: u64) {
        let Some(process) = self.aggregators[at].process.as_mut() else { return };
        let Some(Some(running)) = process.machines.get_mut(number) else { return };
        if running.pause == pause {
            running.awaits = None;
            self.drive(at, number);
        }
    }

    /// Runs a machine until it waits for something.
    fn drive(&mut self, at: usize, number: usize) {
        loop {
            let now_us = self.now_us;
            let random = self.chance.stores.next();
            let host = &mut self.aggregators[at];
            let (incarnation, region) = (host.incarnation, host.region);
            let (machine, now) = (host.clock.now(now_us), host.now(now_us));
            let Some(process) = host.process.as_mut() else { return };
            let Some(Some(running)) = process.machines.get_mut(number) else { return };
            let mut access = Alone { state: &mut process.state, now };
            let proposal = process.region_clock.propose(machine);
            let me = Me { id: process.id, proposal, receipts: &process.receipts };
            let step = step(&mut running.machine, &mut access, region, random, &me);
            running.pause += 1;
            let pause = running.pause;
            match step {
                Step::Call(store, request, within_ms) => {
                    running.called = now.mono;
                    self.call(at, store, request, within_ms, Caller::Machine(number));
                    break;
                }
                Step::Sleep(ms) => {
                    self.queue.plan(
                        now_us + ms * 1_000,
                        Event::Aggregator(at, incarnation, Due::Pause(number, pause)),
                    );
                    break;
                }
                Step::Wait(events, at_most_ms) => {
                    if let Some(event) = process.notified.take(events) {
                        notified(&mut running.machine, event, &mut Alone { state: &mut process.state, now });
                        continue;
                    }
                    running.awaits = Some(events);
                    if let Some(ms) = at_most_ms {
                        let due = Due::Pause(number, pause);
                        self.queue.plan(now_us + ms * 1_000, Event::Aggregator(at, incarnation, due));
                    }
                    break;
                }
                Step::Yield => {
                    self.queue.plan(now_us, Event::Aggregator(at, incarnation, Due::Pause(number, pause)));
                    break;
                }
                Step::Over => {
                    process.machines[number] = None;
                    break;
                }
            }
        }
        self.serve_when_ready(at);
        self.notify(at);
    }

    /// Passes a store's reply to the machine that called.
    pub(in crate::world) fn machine_replied(
        &mut self,
        at: usize,
        number: usize,
        request: Request,
        reply: Reply,
    ) {
        let Some(process) = self.aggregators[at].process.as_ref() else { return };
        let Some(Some(running)) = process.machines.get(number) else { return };
        match running.machine {
            Machine::Joining(_) | Machine::Taking(_) | Machine::Keeping(_) => {
                self.start_machine_replied(at, number, reply);
            }
            _ => self.state_machine_replied(at, number, request, reply),
        }
    }

    /// Passes a reply to a machine of the region's state.
    fn state_machine_replied(&mut self, at: usize, number: usize, request: Request, reply: Reply) {
        let now_us = self.now_us;
        let host = &mut self.aggregators[at];
        let now = host.now(now_us);
        let Some(process) = host.process.as_mut() else { return };
        let Some(Some(running)) = process.machines.get_mut(number) else { return };
        let mut access = Alone { state: &mut process.state, now };
        let mut grace = None;
        match (&mut running.machine, request, reply) {
            (Machine::Replay(replay), Request::Merge(merges), Reply::Merged(results)) => {
                replay.merged(&mut access, merges, &results);
            }
            (Machine::Replay(replay), Request::NameHot(hot), Reply::Done(result)) => {
                replay.named(&mut access, &hot, result);
            }
            (Machine::Watch(watch), _, Reply::Incarnations(incarnations)) => {
                let seen = incarnations.iter().flat_map(|incarnations| &incarnations.seen);
                seen.for_each(|read| process.receipts.read(read.place, read.id));
                grace = watch.looked(&mut access, incarnations.as_ref().map_err(|failure| *failure)).grace;
            }
            (Machine::Heartbeat(heartbeat), _, Reply::Alive(alive)) => {
                if let Ok(listed) = &alive {
                    process.region_clock.follow(listed.region_us, running.called, now.mono);
                }
                let alive =
                    alive.as_ref().map(|Listed { nodes, aggregators, .. }| Alive { nodes, aggregators });
                heartbeat.received(&mut access, alive.map_err(|failure| *failure));
            }
            (Machine::Heartbeat(heartbeat), _, Reply::Done(result)) => heartbeat.sent(&mut access, result),
            (Machine::Broadcaster(broadcaster), _, Reply::Done(result)) => {
                broadcaster.sent(&mut access, result)
            }
            (Machine::HotReader(reader), _, Reply::Named(named)) => {
                reader.indexed(&mut access, named);
            }
            (Machine::HotReader(reader), Request::Cells(cells), Reply::Merged(results)) => {
                reader.read(&mut access, &cells, &results);
            }
            (Machine::GracePeriod(grace), Request::Raise(lower_bounds), Reply::Merged(results)) => {
                grace.raised(&mut access, &lower_bounds, &results);
            }
            (Machine::Sync(sync), _, Reply::Fed(result)) => {
                sync.exchanged(&mut access, result);
                self.recover_next(at);
            }
            (Machine::Importer(importer), _, Reply::Page(page)) => importer.imported(&mut access, page),
            (Machine::Recovery(recovery), _, Reply::Page(page)) => {
                recovery.recovered(&mut access, page.as_ref().map_err(|failure| *failure));
            }
            _ => {}
        }
        if let Some(grace) = grace {
            self.spawn(at, Machine::GracePeriod(grace));
        }
        self.drive(at, number);
    }

    /// Passes a reply to a machine that the start waits for, or that keeps the region lease.
    fn start_machine_replied(&mut self, at: usize, number: usize, reply: Reply) {
        let now_us = self.now_us;
        let host = &mut self.aggregators[at];
        let (incarnation, now) = (host.incarnation, host.now(now_us));
        let Some(process) = host.process.as_mut() else { return };
        let Some(Some(running)) = process.machines.get_mut(number) else { return };
        match (&mut running.machine, reply) {
            (Machine::Joining(joining), Reply::Alive(alive)) => {
                if let Ok(listed) = &alive {
                    process.region_clock.follow(listed.region_us, running.called, now.mono);
                }
                joining.answered(alive.map(|_| ()), now.mono);
                if joining.is_over() {
                    let has_joined = joining.has_joined();
                    process.machines[number] = None;
                    self.prepare(at, Some(has_joined));
                    return;
                }
            }
            (Machine::Taking(taking), Reply::Holder(holder)) => {
                match taking.answered(holder, now.mono) {
                    Then::Serve { .. } => {
                        process.machines[number] = None;
                        self.prepare(at, None);
                    }
                    Then::Again(ms) => {
                        running.pause += 1;
                        let due = Due::Pause(number, running.pause);
                        self.queue.plan(now_us + ms * 1_000, Event::Aggregator(at, incarnation, due));
                    }
                    Then::TakenOver => self.taken_over(at),
                }
                return;
            }
            (Machine::Keeping(keeping), Reply::Holder(holder)) => {
                let is_lost = keeping.answered(holder, running.called);
                running.pause += 1;
                let due = Due::Pause(number, running.pause);
                match is_lost {
                    true => self.taken_over(at),
                    false => {
                        let next = now_us + Keeping::pause_ms() * 1_000;
                        self.queue.plan(next, Event::Aggregator(at, incarnation, due));
                    }
                }
                return;
            }
            _ => {}
        }
        self.drive(at, number);
    }

    /// Wakes the machines that wait for events of the state, and sends the acknowledgements that finished rounds of
    /// replays permit.
    pub(in crate::world) fn notify(&mut self, at: usize) {
        loop {
            let now_us = self.now_us;
            let host = &mut self.aggregators[at];
            let now = host.now(now_us);
            let Some(process) = host.process.as_mut() else { return };
            for event in process.state.take_events().iter() {
                process.notified.notify(event);
            }
            let woken = process.machines.iter_mut().enumerate().find_map(|(number, running)| {
                let running = running.as_mut()?;
                let event = process.notified.take(running.awaits?)?;
                running.awaits = None;
                notified(&mut running.machine, event, &mut Alone { state: &mut process.state, now });
                Some(number)
            });
            match woken {
                Some(number) => self.drive(at, number),
                None => break,
            }
        }
        self.acknowledge(at);
        self.watch_pushes(at);
    }

    /// Another aggregator serves the region: this program ends, and is started again later.
    fn taken_over(&mut self, at: usize) {
        self.end_aggregator_now(at);
        let incarnation = self.aggregators[at].incarnation;
        self.queue.plan(self.now_us + RESTART_US, Event::Aggregator(at, incarnation, Due::Start));
    }
}

impl Running {
    /// Whether a program that starts may serve as far as this machine is concerned.
    pub(super) fn may_serve(&self, now: MonoMs) -> bool {
        match &self.machine {
            Machine::Importer(importer) => importer.may_serve(now),
            Machine::Recovery(recovery) => recovery.may_serve(now),
            Machine::Watch(watch) => watch.may_serve(now),
            Machine::Sync(_) | Machine::GracePeriod(_) => true,
            _ => false,
        }
    }

    /// The program serves.
    pub(super) fn serve(&mut self, access: &mut Alone<'_>) {
        match &mut self.machine {
            Machine::Importer(importer) => importer.serve(),
            Machine::Recovery(recovery) => recovery.serve(access),
            _ => {}
        }
    }
}

fn notified(machine: &mut Machine, event: RegionEvent, access: &mut Alone<'_>) {
    match machine {
        Machine::Heartbeat(heartbeat) => heartbeat.notified(event),
        Machine::HotReader(reader) => reader.notified(access),
        _ => {}
    }
}

fn step(
    machine: &mut Machine,
    access: &mut Alone<'_>,
    region: usize,
    random: u64,
    &Me { id, proposal, receipts }: &Me<'_>,
) -> Step {
    let schedule = Schedule::default();
    let (redis, database) = (Store::Redis(region), Store::Database);
    let replay_ms = schedule.replay_timeout_ms;
    let publish = |changes: Changes| Step::Call(redis, Request::Publish(changes.encode_to_vec()), replay_ms);
    match machine {
        Machine::Replay(replay) => of(replay.next(access), |call| match call {
            replay::Call::Merge(merges) => Step::Call(redis, Request::Merge(merges), replay_ms),
            replay::Call::NameHot(hot) => Step::Call(redis, Request::NameHot(hot), replay_ms),
        }),
        Machine::Watch(watch) => of(watch.next(access), |()| {
            let fresh = u128::from(random) << 64 | u128::from(random.rotate_left(17));
            let last = watch.last_read().clone();
            let look = Look { reader: id, fresh, last, receipts: receipts.clone() };
            Step::Call(redis, Request::Look(look), schedule.marker_timeout_ms)
        }),
        Machine::Heartbeat(heartbeat) => of(heartbeat.next(access), |call| match call {
            heartbeat::Call::Nodes(mine, me) => {
                Step::Call(redis, Request::Nodes(me, mine, proposal), replay_ms)
            }
            heartbeat::Call::Broadcast(changes) => publish(changes),
        }),
        Machine::Broadcaster(broadcaster) => of(broadcaster.next(access), publish),
        Machine::HotReader(reader) => of(reader.next(access), |call| match call {
            hot::Call::Shard(shard) => Step::Call(redis, Request::Shard(shard), replay_ms),
            hot::Call::Cells(cells) => Step::Call(redis, Request::Cells(cells), replay_ms),
        }),
        Machine::GracePeriod(grace) => {
            of(grace.next(access), |lower_bounds| Step::Call(redis, Request::Raise(lower_bounds), replay_ms))
        }
        Machine::Sync(sync) => of(sync.next(access, random), |call| {
            Step::Call(database, Request::Packet(call.packet), call.within_ms)
        }),
        Machine::Importer(importer) => of(importer.next(access, random), |page| {
            Step::Call(database, Request::Import(page), page.within_ms)
        }),
        Machine::Recovery(recovery) => {
            of(recovery.next(access), |page| Step::Call(database, Request::Own(page), page.within_ms))
        }
        Machine::Joining(joining) => of(joining.next(access.now.mono), |join| {
            let me = Member { id, owes: false };
            Step::Call(redis, Request::Nodes(me, Vec::new(), proposal), join.within_ms)
        }),
        Machine::Taking(taking) => {
            let abandoned = taking.abandoned(access.now.mono);
            Step::Call(database, Request::Lease(id, abandoned), WITHIN_MS)
        }
        Machine::Keeping(_) => Step::Call(database, Request::Lease(id, None), WITHIN_MS),
    }
}

fn of<C>(next: Next<C>, call: impl FnOnce(C) -> Step) -> Step {
    match next {
        Next::Call(what) => call(what),
        Next::Sleep(ms) => Step::Sleep(ms),
        Next::Wait { events, at_most_ms } => Step::Wait(events, at_most_ms),
        Next::Yield => Step::Yield,
        Next::Over => Step::Over,
    }
}
