//! Markers: keys of the store that show that a server may have lost what it acknowledged.
//!
//! A read of a marker is one step at its server. The same step gives the marker a new id, which begins another
//! incarnation, if
//!
//! - the marker is missing: the server was emptied;
//! - another server holds it: a replica was promoted, or the server was started again. Such a server may lack what was
//!   acknowledged a moment before, whatever it has of the marker;
//! - it counts fewer reads of this aggregator than the aggregator has received answers to, or lacks the number of one of
//!   its writes (`receipts`): the server was set back to older data.
//!
//! An aggregator that reads a marker for the first time removes those from it that have not read for [`READERS_MS`], and
//! records in it when the last of these has. So one that was away for long does not find its missing number a loss.
//!
//! So every aggregator finds every loss by the id alone, also one whose answer to the read that began the incarnation
//! was lost, and one that starts only then.

use crate::model::time::UnixMs;
use crate::region::exchange::StoreIds;
use crate::replication::regional::receipts::{Lanes, Receipt, Receipts, Step};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

/// A reader that has not read for this time may be removed from a marker, in milliseconds.
pub const READERS_MS: u64 = 3_600_000;

/// A process that serves a store, with the data that it began with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Server {
    /// Random, another one at each start.
    pub process: u128,
    /// If it was a replica that was promoted: random, another one at each promotion. Otherwise 0, also once the server
    /// has dropped what it knew of it.
    pub promotion: u128,
}

impl Server {
    /// Whether it has all that was written to `before`.
    pub fn continues(self, before: Server) -> bool {
        self.process == before.process && (self.promotion == before.promotion || self.promotion == 0)
    }
}

/// What one marker holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incarnation {
    /// Which marker: 0 on a single server, 0 to 63 on a cluster.
    pub place: u16,
    /// Random. If it differs from the last one, the server of this marker may have lost data.
    pub id: u128,
    /// How often this aggregator has read this marker in this incarnation, this read included.
    pub looks: u64,
    /// The server that holds the marker; `None` if it does not state which one it is.
    pub server: Option<Server>,
    /// When this incarnation began, by the server's clock.
    pub since: UnixMs,
    /// The age of this incarnation by the server's clock, in milliseconds.
    pub age_ms: u64,
}

impl Incarnation {
    /// When the marker was read, by the server's clock.
    pub fn read_at(&self) -> UnixMs {
        UnixMs(self.since.0.saturating_add(self.age_ms))
    }
}

/// The markers of all servers that answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Incarnations {
    /// In the order of `place`.
    pub seen: Vec<Incarnation>,
    /// Number of markers whose server did not answer. Nothing is known about these.
    pub unseen: usize,
    /// Whether one of these servers answered that it loads its data, or that the cluster is down.
    pub is_loading: bool,
}

/// The last answer about each marker. A read states it, so that the server can compare.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LastRead {
    places: BTreeMap<u16, Incarnation>,
}

impl LastRead {
    /// Whether no marker was read yet.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The last answer about the marker at `place`.
    pub fn at(&self, place: u16) -> Option<&Incarnation> {
        self.places.get(&place)
    }

    /// The servers that held markers. As a slot of a cluster moves from one of them to another, nothing is lost.
    pub fn servers(&self) -> BTreeSet<Server> {
        self.places.values().filter_map(|last| last.server).collect()
    }

    /// Replaces the answer about a marker, and returns the one before.
    pub fn insert(&mut self, read: Incarnation) -> Option<Incarnation> {
        self.places.insert(read.place, read)
    }

    /// The ids of all markers that were read. Two aggregators whose ids agree have found the same losses.
    pub(super) fn ids(&self) -> StoreIds {
        let places = self.places.keys().next_back().map_or(0, |last| usize::from(*last).saturating_add(1));
        let mut ids = alloc::vec![0; places];
        for (place, last) in &self.places {
            if let Some(id) = ids.get_mut(usize::from(*place)) {
                *id = ((last.id >> 64) as u64 ^ last.id as u64).max(1);
            }
        }
        StoreIds(ids)
    }
}

/// A marker as its server stores it, for stores that run in memory. `incarnation.lua` is the same in Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    id: u128,
    since: UnixMs,
    server: Option<Server>,
    readers: BTreeMap<[u8; 16], Reader>,
    /// When the last read was of those readers that were removed.
    removed: UnixMs,
}

/// What a marker holds of one reader.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Reader {
    /// How often it has read.
    looks: u64,
    /// When it did last.
    at: UnixMs,
    /// The numbers of its writes.
    receipts: Lanes,
}

