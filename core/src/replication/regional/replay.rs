//! What filters reported goes to the region's store, one entry for each cell that changed, many cells at once.
//!
//! A round takes what waits as it begins. When it is over, all reports that were merged before it are acknowledged:
//! their counts are in the store, or the store is known to be away, it or the server that should have them, and memory
//! is all there is.
//!
//! Leaves to others: which cells wait (`region`), calling the store and sleeping (`aggregator`).

use crate::model::cadence::Cadence;
use crate::model::time::MonoMs;
use crate::region::exchange::{Merge, Merged};
use crate::region::{HotCell, most_used};
use crate::replication::bells::Bell;
use crate::replication::desk::Round;
use crate::replication::failure::{Failure, did_nothing};
use crate::replication::figures::add;
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

/// What the store is asked to do. It has [`Cadence::replay_timeout_ms`].
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
    cadence: Cadence,
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
    pub fn new(cadence: Cadence) -> Replay {
        Replay {
            cadence,
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
                    return Next::Wait { bells: Bell::Replay.into(), at_most_ms: None };
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
            access.desk(|desk, now| {
                for (merge, result) in merges.iter().zip(results) {
                    if let Ok(merged) = result {
                        desk.region.merged(merge, merged, now.unix);
                    }
                }
            });
        }
        let now = access.desk(|desk, now| {
            note_parts(desk, results, now);
            desk.ring(Bell::Tell);
            desk.ring(Bell::Push);
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
        access.desk(|desk, now| {
            note(desk, result, now);
            desk.region.hot_failed(&left);
            if result.is_err() {
                desk.region.hot_failed(hot);
            }
        });
    }

    fn begin(&mut self, access: &mut impl Access) {
        let (round, usable) = access.desk(|desk, now| {
            let round = desk.begin_replay();
            if round.waiting > BACKLOG_CELLS {
                // The store was away and catches up: until it has, memory is all there is. Filters would not wait so long.
                desk.end_replay(round);
            }
            (round, desk.is_usable(now.mono))
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
        let merges = access.desk(|desk, _| desk.region.next_merges(CALL_CELLS));
        self.told = self.told.saturating_add(merges.len());
        (!merges.is_empty()).then_some(merges)
    }

    fn finish(&mut self, access: &mut impl Access, round: Round) {
        let away = core::mem::take(&mut self.away);
        if self.outcome == Outcome::Told && !away.is_empty() {
            self.outcome = Outcome::Partly;
        }
        let failed = self.outcome == Outcome::Failed;
        access.desk(|desk, now| {
            desk.region.merge_failed(&away);
            // While it is not sure that the store is away, what it has not taken is not acknowledged: the next round tells.
            if !failed || !desk.is_usable(now.mono) {
                desk.end_replay(round);
            }
        });
    }

    /// Cells that became hot and are to be named in the index, from which aggregators learn what messages have missed.
    fn hot(&mut self, access: &mut impl Access) -> Option<Vec<HotCell>> {
        let cap = self.cadence.namespace_cap;
        let found = access.desk(|desk, now| match desk.is_usable(now.mono) {
            true => desk.region.next_hot(cap.saturating_mul(2)),
            false => Vec::new(),
        });
        if found.is_empty() {
            return None;
        }
        let choice = most_used(found, cap, |hot| (&hot.key, hot.utilisation));
        access.desk(|desk, _| add(&mut desk.figures.hot_left, choice.left.len()));
        self.left = choice.left;
        Some(choice.chosen)
    }

    /// How long to rest, in milliseconds.
    fn rest(&mut self, access: &mut impl Access) -> u64 {
        let refused = &mut self.refused;
        access.desk(|desk, now| {
            desk.region.merge_failed(&refused.due(now.mono));
            if desk.is_usable(now.mono) && desk.region.has_merges() {
                desk.ring(Bell::Replay);
            }
        });
        // What one of several servers did not take is not offered to it without pause.
        if self.outcome == Outcome::Told { self.cadence.replay_ms } else { self.cadence.sentinel_ms }
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
    use crate::replication::Desk;
    use crate::replication::testing::{NOW, ORIGIN, at, backed, count, report};
    use std::vec;

    fn word(merge: &Merge) -> Result<Merged, Failure> {
        Ok(Merged { current: merge.parts.clone(), limit: merge.limit, ..Merged::default() })
    }

    fn replay() -> Replay {
        let mut replay = Replay::new(Cadence::default());
        let waits = replay.next(&mut at(&mut backed(), 0));
        assert_eq!(waits, Next::Wait { bells: Bell::Replay.into(), at_most_ms: None });
        replay
    }

    fn merges(replay: &mut Replay, desk: &mut Desk) -> Vec<Merge> {
        match replay.next(&mut at(desk, 0)) {
            Next::Call(Call::Merge(merges)) => merges,
            other => panic!("{other:?}"),
        }
    }

    /// Reports three cells with their own `own`, and one more than half its limit.
    fn three(desk: &mut Desk) {
        let counts = ["a", "b", "c"].map(|key| count(key, 1)).to_vec();
        let report = Some(Report { id: 1, counts });
        desk.take(ORIGIN, FilterFrame { report, ..FilterFrame::default() }, NOW).unwrap();
    }

    #[test]
    fn a_round_tells_what_waits_names_what_is_hot_and_acknowledges() {
        let (mut desk, mut replay) = (backed(), replay());
        desk.take(ORIGIN, report(1, 7), NOW).unwrap();
        let told = merges(&mut replay, &mut desk);
        assert_eq!((told.len(), desk.replayed()), (1, 0));
        let words: Vec<_> = told.iter().map(word).collect();
        replay.merged(&mut at(&mut desk, 1), told, &words);
        let Next::Call(Call::NameHot(hot)) = replay.next(&mut at(&mut desk, 1)) else { panic!("it is hot") };
        assert_eq!((hot.len(), desk.replayed()), (1, 1));
        replay.named(&mut at(&mut desk, 2), &hot, Err(Failure::Timeout));
        assert_eq!(replay.next(&mut at(&mut desk, 2)), Next::Sleep(Cadence::default().replay_ms));
        assert!(matches!(replay.next(&mut at(&mut desk, 12)), Next::Wait { .. }));
        assert!(
            matches!(replay.next(&mut at(&mut desk, 12)), Next::Call(Call::NameHot(again)) if again == hot)
        );
    }

    #[test]
    fn what_no_server_took_is_not_acknowledged_until_the_store_is_known_to_be_away() {
        let (mut desk, mut replay) = (backed(), replay());
        three(&mut desk);
        for round in 1..=5 {
            let told = merges(&mut replay, &mut desk);
            let words: Vec<_> = told.iter().map(|_| Err(Failure::Away)).collect();
            replay.merged(&mut at(&mut desk, 1), told, &words);
            assert_eq!(replay.next(&mut at(&mut desk, 1)), Next::Sleep(Cadence::default().sentinel_ms));
            assert_eq!(desk.replayed(), if round < 5 { 0 } else { 5 }, "the breaker opens on five");
            assert_eq!(desk.region.pending_merges(), 3);
            replay.next(&mut at(&mut desk, 1));
        }
        assert_eq!(replay.next(&mut at(&mut desk, 2)), Next::Sleep(Cadence::default().sentinel_ms));
        assert_eq!(desk.replayed(), 6, "memory is all there is");
    }

    #[test]
    fn what_some_servers_took_is_acknowledged_and_the_rest_waits() {
        let (mut desk, mut replay) = (backed(), replay());
        three(&mut desk);
        let told = merges(&mut replay, &mut desk);
        let words = vec![word(&told[0]), Err(Failure::Away), Err(Failure::OfTheCell)];
        replay.merged(&mut at(&mut desk, 0), told, &words);
        // The cell that is left is offered in this round no more.
        assert_eq!(replay.next(&mut at(&mut desk, 0)), Next::Sleep(Cadence::default().sentinel_ms));
        assert_eq!((desk.replayed(), desk.region.pending_merges()), (1, 1));
        assert!(desk.is_usable(NOW.mono) && desk.take_bells().has(Bell::Replay));
        replay.next(&mut at(&mut desk, 0));
        let told = merges(&mut replay, &mut desk);
        assert_eq!(told.len(), 1);
        let words = vec![word(&told[0])];
        replay.merged(&mut at(&mut desk, 4_999), told, &words);
        assert!(matches!(replay.next(&mut at(&mut desk, 4_999)), Next::Sleep(10)));
        assert_eq!(desk.region.pending_merges(), 0, "set aside");
        replay.next(&mut at(&mut desk, 5_000));
        assert!(matches!(replay.next(&mut at(&mut desk, 5_000)), Next::Sleep(10)));
        assert_eq!(desk.region.pending_merges(), 1, "offered again");
    }
}
