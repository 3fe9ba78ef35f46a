//! Decisions since the last tick by rule and outcome: counted in memory, added to Envoy's statistics in batches.

#[cfg(any(target_arch = "wasm32", feature = "native", test))]
pub(crate) mod metrics;
pub mod reporter;

use std::collections::BTreeMap;
use weir_core::model::metric::Metric;
use weir_core::model::outcome::{Outcomes, RuleOutcome};
#[cfg(any(feature = "native", test))]
use weir_core::rules::Cost;
use weir_core::rules::{Line, Settled, UsageResult, Used};
use weir_core::usage::Tokens;

/// Counts by rule and outcome.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    counts: Vec<Outcomes<u64>>,
    /// What settled costs, by rule and what of it: at most some thirty of each rule.
    settled: BTreeMap<(u16, SettledCount), u64>,
    /// By rule, requests with a value that the rule does not list.
    unlisted: Vec<u64>,
    /// Requests that end before any rule.
    pub requests: Requests,
}

/// The kinds of tokens.
const TOKENS: [&str; 5] = ["input", "cached_input", "cache_creation", "output", "reasoning"];

/// What is counted of costs that responses settle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SettledCount {
    /// Requests by what decided their cost.
    Line(Line),
    /// Requests by what is known of the use of a language model.
    Usage(UsageResult),
    /// Tokens of this kind.
    Tokens(&'static str),
    /// Units that were charged by an estimate.
    Estimated,
    /// Requests of models without a price of their own.
    Unpriced,
}

impl SettledCount {
    /// All that may be counted of a cost.
    #[cfg(any(feature = "native", test))]
    pub fn all(cost: &Cost) -> Vec<SettledCount> {
        match cost {
            Cost::When(when) => when.lines().map(SettledCount::Line).collect(),
            Cost::Usage(_) => {
                let results = UsageResult::ALL.iter().copied().map(SettledCount::Usage);
                let tokens = TOKENS.iter().copied().map(SettledCount::Tokens);
                results.chain(tokens).chain([SettledCount::Estimated, SettledCount::Unpriced]).collect()
            }
            Cost::Fixed(_) | Cost::Request(_) | Cost::Response(_) => Vec::new(),
        }
    }

    /// The name of the metric for a rule, with its labels.
    pub fn metric(self, rule: &str) -> String {
        match self {
            SettledCount::Line(line) => format!("weir_settled_total.rule.{rule}.line.{line}"),
            SettledCount::Usage(result) => format!("weir_usage_total.rule.{rule}.result.{}", result.name()),
            SettledCount::Tokens(kind) => format!("weir_usage_tokens_total.rule.{rule}.kind.{kind}"),
            SettledCount::Estimated => format!("weir_usage_estimated_total.rule.{rule}"),
            SettledCount::Unpriced => format!("weir_unpriced_models_total.rule.{rule}"),
        }
    }
}

/// Counts of requests that end before any rule: a further one is a field, a row of [`METRICS`], and the place that counts it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Requests {
    /// Requests that were denied for their client's address.
    pub denied_addresses: u64,
    /// Requests that were denied as readings of their paths or hosts meet too many rules.
    pub ambiguous_paths: u64,
    /// Requests that would be denied so if no rule were in shadow mode.
    pub paths_on_trial: u64,
}

/// Panics that were caught.
pub const PANICS: &str = "weir_panics_total";

/// The metrics of [`Requests`].
pub const METRICS: &[Metric<Requests>] = &[
    Metric::counter("weir_addresses_denied_total", |requests, _| requests.denied_addresses),
    Metric::counter("weir_paths_denied_total", |requests, _| requests.ambiguous_paths),
    Metric::counter("weir_paths_shadow_denied_total", |requests, _| requests.paths_on_trial),
    // The native filter adds to it where it catches one. A VM of WASM does not outlive a panic, and Envoy counts its reloads.
    Metric::counter(PANICS, |_, _| 0),
];

impl Counters {
    /// For `rules` rules.
    pub fn new(rules: usize) -> Counters {
        Counters { counts: vec![Outcomes::default(); rules], unlisted: vec![0; rules], ..Counters::default() }
    }

    /// Counts one decision.
    pub fn count(&mut self, rule: usize, outcome: RuleOutcome) {
        if let Some(count) = self.counts.get_mut(rule).map(|counts| counts.get_mut(outcome)) {
            *count = count.saturating_add(1);
        }
    }

    /// Counts what settled a cost.
    pub fn count_settled(&mut self, rule: u16, line: Line) {
        self.add_settled(rule, SettledCount::Line(line), 1);
    }

