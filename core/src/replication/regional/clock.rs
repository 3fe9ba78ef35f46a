//! The clock of a region: the time that numbers its cells.
//!
//! A count belongs to the number of its cell, in the memory of each Envoy and aggregator, in Redis and in the database.
//! If the time that numbers cells steps, some of them follow and others do not, and a use counts twice or no longer.
//! So this time never steps. It begins with the region's time, or without one with the machine's clock, and continues
//! with the monotonic clock. It approaches the machine's clock so slowly that no limit notices.
//!
//! Aggregators of one region share one time. The store holds it beside its own clock, so that it also outlives the last
//! aggregator. Each heartbeat reads it, corrects the aggregator's clock by it, and moves it towards the machine's clock
//! of that aggregator.

use crate::model::time::{MonoMs, Now, SLOW_PARTS, UnixMs, toward};

/// A time that is wrong by more than [`LARGE_US`] approaches the machine's clock by one part in this many, if the store's
/// clock agrees with the machine's; otherwise by one in [`SLOW_PARTS`].
const FAST_PARTS: u64 = 100;
/// More than this is a large difference, in microseconds.
const LARGE_US: u64 = 60_000_000;
/// A time that is wrong by this much is replaced, if the store's clock agrees with the machine's, in microseconds.
const UNUSABLE_US: u64 = 86_400_000_000;
/// A region's time that was written within this time, by the store's clock, is in use, in microseconds.
const IN_USE_US: u64 = 10_000_000;
/// The store's time may be ahead of an aggregator's proposal by this much, as the proposal takes its time to the store. In
/// microseconds.
const AHEAD_US: u64 = 1_000_000;
/// The same for a time that is behind the proposal, in microseconds.
const BEHIND_US: u64 = 50_000;
/// Largest correction by a heartbeat, in microseconds; it is at most a part in [`FAST_PARTS`] of the time since the last.
const CORRECTION_US: u64 = 10_000;
/// An aggregator shares the region's time once it has followed it for this long, in milliseconds. Until then it takes the
/// time as it is: others may have to correct what a store without them has lost or changed.
const JOINING_MS: u64 = 3_000;

/// An aggregator's clock, which follows the region's time in Redis.
#[derive(Clone, Copy, Debug, Default)]
pub struct RegionClock {
    /// Unix time minus monotonic time, in microseconds; `None` before the first reading.
    offset_us: Option<u64>,
    read: MonoMs,
    /// When it first and last followed the region's time.
    followed: Option<(MonoMs, MonoMs)>,
}

/// What a heartbeat sends to the store: an aggregator's clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeProposal {
    /// The aggregator's time, in microseconds since the Unix epoch.
    pub time_us: u64,
    /// The machine's clock, in microseconds since the Unix epoch.
    pub machine_us: u64,
    /// Whether the aggregator has the region's time already.
    pub is_shared: bool,
}

/// The region's time as the store holds it. `nodes.lua` is the same in Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedTime {
    /// The region's time, in microseconds since the Unix epoch.
    pub time_us: u64,
    /// The store's clock at that moment, in microseconds since the Unix epoch.
    pub store_us: u64,
    /// Whether an aggregator that shares the time has written it. Otherwise the first that does replaces it.
    pub is_shared: bool,
}

impl SharedTime {
    /// The region's time now, by the store's clock `store_us`, after an aggregator's `proposal`. Replaces what is stored,
    /// unless the proposal only reads it.
    pub fn agree(stored: &mut Option<SharedTime>, proposal: &TimeProposal, store_us: u64) -> u64 {
        let is_shared = proposal.is_shared;
        let before = stored.filter(|before| before.is_shared || !is_shared);
        let time_us = before.map_or(proposal.time_us, |before| before.after(proposal, store_us));
        if is_shared || before.is_none() {
            *stored = Some(SharedTime { time_us, store_us, is_shared });
        }
        time_us
    }

