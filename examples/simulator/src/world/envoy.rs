//! Envoys: processes with a table that their workers share. Each worker has the core's limiter and drives it as the
//! filter does, with ticks, a stream, and requests that wait.

use super::World;
use super::clock::Clock;
use super::event::{Carried, End, Event, Report, WorkerAt};
use super::network::StreamId;
use crate::check::Decision as DecidedBy;
use crate::measure::observe::{Decided, Verdict};
use crate::plan::HOLD_MS;
use crate::plan::keys;
use crate::plan::traffic::Arrival;
use crate::random::Random;
use crate::table::Table;
use std::collections::{BTreeMap, VecDeque};
use weir_core::limiter::table::{Geometry, Meta};
use weir_core::limiter::{Cause, Decision, Limiter, Outcome, Output, Setup, TICK_MS};
use weir_core::model::key::{HashKey, NodeId};
use weir_core::model::wire::RegionFrame;
use weir_core::usage::Ratios;

/// Sets of a worker's cache, of four keys each.
const LOCAL_SETS: usize = 1_024;
/// Most delay of a timer, like on a busy machine, in microseconds.
const TIMER_LATE_US: u64 = 1_500;

/// Within this time after a denial, a worker has sent the refunds of the request's exact charges.
const REFUNDED_US: u64 = 12_000_000;

/// A machine with an Envoy.
#[derive(Debug)]
pub struct Envoy {
    /// The machine's clocks.
    pub clock: Clock,
    /// The running process; `None` if there is none.
    pub process: Option<Process>,
    /// Number of faults that freeze it now.
    pub frozen: u32,
    /// Number of processes so far.
    pub incarnations: u64,
}

/// A process, or one lifetime of a listener's table.
#[derive(Debug)]
pub struct Process {
    /// The table's node.
    pub node: NodeId,
    /// The table's geometry and hash key.
    pub meta: Meta,
    /// The table, shared by all workers.
    pub table: Table,
    /// The workers; `None` for one that has ended.
    pub workers: Vec<Option<Worker>>,
    /// When the last request arrived.
    used_us: u64,
}

/// A worker thread.
#[derive(Debug)]
pub struct Worker {
    /// The core's limiter.
    pub limiter: Limiter,
    /// Number of faults that freeze this worker alone.
    pub frozen: u32,
    /// The worker has shut down in order: the costs of its open requests are not settled any more.
    ended: bool,
    /// It has left its region, as no request came, and does not tick until the next one.
    has_left: bool,
    stream: Option<StreamId>,
    tick_ms: u64,
    /// The number of the timer that is valid.
    timer: u64,
    waiting: BTreeMap<u64, Waiting>,
    /// Input that arrived while it was frozen.
    inbox: VecDeque<Inbox>,
    /// Requests under exact rules that were denied, with the time.
    denied: VecDeque<(u64, Arrival)>,
    /// What it has learned from answers.
    pub(super) ratios: Ratios,
}

#[derive(Debug)]
struct Waiting {
    arrival: Arrival,
    since_us: u64,
}

#[derive(Debug)]
enum Inbox {
    Tick,
    Arrival(Arrival),
    Frame(StreamId, Option<Box<RegionFrame>>),
    Response(u64, Arrival, u64),
}

impl Process {
    /// Whether it has left its region, so that it receives nothing.
    pub fn has_left(&self) -> bool {
        self.workers.iter().flatten().any(|worker| worker.has_left)
    }
}

