//! Numbers by Zipf's law, exactly and in constant time: rank `k` of `n` has a chance proportional to `1 / k^s`.
//!
//! A table of all probabilities would take megabytes per source for a million keys. This is rejection-inversion (W.
//! Hörmann, G. Derflinger, "Rejection-inversion to generate variates from monotone discrete distributions", 1996):
//! invert the integral of the law's continuous hat, and reject the few draws above a bar.

use crate::random::Random;

/// Zipf's law for a number of ranks.
#[derive(Clone, Copy, Debug)]
pub struct Zipf {
    ranks: f64,
    exponent: f64,
    /// The hat's integral at one and a half, less the height of the first bar.
    low: f64,
    /// The hat's integral at the end of the last bar.
    high: f64,
    /// Draws within this distance of their rank are accepted without computing the bar.
    sure: f64,
}

impl Zipf {
    /// For ranks from 1 to `ranks` (at least 1, at most 2⁵³). With an `exponent` that is not positive, all ranks are
    /// equally likely.
    pub fn new(ranks: u64, exponent: f64) -> Zipf {
        let ranks = ranks.clamp(1, 1 << 53) as f64;
        let exponent = if exponent.is_finite() { exponent.max(0.0) } else { 0.0 };
        let mut law = Zipf { ranks, exponent, low: 0.0, high: 0.0, sure: 0.0 };
        law.low = law.integral(1.5) - 1.0;
        law.high = law.integral(ranks + 0.5);
        law.sure = 2.0 - law.inverse(law.integral(2.5) - law.bar(2.0));
        law
    }

    /// Draws a rank.
    pub fn draw(&self, random: &mut Random) -> u64 {
        loop {
            let under = self.high + random.fraction() * (self.low - self.high);
            let at = self.inverse(under);
            let rank = at.round().clamp(1.0, self.ranks);
            if rank - at <= self.sure || under >= self.integral(rank + 0.5) - self.bar(rank) {
                return rank as u64;
            }
        }
    }

    /// `1 / x^s`.
    fn bar(&self, x: f64) -> f64 {
        libm::exp(-self.exponent * libm::log(x))
    }

    /// The integral of `1 / x^s`, from 1; also where `s` is 1 or close to it.
    fn integral(&self, x: f64) -> f64 {
        let log = libm::log(x);
        let power = (1.0 - self.exponent) * log;
        // expm1(p) / p tends to 1 as p goes to 0.
        if power.abs() < 1e-12 { log } else { libm::expm1(power) / power * log }
    }

    /// The position at which the integral is `y`.
    fn inverse(&self, y: f64) -> f64 {
        let power = (y * (1.0 - self.exponent)).max(-1.0);
        if power.abs() < 1e-12 { libm::exp(y) } else { libm::exp(libm::log1p(power) / power * y) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the share of each of the first ranks among many draws is within five standard deviations of the
    /// law.
    fn check(ranks: u64, exponent: f64) {
        const DRAWS: u64 = 400_000;
        let law = Zipf::new(ranks, exponent);
        let mut random = Random::new(11);
        let mut counts = [0u64; 20];
        for _ in 0..DRAWS {
            let rank = law.draw(&mut random);
            assert!((1..=ranks).contains(&rank));
            if let Some(count) = usize::try_from(rank - 1).ok().and_then(|place| counts.get_mut(place)) {
                *count += 1;
            }
        }
        let total: f64 = (1..=ranks).map(|rank| (rank as f64).powf(-exponent)).sum();
        for (rank, count) in (1..=ranks).zip(counts) {
            let chance = (rank as f64).powf(-exponent) / total;
            let expected = chance * DRAWS as f64;
            let deviation = (expected * (1.0 - chance)).sqrt().max(1.0);
            let off = (count as f64 - expected).abs() / deviation;
            assert!(off < 5.0, "{ranks} {exponent}: rank {rank} came {count} times, not {expected:.0}");
        }
    }

    #[test]
    fn draws_follow_the_law() {
        for (ranks, exponent) in [
            (1, 1.0),
            (2, 1.0),
            (20, 0.0),
            (20, 0.5),
            (20, 1.0),
            (20, 2.5),
            (1_000_000, 1.0),
            (1_000_000, 1.1),
            (1_000_000, 0.99),
        ] {
            check(ranks, exponent);
        }
    }

    #[test]
    fn the_tail_is_as_heavy_as_the_law() {
        let law = Zipf::new(1_000_000, 1.0);
        let mut random = Random::new(3);
        let tail = (0..100_000).filter(|_| law.draw(&mut random) > 1_000).count();
        // H(1 000) = 7.485, H(1 000 000) = 14.393
        let expected = 100_000.0 * (1.0 - 7.485_47 / 14.392_73);
        assert!((tail as f64 - expected).abs() < 800.0, "{tail} instead of {expected:.0}");
    }
}
