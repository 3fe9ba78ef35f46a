//! The metrics of this program: names, help texts and handles. No label contains an identifier or a node, except for values that
//! the rate-limit service's configuration asks for.

use crate::telemetry::metrics::api::ApiMetrics;
use crate::telemetry::metrics::families::{Label, Labels, at_zero, at_zero_by};
use crate::telemetry::metrics::limits::LimitMetrics;
use crate::telemetry::metrics::quota::QuotaMetrics;
use crate::telemetry::metrics::recent::{Recent, RefusedStreams};
use crate::telemetry::metrics::spans::SpanFigures;
use crate::telemetry::throttle::Throttles;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use strum::{IntoStaticStr, VariantArray};
use weir_core::model::breaker::State;
use weir_core::model::exact::{AlgorithmKind, Charge, ChargeResult, Verdict};
use weir_core::model::time::{MonoMs, Now};
use weir_core::region::top::Scope;
use weir_core::region::{OtherRegion, RegionStats};
use weir_core::replication::exact::Counters;
use weir_core::replication::figures::{NoRoom, Refusals};
use weir_core::replication::{Figures, RegionState};

pub use operation::Operation;

/// Prefix of this program's own metrics; counters end in `_total`.
pub const PREFIX: &str = "weir_aggregator";
/// Prefix of the metrics of convergence.
const RATELIMIT_PREFIX: &str = "weir_ratelimit";

/// Reasons of failed statements.
pub const DATABASE_REASONS: [&str; 8] =
    ["timeout", "unavailable", "deadlock", "lock_wait", "refused", "schema", "no_zone", "other"];
/// Reasons of failed calls to the regional store (`StoreError::reason`).
const REGIONAL_REASONS: [&str; 4] = ["timeout", "unavailable", "refused", "protocol"];
/// Reasons of refused frames (`StreamError::label`, whose tests compare them).
pub const FRAME_REASONS: [&str; 22] = [
    "silent",
    "no_hello",
    "version",
    "node",
    "node_changed",
    "token",
    "revoked",
    "workspace",
    "too_many_nodes",
    "too_many_streams",
    "too_many_of_address",
    "too_many_silent",
    "too_many_counts",
    "too_many_queries",
    "too_many_counters",
    "too_many_exact_requests",
    "too_many_refunds",
    "too_many_bans",
    "too_many_charges",
    "unsteady",
    "malformed",
    "oversized",
];

