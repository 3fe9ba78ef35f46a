//! A circuit breaker by the share of failed calls.
//!
//! While it is closed all calls are made, and their results are recorded. When enough of the last calls failed, it opens, and no call is
//! made for a rest. Then it is half open: one call at a time is made, which closes or opens it again.
//!
//! How long a caller waits is its own choice, and so is when it gives up. Neither shows anything about the store: a short wait that ends in
//! vain is no failure, nor is a wait during which another call is answered, and a call that may not wait long is no trial.
//!
//! It is part of the core, and not of a library, since it takes the time as a value, so that its effect can be simulated.

use crate::model::time::MonoMs;

/// A store that works answers within this time, unless the machine is very busy. In milliseconds.
pub const FAIR_MS: u64 = 25;

/// When a breaker opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Number of last calls that are considered; 1 to 64.
    pub window: u32,
    /// With fewer calls than this it stays closed.
    pub least: u32,
    /// Opens when this many per cent of the window failed.
    pub failed_percent: u32,
    /// The rest without calls, in milliseconds.
    pub rest_ms: u64,
}

/// State of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// All calls are made.
    Closed,
    /// No call is made.
    Open,
    /// One call at a time is made.
    HalfOpen,
}

/// What a call has shown about the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shown {
    /// Nothing: it was cancelled, or refused as one of too many.
    #[default]
    Nothing,
    /// It was answered.
    Answered,
    /// It waited in vain.
    TimedOut,
    /// It failed.
    Failed,
}

/// A circuit breaker; see the module.
#[derive(Clone, Debug)]
pub struct Breaker {
    policy: Policy,
    /// One bit for each of the last calls, the newest lowest; 1 is a failure.
    failures: u64,
    calls: u32,
    /// When it opened or was last tried.
    open_since: Option<MonoMs>,
    probing: bool,
    /// When the last call was answered.
    answered: Option<MonoMs>,
}

impl Breaker {
    /// A closed breaker without recorded calls.
    pub fn new(policy: Policy) -> Breaker {
        Breaker { policy, failures: 0, calls: 0, open_since: None, probing: false, answered: None }
    }

    /// The state at `now`.
    pub fn state(&self, now: MonoMs) -> State {
        match self.open_since {
            None => State::Closed,
            Some(since) if now.since(since) < self.policy.rest_ms => State::Open,
            Some(_) => State::HalfOpen,
        }
    }

    /// Whether a call may be made. The result of a call in [`State::HalfOpen`] must be reported.
    pub fn allows(&mut self, now: MonoMs) -> bool {
        match self.state(now) {
            State::Closed => true,
            State::Open => false,
            State::HalfOpen => !core::mem::replace(&mut self.probing, true),
        }
    }

    /// Whether a call may be made that waits for at most `patience_ms`. If it waits so short that no answer shows nothing, it is no trial call.
    pub fn allows_within(&mut self, patience_ms: u64, now: MonoMs) -> bool {
        (patience_ms >= FAIR_MS || self.state(now) == State::Closed) && self.allows(now)
    }

    /// Records what a call has shown that was made at `since` and ended at `now`. One that waited in vain has failed only if it waited for
    /// a fair time, and no other call has been answered meanwhile. After one that shows nothing, another may be the trial call.
    pub fn showed(&mut self, shown: Shown, since: MonoMs, now: MonoMs) {
        let others_are_answered = self.answered.is_some_and(|answered| answered > since);
        match shown {
            Shown::Answered => {
                self.answered = Some(now);
                self.succeeded();
            }
            Shown::Failed => self.failed(now),
            Shown::TimedOut if now.since(since) >= FAIR_MS && !others_are_answered => self.failed(now),
            Shown::TimedOut | Shown::Nothing => self.probing = false,
        }
    }

    /// Records a success. It closes an open breaker.
    pub fn succeeded(&mut self) {
        if self.open_since.take().is_some() {
            (self.failures, self.calls, self.probing) = (0, 0, false);
        }
        self.record(false);
    }

