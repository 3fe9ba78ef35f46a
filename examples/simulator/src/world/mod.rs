//! The simulated world: all parts that a plan names, in virtual time, and one queue of events.
//!
//! - `faults`: begins and ends the plan's faults.
//! - `inspect`: reads the state of all parts, for the checkers and for plots.
//! - `aggregator`: aggregators, with the core's region state and background tasks.
//! - `envoy`: Envoys and their workers, with the core's limiter.
//! - `answers`: what answers of a language model are charged, by the core's settlement.
//! - `api`: calls of the APIs under exact limits and windows.
//! - `exact`: exact limits, in aggregators and stores.
//! - `stores`: Redis, the database, and their faults.
//! - `calls`: calls of aggregators to stores.
//! - `streams`: streams between workers and aggregators.
//! - `event`: what the queue carries.
//! - `request`: requests to stores, and their replies.
//! - `network`: delays and losses of messages; `clock`: the clocks of a machine.
//!
//! Imports run from the top of this list downwards. [`World`] owns the state of all parts; each file adds the methods
//! for its part.

mod aggregator;
mod answers;
mod api;
mod calls;
mod clock;
mod envoy;
mod event;
mod exact;
mod faults;
mod inspect;
mod network;
mod request;
mod stores;
mod streams;
#[cfg(test)]
mod tests;

use crate::check::Check;
use crate::measure::figures::{Figures, Spread};
use crate::measure::observe::Observer;
use crate::plan::Plan;
use crate::plan::keys::{self, Shape};
use crate::plan::traffic::Arrival;
use crate::queue::Queue;
use crate::random::Random;
use crate::traffic;
use aggregator::Aggregator;
use calls::Calls;
use clock::Clock;
use envoy::Envoy;
use event::{Carried, Event, Report, WorkerAt};
use network::Network;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::iter::Peekable;
use stores::Stores;
use stores::database::Database;
use stores::redis::Redis;
use streams::Streams;
use weir_core::model::wire::FilterFrame;
use weir_core::region::log::{Logs, LogsLimits};

pub use inspect::key_counts::{KeyCounts, Snapshot};

/// The state of a run.
pub struct World<'a> {
    plan: Plan,
    shapes: Vec<Shape>,
    arrivals: Peekable<Box<dyn Iterator<Item = Arrival> + 'a>>,
    /// Virtual time since the world's beginning, in microseconds.
    now_us: u64,
    /// When the traffic begins, in microseconds.
    begin_us: u64,
    queue: Queue<Event>,
    chance: Chance,
    network: Network,
    streams: Streams,
    envoys: Vec<Envoy>,
    aggregators: Vec<Aggregator>,
    redis: Vec<Redis>,
    database: Database,
    /// The exact logs of each region's Redis.
    logs: Vec<Logs>,
    ledger: exact::Ledger,
    /// The number of the ledger's last transaction. None is given twice, not even after data was lost.
    transactions: u64,
    /// The dumps of the database that faults will restore, by the faults' numbers.
    dumps: BTreeMap<usize, (Database, exact::Ledger)>,
    stores: Stores,
    calls: Calls,
    check: Check,
    counts: Counts,
    waits_us: Vec<u64>,
    reports: Vec<Report>,
    /// Number of requests so far.
    requests: u64,
    /// Number of workers so far.
    incarnations: u64,
    /// The checks of the current request.
    checks: weir_core::limiter::Checks,
    finished: bool,
    /// A fault of the plan may keep peers' messages from arriving.
    loses_messages: bool,
}

/// The random generators of the parts.
struct Chance {
    root: Random,
    streams: Random,
    timers: Random,
    stores: Random,
    /// How long the statements of packets take.
    statements: Random,
    /// The same of the steps of pipelines.
    steps: Random,
    responses: Random,
    /// Answers of a language model.
    answers: Random,
    /// Calls of the APIs, and what their windows decide.
    api: Random,
}

/// Counters of messages.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    frames: u64,
    messages: u64,
    redis_commands: u64,
    database_statements: u64,
    database_rows: u64,
    set_backs: u64,
    unreached: u64,
    overturned: u64,
    queries: u64,
}

