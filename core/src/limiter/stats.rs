//! Counters and gauges of a limiter, and the metrics of them: a further metric is a field of [`Stats`], a row of [`METRICS`], and the place
//! that counts it.

use super::check::{ExactResult, QueryResult, Reason};
use crate::limiter::table::Removals;
use crate::model::metric::{Kind, Metric};

/// The metrics of a limiter.
pub const METRICS: &[Metric<Stats>] = &[
    Metric::labelled("weir_queries_total", "reason", Reason::NAMES, |stats, at| count(&stats.queries, at)),
    Metric::labelled("weir_query_results_total", "result", QueryResult::NAMES, |stats, at| {
        count(&stats.results, at)
    }),
    Metric::labelled("weir_exact_results_total", "result", ExactResult::NAMES, |stats, at| {
        count(&stats.exact_results, at)
    }),
    Metric::counter("weir_exact_requests_total", |stats, _| stats.exact_requests),
    Metric::counter("weir_exact_cached_denials_total", |stats, _| stats.spared),
    Metric::counter("weir_exact_unsent_total", |stats, _| stats.exact_unsent),
    Metric::counter("weir_refunds_total", |stats, _| stats.refunds),
    Metric::counter("weir_refunds_lost_total", |stats, _| stats.refunds_lost),
    Metric::counter("weir_table_evictions_total", |stats, _| stats.evictions),
    Metric::counter("weir_table_overflows_total", |stats, _| stats.overflows),
    Metric::counter("weir_table_conflicts_total", |stats, _| stats.conflicts),
    Metric::counter("weir_table_exhausted_total", |stats, _| stats.exhausted),
    Metric::counter("weir_costs_unawaited_total", |stats, _| stats.unawaited),
    Metric::counter("weir_leases_total", |stats, _| stats.leases),
    Metric::counter("weir_snapshots_total", |stats, _| stats.snapshots),
    Metric::counter("weir_table_unplaced_total", |stats, _| stats.unplaced),
    Metric::counter("weir_refused_cells_total", |stats, _| stats.refused),
    // The exact name in `/stats/prometheus`, where Envoy removes the prefix `wasmcustom.`.
    Metric::counter("weir_ratelimit_strict_mode_activations_total", |stats, _| stats.strict),
    Metric::counter("weir_streams_unacknowledged_total", |stats, _| stats.unacknowledged),
    Metric::gauge("weir_table_keys", Kind::Sum, |stats, _| stats.keys_added.wrapping_sub(stats.keys_removed)),
    Metric::gauge("weir_workers", Kind::Sum, |stats, _| stats.gauges.workers),
    Metric::gauge("weir_report_queue", Kind::Sum, |stats, _| stats.gauges.report_queue),
    Metric::gauge("weir_streams_connected", Kind::Sum, |stats, _| stats.gauges.streams_connected),
    Metric::gauge("weir_streams_settled", Kind::Sum, |stats, _| stats.gauges.streams_settled),
    Metric::gauge("weir_subscribers", Kind::Sum, |stats, _| stats.gauges.subscribers),
    Metric::gauge("weir_snapshot_age_ms", Kind::Set, |stats, _| match stats.subscriber {
        true => stats.snapshot_age_ms,
        false => u64::MAX,
    }),
];

fn count(counts: &[u64], at: usize) -> u64 {
    counts.get(at).copied().unwrap_or_default()
}