/// Metrics as a table. A row is a metric: its name, type and help text, and its value at the start if that is not the type's default.
///
/// Makes a struct with a field for each row, `Default`, and `register`, which adds all rows to a registry.
macro_rules! table {
    ($(#[$meta:meta])* $vis:vis struct $group:ident {
        $($field_vis:vis $name:ident: $kind:ty = $help:literal $(, $initial:expr)?;)*
    }) => {
        $(#[$meta])*
        #[derive(Debug)]
        $vis struct $group {
            $(#[doc = $help] $field_vis $name: $kind,)*
        }

        impl Default for $group {
            fn default() -> Self {
                Self { $($name: table!(@initial $($initial)?),)* }
            }
        }

        impl $group {
            /// Adds the metrics to a registry.
            $vis fn register(&self, registry: &mut prometheus_client::registry::Registry) {
                $(registry.register(stringify!($name), $help, self.$name.clone());)*
            }
        }
    };
    (@initial) => { Default::default() };
    (@initial $initial:expr) => { $initial };
}

pub mod api;
pub mod exposition;
pub(crate) mod families;
pub mod limits;
mod operation;
mod process;
pub mod quota;
pub mod recent;
pub mod spans;

/// Labels with values that are read from elsewhere: names of regions, workspaces and namespaces.
type Named = Vec<(&'static str, String)>;

/// An API for callers without the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Api {
    /// Envoy's rate-limit service.
    Rls,
    /// HTTP for applications.
    Http,
    /// Envoy's rate-limit quota service, whose Envoys decide and report.
    Rlqs,
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

table! {
    /// The metrics of exact requests. Clones share their counts.
    #[derive(Clone)]
    pub struct ExactFigures {
        exact_charges: Family<Labels, Counter> = "Charges of exact requests by algorithm and result",
            at_zero_by(
                "algorithm",
                &AlgorithmKind::EXACT.map(AlgorithmKind::name),
                "result",
                &["allowed", "denied", "untried", "undecided"],
            );
        exact_seconds: Histogram = "Time to decide one exact request with all its charges",
            Histogram::new(exponential_buckets(1e-5, 2.5, 14)); // 10 µs to 1.5 s
        pub exact_cached_denials: Counter =
            "Exact requests that a cached denial answered without a call to a store";
        exact_refunds: Family<Label, Counter> =
            "Refunds of charges by result: done, missing (nothing was charged), foreign (issued to another worker), given_up",
            at_zero("result", &["done", "missing", "foreign", "given_up"]);
        ledger_undecided: Family<Label, Counter> = "Charges that a ledger could not decide, by reason",
            at_zero("reason", &[&["no_database"], &DATABASE_REASONS[..]].concat());
        exact_requests: Family<Label, Counter> =
            "Exact requests of filters by result: taken, malformed, rejected (too many of the stream wait)",
            at_zero("result", &["taken", "malformed", "rejected"]);
    }
}

impl ExactFigures {
    /// Counts the decisions on an exact request.
    pub fn decided(&self, charges: &[Charge], results: &[ChargeResult], took: Duration) {
        self.exact_seconds.observe(took.as_secs_f64());
        for (charge, charge_result) in charges.iter().zip(results) {
            let algorithm = charge.key.algorithm().kind().name();
            let result = match charge_result.verdict {
                Verdict::Allowed => "allowed",
                Verdict::Denied { .. } => "denied",
                Verdict::Untried => "untried",
                Verdict::Undecided => "undecided",
            };
            self.exact_charges.get_or_create(&[("algorithm", algorithm), ("result", result)]).inc();
        }
    }

    /// Counts what exact requests and refunds have done.
    pub fn count(&self, counters: &Counters) {
        self.exact_cached_denials.inc_by(counters.cached_denials);
        self.refunded("done", counters.refunded);
        self.refunded("missing", counters.missing);
        self.refunded("given_up", counters.given_up.iter().map(|refund| refund.len() as u64).sum());
    }

    /// Counts refunds: `done`, `missing`, `foreign` or `given_up`.
    pub fn refunded(&self, result: &'static str, charges: u64) {
        if charges > 0 {
            self.exact_refunds.get_or_create(&[("result", result)]).inc_by(charges);
        }
    }

    /// The number of refunds with this result.
    pub fn refunds(&self, result: &'static str) -> u64 {
        self.exact_refunds.get_or_create(&[("result", result)]).get()
    }

    /// Counts a charge that a ledger could not decide: `no_database`, `no_zone`, or one of a database's reasons.
    pub fn ledger_undecided(&self, reason: &'static str) {
        self.ledger_undecided.get_or_create(&[("reason", reason)]).inc();
    }

    /// Counts an exact request of a filter: `taken`, `malformed` or `rejected`.
    pub fn requested(&self, result: &'static str) {
        self.exact_requests.get_or_create(&[("result", result)]).inc();
    }
}

table! {
    /// The metrics of this program.
    pub struct ProgramMetrics {
        pub streams: Gauge = "Open streams of filters' workers";
        live_nodes: Gauge = "Envoy processes seen within the last two seconds";
        keys: Gauge = "Keys in the region's memory";
        keys_evicted: Counter = "Keys of low use that were evicted to make room for others";
        push_queue: Gauge = "Keys that wait to be pushed, summed over subscribers";
        reports: Counter = "Reports received and acknowledged";
        counts_merged: Counter = "Counts of reports merged into the region";
        counts_refused: Family<Label, Counter> = "Counts of reports that were not merged, by reason",
            at_zero("reason", &names(counts_refused(&Figures::default())));
        cells_without_room: Family<Label, Counter> =
            "Cells that were left out as their keys have no room, by who has counted them: regions, peers",
            at_zero("source", &names(cells_without_room(&Figures::default())));
        queries: Family<Label, Counter> = "Queries of filters by result: granted, refused, unjudged",
            at_zero("result", &names(query_results(&Figures::default())));
        pushes: Counter = "Frames pushed to subscribers";
        pushed_cells: Counter = "Cells pushed to subscribers";
        pub slow_streams_dropped: Counter = "Streams closed because their node did not read its frames";
        frames_refused: Family<Label, Counter> = "Frames that ended their stream, by reason",
            at_zero("reason", &FRAME_REASONS);
        pub frame_seconds: Histogram =
            "Time to process one frame in the region, including the wait for its lock",
            Histogram::new(exponential_buckets(1e-6, 4.0, 10)); // 1 µs to 0.26 s
        hot_left: Counter =
            "Hot cells that waited for the next update of the hot index because their namespace had too many";
        changes_received: Counter = "Changed cells received from other aggregators of the region";
        pub store_evicts: Gauge =
            "1 if a server of the region's Redis evicts keys when it is full, by its maxmemory-policy";
        store_wipes: Family<Label, Counter> = "Losses of data found in a store",
            at_zero("store", &lossy_stores());
        pub recovering: Gauge =
            "1 while counts that the region had published before a loss are read from the database, else 0";
        recovered_cells: Counter = "Cells read that the region had published before a loss";
        breaker_state: Family<Label, Gauge> = "Circuit breaker of a store: 0 closed, 1 half open, 2 open";
        queue_cells: Family<Label, Gauge> = "Cells that wait, by queue: replay, share; keys: publish";
        snapshot_age_seconds: Family<Label, Gauge<f64, AtomicU64>> =
            "Time since the hot index was read (hot), or cells were published (publish) or imported (import); -1 if never";
        api_decisions: Family<Labels, Counter> = "Calls of an API, or requests that an Envoy reported (rlqs), by API and result";
        pub clock_ahead_seconds: Family<Label, Gauge<f64, AtomicU64>> =
            "How far a clock is ahead of the region's time, which numbers windows, by clock: machine, redis";
        pub controls: Gauge = "Live controls in force at the last reading";
        pub controls_read: Gauge =
            "1 once live control was read from the database, or if there is none; 0 before, while calls of the APIs are undecided";
        pub bad_rows: Counter =
            "Invalid rows of the database, and cells that do not fit in a row, that were skipped";
    }
}

table! {
    /// The metrics of convergence.
    pub struct ConvergenceMetrics {
        windows: Gauge = "Cells in memory";
        windows_created: Counter = "Cells created by use";
        windows_evicted: Counter = "Cells evicted because no window touches them any more";
        origin_operations: Family<Label, Counter> = "Calls to the stores of this region, by operation",
            at_zero("op", &operations());
        origin_latency_seconds: Family<Label, Histogram> =
            "Duration of calls to the stores of this region, by operation", latencies();
        origin_errors: Family<Labels, Counter> =
            "Failed calls to the stores of this region, by operation and reason", operation_errors();
        pub global_writes: Counter = "Rows written for other regions";
        pub global_rows_read: Counter = "Rows read by packets";
        global_write_errors: Family<Label, Counter> = "Packets that failed, by reason",
            at_zero("reason", &DATABASE_REASONS);
        global_sync_rows_applied: Counter = "Rows of other regions merged into the region";
        global_sync_errors: Family<Label, Counter> = "Imports that failed, by reason",
            at_zero("reason", &DATABASE_REASONS);
        global_entries_created: Counter = "Cells created by counts of another region";
        pub global_rows_last_poll: Gauge = "Rows read by the last import";
        global_regions: Gauge = "Regions that have written to the database within ten minutes, this one included";
        global_foreign_writers: Gauge =
            "Aggregators that write to the database for this region and are not in its Redis: the region is split";
        global_feed_age_seconds: Family<Named, Gauge<f64, AtomicU64>> =
            "Time since another region was last seen to write to the database, by region";
        global_excess_ratio: Family<Named, Gauge<f64, AtomicU64>> =
            "Largest use of all regions beyond a limit within the last five to ten minutes, as part of the limit, by rule";
        global_tick_seconds: Family<Label, Histogram> = "Duration of a packet (exchange) or an import (import)",
            Family::new_with_constructor(|| Histogram::new(exponential_buckets(1e-3, 2.0, 14))); // 1 ms to 8 s
    }
}

/// What is known of the other regions.
#[derive(Clone, Debug, Default)]
pub struct GlobalFigures {
    /// Regions alive, this one included; 0 without a database.
    pub regions: u64,
    /// Aggregators that write for this region and are not of its store.
    pub foreign_writers: usize,
    /// Each other region, and milliseconds since it was last seen to write to the database.
    pub seen: Vec<(String, u64)>,
    /// The largest excess of each scope, in thousandths of the limit.
    pub excesses: Vec<(Scope, u64)>,
}

impl GlobalFigures {
    /// The view of a region.
    pub fn of(state: &RegionState, now: Now) -> GlobalFigures {
        let region = &state.region;
        let seen =
            |(other, at): (OtherRegion, MonoMs)| (text(region.name_of_other(other)), now.mono.since(at));
        GlobalFigures {
            regions: region.regions(),
            foreign_writers: state.foreign_writers(),
            seen: state.others().map(seen).collect(),
            excesses: region.excesses(now.unix).map(|(scope, largest)| (scope.clone(), largest)).collect(),
        }
    }

    fn show(&self, convergence: &ConvergenceMetrics) {
        convergence.global_regions.set(i64::try_from(self.regions).unwrap_or(i64::MAX));
        set(&convergence.global_foreign_writers, self.foreign_writers);
        convergence.global_feed_age_seconds.clear();
        for (region, age_ms) in &self.seen {
            let labels = vec![("region", region.clone())];
            convergence.global_feed_age_seconds.get_or_create(&labels).set(*age_ms as f64 / 1e3);
        }
        for (scope, thousandths) in &self.excesses {
            let labels = vec![
                ("workspace", text(&scope.workspace)),
                ("namespace", text(&scope.namespace)),
                ("window_seconds", (scope.window_ms / 1_000).to_string()),
            ];
            convergence.global_excess_ratio.get_or_create(&labels).set(*thousandths as f64 / 1e3);
        }
    }
}

/// Bytes as a label.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// All metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Limits the rate of warnings about peers that misbehave.
    pub warnings: Throttles,
    /// The last calls to stores.
    pub recent: Recent,
    /// The streams that were refused recently.
    pub refusals: RefusedStreams,
    /// The metrics of the APIs.
    pub api: ApiMetrics,
    /// The metrics of each limit of the rate-limit service.
    pub limits: LimitMetrics,
    /// The metrics of the rate-limit quota service.
    pub quota: QuotaMetrics,
    /// The metrics of this program.
    pub program: ProgramMetrics,
    /// The metrics of convergence.
    pub convergence: ConvergenceMetrics,
    /// Durations of packets, in seconds.
    pub exchange_seconds: Histogram,
    /// Durations of imports, in seconds.
    pub import_seconds: Histogram,
    /// By [`Api`] and [`ApiResult`] in their order, so that a decision looks up no name.
    api_decisions: [[Counter; ApiResult::VARIANTS.len()]; Api::VARIANTS.len()],
}

impl Metrics {
    /// All at zero, except for `exact` and `spans`, which are counted elsewhere.
    pub fn new(exact: &ExactFigures, spans: &SpanFigures) -> Self {
        const WARNING_INTERVAL: Duration = Duration::from_secs(10);
        let (program, convergence) = (ProgramMetrics::default(), ConvergenceMetrics::default());
        let (api, quota, limits) = (ApiMetrics::default(), QuotaMetrics::default(), LimitMetrics::default());
        let mut registry = Registry::default();
        process::register(&mut registry);
        registry.register_collector(Box::new(limits.clone()));
        convergence.register(registry.sub_registry_with_prefix(RATELIMIT_PREFIX));
        let prefixed = registry.sub_registry_with_prefix(PREFIX);
        program.register(prefixed);
        exact.register(prefixed);
        spans.register(prefixed);
        api.register(prefixed);
        quota.register(prefixed);
        let api_decisions = std::array::from_fn(|api| {
            std::array::from_fn(|result| {
                let api = ("api", Api::VARIANTS[api].into_str());
                let result = ("result", ApiResult::VARIANTS[result].into_str());
                program.api_decisions.get_or_create_owned(&[api, result])
            })
        });
        Metrics {
            api_decisions,
            recent: Recent::default(),
            refusals: RefusedStreams::default(),
            warnings: Throttles::new(WARNING_INTERVAL),
            exchange_seconds: convergence.global_tick_seconds.get_or_create_owned(&[("op", "exchange")]),
            import_seconds: convergence.global_tick_seconds.get_or_create_owned(&[("op", "import")]),
            api,
            limits,
            quota,
            program,
            convergence,
            registry,
        }
    }

    /// Counts a frame that ended its stream.
    pub fn frame_refused(&self, reason: &'static str) {
        self.program.frames_refused.get_or_create(&[("reason", reason)]).inc();
        self.refusals.note(reason);
    }

    /// Counts a loss of live control in the database.
    pub fn control_lost(&self) {
        self.program.store_wipes.get_or_create(&[("store", CONTROL)]).inc();
    }

    /// Counts a call of an API.
    pub fn api_decided(&self, api: Api, result: ApiResult) {
        self.api_decided_by(api, result, 1);
    }

    /// Counts several of them.
    pub fn api_decided_by(&self, api: Api, result: ApiResult, calls: u64) {
        self.api_decisions[api as usize][result as usize].inc_by(calls);
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
        self.convergence.origin_operations.get_or_create(&label).inc();
        self.convergence.origin_latency_seconds.get_or_create(&label).observe(took.as_secs_f64());
    }

    /// Counts a failed call to a store.
    pub fn operation_failed(&self, operation: Operation, reason: &'static str) {
        self.recent.failed(operation, reason);
        self.convergence
            .origin_errors
            .get_or_create(&[("op", operation.into_str()), ("reason", reason)])
            .inc();
    }

    /// Counts a packet that failed.
    pub fn global_write_failed(&self, reason: &'static str) {
        self.convergence.global_write_errors.get_or_create(&[("reason", reason)]).inc();
    }

    /// Counts an import that failed.
    pub fn import_failed(&self, reason: &'static str) {
        self.convergence.global_sync_errors.get_or_create(&[("reason", reason)]).inc();
    }

    /// All metrics in Prometheus' text format; `figures`, `stats` and `breakers` are kept elsewhere.
    pub fn text(
        &self,
        figures: &Figures,
        now: MonoMs,
        stats: RegionStats,
        breakers: &[(&'static str, State)],
        global: &GlobalFigures,
    ) -> String {
        let (program, convergence) = (&self.program, &self.convergence);
        self.raise(figures);
        set(&program.live_nodes, stats.live_nodes);
        set(&program.keys, stats.keys);
        raise(&program.keys_evicted, stats.keys_evicted);
        set(&program.push_queue, stats.pending_pushes);
        convergence.windows.set(i64::try_from(stats.windows).unwrap_or(i64::MAX));
        raise(&convergence.windows_created, stats.windows_created);
        raise(&convergence.windows_evicted, stats.windows_forgotten);
        for (store, state) in breakers {
            let state = match state {
                State::Closed => 0,
                State::HalfOpen => 1,
                State::Open => 2,
            };
            program.breaker_state.get_or_create(&[("store", *store)]).set(state);
        }
        let queues = [
            ("replay", stats.pending_replays),
            ("share", stats.pending_shares),
            ("publish", stats.pending_publications),
        ];
        for (queue, cells) in queues {
            set(&program.queue_cells.get_or_create(&[("queue", queue)]), cells);
        }
        let moments = [
            ("hot", figures.complete_at),
            ("publish", figures.published_at),
            ("import", figures.imported_at),
        ];
        for (what, moment) in moments {
            // Seconds since that time; -1 if never.
            let age = moment.map_or(-1.0, |moment| now.since(moment) as f64 / 1e3);
            program.snapshot_age_seconds.get_or_create(&[("what", what)]).set(age);
        }
        global.show(convergence);
        let mut text = String::new();
        // Writing into a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }

    fn raise(&self, figures: &Figures) {
        let (program, convergence) = (&self.program, &self.convergence);
        let counters = [
            (&program.reports, figures.reports),
            (&program.counts_merged, figures.counts_merged),
            (&program.pushes, figures.pushes),
            (&program.pushed_cells, figures.pushed_cells),
            (&program.hot_left, figures.hot_left),
            (&program.changes_received, figures.changes_received),
            (&program.recovered_cells, figures.recovered),
            (&convergence.global_sync_rows_applied, figures.imports_merged),
            (&convergence.global_entries_created, figures.imports_created),
        ];
        counters.iter().for_each(|(counter, value)| raise(counter, *value));
        raise_each(&program.counts_refused, "reason", counts_refused(figures));
        raise_each(&program.cells_without_room, "source", cells_without_room(figures));
        raise_each(&program.queries, "result", query_results(figures));
        raise_each(&program.store_wipes, "store", store_wipes(figures));
    }
}

/// Counts that were refused, by reason.
fn counts_refused(figures: &Figures) -> [(&'static str, u64); 5] {
    let Refusals { key, sequence, component, full, baseline } = figures.counts_refused;
    [("key", key), ("sequence", sequence), ("component", component), ("full", full), ("baseline", baseline)]
}

/// Cells that had no room, by who has counted them.
fn cells_without_room(figures: &Figures) -> [(&'static str, u64); 2] {
    let NoRoom { regions, peers } = figures.without_room;
    [("regions", regions), ("peers", peers)]
}

/// Queries, by result.
fn query_results(figures: &Figures) -> [(&'static str, u64); 3] {
    [("granted", figures.granted), ("refused", figures.denied), ("unjudged", figures.unjudged)]
}

/// The store of live control, among the places of losses.
const CONTROL: &str = "control";

/// Losses of counts, by store.
fn store_wipes(figures: &Figures) -> [(&'static str, u64); 2] {
    [("regional", figures.store_wipes), ("global", figures.database_wipes)]
}

/// Where losses of data are found: of counts by store, and of live control.
fn lossy_stores() -> Vec<&'static str> {
    names(store_wipes(&Figures::default())).into_iter().chain([CONTROL]).collect()
}

fn names<const N: usize>(counts: [(&'static str, u64); N]) -> [&'static str; N] {
    counts.map(|(name, _)| name)
}

fn operations() -> Vec<&'static str> {
    Operation::REGIONAL.into_iter().chain(Operation::GLOBAL).map(|operation| operation.into_str()).collect()
}

fn latencies() -> Family<Label, Histogram> {
    let family: Family<Label, Histogram> =
        Family::new_with_constructor(|| Histogram::new(exponential_buckets(1e-4, 2.0, 16))); // 0.1 ms to 3.3 s
    operations().iter().for_each(|operation| drop(family.get_or_create(&[("op", *operation)])));
    family
}

/// Each operation with the reasons of its store.
fn operation_errors() -> Family<Labels, Counter> {
    let family = at_zero_by(
        "op",
        &Operation::REGIONAL.map(|operation| operation.into_str()),
        "reason",
        &REGIONAL_REASONS,
    );
    for operation in Operation::GLOBAL.map(|operation| operation.into_str()) {
        for reason in DATABASE_REASONS {
            drop(family.get_or_create(&[("op", operation), ("reason", reason)]));
        }
    }
    family
}

fn set(gauge: &Gauge, value: usize) {
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
}

/// Raises the counters of a family to values that are kept elsewhere.
fn raise_each(
    family: &Family<Label, Counter>,
    label: &'static str,
    values: impl IntoIterator<Item = (&'static str, u64)>,
) {
    values.into_iter().for_each(|(name, value)| raise(&family.get_or_create(&[(label, name)]), value));
}

/// Raises a counter to a value that is kept elsewhere.
fn raise(counter: &Counter, value: u64) {
    counter.inc_by(value.saturating_sub(counter.get()));
}
