//! What a language model used for a request, and what that costs.
//!
//! A cost is a weighted sum of tokens. With prices it is in micro-dollars: a dollar a million tokens is a micro-dollar a
//! token, so a price is a weight. Where use is not known, [`Ratios`] estimates it from the bytes of the response.

mod ratios;

pub use ratios::{MAX_RATIOS, RatioKey, Ratios};

/// Parts of a weight's unit: weights have six places.
pub const WEIGHT_UNIT: u64 = 1_000_000;
/// The highest weight: a million.
pub const WEIGHT_MAX: u64 = 1_000_000 * WEIGHT_UNIT;

/// Tokens of a request and its response, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// All tokens of the prompt, those of the two following kinds too.
    pub input: u64,
    /// Tokens of the prompt that were read from a cache.
    pub cached_input: u64,
    /// Tokens of the prompt that were written to a cache.
    pub cache_creation: u64,
    /// All tokens of the answer, those of reasoning too.
    pub output: u64,
    /// Tokens of the answer that are reasoning.
    pub reasoning: u64,
}

/// What a token of each kind costs, in parts of [`WEIGHT_UNIT`], each up to [`WEIGHT_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weights {
    /// A token of the prompt that was neither read from a cache nor written to one.
    pub input: u64,
    /// One that was read from a cache.
    pub cached_input: u64,
    /// One that was written to a cache.
    pub cache_creation: u64,
    /// A token of the answer that is no reasoning.
    pub output: u64,
    /// One that is.
    pub reasoning: u64,
}

impl Default for Weights {
    fn default() -> Weights {
        let one = WEIGHT_UNIT;
        Weights { input: one, cached_input: one, cache_creation: one, output: one, reasoning: one }
    }
}

impl Weights {
    /// The cost of these tokens, rounded up; at most [`u64::MAX`]. Kinds that are more than what they are part of count
    /// in full.
    pub fn cost(&self, tokens: &Tokens) -> u64 {
        let Tokens { input, cached_input, cache_creation, output, reasoning } = *tokens;
        let fresh = input.saturating_sub(cached_input).saturating_sub(cache_creation);
        let parts = [
            (fresh, self.input),
            (cached_input, self.cached_input),
            (cache_creation, self.cache_creation),
            (output.saturating_sub(reasoning), self.output),
            (reasoning, self.reasoning),
        ];
        let weighted = |(tokens, weight): (u64, u64)| u128::from(tokens).saturating_mul(weight.into());
        let sum = parts.into_iter().map(weighted).fold(0, u128::saturating_add);
        u64::try_from(sum.div_ceil(WEIGHT_UNIT.into())).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tokens() -> impl Strategy<Value = Tokens> {
        let count = || prop_oneof![4 => 0u64..10_000, 1 => any::<u64>()];
        (count(), count(), count(), count(), count()).prop_map(
            |(input, cached_input, cache_creation, output, reasoning)| Tokens {
                input,
                cached_input,
                cache_creation,
                output,
                reasoning,
            },
        )
    }

    fn weights() -> impl Strategy<Value = Weights> {
        let weight = || 0..=WEIGHT_MAX;
        (weight(), weight(), weight(), weight(), weight()).prop_map(
            |(input, cached_input, cache_creation, output, reasoning)| Weights {
                input,
                cached_input,
                cache_creation,
                output,
                reasoning,
            },
        )
    }

    #[test]
    fn costs() {
        let price = Weights {
            input: 2_500_000,
            cached_input: 1_250_000,
            cache_creation: 3_125_000,
            output: 10_000_000,
            reasoning: 12_000_000,
        };
        let of = |[input, cached_input, cache_creation, output, reasoning]: [u64; 5]| {
            price.cost(&Tokens { input, cached_input, cache_creation, output, reasoning })
        };
        for (tokens, expected) in [
            ([0; 5], 0),
            ([1, 0, 0, 0, 0], 3),
            ([1_000_000, 0, 0, 0, 0], 2_500_000),
            ([1_000_000, 1_000_000, 0, 0, 0], 1_250_000),
            ([1_000, 400, 100, 0, 0], 1_250 + 500 + 313),
            ([0, 0, 0, 10, 4], 60 + 48),
            ([10, 20, 0, 0, 0], 25),
            ([0, 0, 0, 1, 5], 60),
            ([u64::MAX, 0, 0, u64::MAX, 0], u64::MAX),
        ] {
            assert_eq!(of(tokens), expected, "{tokens:?}");
        }
        assert_eq!(Weights::default().cost(&Tokens { input: 7, output: 5, ..Tokens::default() }), 12);
    }

    proptest! {
        #[test]
        fn a_cost_is_exact_and_rounded_up(tokens in tokens(), weights in weights()) {
            let fresh = tokens.input.saturating_sub(tokens.cached_input).saturating_sub(tokens.cache_creation);
            let plain = tokens.output.saturating_sub(tokens.reasoning);
            let sum = [
                (fresh, weights.input),
                (tokens.cached_input, weights.cached_input),
                (tokens.cache_creation, weights.cache_creation),
                (plain, weights.output),
                (tokens.reasoning, weights.reasoning),
            ]
            .iter()
            .map(|(tokens, weight)| u128::from(*tokens) * u128::from(*weight))
            .sum::<u128>();
            let cost = weights.cost(&tokens);
            if cost == u64::MAX {
                prop_assert!(sum > u128::from(u64::MAX - 1) * u128::from(WEIGHT_UNIT));
            } else {
                let scaled = u128::from(cost) * u128::from(WEIGHT_UNIT);
                prop_assert!(scaled >= sum && scaled < sum + u128::from(WEIGHT_UNIT));
            }
        }

        #[test]
        fn more_tokens_never_cost_less(tokens in tokens(), weights in weights(), more in 0u64..10_000) {
            let cheap = weights.cost(&tokens);
            let input = weights.cost(&Tokens { input: tokens.input.saturating_add(more), ..tokens });
            let output = weights.cost(&Tokens { output: tokens.output.saturating_add(more), ..tokens });
            prop_assert!(input >= cheap && output >= cheap);
        }
    }
}
