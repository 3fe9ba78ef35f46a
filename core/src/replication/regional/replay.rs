//! What filters reported goes to the region's store, one entry for each cell that changed, many cells at once.
//!
//! A round takes what waits as it begins. When it is over, all reports that were merged before it are acknowledged:
//! their counts are in the store, or the store is known to be away, it or the server that should have them, and memory
//! is all there is.
//!
//! Leaves to others: which cells wait (`region`), calling the store and sleeping (`aggregator`).

use crate::model::schedule::Schedule;
use crate::model::time::MonoMs;
use crate::region::exchange::{Merge, Merged};
use crate::region::{HotCell, most_used};
use crate::replication::events::Event;
use crate::replication::failure::{Failure, did_nothing};
use crate::replication::figures::add;
use crate::replication::state::Round;
use crate::replication::{Access, Next, note, note_parts};
use alloc::vec::Vec;

/// So many cells take a second or more to tell.
const BACKLOG_CELLS: usize = 65_536;
/// Most cells in one call.
const CALL_CELLS: usize = 1_024;
/// Most cells handed to the region while streams wait for it.
const STEP_CELLS: usize = 128;
/// How long a cell that the store would not take is not offered again, and how many are remembered.
const REFUSED_PAUSE_MS: u64 = 5_000;
const MAX_REFUSED: usize = 4_096;

/// What the store is asked to do. It has [`Schedule::replay_timeout_ms`].
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// Raise these; then [`Replay::merged`].
    Merge(Vec<Merge>),
    /// Name these in the hot index; then [`Replay::named`].
    NameHot(Vec<HotCell>),
}

/// How a round goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Outcome {
    /// The store has all that waited, or all that it would take.
    #[default]
    Told,
    /// One of its servers is away, perhaps.
    Partly,
    /// It took nothing at all of some call: it is away, perhaps.
    Failed,
}

#[derive(Debug)]
enum Stage {
    Waiting,
    Woken,
    Telling(Round),
    Told(Round),
    Resting,
}

/// Replays for as long as the aggregator runs.
#[derive(Debug)]
pub struct Replay {
    schedule: Schedule,
    stage: Stage,
    outcome: Outcome,
    /// Cells offered in this round.
    told: usize,
    /// Those that a server did not take.
    away: Vec<Merge>,
    /// Hot cells beyond what the index may have of their namespace.
    left: Vec<HotCell>,
    refused: SetAside,
}

impl Replay {
    /// Waits for something to replay.
    pub fn new(schedule: Schedule) -> Replay {
        Replay {
            schedule,
            stage: Stage::Waiting,
            outcome: Outcome::Told,
            told: 0,
            away: Vec::new(),
            left: Vec::new(),
            refused: SetAside::default(),
        }
    }

    /// What to do now.
    pub fn next(&mut self, access: &mut impl Access) -> Next<Call> {
        loop {
            match core::mem::replace(&mut self.stage, Stage::Waiting) {
                Stage::Waiting => {
                    self.stage = Stage::Woken;
                    return Next::Wait { events: Event::Replay.into(), at_most_ms: None };
                }
                Stage::Woken => self.begin(access),
                Stage::Telling(round) => {
                    self.stage = Stage::Telling(round);
                    match self.more(access, round) {
                        Some(merges) => return Next::Call(Call::Merge(merges)),
                        None => self.stage = Stage::Told(round),
                    }
                }
                Stage::Told(round) => {
                    self.finish(access, round);
                    self.stage = Stage::Resting;
                    if let Some(hot) = self.hot(access) {
                        return Next::Call(Call::NameHot(hot));
                    }
                }
                Stage::Resting => return Next::Sleep(self.rest(access)),
            }
        }
    }

    /// Takes the store's words on what it was told, in steps, so that no stream waits for long.
    pub fn merged(
        &mut self,
        access: &mut impl Access,
        merges: Vec<Merge>,
        results: &[Result<Merged, Failure>],
    ) {
        for (merges, results) in merges.chunks(STEP_CELLS).zip(results.chunks(STEP_CELLS)) {
            access.state(|state, now| {
                for (merge, result) in merges.iter().zip(results) {
                    if let Ok(merged) = result {
                        state.region.merged(merge, merged, now.unix);
                    }
                }
            });
        }
        let now = access.state(|state, now| {
            note_parts(state, results, now);
            state.notify(Event::Broadcast);
            state.notify(Event::Push);
            now.mono
        });
        if did_nothing(results) {
            self.outcome = Outcome::Failed;
        }
        for (merge, result) in merges.into_iter().zip(results) {
            match result {
                Ok(_) => {}
                Err(Failure::OfTheCell) => self.refused.set_aside(merge, now),
                Err(_) => self.away.push(merge),
            }
        }
    }

