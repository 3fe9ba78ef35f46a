//! How many tokens a byte of a response stands for, learned from responses whose use is known.
//!
//! An exponential mean for each rule and model, of the last 64 responses or so. No content is read or stored.

use alloc::vec::Vec;

/// Most rules and models of a worker whose ratio is stored; beyond that the least used makes room.
pub const MAX_RATIOS: usize = 64;
/// The mean moves by one part in this many with each response, once there are as many.
const RESPONSES: u64 = 64;
/// Ratios are in parts of this.
const UNIT: u64 = 1 << 32;
/// A response of a language model as JSON has about a token in four bytes, and one as events about one in 190.
const JSON_SEED: u64 = UNIT / 4;
const EVENTS_SEED: u64 = UNIT / 190;

/// What has a ratio of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RatioKey {
    /// The rule.
    pub rule: u16,
    /// The pattern that its model fits.
    pub model: u16,
    /// Whether the response is a stream of events.
    pub is_stream: bool,
}

/// The ratios of a worker.
#[derive(Clone, Debug, Default)]
pub struct Ratios {
    entries: Vec<(RatioKey, Ratio)>,
    /// Counts uses.
    uses: u64,
}

#[derive(Clone, Copy, Debug)]
struct Ratio {
    /// Tokens a byte, in parts of [`UNIT`].
    mean: u64,
    /// Responses that it is learned from, up to [`RESPONSES`].
    responses: u64,
    used: u64,
}

impl RatioKey {
    fn seed(self) -> u64 {
        if self.is_stream { EVENTS_SEED } else { JSON_SEED }
    }
}

impl Ratios {
    /// The tokens of a response with so many bytes, rounded up. Never fewer than the seed states: clients choose what is learned from, and
    /// would pay less for what they leave.
    pub fn estimate(&mut self, key: RatioKey, bytes: u64) -> u64 {
        let mean = self.find(key).map_or(0, |ratio| ratio.mean).max(key.seed());
        let tokens = u128::from(bytes).saturating_mul(mean.into()).div_ceil(UNIT.into());
        u64::try_from(tokens).unwrap_or(u64::MAX)
    }

    /// Learns from a complete response. One without bytes or tokens, as of an embedding, states nothing.
    pub fn learn(&mut self, key: RatioKey, bytes: u64, tokens: u64) {
        if tokens == 0 {
            return;
        }
        let scaled = u128::from(tokens).saturating_mul(UNIT.into());
        let Some(found) = scaled.checked_div(bytes.into()) else { return };
        // No response has more tokens than bytes.
        let found = u64::try_from(found).unwrap_or(UNIT).min(UNIT);
        match self.find(key) {
            Some(ratio) => {
                ratio.responses = ratio.responses.saturating_add(1).min(RESPONSES);
                let part = found.abs_diff(ratio.mean).checked_div(ratio.responses).unwrap_or(0);
                ratio.mean = match found > ratio.mean {
                    true => ratio.mean.saturating_add(part),
                    false => ratio.mean.saturating_sub(part),
                };
            }
            None => {
                if self.entries.len() >= MAX_RATIOS
                    && let Some(least) = self.least_used()
                {
                    self.entries.swap_remove(least);
                }
                let ratio = Ratio { mean: found, responses: 1, used: self.uses };
                self.entries.push((key, ratio));
            }
        }
    }

    fn find(&mut self, key: RatioKey) -> Option<&mut Ratio> {
        self.uses = self.uses.saturating_add(1);
        let (_, ratio) = self.entries.iter_mut().find(|(of, _)| *of == key)?;
        ratio.used = self.uses;
        Some(ratio)
    }

    fn least_used(&self) -> Option<usize> {
        let used = self.entries.iter().enumerate().map(|(at, (_, ratio))| (ratio.used, at));
        used.min().map(|(_, at)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(model: u16) -> RatioKey {
        RatioKey { rule: 0, model, is_stream: true }
    }

    #[test]
    fn seeds_and_learned_ratios() {
        let mut ratios = Ratios::default();
        assert_eq!(ratios.estimate(key(0), 1_900), 10);
        assert_eq!(ratios.estimate(RatioKey { is_stream: false, ..key(0) }, 100), 25);
        assert_eq!(ratios.estimate(key(0), 0), 0);
        assert_eq!(ratios.estimate(key(0), 1), 1, "rounded up");
        ratios.learn(key(0), 0, 50);
        assert_eq!(ratios.estimate(key(0), 1_900), 10, "a response without bytes");
        ratios.learn(key(0), 1_000, 20);
        ratios.learn(key(0), 1_000, 0);
        assert_eq!(ratios.estimate(key(0), 1_000), 20);
        (0..1_000).for_each(|_| ratios.learn(key(2), 100_000, 1));
        assert_eq!(ratios.estimate(key(2), 1_900), 10, "not below the seed");
        assert_eq!(ratios.estimate(key(1), 1_900), 10, "another model");
        (0..1_000).for_each(|_| ratios.learn(key(0), 1_000, 40));
        assert!((39..=40).contains(&ratios.estimate(key(0), 1_000)));
        ratios.learn(key(0), 1, u64::MAX);
        assert!(ratios.estimate(key(0), 1_000) <= 60, "one response moves the mean by a 64th");
    }

    proptest! {
        #[test]
        fn memory_is_bounded_and_estimates_are_within_what_was_learned(
            learned in prop::collection::vec((0u16..200, 1u64..100_000, 0u64..100_000), 0..300),
        ) {
            let mut ratios = Ratios::default();
            for (model, bytes, tokens) in &learned {
                ratios.learn(key(*model), *bytes, *tokens);
                prop_assert!(ratios.entries.len() <= MAX_RATIOS);
            }
            for (model, ..) in &learned {
                let of_model = || learned.iter().filter(|(of, ..)| of == model);
                let ratio = |(_, bytes, tokens): &(u16, u64, u64)| tokens.saturating_mul(1_000_000).div_ceil(*bytes);
                let most = of_model().map(ratio).max().unwrap().max(1_000_000 / 190 + 1);
                prop_assert!(ratios.estimate(key(*model), 1_000_000) <= most.min(1_000_000) + 1);
            }
        }
    }
}
