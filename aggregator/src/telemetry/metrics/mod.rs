//! The metrics of this program: names, help texts and handles. No label contains an identifier or an origin.

pub mod api;
mod process;
pub mod recent;
pub mod spans;

use crate::telemetry::metrics::api::ApiMetrics;
use crate::telemetry::metrics::recent::{Recent, RefusedStreams};
use crate::telemetry::metrics::spans::SpanFigures;
use crate::telemetry::throttle::Throttle;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Metric, Registry};
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use strum::{IntoStaticStr, VariantArray};
use weir_core::model::breaker::State;
use weir_core::model::exact::{Charge, ChargeResult, Limit, Verdict};
use weir_core::model::time::MonoMs;
use weir_core::region::RegionStats;
use weir_core::replication::Figures;
use weir_core::replication::figures::Refusals;

/// Prefix of this program's own metrics; counters end in `_total`.
pub const PREFIX: &str = "weir_aggregator";
/// Prefix of the metrics of convergence.
pub const RATELIMIT_PREFIX: &str = "weir_ratelimit";

const STREAMS: (&str, &str) = ("streams", "Open streams of filters' workers");
const LIVE_ORIGINS: (&str, &str) = ("live_origins", "Envoy processes seen within the last two seconds");
const KEYS: (&str, &str) = ("keys", "Keys in the region's memory");
const KEYS_EVICTED: (&str, &str) =
    ("keys_evicted", "Keys of low use that were evicted to make room for others");
const PUSH_QUEUE: (&str, &str) = ("push_queue", "Keys that wait to be pushed, summed over subscribers");
const REPORTS: (&str, &str) = ("reports", "Reports received and acknowledged");
const COUNTS_MERGED: (&str, &str) = ("counts_merged", "Counts of reports merged into the region");
const COUNTS_REFUSED: (&str, &str) = ("counts_refused", "Counts of reports that were not merged, by reason");
const CONSULTS: (&str, &str) = ("consults", "Queries of filters by result: granted, refused, unjudged");
const PUSHES: (&str, &str) = ("pushes", "Frames pushed to subscribers");
const PUSHED_CELLS: (&str, &str) = ("pushed_cells", "Cells pushed to subscribers");
const SLOW_STREAMS: (&str, &str) =
    ("slow_streams_dropped", "Streams closed because their node did not read its frames");
const FRAMES_REFUSED: (&str, &str) = ("frames_refused", "Frames that ended their stream, by reason");
const FRAME_SECONDS: (&str, &str) =
    ("frame_seconds", "Time to process one frame in the region, including the wait for its lock");

const HOT_LEFT: (&str, &str) = (
    "hot_left",
    "Hot cells that waited for the next update of the hot index because their namespace had too many",
);
const CHANGES_RECEIVED: (&str, &str) =
    ("changes_received", "Changed cells received from other aggregators of the region");
const STORE_WIPES: (&str, &str) = ("store_wipes", "Losses of data found in a store");
const BREAKER: (&str, &str) = ("breaker_state", "Circuit breaker of a store: 0 closed, 1 half open, 2 open");
const QUEUE: (&str, &str) = ("queue_cells", "Cells that wait, by queue: replay, share, publish");
const AGE: (&str, &str) = (
    "snapshot_age_seconds",
    "Time since the hot index was read (hot), or cells were published (publish) or imported (import); -1 if never",
);
const API_DECISIONS: (&str, &str) = ("api_decisions", "Calls of an API by API and result");
const CONTROLS: (&str, &str) = ("controls", "Live controls in force at the last reading");
const BAD_ROWS: (&str, &str) =
    ("bad_rows", "Invalid rows of the database, and cells that do not fit in a row, that were skipped");

const EXACT_CHARGES: (&str, &str) = ("exact_charges", "Charges of exact requests by algorithm and result");
const EXACT_SECONDS: (&str, &str) =
    ("exact_seconds", "Time to decide one exact request with all its charges");
