//! Imports the other regions' use: at the start and once a minute all that they have published, page by page (`paging`).
//!
//! Packets (`sync`) bring the same rows within a second. This repairs what a packet may have missed, and it may read a replica.

use super::paging::{Paging, ReadPage};
use super::{allows, note, recover, until};
use crate::model::schedule::{Interval, Schedule};
use crate::model::time::{MonoMs, Now};
use crate::region::Refused;
use crate::region::exchange::{Page, Stored, StoredRegion};
use crate::replication::circuit_breaker::Traffic;
use crate::replication::events::Event;
use crate::replication::failure::Failure;
use crate::replication::figures::add;
use crate::replication::state::RegionState;
use crate::replication::{Access, Next};
use alloc::vec::Vec;

/// Most cells merged in one step, since other tasks wait meanwhile: each is pushed to every Envoy.
const STEP_CELLS: usize = 256;

#[derive(Debug)]
enum Stage {
    /// The pause until the next interval is about to begin.
    Resting,
    /// The next page is to be read.
    Due,
    /// The page is read again after this many milliseconds.
    Failed(u64),
    Merging(Merging),
}

/// Imports for as long as the aggregator runs. Each [`Next::Call`] is answered by [`Importer::imported`].
#[derive(Debug)]
pub struct Importer {
    paging: Paging,
    interval: Interval,
    /// All was read once.
    is_complete: bool,
    is_more: bool,
    stage: Stage,
}

impl Importer {
    /// For an aggregator that starts. It serves when [`Importer::may_serve`], and then calls [`Importer::serve`]. After the first import, the
    /// next one begins at a random point of the interval; `random` is uniform.
    pub fn before_serving(schedule: Schedule, now: MonoMs, random: u64) -> Importer {
        Importer {
            paging: Paging::before_serving(schedule, now),
            interval: Interval::new(schedule.import_ms, schedule.jitter_percent, now, random),
            is_complete: false,
            is_more: false,
            stage: Stage::Due,
        }
    }

    /// Whether all was imported once, or the aggregator has waited long enough.
    pub fn may_serve(&self, now: MonoMs) -> bool {
        self.is_complete || self.paging.has_waited(now)
    }

    /// The aggregator serves. What is left is imported meanwhile.
    pub fn serve(&mut self) {
        self.paging.serve();
    }

    /// What to do now; `random` is uniform.
    pub fn next(&mut self, access: &mut impl Access, random: u64) -> Next<ReadPage> {
        loop {
            match core::mem::replace(&mut self.stage, Stage::Resting) {
                Stage::Resting => {
                    self.stage = Stage::Due;
                    return Next::Sleep(access.state(|_, now| until(&mut self.interval, now, random)));
                }
                Stage::Failed(pause_ms) => {
                    self.stage = Stage::Due;
                    return Next::Sleep(pause_ms);
                }
                Stage::Due => {
                    let is_urgent = self.paging.is_before_serving();
                    if is_urgent || access.state(|state, now| allows(state, Traffic::Import, now)) {
                        return Next::Call(access.state(|_, now| self.paging.page(now.unix)));
                    }
                }
                Stage::Merging(mut merging) => {
                    if access.state(|state, now| merge_step(state, &mut merging, None, now)) {
                        self.stage = Stage::Merging(merging);
                        return Next::Yield;
                    }
                    if self.is_more {
                        self.stage = Stage::Due;
                        continue;
                    }
                    self.is_complete = true;
                    access.state(|state, now| state.figures.imported_at = Some(now.mono));
                    if self.paging.is_before_serving() {
                        // The aggregator serves before the pause.
                        return Next::Yield;
                    }
                }
            }
        }
    }

