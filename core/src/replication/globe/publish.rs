//! This region's use goes out: on each beat all cells that are due, in one go.
//!
//! A sentinel row tells whether the table still holds what was published; if not, all of it is due again. Too much of
//! one namespace waits for the next beat, the least used first.
//!
//! Leaves to others: which cells are due (`region`), statements and retries (`aggregator`).

use super::{allows, note, until};
use crate::model::cadence::{Beat, Cadence};
use crate::model::time::MonoMs;
use crate::region::exchange::Publication;
use crate::region::{Due, most_used};
use crate::replication::failure::Failure;
use crate::replication::figures::add;
use crate::replication::guard::Traffic;
use crate::replication::{Access, Next};
use alloc::vec::Vec;

/// Most cells taken from the region while others wait for it.
const STEP_CELLS: usize = 4_096;

/// What the database is asked to do. It has [`Cadence::global_timeout_ms`].
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// Say which life the table has; then [`Publisher::lived`].
    Life,
    /// Raise these; [`stored`] for each part that stands, and in the end [`Publisher::wrote`].
    Write(Vec<Publication>),
}

#[derive(Debug)]
enum Stage {
    /// The pause until the next beat is to begin.
    Resting,
    Struck,
    /// All that is due is taken, but not much more than so many cells.
    Collecting {
        all: Vec<Due>,
        most: u64,
    },
    /// Some are to wait again.
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

/// Publishes for as long as the aggregator runs.
#[derive(Debug)]
pub struct Publisher {
    cadence: Cadence,
    beat: Beat,
    life: Option<u64>,
    stage: Stage,
}

impl Publisher {
    /// Begins somewhere in the interval after `now`; `random` is uniform.
    pub fn new(cadence: Cadence, now: MonoMs, random: u64) -> Publisher {
        let beat = Beat::new(cadence.publish_ms, cadence.jitter_percent, now, random);
        Publisher { cadence, beat, life: None, stage: Stage::Resting }
    }

    /// What to do now; `random` is uniform.
    pub fn next(&mut self, access: &mut impl Access, random: u64) -> Next<Call> {
        loop {
            match core::mem::replace(&mut self.stage, Stage::Resting) {
                Stage::Resting => {
                    self.stage = Stage::Struck;
                    return Next::Sleep(access.desk(|_, now| until(&mut self.beat, now, random)));
                }
                Stage::Struck => {
                    if access.desk(|desk, now| allows(desk, Traffic::Own, now)) {
                        return Next::Call(Call::Life);
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
                        access.desk(|desk, _| desk.region.publish_failed(step));
                        let done = done.saturating_add(step.len());
                        self.stage = Stage::Leaving { rows, done, then };
                        return Next::Yield;
                    }
                    match then {
                        Then::Write(rows) if !rows.is_empty() => return Next::Call(Call::Write(rows)),
                        Then::Write(_) => {
                            access.desk(|desk, now| desk.figures.published_at = Some(now.mono));
                        }
                        Then::Rest => {}
                    }
                }
            }
        }
    }

    /// Takes whether the table is there. True if it was wiped: all is due again.
    pub fn lived(&mut self, access: &mut impl Access, life: Result<u64, Failure>) -> bool {
        let before = self.life;
        self.life = life.ok().or(before);
        let is_wiped = life.is_ok_and(|life| before.is_some_and(|before| before != life));
        let most = access.desk(|desk, now| {
            note(desk, Traffic::Own, life.is_ok(), now);
            if is_wiped {
                add(&mut desk.figures.database_wipes, 1);
                desk.region.forget_published();
            }
            desk.region.stats(now.mono).windows
        });
        self.stage = match life {
            Ok(_) => Stage::Collecting { all: Vec::new(), most },
            Err(_) => Stage::Resting,
        };
        is_wiped
    }

    /// Takes how the writing of `rows` ended. What stands in the table by now is no longer worth publishing and does not
    /// wait again.
    pub fn wrote(&mut self, access: &mut impl Access, rows: Vec<Publication>, result: Result<(), Failure>) {
        access.desk(|desk, now| {
            note(desk, Traffic::Own, result.is_ok(), now);
            if result.is_ok() {
                desk.figures.published_at = Some(now.mono);
            }
        });
        self.stage = Stage::Leaving { rows, done: 0, then: Then::Rest };
    }

