//! Processes and a region on fake time, with a small network between them.
//!
//! Every worker has one stream, to the first aggregator unless `routes` names another. The aggregators are not connected to
//! each other. A region that is down refuses all streams. `network` carries the frames.

use super::super::*;
use super::exact_store::ExactStore;
use super::network::{Frame, Stream};
use crate::limiter::table::{Bucket, Geometry};
use crate::model::exact::Algorithm;
use crate::model::key::{HashKey, Key, KeyParts, NodeId};
use crate::model::shared::{MemoryShared, Place, Version};
use crate::model::time::UnixMs;
use crate::model::window::Position;
use crate::region::{Region, RegionLimits};
use core::borrow::Borrow;
use std::collections::{BTreeMap, VecDeque};
use std::vec;
use std::vec::Vec;

pub(super) const START_MONO: u64 = 1_000_000;
pub(super) const START_UNIX: u64 = 1_700_000_040_000;

/// What another thread does to the table in the middle of a call.
type Interrupt = std::boxed::Box<dyn FnOnce(&mut MemoryShared)>;

/// Shared data that counts its loads and stores.
#[derive(Default)]
pub(super) struct Counting {
    pub(super) memory: MemoryShared,
    pub(super) loads: u64,
    pub(super) stores: u64,
    /// What another thread does after the next store.
    pub(super) interrupt: Option<Interrupt>,
}

impl Shared for Counting {
    fn load(&mut self, place: Place, into: &mut Vec<u8>) -> Option<Version> {
        self.loads += 1;
        self.memory.load(place, into)
    }

    fn store(&mut self, place: Place, bytes: &[u8], version: Option<Version>) -> bool {
        self.stores += 1;
        let stored = self.memory.store(place, bytes, version);
        if let Some(interrupt) = self.interrupt.take() {
            interrupt(&mut self.memory);
        }
        stored
    }
}

pub(super) struct Worker {
    pub(super) limiter: Limiter,
    pub(super) next_tick: u64,
    pub(super) stream: Option<u64>,
    pub(super) struck: Vec<Violator>,
}

pub(super) struct Process {
    pub(super) meta: Meta,
    pub(super) shared: Counting,
    /// `None`: killed.
    pub(super) workers: Vec<Option<Worker>>,
}

pub(super) struct World {
    pub(super) now: u64,
    /// Unix minus monotonic time, of every machine.
    pub(super) unix_offset: i64,
    /// The error of each aggregator's clock.
    pub(super) clock_errors: BTreeMap<usize, i64>,
    /// One for each aggregator. All but the first are added by `add_aggregator`.
    pub(super) regions: Vec<Region>,
    /// The aggregator of a worker's next stream. A number that does not exist refuses the stream.
    pub(super) routes: BTreeMap<(usize, usize), usize>,
    /// The delay of each aggregator's acknowledgements. `None`: it sends none.
    pub(super) ack_ms: Vec<Option<u64>>,
    /// The number of counts in all reports.
    pub(super) reported: usize,
    /// The counts that were reported with a snapshot, and the aggregators that received them.
    pub(super) snapshots: Vec<(usize, wire::Count)>,
    pub(super) processes: Vec<Process>,
    pub(super) resolved: BTreeMap<u64, (u64, Outcome)>,
    pub(super) latency: (u64, u64),
    pub(super) down: bool,
    pub(super) paused: bool,
    pub(super) repeat_frames: bool,
    /// Workers without a request become idle. Otherwise there are always requests that no rule applies to.
    pub(super) idles: bool,
    /// The number of pings sent.
    pub(super) pings: u64,
    pub(super) queries: u64,
    /// The trace context of the next requests that wait.
    pub(super) traceparent: Option<&'static str>,
    /// Every query as it was sent, and when.
    pub(super) sent_queries: Vec<(u64, wire::Query)>,
    /// Holds the exact limits, for all aggregators.
    pub(super) exact_store: ExactStore,
    /// Verdicts of exact shadow rules, in the order of arrival.
    pub(super) shadow: Vec<(u16, ShadowOutcome)>,
    pub(super) random: Random,
    pub(super) streams: BTreeMap<u64, Stream>,
    pub(super) subscribers: BTreeMap<(usize, NodeId), u64>,
    pub(super) network: BTreeMap<(u64, u64), (u64, Frame)>,
    /// Frames that a paused region has not processed yet.
    pub(super) delayed_frames: VecDeque<(u64, wire::FilterFrame)>,
    pub(super) push_at: Option<u64>,
    pub(super) last_id: u64,
    /// What workers that have ended added to their processes' gauges.
    pub(super) ended_gauges: Gauges,
}