/// One read of a marker.
#[derive(Clone, Debug)]
pub struct Look {
    /// The reading aggregator.
    pub reader: [u8; 16],
    /// The id of the incarnation that this read may begin.
    pub fresh: u128,
    /// The last answers to this reader.
    pub last: LastRead,
    /// What was answered about its writes.
    pub receipts: Receipts,
}

impl Marker {
    /// Reads the marker at `place`, which `server` holds.
    pub fn read(
        stored: &mut Option<Marker>,
        place: u16,
        look: &Look,
        server: Option<Server>,
        now: UnixMs,
    ) -> Incarnation {
        stored.take_if(|marker| marker.was_set_back(place, look) || marker.has_moved(look, server));
        let anew =
            || Marker { id: look.fresh, since: now, server, readers: BTreeMap::new(), removed: UnixMs(0) };
        let marker = stored.get_or_insert_with(anew);
        marker.server = server.or(marker.server);
        if !marker.readers.contains_key(&look.reader) {
            marker.remove_readers(now);
        }
        // A reader that was removed counts on from what was answered to it.
        let reader = marker.readers.entry(look.reader).or_insert_with(|| {
            let answered = look.last.at(place).filter(|last| last.id == marker.id);
            let receipts = answered.and_then(|last| look.receipts.stated(place, last.id));
            let looks = answered.map_or(0, |last| last.looks);
            Reader { looks, at: now, receipts: receipts.unwrap_or_default() }
        });
        (reader.looks, reader.at) = (reader.looks.saturating_add(1), now);
        let looks = reader.looks;
        let age_ms = now.0.saturating_sub(marker.since.0);
        Incarnation { place, id: marker.id, looks, server, since: marker.since, age_ms }
    }

    /// Records a step of the receipt of a pipeline of `reader`, and returns whether the marker has it. `receipt.lua` is the
    /// same in Redis.
    pub fn record(stored: &mut Option<Marker>, reader: &[u8; 16], receipt: &Receipt, step: Step) -> bool {
        let marker = stored.as_mut().filter(|marker| marker.id == receipt.id);
        let Some(reader) = marker.and_then(|marker| marker.readers.get_mut(reader)) else { return false };
        let held = reader.receipts.get(&receipt.lane).copied().unwrap_or(0);
        if held < step.after {
            return false;
        }
        reader.receipts.insert(receipt.lane, held.max(step.number));
        true
    }

    fn was_set_back(&self, place: u16, look: &Look) -> bool {
        let Some(last) = look.last.at(place).filter(|last| last.id == self.id) else { return false };
        let Some(stated) = look.receipts.stated(place, last.id) else { return true };
        match self.readers.get(&look.reader) {
            Some(reader) => {
                let is_missing = |(lane, number)| reader.receipts.get(lane).is_none_or(|held| held < number);
                reader.looks < last.looks || stated.iter().any(is_missing)
            }
            // Data from before the reader was removed do not state that.
            None => self.removed < last.read_at(),
        }
    }

    fn remove_readers(&mut self, now: UnixMs) {
        let removed = &mut self.removed;
        self.readers.retain(|_, Reader { at, .. }| {
            let stays = at.0.saturating_add(READERS_MS) >= now.0;
            if !stays {
                *removed = (*removed).max(*at);
            }
            stays
        });
    }

