//! The others' use comes in: on each beat the sum of all other regions, cell by cell.
//!
//! Leaves to others: the query (`aggregator`), merging and who is pushed to (`region`).

use super::{PREPARATION_MS, allows, note, until};
use crate::model::cadence::{Beat, Cadence};
use crate::model::time::{MonoMs, UnixMs};
use crate::region::exchange::Stored;
use crate::replication::bells::Bell;
use crate::replication::desk::Desk;
use crate::replication::failure::Failure;
use crate::replication::figures::add;
use crate::replication::guard::Traffic;
use crate::replication::{Access, Next};
use alloc::vec::Vec;

/// Most cells merged while others wait for the region: each is told to every Envoy.
const STEP_CELLS: usize = 256;

/// What the database is asked for: the sum of all other regions, cell by cell; then [`Importer::imported`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Import {
    /// How long it may take, in milliseconds.
    pub within_ms: u64,
}

#[derive(Debug)]
enum Stage {
    /// The pause until the next beat is to begin.
    Resting,
    Struck,
    Merging {
        cells: Vec<Stored>,
        done: usize,
    },
}

/// Imports once, or for as long as the aggregator runs.
#[derive(Debug)]
pub struct Importer {
    within_ms: u64,
    /// None if it imports but once.
    beat: Option<Beat>,
    stage: Stage,
}

impl Importer {
    /// Begins somewhere in the interval after `now`; `random` is uniform.
    pub fn new(cadence: Cadence, now: MonoMs, random: u64) -> Importer {
        let beat = Beat::new(cadence.import_ms, cadence.jitter_percent, now, random);
        Importer { within_ms: cadence.global_timeout_ms, beat: Some(beat), stage: Stage::Resting }
    }

    /// For an aggregator that starts.
    pub fn once() -> Importer {
        Importer { within_ms: PREPARATION_MS, beat: None, stage: Stage::Struck }
    }

    /// What to do now; `random` is uniform.
    pub fn next(&mut self, access: &mut impl Access, random: u64) -> Next<Import> {
        loop {
            match core::mem::replace(&mut self.stage, Stage::Resting) {
                Stage::Resting => {
                    let Some(beat) = &mut self.beat else { return Next::Over };
                    self.stage = Stage::Struck;
                    return Next::Sleep(access.desk(|_, now| until(beat, now, random)));
                }
                Stage::Struck => {
                    let is_first = self.beat.is_none();
                    if is_first || access.desk(|desk, now| allows(desk, Traffic::Import, now)) {
                        return Next::Call(Import { within_ms: self.within_ms });
                    }
                }
                Stage::Merging { cells, done } => {
                    let left = cells.get(done..).unwrap_or_default();
                    let step = left.get(..STEP_CELLS).unwrap_or(left);
                    if !step.is_empty() {
                        access.desk(|desk, now| merge(desk, step, now.unix));
                        let done = done.saturating_add(step.len());
                        self.stage = Stage::Merging { cells, done };
                        return Next::Yield;
                    }
                    access.desk(|desk, now| desk.figures.imported_at = Some(now.mono));
                }
            }
        }
    }

    /// Takes what came.
    pub fn imported(&mut self, access: &mut impl Access, result: Result<Vec<Stored>, Failure>) {
        access.desk(|desk, now| note(desk, Traffic::Import, result.is_ok(), now));
        self.stage = match result {
            Ok(cells) => Stage::Merging { cells, done: 0 },
            Err(_) => Stage::Resting,
        };
    }
}

fn merge(desk: &mut Desk, cells: &[Stored], now: UnixMs) {
    for cell in cells {
        let figures = &mut desk.figures;
        match desk.region.import(&cell.key, cell.sequence, cell.count, now) {
            Ok(created) => {
                add(&mut figures.imports_merged, 1);
                add(&mut figures.imports_created, usize::from(created));
            }
            Err(_) => add(&mut figures.imports_refused, 1),
        }
    }
    desk.ring(Bell::Push);
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{NOW, SEQUENCE, at, desk, key};
    use super::*;
    use std::format;
    use std::vec;

    fn cells(count: usize) -> Vec<Stored> {
        (0..count).map(|i| Stored { key: key(&format!("i{i}")), sequence: SEQUENCE, count: 4 }).collect()
    }

    #[test]
    fn each_beat_brings_the_others_use_in_steps() {
        let mut desk = desk().with_database(Cadence::default().global_breaker, false);
        let mut importer = Importer::new(Cadence::default(), NOW.mono, 0);
        let mut brought = cells(2 * STEP_CELLS + 1);
        brought[7].sequence += 9;
        for created in [2 * STEP_CELLS as u64, 0] {
            let before = desk.figures.imports_created;
            assert!(matches!(importer.next(&mut at(&mut desk, 0), 0), Next::Sleep(_)));
            let within_ms = Cadence::default().global_timeout_ms;
            assert_eq!(importer.next(&mut at(&mut desk, 0), 0), Next::Call(Import { within_ms }));
            importer.imported(&mut at(&mut desk, 0), Ok(brought.clone()));
            for _ in 0..3 {
                assert_eq!(importer.next(&mut at(&mut desk, 0), 0), Next::Yield);
            }
            assert!(desk.take_bells().has(Bell::Push));
            assert_eq!(desk.figures.imports_created - before, created);
        }
        let figures = &desk.figures;
        assert_eq!((figures.imports_merged, figures.imports_refused), (4 * STEP_CELLS as u64, 2));
    }

    #[test]
    fn a_database_that_fails_is_left_alone_but_asked_once_at_the_start() {
        let mut desk = desk().with_database(Cadence::default().global_breaker, false);
        for _ in 0..4 {
            let mut once = Importer::once();
            assert_eq!(once.next(&mut at(&mut desk, 0), 0), Next::Call(Import { within_ms: PREPARATION_MS }));
            once.imported(&mut at(&mut desk, 0), Err(Failure::Away));
            assert_eq!(once.next(&mut at(&mut desk, 0), 0), Next::Over);
        }
        assert_eq!(desk.figures.imported_at, None);
        let mut importer = Importer::new(Cadence::default(), NOW.mono, 0);
        for _ in 0..3 {
            assert!(matches!(importer.next(&mut at(&mut desk, 0), 0), Next::Sleep(_)));
        }
        let mut once = Importer::once();
        once.next(&mut at(&mut desk, 0), 0);
        once.imported(&mut at(&mut desk, 0), Ok(vec![]));
        assert_eq!(once.next(&mut at(&mut desk, 0), 0), Next::Over);
        assert!(desk.figures.imported_at.is_some());
    }
}
