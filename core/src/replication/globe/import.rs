//! Imports the other regions' use: once a minute all that they have published, region by region.
//!
//! Packets (`sync`) bring the same rows within a second. This repairs what a packet may have missed, such as rows of aggregators of an
//! earlier version, and it may read a replica.

use super::{PREPARATION_MS, allows, note, until};
use crate::model::schedule::{Interval, Schedule};
use crate::model::time::{MonoMs, Now};
use crate::region::exchange::{Stored, StoredRegion};
use crate::replication::circuit_breaker::Traffic;
use crate::replication::events::Event;
use crate::replication::failure::Failure;
use crate::replication::figures::add;
use crate::replication::state::RegionState;
use crate::replication::{Access, Next};
use alloc::vec::Vec;

/// Most cells merged in one step, since other tasks wait meanwhile: each is pushed to every Envoy.
const STEP_CELLS: usize = 256;

/// A call to the database: return all cells of the other regions; then call [`Importer::imported`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Import {
    /// The deadline in milliseconds.
    pub within_ms: u64,
}

#[derive(Debug)]
enum Stage {
    /// The pause until the next interval is about to begin.
    Resting,
    Due,
    Merging(Merging),
}

/// Imports once, or for as long as the aggregator runs.
#[derive(Debug)]
pub struct Importer {
    within_ms: u64,
    /// `None` for a single import.
    interval: Option<Interval>,
    stage: Stage,
}

impl Importer {
    /// Begins at a random point of the interval after `now`; `random` is uniform.
    pub fn new(schedule: Schedule, now: MonoMs, random: u64) -> Importer {
        let interval = Interval::new(schedule.import_ms, schedule.jitter_percent, now, random);
        Importer { within_ms: schedule.global_timeout_ms, interval: Some(interval), stage: Stage::Resting }
    }

    /// For an aggregator that starts: a single import.
    pub fn once() -> Importer {
        Importer { within_ms: PREPARATION_MS, interval: None, stage: Stage::Due }
    }

    /// What to do now; `random` is uniform.
    pub fn next(&mut self, access: &mut impl Access, random: u64) -> Next<Import> {
        loop {
            match core::mem::replace(&mut self.stage, Stage::Resting) {
                Stage::Resting => {
                    let Some(interval) = &mut self.interval else { return Next::Over };
                    self.stage = Stage::Due;
                    return Next::Sleep(access.state(|_, now| until(interval, now, random)));
                }
                Stage::Due => {
                    let is_first = self.interval.is_none();
                    if is_first || access.state(|state, now| allows(state, Traffic::Import, now)) {
                        return Next::Call(Import { within_ms: self.within_ms });
                    }
                }
                Stage::Merging(mut merging) => {
                    if access.state(|state, now| merge_step(state, &mut merging, None, now)) {
                        self.stage = Stage::Merging(merging);
                        return Next::Yield;
                    }
                    access.state(|state, now| state.figures.imported_at = Some(now.mono));
                }
            }
        }
    }

    /// Takes the result.
    pub fn imported(&mut self, access: &mut impl Access, result: Result<Vec<StoredRegion>, Failure>) {
        access.state(|state, now| note(state, Traffic::Import, result.is_ok(), now));
        self.stage = match result {
            Ok(regions) => Stage::Merging(Merging::new(regions)),
            Err(_) => Stage::Resting,
        };
    }
}

/// Rows on their way into the region.
#[derive(Debug)]
pub(super) struct Merging {
    /// The last is merged first.
    regions: Vec<StoredRegion>,
    /// Cells of the last region that are merged.
    done: usize,
}

impl Merging {
    pub(super) fn new(regions: Vec<StoredRegion>) -> Merging {
        Merging { regions, done: 0 }
    }
}

/// Merges some cells. Returns true if there are more; let other tasks run before the next call. Rows of the region `own` are what it has
/// published itself.
pub(super) fn merge_step(
    state: &mut RegionState,
    merging: &mut Merging,
    own: Option<&[u8]>,
    now: Now,
) -> bool {
    while let Some(StoredRegion { region, cells }) = merging.regions.last() {
        let left = cells.get(merging.done..).unwrap_or_default();
        let step = left.get(..STEP_CELLS).unwrap_or(left);
        if step.is_empty() {
            merging.regions.pop();
            merging.done = 0;
            continue;
        }
        match own == Some(&**region) {
            true => step.iter().for_each(|cell| state.region.published_elsewhere(cell)),
            false => merge(state, region, step, now),
        }
        merging.done = merging.done.saturating_add(step.len());
        return true;
    }
    false
}

