//! The limiter of one worker: decides requests over the table that all workers of a process share.
//!
//! [`Limiter::decide`] tries the cheapest first: a cached denial, then a lease, then one change of the shared table (`local::charge`;
//! `local::judge` has the rule). If the local count may be stale, the request waits for a query to the region (`connection::answers`), at
//! most for its rule's timeout. Counts go through the `local::outbox` to the aggregator; others' counts are merged by max (`local::merge`).
//! Requests with exact rules wait for an exact response first (`connection::exact`). A cost may be known only from the response
//! (`local::deferred`): [`Limiter::settle_cost`] settles it.
//!
//! While nothing happens on a worker it ticks and pings rarely (`connection::pace`).
//!
//! `local` is what a worker has in its process, `connection` what it exchanges with its aggregator. [`Limiter::next`] states the order in
//! which a driver does what follows from both.

mod check;
mod compiled;
mod connection;
mod given_back;
mod local;
mod output;
mod rule_set;
mod stats;
pub mod table;

use crate::limiter::table::Meta;
use crate::model::shared::Shared;
use crate::model::time::{MonoMs, Now};
use crate::model::trace::Trace;
use crate::model::wire;
use connection::Connection;
use local::{Local, Turn};

pub use check::{
    Budget, Cause, Check, Checks, Decision, Denial, ExactDetails, ExactResult, MAX_BUDGETS, MAX_TRANSACTIONS,
    Outcome, Policy, QueryResult, Reason, ShadowOutcome, Transactions, Visibility,
};
pub use compiled::{CompiledRule, Terms};
pub use connection::link::{FRESH_MS, PING_MS};
pub use connection::pace::IDLE_PING_MS;
pub use given_back::{CellCount, GivenBack, MAX_GIVEN_BACK};
pub use local::deferred::{MAX_DEFERRED_REQUESTS, SettledCharge, SettledCharges};
pub use local::judge::{ANSWER_SERVES_MS, SLACK_PART, STALE_MS, STRICT_PER_SECOND, TOLERANCE_PART, slack};
pub use local::transact::OVERFLOW_IDENTIFIER;
pub use local::violations::{MAX_VIOLATORS, Violation, Violator, violations_namespace};
pub use output::{CloseReason, Output};
pub use rule_set::RuleSet;
pub use stats::{Gauges, METRICS, Stats};

/// Time between ticks while no request waits and the worker is not idle: the interval of reports, pings and pushes.
pub const TICK_MS: u64 = 50;
/// The highest number of a worker.
const MAX_WORKER: u64 = u64::MAX >> 2;
/// Time between ticks while a request waits, so that its timeout is observed.
pub const WAITING_TICK_MS: u64 = 10;
/// A report with this many cells is sent at once.
const FLUSH_ROWS: usize = wire::MAX_FRAME_CELLS;
/// A worker that was replaced rests after this time without a decision. One that had to wake is not replaced: it takes twice as long each
/// time, since its process repeats all counts after each new stream, and evicts nothing until then.
pub const REST_MS: u64 = 10_000;
/// The longest time until a worker rests.
const REST_MS_MAX: u64 = 600_000;
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
///   [`Limiter::next_tick_ms`]; [`Limiter::on_frame`] and [`Limiter::on_closed`] for the stream.
/// - Outputs: after each input, [`Limiter::next`] until it returns `None`. After a request only if it waits, or if the limiter
///   [is urgent](Limiter::is_urgent).
///
/// What it has in its process is in `local`, what it exchanges with its aggregator in `connection`.
#[derive(Debug)]
pub struct Limiter {
    local: Local,
    connection: Connection,
    rest: Rest,
}

/// When a worker gives back what it holds in its process.
#[derive(Debug)]
struct Rest {
    /// It has done so, until its next decision.
    rests: bool,
    /// Time without a decision after which it may.
    after_ms: u64,
}

impl Limiter {
    /// A worker's limiter over an established table.
    pub fn new(setup: Setup, now: Now) -> Limiter {
        let worker = setup.worker & MAX_WORKER;
        Limiter {
            local: Local::new(&setup.meta, worker, setup.local_sets, now.mono),
            connection: Connection::new(setup.meta.node, worker, now),
            rest: Rest { rests: false, after_ms: REST_MS },
        }
    }