/// Counters since the limiter was made, and gauges of the last tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Queries sent, by [`Reason`] in its order.
    pub queries: [u64; Reason::NAMES.len()],
    /// Their results, by [`QueryResult`] in its order.
    pub results: [u64; QueryResult::NAMES.len()],
    /// Exact requests sent.
    pub exact_requests: u64,
    /// Their results, by [`ExactResult`] in its order.
    pub exact_results: [u64; ExactResult::NAMES.len()],
    /// Requests whose exact rules were not sent: there was no stream, or too many waited.
    pub exact_unsent: u64,
    /// Requests that a cached denial of a log decided.
    pub spared: u64,
    /// Exact requests whose charges were refunded.
    pub refunds: u64,
    /// Exact requests whose charges may stay, as too many refunds waited for a stream.
    pub refunds_lost: u64,
    /// Entries that were evicted while a window still counted them.
    pub evictions: u64,
    /// Charges to an overflow cell.
    pub overflows: u64,
    /// Compare-and-set conflicts: another worker changed the bucket first.
    pub conflicts: u64,
    /// Charges given up after too many conflicts; the request was denied as [`super::Cause::Reserved`].
    pub exhausted: u64,
    /// Requests that were charged their highest cost, as too many waited for a deferred cost.
    pub unawaited: u64,
    /// Leases taken.
    pub leases: u64,
    /// Keys that entered the table.
    pub keys_added: u64,
    /// Keys that left it, evicted or expired.
    pub keys_removed: u64,
    /// Cells of this worker that wait to be reported.
    pub report_queue: u64,
    /// What this worker has added to the gauges of its process.
    pub gauges: Gauges,
    /// Whether this worker is the subscriber.
    pub subscriber: bool,
    /// Milliseconds since the subscription was last confirmed; `u64::MAX` if never.
    pub snapshot_age_ms: u64,
    /// Cells merged from pushes.
    pub snapshots: u64,
    /// Pushed cells of keys that found no place in the table, as it is full of keys in use.
    pub unplaced: u64,
    /// Cells that the region refused.
    pub refused: u64,
    /// Denials that began strict mode on a key: the first within a window's length.
    pub strict: u64,
    /// Streams given up as [`super::CloseReason::Unacknowledged`].
    pub unacknowledged: u64,
}

/// The gauges of a process, or a change of them: a decrease is the two's complement.
///
/// The worker registry holds them, and the worker whose update changes them adds the change to the metrics. So a worker that ends without
/// a last word, as after a failure of its VM, does not stay in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Workers in the registry.
    pub workers: u64,
    /// Workers whose streams are open.
    pub streams_connected: u64,
    /// Workers whose streams have been open long enough to rely on the number of nodes.
    pub streams_settled: u64,
    /// Workers that receive the region's pushes: one, or none.
    pub subscribers: u64,
    /// Cells that wait to be reported.
    pub report_queue: u64,
}

impl Gauges {
    /// The change from `before` to `self`.
    pub(super) fn since(&self, before: &Gauges) -> Gauges {
        self.merge(before, u64::wrapping_sub)
    }

    /// Adds a change.
    pub(super) fn add(&mut self, change: &Gauges) {
        *self = self.merge(change, u64::wrapping_add);
    }

    fn merge(&self, other: &Gauges, of: impl Fn(u64, u64) -> u64) -> Gauges {
        Gauges {
            workers: of(self.workers, other.workers),
            streams_connected: of(self.streams_connected, other.streams_connected),
            streams_settled: of(self.streams_settled, other.streams_settled),
            subscribers: of(self.subscribers, other.subscribers),
            report_queue: of(self.report_queue, other.report_queue),
        }
    }
}

impl Stats {
    pub(super) fn count_query(&mut self, reason: Reason) {
        if let Some(count) = self.queries.get_mut(reason as usize) {
            *count += 1;
        }
    }

    pub(super) fn count_exact(&mut self, result: ExactResult) {
        if let Some(count) = self.exact_results.get_mut(result as usize) {
            *count += 1;
        }
    }

    /// Counts a key that entered the table, and the one that made room for it.
    pub(super) fn made(&mut self, removals: &Removals) {
        self.keys_added += 1;
        self.keys_removed += u64::from(removals.over) + u64::from(removals.evicted);
        self.evictions += u64::from(removals.evicted);
    }

    pub(super) fn count_result(&mut self, result: QueryResult) {
        if let Some(count) = self.results.get_mut(result as usize) {
            *count += 1;
        }
    }
}