    fn has_moved(&self, look: &Look, server: Option<Server>) -> bool {
        let Some((before, server)) = self.server.zip(server) else { return false };
        !server.continues(before) && !look.last.servers().contains(&server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: [u8; 16] = [1; 16];
    const OTHER: [u8; 16] = [2; 16];
    const A: Server = Server { process: 10, promotion: 0 };

    fn look(reader: [u8; 16], fresh: u128, last: &LastRead) -> Look {
        Look { reader, fresh, last: last.clone(), receipts: Receipts::default() }
    }

    fn read(stored: &mut Option<Marker>, fresh: u128, last: &mut LastRead, server: Server) -> u128 {
        let read = Marker::read(stored, 0, &look(ONE, fresh, last), Some(server), UnixMs(fresh as u64));
        last.insert(read);
        read.id
    }

    #[test]
    fn a_server_continues_itself_until_it_is_promoted() {
        let promoted = Server { promotion: 5, ..A };
        let cases = [
            (A, A, true),
            (Server { process: 11, ..A }, A, false),
            (promoted, A, false),
            (promoted, promoted, true),
            (Server { promotion: 6, ..A }, promoted, false),
            (A, promoted, true), // it has dropped what it knew of the promotion
        ];
        for (now, before, expected) in cases {
            assert_eq!(now.continues(before), expected, "{now:?} after {before:?}");
        }
    }

    #[test]
    fn each_loss_begins_an_incarnation_and_nothing_else_does() {
        let (mut marker, mut last) = (None, LastRead::default());
        assert_eq!((1..4).map(|fresh| read(&mut marker, fresh, &mut last, A)).last(), Some(1));
        let b = Server { process: 11, promotion: 7 };
        assert_eq!(read(&mut marker, 5, &mut last, b), 5, "a replica was promoted");
        assert_eq!(read(&mut marker, 6, &mut last, b), 5);
        assert_eq!(read(&mut marker, 7, &mut last, Server { promotion: 0, ..b }), 5);
        assert_eq!(read(&mut marker, 8, &mut last, Server { promotion: 9, ..b }), 8, "there and back");
        let copy = marker.clone();
        read(&mut marker, 9, &mut last, Server { promotion: 9, ..b });
        marker = copy;
        assert_eq!(read(&mut marker, 10, &mut last, Server { promotion: 9, ..b }), 10, "set back by a read");
        marker = None;
        assert_eq!(read(&mut marker, 11, &mut last, A), 11, "emptied");
    }

    #[test]
    fn a_lost_answer_hides_no_loss() {
        let (mut marker, mut last) = (None, LastRead::default());
        for fresh in 1..4 {
            read(&mut marker, fresh, &mut last, A);
        }
        let b = Server { process: 11, ..A };
        Marker::read(&mut marker, 0, &look(ONE, 4, &last), Some(b), UnixMs(4));
        assert_eq!(read(&mut marker, 5, &mut last, b), 4);
        // An aggregator that starts now reads an incarnation that has just begun.
        let first = Marker::read(&mut marker, 0, &look(OTHER, 6, &LastRead::default()), Some(b), UnixMs(6));
        assert_eq!((first.id, first.looks, first.age_ms), (4, 1, 2));
    }

    #[test]
    fn a_reader_that_was_away_for_long_finds_no_loss_unless_there_was_one() {
        let reads = |stored: &mut Option<Marker>, reader, last: &mut LastRead, at| {
            let read = Marker::read(stored, 0, &look(reader, u128::from(at), last), Some(A), UnixMs(at));
            last.insert(read);
            (read.id, read.looks)
        };
        let (mut marker, mut last) = (None, LastRead::default());
        for at in 1..=3 {
            reads(&mut marker, ONE, &mut last, at);
        }
        let before = marker.clone();
        let (late, soon) = (3 + READERS_MS + 1, 3 + READERS_MS);
        for at in [soon, late] {
            // A reader that is new removes those that have ended.
            let reader = [at as u8; 16];
            assert_eq!(reads(&mut marker, reader, &mut LastRead::default(), at), (1, 1));
        }
        let copy = marker.clone();
        let (mut away, mut too) = (last.clone(), last.clone());
        assert_eq!(reads(&mut marker, ONE, &mut away, late + 1), (1, 4));
        assert_eq!(reads(&mut marker, ONE, &mut away, late + 2), (1, 5));
        // Data from after the reader was removed have all that it had stored, and lack its reads since.
        marker = copy;
        assert_eq!(reads(&mut marker, ONE, &mut away, late + 3), (u128::from(late + 3), 1));
        marker = before.map(|marker| Marker { readers: BTreeMap::new(), ..marker });
        assert_eq!(reads(&mut marker, ONE, &mut too, late + 4), (u128::from(late + 4), 1), "set back");
    }

    #[test]
    fn a_marker_that_moves_to_a_known_server_stays() {
        let (mut markers, mut last) = ([None, None], LastRead::default());
        let b = Server { process: 11, ..A };
        for (place, server) in [(0, A), (1, b)] {
            let read = Marker::read(
                &mut markers[usize::from(place)],
                place,
                &look(ONE, 1, &last),
                Some(server),
                UnixMs(1),
            );
            last.insert(read);
        }
        let moved = Marker::read(&mut markers[0], 0, &look(ONE, 2, &last), Some(b), UnixMs(2));
        assert_eq!((moved.id, moved.server), (1, Some(b)));
        let lost = Marker::read(
            &mut markers[1],
            1,
            &look(ONE, 3, &last),
            Some(Server { process: 12, ..A }),
            UnixMs(3),
        );
        assert_eq!(lost.id, 3);
    }

    #[test]
    fn a_server_that_does_not_state_which_it_is_is_compared_by_reads_alone() {
        let (mut marker, last) = (None, LastRead::default());
        for (fresh, server) in [(1, None), (2, Some(A)), (3, None), (4, Some(A))] {
            assert_eq!(Marker::read(&mut marker, 0, &look(ONE, fresh, &last), server, UnixMs(1)).id, 1);
        }
    }
}
