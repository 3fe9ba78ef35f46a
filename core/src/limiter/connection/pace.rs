//! How often a worker exchanges: at each tick of 50 ms, or rarely while it is idle.
//!
//! A worker is idle once nothing has happened on it for a second and it owes nothing to anyone; the subscriber, which keeps the table fresh
//! for all workers, only once nothing has happened on any of them. It ticks and pings less often then. Nothing rests on those pings: what is
//! pushed arrives on the stream, and after the pause of an idle subscriber the table is stale, so that the first requests query. Before its
//! first decision the worker reads the registry, and it pings at once.

use crate::limiter::TICK_MS;
use crate::model::time::MonoMs;

/// Time without a decision, a charge or a settlement after which a worker is idle.
const IDLE_AFTER_MS: u64 = 1_000;
/// Time between the ticks of an idle worker.
pub(super) const IDLE_TICK_MS: u64 = 250;
/// Time between its pings: half of the time after which an aggregator takes a node for dead.
pub const IDLE_PING_MS: u64 = 1_000;

/// The pace of a worker.
#[derive(Debug, Default)]
pub(super) struct Pace {
    is_idle: bool,
    /// When its driver noted a request last.
    noted: MonoMs,
    /// It was woken, and has not pinged since.
    is_due: bool,
}

impl Pace {
    /// Whether it ticks and pings rarely.
    pub(super) fn is_idle(&self) -> bool {
        self.is_idle
    }

    /// Whether it was woken, so that it is to ping before its next tick.
    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }

    /// Milliseconds until the next tick while no request waits.
    pub(super) fn tick_ms(&self) -> u64 {
        if self.is_idle { IDLE_TICK_MS } else { TICK_MS }
    }

    /// When something happened on the worker last, which decided at `decided`.
    pub(super) fn active(&self, decided: MonoMs) -> MonoMs {
        self.noted.max(decided)
    }

    /// Notes at a tick whether the worker `may_rest`, as it owes nothing, and for how long nothing has happened on the workers that rely on
    /// it.
    pub(super) fn tick(&mut self, may_rest: bool, quiet_ms: u64) {
        self.is_idle = may_rest && quiet_ms >= IDLE_AFTER_MS;
    }

    /// Notes a request.
    pub(super) fn note(&mut self, now: MonoMs) {
        self.noted = now;
    }

    /// Something happens on the worker. Returns whether it was idle.
    pub(super) fn wake(&mut self) -> bool {
        if !self.is_idle {
            return false;
        }
        (self.is_idle, self.is_due) = (false, true);
        true
    }

    /// The frames that are due are sent, the ping of a woken worker among them.
    pub(super) fn sends(&mut self) {
        self.is_due = false;
    }

    /// The stream has ended, which is to be opened again.
    pub(super) fn closed(&mut self) {
        (self.is_idle, self.is_due) = (false, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_idle_after_a_second_and_pings_once_when_it_wakes() {
        let mut pace = Pace::default();
        pace.tick(true, 999);
        assert!(!pace.is_idle());
        pace.tick(false, 4_000);
        assert_eq!((pace.is_idle(), pace.tick_ms()), (false, TICK_MS), "it owes something");
        pace.tick(true, 1_000);
        assert_eq!((pace.is_idle(), pace.tick_ms(), pace.is_due()), (true, IDLE_TICK_MS, false));
        assert!(pace.wake());
        assert_eq!((pace.is_idle(), pace.tick_ms(), pace.is_due()), (false, TICK_MS, true));
        pace.sends();
        assert!(!pace.wake() && !pace.is_due(), "it was awake");
        pace.note(MonoMs(9_100));
        assert_eq!(pace.active(MonoMs(5_000)), MonoMs(9_100));
        pace.tick(true, 900);
        assert_eq!((pace.is_idle(), pace.is_due()), (false, false));
        pace.tick(true, 1_000);
        assert!(pace.is_idle());
        pace.closed();
        assert_eq!(pace.tick_ms(), TICK_MS, "the stream is opened again in time");
    }
}