impl Worker {
    /// The number of requests that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

impl World<'_> {
    /// Starts a new process of an Envoy.
    pub(super) fn start_envoy(&mut self, number: usize) {
        let topology = self.plan.topology;
        let incarnation = {
            let envoy = &mut self.envoys[number];
            envoy.incarnations += 1;
            envoy.incarnations
        };
        let mut chance = self.chance.root.fork("envoy", number as u64).fork("incarnation", incarnation);
        let geometry = Geometry {
            buckets: topology.buckets.max(1),
            keys_per_bucket: u8::try_from(topology.keys_per_bucket).unwrap_or(u8::MAX).clamp(1, 32),
        };
        let mut table = Table::new(geometry);
        let secret = HashKey(chance.next(), chance.next());
        let meta = Meta::establish(&mut table, Meta { node: node(&mut chance), secret, geometry });
        // The creation of the table needs no check.
        table.take_written();
        let used_us = self.now_us;
        let process = Process { node: meta.node, meta, table, workers: Vec::new(), used_us };
        self.check.begins(meta.node, number);
        self.envoys[number].process = Some(process);
        for worker in 0..=topology.workers {
            self.start_worker(WorkerAt { envoy: number, worker });
        }
    }

    /// Starts a worker over the existing table.
    pub(super) fn start_worker(&mut self, at: WorkerAt) {
        let now = self.envoys[at.envoy].clock.now(self.now_us);
        self.incarnations += 1;
        let incarnation = self.incarnations;
        let mut chance = self.chance.root.fork("worker", incarnation);
        let Some(process) = self.envoys[at.envoy].process.as_mut() else { return };
        let worker = chance.next();
        let setup = Setup { meta: process.meta, worker, local_sets: LOCAL_SETS };
        let begun = Worker {
            limiter: Limiter::new(setup, now),
            frozen: 0,
            ended: false,
            has_left: false,
            stream: None,
            tick_ms: TICK_MS,
            timer: 0,
            waiting: BTreeMap::new(),
            inbox: VecDeque::new(),
            denied: VecDeque::new(),
            ratios: Ratios::default(),
        };
        match process.workers.get_mut(at.worker) {
            Some(place) => *place = Some(begun),
            None => process.workers.push(Some(begun)),
        }
        // Workers do not start at the same moment.
        let phase_us = chance.below(TICK_MS * 1_000);
        self.set_timer(at, phase_us);
    }

    /// Ends a process, with an orderly shutdown or at once.
    pub(super) fn end_envoy(&mut self, number: usize, in_order: bool) {
        let workers = self.envoys[number].process.as_ref().map_or(0, |process| process.workers.len());
        for worker in 0..workers {
            self.end_worker(WorkerAt { envoy: number, worker }, in_order);
        }
        self.note_final_counts(number);
        if let Some(process) = self.envoys[number].process.take() {
            self.check.ends(process.node);
        }
    }

    /// Ends a worker, with an orderly shutdown or at once.
    pub(super) fn end_worker(&mut self, at: WorkerAt, in_order: bool) {
        if in_order {
            let now = self.envoys[at.envoy].clock.mono(self.now_us);
            // No response will settle the open requests, so their reserves count as spent.
            if let Some(process) = self.envoys[at.envoy].process.as_ref() {
                // The shutdown spends the reserves of open requests.
                if process.workers.iter().flatten().any(|worker| worker.limiter.has_deferred()) {
                    self.check.may_reap(process.node, process.meta.geometry, &process.table, self.now_us);
                }
            }
            let Some((table, worker)) = self.worker(at) else { return };
            worker.limiter.shutdown(table, now);
            worker.ended = true;
            self.perform_outputs(at);
        }
        let Some(process) = self.envoys[at.envoy].process.as_mut() else { return };
        let Some(ended) = process.workers.get_mut(at.worker).and_then(Option::take) else { return };
        self.check.wrote(process.node, &mut process.table, self.now_us);
        if !in_order {
            self.check.may_reap(process.node, process.meta.geometry, &process.table, self.now_us);
        }
        // No worker refunds the exact charges of these requests, if they were charged.
        let denied = ended.denied.iter().filter(|(since_us, _)| since_us + REFUNDED_US >= self.now_us);
        for arrival in
            denied.map(|(_, arrival)| arrival).chain(ended.waiting.values().map(|one| &one.arrival))
        {
            self.check.exact.abandoned(arrival, &self.shapes);
        }
        for (_, waiting) in ended.waiting {
            self.decided(waiting.arrival, Verdict::Lost, None, 0);
        }
        if let Some(stream) = ended.stream {
            self.closed(stream, End::Worker);
        }
    }

