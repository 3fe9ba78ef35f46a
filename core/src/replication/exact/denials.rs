//! Cached denials of sliding logs: until enough entries have left a log, a request cannot pass, so no store is called.
//!
//! A cached denial applies to requests of the same or a higher cost against the same or a lower limit, unless a charge is
//! refunded. This aggregator drops a denial when it makes a refund itself. Refunds by other aggregators are not visible
//! here, so a denial is cached for at most [`LONGEST_US`]. A denied flood therefore reaches the store once in that time.

use crate::model::generations::Generations;
use crate::model::key::Key;
use crate::region::log::{LogCharge, LogDecision, Micros, Outcome};

/// Longest time for which a denial is cached, in microseconds.
pub const LONGEST_US: u64 = 1_000_000;
/// Most denials of one generation.
const MAX_CACHED_DENIALS: usize = 32_768;

/// Denials of sliding logs that a further request would meet again.
#[derive(Clone, Debug)]
pub struct Denials {
    cached: Generations<Key, Denial>,
}

impl Default for Denials {
    fn default() -> Denials {
        Denials { cached: Generations::new(MAX_CACHED_DENIALS) }
    }
}

#[derive(Clone, Copy, Debug)]
struct Denial {
    cost: u64,
    most: u64,
    decided: LogDecision,
    since: Micros,
    until: Micros,
}

/// A cached denial of one of several charges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachedDenial {
    /// The index of the charge.
    pub log: usize,
    /// The decision as of now.
    pub decided: LogDecision,
}

impl Denials {
    /// The first charge with a cached denial.
    pub fn find(&self, charges: &[LogCharge], now: Micros) -> Option<CachedDenial> {
        charges.iter().enumerate().find_map(|(log, charge)| {
            let decided = self.cached.get(&charge.key)?.still(charge, now)?;
            Some(CachedDenial { log, decided })
        })
    }

    /// Caches a denial of a request made at `requested`.
    pub fn insert(&mut self, charge: &LogCharge, decided: &LogDecision, requested: Micros) {
        let Outcome::Denied { retry_after_us } = decided.outcome else { return };
        let until = requested.after(retry_after_us.map_or(LONGEST_US, |us| us.min(LONGEST_US)));
        let known = self.cached.get(&charge.key);
        if known.is_some_and(|known| known.until > requested && known.covers(charge)) {
            return;
        }
        let (cost, most) = (charge.cost, charge.most);
        let denial = Denial { cost, most, decided: *decided, since: requested, until };
        self.cached.insert(charge.key.clone(), denial);
    }

    /// Drops the denial of a key that a refund concerns.
    pub fn remove(&mut self, key: &Key) {
        self.cached.remove(key);
    }
}

impl Denial {
    fn covers(&self, charge: &LogCharge) -> bool {
        charge.cost >= self.cost && charge.most <= self.most
    }

    fn still(&self, charge: &LogCharge, now: Micros) -> Option<LogDecision> {
        if now >= self.until || !self.covers(charge) {
            return None;
        }
        let passed = now.since(self.since);
        let retry_after_us = match self.decided.outcome {
            _ if charge.cost > charge.most => None,
            // The cached denial was for at most this cost and at least this limit, so this charge has to wait at least as long.
            Outcome::Denied { retry_after_us } => retry_after_us.map(|us| us.saturating_sub(passed)),
            Outcome::Allowed => return None,
        };
        Some(LogDecision {
            outcome: Outcome::Denied { retry_after_us },
            reset_us: self.decided.reset_us.saturating_sub(passed),
            ..self.decided
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::exact::ExactRequestId;
    use crate::model::key::KeyParts;
    use crate::region::log::EntryId;

    const NOW: Micros = Micros(7_000_000);

    fn charge(identifier: &[u8], cost: u64, most: u64) -> LogCharge {
        let (workspace, namespace) = (b"w", b"n");
        let parts =
            KeyParts { workspace, namespace, identifier, duration_ms: 60_000, epoch: 0, resolution: 1 };
        let id = EntryId { request: ExactRequestId([1; 16]), place: 0 };
        LogCharge { key: Key::new(&parts).unwrap(), id, cost, most }
    }

    fn denied(retry_after_us: Option<u64>) -> LogDecision {
        let outcome = Outcome::Denied { retry_after_us };
        LogDecision { outcome, at: Micros(5), used: 9, reset_us: 300_000 }
    }

    #[test]
    fn a_denial_holds_for_its_time_and_for_what_is_no_easier() {
        let mut denials = Denials::default();
        let (now, after) = (NOW, |ms: u64| NOW.after(ms * 1_000));
        denials.insert(&charge(b"a", 3, 10), &denied(Some(400_000)), now);
        let find = |charge: LogCharge, at| denials.find(&[charge], at).map(|found| found.decided.outcome);
        let left = |us| Some(Outcome::Denied { retry_after_us: Some(us) });
        assert_eq!(find(charge(b"a", 3, 10), after(100)), left(300_000));
        assert_eq!(find(charge(b"a", 4, 9), after(399)), left(1_000));
        assert_eq!(find(charge(b"a", 40, 9), after(399)), Some(Outcome::Denied { retry_after_us: None }));
        assert_eq!(find(charge(b"a", 3, 10), after(400)), None);
        assert_eq!(find(charge(b"a", 2, 10), now), None, "a lower cost may pass");
        assert_eq!(find(charge(b"a", 3, 11), now), None, "the same cost may pass against a higher limit");
        assert_eq!(find(charge(b"b", 3, 10), now), None);
        denials.remove(&charge(b"a", 0, 0).key);
        assert_eq!(denials.find(&[charge(b"a", 3, 10)], now), None);
        denials.insert(&charge(b"a", 11, 10), &denied(None), now);
        let find = |at| denials.find(&[charge(b"a", 11, 10)], at);
        assert!(find(after(999)).is_some());
        assert_eq!(find(after(1_000)), None, "expires after the longest time");
    }

    #[test]
    fn at_most_the_stated_number_is_cached() {
        let mut denials = Denials::default();
        for number in 0..MAX_CACHED_DENIALS * 3 {
            denials.insert(&charge(&number.to_be_bytes(), 1, 1), &denied(Some(1_000_000)), NOW);
        }
        let kept = denials.cached.iter().count();
        assert_eq!(kept, 2 * MAX_CACHED_DENIALS);
        let last = (MAX_CACHED_DENIALS * 3 - 1).to_be_bytes();
        assert!(denials.find(&[charge(&last, 1, 1)], NOW).is_some());
    }
}
