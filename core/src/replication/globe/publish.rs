//! Publishes this region's use: at each interval all cells that are due, in one call.
//!
//! A marker row shows whether the table still holds what was published. If not, all of it is due again. If too many
//! cells of one namespace are due, the least used wait for the next interval.

use super::{allows, note, until};
use crate::model::schedule::{Interval, Schedule};
use crate::model::time::MonoMs;
use crate::region::exchange::Publication;
use crate::region::{Due, most_used};
use crate::replication::circuit_breaker::Traffic;
use crate::replication::failure::Failure;
use crate::replication::figures::add;
use crate::replication::{Access, Next};
use alloc::vec::Vec;

/// Most cells taken from the region in one step, since other tasks wait meanwhile.
const STEP_CELLS: usize = 4_096;

/// A call to the database. Its deadline is [`Schedule::global_timeout_ms`].
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// Return the incarnation of the table; then call [`Publisher::lived`].
    Incarnation,
    /// Raise these rows. Call [`stored`] for each part that was committed, and at the end [`Publisher::wrote`].
    Write(Vec<Publication>),
}

#[derive(Debug)]
enum Stage {
    /// The pause until the next interval is about to begin.
    Resting,
    Due,
    /// Collects the due cells. Stops once it has more than `most`.
    Collecting {
        all: Vec<Due>,
        most: u64,
    },
    /// Returns cells to the region, to wait for another interval.
    Leaving {
        rows: Vec<Publication>,
        done: usize,
        then: Then,
    },
}

#[derive(Debug)]
enum Then {
    Write(Vec<Publication>),
    Rest,
}

/// Runs for as long as the aggregator does.
#[derive(Debug)]
pub struct Publisher {
    schedule: Schedule,
    interval: Interval,
    incarnation: Option<u64>,
    stage: Stage,
}

impl Publisher {
    /// Begins at a random point of the interval after `now`; `random` is uniform.
    pub fn new(schedule: Schedule, now: MonoMs, random: u64) -> Publisher {
        let interval = Interval::new(schedule.publish_ms, schedule.jitter_percent, now, random);
        Publisher { schedule, interval, incarnation: None, stage: Stage::Resting }
    }

    /// What to do now; `random` is uniform.
    pub fn next(&mut self, access: &mut impl Access, random: u64) -> Next<Call> {
        loop {
            match core::mem::replace(&mut self.stage, Stage::Resting) {
                Stage::Resting => {
                    self.stage = Stage::Due;
                    return Next::Sleep(access.state(|_, now| until(&mut self.interval, now, random)));
                }
                Stage::Due => {
                    if access.state(|state, now| allows(state, Traffic::Own, now)) {
                        return Next::Call(Call::Incarnation);
                    }
                }
                Stage::Collecting { all, most } => {
                    if self.collect(access, all, most) {
                        return Next::Yield;
                    }
                }
                Stage::Leaving { rows, done, then } => {
                    let left = rows.get(done..).unwrap_or_default();
                    let step = left.get(..STEP_CELLS).unwrap_or(left);
                    if !step.is_empty() {
                        access.state(|state, _| state.region.publish_failed(step));
                        let done = done.saturating_add(step.len());
                        self.stage = Stage::Leaving { rows, done, then };
                        return Next::Yield;
                    }
                    match then {
                        Then::Write(rows) if !rows.is_empty() => return Next::Call(Call::Write(rows)),
                        Then::Write(_) => {
                            access.state(|state, now| state.figures.published_at = Some(now.mono));
                        }
                        Then::Rest => {}
                    }
                }
            }
        }
    }

    /// Takes the incarnation of the table. Returns true if the table was wiped; all cells are then due again.
    pub fn lived(&mut self, access: &mut impl Access, incarnation: Result<u64, Failure>) -> bool {
        let before = self.incarnation;
        self.incarnation = incarnation.ok().or(before);
        let is_wiped =
            incarnation.is_ok_and(|incarnation| before.is_some_and(|before| before != incarnation));
        let most = access.state(|state, now| {
            note(state, Traffic::Own, incarnation.is_ok(), now);
            if is_wiped {
                add(&mut state.figures.database_wipes, 1);
                state.region.forget_published();
            }
            state.region.stats(now.mono).windows
        });
        self.stage = match incarnation {
            Ok(_) => Stage::Collecting { all: Vec::new(), most },
            Err(_) => Stage::Resting,
        };
        is_wiped
    }

    /// Takes the result of writing `rows`. Rows that were reported to [`stored`] are not due any more and do not wait
    /// again.
    pub fn wrote(&mut self, access: &mut impl Access, rows: Vec<Publication>, result: Result<(), Failure>) {
        access.state(|state, now| {
            note(state, Traffic::Own, result.is_ok(), now);
            if result.is_ok() {
                state.figures.published_at = Some(now.mono);
            }
        });
        self.stage = Stage::Leaving { rows, done: 0, then: Then::Rest };
    }

    /// Takes a step of the due cells, so that no query waits for long. Returns true if there are more. A busy cell may
    /// come up more than once; therefore the number of cells is bounded.
    fn collect(&mut self, access: &mut impl Access, mut all: Vec<Due>, most: u64) -> bool {
        let (due, more) = access.state(|state, _| state.region.next_due(STEP_CELLS));
        all.extend(due);
        if more && all.len() as u64 <= most {
            self.stage = Stage::Collecting { all, most };
            return true;
        }
        let cap = self.schedule.namespace_cap;
        let choice = most_used(all, cap, |due| (&due.publication.key, due.utilisation));
        let rows: Vec<Publication> = choice.left.into_iter().map(|due| due.publication).collect();
        access.state(|state, _| add(&mut state.figures.publications_left, rows.len()));
        let then = Then::Write(choice.chosen.into_iter().map(|due| due.publication).collect());
        self.stage = Stage::Leaving { rows, done: 0, then };
        false
    }
}

