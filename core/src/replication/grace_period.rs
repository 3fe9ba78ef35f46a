//! The recovery grace periods after a loss. In each period the nodes send again what they have. At its end, what no
//! node accounts for becomes the region's baseline component.
//!
//! There are several periods, for nodes that take longer to reconnect and for what could not be written to the store. While
//! counts arrive that the evidence contains, nothing becomes a baseline: what arrived after that would count twice. So the first
//! baseline follows two periods without such counts, or the fifth period. A later loss starts new periods and ends the earlier
//! ones. While another aggregator has still to write what it holds, for which it pauses if losses follow each other (`regional::watch`),
//! the periods do not end.

use super::events::Event;
use super::failure::Failure;
use super::state::{RegionState, Rewriting};
use super::{Access, Next, note_parts};
use crate::model::schedule::Schedule;
use crate::model::time::{Now, UnixMs};
use crate::region::exchange::{LowerBound, Merged};
use alloc::vec::Vec;

/// Recovery grace periods after a loss until the first baseline, at most. A filter that cannot connect tries again about once a second.
pub const GRACES: usize = 5;
/// Further ones, for what the store did not take.
const TRIES: usize = 4;
/// Most cells raised in one call.
const STEP_CELLS: usize = 1_024;
/// Periods, at most, for which it waits while another aggregator has not written again what the store has lost: more than the longest pause
/// before such a write (`regional::watch`).
const MAX_OWED: u64 = 200;
/// Periods in a row without counts that the evidence contains, before the first baseline: Envoys resolve the address of an aggregator
/// that was replaced every five seconds.
const QUIET: usize = 2;

#[derive(Debug)]
enum Stage {
    Resting,
    Ended,
    Settling(Settling),
}

/// Lower bounds that become baselines, in steps.
#[derive(Clone, Copy, Debug)]
struct Settling {
    /// Cells that were not examined yet.
    left: usize,
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
    /// [`Region::fillings`](crate::region::Region::fillings) at the end of the last period.
    fillings: u64,
    /// Periods in a row without any, since there were some.
    quiet: Option<usize>,
    /// Periods in which counts were owed.
    owed: u64,
    stage: Stage,
}

impl GracePeriod {
    /// For a region without a store whose memory was empty at `since`, and may have lost counts.
    pub fn anew(schedule: Schedule, since: UnixMs) -> GracePeriod {
        GracePeriod {
            schedule,
            since,
            loss: None,
            left: GRACES + TRIES,
            settled: 0,
            fillings: 0,
            quiet: None,
            owed: 0,
            stage: Stage::Resting,
        }
    }

    /// For a store whose loss was found at `now`.
    pub(super) fn begin(state: &mut RegionState, schedule: Schedule, now: Now) -> GracePeriod {
        state.losses = state.losses.saturating_add(1);
        state.notify(Event::Recover);
        let (loss, fillings) = (Some(state.losses), state.region.fillings());
        GracePeriod { loss, fillings, ..GracePeriod::anew(schedule, now.unix) }
    }

