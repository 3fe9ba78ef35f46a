//! The limiter of one worker: decides requests over the table that all workers of a process share.
//!
//! [`Limiter::decide`] tries the cheapest first: a cached denial, then a lease, then one change of the shared table
//! (`decide::charge`; `decide::judge` has the rule). If the local count may be stale, the request waits for a query to the region
//! (`remote::queries`, `remote::waiting`), at most for its rule's timeout. Counts go through the `report::outbox` to the aggregator; others' counts are
//! merged by max (`decide::snapshots`). Requests with exact rules (`decide::exact`) wait for an exact
//! response first. A cost may be known only from the response (`decide::deferred`): [`Limiter::settle_cost`] settles it.

mod cache;
mod check;
mod clock;
mod compiled;
mod decide;
mod given_back;
mod remote;
mod report;
mod rule_set;
mod stats;
pub mod table;
mod transact;
mod upkeep;

use crate::limiter::table::Meta;
use crate::model::key::NodeId;
use crate::model::shared::Shared;
use crate::model::time::{MonoMs, Now};
use crate::model::trace::Trace;
use crate::model::wire;
use alloc::vec::Vec;
use cache::worker_cache::WorkerCache;
use clock::Clock;
use decide::deferred::DeferredCosts;
use decide::exact::Exact;
use decide::item::Item;
use decide::judge::Health;
use decide::lease::Leases;
use decide::violations::Violations;
use remote::link::Link;
use remote::queries::{Need, Queries};
use remote::registry::WorkerRegistry;
use remote::subscription::Subscription;
use remote::waiting::{ExactPart, WaitingRequest, WaitingRequests};
use report::outbox::Outbox;
use report::resync::Resyncs;
use transact::{Make, Table};

pub use check::{
    Budget, Cause, Check, Checks, Decision, Denial, ExactDetails, ExactResult, MAX_BUDGETS, MAX_TRANSACTIONS,
    Outcome, Policy, QueryResult, Reason, ShadowOutcome, Transactions, Visibility,
};
pub use compiled::{CompiledRule, Terms};
pub use decide::deferred::MAX_DEFERRED_REQUESTS;
pub use decide::judge::{ANSWER_SERVES_MS, SLACK_PART, STALE_MS, STRICT_PER_SECOND, TOLERANCE_PART, slack};
pub use decide::violations::{MAX_VIOLATORS, Violation, Violator, violations_namespace};
pub use given_back::{CellCount, GivenBack, MAX_GIVEN_BACK};
pub use remote::link::{FRESH_MS, GiveUp, PING_MS};
pub use rule_set::RuleSet;
pub use stats::{Gauges, METRICS, Stats};
pub use transact::OVERFLOW_IDENTIFIER;

/// Time between ticks while no request waits: the interval of reports, pings and pushes.
pub const TICK_MS: u64 = 50;
/// Time between ticks while a request waits, so that its timeout is observed.
pub const WAITING_TICK_MS: u64 = 10;
/// A report with this many cells is sent at once.
const FLUSH_ROWS: usize = wire::MAX_FRAME_CELLS;
/// A worker that was replaced rests after this time without a decision. One that had to wake is not replaced: it takes twice as long each
/// time, since its process repeats all counts after each new stream, and evicts nothing until then.
pub const REST_MS: u64 = 10_000;
/// The longest time until a worker rests.
pub const REST_MS_MAX: u64 = 600_000;
/// Least time between two reads of the worker registry; a little less than a tick, as ticks jitter.
const REGISTRY_MS: u64 = 40;

/// Parameters of a limiter.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The table of the process.
    pub meta: Meta,
    /// Identifies the worker: random, of which the lower 62 bits are used.
    pub worker: u64,
    /// Largest size of the worker cache, in sets of four keys; rounded up to a power of two.
    pub local_sets: usize,
}

