//! The region lease. A region without a store may have only one aggregator, since its counts are only in that
//! aggregator's memory. A row in the database names the holder.

use crate::model::time::MonoMs;
use crate::replication::failure::Failure;

/// How long the row is valid after a renewal, in milliseconds. After an aggregator was killed, its successor waits for
/// this long.
pub const TTL_MS: u64 = 3_000;
/// Deadline of one statement, in milliseconds.
pub const WITHIN_MS: u64 = 700;
/// Between two renewals, in milliseconds.
const RENEW_MS: u64 = 750;
/// How long a new aggregator waits for the last holder's row to expire, in milliseconds.
const PATIENCE_MS: u64 = 6_000;
/// After this many renewals that found another holder, and none in between that found this one, the lease is lost.
const LOST_AFTER: u32 = 2;

/// The holder of the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The aggregator that sent the statement.
    Mine,
    /// Another aggregator.
    Another,
}

/// What to do after a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Serve. If the database did not answer, `is_sure` is false: an unavailable database does not prevent serving.
    Serve {
        /// The row is known to name this aggregator.
        is_sure: bool,
    },
    /// Send the statement again after this many milliseconds.
    Again(u64),
    /// Another aggregator serves the region; this one must not.
    TakenOver,
}

/// Acquires the region lease.
#[derive(Clone, Copy, Debug)]
pub struct Taking {
    began: MonoMs,
    is_held: bool,
}

impl Taking {
    /// Begins to acquire it at `now`.
    pub fn new(now: MonoMs) -> Taking {
        Taking { began: now, is_held: false }
    }

    /// Whether another aggregator is known to have held the lease.
    pub fn is_held(&self) -> bool {
        self.is_held
    }

    /// Takes the result of a statement.
    pub fn answered(&mut self, result: Result<Holder, Failure>, now: MonoMs) -> Then {
        let is_late = now.since(self.began) > PATIENCE_MS;
        match result {
            Ok(Holder::Mine) => return Then::Serve { is_sure: true },
            Ok(Holder::Another) if is_late => return Then::TakenOver,
            Ok(Holder::Another) => self.is_held = true,
            // A holder found before is assumed to hold the lease still.
            Err(_) if self.is_held && !is_late => {}
            Err(_) => return Then::Serve { is_sure: false },
        }
        Then::Again(RENEW_MS / 3)
    }
}

/// Renews the lease for as long as the aggregator runs. An aggregator that could not renew for too long, perhaps
/// because it was suspended, may find that another has taken the lease. It must then stop, as each would enforce the
/// limits separately.
#[derive(Clone, Copy, Debug, Default)]
pub struct Keeping {
    lost: u32,
}

impl Keeping {
    /// How long to wait before each renewal, in milliseconds.
    pub const fn pause_ms() -> u64 {
        RENEW_MS
    }

    /// Takes the result of a renewal. Returns true if another aggregator serves the region.
    pub fn answered(&mut self, result: Result<Holder, Failure>) -> bool {
        match result {
            Ok(Holder::Another) => self.lost += 1,
            Ok(Holder::Mine) => self.lost = 0,
            Err(_) => {}
        }
        self.lost >= LOST_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNAVAILABLE: Result<Holder, Failure> = Err(Failure::Unavailable);

    #[test]
    fn a_region_is_taken_after_its_holder_released_it() {
        let mut taking = Taking::new(MonoMs(0));
        assert_eq!(taking.answered(Ok(Holder::Another), MonoMs(100)), Then::Again(250));
        assert!(taking.is_held());
        assert_eq!(
            taking.answered(UNAVAILABLE, MonoMs(PATIENCE_MS)),
            Then::Again(250),
            "assumed to hold it still"
        );
        assert_eq!(taking.answered(Ok(Holder::Mine), MonoMs(6_500)), Then::Serve { is_sure: true });
    }

    #[test]
    fn a_holder_keeps_the_region_and_an_unavailable_database_prevents_nothing() {
        let mut taking = Taking::new(MonoMs(0));
        assert_eq!(taking.answered(UNAVAILABLE, MonoMs(1)), Then::Serve { is_sure: false });
        taking.answered(Ok(Holder::Another), MonoMs(1));
        assert_eq!(taking.answered(UNAVAILABLE, MonoMs(6_001)), Then::Serve { is_sure: false });
        assert_eq!(taking.answered(Ok(Holder::Another), MonoMs(6_000)), Then::Again(250));
        assert_eq!(taking.answered(Ok(Holder::Another), MonoMs(6_001)), Then::TakenOver);
    }

    #[test]
    fn the_lease_is_lost_after_another_was_found_as_holder_twice() {
        let mut keeping = Keeping::default();
        let answers = [Ok(Holder::Another), Ok(Holder::Mine), UNAVAILABLE, Ok(Holder::Another), UNAVAILABLE];
        for answer in answers {
            assert!(!keeping.answered(answer), "{answer:?}");
        }
        assert!(keeping.answered(Ok(Holder::Another)));
    }
}
