//! The limiter of one worker: decides requests over the table that all workers of a process share.
//!
//! [`Limiter::decide`] tries the cheapest first: a cached denial, then a lease, then one change of the shared table
//! (`decide::charge`; `decide::judge` has the rule). If the local count may be stale, the request waits for a query to the region
//! (`remote::consults`), at most for its rule's timeout. Counts go through the `report::outbox` to the aggregator; others' counts are
//! merged by max (`decide::snapshots`). [`Limiter::decide_exact`] also handles rules with exact limits: the request waits for an exact
//! response first (`decide::exact`). A cost may be known only from the response (`decide::deferred`): [`Limiter::settle_cost`] settles it.
//!
//! Call one of the two for each request, [`Limiter::tick`] every [`Limiter::next_tick_ms`], and [`Limiter::on_frame`] for each frame.
//! After each of them send the frames of [`Limiter::take_frames`], answer the requests of [`Limiter::take_resolved`], and count the
//! outcomes of [`Limiter::take_shadow_outcomes`].

mod cache;
mod check;
mod decide;
mod remote;
mod report;
mod stats;
pub mod table;
mod transact;
mod upkeep;

use crate::limiter::table::{Bucket, Meta};
use crate::model::key::OriginId;
use crate::model::shared::Shared;
use crate::model::time::{MonoMs, Now, UnixMs};
use crate::model::trace::Trace;
use crate::model::wire;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use cache::denials::Denials;
use cache::worker_cache::WorkerCache;
use decide::deferred::DeferredCosts;
use decide::exact::PendingExact;
use decide::item::Item;
use decide::judge::Health;
use decide::lease::Due;
use decide::violations::Violations;
use remote::consults::{Consults, Need, Waiting};
use remote::exact_requests::ExactRequests;
use remote::link::Link;
use remote::ration::Ration;
use remote::registry::WorkerRegistry;
use report::outbox::Outbox;
use report::resync::{Offer, Resync};
use transact::{Make, Table};

pub use check::{
    Budget, Cause, Check, ConsultResult, Decision, Denial, ExactCheck, ExactDetails, ExactLimit, ExactResult,
    MAX_TRANSACTIONS, Outcome, Policy, Reason, ShadowOutcome, Transactions,
};
pub use decide::deferred::MAX_DEFERRED_REQUESTS;
pub use decide::judge::{ANSWER_SERVES_MS, SLACK_PART, STALE_MS, STRICT_PER_SECOND, TOLERANCE_PART, slack};
pub use decide::round::MAX_CHECKS;
pub use decide::violations::{MAX_VIOLATORS, Violation, Violator, counts_denials, violations_namespace};
pub use remote::link::{FRESH_MS, GiveUp, PING_MS};
pub use stats::Stats;
pub use transact::OVERFLOW_IDENTIFIER;

/// Time between ticks while no request waits: the interval of reports, pings and pushes.
pub const TICK_MS: u64 = 50;
/// Time between ticks while a request waits, so that its timeout is observed.
pub const WAITING_TICK_MS: u64 = 10;
/// A report with this many cells is sent at once.
const FLUSH_ROWS: usize = wire::MAX_FRAME_CELLS;
/// Most leases that are returned in one tick.
const SETTLES_A_TICK: usize = 4_096;
/// Least time between two reads of the worker registry; a little less than a tick, as ticks jitter.
const REGISTRY_MS: u64 = 40;
/// A step of the clock by more than this invalidates cached denials and leases.
const CLOCK_STEP_MS: u64 = 1_000;
/// Most queries a second of a worker for keys in strict mode; beyond them it spends slack.
const STRICT_QUESTIONS_PER_SECOND: u64 = 200;
/// Most queries a second of a worker for new keys. Beyond them, it assumes that a key which is not in the complete snapshot is below
/// half its limit.
const COLD_QUESTIONS_PER_SECOND: u64 = 500;
/// A measurement of the region's clock is used for this long.
const CLOCK_MEMORY_MS: u64 = 60_000;

