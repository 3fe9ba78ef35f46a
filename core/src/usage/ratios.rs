//! How many tokens a byte of a response stands for, and how many tokens responses have, learned from those whose use is known.
//!
//! For each rule and model an exponential mean of the last 64 responses or so, and the 90th percentile of the last few hundred. No content
//! is read or stored.

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
/// Tokens of a response are counted by their binary digits, up to this many.
const SIZES: usize = 32;
/// Once as many responses are counted, each count is halved.
const COUNTED_MAX: u32 = 512;
/// Of ten responses as many have no more tokens than the percentile.
const WITHIN: u32 = 9;

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
    sizes: Sizes,
    used: u64,
}

/// How many responses had so many binary digits of tokens.
#[derive(Clone, Copy, Debug, Default)]
struct Sizes([u16; SIZES]);

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
                ratio.sizes.count(tokens);
            }
            None => {
                if self.entries.len() >= MAX_RATIOS
                    && let Some(least) = self.least_used()
                {
                    self.entries.swap_remove(least);
                }
                let mut sizes = Sizes::default();
                sizes.count(tokens);
                let ratio = Ratio { mean: found, responses: 1, sizes, used: self.uses };
                self.entries.push((key, ratio));
            }
        }
    }

    /// The tokens that nine of ten responses under a rule do not exceed, of a stream of events or not, up to twice as many; `None` if none
    /// was learned from.
    pub fn largest(&self, rule: u16, model: u16) -> Option<u64> {
        let of_model = self.entries.iter().filter(|(key, _)| (key.rule, key.model) == (rule, model));
        of_model.filter_map(|(_, ratio)| ratio.sizes.percentile()).max()
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

impl Sizes {
    fn count(&mut self, tokens: u64) {
        let digits = u64::BITS.saturating_sub(tokens.leading_zeros());
        let place = usize::try_from(digits).unwrap_or(SIZES).min(SIZES - 1);
        if let Some(count) = self.0.get_mut(place) {
            *count = count.saturating_add(1);
        }
        if self.all() >= COUNTED_MAX {
            self.0.iter_mut().for_each(|count| *count /= 2);
        }
    }

    fn all(&self) -> u32 {
        self.0.iter().map(|count| u32::from(*count)).fold(0, u32::saturating_add)
    }

    /// The most tokens of the smallest sizes that nine of ten responses have.
    fn percentile(&self) -> Option<u64> {
        let enough = self.all().saturating_mul(WITHIN).div_ceil(10);
        let mut within = 0_u32;
        let place = self.0.iter().position(|count| {
            within = within.saturating_add(u32::from(*count));
            within >= enough
        });
        let digits = u32::try_from(place.filter(|_| enough > 0)?).ok()?;
        Some(1_u64.checked_shl(digits)?.saturating_sub(1))
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

    #[test]
    fn nine_of_ten_answers_are_within_the_largest() {
        let mut ratios = Ratios::default();
        assert_eq!(ratios.largest(0, 0), None);
        ratios.learn(key(0), 1_000, 0);
        assert_eq!(ratios.largest(0, 0), None, "a response without tokens");
        ratios.learn(key(0), 9_000, 700);
        assert_eq!(ratios.largest(0, 0), Some(1_023));
        (0..20).for_each(|_| ratios.learn(key(0), 9_000, 100));
        assert_eq!(ratios.largest(0, 0), Some(127), "one of 21 does not count");
        (0..5).for_each(|_| ratios.learn(RatioKey { is_stream: false, ..key(0) }, 9_000, 300));
        assert_eq!(ratios.largest(0, 0), Some(511), "the larger of both kinds");
        assert_eq!((ratios.largest(0, 1), ratios.largest(1, 0)), (None, None));
        (0..5_000).for_each(|_| ratios.learn(key(0), 9_000, 3_000));
        assert_eq!(ratios.largest(0, 0), Some(4_095), "what was long ago is forgotten");
        ratios.learn(key(1), u64::MAX, u64::MAX);
        assert_eq!(ratios.largest(0, 1), Some((1 << 31) - 1));
    }

    proptest! {
        #[test]
        fn the_largest_is_at_least_the_percentile_and_less_than_twice(
            tokens in prop::collection::vec(1u64..1 << 31, 1..400),
        ) {
            let mut ratios = Ratios::default();
            tokens.iter().for_each(|tokens| ratios.learn(key(0), 1 << 40, *tokens));
            let mut sorted = tokens.clone();
            sorted.sort_unstable();
            let exact = sorted[(sorted.len() * 9).div_ceil(10) - 1];
            let found = ratios.largest(0, 0).unwrap();
            prop_assert!(found >= exact && found < 2 * exact, "{found} of {exact}");
        }

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
