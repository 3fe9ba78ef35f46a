//! A token bucket that bounds a worker's queries a second, with a burst of one second.

use crate::model::time::MonoMs;

/// Units of one query: thousandths.
const QUESTION: u64 = 1_000;

/// The number of queries of one kind that a worker may send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ration {
    per_second: u64,
    /// Thousandths of a query, at `filled`.
    left: u64,
    filled: MonoMs,
}

impl Ration {
    /// A full ration of `per_second` queries.
    pub(super) fn new(per_second: u64, now: MonoMs) -> Ration {
        Ration { per_second, left: per_second.saturating_mul(QUESTION), filled: now }
    }

    /// Whether a query may be sent at `now`.
    pub(super) fn is_left(&self, now: MonoMs) -> bool {
        self.left_at(now) >= QUESTION
    }

    /// Takes one query from the ration; if there is none, it stays empty.
    pub(super) fn take(&mut self, now: MonoMs) {
        self.left = self.left_at(now).saturating_sub(QUESTION);
        self.filled = self.filled.max(now);
    }

    /// One query a second is one thousandth of a query a millisecond.
    fn left_at(&self, now: MonoMs) -> u64 {
        let refilled = now.since(self.filled).saturating_mul(self.per_second);
        self.left.saturating_add(refilled).min(self.per_second.saturating_mul(QUESTION))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ration_refills_in_a_second_and_is_capped() {
        let mut ration = Ration::new(3, MonoMs(1_000));
        for _ in 0..3 {
            assert!(ration.is_left(MonoMs(1_000)));
            ration.take(MonoMs(1_000));
        }
        assert!(!ration.is_left(MonoMs(1_333)), "a third of a second does not refill a whole query");
        assert!(ration.is_left(MonoMs(1_334)));
        ration.take(MonoMs(1_334));
        assert!(!ration.is_left(MonoMs(1_335)));
        // Time that stands still or goes back refills nothing.
        assert!(!ration.is_left(MonoMs(900)));
        let later = MonoMs(u64::MAX);
        for _ in 0..3 {
            assert!(ration.is_left(later));
            ration.take(later);
        }
        assert!(!ration.is_left(later));
    }
}
