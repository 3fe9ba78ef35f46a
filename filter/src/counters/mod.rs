//! Decisions since the last tick by rule and outcome: counted in memory, added to Envoy's statistics in batches.

#[cfg(target_arch = "wasm32")]
pub(crate) mod metrics;
pub mod reporter;

use weir_core::model::outcome::{Outcomes, RuleOutcome};

/// Counts by rule and outcome.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    counts: Vec<Outcomes<u64>>,
    /// Requests that were denied for their client's address, before any rule.
    pub denied_addresses: u64,
    /// Requests that were denied as readings of their paths meet too many rules.
    pub ambiguous_paths: u64,
    /// Requests that would be denied so if no rule were in shadow mode.
    pub paths_on_trial: u64,
}

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
}