    fn after(&self, proposal: &TimeProposal, store_us: u64) -> u64 {
        let TimeProposal { time_us: proposed_us, machine_us, is_shared } = *proposal;
        let current_us = self.time_us.saturating_add(store_us).saturating_sub(self.store_us);
        let elapsed_us = store_us.checked_sub(self.store_us);
        let apart_us = current_us.abs_diff(proposed_us);
        let is_machine_right = machine_us.abs_diff(store_us) < LARGE_US;
        if is_machine_right && current_us.abs_diff(machine_us) >= UNUSABLE_US {
            return machine_us;
        }
        if !is_shared {
            let is_in_use = elapsed_us.is_some_and(|elapsed_us| elapsed_us < IN_USE_US);
            return if is_in_use || apart_us < UNUSABLE_US { current_us } else { proposed_us };
        }
        if proposed_us > current_us && apart_us > BEHIND_US {
            // The store's clock was set back, or others were suspended: of two times the later one stays.
            return proposed_us;
        }
        let elapsed_us = elapsed_us.unwrap_or(0);
        if apart_us > AHEAD_US && apart_us <= elapsed_us.saturating_add(AHEAD_US) {
            // The store's clock may have stepped ahead since the last heartbeat of any aggregator. If that was shorter ago than
            // the step is long, this aggregator is behind: it was suspended.
            return proposed_us;
        }
        let wrong_us = current_us.abs_diff(machine_us);
        let parts = if wrong_us > LARGE_US && is_machine_right { FAST_PARTS } else { SLOW_PARTS };
        let most_us = elapsed_us.min(IN_USE_US).checked_div(parts).unwrap_or(0);
        toward(current_us, machine_us, most_us)
    }
}

impl RegionClock {
    /// The region's time, given the `machine`'s clocks.
    pub fn at(&mut self, machine: Now) -> Now {
        let machine_us = offset_us(machine);
        let elapsed_us = machine.mono.since(self.read).saturating_mul(1_000);
        let offset_us = match self.offset_us {
            Some(offset_us) if self.followed.is_some() => offset_us,
            Some(offset_us) if offset_us.abs_diff(machine_us) < UNUSABLE_US => {
                let parts = if offset_us.abs_diff(machine_us) > LARGE_US { FAST_PARTS } else { SLOW_PARTS };
                toward(offset_us, machine_us, elapsed_us.checked_div(parts).unwrap_or(0))
            }
            _ => machine_us,
        };
        self.offset_us = Some(offset_us);
        self.read = self.read.max(machine.mono);
        Now { unix: UnixMs(time_us(machine.mono, offset_us) / 1_000), mono: machine.mono }
    }

    /// What a heartbeat sends to the store.
    pub fn propose(&mut self, machine: Now) -> TimeProposal {
        self.at(machine);
        let machine_us = offset_us(machine);
        let offset_us = self.offset_us.unwrap_or(machine_us);
        TimeProposal {
            time_us: time_us(machine.mono, offset_us),
            machine_us: time_us(machine.mono, machine_us),
            is_shared: self.is_shared(),
        }
    }

    /// Whether it has followed the region's time for long enough.
    fn is_shared(&self) -> bool {
        self.followed.is_some_and(|(first, last)| last.since(first) >= JOINING_MS)
    }

    /// Takes the region's time, which was `region_us` at a moment between `sent` and `received`.
    pub fn follow(&mut self, region_us: u64, sent: MonoMs, received: MonoMs) {
        let least = region_us.saturating_sub(micros(received));
        let most = region_us.saturating_sub(micros(sent)).max(least);
        let (first, last) = self.followed.unwrap_or((received, received));
        let offset_us = match self.offset_us {
            Some(offset_us) => {
                let right_us = offset_us.clamp(least, most);
                // This aggregator was suspended, or the time was a day off.
                let is_behind = right_us > offset_us.saturating_add(AHEAD_US);
                let is_unusable = right_us.abs_diff(offset_us) >= UNUSABLE_US;
                match self.is_shared() && !is_behind && !is_unusable {
                    true => {
                        let elapsed_us = received.since(last).saturating_mul(1_000);
                        toward(offset_us, right_us, CORRECTION_US.min(elapsed_us / FAST_PARTS))
                    }
                    false => right_us,
                }
            }
            None => least,
        };
        self.offset_us = Some(offset_us);
        self.read = self.read.max(received);
        self.followed = Some((first, received.max(last)));
    }
}