fn merge(state: &mut RegionState, region: &[u8], cells: &[Stored], now: Now) {
    let Ok(region) = state.region.other_region(region) else {
        return add(&mut state.figures.imports_refused, cells.len());
    };
    for cell in cells {
        match state.region.import(region, cell, now.unix) {
            Ok(imported) => {
                add(&mut state.figures.imports_merged, 1);
                add(&mut state.figures.imports_created, usize::from(imported.created));
                if imported.grew {
                    // Aggregators of earlier versions have no marker; their rows show that their region is alive.
                    state.others.insert(region, now.mono);
                }
            }
            Err(_) => add(&mut state.figures.imports_refused, 1),
        }
    }
    state.notify(Event::Push);
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{NOW, SEQUENCE, at, key, state};
    use super::*;
    use std::format;
    use std::vec;

    /// A row of as many cells in each region.
    fn regions(cells: &[usize]) -> Vec<StoredRegion> {
        let stored =
            |i: usize| Stored { key: key(&format!("i{i}")), sequence: SEQUENCE, count: 4, limit: u64::MAX };
        let region = |(number, cells): (usize, &usize)| StoredRegion {
            region: format!("region{number}").into_bytes(),
            cells: (0..*cells).map(stored).collect(),
        };
        cells.iter().enumerate().map(region).collect()
    }

    #[test]
    fn each_interval_imports_the_other_regions_use_in_steps() {
        let mut state = state().with_database(Schedule::default().global_breaker, false);
        let mut importer = Importer::new(Schedule::default(), NOW.mono, 0);
        let mut imported = regions(&[2 * STEP_CELLS + 1, 0, 1]);
        imported[0].cells[7].sequence += 9;
        for created in [2 * STEP_CELLS as u64, 0] {
            let before = state.figures.imports_created;
            assert!(matches!(importer.next(&mut at(&mut state, 0), 0), Next::Sleep(_)));
            let within_ms = Schedule::default().global_timeout_ms;
            assert_eq!(importer.next(&mut at(&mut state, 0), 0), Next::Call(Import { within_ms }));
            importer.imported(&mut at(&mut state, 0), Ok(imported.clone()));
            for _ in 0..4 {
                assert_eq!(importer.next(&mut at(&mut state, 0), 0), Next::Yield);
            }
            assert!(state.take_events().has(Event::Push));
            assert_eq!(state.figures.imports_created - before, created);
        }
        let figures = &state.figures;
        assert_eq!((figures.imports_merged, figures.imports_refused), (4 * STEP_CELLS as u64 + 2, 2));
        assert_eq!(state.region.explain(b"w", b"n", b"i0")[0].cells[0].global_others, 8, "of two regions");
    }

    #[test]
    fn a_failing_database_is_not_called_except_once_at_the_start() {
        let mut state = state().with_database(Schedule::default().global_breaker, false);
        for _ in 0..5 {
            let mut once = Importer::once();
            assert_eq!(
                once.next(&mut at(&mut state, 0), 0),
                Next::Call(Import { within_ms: PREPARATION_MS })
            );
            once.imported(&mut at(&mut state, 0), Err(Failure::Unavailable));
            assert_eq!(once.next(&mut at(&mut state, 0), 0), Next::Over);
        }
        assert_eq!(state.figures.imported_at, None);
        let mut importer = Importer::new(Schedule::default(), NOW.mono, 0);
        for _ in 0..3 {
            assert!(matches!(importer.next(&mut at(&mut state, 0), 0), Next::Sleep(_)));
        }
        let mut once = Importer::once();
        once.next(&mut at(&mut state, 0), 0);
        once.imported(&mut at(&mut state, 0), Ok(vec![]));
        assert_eq!(once.next(&mut at(&mut state, 0), 0), Next::Over);
        assert!(state.figures.imported_at.is_some());
    }
}