/// The state machine of one worker. It performs no I/O; the caller passes time and shared data to each method.
///
/// - Inputs: [`Limiter::decide`] for each request and [`Limiter::settle_cost`] for each deferred cost; [`Limiter::tick`] after
///   [`Limiter::next_tick_ms`]; [`Limiter::on_opening`], [`Limiter::on_frame`] and [`Limiter::on_closed`] for the stream.
/// - Outputs, to be taken after each input: the frames of [`Limiter::take_frames`], the decided requests of
///   [`Limiter::take_resolved`], the outcomes of [`Limiter::take_shadow_outcomes`].
/// - When to act: [`Limiter::should_open`] and [`Limiter::should_give_up`] for the stream; [`Limiter::is_urgent`] if frames are to be
///   sent before the next tick.
///
/// [`Limiter::shutdown`] returns the last frames.
#[derive(Debug)]
pub struct Limiter {
    node: NodeId,
    worker: u64,
    /// How often the clock has stepped: a cached denial applies only until the next step.
    clock_steps: u64,
    table: Table,
    worker_cache: WorkerCache,
    outbox: Outbox,
    link: Link,
    /// Requests that wait for an exact response or for answers.
    waiting: WaitingRequests,
    queries: Queries,
    exact: Exact,
    /// Requests whose cost comes from the response.
    deferred: DeferredCosts,
    violations: Violations,
    registry: WorkerRegistry,
    resync: Resyncs,
    /// Live nodes of the region, as the aggregators of the process' workers reported them.
    registered_nodes: u32,
    leases: Leases,
    clock: Clock,
    /// When this worker last updated the registry.
    synced: Option<MonoMs>,
    flushed: MonoMs,
    subscription: Subscription,
    serves: bool,
    /// When this worker last decided, charged or settled something.
    decided: MonoMs,
    /// It has given back what it holds in its process, until its next decision.
    rests: bool,
    /// Time without a decision after which it may rest.
    rests_after_ms: u64,
    items: Vec<Item>,
    resolved: Vec<(u64, Outcome)>,
    stats: Stats,
}

impl Limiter {
    /// A worker's limiter over an established table.
    pub fn new(setup: Setup, now: Now) -> Limiter {
        let worker = setup.worker & (u64::MAX >> 2);
        Limiter {
            node: setup.meta.node,
            worker,
            clock_steps: 0,
            table: Table::new(setup.meta.secret, setup.meta.geometry),
            worker_cache: WorkerCache::new(setup.local_sets),
            outbox: Outbox::default(),
            link: Link::new(worker),
            waiting: WaitingRequests::default(),
            queries: Queries::new(now.mono),
            exact: Exact::default(),
            deferred: DeferredCosts::default(),
            violations: Violations::default(),
            registry: WorkerRegistry::default(),
            resync: Resyncs::default(),
            registered_nodes: 1,
            leases: Leases::default(),
            clock: Clock::new(now),
            synced: None,
            flushed: MonoMs(0),
            subscription: Subscription::default(),
            serves: false,
            decided: now.mono,
            rests: false,
            rests_after_ms: REST_MS,
            items: Vec::new(),
            resolved: Vec::new(),
            stats: Stats::default(),
        }
    }

