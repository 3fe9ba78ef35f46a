//! What was decided since the last tick, by rule and outcome: counted in memory, told to Envoy in a batch.

#[cfg(target_arch = "wasm32")]
pub(crate) mod metrics;
pub mod reporter;

use strum::{IntoStaticStr, VariantArray};

/// How a rule's check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Outcome {
    /// It passed.
    Allowed,
    /// It was refused.
    Denied,
    /// A shadow rule would have refused it.
    ShadowDenied,
    /// An override exempts the identifier.
    Exempt,
    /// Its limit is held elsewhere, and nobody there has said.
    Undecided,
    /// It was refused because of a ban.
    Banned,
}

/// Counts by rule and outcome.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    counts: Vec<[u64; Outcome::VARIANTS.len()]>,
    /// Requests that were refused for their client's address, before any rule.
    pub denied_addresses: u64,
}

impl Counters {
    /// For `rules` rules.
    pub fn new(rules: usize) -> Counters {
        Counters { counts: vec![[0; Outcome::VARIANTS.len()]; rules], denied_addresses: 0 }
    }

    /// One more.
    pub fn count(&mut self, rule: usize, outcome: Outcome) {
        if let Some(count) = self.counts.get_mut(rule).and_then(|counts| counts.get_mut(outcome as usize)) {
            *count = count.saturating_add(1);
        }
    }

    /// Hands out what was counted, by rule and outcome, and starts anew.
    pub fn drain(&mut self, mut out: impl FnMut(usize, Outcome, u64)) {
        for (rule, counts) in self.counts.iter_mut().enumerate() {
            for (outcome, count) in Outcome::VARIANTS.iter().copied().zip(counts.iter_mut()) {
                if *count > 0 {
                    out(rule, outcome, std::mem::take(count));
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
        counters.count(1, Outcome::Denied);
        counters.count(1, Outcome::Denied);
        counters.count(0, Outcome::Exempt);
        counters.count(0, Outcome::Undecided);
        counters.count(7, Outcome::Allowed);
        let mut drained = Vec::new();
        counters.drain(|rule, outcome, count| drained.push((rule, outcome, count)));
        assert_eq!(drained, [(0, Outcome::Exempt, 1), (0, Outcome::Undecided, 1), (1, Outcome::Denied, 2)]);
        counters.drain(|_, _, _| panic!("nothing is left"));
    }
}
