//! Reads the hot index of the store again and again, and so finds what messages of other aggregators have missed.
//!
//! Normally it reads one shard at each interval; after a connection was lost, all of them at once. A subscriber's
//! snapshot is reported as complete only once each shard was read. A shard that fails is read again in its turn; what was read of the others
//! stays.

use crate::model::key::Key;
use crate::model::schedule::Schedule;
use crate::region::Refused;
use crate::region::exchange::Merged;
use crate::replication::events::Event;
use crate::replication::failure::Failure;
use crate::replication::figures::add;
use crate::replication::{Access, Next, note};
use alloc::vec::Vec;

/// Shards of the index, by a hash of the key. Each is read in one call.
pub const HOT_SHARDS: usize = 16;
/// Most cells of the index that are read in one call.
const READ_CELLS: usize = 512;
/// Most cells that are accepted from one shard.
pub const SHARD_CELLS: usize = 100_000;

/// A call to the store. Its deadline is [`Schedule::replay_timeout_ms`].
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// Return the cells that a shard names, at most [`SHARD_CELLS`]; then call [`HotReader::indexed`].
    Shard(usize),
    /// Return what the store holds of these cells; then call [`HotReader::read`].
    Cells(Vec<(Key, u64)>),
}

#[derive(Debug)]
enum Stage {
    /// The pause is about to begin.
    Resting,
    Woken,
    /// Decides whether to read another shard.
    Deciding,
    Reading(Shard),
}

/// A shard that is being read.
#[derive(Debug)]
struct Shard {
    /// The store's incarnation when the read began.
    incarnation: u32,
    named: Vec<(Key, u64)>,
    /// How many of these were read.
    read: usize,
}

/// Runs for as long as the aggregator does.
#[derive(Debug)]
pub struct HotReader {
    schedule: Schedule,
    shard: usize,
    /// For each shard, whether it must still be read until all hot cells are known.
    unread: [bool; HOT_SHARDS],
    stage: Stage,
}

impl HotReader {
    /// A reader that has read nothing yet.
    pub fn new(schedule: Schedule) -> HotReader {
        HotReader { schedule, shard: 0, unread: [true; HOT_SHARDS], stage: Stage::Resting }
    }

    /// What to do now.
    pub fn next(&mut self, access: &mut impl Access) -> Next<Call> {
        loop {
            match &mut self.stage {
                Stage::Resting => {
                    self.stage = Stage::Woken;
                    let pause_ms = self.schedule.hot_read_ms / HOT_SHARDS as u64;
                    return Next::Wait { events: Event::Missed.into(), at_most_ms: Some(pause_ms) };
                }
                // Without a subscription to messages, cells that become hot in a shard already read would be missed.
                Stage::Woken if access.state(|state, _| state.listens) => self.stage = Stage::Deciding,
                Stage::Woken => self.stage = Stage::Resting,
                Stage::Deciding => {
                    match access
                        .state(|state, now| (state.is_usable(now.mono), state.region.store_incarnation()))
                    {
                        (false, _) => self.stage = Stage::Resting,
                        (true, incarnation) => {
                            self.stage = Stage::Reading(Shard { incarnation, named: Vec::new(), read: 0 });
                            return Next::Call(Call::Shard(self.shard));
                        }
                    }
                }
                Stage::Reading(shard) => {
                    let left = shard.named.get(shard.read..).unwrap_or_default();
                    let cells: Vec<_> = left.iter().take(READ_CELLS).cloned().collect();
                    if !cells.is_empty() {
                        return Next::Call(Call::Cells(cells));
                    }
                    self.stage = Stage::Resting;
                }
            }
        }
    }

    /// [`Event::Missed`] was notified: messages may have been missed, so all shards are read.
    pub fn notified(&mut self, access: &mut impl Access) {
        self.unread = [true; HOT_SHARDS];
        access.state(|state, _| state.region.set_complete(false));
    }

