//! Decisions since the last tick by rule and outcome: counted in memory, added to Envoy's statistics in batches.

#[cfg(target_arch = "wasm32")]
pub(crate) mod metrics;
pub mod reporter;

use weir_core::model::metric::Metric;
use weir_core::model::outcome::{Outcomes, RuleOutcome};

/// Counts by rule and outcome.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    counts: Vec<Outcomes<u64>>,
    /// Requests that end before any rule.
    pub requests: Requests,
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

/// The metrics of [`Requests`].
pub const METRICS: &[Metric<Requests>] = &[
    Metric::counter("weir_addresses_denied_total", |requests, _| requests.denied_addresses),
    Metric::counter("weir_paths_denied_total", |requests, _| requests.ambiguous_paths),
    Metric::counter("weir_paths_shadow_denied_total", |requests, _| requests.paths_on_trial),
];

impl Counters {
    /// For `rules` rules.
    pub fn new(rules: usize) -> Counters {
        Counters { counts: vec![Outcomes::default(); rules], ..Counters::default() }
    }

    /// Counts one decision.
    pub fn count(&mut self, rule: usize, outcome: RuleOutcome) {
        if let Some(count) = self.counts.get_mut(rule).map(|counts| counts.get_mut(outcome)) {
            *count = count.saturating_add(1);
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
