//! Whether a store is asked at all: the region's, and the database that regions share.
//!
//! The region's store is asked once its markers were read, as a wipe would not be noticed before, and while its
//! breaker is closed. Only a call that did nothing at all speaks against it: of several servers one may be away, and one
//! cell may not be what it should.
//!
//! Leaves to others: the share of failures that is too much (`breaker`), asking (`aggregator`).

use super::failure::{Failure, did_nothing, first_failure};
use crate::model::breaker::{Breaker, Policy, State};
use crate::model::time::MonoMs;

/// Stands before the region's store.
#[derive(Clone, Debug)]
pub struct StoreBreaker {
    found: bool,
    breaker: Breaker,
}

impl StoreBreaker {
    /// Before a store that nothing is known of yet.
    pub fn new(policy: Policy) -> StoreBreaker {
        StoreBreaker { found: false, breaker: Breaker::new(policy) }
    }

    /// Whether the store is asked.
    pub fn is_usable(&self, now: MonoMs) -> bool {
        self.found && self.state(now) == State::Closed
    }

    /// What the breaker lets through.
    pub fn state(&self, now: MonoMs) -> State {
        self.breaker.state(now)
    }

    /// Whether somebody may look if it is there. Who does must tell how that went.
    pub fn allows_probe(&mut self, now: MonoMs) -> bool {
        self.breaker.allows(now)
    }

    /// The markers were read.
    pub fn found(&mut self) {
        self.found = true;
    }

    /// Whether they were.
    pub fn is_found(&self) -> bool {
        self.found
    }

    /// Notes how a call went.
    pub fn note(&mut self, failure: Option<Failure>, now: MonoMs) {
        match failure {
            None => self.breaker.succeeded(),
            // That too much is asked at once says nothing of the store.
            Some(Failure::Busy) => {}
            Some(_) => self.breaker.failed(now),
        }
    }

    /// Notes how a call of several parts went.
    pub fn note_parts<T>(&mut self, results: &[Result<T, Failure>], now: MonoMs) {
        self.note(first_failure(results).filter(|_| did_nothing(results)), now);
    }
}

/// What is done with the database that regions share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Reading what other regions used.
    Import,
    /// Everything else.
    Own,
}

/// Stand before that database: any failure speaks against it.
#[derive(Clone, Debug)]
pub struct DatabaseBreakers {
    primary: Breaker,
    /// A sick replica keeps nobody from publishing, nor a sick primary from importing.
    replica: Option<Breaker>,
}

impl DatabaseBreakers {
    /// Before a database that nothing is known of yet; imports may come from a replica of it.
    pub fn new(policy: Policy, has_replica: bool) -> DatabaseBreakers {
        DatabaseBreakers { primary: Breaker::new(policy), replica: has_replica.then(|| Breaker::new(policy)) }
    }

    /// Whether a call may be made. Who makes one must tell how it went.
    pub fn allows(&mut self, traffic: Traffic, now: MonoMs) -> bool {
        self.before(traffic).allows(now)
    }

    /// Notes how a call went.
    pub fn note(&mut self, traffic: Traffic, went_well: bool, now: MonoMs) {
        match went_well {
            true => self.before(traffic).succeeded(),
            false => self.before(traffic).failed(now),
        }
    }

    /// What the breakers let through, the replica's second.
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
    fn a_store_is_asked_once_it_is_found_and_until_it_fails() {
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
    fn a_sick_replica_keeps_nobody_from_publishing() {
        let mut breakers = DatabaseBreakers::new(POLICY, true);
        (0..2).for_each(|_| breakers.note(Traffic::Import, false, NOW));
        assert_eq!(breakers.states(NOW), (State::Closed, Some(State::Open)));
        assert!(breakers.allows(Traffic::Own, NOW) && !breakers.allows(Traffic::Import, NOW));
        let mut alone = DatabaseBreakers::new(POLICY, false);
        (0..2).for_each(|_| alone.note(Traffic::Import, false, NOW));
        assert_eq!(alone.states(NOW), (State::Open, None));
    }
}
