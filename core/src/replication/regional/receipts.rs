//! Receipts: what a marker holds of the writes that a server has acknowledged.
//!
//! Looks at a marker are some time apart, and between two of them a server may be set back by less than that. So each
//! pipeline of writes ends with a step that records its number in the marker: data that have the number have the writes
//! before it. The next look states the numbers of all pipelines that were answered, and gives the marker a new id if one
//! of them is missing.
//!
//! Pipelines that are in flight together are executed in any order, so one number for all would show only that the last
//! of them was executed. Each takes a lane of its own, and the marker keeps the highest number of each lane. A pipeline
//! also states the last number that was answered in its lane. Data that lack it were set back, and record nothing more
//! in this lane. So no later number hides a missing one.

use alloc::collections::{BTreeMap, BTreeSet};

/// By lane, the highest number.
pub type Lanes = BTreeMap<u32, u64>;

/// What a pipeline of writes records in the marker at `place` as its last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Which marker.
    pub place: u16,
    /// The id that the marker has, or nothing is recorded.
    pub id: u128,
    /// No other pipeline of this reader that is in flight to this marker has the same one.
    pub lane: u32,
    /// Higher than that of each earlier pipeline.
    pub number: u64,
    /// The marker has at least this number in the lane, or nothing is recorded.
    pub after: u64,
}

/// How a pipeline of writes ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It has written nothing, or nothing is known about it. Its writes do not count as stored.
    Unanswered,
    /// The marker has its number.
    Recorded,
    /// Its writes were executed, and the marker does not have its number: it was replaced or set back.
    Unrecorded,
}

/// What one reader of a store's markers was answered about its writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receipts {
    last_number: u64,
    /// By place, the lanes of pipelines in flight.
    in_use: BTreeSet<(u16, u32)>,
    places: BTreeMap<u16, Answered>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Answered {
    id: u128,
    lanes: Lanes,
    is_unrecorded: bool,
}

impl Receipts {
    /// The marker at `place` was read. What was answered in an earlier incarnation does not count as stored any more.
    pub fn read(&mut self, place: u16, id: u128) {
        let answered = self.places.entry(place).or_default();
        if answered.id != id {
            *answered = Answered { id, ..Answered::default() };
        }
    }

    /// The receipt of a pipeline that begins; `None` if the marker was not read yet. [`Self::end`] must follow.
    pub fn begin(&mut self, place: u16) -> Option<Receipt> {
        let answered = self.places.get(&place)?;
        let lane = (0..).find(|lane| !self.in_use.contains(&(place, *lane)))?;
        let after = answered.lanes.get(&lane).copied().unwrap_or(0);
        self.in_use.insert((place, lane));
        self.last_number = self.last_number.saturating_add(1);
        Some(Receipt { place, id: answered.id, lane, number: self.last_number, after })
    }

    /// A pipeline has ended. Must be called before its writes count as stored.
    pub fn end(&mut self, receipt: &Receipt, ended: Ended) {
        self.in_use.remove(&(receipt.place, receipt.lane));
        let Some(answered) = self.places.get_mut(&receipt.place).filter(|at| at.id == receipt.id) else {
            return;
        };
        match ended {
            Ended::Unanswered => {}
            Ended::Recorded => {
                answered.lanes.insert(receipt.lane, receipt.number);
            }
            Ended::Unrecorded => answered.is_unrecorded = true,
        }
    }

