//! Writes reported counts to the region's store: one entry for each cell that changed, many cells in one call.
//!
//! A round takes what waits when it begins. At its end all reports that were merged before it are acknowledged: their
//! counts are in the store, or the store, or the responsible server of it, is known to be unavailable and they are only
//! in memory.

use crate::model::schedule::Schedule;
use crate::model::time::MonoMs;
use crate::region::HotCell;
use crate::region::exchange::{Merge, Merged};
use crate::replication::events::Event;
use crate::replication::failure::{Failure, did_nothing};
use crate::replication::figures::add;
use crate::replication::state::{Rewriting, Round};
use crate::replication::{Access, Next, note, note_parts};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Writing this many cells takes a second or more.
const BACKLOG_CELLS: usize = 65_536;
/// Most cells in one call.
const CALL_CELLS: usize = 1_024;
/// Most cells passed to the region in one step, since streams wait meanwhile.
const STEP_CELLS: usize = 128;
/// How long a cell that the store rejected is not offered again, in milliseconds, and how many such cells are kept.
const REFUSED_PAUSE_MS: u64 = 5_000;
const MAX_REFUSED: usize = 4_096;

/// A call to the store. Its deadline is [`Schedule::replay_timeout_ms`].
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// Raise these cells; then call [`Replay::merged`].
    Merge(Vec<Merge>),
    /// Name these cells in the hot index; then call [`Replay::named`].
    NameHot(Vec<HotCell>),
}

/// The result of a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Outcome {
    /// The store has all that waited, apart from cells that it rejected.
    #[default]
    Stored,
    /// Some cells were not written; one of the store's servers may be unavailable.
    Partly,
    /// Some call failed for all its cells; the store may be unavailable.
    Failed,
}

#[derive(Debug)]
enum Stage {
    Waiting,
    Woken,
    Writing(Round),
    Written(Round),
    Resting,
}

/// Runs for as long as the aggregator does.
#[derive(Debug)]
pub struct Replay {
    schedule: Schedule,
    stage: Stage,
    outcome: Outcome,
    /// Cells offered in this round.
    offered: usize,
    /// This round writes all that is left of what the store has lost.
    is_last_rewrite: bool,
    /// Cells that were not written.
    unwritten: Vec<Merge>,
    /// Hot cells beyond the number that the index may hold of their namespace.
    left: Vec<HotCell>,
    refused: SetAside,
}

impl Replay {
    /// Waits for counts to write.
    pub fn new(schedule: Schedule) -> Replay {
        Replay {
            schedule,
            stage: Stage::Waiting,
            outcome: Outcome::Stored,
            offered: 0,
            is_last_rewrite: false,
            unwritten: Vec::new(),
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
                Stage::Writing(round) => {
                    self.stage = Stage::Writing(round);
                    match self.more(access, round) {
                        Some(merges) => return Next::Call(Call::Merge(merges)),
                        None => self.stage = Stage::Written(round),
                    }
                }
                Stage::Written(round) => {
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

    /// Takes the results of a merge call, in steps, so that no stream waits for long.
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
                Err(_) => self.unwritten.push(merge),
            }
        }
    }