    /// A request arrives at an Envoy, if the process is running.
    pub(super) fn arrive(&mut self, arrival: Arrival) {
        let at = WorkerAt {
            envoy: self.envoy_at(usize::from(arrival.region), usize::from(arrival.envoy)),
            worker: usize::from(arrival.worker) + 1,
        };
        if self.hold_if_frozen(at, || Inbox::Arrival(arrival)) {
            return;
        }
        self.join_again(at.envoy);
        let now = self.envoys.get(at.envoy).map(|envoy| envoy.clock.mono(self.now_us)).unwrap_or_default();
        self.requests += 1;
        let request = self.requests;
        let mut request_checks = std::mem::take(&mut self.checks);
        request_checks.clear();
        for rule in self.rules_of(&arrival) {
            self.shapes[rule].check(rule, arrival.identifier, arrival.cost, &mut request_checks);
        }
        let checks: smallvec::SmallVec<[_; 4]> = request_checks.iter().collect();
        let worker = self.envoys.get_mut(at.envoy).and_then(|envoy| worker_of(envoy, at.worker));
        let outcome = worker.map(|(table, worker)| {
            let outcome = worker.limiter.decide(table, request, &checks, now);
            let urgent = worker.limiter.is_urgent();
            if outcome.decision == Decision::Wait {
                worker.waiting.insert(request, Waiting { arrival, since_us: self.now_us });
            }
            (outcome, urgent)
        });
        drop(checks);
        self.checks = request_checks;
        let Some((outcome, urgent)) = outcome else { return };
        self.reports.push(Report::Arrived(arrival));
        if outcome.decision != Decision::Wait {
            self.conclude(at, request, arrival, &outcome);
        }
        if outcome.decision == Decision::Wait || urgent {
            self.perform_outputs(at);
            self.advance_timer(at);
        }
        self.check_writes(at.envoy);
    }

    /// A worker's timer fires.
    pub(super) fn tick(&mut self, at: WorkerAt, timer: u64) {
        let counts = self.worker(at).is_some_and(|(_, worker)| worker.timer == timer);
        if !counts || self.hold_if_frozen(at, || Inbox::Tick) {
            return;
        }
        self.tick_now(at);
    }

    fn tick_now(&mut self, at: WorkerAt) {
        let now = self.envoys[at.envoy].clock.now(self.now_us);
        let Some((table, worker)) = self.worker(at) else { return };
        worker.limiter.tick(table, now);
        self.check_clock(at);
        self.leave_if_idle(at);
        self.drive_limiter(at);
        let Some((_, worker)) = self.worker(at).filter(|(_, worker)| !worker.has_left) else { return };
        worker.tick_ms = worker.limiter.next_tick_ms();
        let tick_us = worker.tick_ms * 1_000;
        self.set_timer(at, tick_us);
    }

    /// Leaves the region if no request has come for long, as an aggregator's embedded limiter does.
    fn leave_if_idle(&mut self, at: WorkerAt) {
        let (now_us, idle_us) = (self.now_us, self.plan.topology.idle_ms.saturating_mul(1_000));
        let Some(envoy) = self.envoys.get_mut(at.envoy).filter(|_| idle_us > 0) else { return };
        let now = envoy.clock.mono(now_us);
        let is_idle = envoy.process.as_ref().is_some_and(|process| now_us - process.used_us >= idle_us);
        if let Some((table, worker)) = worker_of(envoy, at.worker)
            && is_idle
            && worker.limiter.is_at_rest()
        {
            worker.limiter.leave(table, now);
            worker.has_left = true;
        }
    }

