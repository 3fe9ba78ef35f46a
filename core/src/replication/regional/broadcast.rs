//! Messages between the region's aggregators: changed cells, sent soon. Messages may be lost; the hot index (`hot`)
//! makes up for that.

use crate::model::key::{Key, NodeId};
use crate::model::schedule::Schedule;
use crate::model::wire::{Change, Changes, MAX_FRAME_CELLS};
use crate::region::Refused;
use crate::region::exchange::{BASELINE, Part, StoreIds};
use crate::replication::events::Event;
use crate::replication::failure::Failure;
use crate::replication::figures::add;
use crate::replication::{Access, Next, note};
use alloc::vec::Vec;
use prost::Message;

/// A message on the channel that no aggregator can have sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a message of an aggregator")]
pub struct NoMessage;

/// Publishes to the other aggregators what changed here, for as long as the aggregator runs.
#[derive(Debug)]
pub struct Broadcaster {
    id: [u8; 16],
    schedule: Schedule,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waiting,
    Sending,
}

impl Broadcaster {
    /// For the aggregator with this `id`.
    pub fn new(id: [u8; 16], schedule: Schedule) -> Broadcaster {
        Broadcaster { id, schedule, stage: Stage::Waiting }
    }

    /// What to do now: publish a message, then call [`Broadcaster::sent`].
    pub fn next(&mut self, access: &mut impl Access) -> Next<Changes> {
        if self.stage == Stage::Waiting {
            self.stage = Stage::Sending;
            return Next::Wait { events: Event::Broadcast.into(), at_most_ms: None };
        }
        let (cells, StoreIds(store_ids)) = access.state(|state, now| match state.is_usable(now.mono) {
            true => (state.region.next_changes(MAX_FRAME_CELLS), state.region.store_ids().clone()),
            false => (Vec::new(), StoreIds::default()),
        });
        if cells.is_empty() {
            self.stage = Stage::Waiting;
            return Next::Sleep(self.schedule.share_ms);
        }
        let sender = self.id.to_vec();
        Next::Call(Changes { sender, cells, store_ids, ..Changes::default() })
    }

    /// Takes the result of publishing. The hot index makes up for a lost message.
    pub fn sent(&mut self, access: &mut impl Access, result: Result<(), Failure>) {
        access.state(|state, now| note(state, result, now));
    }
}

/// Records that messages are received from now on. Earlier ones may have been missed.
pub fn connected(access: &mut impl Access) {
    access.state(|state, _| {
        state.listens = true;
        state.notify(Event::Missed);
    });
}

/// Processes a message of an aggregator, ignoring those that `id`, this aggregator, has sent itself.
pub fn receive(access: &mut impl Access, id: &[u8; 16], message: &[u8]) -> Result<(), NoMessage> {
    let mut changes = Changes::decode(message).map_err(|_| NoMessage)?;
    if changes.cells.len() > MAX_FRAME_CELLS {
        return Err(NoMessage);
    }
    let store_ids = StoreIds(core::mem::take(&mut changes.store_ids));
    if changes.sender != id {
        access.state(|state, now| {
            if changes.nodes_changed {
                state.notify(Event::Elsewhere);
            }
            if changes.controls_changed {
                state.notify(Event::Controls);
            }
            add(&mut state.figures.changes_received, changes.cells.len());
            for change in &changes.cells {
                let Ok(key) = Key::parse(&change.key) else { continue };
                let (sequence, limit, parts) = (change.sequence, change.limit, parts(change));
                let region = &mut state.region;
                let learned = region.learn_from_peer(&key, sequence, limit, &parts, &store_ids, now.unix);
                // It stays in the store.
                add(&mut state.figures.without_room.peers, usize::from(learned == Err(Refused::Full)));
                state.region.learn_limit(&key, change, now.unix);
            }
            state.notify(Event::Push);
        });
    }
    Ok(())
}

