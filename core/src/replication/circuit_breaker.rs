//! Decides whether the region's store, and the database that regions share, may be called.
//!
//! The region's store is queried only after its markers were read, since a wipe would not be noticed before, and while
//! its breaker is closed. Only a call that failed in every part counts as a failure: of several servers one may be
//! unavailable, and one cell may hold a wrong value.

use super::failure::{Failure, did_nothing, first_failure};
use crate::model::breaker::{Breaker, Policy, State};
use crate::model::time::MonoMs;

/// The circuit breaker of the region's store.
#[derive(Clone, Debug)]
pub struct StoreBreaker {
    found: bool,
    breaker: Breaker,
}

impl StoreBreaker {
    /// For a store whose markers were not read yet.
    pub fn new(policy: Policy) -> StoreBreaker {
        StoreBreaker { found: false, breaker: Breaker::new(policy) }
    }

    /// Whether the store may be queried.
    pub fn is_usable(&self, now: MonoMs) -> bool {
        self.found && self.state(now) == State::Closed
    }

    /// The state of the breaker.
    pub fn state(&self, now: MonoMs) -> State {
        self.breaker.state(now)
    }

    /// Whether the markers may be read now. The caller must then report the result with [`StoreBreaker::note`].
    pub fn allows_probe(&mut self, now: MonoMs) -> bool {
        self.breaker.allows(now)
    }

    /// Records that the markers were read.
    pub fn found(&mut self) {
        self.found = true;
    }

    /// Whether the markers were read.
    pub fn is_found(&self) -> bool {
        self.found
    }

    /// Records the result of a call.
    pub fn note(&mut self, failure: Option<Failure>, now: MonoMs) {
        match failure {
            None => self.breaker.succeeded(),
            // Too many calls at once show nothing about the store itself.
            Some(Failure::Busy) => {}
            Some(_) => self.breaker.failed(now),
        }
    }

    /// Records the results of a call that has several parts.
    pub fn note_parts<T>(&mut self, results: &[Result<T, Failure>], now: MonoMs) {
        self.note(first_failure(results).filter(|_| did_nothing(results)), now);
    }
}

/// Which kind of call to the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Reading the other regions' use.
    Import,
    /// Every other call.
    Own,
}

/// The circuit breakers of the database. Any failure counts.
#[derive(Clone, Debug)]
pub struct DatabaseBreakers {
    primary: Breaker,
    /// Separate, so that a failing replica does not prevent publishing, nor a failing primary importing.
    replica: Option<Breaker>,
}

impl DatabaseBreakers {
    /// For a database that has not been called yet. Imports may come from a replica of it.
    pub fn new(policy: Policy, has_replica: bool) -> DatabaseBreakers {
        DatabaseBreakers { primary: Breaker::new(policy), replica: has_replica.then(|| Breaker::new(policy)) }
    }

    /// Whether a call may be made. The caller must then report the result with [`DatabaseBreakers::note`].
    pub fn allows(&mut self, traffic: Traffic, now: MonoMs) -> bool {
        self.before(traffic).allows(now)
    }

    /// Records the result of a call.
    pub fn note(&mut self, traffic: Traffic, went_well: bool, now: MonoMs) {
        match went_well {
            true => self.before(traffic).succeeded(),
            false => self.before(traffic).failed(now),
        }
    }

    /// The state of the primary's breaker, and of the replica's.
    pub fn states(&self, now: MonoMs) -> (State, Option<State>) {
        (self.primary.state(now), self.replica.as_ref().map(|replica| replica.state(now)))
    }

    fn before(&mut self, traffic: Traffic) -> &mut Breaker {
        match (traffic, &mut self.replica) {
            (Traffic::Import, Some(replica)) => replica,
            _ => &mut self.primary,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Policy = Policy { window: 4, least: 2, failed_percent: 50, rest_ms: 100 };
    const NOW: MonoMs = MonoMs(5);

    #[test]
    fn a_store_is_usable_from_when_it_is_found_until_it_fails() {
        let mut breaker = StoreBreaker::new(POLICY);
        assert!(!breaker.is_usable(NOW), "not found");
        breaker.found();
        assert!(breaker.is_usable(NOW));
        let parts: [Result<(), Failure>; 2] = [Err(Failure::Unavailable), Ok(())];
        (0..9).for_each(|_| breaker.note_parts(&parts, NOW));
        (0..9).for_each(|_| breaker.note(Some(Failure::Busy), NOW));
        assert!(breaker.is_usable(NOW));
        (0..4).for_each(|_| {
            breaker.note_parts::<()>(&[Err(Failure::Unavailable), Err(Failure::Unavailable)], NOW)
        });
        assert!(!breaker.is_usable(NOW));
        let later = MonoMs(105);
        assert!(!breaker.is_usable(later) && breaker.allows_probe(later));
        breaker.note(None, later);
        assert!(breaker.is_usable(later));
    }

    #[test]
    fn a_failing_replica_does_not_prevent_publishing() {
        let mut breakers = DatabaseBreakers::new(POLICY, true);
        (0..2).for_each(|_| breakers.note(Traffic::Import, false, NOW));
        assert_eq!(breakers.states(NOW), (State::Closed, Some(State::Open)));
        assert!(breakers.allows(Traffic::Own, NOW) && !breakers.allows(Traffic::Import, NOW));
        let mut alone = DatabaseBreakers::new(POLICY, false);
        (0..2).for_each(|_| alone.note(Traffic::Import, false, NOW));
        assert_eq!(alone.states(NOW), (State::Open, None));
    }
}
