//! The recovery grace periods after a loss. In each period the nodes send again what they have. At its end, what no
//! node accounts for becomes the region's baseline component.
//!
//! There are several periods, for nodes that take longer to reconnect and for what could not be written to the store. A
//! later loss starts new periods and ends the earlier ones.

use super::events::Event;
use super::failure::Failure;
use super::state::RegionState;
use super::{Access, Next, note_parts};
use crate::model::schedule::Schedule;
use crate::model::time::{Now, UnixMs};
use crate::region::exchange::{LowerBound, Merged};
use alloc::vec::Vec;

/// Recovery grace periods after a loss. A filter that cannot connect tries again about once a second.
pub const GRACES: usize = 5;
/// Most cells raised in one call.
const STEP_CELLS: usize = 1_024;

#[derive(Debug)]
enum Stage {
    Resting,
    Ended,
    Raising(Raising),
}

/// Lower bounds that are being written to the store.
#[derive(Debug)]
struct Raising {
    lower_bounds: Vec<LowerBound>,
    /// How many of these were passed to the driver.
    offered: usize,
    /// The store's incarnation that they belong to.
    incarnation: u32,
}

/// Runs until the last recovery grace period has ended.
#[derive(Debug)]
pub struct GracePeriod {
    schedule: Schedule,
    since: UnixMs,
    /// The number of the store's loss; `None` in a region without a store.
    loss: Option<u64>,
    left: usize,
    settled: usize,
    stage: Stage,
}

impl GracePeriod {
    /// For a region without a store whose memory was empty at `since`, and may have lost counts.
    pub fn anew(schedule: Schedule, since: UnixMs) -> GracePeriod {
        GracePeriod { schedule, since, loss: None, left: GRACES, settled: 0, stage: Stage::Resting }
    }

    /// For a store whose loss was found at `now`.
    pub(super) fn begin(state: &mut RegionState, schedule: Schedule, now: Now) -> GracePeriod {
        state.losses = state.losses.saturating_add(1);
        state.notify(Event::Recover);
        GracePeriod { loss: Some(state.losses), ..GracePeriod::anew(schedule, now.unix) }
    }

    /// What to do now: raise cells in the store within [`Schedule::replay_timeout_ms`], then call
    /// [`GracePeriod::raised`].
    pub fn next(&mut self, access: &mut impl Access) -> Next<Vec<LowerBound>> {
        loop {
            match &mut self.stage {
                Stage::Resting => {
                    let Some(left) = self.left.checked_sub(1) else { return Next::Over };
                    self.left = left;
                    self.stage = Stage::Ended;
                    return Next::Sleep(self.schedule.grace_period_ms);
                }
                Stage::Ended => {
                    if access.state(|state, _| self.loss.is_some_and(|loss| loss != state.losses)) {
                        return Next::Over;
                    }
                    self.stage = self.end(access);
                }
                Stage::Raising(raising) => {
                    let left = raising.lower_bounds.get(raising.offered..).unwrap_or_default();
                    let lower_bounds: Vec<LowerBound> = left.iter().take(STEP_CELLS).cloned().collect();
                    raising.offered = raising.offered.saturating_add(lower_bounds.len());
                    if !lower_bounds.is_empty() {
                        return Next::Call(lower_bounds);
                    }
                    self.stage = Stage::Resting;
                    access.state(|state, _| {
                        state.notify(Event::Broadcast);
                        state.notify(Event::Push);
                    });
                }
            }
        }
    }

    /// Takes the results. What could not be written to the store waits for the end of another recovery grace period.
    pub fn raised(
        &mut self,
        access: &mut impl Access,
        lower_bounds: &[LowerBound],
        results: &[Result<Merged, Failure>],
    ) {
        let Stage::Raising(Raising { incarnation, .. }) = self.stage else { return };
        access.state(|state, now| {
            note_parts(state, results, now);
            for (lower_bound, result) in lower_bounds.iter().zip(results) {
                match result {
                    Ok(merged) => state.region.floored(lower_bound, merged, incarnation, now.unix),
                    Err(_) => state.region.lower_bounds_failed(core::slice::from_ref(lower_bound)),
                }
            }
        });
        self.settled = self.settled.saturating_add(results.iter().filter(|result| result.is_ok()).count());
    }

