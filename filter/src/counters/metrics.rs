//! The filter's metrics in Envoy's statistics, updated in batches instead of by a host call for each request.
//!
//! All names begin with `weir_`. Rule, outcome, reason, result and line are parts of the name and become labels through the
//! `stats_tags` of the shipped bootstrap. No name contains an identifier or a node.
//!
//! The tables of the metrics are [`limiter::METRICS`] and [`counters::METRICS`](crate::counters::METRICS).

#[cfg(not(target_arch = "wasm32"))]
use crate::counters::SettledCount;
use crate::counters::{self, Counters, Requests};
use crate::host::calls;
use crate::host::kinds::MetricType;
use weir_core::limiter::{self, Stats};
use weir_core::model::metric::{Kind, Label, Metric};
use weir_core::model::outcome::{Outcomes, RuleOutcome};
use weir_core::model::time::MonoMs;
use weir_core::rules::Rule;

/// Time between two batches.
const FLUSH_MS: u64 = 200;

/// Metrics of the decisions of one configuration.
#[derive(Debug, Default)]
pub struct DecisionMetrics {
    decisions: Vec<Outcomes<Option<u32>>>,
    unlisted: Vec<Option<u32>>,
    flushed_requests: Option<Requests>,
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

/// All metrics that the configuration with these rules may have, by the names under which they are defined.
#[cfg(not(target_arch = "wasm32"))]
pub fn names(rules: &[Rule]) -> Vec<(MetricType, String)> {
    let mut names = Vec::new();
    add_names(limiter::METRICS, &mut names);
    add_names(counters::METRICS, &mut names);
    for rule in rules {
        let decisions = RuleOutcome::ALL.iter().map(|outcome| decisions_name(&rule.name, *outcome));
        let settled = SettledCount::all(&rule.cost).into_iter().map(|what| what.metric(&rule.name));
        let all = decisions.chain([unlisted_name(&rule.name)]).chain(settled);
        names.extend(all.map(|name| (MetricType::Counter, name)));
    }
    names
}

#[cfg(not(target_arch = "wasm32"))]
fn add_names<S>(metrics: &[Metric<S>], names: &mut Vec<(MetricType, String)>) {
    for Metric { name, kind, label, .. } in metrics {
        match label {
            Some(label) => names.extend(
                label.values.iter().map(|value| (MetricType::Counter, labelled_name(name, label, value))),
            ),
            None => names.push((type_of(*kind), (*name).to_owned())),
        }
    }
}

fn decisions_name(rule: &str, outcome: RuleOutcome) -> String {
    format!("weir_decisions_total.rule.{rule}.outcome.{}", outcome.name())
}

fn unlisted_name(rule: &str) -> String {
    format!("weir_unlisted_values_total.rule.{rule}")
}

fn labelled_name(name: &str, label: &Label, value: &str) -> String {
    format!("{name}.{}.{value}", label.name)
}

impl DecisionMetrics {
    /// For `rules` rules.
    pub fn new(rules: usize) -> DecisionMetrics {
        DecisionMetrics {
            decisions: vec![Outcomes::default(); rules],
            unlisted: vec![None; rules],
            ..DecisionMetrics::default()
        }
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
        self.flushed = Some(now);
        let DecisionMetrics { decisions, unlisted, .. } = self;
        let name = |rule: usize| rules.get(rule).map_or("", |rule| rule.name.as_str());
        counters.drain(|rule, outcome, count| {
            out(rule, outcome, count);
            let id = decisions.get_mut(rule).map(|ids| ids.get_mut(outcome));
            add(id, || decisions_name(name(rule), outcome), count);
        });
        counters.drain_unlisted(|rule, count| {
            add(unlisted.get_mut(rule), || unlisted_name(name(rule)), count);
        });
        for ((rule, what), count) in counters.take_settled() {
            let name = what.metric(rules.get(usize::from(rule)).map_or("", |rule| rule.name.as_str()));
            if let Some(id) = calls::define_metric(MetricType::Counter, &name) {
                calls::increment_metric(id, i64::try_from(count).unwrap_or(i64::MAX));
            }
        }
        let last = self.flushed_requests.replace(counters.requests);
        self.ids.report(counters::METRICS, &counters.requests, last);
    }
}

impl LimiterMetrics {
    /// Writes what has changed since the last batch, if the next one is due or `now_or_never`.
    pub fn flush(&mut self, stats: Stats, now: MonoMs, now_or_never: bool) {
        if now.since(self.flushed) < FLUSH_MS && !now_or_never {
            return;
        }
        self.flushed = now;
        let last = self.flushed_stats.replace(stats);
        self.ids.report(limiter::METRICS, &stats, last);
    }
}

impl Ids {
    /// Reports what has changed since `last`. The first time, defines all metrics that have no labels.
    fn report<S: Default>(&mut self, metrics: &'static [Metric<S>], now: &S, last: Option<S>) {
        let first = last.is_none();
        let last = last.unwrap_or_default();
        for Metric { name, kind, label, value } in metrics {
            match (label, kind) {
                (Some(label), _) => {
                    report_each(name, label, |at| difference(value(now, at), value(&last, at)))
                }
                (None, Kind::Set) => self.set(name, value(now, 0)),
                (None, Kind::Counter | Kind::Sum) => {
                    let by = difference(value(now, 0), value(&last, 0));
                    if (first || by != 0)
                        && let Some(id) = self.id(type_of(*kind), name)
                        && by != 0
                    {
                        calls::increment_metric(id, by);
                    }
                }
            }
        }
    }

    fn set(&mut self, name: &'static str, value: u64) {
        if value != u64::MAX
            && let Some(id) = self.id(MetricType::Gauge, name)
        {
            calls::record_metric(id, value);
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

/// Adds to the counter at `id`, and defines it the first time.
fn add(id: Option<&mut Option<u32>>, name: impl FnOnce() -> String, count: u64) {
    let Some(id) = id else { return };
    if id.is_none() {
        *id = calls::define_metric(MetricType::Counter, &name());
    }
    if let Some(id) = *id {
        calls::increment_metric(id, i64::try_from(count).unwrap_or(i64::MAX));
    }
}

fn type_of(kind: Kind) -> MetricType {
    match kind {
        Kind::Counter => MetricType::Counter,
        Kind::Sum | Kind::Set => MetricType::Gauge,
    }
}

fn report_each(name: &str, label: &Label, by: impl Fn(usize) -> i64) {
    for (at, value) in label.values.iter().enumerate() {
        let by = by(at);
        if by != 0
            && let Some(id) = calls::define_metric(MetricType::Counter, &labelled_name(name, label, value))
        {
            calls::increment_metric(id, by);
        }
    }
}

fn difference(value: u64, before: u64) -> i64 {
    // Two's complement: a decrease is negative.
    value.wrapping_sub(before).cast_signed()
}