    /// Takes the cells that the shard names. A `Some`, here and in [`HotReader::read`], means that the shard has been
    /// processed, and carries its result.
    pub fn indexed(
        &mut self,
        access: &mut impl Access,
        result: Result<Vec<(Key, u64)>, Failure>,
    ) -> Option<Result<(), Failure>> {
        let Stage::Reading(shard) = &mut self.stage else { return None };
        match result {
            Err(failure) => Some(self.end(access, Err(failure))),
            Ok(named) if named.is_empty() => Some(self.end(access, Ok(()))),
            Ok(named) => {
                shard.named = named;
                None
            }
        }
    }

    /// Takes what the store holds of `cells`.
    pub fn read(
        &mut self,
        access: &mut impl Access,
        cells: &[(Key, u64)],
        results: &[Result<Merged, Failure>],
    ) -> Option<Result<(), Failure>> {
        let Stage::Reading(shard) = &mut self.stage else { return None };
        shard.read = shard.read.saturating_add(cells.len());
        let (incarnation, is_all) = (shard.incarnation, shard.read >= shard.named.len());
        access.state(|state, now| {
            // If the store was found wiped meanwhile, this may be data from before the wipe. The index is then read
            // again.
            let still = state.region.store_incarnation() == incarnation;
            for ((key, sequence), merged) in cells.iter().zip(results).filter(|_| still) {
                if let Ok(merged) = merged {
                    let learned = state.region.learn(key, *sequence, merged.limit, &merged.current, now.unix);
                    // It stays in the store.
                    add(&mut state.figures.without_room.peers, usize::from(learned == Err(Refused::Full)));
                }
            }
        });
        if let Some(failure) = failure_of(results) {
            return Some(self.end(access, Err(failure)));
        }
        if !is_all {
            return None;
        }
        access.state(|state, _| {
            state.notify(Event::Push);
            state.notify(Event::Replay);
        });
        Some(self.end(access, Ok(())))
    }

    fn end(&mut self, access: &mut impl Access, result: Result<(), Failure>) -> Result<(), Failure> {
        access.state(|state, now| note(state, result, now));
        let was_complete = !self.unread.contains(&true);
        if let Some(unread) = self.unread.get_mut(self.shard) {
            // Until all were read, what was read once stays read: later changes arrive as messages.
            *unread = result.is_err() && (*unread || was_complete);
        }
        // This also happens after a failure, so that the other shards need not wait for this one.
        self.shard = (self.shard + 1) % HOT_SHARDS;
        let is_complete = !self.unread.contains(&true);
        if is_complete {
            access.state(|state, now| {
                state.figures.complete_at = Some(now.mono);
                state.region.set_complete(true);
                state.notify(Event::Push);
            });
        }
        self.stage = if is_complete || result.is_err() { Stage::Resting } else { Stage::Deciding };
        result
    }
}