    /// Cells that were settled since the last call.
    pub fn take_settled(&mut self) -> usize {
        core::mem::take(&mut self.settled)
    }

    fn end(&mut self, access: &mut impl Access) -> Stage {
        let (since, in_store) = (self.since, self.loss.is_some());
        let lower_bounds = access.state(|state, now| match in_store {
            true if state.is_usable(now.mono) => {
                Ok((state.region.end_grace_period(since), state.region.store_incarnation()))
            }
            true => Err(0),
            false => Err(state.region.end_grace_period_here(since, now.unix)),
        });
        match lower_bounds {
            Ok((lower_bounds, incarnation)) => {
                Stage::Raising(Raising { lower_bounds, offered: 0, incarnation })
            }
            Err(settled) => {
                self.settled = self.settled.saturating_add(settled);
                if settled > 0 {
                    access.state(|state, _| state.notify(Event::Push));
                }
                Stage::Resting
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{NOW, ORIGIN, SEQUENCE, at, backed, key, state, sum};
    use super::*;
    use crate::region::exchange::BASELINE;
    use std::vec;

    #[test]
    fn in_memory_the_use_that_no_node_accounts_for_becomes_the_baseline() {
        let mut state = state();
        let mut grace = GracePeriod::anew(Schedule::default(), NOW.unix);
        state.region.witness(&key("i"), SEQUENCE, 8, NOW.unix).unwrap();
        assert_eq!(grace.next(&mut at(&mut state, 0)), Next::Sleep(2_000));
        assert_eq!(sum(&state), 0);
        state.take_events();
        for time in 1..GRACES {
            assert_eq!(grace.next(&mut at(&mut state, 2_000)), Next::Sleep(2_000));
            assert_eq!(
                state.take_events().has(Event::Push),
                time == 1,
                "the baseline is pushed to subscribers at once"
            );
        }
        assert_eq!((sum(&state), grace.take_settled(), grace.take_settled()), (8, 1, 0));
        assert_eq!(grace.next(&mut at(&mut state, 10_000)), Next::Over);
    }

    #[test]
    fn the_baseline_is_written_to_the_store_again_until_that_succeeds() {
        let mut state = backed();
        let mut grace = GracePeriod::begin(&mut state, Schedule::default(), NOW);
        assert!(state.take_events().has(Event::Recover));
        state.region.witness(&key("i"), SEQUENCE, 8, NOW.unix).unwrap();
        let merged =
            Merged { current: vec![(BASELINE, 5), (ORIGIN, 3)], limit: u64::MAX, ..Merged::default() };
        for (result, settled) in [(Err(Failure::Unavailable), 0), (Ok(merged), 1)] {
            assert_eq!(grace.next(&mut at(&mut state, 0)), Next::Sleep(2_000));
            let Next::Call(lower_bounds) = grace.next(&mut at(&mut state, 2_000)) else {
                panic!("a lower bound to raise")
            };
            assert_eq!((lower_bounds.len(), lower_bounds[0].total), (1, 8));
            grace.raised(&mut at(&mut state, 2_000), &lower_bounds, &[result]);
            assert_eq!(grace.take_settled(), settled);
        }
        assert_eq!(sum(&state), 8);
        assert_eq!(grace.next(&mut at(&mut state, 2_000)), Next::Sleep(2_000));
        assert!(state.take_events().has(Event::Broadcast));
    }

    #[test]
    fn a_later_loss_ends_the_periods_of_an_earlier_one() {
        let mut state = backed();
        let mut first = GracePeriod::begin(&mut state, Schedule::default(), NOW);
        assert_eq!(first.next(&mut at(&mut state, 0)), Next::Sleep(2_000));
        let mut second = GracePeriod::begin(&mut state, Schedule::default(), NOW);
        assert_eq!(first.next(&mut at(&mut state, 2_000)), Next::Over);
        assert_eq!(second.next(&mut at(&mut state, 2_000)), Next::Sleep(2_000));
        assert_eq!(second.next(&mut at(&mut state, 4_000)), Next::Sleep(2_000));
    }
}
