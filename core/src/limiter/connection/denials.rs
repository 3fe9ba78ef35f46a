//! Cached denials of exact logs: until a denial ends, no exact request is sent for its key.
//!
//! A charge leaves a log when its window has passed. So a denial applies to every cost that is not smaller and every limit that is not
//! higher. Only a refund could end it sooner, so now and then one request is sent to check, while the others are still denied.
//!
//! The cache has a fixed number of places, made at the first denial. The denial that ends first makes room for a new one. Evicting one
//! costs an exact request and nothing else.

use crate::limiter::check::Attempt;
use crate::model::time::MonoMs;
use alloc::vec::Vec;

/// Places of a set; a fingerprint's denials are in one set.
const WAYS: usize = 4;
/// 16 384 denials, 1 MB.
const SETS: usize = 4_096;
/// Time for which a denial applies before a request is sent to check it.
pub(super) const RECHECK_MS: u64 = 5_000;
/// Time until the next check, if a check gets no answer.
const RECHECKING_MS: u64 = 1_000;

/// A cached denial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CachedDenial {
    pub(super) fingerprint: u64,
    /// How often the clock had stepped when it was made; it applies until the next step.
    pub(super) clock_steps: u64,
    /// What was denied.
    pub(super) attempt: Attempt,
    /// When the same cost could pass.
    pub(super) until: MonoMs,
    /// When to check it.
    pub(super) recheck: MonoMs,
    /// The remaining budget, and when the oldest charge leaves the log.
    pub(super) remaining: u64,
    pub(super) reset: MonoMs,
}

#[derive(Debug, Default)]
pub(super) struct Denials {
    places: Vec<CachedDenial>,
}

impl Denials {
    /// The denial that applies to an attempt now. `None` also for the request that is to check it, if it `may_send`.
    pub(super) fn find(
        &mut self,
        fingerprint: u64,
        attempt: Attempt,
        clock_steps: u64,
        may_send: bool,
        now: MonoMs,
    ) -> Option<CachedDenial> {
        let set = self.places.get_mut(set(fingerprint))?;
        let holds = |cached: &&mut CachedDenial| {
            let same = (cached.fingerprint, cached.clock_steps) == (fingerprint, clock_steps);
            same && attempt.is_no_easier_than(&cached.attempt) && now < cached.until
        };
        let cached = set.iter_mut().filter(holds).max_by_key(|cached| cached.until)?;
        if may_send && cached.recheck <= now {
            cached.recheck = now.after(RECHECKING_MS);
            return None;
        }
        Some(*cached)
    }

    /// Removes denials that contradict that an attempt has passed.
    pub(super) fn refute(&mut self, fingerprint: u64, passed: Attempt) {
        for cached in self.places.get_mut(set(fingerprint)).unwrap_or_default() {
            if cached.fingerprint == fingerprint && passed.is_no_easier_than(&cached.attempt) {
                cached.until = MonoMs(0);
            }
        }
    }

    pub(super) fn put(&mut self, denial: CachedDenial) {
        if self.places.is_empty() {
            self.places.resize(SETS * WAYS, CachedDenial::default());
        }
        let Some(set) = self.places.get_mut(set(denial.fingerprint)) else { return };
        let same = |cached: &CachedDenial| {
            (cached.fingerprint, cached.attempt) == (denial.fingerprint, denial.attempt)
        };
        let at = set.iter().position(same);
        let place = match at {
            Some(at) => set.get_mut(at),
            None => set.iter_mut().min_by_key(|cached| cached.until),
        };
        if let Some(place) = place {
            *place = denial;
        }
    }
}

fn set(fingerprint: u64) -> core::ops::Range<usize> {
    let set = fingerprint as usize % SETS;
    set * WAYS..(set + 1) * WAYS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(cost: u64, limit: u64) -> Attempt {
        Attempt { cost, limit }
    }

    fn denial(fingerprint: u64, cost: u64, limit: u64, until: u64) -> CachedDenial {
        let until = MonoMs(until);
        let recheck = MonoMs(1_000_000);
        let attempt = attempt(cost, limit);
        CachedDenial { fingerprint, clock_steps: 1, attempt, until, recheck, remaining: 0, reset: until }
    }

    #[test]
    fn one_request_a_second_rechecks_a_denial_and_may_refute_it() {
        let mut denials = Denials::default();
        denials.put(CachedDenial { recheck: MonoMs(5_000), ..denial(5, 3, 10, 100_000) });
        let mut holds = |now| denials.find(5, attempt(3, 10), 1, true, MonoMs(now)).is_some();
        assert!(holds(4_999) && !holds(5_000) && holds(5_001) && holds(5_999) && !holds(6_000));
        for (passed, still) in [(attempt(2, 10), true), (attempt(3, 11), true), (attempt(3, 10), false)] {
            denials.refute(5, passed);
            assert_eq!(
                denials.find(5, attempt(3, 10), 1, true, MonoMs(6_001)).is_some(),
                still,
                "{passed:?}"
            );
        }
    }

    #[test]
    fn a_denial_applies_to_no_smaller_cost_no_higher_limit_and_no_longer() {
        let mut denials = Denials::default();
        assert_eq!(denials.find(5, attempt(3, 10), 1, true, MonoMs(0)), None);
        denials.put(denial(5, 3, 10, 100));
        let mut holds =
            |request, clock_steps, now| denials.find(5, request, clock_steps, true, MonoMs(now)).is_some();
        assert!(holds(attempt(3, 10), 1, 99) && holds(attempt(9, 10), 1, 99) && holds(attempt(3, 4), 1, 99));
        assert!(!holds(attempt(2, 10), 1, 99) && !holds(attempt(3, 11), 1, 99));
        assert!(!holds(attempt(3, 10), 1, 100) && !holds(attempt(3, 10), 2, 99));
        assert_eq!(
            denials.find(5 + SETS as u64, attempt(3, 10), 1, true, MonoMs(0)),
            None,
            "another key of the set"
        );
    }

    #[test]
    fn a_full_set_evicts_the_denial_that_ends_first() {
        let mut denials = Denials::default();
        for n in 0..5 {
            denials.put(denial(7 + n * SETS as u64, 1, 1, 100 + n));
        }
        let mut is_cached =
            |n: u64| denials.find(7 + n * SETS as u64, attempt(1, 1), 1, true, MonoMs(0)).is_some();
        assert_eq!((0..5).map(&mut is_cached).collect::<Vec<_>>(), [false, true, true, true, true]);
        assert_eq!(denials.places.len(), SETS * WAYS);
        denials.put(denial(7 + 4 * SETS as u64, 1, 1, 50));
        assert_eq!(
            denials.find(7 + 4 * SETS as u64, attempt(1, 1), 1, true, MonoMs(60)),
            None,
            "the later denial replaces the earlier one"
        );
    }
}