const EXACT_CACHED_DENIALS: (&str, &str) =
    ("exact_cached_denials", "Exact requests that a cached denial answered without a call to a store");
const EXACT_REFUNDS: (&str, &str) = (
    "exact_refunds",
    "Refunds of charges by result: done, missing (nothing was charged), foreign (issued to another worker), given_up",
);
const LEDGER_UNDECIDED: (&str, &str) =
    ("ledger_undecided", "Charges that a ledger could not decide, by reason");
const EXACT_REQUESTS: (&str, &str) = (
    "exact_requests",
    "Exact requests of filters by result: taken, malformed, rejected (too many of the stream wait)",
);

const SPANS: (&str, &str) = (
    "spans",
    "Ended spans by result: exported, dropped (too many waited), failed (not accepted by the collector)",
);

const WINDOWS: (&str, &str) = ("windows", "Cells in memory");
const WINDOWS_CREATED: (&str, &str) = ("windows_created", "Cells created by use");
const WINDOWS_EVICTED: (&str, &str) =
    ("windows_evicted", "Cells evicted because no window touches them any more");
const OPERATIONS: (&str, &str) = ("origin_operations", "Calls to the stores of this region, by operation");
const LATENCY: (&str, &str) =
    ("origin_latency_seconds", "Duration of calls to the stores of this region, by operation");
const ERRORS: (&str, &str) =
    ("origin_errors", "Failed calls to the stores of this region, by operation and reason");
const GLOBAL_WRITES: (&str, &str) = ("global_writes", "Rows written for other regions");
const GLOBAL_WRITE_ERRORS: (&str, &str) =
    ("global_write_errors", "Failed writes for other regions, by reason");
const GLOBAL_APPLIED: (&str, &str) = ("global_sync_rows_applied", "Imported rows merged into the region");
const GLOBAL_SYNC_ERRORS: (&str, &str) = ("global_sync_errors", "Imports that failed, by reason");
const GLOBAL_CREATED: (&str, &str) = ("global_entries_created", "Cells created by counts of another region");
const GLOBAL_POLLED: (&str, &str) = ("global_rows_last_poll", "Rows read by the last import");
const GLOBAL_LEFT: (&str, &str) =
    ("global_left", "Cells that waited for the next publication because their namespace had too many");
const GLOBAL_SECONDS: (&str, &str) = ("global_tick_seconds", "Duration of a publication or an import");

/// Reasons of failed statements.
pub const DATABASE_REASONS: [&str; 8] =
    ["timeout", "unavailable", "deadlock", "lock_wait", "refused", "schema", "no_zone", "other"];
/// Reasons of failed calls to the regional store (`StoreError::reason`).
const REGIONAL_REASONS: [&str; 4] = ["timeout", "unavailable", "refused", "protocol"];
/// Reasons of refused counts.
const COUNT_REASONS: [&str; 5] = ["key", "sequence", "component", "full", "baseline"];
/// Results of queries.
const CONSULT_RESULTS: [&str; 3] = ["granted", "refused", "unjudged"];
/// Stores whose losses are counted.
const STORES: [&str; 2] = ["regional", "global"];
/// Reasons of refused frames (`StreamError::label`).
const FRAME_REASONS: [&str; 21] = [
    "silent",
    "no_hello",
    "version",
    "origin",
    "origin_changed",
    "token",
    "revoked",
    "workspace",
    "too_many_origins",
    "too_many_streams",
    "too_many_of_address",
    "too_many_silent",
    "too_many_counts",
    "too_many_consults",
    "too_many_exact_requests",
    "too_many_refunds",
    "too_many_bans",
    "too_many_charges",
    "unsteady",
    "malformed",
    "oversized",
];

/// A label, with name and value from fixed sets.
pub(crate) type Label = [(&'static str, &'static str); 1];
/// Two labels.
type Labels = [(&'static str, &'static str); 2];