    /// What to do now: raise cells in the store within [`Schedule::replay_timeout_ms`], then call
    /// [`GracePeriod::raised`].
    pub fn next(&mut self, access: &mut impl Access) -> Next<Vec<LowerBound>> {
        loop {
            match &mut self.stage {
                Stage::Resting => {
                    let Some(left) = self.left.checked_sub(1) else {
                        // A store that was unavailable at the end of each period took no lower bound.
                        access.state(|state, _| self.ends_restoring(state));
                        return Next::Over;
                    };
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
                Stage::Settling(Settling { left: 0, .. }) => {
                    self.stage = Stage::Resting;
                    self.settled_all(access);
                }
                Stage::Settling(settling) => {
                    let mut step = *settling;
                    let next = self.settle(access, &mut step);
                    self.stage = Stage::Settling(step);
                    if let Some(next) = next {
                        return next;
                    }
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
        let Stage::Settling(Settling { incarnation, .. }) = self.stage else { return };
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
        let in_store = self.loss.is_some();
        access.state(|state, now| {
            let is_ripe = self.is_ripe(state);
            if in_store && self.owed < MAX_OWED && self.are_owed(state, now) {
                // What another aggregator holds is not lost, however long it pauses. The periods begin anew once it has written.
                (self.left, self.quiet, self.owed) = (GRACES + TRIES, Some(0), self.owed.saturating_add(1));
                return Stage::Resting;
            }
            match is_ripe && (!in_store || state.is_usable(now.mono)) {
                true => Stage::Settling(Settling {
                    left: state.region.pending_lower_bounds(),
                    incarnation: state.region.store_incarnation(),
                }),
                false => Stage::Resting,
            }
        })
    }

    /// Whether this aggregator or another one has not written again what the store has lost.
    fn are_owed(&self, state: &RegionState, now: Now) -> bool {
        state.rewriting == Rewriting::Waits || state.members.owe(self.schedule.grace_period_ms, now.mono)
    }

    /// Whether what is missing now will not be sent any more.
    fn is_ripe(&mut self, state: &RegionState) -> bool {
        let fillings = state.region.fillings();
        let had_none = core::mem::replace(&mut self.fillings, fillings) == fillings;
        self.quiet = match had_none && !state.region.is_resending() {
            true => self.quiet.map(|quiet| quiet.saturating_add(1)),
            false => Some(0),
        };
        self.left <= TRIES
            || state.region.pending_lower_bounds() == 0
            || self.quiet.is_some_and(|quiet| quiet >= QUIET)
    }

    /// Settles some cells here, or lets the driver raise them in the store.
    fn settle(&mut self, access: &mut impl Access, step: &mut Settling) -> Option<Next<Vec<LowerBound>>> {
        let (since, in_store) = (self.since, self.loss.is_some());
        let lower_bounds = access.state(|state, now| {
            let lower_bounds = state.region.some_lower_bounds(since, &mut step.left, STEP_CELLS);
            if !in_store {
                state.region.settle(&lower_bounds, now.unix);
            }
            lower_bounds
        });
        if in_store {
            return (!lower_bounds.is_empty()).then_some(Next::Call(lower_bounds));
        }
        self.settled = self.settled.saturating_add(lower_bounds.len());
        if !lower_bounds.is_empty() {
            access.state(|state, _| state.notify(Event::Push));
        }
        (step.left > 0).then_some(Next::Yield)
    }

    /// All lower bounds that were found are in components, unless the store did not take them.
    fn settled_all(&self, access: &mut impl Access) {
        access.state(|state, _| {
            self.ends_restoring(state);
            if self.loss.is_some() {
                state.notify(Event::Broadcast);
                state.notify(Event::Push);
            }
        });
    }

    /// Ends the restoration of this loss, unless the database is still read.
    fn ends_restoring(&self, state: &mut RegionState) {
        if !state.is_recovering && self.loss.is_none_or(|loss| loss == state.losses) {
            state.end_restoring();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{NODE, NOW, SEQUENCE, at, backed, count, key, state, sum};
    use super::*;
    use crate::model::key::NodeId;
    use crate::model::wire::Count;
    use crate::region::exchange::BASELINE;
    use crate::replication::members::Member;
    use std::vec;

    #[test]
    fn in_memory_the_use_that_no_node_accounts_for_becomes_the_baseline() {
        let mut state = state();
        let mut grace = GracePeriod::anew(Schedule::default(), NOW.unix);
        state.region.witness(key("i").as_bytes(), SEQUENCE, 8, NOW.unix).unwrap();
        assert_eq!(grace.next(&mut at(&mut state, 0)), Next::Sleep(2_000));
        state.take_events();
        for time in 1..GRACES as u64 {
            assert_eq!(grace.next(&mut at(&mut state, time * 2_000)), Next::Sleep(2_000));
            assert_eq!((sum(&state), state.take_events().has(Event::Push)), (0, false));
        }
        assert_eq!(grace.next(&mut at(&mut state, 10_000)), Next::Sleep(2_000));
        assert!(state.take_events().has(Event::Push), "the baseline is pushed to subscribers at once");
        assert_eq!((sum(&state), grace.take_settled(), grace.take_settled()), (8, 1, 0));
        for _ in 1..TRIES {
            assert_eq!(grace.next(&mut at(&mut state, 10_000)), Next::Sleep(2_000));
        }
        assert_eq!(grace.next(&mut at(&mut state, 20_000)), Next::Over);
    }

    fn report(state: &mut RegionState, node: NodeId, own: u64, region_others: u64) {
        let counts = [Count { region_others, ..count("i", own) }];
        assert!(state.region.report(node, &counts, NOW.unix).refused.is_empty());
    }

    /// One node used 10, another 50. The first one states both when it connects; the other one connects later.
    #[test]
    fn a_node_that_returns_within_the_periods_does_not_count_twice() {
        for second in [1_000, 3_000, 5_000, 7_000] {
            let mut state = state();
            let mut grace = GracePeriod::anew(Schedule::default(), NOW.unix);
            let mut due = 0;
            for ms in (0..=12_000).step_by(1_000) {
                for (node, own, region_others, joins) in
                    [(NODE, 10, 50, 1_000), (NodeId([9; 16]), 50, 0, second)]
                {
                    if ms == joins {
                        report(&mut state, node, own, region_others);
                    }
                }
                if ms == due
                    && let Next::Sleep(pause) = grace.next(&mut at(&mut state, ms))
                {
                    due += pause;
                }
            }
            assert_eq!((sum(&state), grace.take_settled()), (60, 0), "the second one after {second} ms");
        }
    }

    #[test]
    fn the_baseline_is_written_to_the_store_again_until_that_succeeds() {
        let mut state = backed();
        let mut grace = GracePeriod::begin(&mut state, Schedule::default(), NOW);
        assert!(state.take_events().has(Event::Recover));
        state.region.witness(key("i").as_bytes(), SEQUENCE, 8, NOW.unix).unwrap();
        let merged = Merged { current: vec![(BASELINE, 5), (NODE, 3)], limit: u64::MAX, ..Merged::default() };
        for _ in 1..GRACES {
            assert_eq!(grace.next(&mut at(&mut state, 0)), Next::Sleep(2_000));
        }
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
    fn snapshots_are_complete_again_after_the_periods_though_the_store_was_away() {
        let mut state = backed();
        let mut grace = GracePeriod::begin(&mut state, Schedule::default(), NOW);
        state.region.set_restoring(true);
        for period in 0..(GRACES + TRIES) as u64 {
            let ms = period * 2_000;
            assert_eq!(grace.next(&mut at(&mut state, ms)), Next::Sleep(2_000));
            for _ in 0..10 {
                state.store().unwrap().note(Some(Failure::Unavailable), NOW.mono.after(ms + 2_000));
            }
        }
        assert_eq!(grace.next(&mut at(&mut state, (GRACES + TRIES) as u64 * 2_000)), Next::Over);
        assert!(!state.region.set_restoring(false), "the restoration has ended");
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

    /// A peer with counts that the store has lost pauses before it writes them, as losses follow each other.
    #[test]
    fn what_a_peer_has_still_to_write_becomes_no_baseline() {
        let mut state = backed();
        let mut grace = GracePeriod::begin(&mut state, Schedule::default(), NOW);
        // Evidence of what the peer's nodes have used.
        state.region.witness(key("i").as_bytes(), SEQUENCE, 8, NOW.unix).unwrap();
        let peer = |owes| [Member { id: [2; 16], owes }, Member { id: [1; 16], owes: true }];
        let period = |state: &mut RegionState, grace: &mut GracePeriod, ms: u64, owes| {
            state.members.listed(&peer(owes), &[1; 16], NOW.mono.after(ms.saturating_sub(100)));
            grace.next(&mut at(state, ms))
        };
        for ms in (0..300_000).step_by(2_000) {
            assert_eq!(period(&mut state, &mut grace, ms, true), Next::Sleep(2_000), "{ms}");
        }
        let written = [(NODE, 8)];
        state.region.learn(&key("i"), SEQUENCE, 10, &written, NOW.unix).unwrap();
        let mut ms = 300_000;
        while period(&mut state, &mut grace, ms, false) == Next::Sleep(2_000) {
            ms += 2_000;
        }
        assert_eq!((sum(&state), grace.next(&mut at(&mut state, ms))), (8, Next::Over));
    }

    #[test]
    fn a_peer_that_owes_counts_for_ever_delays_the_baseline_for_some_minutes() {
        let mut state = backed();
        let mut grace = GracePeriod::begin(&mut state, Schedule::default(), NOW);
        state.region.witness(key("i").as_bytes(), SEQUENCE, 8, NOW.unix).unwrap();
        let mut ms = 0;
        while grace.next(&mut at(&mut state, ms)) == Next::Sleep(2_000) {
            ms += 2_000;
            let listed = NOW.mono.after(ms - 100);
            state.members.listed(&[Member { id: [2; 16], owes: true }], &[1; 16], listed);
        }
        assert_eq!(ms, 2_000 * (MAX_OWED + QUIET as u64));
    }
}
