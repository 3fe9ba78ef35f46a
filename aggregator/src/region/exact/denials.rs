//! Cached denials of sliding logs: until enough entries have left a log, a request cannot pass, so no store is called.
//!
//! A cached denial applies to requests of the same or a higher cost against the same or a lower limit, unless a charge is
//! refunded. This aggregator drops a denial when it makes a refund itself. Refunds by other aggregators are not visible
//! here, so a denial is cached for at most [`LONGEST`]. A denied flood therefore reaches the store once in that time.

use super::generations::Generations;
use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::Instant;
use weir_core::model::key::Key;
use weir_core::region::log::{Decided, LogCharge, Outcome};

/// Longest time for which a denial is cached.
const LONGEST: Duration = Duration::from_secs(1);
/// Most denials of one generation.
const MAX_CACHED_DENIALS: usize = 32_768;

/// The cached denials.
pub(super) struct Denials {
    cached: Mutex<Generations<Key, Denial>>,
}

impl Default for Denials {
    fn default() -> Denials {
        Denials { cached: Mutex::new(Generations::new(MAX_CACHED_DENIALS)) }
    }
}

#[derive(Clone, Copy)]
struct Denial {
    cost: u64,
    most: u64,
    decided: Decided,
    since: Instant,
    until: Instant,
}

impl Denials {
    /// The first charge with a cached denial, by its index, and the decision as of now.
    pub(super) fn find(&self, charges: &[LogCharge], now: Instant) -> Option<(usize, Decided)> {
        let cached = self.cached.lock();
        charges
            .iter()
            .enumerate()
            .find_map(|(place, charge)| Some((place, cached.get(&charge.key)?.still(charge, now)?)))
    }

    /// Caches a denial of a request made at `requested`.
    pub(super) fn insert(&self, charge: &LogCharge, decided: &Decided, requested: Instant) {
        let Outcome::Denied { retry_after_us } = decided.outcome else { return };
        let wait = retry_after_us.map_or(LONGEST, |us| Duration::from_micros(us).min(LONGEST));
        let denial = Denial {
            cost: charge.cost,
            most: charge.most,
            decided: *decided,
            since: requested,
            until: requested + wait,
        };
        let mut cached = self.cached.lock();
        let known = cached.get(&charge.key);
        if known.is_some_and(|known| known.until > requested && known.covers(charge)) {
            return;
        }
        cached.insert(charge.key.clone(), denial);
    }

    /// Drops the denial of a key that a refund concerns.
    pub(super) fn remove(&self, key: &Key) {
        self.cached.lock().remove(key);
    }
}

impl Denial {
    fn covers(&self, charge: &LogCharge) -> bool {
        charge.cost >= self.cost && charge.most <= self.most
    }

    fn still(&self, charge: &LogCharge, now: Instant) -> Option<Decided> {
        if now >= self.until || !self.covers(charge) {
            return None;
        }
        let passed = u64::try_from(now.saturating_duration_since(self.since).as_micros()).unwrap_or(u64::MAX);
        let retry_after_us = match self.decided.outcome {
            _ if charge.cost > charge.most => None,
            // The cached denial was for at most this cost and at least this limit, so this charge has to wait at least as long.
            Outcome::Denied { retry_after_us } => retry_after_us.map(|us| us.saturating_sub(passed)),
            Outcome::Allowed => return None,
        };
        Some(Decided {
            outcome: Outcome::Denied { retry_after_us },
            reset_us: self.decided.reset_us.saturating_sub(passed),
            ..self.decided
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::model::exact::ExactRequestId;
    use weir_core::model::key::KeyParts;
    use weir_core::region::log::{EntryId, Micros};

    fn charge(identifier: &[u8], cost: u64, most: u64) -> LogCharge {
        let (workspace, namespace) = (b"w", b"n");
        let parts =
            KeyParts { workspace, namespace, identifier, duration_ms: 60_000, epoch: 0, resolution: 1 };
        let id = EntryId { request: ExactRequestId([1; 16]), place: 0 };
        LogCharge { key: Key::new(&parts).unwrap(), id, cost, most }
    }

    fn denied(retry_after_us: Option<u64>) -> Decided {
        let outcome = Outcome::Denied { retry_after_us };
        Decided { outcome, at: Micros(5), used: 9, reset_us: 300_000 }
    }

    #[test]
    fn a_denial_holds_for_its_time_and_for_what_is_no_easier() {
        let denials = Denials::default();
        let now = Instant::now();
        let after = |ms| now + Duration::from_millis(ms);
        denials.insert(&charge(b"a", 3, 10), &denied(Some(400_000)), now);
        let find = |charge: LogCharge, at| denials.find(&[charge], at).map(|(_, decided)| decided.outcome);
        let left = |us| Some(Outcome::Denied { retry_after_us: Some(us) });
        assert_eq!(find(charge(b"a", 3, 10), after(100)), left(300_000));
        assert_eq!(find(charge(b"a", 4, 9), after(399)), left(1_000));
        assert_eq!(find(charge(b"a", 40, 9), after(399)), Some(Outcome::Denied { retry_after_us: None }));
        assert_eq!(find(charge(b"a", 3, 10), after(400)), None);
        assert_eq!(find(charge(b"a", 2, 10), now), None, "a lower cost may pass");
        assert_eq!(find(charge(b"a", 3, 11), now), None, "the same cost may pass against a higher limit");
        assert_eq!(find(charge(b"b", 3, 10), now), None);
        denials.remove(&charge(b"a", 0, 0).key);
        assert_eq!(find(charge(b"a", 3, 10), now), None);
        denials.insert(&charge(b"a", 11, 10), &denied(None), now);
        assert!(find(charge(b"a", 11, 10), after(999)).is_some());
        assert_eq!(find(charge(b"a", 11, 10), after(1_000)), None, "expires after the longest time");
    }

    #[test]
    fn at_most_the_stated_number_is_cached() {
        let denials = Denials::default();
        let now = Instant::now();
        for number in 0..MAX_CACHED_DENIALS * 3 {
            denials.insert(&charge(&number.to_be_bytes(), 1, 1), &denied(Some(1_000_000)), now);
        }
        let kept = denials.cached.lock().iter().count();
        assert_eq!(kept, 2 * MAX_CACHED_DENIALS);
        let last = (MAX_CACHED_DENIALS * 3 - 1).to_be_bytes();
        assert!(denials.find(&[charge(&last, 1, 1)], now).is_some());
    }
}
