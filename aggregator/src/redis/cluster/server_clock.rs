//! Predicts a Redis server's clock, so that a forward step of the clock can be distinguished from elapsed time.
//!
//! Every answer with a server's time bounds the offset between that clock and the aggregator's monotonic clock, because
//! the server read its clock between the request and the answer. Between answers the bounds widen, because clocks
//! drift. A time outside the bounds is a step, and each step ends an era of the clock. An entry of an earlier era seems
//! older than it is, by the sum of the forward steps since, less the backward steps. This sum is stored for each era,
//! together with the times shown in that era, by which an entry's era is identified.

use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::Instant;
use weir_core::model::key::MAX_DURATION_MS;

/// Most eras stored. Beyond that, the two oldest are merged into one with the larger correction.
const MAX_ERAS: usize = 8;
/// An era is dropped once no log entry can be as old.
const ERA_KEPT_US: u64 = (MAX_DURATION_MS + 24 * 3_600 * 1_000) * 1_000;
/// A clock that is being slewed runs too fast or too slow by at most one part in this many.
const DRIFT_PARTS: u64 = 1_000;

/// A span between two steps of a server's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::redis) struct Era {
    /// The earliest and the latest time that the clock showed, in microseconds.
    pub(in crate::redis) first_us: u64,
    pub(in crate::redis) last_us: u64,
    /// Sum of the forward steps since the era, less the backward steps, in microseconds.
    pub(in crate::redis) ahead_us: i64,
    /// When the era ended, by the aggregator's monotonic clock.
    over_us: u64,
}

/// The tracked state of one server's clock.
#[derive(Debug)]
pub(in crate::redis) struct ServerClock {
    began: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    seen: Option<Seen>,
    /// The earliest time shown in the current era.
    first_us: u64,
    /// Ended eras, oldest first.
    eras: Vec<Era>,
}

/// Bounds of the server's clock minus the aggregator's clock, in microseconds, valid at `at_us`.
#[derive(Clone, Copy, Debug)]
struct Seen {
    at_us: u64,
    least: u64,
    most: u64,
}

impl ServerClock {
    pub(in crate::redis) fn new() -> ServerClock {
        ServerClock { began: Instant::now(), state: Mutex::default() }
    }

    /// The latest time that the server's clock should show at `moment`; `None` before the first observation.
    pub(in crate::redis) fn latest_us(&self, moment: Instant) -> Option<u64> {
        let now = self.us(Instant::now());
        let seen = self.state.lock().seen.map(|seen| seen.after(now));
        seen.map(|seen| seen.most.saturating_add(self.us(moment)))
    }

    /// The eras whose entries seem older than they are.
    pub(in crate::redis) fn eras(&self) -> Vec<Era> {
        self.state.lock().eras.iter().filter(|era| era.ahead_us > 0).copied().collect()
    }

    /// Records that the server's clock showed between `shown_us` and `shown_us + coarse_us` at some point between
    /// `sent` and `received`. Returns the size of a detected forward step.
    pub(in crate::redis) fn showed(
        &self,
        shown_us: u64,
        coarse_us: u64,
        sent: Instant,
        received: Instant,
    ) -> Option<Duration> {
        let (sent, received) = (self.us(sent), self.us(received));
        self.state.lock().showed(shown_us, coarse_us, sent, received).map(Duration::from_micros)
    }

    fn us(&self, moment: Instant) -> u64 {
        u64::try_from(moment.saturating_duration_since(self.began).as_micros()).unwrap_or(u64::MAX)
    }
}

impl Seen {
    fn after(self, at_us: u64) -> Seen {
        let drift = at_us.saturating_sub(self.at_us) / DRIFT_PARTS + 1;
        let at_us = self.at_us.max(at_us);
        Seen { at_us, least: self.least.saturating_sub(drift), most: self.most.saturating_add(drift) }
    }
}