/// Passes the trace context of a request that waits to the limiter.
fn attach_trace(limiter: &mut Limiter, id: u64, outcome: &Outcome, traceparent: Option<&str>) {
    let trace = traceparent.and_then(|header| Trace::of_headers(Some(header.as_bytes()), Some(b"an-id")));
    if let (Decision::Wait, Some(trace)) = (outcome.decision, trace) {
        limiter.trace(id, &trace);
    }
}

/// xorshift: the same seed gives the same schedule.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound.max(1)
    }
}

impl World {
    /// `workers` in each of `processes`, without a region.
    pub(super) fn alone(processes: usize, workers: usize) -> World {
        let mut world = World::with(processes, workers, Geometry { buckets: 64, keys_per_bucket: 8 }, true);
        // Requests wait for the first stream until it has failed to open.
        world.run(50);
        world
    }

    /// The same with a region, after all workers have connected.
    pub(super) fn connected(processes: usize, workers: usize) -> World {
        let mut world = World::with(processes, workers, Geometry { buckets: 64, keys_per_bucket: 8 }, false);
        world.run(2_000);
        world
    }

    pub(super) fn with(processes: usize, workers: usize, geometry: Geometry, down: bool) -> World {
        let mut world = World {
            now: START_MONO,
            unix_offset: START_UNIX as i64 - START_MONO as i64,
            clock_errors: BTreeMap::new(),
            regions: vec![new_region()],
            routes: BTreeMap::new(),
            ack_ms: vec![Some(0)],
            reported: 0,
            snapshots: Vec::new(),
            processes: Vec::new(),
            resolved: BTreeMap::new(),
            latency: (1, 1),
            down,
            paused: false,
            repeat_frames: false,
            idles: false,
            pings: 0,
            queries: 0,
            traceparent: None,
            sent_queries: Vec::new(),
            exact_store: ExactStore::default(),
            shadow: Vec::new(),
            random: Random::new(7),
            streams: BTreeMap::new(),
            subscribers: BTreeMap::new(),
            network: BTreeMap::new(),
            delayed_frames: VecDeque::new(),
            push_at: None,
            last_id: 0,
            ended_gauges: Gauges::default(),
        };
        for _ in 0..processes {
            world.add_process(workers, geometry);
        }
        world
    }

    pub(super) fn add_process(&mut self, workers: usize, geometry: Geometry) -> usize {
        let number = self.processes.len() as u64 + 1;
        let mut shared = Counting::default();
        let mut node = [0; 16];
        node[..8].copy_from_slice(&(number + self.now).to_be_bytes());
        let proposal = Meta { node: NodeId(node), secret: HashKey(number, 7), geometry };
        let meta = Meta::establish(&mut shared, proposal);
        self.processes.push(Process { meta, shared, workers: Vec::new() });
        for _ in 0..workers {
            self.add_worker(self.processes.len() - 1);
        }
        self.processes.len() - 1
    }

    pub(super) fn add_worker(&mut self, process: usize) -> usize {
        let now = self.time();
        let worker = self.random.below(u64::MAX >> 12) + 1;
        let place = &mut self.processes[process];
        let setup = Setup { meta: place.meta, worker, local_sets: 256 };
        let limiter = Limiter::new(setup, now);
        // The workers tick at different times.
        let next_tick = now.mono.0 + place.workers.len() as u64 * 7 % TICK_MS;
        place.workers.push(Some(Worker { limiter, next_tick, stream: None, struck: Vec::new() }));
        place.workers.len() - 1
    }

    pub(super) fn time(&self) -> Now {
        Now { unix: self.unix(), mono: MonoMs(self.now) }
    }

    pub(super) fn unix(&self) -> UnixMs {
        UnixMs(self.now.saturating_add_signed(self.unix_offset))
    }

    /// Unix time by the clock of an aggregator.
    pub(super) fn unix_of(&self, aggregator: usize) -> UnixMs {
        let error = self.clock_errors.get(&aggregator).copied().unwrap_or(0);
        UnixMs(self.unix().0.saturating_add_signed(error))
    }

