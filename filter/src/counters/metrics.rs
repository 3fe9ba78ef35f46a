//! The filter's metrics in Envoy's statistics, updated in batches instead of by a host call for each request.
//!
//! All names begin with `weir_`. Rule, outcome, reason and result are parts of the name and become labels through the
//! `stats_tags` of the shipped bootstrap. No name contains an identifier or an origin.
//!
//! Workers share Envoy's metrics, so gauges are changed by differences, not set.

use crate::counters::Counters;
use crate::host::calls;
use proxy_wasm::types::MetricType;
use weir_core::limiter::Stats;
use weir_core::model::outcome::{Outcomes, RuleOutcome};
use weir_core::model::time::MonoMs;
use weir_core::rules::Rule;

/// Time between two batches.
const FLUSH_MS: u64 = 200;
/// The exact name in `/stats/prometheus`, where Envoy removes the prefix `wasmcustom.`.
const STRICT: &str = "weir_ratelimit_strict_mode_activations_total";
const REASONS: [&str; 5] = ["cold", "baseline", "strict", "stale", "slack"];
const RESULTS: [&str; 5] = ["granted", "refused", "timeout", "broken", "unjudged"];
const EXACT_RESULTS: [&str; 5] = ["allowed", "denied", "undecided", "timeout", "broken"];

/// Metrics of the decisions of one configuration.
#[derive(Debug, Default)]
pub struct DecisionMetrics {
    decisions: Vec<Outcomes<Option<u32>>>,
    ids: Ids,
    flushed: Option<MonoMs>,
}

/// Metrics of one worker's limiter.
#[derive(Debug, Default)]
pub struct LimiterMetrics {
    /// `None` before the first batch, which defines all metrics without labels, so that alerts find them at 0.
    flushed_stats: Option<Stats>,
    ids: Ids,
    flushed: MonoMs,
}