    /// Takes some of all that is due, so that no consult waits for long; true if there is more. A busy cell may come more
    /// than once, so there is an end to it.
    fn collect(&mut self, access: &mut impl Access, mut all: Vec<Due>, most: u64) -> bool {
        let (due, more) = access.desk(|desk, _| desk.region.next_due(STEP_CELLS));
        all.extend(due);
        if more && all.len() as u64 <= most {
            self.stage = Stage::Collecting { all, most };
            return true;
        }
        let cap = self.cadence.namespace_cap;
        let choice = most_used(all, cap, |due| (&due.publication.key, due.utilisation));
        let rows: Vec<Publication> = choice.left.into_iter().map(|due| due.publication).collect();
        access.desk(|desk, _| add(&mut desk.figures.publications_left, rows.len()));
        let then = Then::Write(choice.chosen.into_iter().map(|due| due.publication).collect());
        self.stage = Stage::Leaving { rows, done: 0, then };
        false
    }
}

/// These stand in the table now.
pub fn stored(access: &mut impl Access, rows: &[Publication]) {
    access.desk(|desk, _| desk.region.published(rows));
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{NOW, ORIGIN, at, count, desk};
    use super::*;
    use crate::model::wire::{FilterFrame, MAX_FRAME_CELLS, Report};
    use crate::replication::Desk;
    use std::format;

    fn publisher(cadence: Cadence) -> Publisher {
        Publisher::new(cadence, NOW.mono, 0)
    }

    fn with_cells(cells: usize) -> Desk {
        let mut desk = desk().with_database(Cadence::default().global_breaker, false);
        for from in (0..cells).step_by(MAX_FRAME_CELLS) {
            let to = cells.min(from + MAX_FRAME_CELLS);
            let counts: Vec<_> = (from..to).map(|key| count(&format!("i{key}"), 9)).collect();
            let report = Some(Report { id: 1, counts });
            desk.take(ORIGIN, FilterFrame { report, ..FilterFrame::default() }, NOW).unwrap();
        }
        desk
    }

    /// To the look at the life of the table.
    fn strikes(publisher: &mut Publisher, desk: &mut Desk) {
        assert!(matches!(publisher.next(&mut at(desk, 0), 0), Next::Sleep(_)));
        assert_eq!(publisher.next(&mut at(desk, 0), 0), Next::Call(Call::Life));
    }

    /// What is written, and how often others had their turn.
    fn rows(publisher: &mut Publisher, desk: &mut Desk) -> (Vec<Publication>, usize) {
        for yields in 0.. {
            match publisher.next(&mut at(desk, 0), 0) {
                Next::Yield => {}
                Next::Call(Call::Write(rows)) => return (rows, yields),
                other => panic!("{other:?}"),
            }
        }
        unreachable!()
    }

    #[test]
    fn all_that_is_due_goes_in_one_call_collected_in_steps() {
        let (mut desk, mut publisher) = (with_cells(9_000), publisher(Cadence::default()));
        strikes(&mut publisher, &mut desk);
        assert!(!publisher.lived(&mut at(&mut desk, 0), Ok(1)));
        let (written, yields) = rows(&mut publisher, &mut desk);
        assert_eq!((written.len(), yields), (9_000, 2));
        stored(&mut at(&mut desk, 0), &written[..5_000]);
        publisher.wrote(&mut at(&mut desk, 0), written, Err(Failure::Away));
        assert_eq!(desk.figures.published_at, None);
        for _ in 0..3 {
            assert_eq!(publisher.next(&mut at(&mut desk, 0), 0), Next::Yield);
        }
        strikes(&mut publisher, &mut desk);
        publisher.lived(&mut at(&mut desk, 0), Ok(1));
        let (again, _) = rows(&mut publisher, &mut desk);
        assert_eq!(again.len(), 4_000, "only what does not stand there");
        stored(&mut at(&mut desk, 0), &again);
        publisher.wrote(&mut at(&mut desk, 0), again, Ok(()));
        assert!(desk.figures.published_at.is_some());
    }

    #[test]
    fn a_table_that_lost_its_life_gets_all_again() {
        let (mut desk, mut publisher) = (with_cells(2), publisher(Cadence::default()));
        for (life, wiped, expected) in [(1, false, 2), (2, true, 2)] {
            strikes(&mut publisher, &mut desk);
            assert_eq!(publisher.lived(&mut at(&mut desk, 0), Ok(life)), wiped);
            let (written, _) = rows(&mut publisher, &mut desk);
            assert_eq!(written.len(), expected);
            stored(&mut at(&mut desk, 0), &written);
            publisher.wrote(&mut at(&mut desk, 0), written, Ok(()));
            assert_eq!(publisher.next(&mut at(&mut desk, 0), 0), Next::Yield);
        }
        assert_eq!(desk.figures.database_wipes, 1);
        strikes(&mut publisher, &mut desk);
        publisher.lived(&mut at(&mut desk, 0), Err(Failure::Timeout));
        assert!(
            matches!(publisher.next(&mut at(&mut desk, 0), 0), Next::Sleep(_)),
            "nothing is written blindly"
        );
    }

    #[test]
    fn too_much_of_a_namespace_waits_and_a_database_that_fails_is_left_alone() {
        let cadence = Cadence { namespace_cap: 3, ..Cadence::default() };
        let (mut desk, mut publisher) = (with_cells(5), publisher(cadence));
        strikes(&mut publisher, &mut desk);
        publisher.lived(&mut at(&mut desk, 0), Ok(1));
        let (written, _) = rows(&mut publisher, &mut desk);
        assert_eq!((written.len(), desk.figures.publications_left), (3, 2));
        for _ in 0..3 {
            publisher.wrote(&mut at(&mut desk, 0), Vec::new(), Err(Failure::Away));
        }
        assert!(matches!(publisher.next(&mut at(&mut desk, 0), 0), Next::Sleep(_)));
        assert!(matches!(publisher.next(&mut at(&mut desk, 0), 0), Next::Sleep(_)), "the breaker is open");
    }
}