    /// Takes the result of naming hot cells.
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
            self.is_last_rewrite = state.rewriting == Rewriting::Runs && !state.region.is_resending();
            if round.waiting > BACKLOG_CELLS {
                // The store was unavailable and is catching up. Until it has, counts are acknowledged from memory,
                // since filters would not wait so long.
                state.end_replay(round);
            }
            (round, state.is_usable(now.mono))
        });
        self.offered = 0;
        self.outcome = if usable { Outcome::Stored } else { Outcome::Failed };
        self.stage = Stage::Writing(round);
    }

    /// The next cells of this round, until a call has failed for all its cells.
    fn more(&mut self, access: &mut impl Access, round: Round) -> Option<Vec<Merge>> {
        if self.outcome == Outcome::Failed || self.offered >= round.waiting {
            return None;
        }
        let merges = access.state(|state, _| state.region.next_merges(CALL_CELLS));
        self.offered = self.offered.saturating_add(merges.len());
        (!merges.is_empty()).then_some(merges)
    }

    fn finish(&mut self, access: &mut impl Access, round: Round) {
        let unwritten = core::mem::take(&mut self.unwritten);
        if self.outcome == Outcome::Stored && !unwritten.is_empty() {
            self.outcome = Outcome::Partly;
        }
        let failed = self.outcome == Outcome::Failed;
        let rewrote = self.is_last_rewrite && self.outcome == Outcome::Stored;
        access.state(|state, now| {
            state.region.merge_failed(&unwritten);
            if rewrote && state.rewriting == Rewriting::Runs && !state.region.is_resending() {
                state.rewriting = Rewriting::Done;
            }
            // While it is uncertain whether the store is unavailable, unwritten counts are not acknowledged; the next
            // round decides.
            if !failed || !state.is_usable(now.mono) {
                state.end_replay(round);
            }
        });
    }

    /// Cells that became hot and have to be named in the index. From it aggregators read what messages have missed.
    fn hot(&mut self, access: &mut impl Access) -> Option<Vec<HotCell>> {
        let cap = self.schedule.namespace_cap;
        let found = access.state(|state, now| match state.is_usable(now.mono) {
            true => state.region.next_hot(cap.saturating_mul(2)),
            false => Vec::new(),
        });
        if found.is_empty() {
            return None;
        }
        let choice = most_used(found, cap);
        access.state(|state, _| add(&mut state.figures.hot_left, choice.left.len()));
        self.left = choice.left;
        Some(choice.chosen)
    }

    /// How long to pause, in milliseconds.
    fn rest(&mut self, access: &mut impl Access) -> u64 {
        let refused = &mut self.refused;
        access.state(|state, now| {
            state.region.merge_failed(&refused.due(now.mono));
            if state.is_usable(now.mono) && state.region.has_merges() {
                state.notify(Event::Replay);
            }
        });
        // What one of several servers did not take is offered again only after a longer pause.
        if self.outcome == Outcome::Stored { self.schedule.replay_ms } else { self.schedule.marker_ms }
    }
}

/// The cells chosen within a cap, and the rest.
struct Choice {
    chosen: Vec<HotCell>,
    left: Vec<HotCell>,
}

/// The most used of `items`, at most `cap` for each namespace of each workspace.
fn most_used(items: Vec<HotCell>, cap: usize) -> Choice {
    if items.len() <= cap {
        return Choice { chosen: items, left: Vec::new() };
    }
    let mut groups: BTreeMap<(Vec<u8>, Vec<u8>), Vec<HotCell>> = BTreeMap::new();
    for item in items {
        let parts = item.key.parts();
        let group = (parts.workspace.to_vec(), parts.namespace.to_vec());
        groups.entry(group).or_default().push(item);
    }
    let mut choice = Choice { chosen: Vec::new(), left: Vec::new() };
    for mut group in groups.into_values() {
        if group.len() > cap {
            group.sort_by_key(|item| core::cmp::Reverse(item.utilisation));
            choice.left.extend(group.split_off(cap));
        }
        choice.chosen.extend(group);
    }
    choice
}