    /// Takes the store's word on what the hot index was to name.
    pub fn named(&mut self, access: &mut impl Access, hot: &[HotCell], result: Result<(), Failure>) {
        let left = core::mem::take(&mut self.left);
        access.state(|state, now| {
            note(state, result, now);
            state.region.hot_failed(&left);
            if result.is_err() {
                state.region.hot_failed(hot);
            }
        });
    }

    fn begin(&mut self, access: &mut impl Access) {
        let (round, usable) = access.state(|state, now| {
            let round = state.begin_replay();
            if round.waiting > BACKLOG_CELLS {
                // The store was away and catches up: until it has, memory is all there is. Filters would not wait so long.
                state.end_replay(round);
            }
            (round, state.is_usable(now.mono))
        });
        self.told = 0;
        self.outcome = if usable { Outcome::Told } else { Outcome::Failed };
        self.stage = Stage::Telling(round);
    }

    /// What else the store is to be told, until it takes none of a call.
    fn more(&mut self, access: &mut impl Access, round: Round) -> Option<Vec<Merge>> {
        if self.outcome == Outcome::Failed || self.told >= round.waiting {
            return None;
        }
        let merges = access.state(|state, _| state.region.next_merges(CALL_CELLS));
        self.told = self.told.saturating_add(merges.len());
        (!merges.is_empty()).then_some(merges)
    }

    fn finish(&mut self, access: &mut impl Access, round: Round) {
        let away = core::mem::take(&mut self.away);
        if self.outcome == Outcome::Told && !away.is_empty() {
            self.outcome = Outcome::Partly;
        }
        let failed = self.outcome == Outcome::Failed;
        access.state(|state, now| {
            state.region.merge_failed(&away);
            // While it is not sure that the store is away, what it has not taken is not acknowledged: the next round tells.
            if !failed || !state.is_usable(now.mono) {
                state.end_replay(round);
            }
        });
    }

    /// Cells that became hot and are to be named in the index, from which aggregators learn what messages have missed.
    fn hot(&mut self, access: &mut impl Access) -> Option<Vec<HotCell>> {
        let cap = self.schedule.namespace_cap;
        let found = access.state(|state, now| match state.is_usable(now.mono) {
            true => state.region.next_hot(cap.saturating_mul(2)),
            false => Vec::new(),
        });
        if found.is_empty() {
            return None;
        }
        let choice = most_used(found, cap, |hot| (&hot.key, hot.utilisation));
        access.state(|state, _| add(&mut state.figures.hot_left, choice.left.len()));
        self.left = choice.left;
        Some(choice.chosen)
    }

    /// How long to rest, in milliseconds.
    fn rest(&mut self, access: &mut impl Access) -> u64 {
        let refused = &mut self.refused;
        access.state(|state, now| {
            state.region.merge_failed(&refused.due(now.mono));
            if state.is_usable(now.mono) && state.region.has_merges() {
                state.notify(Event::Replay);
            }
        });
        // What one of several servers did not take is not offered to it without pause.
        if self.outcome == Outcome::Told { self.schedule.replay_ms } else { self.schedule.marker_ms }
    }
}

/// Cells that the store will not take although it takes others: somebody may have put something else in their place.
/// They are offered again after a while, and known from memory until then.
#[derive(Debug, Default)]
struct SetAside {
    cells: Vec<Merge>,
    since: Option<MonoMs>,
}

impl SetAside {
    fn set_aside(&mut self, merge: Merge, now: MonoMs) {
        self.since.get_or_insert(now);
        if self.cells.len() < MAX_REFUSED {
            self.cells.push(merge);
        }
    }

