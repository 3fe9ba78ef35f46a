//! The intervals and timeouts of an aggregator's calls to its stores, each with its reason.
//!
//! They are properties of the whole system. With an option for each instance regions could differ, so there is none outside of tests.

use crate::model::breaker;
use crate::model::time::MonoMs;

/// All schedules and bounds of one aggregator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Time between two publications of all that is due, in milliseconds. Halving it doubles the database's load.
    pub publish_ms: u64,
    /// Longest time between two packets, in milliseconds: how late a region receives what another has published at once.
    pub exchange_ms: u64,
    /// Least time between two packets, in milliseconds. At most ten packets begin in twenty such times.
    pub packet_pause_ms: u64,
    /// Timeout of a packet. A late one holds up all that is due, so it is given up early and its rows are sent again.
    pub packet_timeout_ms: u64,
    /// Time between two imports of all that other regions have published, in milliseconds. Packets bring the same sooner; the import repairs
    /// what they have missed.
    pub import_ms: u64,
    /// Time between two reads of the edition of live control, in milliseconds: a statement that reads one row. A change is in force in all
    /// regions after one such interval and its jitter. After a failure, the next read waits for `publish_ms`.
    pub controls_ms: u64,
    /// Jitter: each interval is up to this many per cent shorter or longer, so that regions do not call the database at the same time.
    pub jitter_percent: u64,
    /// Longest timeout of a page of an import or of a recovery, for a database that was too slow with less.
    pub global_timeout_ms: u64,
    /// First timeout of such a page.
    pub page_timeout_ms: u64,
    /// Most rows of such a page: a few milliseconds for the database, and few enough to be merged in steps.
    pub page_rows: usize,
    /// How long an aggregator that starts waits at most for what it reads from the database before it serves.
    pub restore_ms: u64,
    /// How long it waits for the next page of that.
    pub restore_stall_ms: u64,
    /// Least time between two replays to the regional store, so that a cell that changes often is written once.
    pub replay_ms: u64,
    /// Least time between two broadcasts to peers. Filters report every 50 ms, each at its own time; without a minimum, a busy cell would be
    /// sent once for each filter.
    pub share_ms: u64,
    /// Timeout of a replay; its cells are then queued again.
    pub replay_timeout_ms: u64,
    /// Timeout of the last replay at the end of the program.
    pub last_replay_ms: u64,
    /// Time between two reads of the regional store's markers, also while it is unavailable.
    pub marker_ms: u64,
    /// Timeout of such a read.
    pub marker_timeout_ms: u64,
    /// Time between two heartbeats that list the live nodes.
    pub heartbeat_ms: u64,
    /// Time between two complete reads of the hot index, which find counts of lost broadcasts.
    pub hot_read_ms: u64,
    /// Recovery grace period: the time after a loss in which filters and aggregators send their counts again.
    pub grace_period_ms: u64,
    /// Time without a check after which the embedded limiter leaves its region: each connected node reduces what the others may spend
    /// without a query.
    pub leave_ms: u64,
    /// Most cells of one namespace in one update of the hot index; the most used first.
    pub namespace_cap: usize,
    /// Circuit breaker of the regional store.
    pub store_breaker: breaker::Policy,
    /// Circuit breaker of the global store.
    pub global_breaker: breaker::Policy,
}

impl Default for Schedule {
    fn default() -> Self {
        Schedule {
            publish_ms: 10_000,
            exchange_ms: 1_000,
            packet_pause_ms: 100,
            packet_timeout_ms: 2_000,
            import_ms: 60_000,
            controls_ms: 1_000,
            jitter_percent: 20,
            global_timeout_ms: 10_000,
            page_timeout_ms: 1_000,
            page_rows: 8_192,
            // A million rows take a few seconds. A region that serves without its counts passes each limit once more.
            restore_ms: 60_000,
            restore_stall_ms: 5_000,
            replay_ms: 10,
            share_ms: 25,
            replay_timeout_ms: 2_000,
            last_replay_ms: 500,
            marker_ms: 100,
            marker_timeout_ms: 250,
            heartbeat_ms: 1_000,
            hot_read_ms: 5_000,
            grace_period_ms: 2_000,
            leave_ms: 60_000,
            namespace_cap: 20_000,
            // A frozen store fails every call, a slow one some. Half of the last ten calls is neither chance nor too late.
            store_breaker: breaker::Policy { window: 10, least: 5, failed_percent: 50, rest_ms: 500 },
            // With ten calls in two seconds it must not open for a moment of bad luck; one call a second then probes an overloaded database.
            global_breaker: breaker::Policy { window: 10, least: 5, failed_percent: 50, rest_ms: 1_000 },
        }
    }
}

impl Schedule {
    /// For tests that wait for other regions and for recovery grace periods: intervals of 300 ms, periods of half a second, and a longer
    /// timeout at the end for busy machines.
    pub fn for_tests() -> Schedule {
        let global_breaker = breaker::Policy { rest_ms: 400, ..Schedule::default().global_breaker };
        let (publish_ms, exchange_ms, packet_pause_ms, import_ms) = (300, 100, 20, 300);
        let (controls_ms, hot_read_ms) = (300, 500);
        let (last_replay_ms, grace_period_ms) = (10_000, 500);
        Schedule {
            publish_ms,
            exchange_ms,
            packet_pause_ms,
            import_ms,
            controls_ms,
            last_replay_ms,
            hot_read_ms,
            grace_period_ms,
            global_breaker,
            ..Schedule::default()
        }
    }
}

/// An interval with jitter. A late tick does not move the following ones, and missed ticks are dropped.
#[derive(Clone, Copy, Debug)]
pub struct Interval {
    anchor: MonoMs,
    interval_ms: u64,
    jitter_ms: u64,
    ticks: u64,
}

impl Interval {
    /// The first tick is at a random time within the interval after `now`; `random` is uniform.
    pub fn new(interval_ms: u64, jitter_percent: u64, now: MonoMs, random: u64) -> Interval {
        let interval_ms = interval_ms.max(1);
        let jitter_ms = interval_ms.saturating_mul(jitter_percent.min(49)) / 100;
        let phase = random.checked_rem(interval_ms).unwrap_or(0);
        Interval { anchor: now.after(phase), interval_ms, jitter_ms, ticks: 0 }
    }

    /// The time of the next tick; `random` is uniform.
    pub fn next(&mut self, now: MonoMs, random: u64) -> MonoMs {
        let passed = now.since(self.anchor).div_ceil(self.interval_ms);
        self.ticks = self.ticks.saturating_add(1).max(passed.saturating_add(1));
        let tick = self.anchor.after((self.ticks - 1).saturating_mul(self.interval_ms));
        let earlier = random.checked_rem(2 * self.jitter_ms + 1).unwrap_or(0);
        MonoMs(tick.after(earlier).0.saturating_sub(self.jitter_ms)).max(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_slow_tick_does_not_shift_the_interval_and_missed_ticks_are_dropped() {
        let mut interval = Interval::new(100, 0, MonoMs(0), 30);
        assert_eq!(interval.next(MonoMs(0), 0), MonoMs(30));
        assert_eq!(interval.next(MonoMs(75), 0), MonoMs(130), "the tick took 45 ms");
        assert_eq!(interval.next(MonoMs(391), 0), MonoMs(430), "missed ticks are dropped");
        assert_eq!(interval.next(MonoMs(430), 0), MonoMs(530));
    }

    proptest! {
        #[test]
        fn ticks_are_jittered_around_a_fixed_interval(
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
