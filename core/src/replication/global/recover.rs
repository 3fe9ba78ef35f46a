//! After a region has lost all its counts, reads what it had published itself. These counts are a lower bound, and are
//! not attributed to any node.
//!
//! They are read page by page (`paging`), and each page counts as it arrives. If the database is unavailable, a page is read again until that
//! succeeds, since even a late lower bound is better than none. In a region without a store, an aggregator that starts reads them before it
//! serves, or its first grants would rest on no counts; after a bound it serves and goes on reading.

use super::note;
use super::paging::{Paging, ReadPage};
use crate::model::schedule::Schedule;
use crate::model::time::{MonoMs, Now};
use crate::region::exchange::{Page, Stored};
use crate::replication::circuit_breaker::Traffic;
use crate::replication::events::Event;
use crate::replication::failure::Failure;
use crate::replication::figures::add;
use crate::replication::grace_period::GRACES;
use crate::replication::state::RegionState;
use crate::replication::{Access, Next};

/// Most cells passed to the region in one step, since other tasks wait meanwhile.
const STEP_CELLS: usize = 1_024;

#[derive(Clone, Copy, Debug)]
enum Stage {
    Waiting,
    Woken,
    /// The next page is to be read.
    Due,
    /// The call was made.
    Called,
    /// The page is read again after this many milliseconds.
    Failed(u64),
}

/// Recovers after each loss for as long as the aggregator runs. Each [`Next::Call`] is answered by [`Recovery::recovered`].
#[derive(Debug)]
pub struct Recovery {
    schedule: Schedule,
    paging: Paging,
    /// [`RegionState::guard`] when the page was called.
    guard: Option<u64>,
    stage: Stage,
}

impl Recovery {
    /// Waits for a loss.
    pub fn new(schedule: Schedule) -> Recovery {
        Recovery { schedule, paging: Paging::new(schedule), guard: None, stage: Stage::Waiting }
    }

    /// For an aggregator that starts and whose region has no store. It serves when [`Recovery::may_serve`], and then calls
    /// [`Recovery::serve`].
    pub fn before_serving(schedule: Schedule, now: MonoMs) -> Recovery {
        let paging = Paging::before_serving(schedule, now);
        Recovery { schedule, paging, guard: None, stage: Stage::Due }
    }

    /// Whether all was read, or an aggregator that starts has waited long enough.
    pub fn may_serve(&self, now: MonoMs) -> bool {
        matches!(self.stage, Stage::Waiting | Stage::Woken) || self.paging.has_waited(now)
    }

    /// The aggregator serves from now on. What is left is read meanwhile.
    pub fn serve(&mut self, access: &mut impl Access) {
        self.paging.serve();
        access.state(|state, now| state.lost = Some(now));
    }

    /// What to do now.
    pub fn next(&mut self, access: &mut impl Access) -> Next<ReadPage> {
        match self.stage {
            Stage::Waiting => {
                self.stage = Stage::Woken;
                return Next::Wait { events: Event::Recover.into(), at_most_ms: None };
            }
            Stage::Woken => access.state(|state, now| state.lost = Some(now)),
            Stage::Due | Stage::Called => {}
            Stage::Failed(pause_ms) => {
                self.stage = Stage::Due;
                return Next::Sleep(pause_ms);
            }
        }
        self.stage = Stage::Called;
        access.state(|state, now| {
            state.is_recovering = true;
            state.region.set_restoring(true);
            self.guard = state.guard;
            Next::Call(self.paging.page(now.unix))
        })
    }

    /// Takes a page of the region's own rows.
    pub fn recovered(&mut self, access: &mut impl Access, result: Result<&Page, Failure>) {
        let Stage::Called = self.stage else { return };
        access.state(|state, now| note(state, Traffic::Own, result.is_ok(), now));
        let page = match result {
            Ok(page) => page,
            Err(failure) => {
                let is_urgent = !access.state(|state, now| self.is_late(state, now, 1));
                self.stage = Stage::Failed(self.paging.failed(failure, is_urgent));
                return;
            }
        };
        for cells in page.regions.iter().flat_map(|region| region.cells.chunks(STEP_CELLS)) {
            access.state(|state, now| self.take(state, cells, now));
        }
        let is_more = access.state(|_, now| self.paging.read(page.end, now.mono));
        self.stage = if is_more { Stage::Due } else { Stage::Waiting };
        if !is_more {
            access.state(|state, now| self.end(state, now));
        }
    }

    fn take(&self, state: &mut RegionState, cells: &[Stored], now: Now) {
        // What was read before a loss of the database may be gone, and so may what no marker guarded.
        let is_kept = state.guard.is_some() && self.guard == state.guard;
        let taken = take(state, cells.iter(), is_kept, self.schedule.grace_period_ms, now);
        add(&mut state.figures.recovered, taken);
    }

    /// All was read. If a grace period is to end, its end settles what was found, and ends the restoration.
    fn end(&self, state: &mut RegionState, now: Now) {
        state.is_recovering = false;
        if self.is_late(state, now, GRACES) {
            state.end_restoring();
        }
    }