/// Records that these rows were committed.
pub fn stored(access: &mut impl Access, rows: &[Publication]) {
    access.state(|state, _| state.region.published(rows));
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{NOW, ORIGIN, at, count, state};
    use super::*;
    use crate::model::wire::{FilterFrame, MAX_FRAME_CELLS, Report};
    use crate::replication::RegionState;
    use std::format;

    fn publisher(schedule: Schedule) -> Publisher {
        Publisher::new(schedule, NOW.mono, 0)
    }

    fn with_cells(cells: usize) -> RegionState {
        let mut state = state().with_database(Schedule::default().global_breaker, false);
        for from in (0..cells).step_by(MAX_FRAME_CELLS) {
            let to = cells.min(from + MAX_FRAME_CELLS);
            let counts: Vec<_> = (from..to).map(|key| count(&format!("i{key}"), 9)).collect();
            let report = Some(Report { id: 1, counts });
            state.take(ORIGIN, FilterFrame { report, ..FilterFrame::default() }, NOW).unwrap();
        }
        state
    }

    /// Advances to the read of the table's incarnation.
    fn ticks(publisher: &mut Publisher, state: &mut RegionState) {
        assert!(matches!(publisher.next(&mut at(state, 0), 0), Next::Sleep(_)));
        assert_eq!(publisher.next(&mut at(state, 0), 0), Next::Call(Call::Incarnation));
    }

    /// The rows to write, and how often other tasks could run.
    fn rows(publisher: &mut Publisher, state: &mut RegionState) -> (Vec<Publication>, usize) {
        for yields in 0.. {
            match publisher.next(&mut at(state, 0), 0) {
                Next::Yield => {}
                Next::Call(Call::Write(rows)) => return (rows, yields),
                other => panic!("{other:?}"),
            }
        }
        unreachable!()
    }

    #[test]
    fn all_due_cells_are_collected_in_steps_and_written_in_one_call() {
        let (mut state, mut publisher) = (with_cells(9_000), publisher(Schedule::default()));
        ticks(&mut publisher, &mut state);
        assert!(!publisher.lived(&mut at(&mut state, 0), Ok(1)));
        let (written, yields) = rows(&mut publisher, &mut state);
        assert_eq!((written.len(), yields), (9_000, 2));
        stored(&mut at(&mut state, 0), &written[..5_000]);
        publisher.wrote(&mut at(&mut state, 0), written, Err(Failure::Unavailable));
        assert_eq!(state.figures.published_at, None);
        for _ in 0..3 {
            assert_eq!(publisher.next(&mut at(&mut state, 0), 0), Next::Yield);
        }
        ticks(&mut publisher, &mut state);
        publisher.lived(&mut at(&mut state, 0), Ok(1));
        let (again, _) = rows(&mut publisher, &mut state);
        assert_eq!(again.len(), 4_000, "only what was not committed");
        stored(&mut at(&mut state, 0), &again);
        publisher.wrote(&mut at(&mut state, 0), again, Ok(()));
        assert!(state.figures.published_at.is_some());
    }

    #[test]
    fn all_cells_are_published_again_to_a_table_with_a_new_incarnation() {
        let (mut state, mut publisher) = (with_cells(2), publisher(Schedule::default()));
        for (incarnation, wiped, expected) in [(1, false, 2), (2, true, 2)] {
            ticks(&mut publisher, &mut state);
            assert_eq!(publisher.lived(&mut at(&mut state, 0), Ok(incarnation)), wiped);
            let (written, _) = rows(&mut publisher, &mut state);
            assert_eq!(written.len(), expected);
            stored(&mut at(&mut state, 0), &written);
            publisher.wrote(&mut at(&mut state, 0), written, Ok(()));
            assert_eq!(publisher.next(&mut at(&mut state, 0), 0), Next::Yield);
        }
        assert_eq!(state.figures.database_wipes, 1);
        ticks(&mut publisher, &mut state);
        publisher.lived(&mut at(&mut state, 0), Err(Failure::Timeout));
        assert!(
            matches!(publisher.next(&mut at(&mut state, 0), 0), Next::Sleep(_)),
            "nothing is written without a known incarnation"
        );
    }

    #[test]
    fn cells_above_the_namespace_cap_wait_and_a_failing_database_is_not_called() {
        let schedule = Schedule { namespace_cap: 3, ..Schedule::default() };
        let (mut state, mut publisher) = (with_cells(5), publisher(schedule));
        ticks(&mut publisher, &mut state);
        publisher.lived(&mut at(&mut state, 0), Ok(1));
        let (written, _) = rows(&mut publisher, &mut state);
        assert_eq!((written.len(), state.figures.publications_left), (3, 2));
        for _ in 0..3 {
            publisher.wrote(&mut at(&mut state, 0), Vec::new(), Err(Failure::Unavailable));
        }
        assert!(matches!(publisher.next(&mut at(&mut state, 0), 0), Next::Sleep(_)));
        assert!(matches!(publisher.next(&mut at(&mut state, 0), 0), Next::Sleep(_)), "the breaker is open");
    }
}