/// Parameters of a limiter.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The table of the process.
    pub meta: Meta,
    /// Identifies the worker: random, of which the lower 62 bits are used.
    pub worker: u64,
    /// Version of the configuration: a cached denial applies only to the version under which it was made.
    pub version: u64,
    /// Size of the worker cache, in sets of four keys.
    pub local_sets: usize,
}

/// The state machine of one worker.
#[derive(Debug)]
pub struct Limiter {
    origin: OriginId,
    worker: u64,
    version: u64,
    table: Table,
    worker_cache: WorkerCache,
    outbox: Outbox,
    link: Link,
    consults: Consults,
    exact_requests: ExactRequests,
    /// Requests that wait for queries after their exact rules were decided.
    pending_exact: BTreeMap<u64, PendingExact>,
    denials: Denials,
    shadow_outcomes: Vec<(u16, ShadowOutcome)>,
    /// Requests whose cost comes from the response.
    deferred: DeferredCosts,
    violations: Violations,
    registry: WorkerRegistry,
    resync: Option<Resync>,
    offer: Offer,
    resync_bucket: Bucket,
    /// The stream was opened since the last read of the registry.
    gap: bool,
    /// A resync has sent everything up to this gap; written at the next access to the registry.
    resent: Option<u64>,
    /// When this worker first read the gap that is to be closed next.
    gap_seen: Option<MonoMs>,
    /// Live nodes of the region, as the aggregators of the process' workers reported them.
    others_origins: u32,
    /// Dead workers whose counts a resync has reported; they are removed at the next access to the registry.
    reaped: Vec<u64>,
    /// When each lease is to be returned.
    leases: Due,
    /// Keys on which leased budget caused a denial since the last access to the registry.
    recall: Vec<u64>,
    /// Leases that are still to be returned, if too many keys were recalled to list them.
    returning: usize,
    /// Unix time minus monotonic time, by the machine's own clock.
    wall_offset_ms: u64,
    /// The same, by the clock that was used at the last tick.
    offset_ms: u64,
    /// When this worker last updated the registry.
    synced: Option<MonoMs>,
    flushed: MonoMs,
    /// Whether the stream was last opened or renewed as the subscriber; `None` before its first frame.
    reported_subscriber: Option<bool>,
    /// The registry was updated since the stream was opened. An earlier subscription may have ended: if this worker claimed it while
    /// another one has it, and released it then, the process would have no subscriber.
    listed: bool,
    /// A complete snapshot was received on the stream.
    complete: bool,
    serves: bool,
    items: Vec<Item>,
    resolved: Vec<(u64, Outcome)>,
    strict_questions: Ration,
    cold_questions: Ration,
    stats: Stats,
}

impl Limiter {
    /// A worker's limiter over an established table.
    pub fn new(setup: Setup, now: Now) -> Limiter {
        let worker = setup.worker & (u64::MAX >> 2);
        Limiter {
            origin: setup.meta.origin,
            worker,
            version: setup.version,
            table: Table::new(setup.meta.secret, setup.meta.geometry),
            worker_cache: WorkerCache::new(setup.local_sets),
            outbox: Outbox::default(),
            link: Link::new(worker),
            consults: Consults::default(),
            exact_requests: ExactRequests::default(),
            pending_exact: BTreeMap::new(),
            denials: Denials::default(),
            shadow_outcomes: Vec::new(),
            deferred: DeferredCosts::default(),
            violations: Violations::default(),
            registry: WorkerRegistry::default(),
            resync: None,
            offer: Offer::default(),
            resync_bucket: Bucket::default(),
            gap: false,
            resent: None,
            gap_seen: None,
            others_origins: 1,
            reaped: Vec::new(),
            leases: Due::default(),
            recall: Vec::new(),
            returning: 0,
            wall_offset_ms: now.unix.0.saturating_sub(now.mono.0),
            offset_ms: now.unix.0.saturating_sub(now.mono.0),
            synced: None,
            flushed: MonoMs(0),
            reported_subscriber: None,
            listed: false,
            complete: false,
            serves: false,
            items: Vec::new(),
            resolved: Vec::new(),
            strict_questions: Ration::new(STRICT_QUESTIONS_PER_SECOND, now.mono),
            cold_questions: Ration::new(COLD_QUESTIONS_PER_SECOND, now.mono),
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
        match self.round(shared, request, checks, false, now) {
            Ok(outcome) => outcome,
            Err(_) if self.consults.is_full() => self.unanswered(shared, request, checks, now),
            Err(needs) => {
                self.query(request, Waiting::new(checks, now.mono), &needs, now.mono);
                Outcome::of(Decision::Wait, 0)
            }
        }
    }

    /// Adds a trace context to the queries of `request`, which has just been told to wait. Changes no decision.
    pub fn trace(&mut self, request: u64, trace: &Trace<'_>) {
        let trace = trace.to_wire();
        if !self.consults.trace(request, &trace) {
            self.exact_requests.trace(request, trace);
        }
    }

    /// Does periodic work: leases, the registry, timeouts, resync. `now.unix` is the machine's clock.
    pub fn tick(&mut self, shared: &mut impl Shared, now: Now) {
        self.wall_offset_ms = now.unix.0.saturating_sub(now.mono.0);
        let now = self.moment(now.mono);
        self.notice_clock_steps(now);
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
        }
    }