/// An API for callers without the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Api {
    /// Envoy's rate-limit service.
    Rls,
    /// HTTP for applications.
    Http,
}

/// How a call of an API ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum ApiResult {
    /// Allowed.
    Allowed,
    /// Allowed, but a limit in shadow mode would have denied it.
    ShadowDenied,
    /// Denied by a limit.
    Denied,
    /// An exact limit was not decided in time.
    Undecided,
    /// The call was refused: malformed, too large, or not permitted.
    Refused,
}

/// A call to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Operation {
    /// Writing the counts that filters reported.
    Replay,
    /// A query that a request waits for.
    Consult,
    /// Adding cells to the hot index.
    NameHot,
    /// Reading a shard of the hot index.
    ReadHot,
    /// A message to the other aggregators.
    Broadcast,
    /// Exchanging which Envoys are alive.
    Heartbeat,
    /// Reading the markers.
    ReadMarkers,
    /// Writing this region's rows.
    Publish,
    /// Reading the other regions' rows.
    Import,
    /// Reading the marker row.
    ReadGlobalMarker,
    /// Reading this region's own rows, after a loss.
    Recover,
    /// Reading live controls.
    ReadControls,
}

impl Operation {
    /// Calls to the regional store.
    pub const REGIONAL: [Operation; 7] = [
        Operation::Replay,
        Operation::Consult,
        Operation::NameHot,
        Operation::ReadHot,
        Operation::Broadcast,
        Operation::Heartbeat,
        Operation::ReadMarkers,
    ];
    /// Calls to the database.
    pub const GLOBAL: [Operation; 5] = [
        Operation::Publish,
        Operation::Import,
        Operation::ReadGlobalMarker,
        Operation::Recover,
        Operation::ReadControls,
    ];
}

/// The metrics of exact requests. Clones share their counts.
#[derive(Clone, Debug)]
pub struct ExactFigures {
    /// [`EXACT_CACHED_DENIALS`].
    pub cached_denial: Counter,
    charges: Family<Labels, Counter>,
    seconds: Histogram,
    refunds: Family<Label, Counter>,
    ledger_undecided: Family<Label, Counter>,
    exact_requests: Family<Label, Counter>,
}

impl Default for ExactFigures {
    fn default() -> Self {
        let charges: Family<Labels, Counter> = Family::default();
        for algorithm in ["sliding_log", "ledger"] {
            for result in ["allowed", "denied", "untried", "undecided"] {
                drop(charges.get_or_create(&[("algorithm", algorithm), ("result", result)]));
            }
        }
        let ledger_undecided = at_zero("reason", &["no_database"]);
        DATABASE_REASONS
            .iter()
            .for_each(|reason| drop(ledger_undecided.get_or_create(&[("reason", *reason)])));
        ExactFigures {
            cached_denial: Counter::default(),
            charges,
            seconds: Histogram::new(exponential_buckets(1e-5, 2.5, 14)), // 10 µs to 1.5 s
            refunds: at_zero("result", &["done", "missing", "foreign", "given_up"]),
            ledger_undecided,
            exact_requests: at_zero("result", &["taken", "malformed", "rejected"]),
        }
    }
}

impl ExactFigures {
    /// Counts the decisions on an exact request.
    pub fn ruled(&self, charges: &[Charge], results: &[ChargeResult], took: Duration) {
        self.seconds.observe(took.as_secs_f64());
        for (charge, charge_result) in charges.iter().zip(results) {
            let algorithm = match charge.limit {
                Limit::Log { .. } => "sliding_log",
                Limit::Ledger { .. } => "ledger",
            };
            let result = match charge_result.verdict {
                Verdict::Allowed => "allowed",
                Verdict::Denied { .. } => "denied",
                Verdict::Untried => "untried",
                Verdict::Undecided => "undecided",
            };
            self.charges.get_or_create(&[("algorithm", algorithm), ("result", result)]).inc();
        }
    }