    /// Records a failure.
    pub fn failed(&mut self, now: MonoMs) {
        self.record(true);
        if self.open_since.is_some() {
            // The rest starts again with the trial call, not with calls that were under way.
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
            assert_eq!(breaker.state(MonoMs(at)), State::Closed, "too few calls");
        }
        let mut mostly_successful = Breaker::new(POLICY);
        for at in 0..30 {
            if at % 3 == 2 {
                mostly_successful.failed(MonoMs(at))
            } else {
                mostly_successful.succeeded()
            }
            assert_eq!(mostly_successful.state(MonoMs(at)), State::Closed, "a third of the calls failed");
        }
        assert_eq!(opened().state(MonoMs(4)), State::Open);
    }

    #[test]
    fn only_the_most_recent_calls_count() {
        let mut breaker = Breaker::new(POLICY);
        (0..100).for_each(|_| breaker.succeeded());
        for at in 0..4 {
            breaker.failed(MonoMs(at));
            assert_eq!(breaker.state(MonoMs(at)), State::Closed);
        }
        breaker.failed(MonoMs(4));
        assert_eq!(breaker.state(MonoMs(4)), State::Open, "five of the last ten calls failed");
    }

    #[test]
    fn after_a_rest_one_call_probes() {
        let mut breaker = opened();
        assert!(!breaker.allows(MonoMs(500)));
        assert!(breaker.allows(MonoMs(1_003)));
        assert!(!breaker.allows(MonoMs(1_003)), "one probe at a time");
        breaker.failed(MonoMs(1_100));
        assert!(!breaker.allows(MonoMs(2_000)), "the failed probe begins another rest");
        assert!(breaker.allows(MonoMs(2_100)));
        breaker.succeeded();
        assert_eq!(breaker.state(MonoMs(2_100)), State::Closed);
        breaker.failed(MonoMs(2_101));
        assert_eq!(breaker.state(MonoMs(2_101)), State::Closed, "earlier failures do not count");
    }

    #[test]
    fn how_long_a_caller_waits_shows_nothing() {
        let mut breaker = Breaker::new(POLICY);
        let timed_out =
            |breaker: &mut Breaker, since, now| breaker.showed(Shown::TimedOut, MonoMs(since), MonoMs(now));
        (0..100).for_each(|at| timed_out(&mut breaker, at, at + FAIR_MS - 1));
        assert_eq!(breaker.state(MonoMs(200)), State::Closed, "none had a fair time");
        breaker.showed(Shown::Answered, MonoMs(990), MonoMs(1_000));
        (0..100).for_each(|_| timed_out(&mut breaker, 999, 1_100));
        assert_eq!(breaker.state(MonoMs(1_100)), State::Closed, "others are answered");
        (0..4).for_each(|_| timed_out(&mut breaker, 1_000, 1_000 + FAIR_MS));
        assert_eq!(breaker.state(MonoMs(1_025)), State::Open);
    }

    #[test]
    fn a_call_that_shows_nothing_keeps_no_other_from_the_trial() {
        let mut breaker = opened();
        assert!(!breaker.allows_within(FAIR_MS - 1, MonoMs(1_003)), "it would be no trial");
        assert!(breaker.allows_within(FAIR_MS, MonoMs(1_003)));
        assert!(!breaker.allows_within(FAIR_MS, MonoMs(1_003)));
        breaker.showed(Shown::Nothing, MonoMs(1_003), MonoMs(1_003));
        assert!(breaker.allows_within(FAIR_MS, MonoMs(1_003)), "it was cancelled");
        breaker.showed(Shown::Answered, MonoMs(1_003), MonoMs(1_010));
        assert_eq!(breaker.state(MonoMs(1_010)), State::Closed);
        assert!(breaker.allows_within(1, MonoMs(1_010)));
    }

    #[test]
    fn calls_in_flight_do_not_prolong_the_rest() {
        let mut breaker = opened();
        breaker.failed(MonoMs(900));
        assert!(breaker.allows(MonoMs(1_003)));
    }
}