impl<'a> World<'a> {
    /// Creates the world of `plan` at its beginning.
    pub fn new(plan: &'a Plan) -> World<'a> {
        World::with_arrivals(plan, traffic::arrivals(plan))
    }

    /// Creates the world of `plan` at its beginning, with the given arrivals in order of time.
    pub fn with_arrivals(plan: &Plan, arrivals: impl Iterator<Item = Arrival> + 'a) -> World<'a> {
        let root = Random::new(plan.seed);
        let topology = plan.topology;
        let mut clocks = root.fork("clocks", 0);
        let mut clock = || Clock::new(plan.settle_ms, &mut clocks);
        let shapes: Vec<Shape> =
            plan.rules.iter().take(64).enumerate().map(|(at, rule)| Shape::new(at, *rule)).collect();
        let envoys = (0..topology.regions * topology.envoys)
            .map(|_| Envoy { clock: clock(), process: None, frozen: 0, incarnations: 0 })
            .collect();
        let aggregators = (0..topology.regions * topology.aggregators)
            .map(|at| Aggregator::new(at / topology.aggregators, at % topology.aggregators, clock()))
            .collect();
        let arrivals: Box<dyn Iterator<Item = Arrival> + 'a> = Box::new(arrivals);
        let mut world = World {
            check: Check::new(&shapes, plan),
            shapes,
            arrivals: arrivals.peekable(),
            now_us: 0,
            begin_us: plan.settle_ms * 1_000,
            queue: Queue::default(),
            network: Network::new(plan.network, topology.regions, root.fork("network", 0)),
            chance: Chance {
                streams: root.fork("streams", 0),
                timers: root.fork("timers", 0),
                stores: root.fork("stores", 0),
                statements: root.fork("statements", 0),
                steps: root.fork("steps", 0),
                responses: root.fork("responses", 0),
                answers: root.fork("answers", 0),
                api: root.fork("api", 0),
                root: root.clone(),
            },
            streams: Streams::default(),
            envoys,
            aggregators,
            redis: vec![Redis::default(); topology.regions],
            database: Database::default(),
            logs: (0..topology.regions).map(|_| Logs::new(LogsLimits::default())).collect(),
            ledger: exact::Ledger::default(),
            transactions: 0,
            dumps: BTreeMap::new(),
            stores: Stores::new(topology.regions),
            calls: Calls::default(),
            counts: Counts::default(),
            waits_us: Vec::new(),
            reports: Vec::new(),
            requests: 0,
            incarnations: 0,
            checks: weir_core::limiter::Checks::default(),
            finished: false,
            loses_messages: plan.faults.iter().any(|fault| faults::loses_messages(&fault.what)),
            plan: plan.clone(),
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        (0..self.aggregators.len()).for_each(|at| self.start_aggregator(at));
        (0..self.envoys.len()).for_each(|at| self.start_envoy(at));
        self.plan_faults();
        self.plan_bounds_check();
        self.plan_api_call();
    }

    /// Carries out the rest of the plan and returns the figures of the run.
    pub fn run(&mut self, observer: &mut dyn Observer) -> Figures {
        let end_ms = self.plan.traffic_ms + self.plan.quiet_ms;
        self.run_until(i64::try_from(end_ms).unwrap_or(i64::MAX), observer);
        self.finish();
        self.figures()
    }

    /// Runs until `at_ms` after the beginning of the traffic; negative values are before it.
    pub fn run_until(&mut self, at_ms: i64, observer: &mut dyn Observer) {
        let end_us = self.begin_us.saturating_add_signed(at_ms.saturating_mul(1_000));
        let last_us = self.plan.traffic_ms.saturating_mul(1_000);
        loop {
            let event = self.queue.next_at().unwrap_or(u64::MAX);
            let arrival = self.arrivals.peek().filter(|arrival| arrival.at_us <= last_us);
            let arrival = arrival.map_or(u64::MAX, |arrival| self.begin_us + arrival.at_us);
            let next = event.min(arrival);
            if next > end_us {
                break;
            }
            self.now_us = self.now_us.max(next);
            if arrival < event {
                if let Some(arrival) = self.arrivals.next() {
                    self.arrive(arrival);
                }
            } else if let Some(event) = self.queue.pop() {
                self.handle(event);
            }
            for report in self.reports.drain(..) {
                match report {
                    Report::Arrived(arrival) => observer.arrived(&arrival),
                    Report::Decided(decided) => observer.decided(&decided),
                }
            }
        }
        self.now_us = self.now_us.max(end_us);
    }

    /// The figures of the run so far.
    pub fn figures(&mut self) -> Figures {
        Figures {
            frames: self.counts.frames,
            messages: self.counts.messages,
            redis_commands: self.counts.redis_commands,
            database_statements: self.counts.database_statements,
            database_rows: self.counts.database_rows,
            set_backs: self.counts.set_backs,
            unreached: self.counts.unreached,
            overturned: self.counts.overturned,
            queries: self.counts.queries,
            waits: Spread::of(&mut self.waits_us),
            convergence: Spread::of(&mut self.check.convergence_ms),
            peaks: self.check.peaks(),
            violations: self.check.violations(),
        }
    }

    /// Number of events planned so far, without arrivals.
    pub fn events(&self) -> u64 {
        self.queue.planned()
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Tick(at, timer) => self.tick(at, timer),
            Event::Response(at, request, arrival, since_us) => self.respond(at, request, arrival, since_us),
            Event::Up(id, frame) => self.arrives(id, Carried::Up(frame)),
            Event::Down(id, frame) => self.arrives(id, Carried::Down(frame)),
            Event::Keepalive(id, end) => self.keepalive(id, end),
            Event::Aggregator(at, incarnation, due) => self.aggregator_due(at, incarnation, due),
            Event::StoreTakes(store, at, id, request) => self.store_takes(store, at, id, request),
            Event::Replied(id, reply) => self.replied(id, reply),
            Event::Received(at, incarnation, message) => self.receive_broadcast(at, incarnation, message),
            Event::Fault(number, begins) => self.fault(number, begins),
            Event::Roll(at, ends) => self.roll(at, ends),
            Event::ApiCall => self.route_api_call(),
            Event::CheckBounds => self.check_bounds(),
            Event::Rest(cell) => self.rest(cell),
        }
    }

    fn place(&self, envoy: usize) -> (usize, usize) {
        let of = self.plan.topology.envoys.max(1);
        (envoy / of, envoy % of)
    }

    fn envoy_at(&self, region: usize, envoy: usize) -> usize {
        // A place outside the topology has a number without a part.
        let exists = region < self.plan.topology.regions && envoy < self.plan.topology.envoys;
        if exists { region * self.plan.topology.envoys + envoy } else { usize::MAX }
    }

    fn aggregator_at(&self, region: usize, aggregator: usize) -> usize {
        let exists = region < self.plan.topology.regions && aggregator < self.plan.topology.aggregators;
        if exists { region * self.plan.topology.aggregators + aggregator } else { usize::MAX }
    }

    fn count_up(&mut self, frame: &FilterFrame) {
        self.counts.frames += 1;
        self.counts.queries += frame.queries.len() as u64;
    }

    fn note_wait(&mut self, at: WorkerAt, arrival: &Arrival, since_us: u64) {
        let waited_us = self.now_us.saturating_sub(since_us);
        self.waits_us.push(waited_us);
        // Exact rules are decided first; the other rules may then have to wait for the region.
        let timeout = |exact: bool| {
            let rules = keys::rules(arrival.rules).filter_map(|rule| self.shapes.get(rule));
            let alike = rules.filter(|shape| !shape.rule.shadow && shape.rule.exact.is_some() == exact);
            alike.map(|shape| shape.rule.timeout_ms).min()
        };
        let timeouts_ms: SmallVec<[u32; 2]> = [timeout(true), timeout(false)].into_iter().flatten().collect();
        self.check.waited(at.envoy, waited_us, &timeouts_ms, self.now_us);
    }
}
