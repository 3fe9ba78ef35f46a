//! What a plugin counts: decisions by rule, for Envoy's statistics and for the aggregator.

use crate::counters::metrics::DecisionMetrics;
use crate::counters::reporter::CounterReporter;
use crate::counters::{Counters, Requests};
use weir_core::model::outcome::RuleOutcome;
use weir_core::model::time::MonoMs;
use weir_core::rules::{Config, Cost, Rule, Settled};

/// The counters of a plugin and where they are sent.
pub(super) struct Statistics {
    counters: Counters,
    metrics: DecisionMetrics,
    /// The places of its rules in the worker's reports.
    places: Vec<usize>,
}

impl Statistics {
    /// For the rules of `config`, the configuration of `root`.
    pub(super) fn new(root: u32, config: &Config, reporter: &mut CounterReporter) -> Statistics {
        let rules = config.rules.len();
        Statistics {
            counters: Counters::new(rules),
            metrics: DecisionMetrics::new(rules),
            places: reporter.register(root, config),
        }
    }

    /// Counts a decision.
    pub(super) fn count(&mut self, rule: usize, outcome: RuleOutcome) {
        self.counters.count(rule, outcome);
    }

    /// Counts what settled a cost, unless the cost is that of a header.
    pub(super) fn count_settled(&mut self, rule: u16, settled: Settled, rules: &[Rule]) {
        match rules.get(usize::from(rule)).map(|rule| &rule.cost) {
            Some(Cost::When(_)) => self.counters.count_settled(rule, settled.line),
            Some(Cost::Usage(_)) => self.counters.count_usage(rule, settled),
            Some(Cost::Fixed(_) | Cost::Request(_) | Cost::Response(_)) | None => {}
        }
    }

    /// Counts a request with a value that a rule does not list.
    pub(super) fn count_unlisted(&mut self, rule: usize) {
        self.counters.count_unlisted(rule);
    }

    /// Counts a request that ends before any rule.
    pub(super) fn count_request(&mut self, of: impl FnOnce(&mut Requests) -> &mut u64) {
        let count = of(&mut self.counters.requests);
        *count = count.saturating_add(1);
    }

    /// Writes the counts to Envoy's statistics and to the worker's reports, if that is due or `now_or_never`.
    pub(super) fn flush(
        &mut self,
        rules: &[Rule],
        reporter: &mut CounterReporter,
        now: MonoMs,
        now_or_never: bool,
    ) {
        let places = &self.places;
        let report = |rule: usize, outcome, count| {
            if let Some(place) = places.get(rule) {
                reporter.add(*place, outcome, count);
            }
        };
        self.metrics.flush(rules, &mut self.counters, report, now, now_or_never);
    }

    /// Removes the rules from the worker's reports.
    pub(super) fn release(&self, reporter: &mut CounterReporter) {
        reporter.release(&self.places);
    }

    /// Sets whether a rule is in shadow mode.
    pub(super) fn set_shadow(&self, root: u32, rule: usize, shadow: bool, reporter: &mut CounterReporter) {
        if let Some(place) = self.places.get(rule) {
            reporter.set_shadow(root, *place, shadow);
        }
    }
}