    /// Those that have waited for long enough.
    fn due(&mut self, now: MonoMs) -> Vec<Merge> {
        if self.since.is_none_or(|since| now.since(since) < REFUSED_PAUSE_MS) {
            return Vec::new();
        }
        self.since = None;
        core::mem::take(&mut self.cells)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::wire::{FilterFrame, Report};
    use crate::replication::RegionState;
    use crate::replication::testing::{NOW, ORIGIN, at, backed, count, report};
    use std::vec;

    fn word(merge: &Merge) -> Result<Merged, Failure> {
        Ok(Merged { current: merge.parts.clone(), limit: merge.limit, ..Merged::default() })
    }

    fn replay() -> Replay {
        let mut replay = Replay::new(Schedule::default());
        let waits = replay.next(&mut at(&mut backed(), 0));
        assert_eq!(waits, Next::Wait { events: Event::Replay.into(), at_most_ms: None });
        replay
    }

    fn merges(replay: &mut Replay, state: &mut RegionState) -> Vec<Merge> {
        match replay.next(&mut at(state, 0)) {
            Next::Call(Call::Merge(merges)) => merges,
            other => panic!("{other:?}"),
        }
    }

    /// Reports three cells with their own `own`, and one more than half its limit.
    fn three(state: &mut RegionState) {
        let counts = ["a", "b", "c"].map(|key| count(key, 1)).to_vec();
        let report = Some(Report { id: 1, counts });
        state.take(ORIGIN, FilterFrame { report, ..FilterFrame::default() }, NOW).unwrap();
    }

    #[test]
    fn a_round_tells_what_waits_names_what_is_hot_and_acknowledges() {
        let (mut state, mut replay) = (backed(), replay());
        state.take(ORIGIN, report(1, 7), NOW).unwrap();
        let told = merges(&mut replay, &mut state);
        assert_eq!((told.len(), state.replayed()), (1, 0));
        let words: Vec<_> = told.iter().map(word).collect();
        replay.merged(&mut at(&mut state, 1), told, &words);
        let Next::Call(Call::NameHot(hot)) = replay.next(&mut at(&mut state, 1)) else { panic!("it is hot") };
        assert_eq!((hot.len(), state.replayed()), (1, 1));
        replay.named(&mut at(&mut state, 2), &hot, Err(Failure::Timeout));
        assert_eq!(replay.next(&mut at(&mut state, 2)), Next::Sleep(Schedule::default().replay_ms));
        assert!(matches!(replay.next(&mut at(&mut state, 12)), Next::Wait { .. }));
        assert!(
            matches!(replay.next(&mut at(&mut state, 12)), Next::Call(Call::NameHot(again)) if again == hot)
        );
    }

    #[test]
    fn what_no_server_took_is_not_acknowledged_until_the_store_is_known_to_be_away() {
        let (mut state, mut replay) = (backed(), replay());
        three(&mut state);
        for round in 1..=5 {
            let told = merges(&mut replay, &mut state);
            let words: Vec<_> = told.iter().map(|_| Err(Failure::Unavailable)).collect();
            replay.merged(&mut at(&mut state, 1), told, &words);
            assert_eq!(replay.next(&mut at(&mut state, 1)), Next::Sleep(Schedule::default().marker_ms));
            assert_eq!(state.replayed(), if round < 5 { 0 } else { 5 }, "the breaker opens on five");
            assert_eq!(state.region.pending_merges(), 3);
            replay.next(&mut at(&mut state, 1));
        }
        assert_eq!(replay.next(&mut at(&mut state, 2)), Next::Sleep(Schedule::default().marker_ms));
        assert_eq!(state.replayed(), 6, "memory is all there is");
    }

    #[test]
    fn what_some_servers_took_is_acknowledged_and_the_rest_waits() {
        let (mut state, mut replay) = (backed(), replay());
        three(&mut state);
        let told = merges(&mut replay, &mut state);
        let words = vec![word(&told[0]), Err(Failure::Unavailable), Err(Failure::OfTheCell)];
        replay.merged(&mut at(&mut state, 0), told, &words);
        // The cell that is left is offered in this round no more.
        assert_eq!(replay.next(&mut at(&mut state, 0)), Next::Sleep(Schedule::default().marker_ms));
        assert_eq!((state.replayed(), state.region.pending_merges()), (1, 1));
        assert!(state.is_usable(NOW.mono) && state.take_events().has(Event::Replay));
        replay.next(&mut at(&mut state, 0));
        let told = merges(&mut replay, &mut state);
        assert_eq!(told.len(), 1);
        let words = vec![word(&told[0])];
        replay.merged(&mut at(&mut state, 4_999), told, &words);
        assert!(matches!(replay.next(&mut at(&mut state, 4_999)), Next::Sleep(10)));
        assert_eq!(state.region.pending_merges(), 0, "set aside");
        replay.next(&mut at(&mut state, 5_000));
        assert!(matches!(replay.next(&mut at(&mut state, 5_000)), Next::Sleep(10)));
        assert_eq!(state.region.pending_merges(), 1, "offered again");
    }
}