impl State {
    fn showed(&mut self, shown: u64, coarse: u64, sent: u64, received: u64) -> Option<u64> {
        let latest = shown.saturating_add(coarse);
        let fresh = Seen {
            at_us: received,
            least: shown.saturating_sub(received),
            most: latest.saturating_sub(sent),
        };
        let Some(before) = self.seen.map(|seen| seen.after(received)) else {
            self.seen = Some(fresh);
            return None;
        };
        if fresh.least <= before.most && before.least <= fresh.most {
            let at_us = before.at_us;
            let (least, most) = (before.least.max(fresh.least), before.most.min(fresh.most));
            self.seen = Some(Seen { at_us, least, most });
            return None;
        }
        let last_seen = self.seen.map_or(received, |seen| seen.at_us);
        let ahead = fresh.most.cast_signed().saturating_sub(before.least.cast_signed());
        self.end_era(before.most.saturating_add(received), ahead, received);
        self.first_us = fresh.least.saturating_add(last_seen);
        self.seen = Some(fresh);
        u64::try_from(ahead).ok()
    }

    fn end_era(&mut self, last_us: u64, ahead: i64, now: u64) {
        self.eras.retain(|era| now.saturating_sub(era.over_us) < ERA_KEPT_US);
        self.eras.push(Era { first_us: self.first_us, last_us, ahead_us: 0, over_us: now });
        for era in &mut self.eras {
            era.ahead_us = era.ahead_us.saturating_add(ahead);
        }
        if self.eras.len() > MAX_ERAS {
            let oldest = self.eras.remove(0);
            if let Some(next) = self.eras.first_mut() {
                next.first_us = next.first_us.min(oldest.first_us);
                next.last_us = next.last_us.max(oldest.last_us);
                next.ahead_us = next.ahead_us.max(oldest.ahead_us);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400_000_000;

    #[test]
    fn a_steady_clock_never_steps_however_long_answers_take() {
        let mut state = State::default();
        let mut now = 0;
        for round in 0..1_000_u64 {
            let (to, back) = (round * 7 % 300, round * 13 % 90_000);
            // Half a part in a thousand too fast.
            let shown = DAY + (now + to) + (now + to) / 2_000;
            assert_eq!(state.showed(shown / 1_000 * 1_000, 999, now, now + to + back), None);
            now += to + back + 100_000;
            let latest = state.seen.unwrap().after(now).most + now;
            assert!(latest >= DAY + now + now / 2_000 && latest < DAY + now + now / 2_000 + 2_000, "{round}");
        }
    }

    #[test]
    fn each_era_is_ahead_by_the_steps_since_it() {
        const STEPS: [i64; 6] = [3_600, -60, -3_600, 5, 60, -1];
        const SECOND: u64 = 1_000_000;
        let (mut state, mut offset, mut now) = (State::default(), 0_i64, 0);
        let mut offsets = Vec::new();
        for step in STEPS.map(Some).into_iter().chain([None]) {
            for _ in 0..10 {
                now += SECOND / 10;
                let shown = (DAY + now + 200).saturating_add_signed(offset * 1_000_000);
                state.showed(shown, 0, now, now + 400);
            }
            offsets.push((offset, (DAY + now).saturating_add_signed(offset * 1_000_000)));
            offset += step.unwrap_or(0);
        }
        let last = offsets.pop().unwrap().0;
        assert_eq!(state.eras.len(), STEPS.len());
        for (era, (offset, shown)) in state.eras.iter().zip(offsets) {
            let error = era.ahead_us - (last - offset) * 1_000_000;
            assert!((0..20_000).contains(&error), "the correction must never be too small: {era:?}, {error}");
            assert!(era.first_us <= shown - 9 * SECOND / 10 && era.last_us >= shown, "{era:?}");
            let width = era.last_us - shown;
            assert!(
                width < 2 * SECOND / 10 && (era.first_us == 0 || shown - era.first_us < 12 * SECOND / 10)
            );
        }
    }

    #[test]
    fn many_eras_are_few() {
        let mut state = State::default();
        for round in 0..100 {
            state.showed(DAY + round * 3_000_000, 0, round * 1_000_000, round * 1_000_000);
        }
        assert_eq!(state.eras.len(), MAX_ERAS);
        assert_eq!((state.eras[0].first_us, state.eras[0].ahead_us / 1_000_000), (0, 2 * 99));
        state.showed(0, 0, ERA_KEPT_US + DAY, ERA_KEPT_US + DAY);
        assert_eq!(state.eras.len(), 1);
    }
}