    /// Takes a page of the other regions' rows.
    pub fn imported(&mut self, access: &mut impl Access, result: Result<Page, Failure>) {
        access.state(|state, now| note(state, Traffic::Import, result.is_ok(), now));
        self.stage = match result {
            Ok(page) => {
                self.is_more = access.state(|_, now| self.paging.read(page.end, now.mono));
                Stage::Merging(Merging::new(page.regions))
            }
            Err(failure) => Stage::Failed(self.paging.failed(failure, self.paging.is_before_serving())),
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

/// The own region, whose rows are what it has published itself.
pub(super) struct OwnRows<'a> {
    pub(super) region: &'a [u8],
    pub(super) grace_period_ms: u64,
}

/// Merges some cells. Returns true if there are more; let other tasks run before the next call.
pub(super) fn merge_step(
    state: &mut RegionState,
    merging: &mut Merging,
    own: Option<&OwnRows<'_>>,
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
        match own.filter(|own| own.region == &**region) {
            Some(own) => recover::merge_own(state, step, own.grace_period_ms, now),
            None => merge(state, region, step, now),
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
                    // Beyond `MAX_WRITERS` no marker is read; rows show that a region is alive.
                    state.others.insert(region, now.mono);
                }
            }
            // It is read again within a minute.
            Err(Refused::Full) => add(&mut state.figures.without_room.regions, 1),
            Err(_) => add(&mut state.figures.imports_refused, 1),
        }
    }
    state.notify(Event::Push);
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{NOW, SEQUENCE, at, key, state};
    use super::*;
    use crate::model::time::UnixMs;
    use crate::region::exchange::PageEnd;
    use std::format;

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

    fn importer() -> Importer {
        Importer::before_serving(Schedule::default(), NOW.mono, 0)
    }

    fn page(importer: &mut Importer, state: &mut RegionState, ms: u64) -> ReadPage {
        match importer.next(&mut at(state, ms), 0) {
            Next::Call(page) => page,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_interval_imports_the_other_regions_use_in_steps() {
        let mut state = state().with_database(Schedule::default().global_breaker, false);
        let mut importer = importer();
        let mut imported = regions(&[2 * STEP_CELLS + 1, 0, 1]);
        imported[0].cells[7].sequence += 9;
        // The first returns once more before the pause, so that the aggregator serves.
        for (created, yields) in [(2 * STEP_CELLS as u64, 5), (0, 4)] {
            let before = state.figures.imports_created;
            page(&mut importer, &mut state, 0);
            importer.imported(&mut at(&mut state, 0), Ok(Page { regions: imported.clone(), end: None }));
            for _ in 0..yields {
                assert_eq!(importer.next(&mut at(&mut state, 0), 0), Next::Yield);
            }
            assert!(matches!(importer.next(&mut at(&mut state, 0), 0), Next::Sleep(_)));
            assert!(state.take_events().has(Event::Push));
            assert_eq!(state.figures.imports_created - before, created);
            assert!(importer.may_serve(NOW.mono), "all was read");
            importer.serve();
        }
        let figures = &state.figures;
        assert_eq!((figures.imports_merged, figures.imports_refused), (4 * STEP_CELLS as u64 + 2, 2));
        assert_eq!(state.region.explain(b"w", b"n", b"i0")[0].cells[0].global_others, 8, "of two regions");
    }

    #[test]
    fn a_failed_page_is_read_again_and_not_the_pages_before() {
        let mut state = state().with_database(Schedule::default().global_breaker, false);
        let mut importer = importer();
        let first = page(&mut importer, &mut state, 0);
        assert_eq!(first.after, PageEnd::expired_at(NOW.unix));
        let end = PageEnd { expires: UnixMs(NOW.unix.0 + 5), row: 7 };
        importer.imported(&mut at(&mut state, 1), Ok(Page { regions: regions(&[3]), end: Some(end) }));
        assert_eq!(importer.next(&mut at(&mut state, 1), 0), Next::Yield);
        assert_eq!(page(&mut importer, &mut state, 1).after, end);
        importer.imported(&mut at(&mut state, 2), Err(Failure::Unavailable));
        assert_eq!(importer.next(&mut at(&mut state, 2), 0), Next::Sleep(300));
        assert_eq!(page(&mut importer, &mut state, 302).after, end);
        assert_eq!(state.figures.imported_at, None);
        let schedule = Schedule::default();
        assert!(!importer.may_serve(NOW.mono.after(schedule.restore_stall_ms)));
        assert!(importer.may_serve(NOW.mono.after(schedule.restore_stall_ms + 1)));
        importer.serve();
        importer.imported(&mut at(&mut state, 6_000), Err(Failure::Unavailable));
        assert_eq!(importer.next(&mut at(&mut state, 6_000), 0), Next::Sleep(schedule.publish_ms));
        assert_eq!(page(&mut importer, &mut state, 16_000).after, end);
    }

    #[test]
    fn a_failing_database_is_not_called_once_the_aggregator_serves() {
        let mut state = state().with_database(Schedule::default().global_breaker, false);
        let mut importer = importer();
        for _ in 0..5 {
            page(&mut importer, &mut state, 0);
            importer.imported(&mut at(&mut state, 0), Err(Failure::Unavailable));
            assert_eq!(importer.next(&mut at(&mut state, 0), 0), Next::Sleep(300));
        }
        importer.serve();
        for _ in 0..3 {
            assert!(matches!(importer.next(&mut at(&mut state, 0), 0), Next::Sleep(_)));
        }
        assert_eq!(state.figures.imported_at, None);
    }
}
