//! When live controls are read: at an interval of their own, and at once after a message that they have changed.
//!
//! Such a message may be lost, and a read may fail; the next interval makes up for both.

use super::PREPARATION_MS;
use crate::model::schedule::{Interval, Schedule};
use crate::model::time::MonoMs;
use crate::replication::events::Event;
use crate::replication::{Access, Next};

/// Read the controls from the database, then call [`Reader::next`] again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The deadline in milliseconds.
    pub within_ms: u64,
}

/// Triggers one read, or reads for as long as the aggregator runs.
#[derive(Debug)]
pub struct Reader {
    within_ms: u64,
    /// `None` for a single read.
    interval: Option<Interval>,
    /// The next tick of the interval. A message in between does not move it.
    tick: MonoMs,
    is_due: bool,
}

impl Reader {
    /// Begins at a random point of the interval after `now`; `random` is uniform.
    pub fn new(schedule: Schedule, now: MonoMs, random: u64) -> Reader {
        let interval = Interval::new(schedule.import_ms, schedule.jitter_percent, now, random);
        Reader {
            within_ms: schedule.global_timeout_ms,
            interval: Some(interval),
            tick: MonoMs(0),
            is_due: false,
        }
    }

    /// For an aggregator that starts: a single read.
    pub fn once() -> Reader {
        Reader { within_ms: PREPARATION_MS, interval: None, tick: MonoMs(0), is_due: true }
    }

    /// What to do now; `random` is uniform.
    pub fn next(&mut self, access: &mut impl Access, random: u64) -> Next<Read> {
        if core::mem::take(&mut self.is_due) {
            return Next::Call(Read { within_ms: self.within_ms });
        }
        let Some(interval) = &mut self.interval else { return Next::Over };
        self.is_due = true;
        let now = access.state(|_, now| now.mono);
        if self.tick <= now {
            self.tick = interval.next(now, random);
        }
        Next::Wait { events: Event::Controls.into(), at_most_ms: Some(self.tick.since(now)) }
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
        for _ in 0..3 {
            let wait = reader.next(&mut at(&mut state, 0), 0);
            let Next::Wait { events, at_most_ms: Some(ms) } = wait else { panic!("{wait:?}") };
            assert!(
                events.has(Event::Controls) && ms <= 12_000,
                "a message does not postpone the interval: {ms}"
            );
            assert_eq!(reader.next(&mut at(&mut state, 0), 0), Next::Call(Read { within_ms: 10_000 }));
        }
        let mut once = Reader::once();
        assert_eq!(once.next(&mut at(&mut state, 0), 0), Next::Call(Read { within_ms: PREPARATION_MS }));
        assert_eq!(once.next(&mut at(&mut state, 0), 0), Next::Over);
    }
}