/// Cells that the store rejects although it accepts others: another program may have replaced their values. They are
/// offered again after a while, and until then are only in memory.
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

    /// The cells that have waited long enough, all at once.
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
    use crate::model::key::{Key, KeyParts};
    use crate::model::wire::{FilterFrame, Report};
    use crate::replication::RegionState;
    use crate::replication::testing::{NODE, NOW, at, backed, count, key, report};
    use std::{format, vec};

    fn stored(merge: &Merge) -> Result<Merged, Failure> {
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

    /// Reports one used of each of three cells.
    fn three(state: &mut RegionState) {
        let counts = ["a", "b", "c"].map(|key| count(key, 1)).to_vec();
        let report = Some(Report { id: 1, counts });
        state.take(NODE, FilterFrame { report, ..FilterFrame::default() }, NOW).unwrap();
    }

    #[test]
    fn a_round_writes_pending_cells_names_hot_ones_and_acknowledges() {
        let (mut state, mut replay) = (backed(), replay());
        state.take(NODE, report(1, 7), NOW).unwrap();
        let sent = merges(&mut replay, &mut state);
        assert_eq!((sent.len(), state.replayed()), (1, 0));
        let results: Vec<_> = sent.iter().map(stored).collect();
        replay.merged(&mut at(&mut state, 1), sent, &results);
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
    fn counts_that_no_server_stored_are_not_acknowledged_until_the_circuit_breaker_opens() {
        let (mut state, mut replay) = (backed(), replay());
        three(&mut state);
        for round in 1..=5 {
            let sent = merges(&mut replay, &mut state);
            let results: Vec<_> = sent.iter().map(|_| Err(Failure::Unavailable)).collect();
            replay.merged(&mut at(&mut state, 1), sent, &results);
            assert_eq!(replay.next(&mut at(&mut state, 1)), Next::Sleep(Schedule::default().marker_ms));
            assert_eq!(
                state.replayed(),
                if round < 5 { 0 } else { 5 },
                "the circuit breaker opens after five failures"
            );
            assert_eq!(state.region.pending_merges(), 3);
            replay.next(&mut at(&mut state, 1));
        }
        assert_eq!(replay.next(&mut at(&mut state, 2)), Next::Sleep(Schedule::default().marker_ms));
        assert_eq!(state.replayed(), 6, "counts are acknowledged from memory");
    }

    #[test]
    fn counts_that_some_servers_stored_are_acknowledged_and_the_rest_waits() {
        let (mut state, mut replay) = (backed(), replay());
        three(&mut state);
        let sent = merges(&mut replay, &mut state);
        let results = vec![stored(&sent[0]), Err(Failure::Unavailable), Err(Failure::OfTheCell)];
        replay.merged(&mut at(&mut state, 0), sent, &results);
        // The cell that was not written is not offered again in this round.
        assert_eq!(replay.next(&mut at(&mut state, 0)), Next::Sleep(Schedule::default().marker_ms));
        assert_eq!((state.replayed(), state.region.pending_merges()), (1, 1));
        assert!(state.is_usable(NOW.mono) && state.take_events().has(Event::Replay));
        replay.next(&mut at(&mut state, 0));
        let sent = merges(&mut replay, &mut state);
        assert_eq!(sent.len(), 1);
        let results = vec![stored(&sent[0])];
        replay.merged(&mut at(&mut state, 4_999), sent, &results);
        assert!(matches!(replay.next(&mut at(&mut state, 4_999)), Next::Sleep(10)));
        assert_eq!(state.region.pending_merges(), 0, "set aside");
        replay.next(&mut at(&mut state, 5_000));
        assert!(matches!(replay.next(&mut at(&mut state, 5_000)), Next::Sleep(10)));
        assert_eq!(state.region.pending_merges(), 1, "offered again");
    }

    /// What the heartbeats state until then.
    #[test]
    fn counts_are_owed_from_a_loss_until_all_of_them_are_written_again() {
        let (mut state, mut replay) = (backed(), replay());
        three(&mut state);
        let store = |state: &mut RegionState, replay: &mut Replay, result: Option<Failure>| {
            let sent = merges(replay, state);
            let results: Vec<_> = sent.iter().map(|merge| result.map_or(stored(merge), Err)).collect();
            replay.merged(&mut at(state, 1), sent, &results);
            while !matches!(replay.next(&mut at(state, 1)), Next::Wait { .. }) {}
        };
        store(&mut state, &mut replay, None);
        assert_eq!(state.rewriting, Rewriting::Done);
        state.region.store_lost();
        state.rewriting = Rewriting::Waits;
        state.take(NODE, report(2, 7), NOW).unwrap();
        store(&mut state, &mut replay, None);
        assert_eq!(state.rewriting, Rewriting::Waits, "only what was used since is written");
        state.region.write_again();
        state.rewriting = Rewriting::Runs;
        store(&mut state, &mut replay, Some(Failure::Unavailable));
        assert_eq!(state.rewriting, Rewriting::Runs);
        store(&mut state, &mut replay, None);
        state.take(NODE, report(3, 8), NOW).unwrap();
        store(&mut state, &mut replay, None);
        assert_eq!(state.rewriting, Rewriting::Done);
    }

    #[test]
    fn the_most_used_of_each_namespace_are_named_first() {
        let hot = |identifier: &str, utilisation| HotCell {
            key: key(identifier),
            sequence: 1,
            expires: NOW.unix,
            utilisation,
        };
        let mut items: Vec<HotCell> = (0..6).map(|n| hot(&format!("k{n}"), n)).collect();
        let one = key("k");
        let other = KeyParts { namespace: b"m", ..one.parts() };
        items.push(HotCell { key: Key::new(&other).unwrap(), ..hot("k", 0) });
        let choice = most_used(items, 2);
        let mut chosen: Vec<u64> = choice.chosen.iter().map(|one| one.utilisation).collect();
        chosen.sort();
        assert_eq!(
            (chosen, choice.left.len()),
            (vec![0, 4, 5], 4),
            "the other namespace has a cap of its own"
        );
    }
}