    /// Counts a refund: `done`, `missing` or `foreign`.
    pub fn refunded(&self, result: &'static str) {
        self.refunds.get_or_create(&[("result", result)]).inc();
    }

    /// The number of refunds with this result.
    pub fn refunds(&self, result: &'static str) -> u64 {
        self.refunds.get_or_create(&[("result", result)]).get()
    }

    /// Counts charges whose refund was given up.
    pub fn refunds_given_up(&self, charges: u64) {
        self.refunds.get_or_create(&[("result", "given_up")]).inc_by(charges);
    }

    /// Counts a charge that a ledger could not decide: `no_database`, `no_zone`, or one of a database's reasons.
    pub fn ledger_undecided(&self, reason: &'static str) {
        self.ledger_undecided.get_or_create(&[("reason", reason)]).inc();
    }

    /// Counts an exact request of a filter: `taken`, `malformed` or `rejected`.
    pub fn asked(&self, result: &'static str) {
        self.exact_requests.get_or_create(&[("result", result)]).inc();
    }

    fn register(&self, registry: &mut Registry) {
        register(registry, EXACT_CHARGES, self.charges.clone());
        register(registry, EXACT_SECONDS, self.seconds.clone());
        register(registry, EXACT_CACHED_DENIALS, self.cached_denial.clone());
        register(registry, EXACT_REFUNDS, self.refunds.clone());
        register(registry, LEDGER_UNDECIDED, self.ledger_undecided.clone());
        register(registry, EXACT_REQUESTS, self.exact_requests.clone());
    }
}

/// All metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Limits the rate of warnings about peers that misbehave.
    pub warnings: Throttle,
    /// The last calls to stores.
    pub recent: Recent,
    /// The streams that were refused recently.
    pub refusals: RefusedStreams,
    /// The metrics of the APIs.
    pub api: ApiMetrics,
    /// [`STREAMS`].
    pub streams: Gauge,
    /// [`SLOW_STREAMS`].
    pub slow_streams: Counter,
    /// [`FRAME_SECONDS`].
    pub frame_seconds: Histogram,
    /// [`BAD_ROWS`].
    pub bad_rows: Counter,
    /// [`CONTROLS`].
    pub controls: Gauge,
    /// [`GLOBAL_WRITES`].
    pub global_writes: Counter,
    /// [`GLOBAL_POLLED`].
    pub global_rows_last_poll: Gauge,
    /// [`GLOBAL_SECONDS`] of publications.
    pub publish_seconds: Histogram,
    /// [`GLOBAL_SECONDS`] of imports.
    pub import_seconds: Histogram,
    reports: Counter,
    counts_merged: Counter,
    pushes: Counter,
    pushed_cells: Counter,
    hot_left: Counter,
    changes_received: Counter,
    global_left: Counter,
    global_rows_applied: Counter,
    global_entries_created: Counter,
    store_wipes: Family<Label, Counter>,
    breaker: Family<Label, Gauge>,
    queue: Family<Label, Gauge>,
    age: Family<Label, Gauge<f64, AtomicU64>>,
    windows: Gauge,
    windows_created: Counter,
    windows_evicted: Counter,
    operations: Family<Label, Counter>,
    latency: Family<Label, Histogram>,
    errors: Family<Labels, Counter>,
    global_write_errors: Family<Label, Counter>,
    global_sync_errors: Family<Label, Counter>,
    live_origins: Gauge,
    keys: Gauge,
    push_queue: Gauge,
    keys_evicted: Counter,
    counts_refused: Family<Label, Counter>,
    consults: Family<Label, Counter>,
    frames_refused: Family<Label, Counter>,
    /// By [`Api`] and [`ApiResult`] in their order, so that a decision looks up no name.
    api_decisions: [[Counter; ApiResult::VARIANTS.len()]; Api::VARIANTS.len()],
}

