//! The times of grace after a loss: the living repeat what they know, and what nobody could account for then is given to a
//! component of its own.
//!
//! There are several, for those that take longer to come back, and for what the store could not be told. A later loss
//! begins anew, and ends the earlier one's.
//!
//! Leaves to others: evidence (`region`, `globe`), raising in the store (`aggregator`).

use super::bells::Bell;
use super::desk::Desk;
use super::failure::Failure;
use super::{Access, Next, note_parts};
use crate::model::cadence::Cadence;
use crate::model::time::{Now, UnixMs};
use crate::region::exchange::{Floor, Merged};
use alloc::vec::Vec;

/// Times of grace after a loss. A filter that cannot connect tries again each second or so.
pub const GRACES: usize = 5;
/// Most cells made up for in one call.
const STEP_CELLS: usize = 1_024;

#[derive(Debug)]
enum Stage {
    Resting,
    Ended,
    Raising(Raising),
}

/// Floors on their way to the store.
#[derive(Debug)]
struct Raising {
    floors: Vec<Floor>,
    /// So many of these were offered.
    offered: usize,
    /// The store's life that they belong to.
    life: u32,
}

/// Goes on until its times are over.
#[derive(Debug)]
pub struct Grace {
    cadence: Cadence,
    since: UnixMs,
    /// Which loss of the store; none where memory is all there is.
    loss: Option<u64>,
    left: usize,
    settled: usize,
    stage: Stage,
}

impl Grace {
    /// After a memory that is all there is began empty at `since`, and may have lost something.
    pub fn anew(cadence: Cadence, since: UnixMs) -> Grace {
        Grace { cadence, since, loss: None, left: GRACES, settled: 0, stage: Stage::Resting }
    }

    /// After the store lost something, as it was found at `now`.
    pub(super) fn begin(desk: &mut Desk, cadence: Cadence, now: Now) -> Grace {
        desk.losses = desk.losses.saturating_add(1);
        desk.ring(Bell::Recover);
        Grace { loss: Some(desk.losses), ..Grace::anew(cadence, now.unix) }
    }

    /// What to do now: raise cells in the store within [`Cadence::replay_timeout_ms`], then see [`Grace::raised`].
    pub fn next(&mut self, access: &mut impl Access) -> Next<Vec<Floor>> {
        loop {
            match &mut self.stage {
                Stage::Resting => {
                    let Some(left) = self.left.checked_sub(1) else { return Next::Over };
                    self.left = left;
                    self.stage = Stage::Ended;
                    return Next::Sleep(self.cadence.grace_ms);
                }
                Stage::Ended => {
                    if access.desk(|desk, _| self.loss.is_some_and(|loss| loss != desk.losses)) {
                        return Next::Over;
                    }
                    self.stage = self.end(access);
                }
                Stage::Raising(raising) => {
                    let left = raising.floors.get(raising.offered..).unwrap_or_default();
                    let floors: Vec<Floor> = left.iter().take(STEP_CELLS).cloned().collect();
                    raising.offered = raising.offered.saturating_add(floors.len());
                    if !floors.is_empty() {
                        return Next::Call(floors);
                    }
                    self.stage = Stage::Resting;
                    access.desk(|desk, _| {
                        desk.ring(Bell::Tell);
                        desk.ring(Bell::Push);
                    });
                }
            }
        }
    }

    /// Takes what came of it. What the store did not take waits for the end of another time of grace.
    pub fn raised(
        &mut self,
        access: &mut impl Access,
        floors: &[Floor],
        results: &[Result<Merged, Failure>],
    ) {
        let Stage::Raising(Raising { life, .. }) = self.stage else { return };
        access.desk(|desk, now| {
            note_parts(desk, results, now);
            for (floor, result) in floors.iter().zip(results) {
                match result {
                    Ok(merged) => desk.region.floored(floor, merged, life, now.unix),
                    Err(_) => desk.region.floors_failed(core::slice::from_ref(floor)),
                }
            }
        });
        self.settled = self.settled.saturating_add(results.iter().filter(|result| result.is_ok()).count());
    }