    /// Decides a request now. If it waits, its outcome arrives in `resolved` under the returned id.
    pub(super) fn request(&mut self, process: usize, worker: usize, checks: &[Check<'_>]) -> (u64, Outcome) {
        self.last_id += 1;
        let (id, now) = (self.last_id, MonoMs(self.now));
        let Process { shared, workers, .. } = &mut self.processes[process];
        let worker_state = workers[worker].as_mut().unwrap();
        let outcome = worker_state.limiter.decide(shared, id, checks, now);
        attach_trace(&mut worker_state.limiter, id, &outcome, self.traceparent);
        self.drive(process, worker);
        (id, outcome)
    }

    /// The same for a request with exact rules.
    pub(super) fn request_exact(
        &mut self,
        process: usize,
        worker: usize,
        checks: &[Check<'_>],
        exact: &[Check<'_>],
    ) -> (u64, Outcome) {
        self.last_id += 1;
        let (id, now) = (self.last_id, MonoMs(self.now));
        let Process { shared, workers, .. } = &mut self.processes[process];
        let worker_state = workers[worker].as_mut().unwrap();
        let outcome = worker_state.limiter.decide(shared, id, &[checks, exact].concat(), now);
        attach_trace(&mut worker_state.limiter, id, &outcome, self.traceparent);
        self.drive(process, worker);
        (id, outcome)
    }

    /// The sum of the charges in an exact log, once all refunds that are due were made.
    pub(super) fn charged(&mut self, key: &[u8]) -> u64 {
        self.exact_store.refund_due(self.now);
        self.exact_store.charged(key, self.now)
    }

    /// The outcome of a request with exact rules, and how many milliseconds it took.
    pub(super) fn decide_exact(&mut self, checks: &[Check<'_>], exact: &[Check<'_>]) -> (u64, Outcome) {
        let (id, outcome) = self.request_exact(0, 0, checks, exact);
        self.wait_for(id, outcome)
    }

    /// Whether a request passes. Waits for its outcome.
    pub(super) fn passes(&mut self, process: usize, worker: usize, checks: &[Check<'_>]) -> bool {
        matches!(self.decide(process, worker, checks).decision, Decision::Allow(_))
    }

    /// The outcome of a request. Waits for it.
    pub(super) fn decide(&mut self, process: usize, worker: usize, checks: &[Check<'_>]) -> Outcome {
        let (id, outcome) = self.request(process, worker, checks);
        self.wait_for(id, outcome).1
    }

    /// The outcome of request `id`, and how many milliseconds it took.
    pub(super) fn wait_for(&mut self, id: u64, mut outcome: Outcome) -> (u64, Outcome) {
        let start = self.now;
        while outcome.decision == Decision::Wait {
            assert!(self.now < start + 1_000, "request {id} is never resolved");
            self.run(1);
            if let Some((_, resolved)) = self.resolved.get(&id) {
                outcome = resolved.clone();
            }
        }
        (self.now - start, outcome)
    }

    /// Advances the time by `ms`. Stops at each millisecond in which a tick, a frame or a push is due.
    pub(super) fn run(&mut self, ms: u64) {
        let end = self.now + ms;
        loop {
            let ticks = self.processes.iter().flat_map(|process| process.workers.iter().flatten());
            let tick = ticks.map(|worker| worker.next_tick).min().unwrap_or(u64::MAX);
            let frame = self.network.keys().next().map_or(u64::MAX, |(at, _)| *at);
            let next = tick.min(frame).min(self.push_at.unwrap_or(u64::MAX));
            if next > end {
                break;
            }
            self.now = self.now.max(next);
            self.deliver();
            self.push();
            self.tick_due();
        }
        self.now = end;
    }

    /// Kills a worker, which sends nothing more.
    pub(super) fn kill(&mut self, process: usize, worker: usize) {
        let Some(killed) = self.processes[process].workers[worker].take() else { return };
        self.ended_gauges.add(&killed.limiter.stats(MonoMs(self.now)).gauges);
        if let Some(stream) = killed.stream {
            self.close(stream);
        }
    }

    /// Shuts a worker down in good order.
    pub(super) fn end(&mut self, process: usize, worker: usize) {
        let now = MonoMs(self.now);
        let Process { shared, workers, .. } = &mut self.processes[process];
        let mut ended = workers[worker].take().unwrap();
        ended.limiter.shutdown(shared, now);
        let outputs = outputs(&mut ended.limiter, shared, now);
        self.ended_gauges.add(&ended.limiter.stats(now).gauges);
        if let Some(stream) = ended.stream {
            for output in outputs {
                if let Output::Send(frame) = output {
                    self.region_receives(stream, frame);
                }
            }
            self.close(stream);
        }
    }

    /// Kills a whole process.
    pub(super) fn kill_process(&mut self, process: usize) {
        for worker in 0..self.processes[process].workers.len() {
            self.kill(process, worker);
        }
    }

    /// Closes a worker's stream. Frames in flight on it are lost.
    pub(super) fn cut(&mut self, process: usize, worker: usize) {
        let now = MonoMs(self.now);
        let Process { shared, workers, .. } = &mut self.processes[process];
        let Some(state) = workers[worker].as_mut() else { return };
        let Some(stream) = state.stream.take() else { return };
        state.limiter.on_closed(shared, now);
        self.close(stream);
        self.drive(process, worker);
    }

    pub(super) fn cut_all(&mut self) {
        let workers: Vec<_> = self.streams.values().map(|stream| (stream.process, stream.worker)).collect();
        for (process, worker) in workers {
            self.cut(process, worker);
        }
    }

    /// Restarts the region with empty memory.
    pub(super) fn restart_region(&mut self) {
        self.cut_all();
        self.regions[0] = new_region();
    }

    /// Adds an aggregator, which holds no counts and is not connected to the others.
    pub(super) fn add_aggregator(&mut self) -> usize {
        self.regions.push(new_region());
        self.ack_ms.push(Some(0));
        self.regions.len() - 1
    }

    /// Ends an aggregator for good, with all its counts. Its workers connect to `successor`.
    pub(super) fn lose_aggregator(&mut self, lost: usize, successor: usize) {
        self.routes.values_mut().filter(|route| **route == lost).for_each(|route| *route = successor);
        let cut = self.streams.values().filter(|stream| stream.aggregator == lost);
        let workers: Vec<_> = cut.map(|stream| (stream.process, stream.worker)).collect();
        for (process, worker) in workers {
            self.routes.insert((process, worker), successor);
            self.cut(process, worker);
        }
        self.regions[lost] = new_region();
    }

    /// A cell in the first aggregator: the sum, and the component of each process.
    pub(super) fn regional(&self, key: &Key, sequence: u64) -> (u64, Vec<u64>) {
        self.components_at(0, key, sequence)
    }

    /// The same for any aggregator.
    pub(super) fn components_at(&self, aggregator: usize, key: &Key, sequence: u64) -> (u64, Vec<u64>) {
        let parts = key.parts();
        let explained = self.regions[aggregator].explain(parts.workspace, parts.namespace, parts.identifier);
        let cells = explained.iter().flat_map(|one| &one.cells).filter(|cell| cell.sequence == sequence);
        let components: Vec<u64> =
            cells.flat_map(|cell| &cell.components).map(|component| component.own).collect();
        (components.iter().sum(), components)
    }

    /// The table's entry of a key, as it is stored.
    pub(super) fn entry(&mut self, process: usize, key: &Key) -> Option<crate::limiter::table::Entry> {
        let Process { meta, shared, .. } = &mut self.processes[process];
        let fingerprint = crate::model::key::fingerprint(key.as_bytes(), meta.secret);
        let mut bucket = Bucket::default();
        shared.memory.load(meta.geometry.place(fingerprint), bucket.buffer());
        bucket.check();
        bucket.find(fingerprint, key.as_bytes()).map(|found| found.entry)
    }

    /// Whether a key without an entry would get one, though none that a window counts leaves the table.
    pub(super) fn has_room(&mut self, process: usize, key: &Key) -> bool {
        let now = MonoMs(self.now);
        let Process { meta, shared, workers } = &mut self.processes[process];
        let unix = workers.iter().flatten().next().unwrap().limiter.moment(now).unix;
        let fingerprint = crate::model::key::fingerprint(key.as_bytes(), meta.secret);
        let mut bucket = Bucket::default();
        shared.memory.load(meta.geometry.place(fingerprint), bucket.buffer());
        bucket.check();
        let position = |key: &[u8]| Position::at(unix, local::transact::cell_ms(key));
        bucket.make_room(meta.geometry.keys_per_bucket, now, position, |_| false).is_ok()
    }

    /// The gauges of all processes, as their metrics show them.
    pub(super) fn gauges(&self) -> Gauges {
        let mut sum = self.ended_gauges;
        let workers = self.processes.iter().flat_map(|process| process.workers.iter().flatten());
        workers.for_each(|worker| sum.add(&worker.limiter.stats(MonoMs(self.now)).gauges));
        sum
    }

    /// Counters summed over the live workers of all processes.
    pub(super) fn sum_of(&self, of: impl Fn(&Stats) -> u64) -> u64 {
        let workers = self.processes.iter().flat_map(|process| process.workers.iter().flatten());
        workers.map(|worker| of(&worker.limiter.stats(MonoMs(self.now)))).sum()
    }

    fn tick_due(&mut self) {
        for process in 0..self.processes.len() {
            for worker in 0..self.processes[process].workers.len() {
                self.tick_one(process, worker);
            }
        }
    }

    fn tick_one(&mut self, process: usize, worker: usize) {
        let now = self.time();
        let Process { shared, workers, .. } = &mut self.processes[process];
        let Some(state) = workers[worker].as_mut().filter(|state| state.next_tick <= now.mono.0) else {
            return;
        };
        if !self.idles {
            state.limiter.connection.note_request(now.mono);
        }
        state.limiter.tick(shared, now);
        state.next_tick = now.mono.0 + state.limiter.next_tick_ms();
        self.drive(process, worker);
    }

    /// Opens the stream of a worker, or finds its aggregator down.
    pub(super) fn open(&mut self, process: usize, worker: usize) {
        let Process { shared, workers, meta } = &mut self.processes[process];
        let Some(state) = workers[worker].as_mut() else { return };
        let aggregator = self.routes.get(&(process, worker)).copied().unwrap_or(0);
        if self.down || aggregator >= self.regions.len() {
            return state.limiter.on_closed(shared, MonoMs(self.now));
        }
        self.last_id += 1;
        state.stream = Some(self.last_id);
        let stream = Stream { process, worker, aggregator, node: meta.node, up: 0, down: 0 };
        self.streams.insert(self.last_id, stream);
    }
}

/// What a limiter has its driver do now.
pub(super) fn outputs(limiter: &mut Limiter, shared: &mut Counting, now: MonoMs) -> Vec<Output> {
    core::iter::from_fn(|| limiter.next(shared, now)).collect()
}

pub(super) fn new_region() -> Region {
    Region::new(RegionLimits::default(), HashKey(3, 4))
}

/// The key of an identifier with a window of `duration_ms`.
pub(super) fn key(identifier: &str, duration_ms: u64) -> Key {
    let identifier = identifier.as_bytes();
    let parts =
        KeyParts { workspace: b"w", namespace: b"n", identifier, duration_ms, epoch: 0, resolution: 1 };
    Key::new(&parts).unwrap()
}

/// The same with a hard limit.
pub(super) fn hard_limit_key(identifier: &str, duration_ms: u64) -> Key {
    let usual = key(identifier, duration_ms);
    Key::new(&KeyParts { resolution: crate::model::key::HARD_LIMIT_RESOLUTION, ..usual.parts() }).unwrap()
}

pub(super) const HOUR: u64 = 3_600_000;
pub(super) const MINUTE: u64 = 60_000;

/// A check of rule 0, with a timeout of 50 ms.
pub(super) fn check(key: &Key, limit: u64, cost: u64) -> Check<'_> {
    let policy = Policy { timeout_ms: 50, ..Policy::default() };
    Check {
        rule: 0,
        algorithm: Algorithm::Window,
        key: key.as_bytes(),
        cell_ms: key.parts().cell_ms(),
        limit,
        configured: None,
        cost,
        policy,
    }
}

pub(super) fn denial(outcome: impl Borrow<Outcome>) -> Denial {
    match outcome.borrow().decision {
        Decision::Deny(denial) => denial,
        other => panic!("not denied: {other:?}"),
    }
}

pub(super) fn budget(outcome: impl Borrow<Outcome>) -> Budget {
    match outcome.borrow().decision {
        Decision::Allow(Some(budget)) => budget,
        other => panic!("not allowed: {other:?}"),
    }
}

pub(super) fn allowed(outcome: &Outcome) -> bool {
    matches!(outcome.decision, Decision::Allow(_))
}

/// Keys with the identifiers `id-0` to `id-(n-1)`.
pub(super) fn keys(n: usize, duration_ms: u64) -> Vec<Key> {
    (0..n).map(|at| key(&std::format!("id-{at}"), duration_ms)).collect::<vec::Vec<_>>()
}