impl Metrics {
    /// All at zero, except for `exact` and `spans`, which are counted elsewhere.
    pub fn new(exact: &ExactFigures, spans: &SpanFigures) -> Self {
        const WARNING_INTERVAL: Duration = Duration::from_secs(10);
        let mut registry = Registry::default();
        process::register(&mut registry);
        let w = registry.sub_registry_with_prefix(RATELIMIT_PREFIX);
        let seconds: Family<Label, Histogram> = Family::new_with_constructor(|| {
            Histogram::new(exponential_buckets(1e-3, 2.0, 14)) // 1 ms to 8 s
        });
        w.register(GLOBAL_SECONDS.0, GLOBAL_SECONDS.1, seconds.clone());
        let latency: Family<Label, Histogram> = Family::new_with_constructor(|| {
            Histogram::new(exponential_buckets(1e-4, 2.0, 16)) // 0.1 ms to 3.3 s
        });
        w.register(LATENCY.0, LATENCY.1, latency.clone());
        let global_writes = register(w, GLOBAL_WRITES, Counter::default());
        let global_left = register(w, GLOBAL_LEFT, Counter::default());
        let global_rows_applied = register(w, GLOBAL_APPLIED, Counter::default());
        let global_entries_created = register(w, GLOBAL_CREATED, Counter::default());
        let global_rows_last_poll = register(w, GLOBAL_POLLED, Gauge::default());
        let windows = register(w, WINDOWS, Gauge::default());
        let windows_created = register(w, WINDOWS_CREATED, Counter::default());
        let windows_evicted = register(w, WINDOWS_EVICTED, Counter::default());
        let operations: Family<Label, Counter> = register(w, OPERATIONS, Family::default());
        let errors: Family<Labels, Counter> = register(w, ERRORS, Family::default());
        let global_write_errors: Family<Label, Counter> = register(w, GLOBAL_WRITE_ERRORS, Family::default());
        let global_sync_errors: Family<Label, Counter> = register(w, GLOBAL_SYNC_ERRORS, Family::default());
        let operations_known = Operation::REGIONAL.into_iter().chain(Operation::GLOBAL);
        for op in operations_known.map(|operation| ("op", operation.into_str())) {
            drop(operations.get_or_create(&[op]));
            drop(latency.get_or_create(&[op]));
        }
        for op in Operation::REGIONAL.map(|operation| ("op", operation.into_str())) {
            REGIONAL_REASONS.iter().for_each(|reason| drop(errors.get_or_create(&[op, ("reason", *reason)])));
        }
        for reason in DATABASE_REASONS.map(|reason| ("reason", reason)) {
            for op in Operation::GLOBAL.map(|operation| ("op", operation.into_str())) {
                drop(errors.get_or_create(&[op, reason]));
            }
            drop(global_write_errors.get_or_create(&[reason]));
            drop(global_sync_errors.get_or_create(&[reason]));
        }
        let r = registry.sub_registry_with_prefix(PREFIX);
        exact.register(r);
        register(r, SPANS, spans.results.clone());
        // In separate statements, as each holds the family's lock until its end.
        let publish_seconds = seconds.get_or_create(&[("op", "publish")]).clone();
        let import_seconds = seconds.get_or_create(&[("op", "import")]).clone();
        let age: Family<Label, Gauge<f64, AtomicU64>> = Family::default();
        r.register(AGE.0, AGE.1, age.clone());
        let decisions: Family<Labels, Counter> = register(r, API_DECISIONS, Family::default());
        let api_decisions = std::array::from_fn(|api| {
            std::array::from_fn(|result| {
                let api = ("api", Api::VARIANTS[api].into_str());
                decisions.get_or_create(&[api, ("result", ApiResult::VARIANTS[result].into_str())]).clone()
            })
        });
        Metrics {
            api_decisions,
            recent: Recent::default(),
            refusals: RefusedStreams::default(),
            api: ApiMetrics::register(r),
            warnings: Throttle::new(WARNING_INTERVAL),
            streams: register(r, STREAMS, Gauge::default()),
            reports: register(r, REPORTS, Counter::default()),
            counts_merged: register(r, COUNTS_MERGED, Counter::default()),
            pushes: register(r, PUSHES, Counter::default()),
            pushed_cells: register(r, PUSHED_CELLS, Counter::default()),
            slow_streams: register(r, SLOW_STREAMS, Counter::default()),
            frame_seconds: register(
                r,
                FRAME_SECONDS,
                Histogram::new(exponential_buckets(1e-6, 4.0, 10)), // 1 µs to 0.26 s
            ),
            hot_left: register(r, HOT_LEFT, Counter::default()),
            changes_received: register(r, CHANGES_RECEIVED, Counter::default()),
            bad_rows: register(r, BAD_ROWS, Counter::default()),
            controls: register(r, CONTROLS, Gauge::default()),
            global_writes,
            global_left,
            global_rows_applied,
            global_entries_created,
            global_rows_last_poll,
            publish_seconds,
            import_seconds,
            store_wipes: register(r, STORE_WIPES, at_zero("store", &STORES)),
            breaker: register(r, BREAKER, Family::default()),
            queue: register(r, QUEUE, Family::default()),
            age,
            windows,
            windows_created,
            windows_evicted,
            operations,
            latency,
            errors,
            global_write_errors,
            global_sync_errors,
            live_origins: register(r, LIVE_ORIGINS, Gauge::default()),
            keys_evicted: register(r, KEYS_EVICTED, Counter::default()),
            keys: register(r, KEYS, Gauge::default()),
            push_queue: register(r, PUSH_QUEUE, Gauge::default()),
            counts_refused: register(r, COUNTS_REFUSED, at_zero("reason", &COUNT_REASONS)),
            consults: register(r, CONSULTS, at_zero("result", &CONSULT_RESULTS)),
            frames_refused: register(r, FRAMES_REFUSED, at_zero("reason", &FRAME_REASONS)),
            registry,
        }
    }

