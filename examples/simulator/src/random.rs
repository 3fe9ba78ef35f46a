//! The random generator: one seed determines it, and it forks by name.
//!
//! Logarithms come from `libm`, so that they are the same to the last bit on every machine and in a browser.

/// xoshiro256++ with a splitmix64 seed. A fork draws independently of what its parent draws later, so a part that is
/// added to a world does not change the draws of other parts.
#[derive(Clone, Debug)]
pub struct Random {
    seed: u64,
    state: [u64; 4],
}

impl Random {
    /// Creates the generator of `seed`.
    pub fn new(seed: u64) -> Random {
        let mut at = seed;
        let state = [(); 4].map(|()| splitmix(&mut at));
        Random { seed, state }
    }

    /// Another generator, which depends only on this one's seed, `name` and `number`.
    pub fn fork(&self, name: &str, number: u64) -> Random {
        let mut hash = self.seed ^ 0xcbf2_9ce4_8422_2325;
        for byte in name.bytes().chain(number.to_le_bytes()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Random::new(splitmix(&mut hash))
    }

    /// Uniform over all numbers.
    #[allow(clippy::should_implement_trait, reason = "random numbers are not a sequence that ends")]
    pub fn next(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let drawn = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        drawn
    }

    /// Uniform below `bound`; 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next()) * u128::from(bound);
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// Uniform in [0, 1).
    pub fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True with a probability of `chance` in a thousand.
    pub fn per_mille(&mut self, chance: u64) -> bool {
        self.below(1_000) < chance
    }

    /// Exponentially distributed with this mean, like the pauses between independent arrivals.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * libm::log(1.0 - self.fraction())
    }
}

fn splitmix(at: &mut u64) -> u64 {
    *at = at.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*at ^ (*at >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_depend_on_the_seed_and_the_name_only() {
        let draws = |mut random: Random| [(); 4].map(|()| random.next());
        assert_eq!(draws(Random::new(1)), draws(Random::new(1)));
        assert_ne!(draws(Random::new(1)), draws(Random::new(2)));
        let mut parent = Random::new(1);
        let before = draws(parent.fork("network", 3));
        parent.next();
        assert_eq!(before, draws(parent.fork("network", 3)), "independent of the parent's draws");
        assert_ne!(before, draws(parent.fork("network", 4)));
    }

    #[test]
    fn draws_are_uniform() {
        let mut random = Random::new(7);
        let mut counts = [0u32; 10];
        (0..100_000).for_each(|_| counts[usize::try_from(random.below(10)).unwrap()] += 1);
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
        let mean = (0..100_000).map(|_| random.exponential(3.0)).sum::<f64>() / 100_000.0;
        assert!((2.9..3.1).contains(&mean), "{mean}");
    }
}
