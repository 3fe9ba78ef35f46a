//! When live controls are read: at an interval of their own, and at once after a message that they have changed.
//!
//! Such a message may be lost, and a read may fail; the next interval makes up for both. A database that fails is read less
//! often.

use super::PREPARATION_MS;
use crate::model::schedule::{Interval, Schedule};
use crate::model::time::MonoMs;
use crate::replication::events::Event;
use crate::replication::{Access, Next};

/// Read the controls from the database, then call [`Reader::read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The deadline in milliseconds.
    pub within_ms: u64,
    /// Compare the table with what was read, though the edition is the one that was read: rows may have been deleted beside it.
    pub compares: bool,
}

/// One reading of so many compares the table, whatever the edition is.
pub const READINGS_A_COMPARISON: u32 = 10;

/// Triggers one read, or reads for as long as the aggregator runs.
#[derive(Debug)]
pub struct Reader {
    within_ms: u64,
    /// `None` for a single read.
    interval: Option<Interval>,
    /// The next tick of the interval. A message in between does not move it.
    tick: MonoMs,
    is_due: bool,
    /// After a failure, the time until the next read.
    rest_ms: u64,
    has_failed: bool,
    /// Readings until the next one that compares.
    until_comparison: u32,
}

impl Reader {
    /// Begins at a random point of the interval after `now`; `random` is uniform.
    pub fn new(schedule: Schedule, now: MonoMs, random: u64) -> Reader {
        let interval = Interval::new(schedule.controls_ms, schedule.jitter_percent, now, random);
        Reader {
            within_ms: schedule.global_timeout_ms,
            interval: Some(interval),
            tick: MonoMs(0),
            is_due: false,
            rest_ms: schedule.publish_ms,
            has_failed: false,
            until_comparison: 0,
        }
    }

    /// For an aggregator that starts: a single read.
    pub fn once() -> Reader {
        Reader {
            within_ms: PREPARATION_MS,
            interval: None,
            tick: MonoMs(0),
            is_due: true,
            rest_ms: 0,
            has_failed: false,
            until_comparison: 0,
        }
    }

    /// What to do now; `random` is uniform.
    pub fn next(&mut self, access: &mut impl Access, random: u64) -> Next<Read> {
        if core::mem::take(&mut self.is_due) {
            let compares = self.until_comparison == 0;
            return Next::Call(Read { within_ms: self.within_ms, compares });
        }
        let Some(interval) = &mut self.interval else { return Next::Over };
        self.is_due = true;
        let now = access.state(|_, now| now.mono);
        if self.tick <= now {
            let tick = interval.next(now, random);
            self.tick = if self.has_failed { now.after(self.rest_ms) } else { tick };
        }
        Next::Wait { events: Event::Controls.into(), at_most_ms: Some(self.tick.since(now)) }
    }

    /// Takes whether the controls were read.
    pub fn read(&mut self, went_well: bool) {
        self.has_failed = !went_well;
        if went_well {
            let left = self.until_comparison.checked_sub(1);
            self.until_comparison = left.unwrap_or(READINGS_A_COMPARISON.saturating_sub(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{NOW, at, state};
    use super::*;

    #[test]
    fn controls_are_read_at_each_interval_and_at_each_change() {
        let mut state = state();
        let mut reader = Reader::new(Schedule::default(), NOW.mono, 0);
        for number in 0..21 {
            let wait = reader.next(&mut at(&mut state, 0), 0);
            let Next::Wait { events, at_most_ms: Some(ms) } = wait else { panic!("{wait:?}") };
            assert!(
                events.has(Event::Controls) && ms <= 1_200,
                "a message does not postpone the interval: {ms}"
            );
            let call = Read { within_ms: 10_000, compares: [0, 10, 20].contains(&number) };
            assert_eq!(reader.next(&mut at(&mut state, 0), 0), Next::Call(call));
            reader.read(true);
        }
        let mut once = Reader::once();
        let call = Read { within_ms: PREPARATION_MS, compares: true };
        assert_eq!(once.next(&mut at(&mut state, 0), 0), Next::Call(call));
        assert_eq!(once.next(&mut at(&mut state, 0), 0), Next::Over);
    }

    #[test]
    fn a_database_that_fails_is_read_less_often() {
        let mut state = state();
        let mut reader = Reader::new(Schedule::default(), NOW.mono, 0);
        let (mut now_ms, mut is_first) = (0, true);
        for (went_well, longest_ms) in
            [(false, 1_200), (false, 10_000), (true, 10_000), (true, 1_200), (false, 1_200)]
        {
            let Next::Wait { at_most_ms: Some(ms), .. } = reader.next(&mut at(&mut state, now_ms), 0) else {
                panic!("it waits for the next tick")
            };
            assert!(ms <= longest_ms && (longest_ms < 10_000 || ms == longest_ms), "{ms} of {longest_ms}");
            now_ms += ms;
            let next = reader.next(&mut at(&mut state, now_ms), 0);
            let Next::Call(Read { compares, .. }) = next else { panic!("{next:?}") };
            assert_eq!(compares, is_first, "a comparison that fails is repeated");
            is_first &= !went_well;
            reader.read(went_well);
        }
    }
}