    /// Milliseconds until the next tick.
    pub fn next_tick_ms(&self) -> u64 {
        match self.consults.is_empty() && !self.exact_requests.is_waited_for() {
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
        let nothing_held = self.leases.len() == 0 && !self.has_deferred();
        self.consults.is_empty() && nothing_held && self.resync.is_none() && self.outbox.is_empty()
    }

    /// Whether the stream is open.
    pub fn is_connected(&self) -> bool {
        self.link.is_up()
    }

    /// Whether this worker is the subscriber: its stream receives the region's pushes.
    pub fn is_subscribed(&self) -> bool {
        self.reported_subscriber == Some(true) && self.link.is_up()
    }

    /// The frames to send now, in order. Empty unless a stream is open.
    pub fn take_frames(&mut self, shared: &mut impl Shared, now: MonoMs) -> Vec<wire::FilterFrame> {
        let now = self.moment(now);
        let mut frames = Vec::new();
        if self.link.is_closed() {
            return frames;
        }
        let subscriber = self.is_subscriber() && self.link.is_up() && self.listed;
        if self.reported_subscriber != Some(subscriber) {
            self.reported_subscriber = Some(subscriber);
            // A new subscription begins with a new snapshot, as pushes may have been missed since the last one.
            self.complete = false;
            frames.push(wire::FilterFrame { hello: Some(self.hello(subscriber)), ..Default::default() });
        }
        if !self.link.is_up() {
            return frames;
        }
        let consults = self.send_questions(shared, now);
        for some in consults.chunks(wire::MAX_FRAME_CELLS) {
            frames.push(wire::FilterFrame { consults: some.to_vec(), ..Default::default() });
        }
        self.exact_requests.take_frames(self.link.echo(), now.mono, &mut frames);
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
        self.link.should_open(now)
    }

    /// Whether and why to cancel the stream; then call [`Limiter::on_closed`]. The next stream may reach another aggregator.
    pub fn should_give_up(&self, now: MonoMs) -> Option<GiveUp> {
        self.link.should_give_up(self.outbox.owed_since(), now)
    }

    /// Notes that a stream is being opened.
    pub fn on_opening(&mut self, now: MonoMs) {
        self.link.deferred_cost(now);
        self.reported_subscriber = None;
    }

    /// Notes that the stream ended, or could not be opened.
    pub fn on_closed(&mut self, shared: &mut impl Shared, now: MonoMs) {
        let now = self.moment(now);
        let unacknowledged = self.should_give_up(now.mono) == Some(GiveUp::Unacknowledged);
        self.stats.unacknowledged = self.stats.unacknowledged.saturating_add(u64::from(unacknowledged));
        self.link.closed(now.mono);
        self.outbox.broken();
        self.complete = false;
        self.listed = false;
        self.reported_subscriber = None;
        self.break_exact(shared, now);
        self.break_waiting(shared, now);
    }

    /// Applies a frame of the aggregator.
    pub fn on_frame(&mut self, shared: &mut impl Shared, frame: &wire::RegionFrame, now: MonoMs) {
        let now = self.moment(now);
        if frame.welcome.as_ref().is_some_and(|welcome| welcome.version == wire::PROTOCOL_VERSION) {
            self.link.welcomed(now.mono);
            self.reported_subscriber = Some(false);
            self.listed = false;
            // The aggregator of this stream may have fewer counts than the process.
            self.gap = true;
        }
        if let Some(pong) = &frame.pong {
            self.link.echoed(pong, now.mono);
        }
        for answer in &frame.answers {
            self.answered(shared, answer, now);
        }
        for results in &frame.results {
            self.ruled(shared, results, now);
        }
        if let Some(ack) = &frame.ack {
            self.stats.refused = self.stats.refused.saturating_add(ack.refused.len() as u64);
            let worker_cache = &mut self.worker_cache;
            let acknowledged = self.outbox.acknowledged(
                ack.report_id,
                &ack.refused,
                now.mono,
                |fingerprint, sequence, own| {
                    if let Some(slot) = worker_cache.get(fingerprint) {
                        slot.acked.note(sequence, own);
                    }
                },
            );
            self.unmark_stored(shared, &acknowledged.stored, now);
            self.keep_unstored(shared, &acknowledged.refused, now);
            self.merge_snapshots(shared, &ack.baselines, Make::Never, now);
        }
        if let Some(push) = &frame.push {
            self.merge_snapshots(shared, &push.snapshots, Make::WhereFree, now);
            self.complete |= push.complete;
        }
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
            self.exact_requests.take_frames(self.link.echo(), now.mono, &mut frames);
            self.push_reports(true, now.mono, &mut frames);
        }
        WorkerRegistry::sign_off(shared, self.worker, now.mono);
        frames
    }