    /// Counts the use of a language model.
    pub fn count_usage(&mut self, rule: u16, settled: Settled) {
        let Settled { cost, line, used } = settled;
        if let Line::Usage(result) = line {
            self.add_settled(rule, SettledCount::Usage(result), 1);
        }
        let Some(Used { tokens, is_estimated, is_unpriced }) = used else { return };
        let Tokens { input, cached_input, cache_creation, output, reasoning } = tokens;
        let counts = [input, cached_input, cache_creation, output, reasoning];
        for (kind, tokens) in TOKENS.into_iter().zip(counts) {
            self.add_settled(rule, SettledCount::Tokens(kind), tokens);
        }
        self.add_settled(rule, SettledCount::Estimated, if is_estimated { cost } else { 0 });
        self.add_settled(rule, SettledCount::Unpriced, u64::from(is_unpriced));
    }

    fn add_settled(&mut self, rule: u16, what: SettledCount, by: u64) {
        if by > 0 {
            let count = self.settled.entry((rule, what)).or_default();
            *count = count.saturating_add(by);
        }
    }

    /// Returns what settled costs, and resets it.
    pub fn take_settled(&mut self) -> BTreeMap<(u16, SettledCount), u64> {
        std::mem::take(&mut self.settled)
    }

    /// Counts a request with a value that a rule does not list.
    pub fn count_unlisted(&mut self, rule: usize) {
        if let Some(count) = self.unlisted.get_mut(rule) {
            *count = count.saturating_add(1);
        }
    }

    /// Passes on how many requests had values that a rule does not list, if there were some, and resets the counts.
    pub fn drain_unlisted(&mut self, mut out: impl FnMut(usize, u64)) {
        for (rule, count) in self.unlisted.iter_mut().enumerate().filter(|(_, count)| **count > 0) {
            out(rule, std::mem::take(count));
        }
    }

    /// Passes each count that is not 0 to `out`, and resets it.
    pub fn drain(&mut self, mut out: impl FnMut(usize, RuleOutcome, u64)) {
        for (rule, counts) in self.counts.iter_mut().enumerate() {
            for outcome in RuleOutcome::ALL.iter().copied() {
                let count = std::mem::take(counts.get_mut(outcome));
                if count > 0 {
                    out(rule, outcome, count);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_handed_out_once() {
        let mut counters = Counters::new(2);
        counters.count(1, RuleOutcome::Denied);
        counters.count(1, RuleOutcome::Denied);
        counters.count(0, RuleOutcome::Exempt);
        counters.count(0, RuleOutcome::Undecided);
        counters.count(7, RuleOutcome::Allowed);
        let mut drained = Vec::new();
        counters.drain(|rule, outcome, count| drained.push((rule, outcome, count)));
        assert_eq!(
            drained,
            [(0, RuleOutcome::Exempt, 1), (0, RuleOutcome::Undecided, 1), (1, RuleOutcome::Denied, 2)]
        );
        counters.drain(|_, _, _| panic!("nothing is left"));
        [1, 1, 7].into_iter().for_each(|rule| counters.count_unlisted(rule));
        let mut drained = Vec::new();
        counters.drain_unlisted(|rule, count| drained.push((rule, count)));
        assert_eq!(drained, [(1, 2)]);
        counters.drain_unlisted(|_, _| panic!("nothing is left"));
    }

    fn file(name: &str) -> String {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
        std::fs::read_to_string(path).unwrap()
    }

    /// The rows of a table whose metrics `METRICS.md` does not list so, with their labels and the values of these.
    fn undocumented<S>(metrics: &[Metric<S>], page: &str, tags: &str) -> Vec<&'static str> {
        let is_documented = |metric: &&Metric<S>| {
            let label = metric.label.map(|label| label.name);
            let labels = label.map_or_else(String::new, |name| format!("{{{name}}}"));
            let Some((_, row)) = page.split_once(&format!("| `{}{labels}` |", metric.name)) else {
                return false;
            };
            let meaning = row.split('\n').next().unwrap_or_default();
            let values = metric.label.map_or(&[] as &[&str], |label| label.values);
            let is_tag = label.is_none_or(|name| tags.contains(&format!("tag_name: {name},")));
            is_tag && values.iter().all(|value| meaning.contains(&format!("`{value}`")))
        };
        metrics.iter().filter(|metric| !is_documented(metric)).map(|metric| metric.name).collect()
    }

    #[test]
    fn every_metric_is_documented_with_its_label() {
        let (page, tags) = (file("aggregator/METRICS.md"), file("envoy/deploy/envoy.yaml"));
        let (_, page) = page.split_once("\n## All metrics\n").unwrap();
        assert_eq!(undocumented(METRICS, page, &tags), [""; 0]);
        assert_eq!(undocumented(weir_core::limiter::METRICS, page, &tags), [""; 0]);
    }
}