    /// The numbers that the marker at `place` must have if its id is `id`; `None` if writes were executed whose number
    /// no such marker has.
    pub fn stated(&self, place: u16, id: u128) -> Option<Lanes> {
        match self.places.get(&place).filter(|answered| answered.id == id) {
            Some(answered) => (!answered.is_unrecorded).then(|| answered.lanes.clone()),
            None => Some(Lanes::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::time::UnixMs;
    use crate::replication::regional::marker::{Incarnation, LastRead, Look, Marker, Server};
    use proptest::prelude::*;
    use std::vec::Vec;

    const READER: [u8; 16] = [1; 16];

    /// A server: its marker, and the numbers of the writes that it has executed.
    #[derive(Clone, Default)]
    struct Store {
        marker: Option<Marker>,
        writes: BTreeSet<u64>,
    }

    impl Store {
        fn write(&mut self, receipt: &Receipt) -> Ended {
            self.writes.insert(receipt.number);
            match Marker::record(&mut self.marker, &READER, receipt) {
                true => Ended::Recorded,
                false => Ended::Unrecorded,
            }
        }
    }

    /// A client, its calls in flight, and what it takes as stored.
    #[derive(Default)]
    struct Client {
        receipts: Receipts,
        last: LastRead,
        stored: BTreeSet<u64>,
        /// Each with its answer once it was executed.
        writes: Vec<(Receipt, Option<Ended>)>,
        /// Writes whose caller has stopped waiting.
        late: Vec<Receipt>,
        look: Option<(Look, Option<Incarnation>)>,
        looks: u128,
        incarnations: u32,
    }

    impl Client {
        fn begin(&mut self) {
            self.writes.extend(self.receipts.begin(0).map(|receipt| (receipt, None)));
        }

        fn answered(&mut self, at: usize) {
            let Some((receipt, Some(ended))) = self.writes.get(at).copied() else { return };
            self.writes.remove(at);
            self.receipts.end(&receipt, ended);
            if self.last.at(0).is_some_and(|last| last.id == receipt.id) {
                self.stored.insert(receipt.number);
            }
        }

        fn gives_up(&mut self, at: usize) {
            if at < self.writes.len() {
                let (receipt, _) = self.writes.remove(at);
                self.receipts.end(&receipt, Ended::Unanswered);
                self.late.push(receipt);
            }
        }

        fn looks(&mut self) {
            if self.look.is_none() {
                self.looks += 1;
                let (last, receipts) = (self.last.clone(), self.receipts.clone());
                self.look = Some((Look { reader: READER, fresh: self.looks, last, receipts }, None));
            }
        }

        fn look_reaches(&mut self, store: &mut Store) {
            if let Some((look, answer @ None)) = &mut self.look {
                let server = Some(Server { process: 1, promotion: 0 });
                *answer = Some(Marker::read(&mut store.marker, 0, look, server, UnixMs(1)));
            }
        }

        fn look_is_answered(&mut self) {
            let Some((_, Some(read))) = self.look else { return };
            self.look = None;
            self.receipts.read(read.place, read.id);
            if self.last.insert(read).is_none_or(|last| last.id != read.id) {
                // All is written again.
                self.stored.clear();
                self.incarnations += 1;
            }
        }

        fn whole_look(&mut self, store: &mut Store) {
            self.look = None;
            self.looks();
            self.look_reaches(store);
            self.look_is_answered();
        }
    }

    fn step(client: &mut Client, store: &mut Store, copies: &mut Vec<Store>, (what, at): (u8, usize)) {
        match what {
            0..=3 => client.begin(),
            4..=7 => {
                if let Some((receipt, answer @ None)) = client.writes.get_mut(at) {
                    *answer = Some(store.write(receipt));
                }
            }
            8..=11 => client.answered(at),
            12 => client.gives_up(at),
            13 => {
                if let Some(receipt) = client.late.get(at) {
                    store.write(receipt);
                }
            }
            14 => client.looks(),
            15 => client.look_reaches(store),
            16 => client.look_is_answered(),
            17 => client.look = None,
            18 => copies.push(store.clone()),
            _ => {
                if let Some(copy) = copies.get(at) {
                    *store = copy.clone();
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        #[test]
        fn the_next_look_finds_each_loss_of_what_counts_as_stored(
            steps in proptest::collection::vec((0..20_u8, 0..4_usize), 0..80),
            is_set_back: bool,
        ) {
            let (mut client, mut store, mut copies) = (Client::default(), Store::default(), Vec::new());
            client.whole_look(&mut store);
            for (what, at) in steps {
                if is_set_back || what < 19 {
                    step(&mut client, &mut store, &mut copies, (what, at));
                }
            }
            client.whole_look(&mut store);
            prop_assert!(client.stored.is_subset(&store.writes), "{:?} of {:?}", client.stored, store.writes);
            if !is_set_back {
                prop_assert_eq!(client.incarnations, 1);
            }
            // One loss is one new incarnation.
            let found = client.incarnations;
            while !client.writes.is_empty() {
                client.gives_up(0);
            }
            for _ in 0..3 {
                client.begin();
                step(&mut client, &mut store, &mut copies, (4, 0));
                client.answered(0);
            }
            client.whole_look(&mut store);
            prop_assert_eq!(client.incarnations, found);
        }
    }

    fn client(store: &mut Store) -> Client {
        let mut client = Client::default();
        assert_eq!(client.receipts.begin(0), None, "the marker was not read");
        client.whole_look(store);
        client
    }

    #[test]
    fn writes_in_flight_together_have_lanes_of_their_own() {
        let mut store = Store::default();
        let Client { mut receipts, .. } = client(&mut store);
        let mut lanes = BTreeSet::new();
        for round in 1..=3 {
            let begun: Vec<_> = (0..4).filter_map(|_| receipts.begin(0)).collect();
            lanes.extend(begun.iter().map(|receipt| receipt.lane));
            for receipt in begun.iter().rev() {
                receipts.end(receipt, store.write(receipt));
            }
            assert_eq!(lanes.len(), 4, "round {round}");
        }
    }

    #[test]
    fn a_later_number_hides_no_missing_one() {
        let mut store = Store::default();
        let mut client = client(&mut store);
        let copy = store.clone();
        for is_set_back in [false, true] {
            if is_set_back {
                store = copy.clone();
            }
            client.begin();
            step(&mut client, &mut store, &mut Vec::new(), (4, 0));
            client.answered(0);
        }
        assert_eq!((client.stored.len(), store.writes.len()), (2, 1));
        client.whole_look(&mut store);
        assert_eq!(client.incarnations, 2);
    }

    #[test]
    fn a_missing_marker_takes_no_receipt() {
        let mut store = Store::default();
        let mut client = client(&mut store);
        client.begin();
        store.marker = None;
        step(&mut client, &mut store, &mut Vec::new(), (4, 0));
        assert!(store.marker.is_none());
        client.answered(0);
        client.whole_look(&mut store);
        assert_eq!(client.incarnations, 2);
    }
}