    /// Cells that were settled since this was asked last.
    pub fn take_settled(&mut self) -> usize {
        core::mem::take(&mut self.settled)
    }

    fn end(&mut self, access: &mut impl Access) -> Stage {
        let (since, in_store) = (self.since, self.loss.is_some());
        let floors = access.desk(|desk, now| match in_store {
            true if desk.is_usable(now.mono) => Ok((desk.region.end_grace(since), desk.region.store_life())),
            true => Err(0),
            false => Err(desk.region.end_grace_here(since, now.unix)),
        });
        match floors {
            Ok((floors, life)) => Stage::Raising(Raising { floors, offered: 0, life }),
            Err(settled) => {
                self.settled = self.settled.saturating_add(settled);
                if settled > 0 {
                    access.desk(|desk, _| desk.ring(Bell::Push));
                }
                Stage::Resting
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{NOW, ORIGIN, SEQUENCE, at, backed, desk, key, sum};
    use super::*;
    use crate::region::exchange::BASE;
    use std::vec;

    #[test]
    fn memory_makes_up_for_what_nobody_accounts_for() {
        let mut desk = desk();
        let mut grace = Grace::anew(Cadence::default(), NOW.unix);
        desk.region.witness(&key("i"), SEQUENCE, 8, NOW.unix).unwrap();
        assert_eq!(grace.next(&mut at(&mut desk, 0)), Next::Sleep(2_000));
        assert_eq!(sum(&desk), 0);
        desk.take_bells();
        for time in 1..GRACES {
            assert_eq!(grace.next(&mut at(&mut desk, 2_000)), Next::Sleep(2_000));
            assert_eq!(desk.take_bells().has(Bell::Push), time == 1, "subscribers learn of the base at once");
        }
        assert_eq!((sum(&desk), grace.take_settled(), grace.take_settled()), (8, 1, 0));
        assert_eq!(grace.next(&mut at(&mut desk, 10_000)), Next::Over);
    }

    #[test]
    fn a_store_makes_up_for_it_and_what_it_does_not_take_is_offered_again() {
        let mut desk = backed();
        let mut grace = Grace::begin(&mut desk, Cadence::default(), NOW);
        assert!(desk.take_bells().has(Bell::Recover));
        desk.region.witness(&key("i"), SEQUENCE, 8, NOW.unix).unwrap();
        let word = Merged { current: vec![(BASE, 5), (ORIGIN, 3)], limit: u64::MAX, ..Merged::default() };
        for (result, settled) in [(Err(Failure::Away), 0), (Ok(word), 1)] {
            assert_eq!(grace.next(&mut at(&mut desk, 0)), Next::Sleep(2_000));
            let Next::Call(floors) = grace.next(&mut at(&mut desk, 2_000)) else { panic!("a floor") };
            assert_eq!((floors.len(), floors[0].total), (1, 8));
            grace.raised(&mut at(&mut desk, 2_000), &floors, &[result]);
            assert_eq!(grace.take_settled(), settled);
        }
        assert_eq!(sum(&desk), 8);
        assert_eq!(grace.next(&mut at(&mut desk, 2_000)), Next::Sleep(2_000));
        assert!(desk.take_bells().has(Bell::Tell));
    }

    #[test]
    fn a_later_loss_ends_the_earlier_ones_times() {
        let mut desk = backed();
        let mut first = Grace::begin(&mut desk, Cadence::default(), NOW);
        assert_eq!(first.next(&mut at(&mut desk, 0)), Next::Sleep(2_000));
        let mut second = Grace::begin(&mut desk, Cadence::default(), NOW);
        assert_eq!(first.next(&mut at(&mut desk, 2_000)), Next::Over);
        assert_eq!(second.next(&mut at(&mut desk, 2_000)), Next::Sleep(2_000));
        assert_eq!(second.next(&mut at(&mut desk, 4_000)), Next::Sleep(2_000));
    }
}