    /// A request arrives: workers that have left the region tick, which opens their streams.
    fn join_again(&mut self, envoy: usize) {
        let Some(process) = self.envoys.get_mut(envoy).and_then(|envoy| envoy.process.as_mut()) else {
            return;
        };
        process.used_us = self.now_us;
        let workers = process.workers.len();
        for at in (0..workers).map(|worker| WorkerAt { envoy, worker }) {
            let left = self.worker(at).filter(|(_, worker)| worker.has_left);
            if let Some((_, worker)) = left {
                worker.has_left = false;
                self.tick_now(at);
            }
        }
    }

    /// A frame reaches the worker's end of a stream; `None`: the stream has ended.
    pub(super) fn worker_receives(&mut self, id: StreamId, frame: Option<Box<RegionFrame>>) {
        let Some(stream) = self.streams.get(id) else { return };
        let at = stream.at;
        let mut frame = Some(frame);
        if self.hold_if_frozen(at, || Inbox::Frame(id, frame.take().flatten())) {
            return;
        }
        self.take_frame(at, id, frame.flatten());
    }

    fn take_frame(&mut self, at: WorkerAt, id: StreamId, frame: Option<Box<RegionFrame>>) {
        let now = self.envoys[at.envoy].clock.mono(self.now_us);
        let Some((table, worker)) = self.worker(at).filter(|(_, worker)| worker.stream == Some(id)) else {
            return;
        };
        match frame {
            Some(frame) => worker.limiter.on_frame(table, &frame, now),
            None => self.break_stream(at),
        }
        self.check_clock(at);
        self.drive_limiter(at);
    }

    /// A worker that is connected to another aggregator may use another clock from then on.
    fn check_clock(&mut self, at: WorkerAt) {
        let mono = self.envoys[at.envoy].clock.mono(self.now_us);
        let Some(process) = self.envoys[at.envoy].process.as_ref() else { return };
        let Some(worker) = process.workers.get(at.worker).and_then(Option::as_ref) else { return };
        let unix = worker.limiter.moment(mono).unix;
        let offset = |unix_ms: u64| unix_ms.cast_signed().wrapping_sub(mono.0.cast_signed());
        self.check.decides_by((process.node, at.worker), offset(unix.0), offset(self.unix_ms()), self.now_us);
    }

    /// The response to a request that was admitted at `since_us` states its cost. A worker that started later does
    /// not have the request.
    pub(super) fn respond(&mut self, at: WorkerAt, request: u64, arrival: Arrival, since_us: u64) {
        if self.hold_if_frozen(at, || Inbox::Response(request, arrival, since_us)) {
            return;
        }
        let now = self.envoys.get(at.envoy).map(|envoy| envoy.clock.mono(self.now_us)).unwrap_or_default();
        if self.worker(at).is_none_or(|(_, worker)| !worker.limiter.is_deferred(request)) {
            return;
        }
        let arrival = self.charged(at, arrival);
        let Some((table, worker)) = self.worker(at) else { return };
        let mut settled = 0;
        let cost_of = |rule: u16, _| {
            settled |= 1u64 << rule;
            Some(arrival.cost)
        };
        worker.limiter.settle_cost(table, request, cost_of, now);
        let unix = worker.limiter.moment(now).unix;
        let Some(process) = self.envoys[at.envoy].process.as_ref() else { return };
        let by = DecidedBy { node: process.node, unix, now_us: self.now_us };
        let arrival = Arrival { rules: settled, ..arrival };
        for (cell, due_us) in self.check.settled(&by, &arrival, since_us, &self.shapes) {
            self.queue.plan(due_us, Event::Rest(cell));
        }
        self.check_writes(at.envoy);
    }

    /// Processes, in order, what arrived during a freeze.
    pub(super) fn thaw(&mut self, at: WorkerAt) {
        if self.is_worker_frozen(at) {
            return;
        }
        let Some((_, worker)) = self.worker(at) else { return };
        for held in std::mem::take(&mut worker.inbox) {
            match held {
                Inbox::Tick => self.tick_now(at),
                Inbox::Arrival(arrival) => self.arrive(arrival),
                Inbox::Frame(id, frame) => self.take_frame(at, id, frame),
                Inbox::Response(request, arrival, since_us) => self.respond(at, request, arrival, since_us),
            }
        }
    }

