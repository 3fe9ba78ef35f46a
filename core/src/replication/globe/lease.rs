//! Without a store of its own, a region has one aggregator: its memory is all there is. A row in the database says who.
//!
//! Leaves to others: the row (`aggregator`), and what is done where another has it.

use crate::model::time::MonoMs;
use crate::replication::failure::Failure;

/// How long the row speaks for its holder, in milliseconds; a killed aggregator keeps its successor waiting for as long.
pub const TTL_MS: u64 = 3_000;
/// How long one statement may take, in milliseconds.
pub const WITHIN_MS: u64 = 700;
/// Between two renewals.
const RENEW_MS: u64 = 750;
/// How long a new aggregator waits for the last one's row to run out.
const PATIENCE_MS: u64 = 6_000;
/// Who was silent for too long finds the row with another this often, one after the other, before that is believed.
const LOST_AFTER: u32 = 2;

/// Who has the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Whoever asked.
    Mine,
    /// Another.
    Another,
}

/// What to do after a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Serve. `is_sure` is false if the database did not say; one that is away refuses nobody.
    Serve {
        /// The row is known to be one's own.
        is_sure: bool,
    },
    /// Ask again after so many milliseconds.
    Again(u64),
    /// Another serves the region, and this one must not.
    TakenOver,
}

/// Takes the region.
#[derive(Clone, Copy, Debug)]
pub struct Taking {
    began: MonoMs,
    is_held: bool,
}

impl Taking {
    /// Begins to wait for it.
    pub fn new(now: MonoMs) -> Taking {
        Taking { began: now, is_held: false }
    }

    /// Whether another is known to have had it a moment ago.
    pub fn is_held(&self) -> bool {
        self.is_held
    }

    /// Takes the database's word.
    pub fn answered(&mut self, result: Result<Holder, Failure>, now: MonoMs) -> Then {
        let is_late = now.since(self.began) > PATIENCE_MS;
        match result {
            Ok(Holder::Mine) => return Then::Serve { is_sure: true },
            Ok(Holder::Another) if is_late => return Then::TakenOver,
            Ok(Holder::Another) => self.is_held = true,
            // Who is known to have held it a moment ago is believed to hold it still.
            Err(_) if self.is_held && !is_late => {}
            Err(_) => return Then::Serve { is_sure: false },
        }
        Then::Again(RENEW_MS / 3)
    }
}

/// Keeps it for as long as the aggregator runs. Who was silent for too long, frozen perhaps, may find that another took it:
/// then this one has to end, as each would keep the limits for itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Keeping {
    lost: u32,
}

impl Keeping {
    /// How long to wait before each renewal, in milliseconds.
    pub const fn pause_ms() -> u64 {
        RENEW_MS
    }

    /// Takes the database's word. True if another serves the region by now.
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

    const AWAY: Result<Holder, Failure> = Err(Failure::Unavailable);

    #[test]
    fn a_region_is_taken_from_who_let_go_of_it() {
        let mut taking = Taking::new(MonoMs(0));
        assert_eq!(taking.answered(Ok(Holder::Another), MonoMs(100)), Then::Again(250));
        assert!(taking.is_held());
        assert_eq!(taking.answered(AWAY, MonoMs(PATIENCE_MS)), Then::Again(250), "believed to hold it still");
        assert_eq!(taking.answered(Ok(Holder::Mine), MonoMs(6_500)), Then::Serve { is_sure: true });
    }

    #[test]
    fn who_holds_on_to_it_keeps_it_and_a_database_that_is_unavailable_refuses_nobody() {
        let mut taking = Taking::new(MonoMs(0));
        assert_eq!(taking.answered(AWAY, MonoMs(1)), Then::Serve { is_sure: false });
        taking.answered(Ok(Holder::Another), MonoMs(1));
        assert_eq!(taking.answered(AWAY, MonoMs(6_001)), Then::Serve { is_sure: false });
        assert_eq!(taking.answered(Ok(Holder::Another), MonoMs(6_000)), Then::Again(250));
        assert_eq!(taking.answered(Ok(Holder::Another), MonoMs(6_001)), Then::TakenOver);
    }

    #[test]
    fn it_is_lost_when_another_has_it_twice() {
        let mut keeping = Keeping::default();
        let words = [Ok(Holder::Another), Ok(Holder::Mine), AWAY, Ok(Holder::Another), AWAY];
        for word in words {
            assert!(!keeping.answered(word), "{word:?}");
        }
        assert!(keeping.answered(Ok(Holder::Another)));
    }
}
