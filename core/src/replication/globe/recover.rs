//! A region that has lost everything reads what it has published itself. That counts as a floor, not as anybody's use.
//!
//! While the database is away it is asked over and over: a floor that comes late is still better than none.
//!
//! Leaves to others: what becomes of a floor (`region`), when something is lost (`watch`).

use super::{PREPARATION_MS, note};
use crate::model::cadence::Cadence;
use crate::model::time::Now;
use crate::region::exchange::Stored;
use crate::replication::bells::Bell;
use crate::replication::desk::Desk;
use crate::replication::failure::Failure;
use crate::replication::guard::Traffic;
use crate::replication::{Access, Next};

/// Between two tries within the time of grace; later on as long as between two publications.
const PAUSE_MS: u64 = 300;
/// Most cells witnessed while others wait for the region.
const STEP_CELLS: usize = 1_024;

/// What the database is asked for: what this region had published; then [`Recovery::recovered`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Own {
    /// How long it may take, in milliseconds.
    pub within_ms: u64,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Waiting,
    Woken,
    /// To be asked (again).
    Asking(Now),
    /// Asked.
    Asked(Now),
    Failed(Now),
}

/// Recovers after each loss, for as long as the aggregator runs; or once, as it starts.
#[derive(Debug)]
pub struct Recovery {
    /// None if it tries but once.
    cadence: Option<Cadence>,
    stage: Stage,
}

impl Recovery {
    /// Waits for a loss.
    pub fn new(cadence: Cadence) -> Recovery {
        Recovery { cadence: Some(cadence), stage: Stage::Waiting }
    }

    /// For an aggregator that starts, and whose region has no store. If it fails, others are served all the same, and
    /// [`Bell::Recover`] has it tried over and over.
    pub fn once() -> Recovery {
        Recovery { cadence: None, stage: Stage::Woken }
    }

    /// What to do now.
    pub fn next(&mut self, access: &mut impl Access) -> Next<Own> {
        let now = access.desk(|_, now| now);
        match (self.stage, &self.cadence) {
            (Stage::Waiting, None) => Next::Over,
            (Stage::Waiting, Some(_)) => {
                self.stage = Stage::Woken;
                Next::Wait { bells: Bell::Recover.into(), at_most_ms: None }
            }
            (Stage::Woken, _) => self.ask(now),
            (Stage::Asking(lost) | Stage::Asked(lost), _) => self.ask(lost),
            (Stage::Failed(_), None) => {
                self.stage = Stage::Waiting;
                access.desk(|desk, _| desk.ring(Bell::Recover));
                Next::Over
            }
            (Stage::Failed(lost), Some(cadence)) => {
                self.stage = Stage::Asking(lost);
                Next::Sleep(if is_late(cadence, lost, now) { cadence.publish_ms } else { PAUSE_MS })
            }
        }
    }

    fn ask(&mut self, lost: Now) -> Next<Own> {
        self.stage = Stage::Asked(lost);
        Next::Call(Own { within_ms: self.cadence.map_or(PREPARATION_MS, |cadence| cadence.grace_ms / 2) })
    }

    /// Takes what came.
    pub fn recovered(&mut self, access: &mut impl Access, result: Result<&[Stored], Failure>) {
        let Stage::Asked(lost) = self.stage else { return };
        access.desk(|desk, now| note(desk, Traffic::Own, result.is_ok(), now));
        let Ok(cells) = result else {
            self.stage = Stage::Failed(lost);
            return;
        };
        self.stage = Stage::Waiting;
        for cells in cells.chunks(STEP_CELLS) {
            access.desk(|desk, now| witness(desk, cells, now));
        }
        access.desk(|desk, now| {
            desk.ring(Bell::Push);
            // Who gives floors to the base has done so at the end of the time of grace. A region with a store keeps a
            // floor that comes later in memory.
            let in_memory = desk.store().is_none();
            if self.cadence.is_some_and(|cadence| is_late(&cadence, lost, now)) && in_memory {
                desk.region.end_grace_here(lost.unix, now.unix);
            }
        });
    }
}

fn witness(desk: &mut Desk, cells: &[Stored], now: Now) {
    for cell in cells {
        // A row that cannot be a cell of now is of no use here either.
        let _ = desk.region.witness(&cell.key, cell.sequence, cell.count, now.unix);
    }
}

fn is_late(cadence: &Cadence, lost: Now, now: Now) -> bool {
    now.mono.since(lost.mono) > cadence.grace_ms
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{SEQUENCE, at, backed, desk, key, sum};
    use super::*;
    use std::vec;

    const OWN: Next<Own> = Next::Call(Own { within_ms: 1_000 });

    fn figures(desk: &Desk) -> (u64, u64) {
        let explained = desk.region.explain(b"w", b"n", b"i");
        (sum(desk), explained[0].cells[0].regional_total())
    }

    #[test]
    fn a_floor_is_asked_for_over_and_over_until_it_comes() {
        for (store, expected) in [(false, (6, 6)), (true, (0, 6))] {
            let mut desk = if store { backed() } else { desk() };
            let mut recovery = Recovery::new(Cadence::default());
            assert!(matches!(recovery.next(&mut at(&mut desk, 0)), Next::Wait { .. }));
            for (ms, pause) in [(0, PAUSE_MS), (2_000, PAUSE_MS), (2_001, Cadence::default().publish_ms)] {
                assert_eq!(recovery.next(&mut at(&mut desk, ms)), OWN);
                recovery.recovered(&mut at(&mut desk, ms), Err(Failure::Away));
                assert_eq!(recovery.next(&mut at(&mut desk, ms)), Next::Sleep(pause));
            }
            assert_eq!(recovery.next(&mut at(&mut desk, 12_001)), OWN);
            let own = vec![Stored { key: key("i"), sequence: SEQUENCE, count: 6 }];
            recovery.recovered(&mut at(&mut desk, 12_001), Ok(&own));
            assert_eq!(figures(&desk), expected, "with a store: {store}");
            assert!(desk.take_bells().has(Bell::Push));
            assert!(matches!(recovery.next(&mut at(&mut desk, 12_001)), Next::Wait { .. }));
        }
    }

    #[test]
    fn at_the_start_it_is_tried_once_and_then_beside_all_else() {
        let mut desk = desk();
        let mut first = Recovery::once();
        assert_eq!(first.next(&mut at(&mut desk, 0)), OWN);
        first.recovered(&mut at(&mut desk, 0), Err(Failure::Away));
        assert_eq!(first.next(&mut at(&mut desk, 0)), Next::Over);
        assert!(desk.take_bells().has(Bell::Recover));
        let mut first = Recovery::once();
        assert_eq!(first.next(&mut at(&mut desk, 0)), OWN);
        let own = vec![Stored { key: key("i"), sequence: SEQUENCE, count: 6 }];
        first.recovered(&mut at(&mut desk, 0), Ok(&own));
        assert_eq!(first.next(&mut at(&mut desk, 0)), Next::Over);
        assert_eq!((figures(&desk), desk.take_bells().has(Bell::Recover)), ((0, 6), false));
    }
}