fn parts(change: &Change) -> Vec<Part> {
    let part = |part: &crate::model::wire::Part| {
        let node: [u8; 16] = part.node.as_slice().try_into().ok()?;
        let node = NodeId::parse(&node).unwrap_or(BASELINE);
        Some((node, part.own))
    };
    change.parts.iter().filter_map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::wire::Part;
    use crate::region::exchange::Merged;
    use crate::replication::testing::{NODE, NOW, SEQUENCE, at, backed, key, report, sum};
    use std::vec;

    const A: [u8; 16] = [7; 16];
    const B: [u8; 16] = [8; 16];

    #[test]
    fn hot_cells_that_are_in_the_store_are_published_to_the_peers() {
        let (mut state, mut broadcaster) = (backed(), Broadcaster::new(A, Schedule::default()));
        assert!(matches!(broadcaster.next(&mut at(&mut state, 0)), Next::Wait { .. }));
        state.take(NODE, report(1, 7), NOW).unwrap();
        for merge in state.region.next_merges(9) {
            let merged = Merged { current: merge.parts.clone(), limit: 10, ..Merged::default() };
            state.region.merged(&merge, &merged, NOW.unix);
        }
        let Next::Call(changes) = broadcaster.next(&mut at(&mut state, 0)) else { panic!("it is hot") };
        broadcaster.sent(&mut at(&mut state, 0), Ok(()));
        assert_eq!(broadcaster.next(&mut at(&mut state, 0)), Next::Sleep(Schedule::default().share_ms));

        let message = changes.encode_to_vec();
        let mut peer = backed();
        receive(&mut at(&mut peer, 0), &A, &message).unwrap();
        assert_eq!(peer.figures.changes_received, 0, "an aggregator ignores its own messages");
        receive(&mut at(&mut peer, 0), &B, &message).unwrap();
        assert_eq!((sum(&peer), peer.figures.changes_received), (7, 1));
        assert!(peer.take_events().has(Event::Push));
    }

    #[test]
    fn what_a_peer_found_in_another_incarnation_counts_and_is_written_again() {
        let (mut state, mut broadcaster) = (backed(), Broadcaster::new(A, Schedule::default()));
        broadcaster.next(&mut at(&mut state, 0));
        state.take(NODE, report(1, 7), NOW).unwrap();
        for merge in state.region.next_merges(9) {
            let merged = Merged { current: merge.parts.clone(), limit: 10, ..Merged::default() };
            state.region.merged(&merge, &merged, NOW.unix);
        }
        let Next::Call(changes) = broadcaster.next(&mut at(&mut state, 0)) else { panic!("it is hot") };
        let without_ids = Changes { store_ids: vec![], ..changes.clone() };
        for (message, is_wiped, written) in
            [(&changes, false, 0), (&changes, true, 1), (&without_ids, false, 1)]
        {
            let mut peer = backed();
            if is_wiped {
                peer.region.store_wiped();
                peer.region.set_store_ids(StoreIds(vec![2]));
            }
            receive(&mut at(&mut peer, 0), &B, &message.encode_to_vec()).unwrap();
            let merges = peer.region.next_merges(9).into_iter().filter(|merge| !merge.parts.is_empty());
            assert_eq!((sum(&peer), merges.count()), (7, written), "{is_wiped}");
        }
    }

    /// A server of a cluster was away when one of them started.
    #[test]
    fn what_a_peer_found_is_not_written_again_because_one_of_them_lacks_a_marker() {
        let key = key("i").as_bytes().to_vec();
        let part = Part { node: NODE.0.to_vec(), own: 7 };
        let cells =
            vec![Change { key, sequence: SEQUENCE, limit: 10, parts: vec![part], ..Change::default() }];
        let cases: [(&[u64], &[u64], usize); 6] = [
            (&[5, 6], &[5, 6], 0),
            (&[5, 6], &[5], 0),
            (&[5, 0, 7], &[5, 6, 7], 0),
            (&[5, 0], &[0, 6], 1),
            (&[5, 6], &[5, 8], 1),
            (&[], &[5], 1),
        ];
        for (sent, known, written) in cases {
            let mut peer = backed();
            peer.region.set_store_ids(StoreIds(known.to_vec()));
            let (sender, cells, store_ids) = (A.to_vec(), cells.clone(), sent.to_vec());
            let message = Changes { sender, cells, store_ids, ..Changes::default() };
            receive(&mut at(&mut peer, 0), &B, &message.encode_to_vec()).unwrap();
            let merges = peer.region.next_merges(9).into_iter().filter(|merge| !merge.parts.is_empty());
            assert_eq!((sum(&peer), merges.count()), (7, written), "{sent:?} {known:?}");
        }
    }

    #[test]
    fn an_invalid_message_is_refused_and_changes_nothing() {
        let mut state = backed();
        assert_eq!(receive(&mut at(&mut state, 0), &A, b"\xff\xff"), Err(NoMessage));
        let many = Changes { cells: vec![Change::default(); MAX_FRAME_CELLS + 1], ..Changes::default() };
        assert_eq!(receive(&mut at(&mut state, 0), &A, &many.encode_to_vec()), Err(NoMessage));
        let no_cell = Changes { cells: vec![Change::default()], nodes_changed: true, ..Changes::default() };
        assert_eq!(receive(&mut at(&mut state, 0), &A, &no_cell.encode_to_vec()), Ok(()));
        assert_eq!(state.region.explain(b"w", b"n", b"i"), vec![]);
        let events = state.take_events();
        assert!(events.has(Event::Elsewhere) && !events.has(Event::Controls));
        let control = Changes { controls_changed: true, ..Changes::default() };
        assert_eq!(receive(&mut at(&mut state, 0), &A, &control.encode_to_vec()), Ok(()));
        assert!(state.take_events().has(Event::Controls));
    }
}
