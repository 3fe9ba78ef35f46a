//! Receipts: what a marker holds of the writes that a server has acknowledged.
//!
//! Looks at a marker are some time apart, and between two of them a server may be set back by less than that. So each
//! pipeline of writes begins and ends with a step that records a number in the marker. The last step records its number
//! only if the marker still has that of the first: data that have it have the writes between both. The next look states
//! the last numbers of all pipelines that were answered, and gives the marker a new id if one of them is missing.
//!
//! Pipelines that are in flight together are executed in any order, so one number for all would show only that the last
//! of them was executed. Each takes a lane of its own, and the marker keeps the highest number of each lane. The first
//! step of a pipeline states the last number that was answered in its lane. Data that lack it were set back, and record
//! nothing more in this lane. So no later number hides a missing one.
//!
//! One loss is not found: data of a moment between two steps of one pipeline that replace the server's before the last
//! step of the same one.

use alloc::collections::{BTreeMap, BTreeSet};

/// By lane, the highest number.
pub type Lanes = BTreeMap<u32, u64>;

/// What a pipeline of writes records in the marker at `place`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Which marker.
    pub place: u16,
    /// The id that the marker has, or nothing is recorded.
    pub id: u128,
    /// No other pipeline of this reader that is in flight to this marker has the same one.
    pub lane: u32,
    /// What its first step records. The number is higher than those of all earlier pipelines.
    pub first: Step,
    /// What its last step records.
    pub last: Step,
}

/// A number that one step of a pipeline records in its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// What the lane has from then on.
    pub number: u64,
    /// The lane has at least this number before, or nothing is recorded.
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
        let first = Step { number: self.last_number.saturating_add(1), after };
        let last = Step { number: first.number.saturating_add(1), after: first.number };
        self.last_number = last.number;
        Some(Receipt { place, id: answered.id, lane, first, last })
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
                answered.lanes.insert(receipt.lane, receipt.last.number);
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

    /// A server: its marker, and the last numbers of the pipelines whose writes it has.
    #[derive(Clone, Default)]
    struct Store {
        marker: Option<Marker>,
        writes: BTreeSet<u64>,
    }

    impl Store {
        /// Executes all of a pipeline.
        fn write(&mut self, receipt: &Receipt) -> Ended {
            let mut pipeline = Pipeline::of(*receipt);
            (0..3).for_each(|_| pipeline.goes_on(self));
            pipeline.answer.expect("it has three steps")
        }
    }

    /// A pipeline on its way. The server may do something else between its steps.
    #[derive(Clone)]
    struct Pipeline {
        receipt: Receipt,
        executed: u8,
        /// Once it was executed.
        answer: Option<Ended>,
    }

    impl Pipeline {
        fn of(receipt: Receipt) -> Pipeline {
            Pipeline { receipt, executed: 0, answer: None }
        }

        fn goes_on(&mut self, store: &mut Store) {
            let record =
                |store: &mut Store, step| Marker::record(&mut store.marker, &READER, &self.receipt, step);
            match self.executed {
                0 => drop(record(store, self.receipt.first)),
                1 => drop(store.writes.insert(self.receipt.last.number)),
                2 => {
                    let is_recorded = record(store, self.receipt.last);
                    self.answer = Some(if is_recorded { Ended::Recorded } else { Ended::Unrecorded });
                }
                _ => return,
            }
            self.executed += 1;
        }
    }

    /// A copy of a server's data, and the pipelines that it was copied within.
    struct Copied {
        store: Store,
        within: Vec<Pipeline>,
    }

    /// A client, its calls in flight, and what it takes as stored.
    #[derive(Default)]
    struct Client {
        receipts: Receipts,
        last: LastRead,
        stored: BTreeSet<u64>,
        writes: Vec<Pipeline>,
        /// Writes whose caller has stopped waiting.
        late: Vec<Pipeline>,
        look: Option<(Look, Option<Incarnation>)>,
        looks: u128,
        incarnations: u32,
    }

    impl Client {
        fn begin(&mut self) {
            self.writes.extend(self.receipts.begin(0).map(Pipeline::of));
        }

        fn answered(&mut self, at: usize) {
            let Some(&Pipeline { receipt, answer: Some(ended), .. }) = self.writes.get(at) else { return };
            self.writes.remove(at);
            self.receipts.end(&receipt, ended);
            if self.last.at(0).is_some_and(|last| last.id == receipt.id) {
                self.stored.insert(receipt.last.number);
            }
        }

        /// The first pipeline is executed to its end and answered.
        fn writes_all(&mut self, store: &mut Store) {
            (0..3).for_each(|_| self.writes[0].goes_on(store));
            self.answered(0);
        }

        fn gives_up(&mut self, at: usize) {
            if at < self.writes.len() {
                let pipeline = self.writes.remove(at);
                self.receipts.end(&pipeline.receipt, Ended::Unanswered);
                self.late.push(pipeline);
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

    fn step(client: &mut Client, store: &mut Store, copies: &mut Vec<Copied>, (what, at): (u8, usize)) {
        match what {
            0..=3 => client.begin(),
            4..=9 => {
                if let Some(pipeline) = client.writes.get_mut(at) {
                    pipeline.goes_on(store);
                }
            }
            10..=12 => client.answered(at),
            13 => client.gives_up(at),
            14 => {
                if let Some(pipeline) = client.late.get_mut(at) {
                    pipeline.goes_on(store);
                }
            }
            15 => client.looks(),
            16 => client.look_reaches(store),
            17 => client.look_is_answered(),
            18 => client.look = None,
            19 => {
                let within = client.writes.iter().filter(|pipeline| pipeline.executed == 1).cloned();
                copies.push(Copied { store: store.clone(), within: within.collect() });
            }
            _ => {
                let Some(copied) = copies.get(at) else { return };
                // The loss that is not found.
                let ends_within = |now: &Pipeline| {
                    now.executed == 2 && copied.within.iter().any(|then| then.receipt == now.receipt)
                };
                if !client.writes.iter().any(ends_within) {
                    *store = copied.store.clone();
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        #[test]
        fn the_next_look_finds_each_loss_of_what_counts_as_stored(
            steps in proptest::collection::vec((0..21_u8, 0..4_usize), 0..120),
            is_set_back: bool,
        ) {
            let (mut client, mut store, mut copies) = (Client::default(), Store::default(), Vec::new());
            client.whole_look(&mut store);
            for (what, at) in steps {
                if is_set_back || what < 20 {
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
            client.writes_all(&mut store);
        }
        assert_eq!((client.stored.len(), store.writes.len()), (2, 1));
        client.whole_look(&mut store);
        assert_eq!(client.incarnations, 2);
    }

    #[test]
    fn a_set_back_within_a_pipeline_is_found() {
        for executed in 0..=3 {
            let mut store = Store::default();
            let mut client = client(&mut store);
            let copy = store.clone();
            client.begin();
            (0..executed).for_each(|_| client.writes[0].goes_on(&mut store));
            store = copy;
            (executed..3).for_each(|_| client.writes[0].goes_on(&mut store));
            client.answered(0);
            client.whole_look(&mut store);
            // Before its first step it has written nothing.
            assert_eq!(client.incarnations, if executed == 0 { 1 } else { 2 }, "after {executed} steps");
        }
    }

    #[test]
    fn a_missing_marker_takes_no_receipt() {
        let mut store = Store::default();
        let mut client = client(&mut store);
        client.begin();
        store.marker = None;
        client.writes_all(&mut store);
        assert!(store.marker.is_none());
        client.whole_look(&mut store);
        assert_eq!(client.incarnations, 2);
    }
}