fn micros(at: MonoMs) -> u64 {
    at.0.saturating_mul(1_000)
}

fn offset_us(now: Now) -> u64 {
    now.unix.0.saturating_sub(now.mono.0).saturating_mul(1_000)
}

fn time_us(mono: MonoMs, offset_us: u64) -> u64 {
    micros(mono).saturating_add(offset_us)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const START_MS: u64 = 1_790_000_000_000;
    const HOUR_MS: u64 = 3_600_000;

    /// Machines whose clocks are ahead by some milliseconds, their aggregators, and the store.
    struct World {
        now_ms: u64,
        stored: Option<SharedTime>,
        store_ahead_ms: u64,
        aggregators: Vec<(RegionClock, u64)>,
    }

    impl World {
        fn new(ahead_ms: &[u64]) -> World {
            let aggregators = ahead_ms.iter().map(|ahead| (RegionClock::default(), *ahead)).collect();
            World { now_ms: 0, stored: None, store_ahead_ms: 0, aggregators }
        }

        fn machine(&self, at: usize) -> Now {
            // Monotonic clocks begin anywhere.
            let mono = MonoMs(self.now_ms + 1_000 * at as u64);
            Now { unix: UnixMs(START_MS + self.now_ms + self.aggregators[at].1), mono }
        }

        /// How far the time of an aggregator is ahead of the true time, in milliseconds.
        fn ahead(&mut self, at: usize) -> i64 {
            let machine = self.machine(at);
            let time = self.aggregators[at].0.at(machine).unix.0;
            time.cast_signed() - (START_MS + self.now_ms).cast_signed()
        }

        fn heartbeat(&mut self, at: usize) {
            let sent = self.machine(at);
            let proposal = self.aggregators[at].0.propose(sent);
            self.now_ms += 1;
            let store_us = (START_MS + self.now_ms + self.store_ahead_ms) * 1_000;
            let region_us = SharedTime::agree(&mut self.stored, &proposal, store_us);
            self.now_ms += 1;
            let received = self.machine(at).mono;
            self.aggregators[at].0.follow(region_us, sent.mono, received);
        }

        fn run(&mut self, seconds: u64) {
            for _ in 0..seconds {
                (0..self.aggregators.len()).for_each(|at| self.heartbeat(at));
                self.now_ms += 1_000 - 2 * self.aggregators.len() as u64;
            }
        }
    }

    #[test]
    fn a_step_of_a_machine_is_spread_over_a_thousand_times_its_length() {
        for store in [false, true] {
            let mut world = World::new(&[0]);
            world.ahead(0);
            world.run(if store { 5 } else { 0 });
            for step_ms in [10_000, 0] {
                world.aggregators[0].1 = step_ms;
                let before = world.ahead(0);
                for _ in 0..100 {
                    if store {
                        world.run(1);
                    } else {
                        world.now_ms += 1_000;
                    }
                    let ahead = world.ahead(0);
                    assert!(ahead.abs_diff(before) <= 110, "{ahead} after {before}");
                }
                let ahead = world.ahead(0);
                assert!(ahead.abs_diff(before) >= 80, "it moves: {ahead} after {before}");
            }
        }
    }

    #[test]
    fn a_time_that_is_a_day_off_is_replaced_alone_and_by_all_that_share_it() {
        let mut world = World::new(&[0]);
        world.ahead(0);
        world.aggregators[0].1 = 25 * HOUR_MS;
        assert_eq!(world.ahead(0), (25 * HOUR_MS).cast_signed());
        // A machine boots with a wrong clock, and others join it before that is set.
        let mut world = World::new(&[400 * 24 * HOUR_MS]);
        world.run(5);
        world.aggregators.push((RegionClock::default(), 0));
        world.run(1);
        world.aggregators[0].1 = 0;
        world.run(5);
        for at in 0..2 {
            assert!(world.ahead(at).abs_diff(0) <= 10, "{}", world.ahead(at));
        }
    }

    #[test]
    fn aggregators_of_machines_an_hour_apart_have_one_time() {
        let mut world = World::new(&[0, HOUR_MS]);
        world.heartbeat(0);
        world.heartbeat(1);
        for _ in 0..100 {
            world.run(10);
            let (one, two) = (world.ahead(0), world.ahead(1));
            assert!(one.abs_diff(two) <= 15, "{one}, {two}");
        }
        assert!(world.ahead(0).abs_diff(0) < 1_000, "the wrong one does not prevail: {}", world.ahead(0));
        // While the store is away, both continue together.
        let before = world.ahead(0);
        world.now_ms += HOUR_MS;
        let (one, two) = (world.ahead(0), world.ahead(1));
        assert!(one.abs_diff(before) <= 1 && one.abs_diff(two) <= 15, "{before}, {one}, {two}");
    }

    #[test]
    fn one_that_starts_takes_the_time_of_those_that_serve_also_after_all_have_ended() {
        let mut world = World::new(&[0]);
        world.run(5);
        world.aggregators[0].1 = HOUR_MS;
        world.run(5);
        world.now_ms += HOUR_MS;
        world.aggregators[0].0 = RegionClock::default();
        world.heartbeat(0);
        assert!(world.ahead(0).abs_diff(0) < 200, "{}", world.ahead(0));
        // A machine whose clock was never set joins a region that serves.
        world.run(5);
        world.aggregators.push((RegionClock::default(), 400 * 24 * HOUR_MS));
        world.heartbeat(1);
        world.run(5);
        let (one, two) = (world.ahead(0), world.ahead(1));
        assert!(one.abs_diff(two) < 20 && one.abs_diff(0) < 500, "{one} {two}");
    }

    #[test]
    fn steps_of_the_store_s_clock_and_a_lost_store_change_nothing() {
        let mut world = World::new(&[0, 0]);
        world.run(5);
        for step in 1..=3 {
            world.store_ahead_ms = step % 2 * 10 * HOUR_MS;
            // One starts just then.
            world.aggregators[1].0 = RegionClock::default();
            world.heartbeat(1);
            world.run(5);
            for at in 0..2 {
                assert!(world.ahead(at).abs_diff(0) <= 20, "{}", world.ahead(at));
            }
        }
        // A store without data: one whose machine is wrong is the first to write.
        world.stored = None;
        world.aggregators[1] = (RegionClock::default(), HOUR_MS);
        world.heartbeat(1);
        world.run(5);
        for at in 0..2 {
            assert!(world.ahead(at).abs_diff(0) <= 40, "{}", world.ahead(at));
        }
    }

    #[test]
    fn one_that_was_suspended_takes_the_time_of_the_others_at_once() {
        let mut world = World::new(&[0, 0, 0]);
        world.run(5);
        // Its monotonic clock stood still.
        let suspended = world.aggregators[1].0.offset_us.unwrap() - 600_000_000;
        world.aggregators[1].0.offset_us = Some(suspended);
        world.heartbeat(1);
        for _ in 0..5 {
            world.run(1);
            for at in 0..3 {
                assert!(world.ahead(at).abs_diff(0) <= 20, "{}", world.ahead(at));
            }
        }
    }

    #[test]
    fn a_heartbeat_that_the_store_executes_late_and_many_at_once_move_nothing() {
        let mut world = World::new(&[0, 0]);
        world.run(5);
        let sent = world.machine(0);
        let late = world.aggregators[0].0.propose(sent);
        world.now_ms += 10_000;
        SharedTime::agree(&mut world.stored, &late, (START_MS + world.now_ms) * 1_000);
        world.run(2);
        for at in 0..2 {
            assert!(world.ahead(at).abs_diff(0) <= 20, "{}", world.ahead(at));
        }
        let before = world.ahead(0);
        for _ in 0..200 {
            world.heartbeat(1);
            world.heartbeat(0);
        }
        assert!(world.ahead(0).abs_diff(before) <= 10, "{before}, {}", world.ahead(0));
    }
}