    /// Whether a worker is frozen, alone or with its Envoy.
    pub(super) fn is_worker_frozen(&self, at: WorkerAt) -> bool {
        let Some(envoy) = self.envoys.get(at.envoy) else { return false };
        let worker = envoy.process.as_ref().and_then(|process| process.workers.get(at.worker)?.as_ref());
        envoy.frozen > 0 || worker.is_some_and(|worker| worker.frozen > 0)
    }

    fn hold_if_frozen(&mut self, at: WorkerAt, what: impl FnOnce() -> Inbox) -> bool {
        let frozen = self.is_worker_frozen(at);
        if frozen && let Some((_, worker)) = self.worker(at) {
            worker.inbox.push_back(what());
        }
        frozen
    }

    /// Does what a call of the limiter has led to, and ticks earlier if it asks for that.
    fn drive_limiter(&mut self, at: WorkerAt) {
        self.perform_outputs(at);
        self.advance_timer(at);
        self.check_writes(at.envoy);
    }

    /// Does what the limiter has to do now.
    fn perform_outputs(&mut self, at: WorkerAt) {
        let now = self.envoys[at.envoy].clock.mono(self.now_us);
        while let Some((table, worker)) = self.worker(at) {
            let Some(output) = worker.limiter.next(table, now) else { return };
            match output {
                Output::Close(_) => {
                    if let Some(stream) = worker.stream.take() {
                        self.closed(stream, End::Worker);
                    }
                }
                Output::Open => {
                    let stream = self.open_stream(at);
                    if let Some((_, worker)) = self.worker(at) {
                        worker.stream = Some(stream);
                    }
                }
                Output::Send(frame) => {
                    let stream = worker.stream;
                    self.count_up(&frame);
                    if let Some(stream) = stream {
                        self.carry(stream, Carried::Up(Some(Box::new(frame))));
                    }
                }
                Output::Resolve { request, outcome } => match worker.waiting.remove(&request) {
                    Some(Waiting { arrival, since_us }) => {
                        self.note_wait(at, &arrival, since_us);
                        self.conclude(at, request, arrival, &outcome);
                    }
                    None => self.check.resolved_twice(request, self.now_us),
                },
                // Exact shadow rules and bans are not simulated here.
                Output::Shadow { .. } | Output::Struck(_) => {}
            }
        }
    }

    fn break_stream(&mut self, at: WorkerAt) {
        let now = self.envoys[at.envoy].clock.mono(self.now_us);
        let Some((table, worker)) = self.worker(at) else { return };
        let stream = worker.stream.take();
        worker.limiter.on_closed(table, now);
        if let Some(stream) = stream {
            self.closed(stream, End::Worker);
        }
    }

    fn advance_timer(&mut self, at: WorkerAt) {
        let Some((_, worker)) = self.worker(at) else { return };
        let wanted = worker.limiter.next_tick_ms();
        if wanted < worker.tick_ms {
            worker.tick_ms = wanted;
            self.set_timer(at, wanted * 1_000);
        }
    }

    fn set_timer(&mut self, at: WorkerAt, after_us: u64) {
        let due = self.now_us + after_us + self.chance.timers.below(TIMER_LATE_US);
        let Some((_, worker)) = self.worker(at) else { return };
        worker.timer += 1;
        let timer = worker.timer;
        self.queue.plan(due, Event::Tick(at, timer));
    }