    /// Decides a request that `checks` apply to. `request` names it in [`Limiter::take_resolved`] if it has to wait.
    pub fn decide(
        &mut self,
        shared: &mut impl Shared,
        request: u64,
        checks: &[Check<'_>],
        now: MonoMs,
    ) -> Outcome {
        self.serves = true;
        let now = self.enter(shared, now);
        let windows = checks.iter().take_while(|check| check.is_window()).count();
        let (windows, others) = checks.split_at_checked(windows).unwrap_or_default();
        if others.iter().any(Check::is_window) {
            let mut sorted = checks.to_vec();
            sorted.sort_by_key(|check| !check.is_window());
            let windows = sorted.partition_point(Check::is_window);
            let (windows, exact) = sorted.split_at_checked(windows).unwrap_or_default();
            return self.decide_exact(shared, request, windows, exact, now);
        }
        match others.is_empty() {
            true => self.decide_windows_alone(shared, request, windows, now),
            false => self.decide_exact(shared, request, windows, others, now),
        }
    }

    fn decide_windows_alone(
        &mut self,
        shared: &mut impl Shared,
        request: u64,
        checks: &[Check<'_>],
        now: Now,
    ) -> Outcome {
        match self.decide_windows(shared, request, checks, now) {
            Ok(outcome) => outcome,
            Err(needs) => {
                let waiting = WaitingRequest::for_answers(checks, ExactPart::default(), now.mono);
                self.query(request, waiting, &needs, now.mono);
                Outcome::of(Decision::Wait)
            }
        }
    }

    /// The outcome of a request's windows, or the queries that they need first.
    fn decide_windows(
        &mut self,
        shared: &mut impl Shared,
        request: u64,
        checks: &[Check<'_>],
        now: Now,
    ) -> Result<Outcome, Vec<Need>> {
        match self.round(shared, request, checks, now) {
            Err(_) if self.waiting.is_full() => Ok(self.unanswered(shared, request, checks, now)),
            decided => decided,
        }
    }

    /// Adds a trace context to the queries of `request`, which has just begun to wait. Changes no decision.
    pub fn trace(&mut self, request: u64, trace: &Trace<'_>) {
        let trace = trace.to_wire();
        if self.waiting.set_trace(request, &trace) {
            self.exact.requests.set_trace(request, trace);
        }
    }

    /// Does periodic work: leases, the registry, timeouts, resync. `now.unix` is the machine's clock.
    pub fn tick(&mut self, shared: &mut impl Shared, now: Now) {
        self.clock.tick(self.registry.clock, now);
        let now = self.moment(now.mono);
        self.notice_clock_steps(now);
        if self.rests {
            return;
        }
        self.expire_exact(shared, now);
        self.expire_waiting(shared, now);
        self.expire_open(shared, now);
        if self.synced.is_none_or(|synced| now.mono.since(synced) >= REGISTRY_MS) {
            self.sync_registry(shared, now);
            // Not at the short ticks while requests wait, as this can take milliseconds.
            self.settle_due(shared, now);
            self.flush_violations(shared, now);
            self.plan_resync(now);
            self.step_resync(shared, now);
            self.finish_resync(now);
            self.fit_cache(now.mono);
        }
    }

    /// Milliseconds until the next tick.
    pub fn next_tick_ms(&self) -> u64 {
        match self.waiting.is_empty() {
            true => TICK_MS,
            false => WAITING_TICK_MS,
        }
    }

    /// Whether a full report waits and is to be sent at once.
    pub fn is_urgent(&self) -> bool {
        self.outbox.len() >= FLUSH_ROWS
    }

    /// Whether nothing waits, nothing is leased and all counts are stored, so that the stream can end without loss.
    pub fn is_at_rest(&self) -> bool {
        let nothing_held = self.leases.is_empty() && !self.has_deferred();
        !self.waiting.has_queries() && nothing_held && self.resync.is_idle() && self.outbox.is_empty()
    }

    /// Whether the stream is open.
    pub fn is_connected(&self) -> bool {
        self.link.is_up()
    }

    /// Whether this worker is the subscriber: its stream receives the region's pushes.
    pub fn is_subscribed(&self) -> bool {
        self.subscription.is_active() && self.link.is_up()
    }

    /// The frames to send now, in order. Empty unless a stream is open.
    pub fn take_frames(&mut self, shared: &mut impl Shared, now: MonoMs) -> Vec<wire::FilterFrame> {
        let now = self.moment(now);
        let mut frames = Vec::new();
        if self.link.is_closed() {
            return frames;
        }
        let wanted = self.is_subscriber() && self.link.is_up();
        if let Some(subscriber) = self.subscription.renew(wanted) {
            frames.push(wire::FilterFrame { hello: Some(self.hello(subscriber)), ..Default::default() });
        }
        if !self.link.is_up() {
            return frames;
        }
        let queries = self.send_queries(shared, now);
        for some in queries.chunks(wire::MAX_FRAME_CELLS) {
            frames.push(wire::FilterFrame { queries: some.to_vec(), ..Default::default() });
        }
        self.exact.requests.take_frames(self.link.echo(), now.mono, &mut frames);
        if self.outbox.len() >= FLUSH_ROWS || now.mono.since(self.flushed) >= REGISTRY_MS {
            self.flushed = now.mono;
            self.push_reports(false, now.mono, &mut frames);
        }
        if let Some(ping) = self.link.next_ping(now.mono) {
            frames.push(wire::FilterFrame { ping: Some(ping), ..Default::default() });
        }
        frames
    }

    /// Requests that waited and have been decided, in order.
    pub fn take_resolved(&mut self) -> Vec<(u64, Outcome)> {
        core::mem::take(&mut self.resolved)
    }

    /// Whether to open a stream. Then call [`Limiter::on_opening`], or [`Limiter::on_closed`] if that fails.
    pub fn should_open(&self, now: MonoMs) -> bool {
        !self.rests && self.link.should_open(now)
    }

    /// Whether and why to cancel the stream; then call [`Limiter::on_closed`]. The next stream may reach another aggregator.
    pub fn should_give_up(&self, now: MonoMs) -> Option<GiveUp> {
        self.link.should_give_up(self.outbox.owed_since(), now)
    }

    /// Notes that a stream is being opened.
    pub fn on_opening(&mut self, now: MonoMs) {
        self.link.opening(now);
        self.subscription.opening();
    }

    /// Notes that the stream ended, or could not be opened.
    pub fn on_closed(&mut self, shared: &mut impl Shared, now: MonoMs) {
        let now = self.moment(now);
        let unacknowledged = self.should_give_up(now.mono) == Some(GiveUp::Unacknowledged);
        self.stats.unacknowledged = self.stats.unacknowledged.saturating_add(u64::from(unacknowledged));
        self.link.closed(now.mono);
        self.outbox.broken();
        self.subscription.closed();
        self.break_exact(shared, now);
        self.break_waiting(shared, now);
    }

    /// Ends the stream of a worker that is [at rest](Limiter::is_at_rest) and has decided nothing for long. Its counts of the others become old,
    /// so its next requests wait for a stream.
    pub fn leave(&mut self, shared: &mut impl Shared, now: MonoMs) {
        self.on_closed(shared, now);
        self.link.left();
    }

    /// Gives back the worker's entry in the registry, its cache and its stream, if it owes nothing and has decided nothing for [`REST_MS`], or
    /// up to [`REST_MS_MAX`] if it has rested before. Its next decision takes them again. If true, the caller ends the stream.
    pub fn rest(&mut self, shared: &mut impl Shared, now: MonoMs) -> bool {
        let waits = !self.is_quiet() || !self.exact.requests.is_settled() || self.resync.has_offer();
        let owes_nothing = self.is_at_rest() && !waits;
        if self.rests || !owes_nothing || now.since(self.decided) < self.rests_after_ms {
            return false;
        }
        self.leave(shared, now);
        self.stats.gauges.add(&WorkerRegistry::sign_off(shared, self.worker, now));
        self.worker_cache.clear();
        // Another worker is the subscriber now.
        self.registry.subscriber = 0;
        (self.rests, self.synced) = (true, None);
        true
    }

    /// Ends the stream without a failure, so that another one is opened at once. Requests wait for that one, but those that wait for answers
    /// of this one are decided without.
    pub fn on_moved(&mut self, shared: &mut impl Shared, now: MonoMs) {
        self.on_closed(shared, now);
        self.link.moved();
    }

    /// Whether no request waits, so that the stream can be moved without a loss.
    pub fn is_quiet(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Applies a frame of the aggregator.
    pub fn on_frame(&mut self, shared: &mut impl Shared, frame: &wire::RegionFrame, now: MonoMs) {
        let now = self.moment(now);
        if let Some(welcome) = &frame.welcome {
            self.on_welcome(welcome, now);
        }
        if let Some(pong) = &frame.pong {
            self.link.on_pong(pong, now.mono);
        }
        for answer in &frame.answers {
            self.on_answer(shared, answer, now);
        }
        for response in &frame.results {
            self.on_exact_response(shared, response, now);
        }
        if let Some(ack) = &frame.ack {
            self.on_ack(shared, ack, now);
        }
        if let Some(push) = &frame.push {
            self.merge_snapshots(shared, &push.snapshots, Make::WhereFree, now);
            self.subscription.on_push(push.complete);
        }
    }

    fn on_welcome(&mut self, welcome: &wire::Welcome, now: Now) {
        if welcome.version == wire::PROTOCOL_VERSION {
            self.link.on_welcome(now.mono);
            self.subscription.on_welcome();
            // The aggregator of this stream may have fewer counts than the process.
            self.resync.note_gap();
        }
    }

    fn on_ack(&mut self, shared: &mut impl Shared, ack: &wire::Ack, now: Now) {
        self.stats.refused = self.stats.refused.saturating_add(ack.refused.len() as u64);
        let worker_cache = &mut self.worker_cache;
        let acknowledged = self.outbox.on_ack(ack.report_id, &ack.refused, now.mono, |cell| {
            if let Some(slot) = worker_cache.get(cell.fingerprint) {
                slot.acked.note(cell.sequence, cell.own);
            }
        });
        self.unmark_stored(shared, &acknowledged.stored, now);
        self.keep_unstored(shared, &acknowledged.refused, now);
        self.merge_snapshots(shared, &ack.baselines, Make::Never, now);
    }

    /// Ends the worker: returns leases to the table, returns unreported counts as frames to send, and leaves the registry, so that other
    /// workers do not have to detect its end.
    pub fn shutdown(&mut self, shared: &mut impl Shared, now: MonoMs) -> Vec<wire::FilterFrame> {
        let now = self.moment(now);
        // First, as requests that waited for exact responses may have to wait for queries now.
        self.break_exact(shared, now);
        self.break_waiting(shared, now);
        self.return_leases(shared, now);
        self.spend_all_open(shared, now);
        self.flush_violations(shared, now);
        let mut frames = Vec::new();
        if self.link.is_up() {
            self.exact.requests.take_frames(self.link.echo(), now.mono, &mut frames);
            self.push_reports(true, now.mono, &mut frames);
        }
        self.stats.gauges.add(&WorkerRegistry::sign_off(shared, self.worker, now.mono));
        frames
    }

    /// Figures for metrics.
    pub fn stats(&self, now: MonoMs) -> Stats {
        Stats {
            report_queue: self.outbox.len() as u64,
            subscriber: self.is_subscriber(),
            snapshot_age_ms: if self.registry.echo == MonoMs(0) {
                u64::MAX
            } else {
                now.since(self.registry.echo)
            },
            ..self.stats
        }
    }

    /// Handles a step of the clock: cached denials are dropped, as their times are wrong. The counts belong to other cells now, so they
    /// are reported again.
    fn notice_clock_steps(&mut self, now: Now) {
        if self.clock.steps_to(now) {
            self.clock_steps = self.clock_steps.wrapping_add(1);
            if self.is_subscriber() {
                self.resync.note_gap();
            }
        }
    }

    /// Makes `request` wait for the answers that it needs.
    fn query(&mut self, request: u64, waiting: WaitingRequest, needs: &[Need], now: MonoMs) {
        self.queries.wait(&mut self.waiting, request, waiting, needs, &mut self.stats, now);
    }

    /// Both clocks at `mono`, the same for all workers of the process: Unix time by the region's clock as the registry has measured it,
    /// or before that by the machine's.
    pub fn moment(&self, mono: MonoMs) -> Now {
        self.clock.moment(self.registry.clock, mono)
    }

    fn health(&self, now: MonoMs) -> Health {
        Health {
            usable: self.link.is_usable(),
            fresh: self.registry.complete
                && self.registry.echo != MonoMs(0)
                && now.since(self.registry.echo) < FRESH_MS,
            complete: self.registry.complete,
            nodes: self.nodes(now),
            strict: self.queries.strict.is_left(now),
            cold: self.queries.cold.is_left(now),
        }
    }

    fn is_subscriber(&self) -> bool {
        self.registry.subscriber == self.worker
    }

    fn hello(&self, subscriber: bool) -> wire::Hello {
        wire::Hello {
            version: wire::PROTOCOL_VERSION,
            node: self.node.0.to_vec(),
            worker: self.worker,
            subscriber,
        }
    }

    fn push_reports(&mut self, last: bool, now: MonoMs, frames: &mut Vec<wire::FilterFrame>) {
        let mut reports = Vec::new();
        self.outbox.take(last, now, &mut reports);
        let framed = |report| wire::FilterFrame { report: Some(report), ..Default::default() };
        frames.extend(reports.into_iter().map(framed));
    }
}

#[cfg(test)]
mod tests;