    /// Counts a frame that ended its stream.
    pub fn frame_refused(&self, reason: &'static str) {
        self.frames_refused.get_or_create(&[("reason", reason)]).inc();
        self.refusals.note(reason);
    }

    /// Counts a call of an API.
    pub fn api_decided(&self, api: Api, result: ApiResult) {
        self.api_decisions[api as usize][result as usize].inc();
    }

    /// Calls of an API so far, by how they ended.
    pub fn api_results(&self, api: Api) -> Vec<(&'static str, u64)> {
        let counts = self.api_decisions[api as usize].iter().map(Counter::get);
        ApiResult::VARIANTS.iter().map(|result| result.into_str()).zip(counts).collect()
    }

    /// Counts a call to a store.
    pub fn operation(&self, operation: Operation, took: Duration) {
        self.recent.made(operation, took);
        let label = [("op", operation.into_str())];
        self.operations.get_or_create(&label).inc();
        self.latency.get_or_create(&label).observe(took.as_secs_f64());
    }

    /// Counts a failed call to a store.
    pub fn operation_failed(&self, operation: Operation, reason: &'static str) {
        self.recent.failed(operation, reason);
        self.errors.get_or_create(&[("op", operation.into_str()), ("reason", reason)]).inc();
    }

    /// Counts failed writes for other regions.
    pub fn global_write_failed(&self, reason: &'static str, times: u64) {
        self.global_write_errors.get_or_create(&[("reason", reason)]).inc_by(times);
    }

    /// Counts an import that failed.
    pub fn global_sync_failed(&self, reason: &'static str) {
        self.global_sync_errors.get_or_create(&[("reason", reason)]).inc();
    }