    /// Figures for metrics.
    pub fn stats(&self, now: MonoMs) -> Stats {
        Stats {
            report_queue: self.outbox.len() as u64,
            connected: self.link.is_up(),
            settled: self.link.has_settled(now),
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
        let offset_ms = now.unix.0.saturating_sub(now.mono.0);
        if offset_ms.abs_diff(self.offset_ms) > CLOCK_STEP_MS {
            self.version = self.version.wrapping_add(1);
            self.gap |= self.is_subscriber();
        }
        self.offset_ms = offset_ms;
    }

    /// Makes `request` wait for the answers that it needs.
    fn query(&mut self, request: u64, waiting: Waiting, needs: &[Need], now: MonoMs) {
        let (stats, strict, cold) = (&mut self.stats, &mut self.strict_questions, &mut self.cold_questions);
        self.consults.wait(request, waiting, needs, |reason| {
            stats.asked(reason);
            match reason {
                Reason::Strict => strict.take(now),
                Reason::Cold | Reason::Baseline => cold.take(now),
                Reason::Stale | Reason::Slack => {}
            }
        });
    }

    /// Both clocks at `mono`, the same for all workers of the process: Unix time by the region's clock if the registry has a measurement
    /// of the last minute, else by the machine's.
    pub fn moment(&self, mono: MonoMs) -> Now {
        let clock = self.registry.clock;
        let is_measured = clock.measured != MonoMs(0) && mono.since(clock.measured) < CLOCK_MEMORY_MS;
        let offset = if is_measured { clock.offset_ms } else { self.wall_offset_ms };
        Now { unix: UnixMs(mono.0.saturating_add(offset)), mono }
    }

    fn health(&self, now: MonoMs) -> Health {
        Health {
            usable: self.link.is_usable(),
            fresh: self.registry.complete
                && self.registry.echo != MonoMs(0)
                && now.since(self.registry.echo) < FRESH_MS,
            complete: self.registry.complete,
            origins: self.origins(now),
            strict: self.strict_questions.is_left(now),
            cold: self.cold_questions.is_left(now),
        }
    }

    fn is_subscriber(&self) -> bool {
        self.registry.subscriber == self.worker
    }

    fn hello(&self, subscriber: bool) -> wire::Hello {
        wire::Hello {
            version: wire::PROTOCOL_VERSION,
            origin: self.origin.0.to_vec(),
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
