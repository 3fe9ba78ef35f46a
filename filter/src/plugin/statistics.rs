//! What a plugin counts: decisions by rule, for Envoy's statistics and for the aggregator.

use crate::counters::metrics::Metrics;
use crate::counters::reporter::CounterReporter;
use crate::counters::{Counters, RuleOutcome};
use weir_core::limiter::Stats;
use weir_core::model::time::MonoMs;
use weir_core::model::wire::FilterFrame;
use weir_core::rules::{Config, Rule};

/// The counters of a plugin and where they are sent.
pub(super) struct Statistics {
    counters: Counters,
    reporter: CounterReporter,
    metrics: Metrics,
}

impl Statistics {
    /// For `rules` rules.
    pub(super) fn new(rules: usize) -> Statistics {
        Statistics {
            counters: Counters::new(rules),
            reporter: CounterReporter::new(rules),
            metrics: Metrics::new(rules),
        }
    }

    /// Counts a decision.
    pub(super) fn count(&mut self, rule: usize, outcome: RuleOutcome) {
        self.counters.count(rule, outcome);
    }

    /// Counts a request that is denied for its client's address.
    pub(super) fn count_denied_address(&mut self) {
        self.counters.denied_addresses = self.counters.denied_addresses.saturating_add(1);
    }

    /// Writes the counts to Envoy's statistics, if that is due.
    pub(super) fn flush(&mut self, rules: &[Rule], stats: Stats, now: MonoMs) {
        self.metrics.flush(rules, (&mut self.counters, &mut self.reporter), stats, now, false);
    }

    /// Writes the last counts, and makes the next frame due.
    pub(super) fn finish(&mut self, rules: &[Rule], stats: Stats, now: MonoMs) {
        self.metrics.flush(rules, (&mut self.counters, &mut self.reporter), stats, now, true);
        self.reporter.hurry();
    }

    /// The stream is new: all counts are sent again.
    pub(super) fn begin(&mut self) {
        self.reporter.begin();
    }

    /// The counts for the aggregator, if they are due.
    pub(super) fn frame(&mut self, config: &Config, now: MonoMs) -> Option<FilterFrame> {
        self.reporter.next(config, now)
    }

    /// Sets whether a rule is in shadow mode.
    pub(super) fn set_shadow(&mut self, rule: usize, shadow: bool) {
        self.reporter.set_shadow(rule, shadow);
    }
}
