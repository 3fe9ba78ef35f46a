//! Tries of calls to ledgers: through their circuit breaker, and again after a try that certainly changed nothing.
//!
//! Each call records an attempt, so a try whose connection was lost is not repeated: it may have been recorded.

use crate::model::breaker::{Breaker, Policy, Shown, State};
use crate::model::time::MonoMs;

/// If half of the last 20 tries failed, the breaker opens for 500 ms. A server that is down therefore costs only a few
/// timeouts.
const BREAKER: Policy = Policy { window: 20, least: 5, failed_percent: 50, rest_ms: 500 };
/// Pauses before further tries, in milliseconds. Short, because a client waits for the answer.
const PAUSES_MS: [u64; 4] = [5, 10, 20, 40];

/// The circuit breaker of the ledgers.
#[derive(Clone, Debug)]
pub struct LedgerBreaker(Breaker);

/// The tries of one call.
#[derive(Clone, Debug)]
pub struct Tries {
    deadline: MonoMs,
    /// When the try began that is under way.
    since: Option<MonoMs>,
    pauses: usize,
}

/// How a try has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tried {
    /// The database has answered.
    Answered,
    /// The database has undone it, because others held a lock.
    Undone,
    /// The database was not reached.
    Unreachable,
    /// The connection was refused, or lost. What was tried may have been recorded.
    Failed,
    /// There was no answer in time. What was tried may have been recorded.
    TimedOut,
}

impl Default for LedgerBreaker {
    fn default() -> LedgerBreaker {
        LedgerBreaker(Breaker::new(BREAKER))
    }
}

impl LedgerBreaker {
    /// The state at `now`.
    pub fn state(&self, now: MonoMs) -> State {
        self.0.state(now)
    }
}

impl Tries {
    /// A call that is over by `deadline`.
    pub fn new(deadline: MonoMs) -> Tries {
        Tries { deadline, since: None, pauses: 0 }
    }

    /// Whether a try may begin now. [`Tries::end`] or [`Tries::cancel`] follows.
    pub fn begin(&mut self, breaker: &mut LedgerBreaker, now: MonoMs) -> bool {
        let begins = breaker.0.allows_within(self.deadline.since(now), now);
        self.since = begins.then_some(now);
        begins
    }

    /// A try has ended. Returns the pause before the next one in milliseconds; `None` if there is none.
    pub fn end(&mut self, breaker: &mut LedgerBreaker, tried: Tried, now: MonoMs) -> Option<u64> {
        self.show(breaker, tried.shown(), now);
        let pause_ms = *PAUSES_MS.get(self.pauses).filter(|_| tried.is_without_trace())?;
        self.pauses += 1;
        (now.after(pause_ms) < self.deadline).then_some(pause_ms)
    }

    /// Ends a try that may be under way, and of which no result will be taken.
    pub fn cancel(&mut self, breaker: &mut LedgerBreaker, now: MonoMs) {
        self.show(breaker, Shown::Nothing, now);
    }

    fn show(&mut self, breaker: &mut LedgerBreaker, shown: Shown, now: MonoMs) {
        if let Some(since) = self.since.take() {
            breaker.0.showed(shown, since, now);
        }
    }
}

impl Tried {
    fn is_without_trace(self) -> bool {
        matches!(self, Tried::Undone | Tried::Unreachable)
    }

    fn shown(self) -> Shown {
        match self {
            Tried::Answered | Tried::Undone => Shown::Answered,
            Tried::Unreachable | Tried::Failed => Shown::Failed,
            Tried::TimedOut => Shown::TimedOut,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    const NOW: MonoMs = MonoMs(60_000);

    /// Makes a call that is over after `within_ms`; returns its pauses.
    fn call(breaker: &mut LedgerBreaker, within_ms: u64, tried: Tried) -> Vec<u64> {
        let (mut tries, mut now, mut pauses) = (Tries::new(NOW.after(within_ms)), NOW, vec![]);
        while tries.begin(breaker, now) {
            let Some(pause_ms) = tries.end(breaker, tried, now) else { break };
            now = now.after(pause_ms);
            pauses.push(pause_ms);
        }
        pauses
    }

    #[test]
    fn only_a_try_without_a_trace_is_repeated_within_the_time() {
        let pauses = |within_ms, tried| call(&mut LedgerBreaker::default(), within_ms, tried);
        for tried in [Tried::Answered, Tried::Failed, Tried::TimedOut] {
            assert_eq!(pauses(1_000, tried), [0; 0], "{tried:?}");
        }
        for tried in [Tried::Undone, Tried::Unreachable] {
            assert_eq!(pauses(1_000, tried), PAUSES_MS, "{tried:?}");
            assert_eq!(pauses(36, tried), PAUSES_MS[..3], "{tried:?}");
            assert_eq!(pauses(35, tried), PAUSES_MS[..2], "{tried:?}");
        }
    }

    #[test]
    fn the_breaker_opens_and_one_try_at_a_time_is_its_trial() {
        let mut breaker = LedgerBreaker::default();
        call(&mut breaker, 1_000, Tried::Unreachable);
        assert_eq!(breaker.state(NOW), State::Open, "five tries of a call");
        let rested = NOW.after(BREAKER.rest_ms + 100);
        let (mut trial, mut other) = (Tries::new(rested.after(100)), Tries::new(rested.after(100)));
        assert!(!other.begin(&mut breaker, NOW), "it rests");
        assert!(trial.begin(&mut breaker, rested) && !other.begin(&mut breaker, rested));
        trial.cancel(&mut breaker, rested);
        trial.cancel(&mut breaker, rested);
        assert!(other.begin(&mut breaker, rested), "the trial has shown nothing");
        assert_eq!(other.end(&mut breaker, Tried::Undone, rested), Some(5));
        assert_eq!(breaker.state(rested), State::Closed);
    }
}