    /// All metrics in Prometheus' text format; `figures`, `stats` and `breakers` are kept elsewhere.
    pub fn text(
        &self,
        figures: &Figures,
        now: MonoMs,
        stats: RegionStats,
        breakers: &[(&'static str, State)],
    ) -> String {
        self.raise(figures);
        set(&self.live_origins, stats.live_origins);
        set(&self.keys, stats.keys);
        raise(&self.keys_evicted, stats.keys_evicted);
        set(&self.push_queue, stats.pending_pushes);
        self.windows.set(i64::try_from(stats.windows).unwrap_or(i64::MAX));
        raise(&self.windows_created, stats.windows_created);
        raise(&self.windows_evicted, stats.windows_forgotten);
        for (store, state) in breakers {
            let state = match state {
                State::Closed => 0,
                State::HalfOpen => 1,
                State::Open => 2,
            };
            self.breaker.get_or_create(&[("store", *store)]).set(state);
        }
        let queues = [
            ("replay", stats.pending_replays),
            ("share", stats.pending_shares),
            ("publish", stats.pending_publications),
        ];
        for (queue, cells) in queues {
            set(&self.queue.get_or_create(&[("queue", queue)]), cells);
        }
        let moments = [
            ("hot", figures.complete_at),
            ("publish", figures.published_at),
            ("import", figures.imported_at),
        ];
        for (what, moment) in moments {
            // Seconds since that time; -1 if never.
            let age = moment.map_or(-1.0, |moment| now.since(moment) as f64 / 1e3);
            self.age.get_or_create(&[("what", what)]).set(age);
        }
        let mut text = String::new();
        // Writing into a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }

    fn raise(&self, figures: &Figures) {
        let counters = [
            (&self.reports, figures.reports),
            (&self.counts_merged, figures.counts_merged),
            (&self.pushes, figures.pushes),
            (&self.pushed_cells, figures.pushed_cells),
            (&self.hot_left, figures.hot_left),
            (&self.changes_received, figures.changes_received),
            (&self.global_left, figures.publications_left),
            (&self.global_rows_applied, figures.imports_merged),
            (&self.global_entries_created, figures.imports_created),
        ];
        counters.iter().for_each(|(counter, value)| raise(counter, *value));
        let Refusals { key, sequence, component, full, baseline } = figures.counts_refused;
        let refused = [key, sequence, component, full, baseline];
        let results = [figures.granted, figures.denied, figures.unjudged];
        raise_each(&self.counts_refused, "reason", COUNT_REASONS.iter().zip(refused));
        raise_each(&self.consults, "result", CONSULT_RESULTS.iter().zip(results));
        let wipes = [figures.store_wipes, figures.database_wipes];
        raise_each(&self.store_wipes, "store", STORES.iter().zip(wipes));
    }
}

/// Adds a metric by its name and help text.
pub(crate) fn register<M: Metric + Clone>(
    registry: &mut Registry,
    (name, help): (&str, &str),
    metric: M,
) -> M {
    registry.register(name, help, metric.clone());
    metric
}

/// A family that shows each of its values from the start, as an alert does not see the first increase of a new series.
pub(crate) fn at_zero(label: &'static str, values: &[&'static str]) -> Family<Label, Counter> {
    let family = Family::default();
    values.iter().for_each(|value| drop(family.get_or_create(&[(label, *value)])));
    family
}

fn set(gauge: &Gauge, value: usize) {
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
}

/// Raises the counters of a family to values that are kept elsewhere.
fn raise_each(
    family: &Family<Label, Counter>,
    label: &'static str,
    values: impl Iterator<Item = (&'static &'static str, u64)>,
) {
    values.for_each(|(name, value)| raise(&family.get_or_create(&[(label, *name)]), value));
}

/// Raises a counter to a value that is kept elsewhere.
fn raise(counter: &Counter, value: u64) {
    counter.inc_by(value.saturating_sub(counter.get()));
}
