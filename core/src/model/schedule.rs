//! When a region speaks to its stores: the constants, each with its reason, and the interval that they give.
//!
//! They are properties of the whole system. A knob for each instance would only let regions drift apart, so there is
//! none outside tests.
//!
//! Leaves to others: waiting (`aggregator`).

use crate::model::breaker;
use crate::model::time::MonoMs;

/// All schedules and bounds of one aggregator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Between two publications, in milliseconds. With `import_ms` it bounds how late another region hears: at most one
    /// of each and their jitter. Halving it doubles the database's load.
    pub publish_ms: u64,
    /// Between two imports, in milliseconds.
    pub import_ms: u64,
    /// Each interval comes up to this many per cent of the interval earlier or later, anew each time: else all regions
    /// would meet at the database at the same moment.
    pub jitter_percent: u64,
    /// A publication or import that takes longer is given up; the next interval is near then.
    pub global_timeout_ms: u64,
    /// Least time between two replays to the regional store: a cell that changes often is told once.
    pub replay_ms: u64,
    /// Least time between two messages to the region's other aggregators. Filters report every 50 ms, each at its own
    /// moment: a busy cell would else be told of as often as there are filters.
    pub share_ms: u64,
    /// A replay that takes longer is given up, and all its cells wait again.
    pub replay_timeout_ms: u64,
    /// At the end of the program: what the regional store gets to take what was reported last.
    pub last_replay_ms: u64,
    /// Between two looks at the markers of the regional store, and between two tries while it is away.
    pub marker_ms: u64,
    /// Such a look that takes longer has failed.
    pub marker_timeout_ms: u64,
    /// Between two announcements of which Envoys are alive.
    pub heartbeat_ms: u64,
    /// Between two full reads of the hot index, which find what messages have missed.
    pub hot_read_ms: u64,
    /// After a loss: how long living filters and aggregators have to repeat what they know.
    pub grace_period_ms: u64,
    /// Most cells of one namespace in one publication, and in one update of the hot index; the most used go first.
    pub namespace_cap: usize,
    /// When the regional store counts as away.
    pub store_breaker: breaker::Policy,
    /// When the global store counts as away.
    pub global_breaker: breaker::Policy,
}

impl Default for Schedule {
    fn default() -> Self {
        Schedule {
            publish_ms: 10_000,
            import_ms: 10_000,
            jitter_percent: 20,
            global_timeout_ms: 10_000,
            replay_ms: 10,
            share_ms: 25,
            replay_timeout_ms: 2_000,
            last_replay_ms: 500,
            marker_ms: 100,
            marker_timeout_ms: 250,
            heartbeat_ms: 1_000,
            hot_read_ms: 5_000,
            grace_period_ms: 2_000,
            namespace_cap: 20_000,
            // A frozen store fails every call; a slow one some. Half of the last ten is neither bad luck nor late.
            store_breaker: breaker::Policy { window: 10, least: 5, failed_percent: 50, rest_ms: 500 },
            // At one call in ten seconds it must open on few; a rest of one interval spares a sick database one in two.
            global_breaker: breaker::Policy { window: 6, least: 3, failed_percent: 50, rest_ms: 15_000 },
        }
    }
}

impl Schedule {
    /// For tests that wait for other regions: the same, but a interval each 300 ms, and an end that a busy machine keeps.
    pub fn for_tests() -> Schedule {
        let global_breaker = breaker::Policy { rest_ms: 400, ..Schedule::default().global_breaker };
        let (publish_ms, import_ms, hot_read_ms) = (300, 300, 500);
        let last_replay_ms = 10_000;
        Schedule { publish_ms, import_ms, last_replay_ms, hot_read_ms, global_breaker, ..Schedule::default() }
    }
}

/// A interval with a fixed rhythm, whose ticks are jittered. What a slow tick makes late does not move the rhythm, and
/// ticks that were missed are dropped.
#[derive(Clone, Copy, Debug)]
pub struct Interval {
    anchor: MonoMs,
    interval_ms: u64,
    jitter_ms: u64,
    struck: u64,
}

impl Interval {
    /// Begins somewhere in the interval after `now`; `random` is uniform.
    pub fn new(interval_ms: u64, jitter_percent: u64, now: MonoMs, random: u64) -> Interval {
        let interval_ms = interval_ms.max(1);
        let jitter_ms = interval_ms.saturating_mul(jitter_percent.min(49)) / 100;
        let phase = random.checked_rem(interval_ms).unwrap_or(0);
        Interval { anchor: now.after(phase), interval_ms, jitter_ms, struck: 0 }
    }

    /// The moment of the next tick; `random` is uniform.
    pub fn next(&mut self, now: MonoMs, random: u64) -> MonoMs {
        let passed = now.since(self.anchor).div_ceil(self.interval_ms);
        self.struck = self.struck.saturating_add(1).max(passed.saturating_add(1));
        let tick = self.anchor.after((self.struck - 1).saturating_mul(self.interval_ms));
        let earlier = random.checked_rem(2 * self.jitter_ms + 1).unwrap_or(0);
        MonoMs(tick.after(earlier).0.saturating_sub(self.jitter_ms)).max(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_slow_tick_does_not_move_the_rhythm_and_missed_ones_are_dropped() {
        let mut interval = Interval::new(100, 0, MonoMs(0), 30);
        assert_eq!(interval.next(MonoMs(0), 0), MonoMs(30));
        assert_eq!(interval.next(MonoMs(75), 0), MonoMs(130), "took 45 ms");
        assert_eq!(interval.next(MonoMs(391), 0), MonoMs(430), "two were missed");
        assert_eq!(interval.next(MonoMs(430), 0), MonoMs(530));
    }

    proptest! {
        #[test]
        fn ticks_are_jittered_about_a_fixed_rhythm(
            seed in any::<u64>(), randoms in prop::collection::vec(any::<u64>(), 1..50)
        ) {
            let start = MonoMs(1_000_000);
            let mut interval = Interval::new(10_000, 20, start, seed);
            let mut now = start;
            for (tick, random) in (0..).zip(randoms) {
                let at = interval.next(now, random);
                prop_assert!(at >= now);
                let nominal = start.0 + seed % 10_000 + tick * 10_000;
                prop_assert!(at.0.abs_diff(nominal) <= 2_000, "tick {}: {} for {}", tick, at.0, nominal);
                now = at;
            }
        }
    }
}