    /// Records the outcome of a request and reports it.
    fn conclude(&mut self, at: WorkerAt, request: u64, arrival: Arrival, outcome: &Outcome) {
        let (verdict, retry_after_ms) = match outcome.decision {
            Decision::Allow(_) => (Verdict::Admitted, None),
            Decision::Deny(denial) => {
                let verdict = match denial.cause {
                    Cause::Limit | Cause::Cost => Verdict::Denied,
                    Cause::Reserved => Verdict::Reserved,
                    Cause::Undecided => Verdict::Undecided,
                };
                (verdict, denial.retry_after_ms)
            }
            Decision::Wait => return,
        };
        let mono = self.envoys[at.envoy].clock.mono(self.now_us);
        let Some(process) = self.envoys[at.envoy].process.as_ref() else { return };
        let Some(Some(worker)) = process.workers.get(at.worker) else { return };
        if matches!(verdict, Verdict::Admitted | Verdict::Denied) {
            self.check.may_overflow(process.node, &process.table);
        }
        let by =
            DecidedBy { node: process.node, unix: worker.limiter.moment(mono).unix, now_us: self.now_us };
        for (cell, due_us) in self.check.decided(&by, &arrival, outcome, &self.shapes) {
            self.queue.plan(due_us, Event::Rest(cell));
        }
        let place = (self.place(at.envoy).0, self.now_us);
        self.check.decided_exactly(place, &arrival, outcome, &self.shapes);
        let (now_us, is_exact) = (self.now_us, self.is_exact(&arrival));
        if let Some((_, worker)) = self.worker(at).filter(|_| is_exact && verdict != Verdict::Admitted) {
            worker.denied.push_back((now_us, arrival));
            while worker.denied.pop_front_if(|(since_us, _)| *since_us + REFUNDED_US < now_us).is_some() {}
        }
        let responds = self.rules_of(&arrival).map(|rule| &self.shapes[rule].rule);
        let response_ms = responds.filter(|rule| rule.reserve > 0).map(|rule| rule.response_ms).max();
        if let Some(response_ms) = response_ms.filter(|_| verdict == Verdict::Admitted) {
            if self.worker(at).is_some_and(|(_, worker)| worker.ended) {
                // The request waited, and its reserve was spent when its worker shut down.
                self.check.unsettled(&by, &arrival, 0, &self.shapes);
            }
            let takes_us = self.chance.responses.below(response_ms.min(HOLD_MS) * 1_000 + 1);
            let responds = Event::Response(at, request, arrival, self.now_us);
            self.queue.plan(self.now_us + takes_us, responds);
        }
        self.decided(
            arrival,
            verdict,
            retry_after_ms,
            outcome.shadow_denied.iter().fold(0, |mask, rule| mask | 1 << rule),
        );
    }

    fn decided(
        &mut self,
        arrival: Arrival,
        verdict: Verdict,
        retry_after_ms: Option<u64>,
        shadow_denied: u64,
    ) {
        let at_us = self.now_us.saturating_sub(self.begin_us);
        self.reports.push(Report::Decided(Decided {
            arrival,
            at_us,
            verdict,
            shadow_denied,
            retry_after_ms,
        }));
    }

    fn is_exact(&self, arrival: &Arrival) -> bool {
        self.rules_of(arrival).any(|rule| self.shapes[rule].rule.exact.is_some())
    }

    pub(super) fn rules_of(&self, arrival: &Arrival) -> impl Iterator<Item = usize> + use<> {
        let rules = self.shapes.len();
        keys::rules(arrival.rules).filter(move |rule| *rule < rules)
    }

    pub(super) fn worker(&mut self, at: WorkerAt) -> Option<(&mut Table, &mut Worker)> {
        worker_of(self.envoys.get_mut(at.envoy)?, at.worker)
    }
}

fn worker_of(envoy: &mut Envoy, worker: usize) -> Option<(&mut Table, &mut Worker)> {
    let Process { table, workers, .. } = envoy.process.as_mut()?;
    Some((table, workers.get_mut(worker)?.as_mut()?))
}

fn node(chance: &mut Random) -> NodeId {
    let [a, b] = [chance.next().to_be_bytes(), chance.next().max(1).to_be_bytes()];
    let mut id = [0; 16];
    id[..8].copy_from_slice(&a);
    id[8..].copy_from_slice(&b);
    NodeId(id)
}