/// A cell whose value the store rejects was not written by an aggregator. It must not prevent the others from being
/// read.
fn failure_of(results: &[Result<Merged, Failure>]) -> Option<Failure> {
    let nothing = results.iter().all(Result::is_err);
    let failures = results.iter().filter_map(|result| result.as_ref().err().copied());
    failures.into_iter().find(|failure| nothing || !failure.is_refusal())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replication::RegionState;
    use crate::replication::regional::broadcast::connected;
    use crate::replication::testing::{NODE, SEQUENCE, at, backed, key, sum};
    use std::vec;

    fn merged() -> Result<Merged, Failure> {
        Ok(Merged { current: vec![(NODE, 7)], limit: 10, ..Merged::default() })
    }

    /// A reader that waits for its first interval.
    fn started(state: &mut RegionState) -> HotReader {
        let mut reader = HotReader::new(Schedule::default());
        assert!(matches!(reader.next(&mut at(state, 0)), Next::Wait { at_most_ms: Some(312), .. }));
        reader
    }

    fn expect_read(reader: &mut HotReader, state: &mut RegionState, expected: usize) {
        assert_eq!(reader.next(&mut at(state, 0)), Next::Call(Call::Shard(expected)));
    }

    #[test]
    fn first_all_shards_are_read_and_then_one_at_each_interval() {
        let mut state = backed();
        let mut reader = started(&mut state);
        assert!(
            matches!(reader.next(&mut at(&mut state, 0)), Next::Wait { .. }),
            "there is no subscription to messages yet"
        );
        connected(&mut at(&mut state, 0));
        reader.notified(&mut at(&mut state, 0));
        for shard in 0..HOT_SHARDS {
            assert_eq!(state.figures.complete_at, None);
            expect_read(&mut reader, &mut state, shard);
            assert_eq!(reader.indexed(&mut at(&mut state, 1), Ok(vec![])), Some(Ok(())));
        }
        assert!(state.figures.complete_at.is_some());
        for shard in 0..2 {
            assert!(matches!(reader.next(&mut at(&mut state, 0)), Next::Wait { .. }));
            expect_read(&mut reader, &mut state, shard);
            assert_eq!(reader.indexed(&mut at(&mut state, 1), Ok(vec![])), Some(Ok(())));
        }
    }

    #[test]
    fn shards_that_fail_are_read_again_in_their_turn_and_the_others_count() {
        let mut state = backed();
        connected(&mut at(&mut state, 0));
        let mut reader = started(&mut state);
        let mut reads = 0;
        while state.figures.complete_at.is_none() {
            match reader.next(&mut at(&mut state, 0)) {
                Next::Call(Call::Shard(shard)) => assert_eq!(shard, reads % HOT_SHARDS),
                Next::Wait { .. } => continue,
                other => panic!("{other:?}"),
            }
            reads += 1;
            // Each third call fails, in the second round those of other shards.
            let result = if reads % 3 == 0 { Err(Failure::Unavailable) } else { Ok(vec![]) };
            reader.indexed(&mut at(&mut state, 0), result);
            assert!(reads < 2 * HOT_SHARDS, "it is never complete");
        }
        assert_eq!(reads, 31, "the last of those that failed first is the fifteenth");
    }

    #[test]
    fn cells_are_learnt_unless_the_store_was_wiped_meanwhile() {
        let mut state = backed();
        connected(&mut at(&mut state, 0));
        for (wiped, expected) in [(true, 0), (false, 7)] {
            let mut reader = started(&mut state);
            expect_read(&mut reader, &mut state, 0);
            let named = vec![(key("i"), SEQUENCE); READ_CELLS + 1];
            assert_eq!(reader.indexed(&mut at(&mut state, 0), Ok(named)), None);
            if wiped {
                state.region.store_wiped();
            }
            for (count, over) in [(READ_CELLS, None), (1, Some(Ok(())))] {
                let Next::Call(Call::Cells(cells)) = reader.next(&mut at(&mut state, 0)) else {
                    panic!("cells")
                };
                assert_eq!(cells.len(), count);
                let results: Vec<_> = cells.iter().map(|_| merged()).collect();
                assert_eq!(reader.read(&mut at(&mut state, 0), &cells, &results), over);
            }
            assert_eq!(sum(&state), expected);
        }
    }

    #[test]
    fn a_cell_with_a_wrong_value_does_not_prevent_reading_the_others() {
        type Case<'a> = (&'a [Result<Merged, Failure>], Option<Failure>);
        let cases: [Case; 4] = [
            (&[merged(), Err(Failure::OfTheCell)], None),
            (&[merged(), Err(Failure::Refused), Err(Failure::Unavailable)], Some(Failure::Unavailable)),
            (&[Err(Failure::Refused)], Some(Failure::Refused)),
            (&[merged()], None),
        ];
        for (results, expected) in cases {
            assert_eq!(failure_of(results), expected, "{results:?}");
        }
    }
}