    /// Whether so many grace periods have ended since the nodes began to send their counts again.
    fn is_late(&self, state: &RegionState, now: Now, periods: usize) -> bool {
        let all_ms = self.schedule.grace_period_ms.saturating_mul(periods as u64);
        late(state, all_ms, now).is_some()
    }
}

/// Takes rows of the own region that a packet has read, which other processes have written. With a store their components are there.
/// Without one such a process has ended, and may have written them after their page was read: what is committed late is read here.
pub(super) fn merge_own(state: &mut RegionState, cells: &[Stored], grace_period_ms: u64, now: Now) {
    if state.store().is_none() {
        let lost = state.lost;
        // A later cell has no lower bound, as no process that has ended has used it.
        let is_earlier = |cell: &&Stored| {
            let began = cell.sequence.saturating_mul(cell.key.parts().cell_ms());
            lost.is_none_or(|lost| began <= lost.unix.0)
        };
        take(state, cells.iter().filter(is_earlier), state.guard.is_some(), grace_period_ms, now);
    }
    note_published(state, cells);
}

/// Takes lower bounds. Returns how many rows are current cells.
fn take<'a>(
    state: &mut RegionState,
    cells: impl Iterator<Item = &'a Stored>,
    is_kept: bool,
    grace_period_ms: u64,
    now: Now,
) -> usize {
    let taken = cells.filter(|cell| state.region.recover(cell, is_kept, now.unix).is_ok()).count();
    // After the last grace period, late lower bounds are settled here. Before that, nodes may still send what they have. In a region
    // with a store a late lower bound waits for the end of another grace period, or stays in memory.
    let all_ms = grace_period_ms.saturating_mul(GRACES as u64);
    if let Some(lost) = late(state, all_ms, now).filter(|_| state.store().is_none()) {
        state.region.end_grace_period_here(lost.unix, now.unix);
    }
    state.notify(Event::Push);
    taken
}

/// Records what the database holds, if the own marker would show its loss.
fn note_published(state: &mut RegionState, cells: &[Stored]) {
    if state.guard.is_some() {
        cells.iter().for_each(|cell| state.region.published_elsewhere(cell));
    }
}