/// The metrics without labels that were defined.
#[derive(Debug, Default)]
struct Ids(Vec<(&'static str, u32)>);

impl DecisionMetrics {
    /// For `rules` rules.
    pub fn new(rules: usize) -> DecisionMetrics {
        DecisionMetrics { decisions: vec![Outcomes::default(); rules], ..DecisionMetrics::default() }
    }

    /// Writes what was counted since the last batch, if the next one is due or `now_or_never`, and passes it to `out`.
    pub fn flush(
        &mut self,
        rules: &[Rule],
        counters: &mut Counters,
        mut out: impl FnMut(usize, RuleOutcome, u64),
        now: MonoMs,
        now_or_never: bool,
    ) {
        if self.flushed.is_some_and(|flushed| now.since(flushed) < FLUSH_MS) && !now_or_never {
            return;
        }
        let first = self.flushed.replace(now).is_none();
        let decisions = &mut self.decisions;
        counters.drain(|rule, outcome, count| {
            out(rule, outcome, count);
            let Some(id) = decisions.get_mut(rule).map(|ids| ids.get_mut(outcome)) else {
                return;
            };
            let name = || rules.get(rule).map_or("", |rule| rule.name.as_str());
            if id.is_none() {
                let name = format!("weir_decisions_total.rule.{}.outcome.{}", name(), outcome.name());
                *id = calls::define_metric(MetricType::Counter, &name);
            }
            if let Some(id) = *id {
                calls::increment_metric(id, i64::try_from(count).unwrap_or(i64::MAX));
            }
        });
        for (name, count) in [
            ("weir_addresses_denied_total", &mut counters.denied_addresses),
            ("weir_paths_denied_total", &mut counters.ambiguous_paths),
            ("weir_paths_shadow_denied_total", &mut counters.paths_on_trial),
        ] {
            if first {
                self.ids.id(MetricType::Counter, name);
            }
            self.ids.moved(MetricType::Counter, name, std::mem::take(count), 0);
        }
    }
}

impl LimiterMetrics {
    /// Writes what has changed since the last batch, if the next one is due or `now_or_never`.
    pub fn flush(&mut self, stats: Stats, now: MonoMs, now_or_never: bool) {
        if now.since(self.flushed) < FLUSH_MS && !now_or_never {
            return;
        }
        self.flushed = now;
        self.flush_stats(stats);
    }

    fn flush_stats(&mut self, stats: Stats) {
        let first = self.flushed_stats.is_none();
        let last = self.flushed_stats.replace(stats).unwrap_or_default();
        for ((reason, count), before) in REASONS.iter().zip(stats.consults).zip(last.consults) {
            labelled("weir_consults_total.reason.", reason, count, before);
        }
        for ((result, count), before) in RESULTS.iter().zip(stats.results).zip(last.results) {
            labelled("weir_consult_results_total.result.", result, count, before);
        }
        for ((result, count), before) in EXACT_RESULTS.iter().zip(stats.exact_results).zip(last.exact_results)
        {
            labelled("weir_exact_results_total.result.", result, count, before);
        }
        let counters = [
            ("weir_exact_requests_total", stats.exact_requests, last.exact_requests),
            ("weir_exact_cached_denials_total", stats.spared, last.spared),
            ("weir_exact_unsent_total", stats.exact_unsent, last.exact_unsent),
            ("weir_refunds_total", stats.refunds, last.refunds),
            ("weir_refunds_lost_total", stats.refunds_lost, last.refunds_lost),
            ("weir_table_evictions_total", stats.evictions, last.evictions),
            ("weir_table_overflows_total", stats.overflows, last.overflows),
            ("weir_table_conflicts_total", stats.conflicts, last.conflicts),
            ("weir_table_exhausted_total", stats.exhausted, last.exhausted),
            ("weir_costs_unawaited_total", stats.unawaited, last.unawaited),
            ("weir_leases_total", stats.leases, last.leases),
            ("weir_snapshots_total", stats.snapshots, last.snapshots),
            ("weir_refused_cells_total", stats.refused, last.refused),
            (STRICT, stats.strict, last.strict),
            ("weir_streams_unacknowledged_total", stats.unacknowledged, last.unacknowledged),
        ];
        for (name, count, before) in counters {
            if first {
                self.ids.id(MetricType::Counter, name);
            }
            self.ids.moved(MetricType::Counter, name, count, before);
        }
        let keys = |stats: &Stats| stats.keys_added.wrapping_sub(stats.keys_removed);
        let gauges = [
            ("weir_table_keys", keys(&stats), keys(&last)),
            ("weir_workers", stats.gauges.workers, last.gauges.workers),
            ("weir_report_queue", stats.gauges.report_queue, last.gauges.report_queue),
            ("weir_streams_connected", stats.gauges.streams_connected, last.gauges.streams_connected),
            ("weir_streams_settled", stats.gauges.streams_settled, last.gauges.streams_settled),
            ("weir_subscribers", stats.gauges.subscribers, last.gauges.subscribers),
        ];
        for (name, value, before) in gauges {
            if first {
                self.ids.id(MetricType::Gauge, name);
            }
            self.ids.moved(MetricType::Gauge, name, value, before);
        }
        if stats.subscriber
            && stats.snapshot_age_ms != u64::MAX
            && let Some(id) = self.ids.id(MetricType::Gauge, "weir_snapshot_age_ms")
        {
            calls::record_metric(id, stats.snapshot_age_ms);
        }
    }
}

impl Ids {
    fn moved(&mut self, kind: MetricType, name: &'static str, value: u64, before: u64) {
        if value != before
            && let Some(id) = self.id(kind, name)
        {
            calls::increment_metric(id, difference(value, before));
        }
    }

    fn id(&mut self, kind: MetricType, name: &'static str) -> Option<u32> {
        if let Some((_, id)) = self.0.iter().find(|(of, _)| *of == name) {
            return Some(*id);
        }
        let id = calls::define_metric(kind, name)?;
        self.0.push((name, id));
        Some(id)
    }
}

fn labelled(prefix: &str, label: &str, count: u64, before: u64) {
    if count != before
        && let Some(id) = calls::define_metric(MetricType::Counter, &format!("{prefix}{label}"))
    {
        calls::increment_metric(id, difference(count, before));
    }
}

fn difference(value: u64, before: u64) -> i64 {
    // Two's complement: a decrease is negative.
    value.wrapping_sub(before).cast_signed()
}
