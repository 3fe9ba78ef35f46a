//! After a region has lost all its counts, reads what it had published itself. These counts are a lower bound, and are
//! not attributed to any node.
//!
//! If the database is unavailable, the read is repeated until it succeeds, since even a late lower bound is better than
//! none.

use super::{PREPARATION_MS, note};
use crate::model::schedule::Schedule;
use crate::model::time::Now;
use crate::region::exchange::Stored;
use crate::replication::circuit_breaker::Traffic;
use crate::replication::events::Event;
use crate::replication::failure::Failure;
use crate::replication::state::RegionState;
use crate::replication::{Access, Next};

/// Between two attempts within the recovery grace period. Later the interval of publications is used.
const PAUSE_MS: u64 = 300;
/// Most cells passed to the region in one step, since other tasks wait meanwhile.
const STEP_CELLS: usize = 1_024;

/// A call to the database: return what this region had published; then call [`Recovery::recovered`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Own {
    /// The deadline in milliseconds.
    pub within_ms: u64,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Waiting,
    Woken,
    /// The call is to be made, for the first time or again.
    Due(Now),
    /// The call was made.
    Called(Now),
    Failed(Now),
}

/// Recovers after each loss for as long as the aggregator runs; or once, when it starts.
#[derive(Debug)]
pub struct Recovery {
    /// `None` for a single attempt.
    schedule: Option<Schedule>,
    stage: Stage,
}

impl Recovery {
    /// Waits for a loss.
    pub fn new(schedule: Schedule) -> Recovery {
        Recovery { schedule: Some(schedule), stage: Stage::Waiting }
    }

    /// For an aggregator that starts and whose region has no store. If the attempt fails, the aggregator starts
    /// nevertheless, and [`Event::Recover`] makes another [`Recovery`] try again until it succeeds.
    pub fn once() -> Recovery {
        Recovery { schedule: None, stage: Stage::Woken }
    }

    /// What to do now.
    pub fn next(&mut self, access: &mut impl Access) -> Next<Own> {
        let now = access.state(|_, now| now);
        match (self.stage, &self.schedule) {
            (Stage::Waiting, None) => Next::Over,
            (Stage::Waiting, Some(_)) => {
                self.stage = Stage::Woken;
                Next::Wait { events: Event::Recover.into(), at_most_ms: None }
            }
            (Stage::Woken, _) => self.call(now),
            (Stage::Due(lost) | Stage::Called(lost), _) => self.call(lost),
            (Stage::Failed(_), None) => {
                self.stage = Stage::Waiting;
                access.state(|state, _| state.notify(Event::Recover));
                Next::Over
            }
            (Stage::Failed(lost), Some(schedule)) => {
                self.stage = Stage::Due(lost);
                Next::Sleep(if is_late(schedule, lost, now) { schedule.publish_ms } else { PAUSE_MS })
            }
        }
    }

    fn call(&mut self, lost: Now) -> Next<Own> {
        self.stage = Stage::Called(lost);
        Next::Call(Own {
            within_ms: self.schedule.map_or(PREPARATION_MS, |schedule| schedule.grace_period_ms / 2),
        })
    }

    /// Takes the result.
    pub fn recovered(&mut self, access: &mut impl Access, result: Result<&[Stored], Failure>) {
        let Stage::Called(lost) = self.stage else { return };
        access.state(|state, now| note(state, Traffic::Own, result.is_ok(), now));
        let Ok(cells) = result else {
            self.stage = Stage::Failed(lost);
            return;
        };
        self.stage = Stage::Waiting;
        for cells in cells.chunks(STEP_CELLS) {
            access.state(|state, now| witness(state, cells, now));
        }
        access.state(|state, now| {
            state.notify(Event::Push);
            // The grace period has ended and the lower bounds of that time were settled, so this late one is settled
            // here. In a region with a store a late lower bound stays in memory.
            let in_memory = state.store().is_none();
            if self.schedule.is_some_and(|schedule| is_late(&schedule, lost, now)) && in_memory {
                state.region.end_grace_period_here(lost.unix, now.unix);
            }
        });
    }
}

fn witness(state: &mut RegionState, cells: &[Stored], now: Now) {
    for cell in cells {
        // A row that cannot be a current cell is ignored.
        let _ = state.region.witness(&cell.key, cell.sequence, cell.count, now.unix);
    }
}

fn is_late(schedule: &Schedule, lost: Now, now: Now) -> bool {
    now.mono.since(lost.mono) > schedule.grace_period_ms
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{SEQUENCE, at, backed, key, state, sum};
    use super::*;
    use std::vec;

    const OWN: Next<Own> = Next::Call(Own { within_ms: 1_000 });

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
            for (ms, pause) in [(0, PAUSE_MS), (2_000, PAUSE_MS), (2_001, Schedule::default().publish_ms)] {
                assert_eq!(recovery.next(&mut at(&mut state, ms)), OWN);
                recovery.recovered(&mut at(&mut state, ms), Err(Failure::Unavailable));
                assert_eq!(recovery.next(&mut at(&mut state, ms)), Next::Sleep(pause));
            }
            assert_eq!(recovery.next(&mut at(&mut state, 12_001)), OWN);
            let own = vec![Stored { key: key("i"), sequence: SEQUENCE, count: 6, limit: u64::MAX }];
            recovery.recovered(&mut at(&mut state, 12_001), Ok(&own));
            assert_eq!(figures(&state), expected, "with a store: {store}");
            assert!(state.take_events().has(Event::Push));
            assert!(matches!(recovery.next(&mut at(&mut state, 12_001)), Next::Wait { .. }));
        }
    }

    #[test]
    fn at_the_start_recovery_is_tried_once_and_then_in_the_background() {
        let mut state = state();
        let mut first = Recovery::once();
        assert_eq!(first.next(&mut at(&mut state, 0)), OWN);
        first.recovered(&mut at(&mut state, 0), Err(Failure::Unavailable));
        assert_eq!(first.next(&mut at(&mut state, 0)), Next::Over);
        assert!(state.take_events().has(Event::Recover));
        let mut first = Recovery::once();
        assert_eq!(first.next(&mut at(&mut state, 0)), OWN);
        let own = vec![Stored { key: key("i"), sequence: SEQUENCE, count: 6, limit: u64::MAX }];
        first.recovered(&mut at(&mut state, 0), Ok(&own));
        assert_eq!(first.next(&mut at(&mut state, 0)), Next::Over);
        assert_eq!((figures(&state), state.take_events().has(Event::Recover)), ((0, 6), false));
    }
}
