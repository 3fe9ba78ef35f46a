//! What the region's aggregators tell each other: cells that changed, soon, by messages that may be lost (`hot`).
//!
//! Leaves to others: what is worth telling (`region`), channels (`aggregator`).

use crate::model::cadence::Cadence;
use crate::model::key::{Key, OriginId};
use crate::model::wire::{Change, Changes, MAX_FRAME_CELLS};
use crate::region::exchange::{BASE, Part};
use crate::replication::bells::Bell;
use crate::replication::failure::Failure;
use crate::replication::figures::add;
use crate::replication::{Access, Next, note};
use alloc::vec::Vec;
use prost::Message;

/// What came over the channel is no message of an aggregator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a message of an aggregator")]
pub struct NoMessage;

/// Tells the others what changed here, for as long as the aggregator runs.
#[derive(Debug)]
pub struct Teller {
    id: [u8; 16],
    cadence: Cadence,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waiting,
    Telling,
}

impl Teller {
    /// For the aggregator that is called `id`.
    pub fn new(id: [u8; 16], cadence: Cadence) -> Teller {
        Teller { id, cadence, stage: Stage::Waiting }
    }

    /// What to do now: publish a message, then see [`Teller::sent`].
    pub fn next(&mut self, access: &mut impl Access) -> Next<Changes> {
        if self.stage == Stage::Waiting {
            self.stage = Stage::Telling;
            return Next::Wait { bells: Bell::Tell.into(), at_most_ms: None };
        }
        let cells = access.desk(|desk, now| match desk.is_usable(now.mono) {
            true => desk.region.next_changes(MAX_FRAME_CELLS),
            false => Vec::new(),
        });
        if cells.is_empty() {
            self.stage = Stage::Waiting;
            return Next::Sleep(self.cadence.share_ms);
        }
        Next::Call(Changes { sender: self.id.to_vec(), cells, ..Changes::default() })
    }

    /// Takes how it went. A message that is lost is made up for by the hot index.
    pub fn sent(&mut self, access: &mut impl Access, result: Result<(), Failure>) {
        access.desk(|desk, now| note(desk, result, now));
    }
}

/// From now on messages are heard; earlier ones may have been missed.
pub fn connected(access: &mut impl Access) {
    access.desk(|desk, _| {
        desk.listens = true;
        desk.ring(Bell::Missed);
    });
}

/// Takes what somebody says, the aggregator `id` itself perhaps.
pub fn hear(access: &mut impl Access, id: &[u8; 16], message: &[u8]) -> Result<(), NoMessage> {
    let changes = Changes::decode(message).map_err(|_| NoMessage)?;
    if changes.cells.len() > MAX_FRAME_CELLS {
        return Err(NoMessage);
    }
    if changes.sender != id {
        access.desk(|desk, now| {
            if changes.origins_changed {
                desk.ring(Bell::Elsewhere);
            }
            if changes.controls_changed {
                desk.ring(Bell::Controls);
            }
            add(&mut desk.figures.changes_heard, changes.cells.len());
            for change in &changes.cells {
                let Ok(key) = Key::parse(&change.key) else { continue };
                // A cell that there is no room for stays in the store.
                let _ = desk.region.learn(&key, change.sequence, change.limit, &parts(change), now.unix);
            }
            desk.ring(Bell::Push);
        });
    }
    Ok(())
}

fn parts(change: &Change) -> Vec<Part> {
    let part = |part: &crate::model::wire::Part| {
        let origin: [u8; 16] = part.origin.as_slice().try_into().ok()?;
        let origin = OriginId::parse(&origin).unwrap_or(BASE);
        Some((origin, part.own))
    };
    change.parts.iter().filter_map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::exchange::Merged;
    use crate::replication::testing::{NOW, ORIGIN, at, backed, report, sum};
    use std::vec;

    const A: [u8; 16] = [7; 16];
    const B: [u8; 16] = [8; 16];

    #[test]
    fn what_the_store_has_and_is_hot_is_told_to_the_others() {
        let (mut desk, mut teller) = (backed(), Teller::new(A, Cadence::default()));
        assert!(matches!(teller.next(&mut at(&mut desk, 0)), Next::Wait { .. }));
        desk.take(ORIGIN, report(1, 7), NOW).unwrap();
        for merge in desk.region.next_merges(9) {
            let word = Merged { current: merge.parts.clone(), limit: 10, ..Merged::default() };
            desk.region.merged(&merge, &word, NOW.unix);
        }
        let Next::Call(changes) = teller.next(&mut at(&mut desk, 0)) else { panic!("it is hot") };
        teller.sent(&mut at(&mut desk, 0), Ok(()));
        assert_eq!(teller.next(&mut at(&mut desk, 0)), Next::Sleep(Cadence::default().share_ms));

        let message = changes.encode_to_vec();
        let mut sister = backed();
        hear(&mut at(&mut sister, 0), &A, &message).unwrap();
        assert_eq!(sister.figures.changes_heard, 0, "its own");
        hear(&mut at(&mut sister, 0), &B, &message).unwrap();
        assert_eq!((sum(&sister), sister.figures.changes_heard), (7, 1));
        assert!(sister.take_bells().has(Bell::Push));
    }

    #[test]
    fn what_is_no_message_is_refused_and_spoils_nothing() {
        let mut desk = backed();
        assert_eq!(hear(&mut at(&mut desk, 0), &A, b"\xff\xff"), Err(NoMessage));
        let many = Changes { cells: vec![Change::default(); MAX_FRAME_CELLS + 1], ..Changes::default() };
        assert_eq!(hear(&mut at(&mut desk, 0), &A, &many.encode_to_vec()), Err(NoMessage));
        let no_cell = Changes { cells: vec![Change::default()], origins_changed: true, ..Changes::default() };
        assert_eq!(hear(&mut at(&mut desk, 0), &A, &no_cell.encode_to_vec()), Ok(()));
        assert_eq!(desk.region.explain(b"w", b"n", b"i"), vec![]);
        let bells = desk.take_bells();
        assert!(bells.has(Bell::Elsewhere) && !bells.has(Bell::Controls));
        let control = Changes { controls_changed: true, ..Changes::default() };
        assert_eq!(hear(&mut at(&mut desk, 0), &A, &control.encode_to_vec()), Ok(()));
        assert!(desk.take_bells().has(Bell::Controls));
    }
}
