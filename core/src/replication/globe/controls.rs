//! When live controls are read: on a interval of its own, and at once when somebody says that they changed.
//!
//! Such a word may be lost, and so may be a reading; the next interval makes good for both.
//!
//! Leaves to others: reading (`aggregator`), what is read and believed (`control::book`).

use super::PREPARATION_MS;
use crate::model::schedule::{Interval, Schedule};
use crate::model::time::MonoMs;
use crate::replication::events::Event;
use crate::replication::{Access, Next};

/// Have the database read, then ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// How long it may take, in milliseconds.
    pub within_ms: u64,
}

/// Has controls read once, or for as long as the aggregator runs.
#[derive(Debug)]
pub struct Reader {
    within_ms: u64,
    /// None if it reads but once.
    interval: Option<Interval>,
    /// The interval's next tick; a word in between does not move it.
    tick: MonoMs,
    is_due: bool,
}

impl Reader {
    /// Begins somewhere in the interval after `now`; `random` is uniform.
    pub fn new(schedule: Schedule, now: MonoMs, random: u64) -> Reader {
        let interval = Interval::new(schedule.import_ms, schedule.jitter_percent, now, random);
        Reader {
            within_ms: schedule.global_timeout_ms,
            interval: Some(interval),
            tick: MonoMs(0),
            is_due: false,
        }
    }

    /// For an aggregator that starts.
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
    fn each_interval_or_word_of_a_change_is_a_reading() {
        let mut state = state();
        let mut reader = Reader::new(Schedule::default(), NOW.mono, 0);
        for _ in 0..3 {
            let wait = reader.next(&mut at(&mut state, 0), 0);
            let Next::Wait { events, at_most_ms: Some(ms) } = wait else { panic!("{wait:?}") };
            assert!(
                events.has(Event::Controls) && ms <= 12_000,
                "a word does not put the interval off: {ms}"
            );
            assert_eq!(reader.next(&mut at(&mut state, 0), 0), Next::Call(Read { within_ms: 10_000 }));
        }
        let mut once = Reader::once();
        assert_eq!(once.next(&mut at(&mut state, 0), 0), Next::Call(Read { within_ms: PREPARATION_MS }));
        assert_eq!(once.next(&mut at(&mut state, 0), 0), Next::Over);
    }
}
