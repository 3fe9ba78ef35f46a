//! Whether somebody who failed lately is asked at all: a circuit breaker on the share of failures.
//!
//! Closed, everything is asked and the last calls are remembered. When enough of them failed it opens, and nobody is
//! asked for a rest. Then it is half open: one call at a time finds out, and closes it or opens it again.
//!
//! It is our own, in the core, as it takes the moment as a value: what it does to convergence can be simulated.
//!
//! Leaves to others: what counts as a failure, and the clock (`aggregator`).

use crate::model::time::MonoMs;

/// When a breaker opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// So many of the last calls are looked at; 1 to 64.
    pub window: u32,
    /// With fewer calls than this it stays closed.
    pub least: u32,
    /// Opens when this many per cent of the window failed.
    pub failed_percent: u32,
    /// How long nobody is asked, in milliseconds.
    pub rest_ms: u64,
}

/// What a breaker lets through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Everything.
    Closed,
    /// Nothing.
    Open,
    /// One call that finds out.
    HalfOpen,
}

/// Remembers how the last calls went.
#[derive(Clone, Debug)]
pub struct Breaker {
    policy: Policy,
    /// One bit for each of the last calls, the newest lowest; 1 is a failure.
    failures: u64,
    calls: u32,
    /// Opened or last tried then.
    open_since: Option<MonoMs>,
    probing: bool,
}

impl Breaker {
    /// A closed breaker that remembers nothing.
    pub fn new(policy: Policy) -> Breaker {
        Breaker { policy, failures: 0, calls: 0, open_since: None, probing: false }
    }

    /// What it lets through at `now`.
    pub fn state(&self, now: MonoMs) -> State {
        match self.open_since {
            None => State::Closed,
            Some(since) if now.since(since) < self.policy.rest_ms => State::Open,
            Some(_) => State::HalfOpen,
        }
    }

    /// Whether a call may be made. Whoever makes one in [`State::HalfOpen`] must tell how it went.
    pub fn allows(&mut self, now: MonoMs) -> bool {
        match self.state(now) {
            State::Closed => true,
            State::Open => false,
            State::HalfOpen => !core::mem::replace(&mut self.probing, true),
        }
    }

    /// A call went well. It closes an open breaker.
    pub fn succeeded(&mut self) {
        if self.open_since.take().is_some() {
            (self.failures, self.calls, self.probing) = (0, 0, false);
        }
        self.record(false);
    }

    /// A call failed.
    pub fn failed(&mut self, now: MonoMs) {
        self.record(true);
        if self.open_since.is_some() {
            // The rest begins anew with the call that found out, not with those that were on their way.
            if core::mem::take(&mut self.probing) {
                self.open_since = Some(now);
            }
        } else if self.has_failed_enough() {
            self.open_since = Some(now);
        }
    }

    fn record(&mut self, failed: bool) {
        let window = self.policy.window.clamp(1, u64::BITS);
        let mask = u64::MAX >> (u64::BITS - window);
        self.failures = (self.failures << 1 | u64::from(failed)) & mask;
        self.calls = (self.calls + 1).min(window);
    }

    fn has_failed_enough(&self) -> bool {
        let failed = self.failures.count_ones();
        self.calls >= self.policy.least && failed * 100 >= self.calls * self.policy.failed_percent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Policy = Policy { window: 10, least: 4, failed_percent: 50, rest_ms: 1_000 };

    fn opened() -> Breaker {
        let mut breaker = Breaker::new(POLICY);
        (0..4).for_each(|at| breaker.failed(MonoMs(at)));
        breaker
    }

    #[test]
    fn it_opens_when_half_of_enough_calls_failed() {
        let mut breaker = Breaker::new(POLICY);
        for at in 0..3 {
            breaker.failed(MonoMs(at));
            assert_eq!(breaker.state(MonoMs(at)), State::Closed, "too few to tell");
        }
        let mut mostly_well = Breaker::new(POLICY);
        for at in 0..30 {
            if at % 3 == 2 {
                mostly_well.failed(MonoMs(at))
            } else {
                mostly_well.succeeded()
            }
            assert_eq!(mostly_well.state(MonoMs(at)), State::Closed, "a third");
        }
        assert_eq!(opened().state(MonoMs(4)), State::Open);
    }

    #[test]
    fn old_calls_are_forgotten() {
        let mut breaker = Breaker::new(POLICY);
        (0..100).for_each(|_| breaker.succeeded());
        for at in 0..4 {
            breaker.failed(MonoMs(at));
            assert_eq!(breaker.state(MonoMs(at)), State::Closed);
        }
        breaker.failed(MonoMs(4));
        assert_eq!(breaker.state(MonoMs(4)), State::Open, "five of the last ten");
    }

    #[test]
    fn after_a_rest_one_call_finds_out() {
        let mut breaker = opened();
        assert!(!breaker.allows(MonoMs(500)));
        assert!(breaker.allows(MonoMs(1_003)));
        assert!(!breaker.allows(MonoMs(1_003)), "one at a time");
        breaker.failed(MonoMs(1_100));
        assert!(!breaker.allows(MonoMs(2_000)), "another rest");
        assert!(breaker.allows(MonoMs(2_100)));
        breaker.succeeded();
        assert_eq!(breaker.state(MonoMs(2_100)), State::Closed);
        breaker.failed(MonoMs(2_101));
        assert_eq!(breaker.state(MonoMs(2_101)), State::Closed, "the past is forgotten");
    }

    #[test]
    fn calls_that_were_on_their_way_do_not_prolong_the_rest() {
        let mut breaker = opened();
        breaker.failed(MonoMs(900));
        assert!(breaker.allows(MonoMs(1_003)));
    }
}