    /// Decides a request that `checks` apply to. `request` names it in [`Output::Resolve`] if it has to wait.
    pub fn decide(
        &mut self,
        shared: &mut impl Shared,
        request: u64,
        checks: &[Check<'_>],
        now: MonoMs,
    ) -> Outcome {
        let now = self.enter(shared, now, true);
        let Limiter { local, connection, .. } = self;
        let windows = checks.iter().take_while(|check| check.is_window()).count();
        let (windows, others) = checks.split_at_checked(windows).unwrap_or_default();
        if others.iter().any(Check::is_window) {
            let mut sorted = checks.to_vec();
            sorted.sort_by_key(|check| !check.is_window());
            let windows = sorted.partition_point(Check::is_window);
            let (windows, exact) = sorted.split_at_checked(windows).unwrap_or_default();
            return connection.decide_exact(&mut Turn { local, shared, now }, request, windows, exact);
        }
        match others.is_empty() {
            true => connection.decide(local, shared, request, windows, now),
            false => connection.decide_exact(&mut Turn { local, shared, now }, request, windows, others),
        }
    }

    /// Adds a trace context to the queries of `request`, which has just begun to wait. Changes no decision.
    pub fn trace(&mut self, request: u64, trace: &Trace<'_>) {
        self.connection.trace(request, trace);
    }

    /// Whether `check` alone would pass by the local count, and what is left. Charges nothing and sends no query.
    pub fn peek(
        &mut self,
        shared: &mut impl Shared,
        check: &Check<'_>,
        now: MonoMs,
    ) -> Result<Budget, Denial> {
        let now = self.moment(now);
        self.local.peek(shared, check, now)
    }

    /// Charges the cost of a window's check in the current cell, whatever its limit, because it has been spent already. Returns false if the
    /// table could not be changed; nothing is charged then.
    pub fn charge_spent(&mut self, shared: &mut impl Shared, check: &Check<'_>, now: MonoMs) -> bool {
        let now = self.enter(shared, now, true);
        self.local.charge_spent(shared, check, now)
    }

    /// Charges the cost in full, unless more than the limit is used already: true if it is charged. Reading the count and charging it is one
    /// step, so of costs that are charged at the same time none is lost before the limit is exceeded. `None` if the table could not be
    /// changed; nothing is charged then.
    pub fn charge_unless_exceeded(
        &mut self,
        shared: &mut impl Shared,
        check: &Check<'_>,
        now: MonoMs,
    ) -> Option<bool> {
        let now = self.enter(shared, now, true);
        self.local.charge_unless_exceeded(shared, check, now)
    }

    /// The number of the cell in which a window's key counts now, and what counts in this cell by the local counts.
    pub fn current_cell(
        &mut self,
        shared: &mut impl Shared,
        key: &[u8],
        cell_ms: u64,
        now: MonoMs,
    ) -> CellCount {
        let now = self.moment(now);
        self.local.current_cell(shared, key, cell_ms, now)
    }

    /// Whether any request has a deferred cost.
    pub fn has_deferred(&self) -> bool {
        self.local.has_deferred()
    }

    /// Whether `request` has a deferred cost.
    pub fn is_deferred(&self, request: u64) -> bool {
        self.local.is_deferred(request)
    }

    /// Settles the deferred cost of `request` under each of its rules, and returns what was settled. `cost_of` gets the rule and what is
    /// reserved for it. If it is less than the reserve, the rest
    /// is returned; if it is more, it is charged in full, even beyond the limit. A charge stays reserved if the cost under one of its rules is
    /// not known yet (`None`). Does nothing for other requests.
    pub fn settle_cost(
        &mut self,
        shared: &mut impl Shared,
        request: u64,
        cost_of: impl FnMut(u16, u64) -> Option<u64>,
        now: MonoMs,
    ) -> SettledCharges {
        if !self.is_deferred(request) {
            return SettledCharges::new();
        }
        let now = self.enter(shared, now, false);
        self.local.settle_cost(shared, request, cost_of, now)
    }

    /// Counts a violation. Returns its identifier if that has reached the threshold. What is found later, or by the violations of another
    /// owner, is an [`Output::Struck`].
    pub fn violation(
        &mut self,
        shared: &mut impl Shared,
        violation: &Violation<'_>,
        now: MonoMs,
    ) -> Option<Violator> {
        let now = self.moment(now);
        self.local.violation(shared, violation, now)
    }

    /// Does periodic work: leases, the registry, timeouts, resync. `now.unix` is the machine's clock.
    pub fn tick(&mut self, shared: &mut impl Shared, now: Now) {
        let now = self.connection.read_clock(&mut self.local, now);
        if !self.rest.rests {
            self.connection.tick(&mut Turn { local: &mut self.local, shared, now });
        }
    }

    /// What to do now. Call it after each input until it returns `None`. It states the order of all that a limiter has done: the stream that
    /// is due to be cancelled or opened (after a tick), frames, decided requests, outcomes of shadow rules, violators.
    pub fn next(&mut self, shared: &mut impl Shared, now: MonoMs) -> Option<Output> {
        let now = self.moment(now);
        let output = self.connection.next(&mut Turn { local: &mut self.local, shared, now });
        let output = output.or_else(|| self.local.next_struck().map(Output::Struck));
        if output.is_none() {
            self.connection.end_run();
        }
        output
    }

    /// Milliseconds until the next tick. It may be less after a request than before: see [`Limiter::is_urgent`].
    pub fn next_tick_ms(&self) -> u64 {
        match self.is_quiet() {
            true => self.connection.tick_ms(),
            false => WAITING_TICK_MS,
        }
    }

    /// Whether a full report waits or the worker has woken, so that [`Limiter::next`] is to be called before the next tick, and the time
    /// until that has changed.
    pub fn is_urgent(&self) -> bool {
        self.local.outbox.len() >= FLUSH_ROWS || self.connection.has_woken()
    }

    /// Whether the worker ticks rarely, as nothing has happened on it for a while. So it may not have read yet what other workers have
    /// stored, such as live control.
    pub fn is_idle(&self) -> bool {
        self.connection.is_idle()
    }

    /// Wakes a worker that is idle, and keeps it awake. A request that is decided does so itself; this is for one that may be refused before.
    pub fn wake(&mut self, shared: &mut impl Shared, now: MonoMs) {
        self.connection.note_request(now);
        self.connection.enter(&mut self.local, shared, now);
    }

    /// Whether nothing waits, nothing is leased and all counts are stored, so that the stream can end without loss.
    pub fn is_at_rest(&self) -> bool {
        self.connection.is_at_rest() && self.local.owes_nothing()
    }

    /// Whether the stream is open.
    pub fn is_connected(&self) -> bool {
        self.connection.is_up()
    }

    /// Whether this worker is the subscriber: its stream receives the region's pushes.
    pub fn is_subscribed(&self) -> bool {
        self.connection.is_subscribed()
    }

    /// Notes that the stream ended, or could not be opened.
    pub fn on_closed(&mut self, shared: &mut impl Shared, now: MonoMs) {
        let now = self.moment(now);
        self.connection.on_closed(&mut Turn { local: &mut self.local, shared, now });
    }

    /// Ends the stream of a worker that is [at rest](Limiter::is_at_rest) and has decided nothing for long. Its counts of the others become old,
    /// so its next requests wait for a stream.
    pub fn leave(&mut self, shared: &mut impl Shared, now: MonoMs) {
        let now = self.moment(now);
        self.connection.leave(&mut Turn { local: &mut self.local, shared, now });
    }

    /// Gives back the worker's entry in the registry, its cache and its stream, if it owes nothing and has decided nothing for [`REST_MS`], or
    /// up to ten minutes if it has rested before. Its next decision takes them again. True if it rests.
    pub fn rest(&mut self, shared: &mut impl Shared, now: MonoMs) -> bool {
        let idle_ms = now.since(self.local.decided);
        let may_rest = self.is_at_rest() && self.connection.is_settled() && idle_ms >= self.rest.after_ms;
        if self.rest.rests || !may_rest {
            return false;
        }
        let now = self.moment(now);
        self.connection.rest(&mut Turn { local: &mut self.local, shared, now });
        self.local.clear_cache();
        self.rest.rests = true;
        true
    }

    /// Ends the stream without a failure, so that another one is opened at once. Requests wait for that one, but those that wait for answers
    /// of this one are decided without.
    pub fn on_moved(&mut self, shared: &mut impl Shared, now: MonoMs) {
        let now = self.moment(now);
        self.connection.on_moved(&mut Turn { local: &mut self.local, shared, now });
    }

    /// Whether no request waits, so that the stream can be moved without a loss.
    pub fn is_quiet(&self) -> bool {
        self.connection.is_quiet()
    }

    /// Applies a frame of the aggregator.
    pub fn on_frame(&mut self, shared: &mut impl Shared, frame: &wire::RegionFrame, now: MonoMs) {
        let now = self.moment(now);
        self.connection.on_frame(&mut Turn { local: &mut self.local, shared, now }, frame);
    }

    /// Ends the worker: returns leases to the table, and leaves the registry, so that other workers do not have to detect its end.
    /// [`Limiter::next`] returns the last frames.
    pub fn shutdown(&mut self, shared: &mut impl Shared, now: MonoMs) {
        let now = self.moment(now);
        self.connection.shutdown(&mut Turn { local: &mut self.local, shared, now });
    }

    /// Figures for metrics.
    pub fn stats(&self, now: MonoMs) -> Stats {
        Stats {
            report_queue: self.local.outbox.len() as u64,
            subscriber: self.connection.is_subscriber(),
            snapshot_age_ms: self.connection.snapshot_age_ms(now),
            ..self.local.stats
        }
    }

    /// Both clocks at `mono`, the same for all workers of the process: Unix time by the region's clock as the registry has measured it,
    /// or before that by the machine's.
    pub fn moment(&self, mono: MonoMs) -> Now {
        self.connection.moment(mono)
    }

    /// The time of a request, with which a worker that rests or is new enters the registry. `decides`: it is decided or charged, and not
    /// settled.
    fn enter(&mut self, shared: &mut impl Shared, mono: MonoMs, decides: bool) -> Now {
        self.connection.serves |= decides;
        if core::mem::take(&mut self.rest.rests) {
            self.rest.after_ms = self.rest.after_ms.saturating_mul(2).min(REST_MS_MAX);
        }
        self.local.decided = mono;
        self.connection.enter(&mut self.local, shared, mono)
    }
}

#[cfg(test)]
mod tests;
