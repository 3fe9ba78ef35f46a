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
    Another {
        /// When its lease expires, by the database's clock, which may step. Each renewal changes it.
        expires_at: u64,
    },
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
    /// The expiry of another holder's lease, and since when it has been the same.
    held: Option<(u64, MonoMs)>,
}

impl Taking {
    /// Begins to acquire it at `now`.
    pub fn new(now: MonoMs) -> Taking {
        Taking { began: now, held: None }
    }

    /// Whether another aggregator is known to have held the lease.
    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// The expiry of a lease that was not renewed for as long as one is valid. It has expired, although by the database's clock, which was
    /// set back, it has not.
    pub fn abandoned(&self, now: MonoMs) -> Option<u64> {
        self.held.filter(|(_, since)| now.since(*since) > TTL_MS).map(|(expires_at, _)| expires_at)
    }

    /// Takes the result of a statement.
    pub fn answered(&mut self, result: Result<Holder, Failure>, now: MonoMs) -> Then {
        let is_late = now.since(self.began) > PATIENCE_MS;
        match result {
            Ok(Holder::Mine) => return Then::Serve { is_sure: true },
            Ok(Holder::Another { .. }) if is_late => return Then::TakenOver,
            Ok(Holder::Another { expires_at }) => {
                let since = self.held.filter(|(before, _)| *before == expires_at).map(|(_, since)| since);
                self.held = Some((expires_at, since.unwrap_or(now)));
            }
            // A holder found before is assumed to hold the lease still.
            Err(_) if self.is_held() && !is_late => {}
            Err(_) => return Then::Serve { is_sure: false },
        }
        Then::Again(RENEW_MS / 3)
    }
}

/// Renews the lease for as long as the aggregator runs. An aggregator that could not renew for too long, perhaps
/// because it was suspended, may find that another has taken the lease. It must then stop, as each would enforce the
/// limits separately.
#[derive(Clone, Copy, Debug)]
pub struct Keeping {
    until: MonoMs,
    lost: u32,
    /// Since when the database has not answered, of an aggregator whose lease has expired.
    unanswered: Option<MonoMs>,
}

impl Keeping {
    /// The lease was taken, and is valid until then.
    pub fn new(until: MonoMs) -> Keeping {
        Keeping { until, lost: 0, unanswered: None }
    }

    /// How long to wait before each renewal, in milliseconds.
    pub const fn pause_ms() -> u64 {
        RENEW_MS
    }

    /// The moment after which another aggregator may serve the region. This one then decides nothing.
    pub fn until(&self) -> MonoMs {
        self.until
    }

    /// Takes the result of a renewal that was sent at `sent`. Returns true if another aggregator serves the region.
    pub fn answered(&mut self, result: Result<Holder, Failure>, sent: MonoMs) -> bool {
        let unanswered = self.unanswered.take();
        match result {
            Ok(Holder::Another { .. }) => (self.until, self.lost) = (MonoMs(0), self.lost + 1),
            Ok(Holder::Mine) => (self.until, self.lost) = (sent.after(TTL_MS), 0),
            // An unavailable database prevents no decision.
            Err(_) if sent < self.until => self.until = sent.after(TTL_MS),
            // Another one may have taken the lease meanwhile, as while this one was frozen. Who cannot find out for long serves, as at a
            // start.
            Err(_) => {
                let since = unanswered.unwrap_or(sent);
                self.unanswered = Some(since);
                if self.lost == 0 && sent.since(since) >= TTL_MS {
                    self.until = sent.after(TTL_MS);
                }
            }
        }
        self.lost >= LOST_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNAVAILABLE: Result<Holder, Failure> = Err(Failure::Unavailable);

    fn another(expires_at: u64) -> Result<Holder, Failure> {
        Ok(Holder::Another { expires_at })
    }

    #[test]
    fn a_region_is_taken_after_its_holder_released_it() {
        let mut taking = Taking::new(MonoMs(0));
        assert_eq!(taking.answered(another(1), MonoMs(100)), Then::Again(250));
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
        taking.answered(another(1), MonoMs(1));
        assert_eq!(taking.answered(UNAVAILABLE, MonoMs(6_001)), Then::Serve { is_sure: false });
        assert_eq!(taking.answered(another(2), MonoMs(6_000)), Then::Again(250));
        assert_eq!(taking.answered(another(3), MonoMs(6_001)), Then::TakenOver);
    }

    #[test]
    fn a_lease_that_nobody_renews_is_abandoned_whatever_the_databases_clock_shows() {
        let mut taking = Taking::new(MonoMs(0));
        for now in [0, 1_000, 2_000] {
            taking.answered(another(7), MonoMs(now));
            assert_eq!(taking.abandoned(MonoMs(now)), None);
        }
        taking.answered(another(8), MonoMs(2_500));
        assert_eq!(taking.abandoned(MonoMs(2_500 + TTL_MS)), None, "it was renewed");
        taking.answered(another(8), MonoMs(5_000));
        assert_eq!(taking.abandoned(MonoMs(2_501 + TTL_MS)), Some(8));
    }

    #[test]
    fn the_lease_is_lost_after_another_was_found_as_holder_twice() {
        let mut keeping = Keeping::new(MonoMs(TTL_MS));
        let answers = [another(1), Ok(Holder::Mine), UNAVAILABLE, another(2), UNAVAILABLE];
        for (at, answer) in answers.into_iter().enumerate() {
            assert!(!keeping.answered(answer, MonoMs(at as u64 * RENEW_MS)), "{answer:?}");
        }
        assert_eq!(keeping.until(), MonoMs(0));
        assert!(keeping.answered(another(3), MonoMs(5 * RENEW_MS)));
    }

    /// The aggregator was frozen for longer than its lease. The database is away once it runs again.
    #[test]
    fn who_cannot_renew_an_expired_lease_for_long_serves() {
        let mut keeping = Keeping::new(MonoMs(TTL_MS));
        let resumed = 5_000;
        let mut serves_from = None;
        for sent in (resumed..resumed + 3 * TTL_MS).step_by(750) {
            assert!(!keeping.answered(UNAVAILABLE, MonoMs(sent)));
            if keeping.until() > MonoMs(sent) {
                serves_from.get_or_insert(sent - resumed);
            }
        }
        assert_eq!(serves_from, Some(TTL_MS));
        let mut frozen = Keeping::new(MonoMs(TTL_MS));
        assert!(!frozen.answered(another(1), MonoMs(resumed)));
        assert!(!frozen.answered(UNAVAILABLE, MonoMs(resumed + 2 * TTL_MS)));
        assert_eq!(frozen.until(), MonoMs(0), "another one serves");
    }
}