/// The loss, if so much time has passed since then.
fn late(state: &RegionState, ms: u64, now: Now) -> Option<Now> {
    state.lost.filter(|lost| now.mono.since(lost.mono) > ms)
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{NODE, NOW, SEQUENCE, at, backed, key, state, sum};
    use super::*;
    use crate::model::time::UnixMs;
    use crate::model::wire::Push;
    use crate::region::exchange::{PageEnd, StoredRegion};
    use crate::region::top::Top;
    use crate::replication::StreamId;
    use crate::replication::grace_period::GracePeriod;
    use crate::replication::state::Turn;
    use std::format;
    use std::vec;
    use std::vec::Vec;

    fn stored(identifier: &str, count: u64) -> Stored {
        Stored { key: key(identifier), sequence: SEQUENCE, count, limit: 10 }
    }

    fn page(cells: Vec<Stored>, end: Option<u64>) -> Page {
        let end = end.map(|row| PageEnd { expires: UnixMs(NOW.unix.0 + 1), row });
        Page { regions: vec![StoredRegion { region: b"a".to_vec(), cells }], end }
    }

    fn call(recovery: &mut Recovery, state: &mut RegionState, ms: u64) -> ReadPage {
        match recovery.next(&mut at(state, ms)) {
            Next::Call(page) => page,
            other => panic!("{other:?}"),
        }
    }

    fn figures(state: &RegionState) -> (u64, u64) {
        let explained = state.region.explain(b"w", b"n", b"i");
        (sum(state), explained[0].cells[0].regional_total())
    }

    #[test]
    fn recovery_is_repeated_until_it_succeeds() {
        for (store, expected) in [(false, (6, 6)), (true, (0, 6))] {
            let mut state = if store { backed() } else { state() };
            let mut recovery = Recovery::new(Schedule::default());
            assert!(matches!(recovery.next(&mut at(&mut state, 0)), Next::Wait { .. }));
            for (ms, pause) in [(0, 300), (2_000, 300), (2_001, Schedule::default().publish_ms)] {
                call(&mut recovery, &mut state, ms);
                recovery.recovered(&mut at(&mut state, ms), Err(Failure::Unavailable));
                assert_eq!(recovery.next(&mut at(&mut state, ms)), Next::Sleep(pause));
            }
            call(&mut recovery, &mut state, 12_001);
            recovery.recovered(&mut at(&mut state, 12_001), Ok(&page(vec![stored("i", 6)], None)));
            assert_eq!(figures(&state), expected, "with a store: {store}");
            assert!(state.take_events().has(Event::Push));
            assert!(matches!(recovery.next(&mut at(&mut state, 12_001)), Next::Wait { .. }));
        }
    }

    #[test]
    fn a_failed_page_is_read_again_and_what_was_read_counts_at_once() {
        let mut state = state();
        let mut recovery = Recovery::before_serving(Schedule::default(), NOW.mono);
        let first = call(&mut recovery, &mut state, 0);
        assert_eq!(first.after, PageEnd::expired_at(NOW.unix));
        recovery.recovered(&mut at(&mut state, 10), Ok(&page(vec![stored("i", 6)], Some(7))));
        assert_eq!(figures(&state), (0, 6));
        let second = call(&mut recovery, &mut state, 10);
        assert_eq!(second.after, PageEnd { expires: UnixMs(NOW.unix.0 + 1), row: 7 });
        for ms in [20, 400] {
            recovery.recovered(&mut at(&mut state, ms), Err(Failure::Unavailable));
            assert_eq!(recovery.next(&mut at(&mut state, ms)), Next::Sleep(300));
            assert_eq!(call(&mut recovery, &mut state, ms + 300), second);
        }
        assert!(!recovery.may_serve(NOW.mono.after(700)) && state.is_recovering());
        recovery.recovered(&mut at(&mut state, 700), Ok(&page(vec![stored("j", 9)], None)));
        assert!(recovery.may_serve(NOW.mono.after(700)) && !state.is_recovering());
        assert_eq!(state.figures.recovered, 2);
    }

    /// What a new Envoy is pushed until nothing is left, with the number of complete snapshots.
    fn pushed(state: &mut RegionState, id: StreamId, ms: u64) -> (Vec<Push>, bool) {
        let now = at(state, ms).now;
        let mut pushes = Vec::new();
        while let Turn::Push(push) = state.next_push(NODE, id, now) {
            pushes.push(push);
        }
        let complete = pushes.iter().any(|push| push.complete);
        pushes.retain(|push| !push.snapshots.is_empty());
        (pushes, complete)
    }

    #[test]
    fn a_recovered_key_is_hot_and_hidden_by_no_complete_snapshot() {
        let mut state = state();
        let mut recovery = Recovery::before_serving(Schedule::default(), NOW.mono);
        call(&mut recovery, &mut state, 0);
        recovery.recovered(&mut at(&mut state, 0), Ok(&page(vec![stored("i", 10)], Some(1))));
        let mut grace = GracePeriod::anew(Schedule::default(), NOW.unix);
        recovery.serve(&mut at(&mut state, 0));
        let id = state.enter(NODE, NOW).unwrap().id;
        state.subscribe(NODE, id);
        assert_eq!(grace.next(&mut at(&mut state, 0)), Next::Sleep(2_000));
        assert_eq!(pushed(&mut state, id, 0), (vec![], false), "a lower bound is no component");
        for ms in [2_000, 4_000, 6_000, 8_000] {
            assert_eq!(grace.next(&mut at(&mut state, ms)), Next::Sleep(2_000));
            assert_eq!(pushed(&mut state, id, ms), (vec![], false), "nodes may still send their counts");
        }
        assert_eq!(grace.next(&mut at(&mut state, 10_000)), Next::Sleep(2_000));
        let (pushes, complete) = pushed(&mut state, id, 10_000);
        assert_eq!((pushes[0].snapshots[0].region_others, complete), (10, false), "not all was read");
        // A late page is settled, and pushed, at once.
        call(&mut recovery, &mut state, 10_100);
        recovery.recovered(&mut at(&mut state, 10_100), Ok(&page(vec![stored("j", 10)], None)));
        let (pushes, complete) = pushed(&mut state, id, 10_100);
        assert_eq!((pushes[0].snapshots[0].region_others, complete), (10, true));
        let mut top = Top::default();
        while state.region.rank(&mut top, NOW.unix) {}
        assert_eq!(top.nearest.iter().map(|ranked| ranked.usage.limit).collect::<Vec<_>>(), [Some(10); 2]);
    }

    #[test]
    fn a_snapshot_is_complete_once_what_was_recovered_is_in_components() {
        let mut state = state();
        let mut recovery = Recovery::before_serving(Schedule::default(), NOW.mono);
        call(&mut recovery, &mut state, 0);
        let many: Vec<Stored> = (0..3_000).map(|i| stored(&format!("i{i}"), 10)).collect();
        recovery.recovered(&mut at(&mut state, 0), Ok(&page(many, None)));
        recovery.serve(&mut at(&mut state, 0));
        let mut grace = GracePeriod::anew(Schedule::default(), NOW.unix);
        let id = state.enter(NODE, NOW).unwrap().id;
        state.subscribe(NODE, id);
        for ms in [0, 2_000, 4_000, 6_000, 8_000] {
            assert_eq!(grace.next(&mut at(&mut state, ms)), Next::Sleep(2_000));
        }
        for _ in 0..2 {
            assert!(!pushed(&mut state, id, 10_000).1);
            assert_eq!(grace.next(&mut at(&mut state, 10_000)), Next::Yield, "it settles in steps");
        }
        assert!(!pushed(&mut state, id, 10_000).1);
        assert_eq!(grace.next(&mut at(&mut state, 10_000)), Next::Sleep(2_000));
        assert!(pushed(&mut state, id, 10_000).1);
        assert_eq!((grace.take_settled(), state.region.stats(NOW.mono).pending_publications), (3_000, 0));
    }
}
