//! Watches whether the region's store is available, and whether it has lost data.
//!
//! A wipe does not break a connection. Therefore the aggregator reads the markers again and again: keys with a random
//! id, created when one was found missing. The same read shows that a store is available again. After a wipe all counts
//! stored here are written again at once, and a recovery grace period begins (`grace_period`).

use crate::model::breaker::State;
use crate::model::schedule::Schedule;
use crate::model::time::{Now, UnixMs};
use crate::replication::events::Event;
use crate::replication::failure::Failure;
use crate::replication::grace_period::GracePeriod;
use crate::replication::state::RegionState;
use crate::replication::{Access, Next, note};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// If a store's incarnation began less than this before the store was found, it was emptied just now, for whatever
/// reason.
const YOUNG_MS: u64 = 10_000;
/// Between two reads until the store is found. Until then the connection is still being made.
const FIRST_READS_MS: u64 = 25;

/// What one marker holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incarnation {
    /// Which marker: 0 on a single server, 0 to 63 on a cluster.
    pub place: u16,
    /// Random. If it differs from the last one, the server of this marker was wiped or replaced.
    pub id: u128,
    /// How often this aggregator has read this marker, this read included. If it is not more than at the last read,
    /// older data has replaced the server's: the server was restarted from a copy, or a replica that had not received
    /// everything took over.
    pub looks: u64,
    /// When this incarnation began, by the server's clock.
    pub since: UnixMs,
    /// The age of this incarnation by the server's clock, in milliseconds.
    pub age_ms: u64,
}

/// The markers of all servers that answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Incarnations {
    /// In the order of `place`.
    pub seen: Vec<Incarnation>,
    /// Number of markers whose server did not answer. Nothing is last_read about these.
    pub unseen: usize,
}

/// What a read of the markers has shown.
#[derive(Debug, Default)]
pub struct MarkersRead {
    /// The store is available for the first time.
    pub is_found: bool,
    /// The store has lost its data.
    pub is_wiped: bool,
    /// The store has just become unavailable.
    pub became_unavailable: bool,
    /// The store is available again.
    pub is_back: bool,
    /// A recovery grace period begins. The driver runs it concurrently with this watch.
    pub grace: Option<GracePeriod>,
}

/// Runs for as long as the aggregator does.
#[derive(Debug)]
pub struct Watch {
    schedule: Schedule,
    /// The id that each marker had at the last read, and its number of reads.
    last_read: BTreeMap<u16, (u128, u64)>,
    /// Markers that were set back, and the id that each of them had then.
    renewals: BTreeMap<u16, u128>,
    unavailable: bool,
    looks: bool,
}

/// How the markers differ from those of the last read.
#[derive(Debug, Default)]
struct Compared {
    changed: bool,
    young: bool,
}

impl Watch {
    /// A watch that has read nothing yet.
    pub fn new(schedule: Schedule) -> Watch {
        Watch {
            schedule,
            last_read: BTreeMap::new(),
            renewals: BTreeMap::new(),
            unavailable: false,
            looks: false,
        }
    }

    /// What to do now: read the markers within [`Schedule::marker_timeout_ms`], then call [`Watch::looked`].
    pub fn next(&mut self, access: &mut impl Access) -> Next<()> {
        let due = !core::mem::replace(&mut self.looks, false);
        let (allowed, found) = access.state(|state, now| {
            state
                .store()
                .map_or((false, false), |breaker| (due && breaker.allows_probe(now.mono), breaker.is_found()))
        });
        self.looks = allowed;
        if allowed {
            return Next::Call(());
        }
        // When this is called again, the pause has passed, whether or not a read preceded it.
        Next::Sleep(if found { self.schedule.marker_ms } else { FIRST_READS_MS })
    }

    /// Markers that the next read must give a new id, by place, if they still have the id given here. The new id shows
    /// the loss to the aggregators whose own last read is contained in the older data.
    pub fn renewals(&self) -> &BTreeMap<u16, u128> {
        &self.renewals
    }

    /// Takes the markers that were read.
    pub fn looked(
        &mut self,
        access: &mut impl Access,
        result: Result<&Incarnations, Failure>,
    ) -> MarkersRead {
        let mut looked = MarkersRead::default();
        // The region must be notified of a loss before the breaker can close.
        if let Ok(incarnations) = result {
            looked.is_found = self.last_read.is_empty();
            let compared = self.compare(incarnations);
            looked.is_wiped = compared.changed;
            access.state(|state, now| {
                act(state, looked.is_found, compared.changed);
                if compared.changed || compared.young {
                    looked.grace = Some(GracePeriod::begin(state, self.schedule, now));
                }
            });
        }
        access.state(|state, now| self.note(state, result.map(|_| ()), now, &mut looked));
        looked
    }

    fn compare(&mut self, incarnations: &Incarnations) -> Compared {
        let mut compared = Compared::default();
        for incarnation in &incarnations.seen {
            let renewed = self.renewals.remove(&incarnation.place);
            match self.last_read.insert(incarnation.place, (incarnation.id, incarnation.looks)) {
                Some((id, _)) if id != incarnation.id => compared.changed |= renewed != Some(id),
                Some((id, looks)) if looks >= incarnation.looks => {
                    compared.changed = true;
                    self.renewals.insert(incarnation.place, id);
                }
                Some(_) => {}
                None => compared.young |= incarnation.age_ms < YOUNG_MS,
            }
        }
        compared
    }

    fn note(
        &mut self,
        state: &mut RegionState,
        result: Result<(), Failure>,
        now: Now,
        looked: &mut MarkersRead,
    ) {
        note(state, result, now);
        match result {
            Ok(()) if core::mem::take(&mut self.unavailable) => {
                looked.is_back = true;
                state.notify(Event::Missed);
                state.notify(Event::Heartbeat);
            }
            Ok(()) => {}
            Err(_) => {
                let closed = state.store().is_some_and(|breaker| breaker.state(now.mono) == State::Closed);
                looked.became_unavailable = !closed && !core::mem::replace(&mut self.unavailable, true);
            }
        }
        // Only this wakes the replay for cells that wait again after a failure.
        state.notify(Event::Replay);
    }
}

fn act(state: &mut RegionState, is_found: bool, is_wiped: bool) {
    if is_found {
        if let Some(breaker) = state.store() {
            breaker.found();
        }
        state.notify(Event::Missed);
        state.notify(Event::Heartbeat);
    }
    if is_wiped {
        state.figures.store_wipes = state.figures.store_wipes.saturating_add(1);
        state.region.store_wiped();
        state.notify(Event::Missed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replication::testing::{NOW, ORIGIN, at, report, state};
    use std::vec;

    fn incarnations(id: u128, looks: u64, age_ms: u64) -> Incarnations {
        Incarnations { seen: vec![Incarnation { place: 0, id, looks, since: UnixMs(0), age_ms }], unseen: 0 }
    }

    fn fresh() -> RegionState {
        state().with_store(Schedule::default().store_breaker)
    }

    fn looks(watch: &mut Watch, state: &mut RegionState, incarnations: &Incarnations) -> MarkersRead {
        assert_eq!(watch.next(&mut at(state, 0)), Next::Call(()));
        let looked = watch.looked(&mut at(state, 0), Ok(incarnations));
        assert_eq!(watch.next(&mut at(state, 0)), Next::Sleep(Schedule::default().marker_ms));
        looked
    }

    #[test]
    fn a_store_is_used_once_it_is_found() {
        let (mut state, mut watch) = (fresh(), Watch::new(Schedule::default()));
        assert_eq!(watch.next(&mut at(&mut state, 0)), Next::Call(()));
        watch.looked(&mut at(&mut state, 0), Err(Failure::Unavailable));
        assert_eq!(watch.next(&mut at(&mut state, 0)), Next::Sleep(FIRST_READS_MS));
        assert!(!state.is_usable(NOW.mono));
        let looked = looks(&mut watch, &mut state, &incarnations(1, 1, YOUNG_MS));
        assert!(looked.is_found && !looked.is_wiped && looked.grace.is_none());
        let events = state.take_events();
        assert!(events.has(Event::Missed) && events.has(Event::Heartbeat) && events.has(Event::Replay));
        assert!(state.is_usable(NOW.mono));
    }

    #[test]
    fn losses() {
        let cases = [
            ("the same", incarnations(1, 6, 90_000), false, false),
            ("a young one at first", incarnations(1, 6, 1), false, false),
            ("another id", incarnations(2, 1, 0), true, true),
            ("fewer looks", incarnations(1, 4, 90_000), true, true),
            ("set back by one look", incarnations(1, 5, 90_000), true, true),
        ];
        for (name, second, wiped, graced) in cases {
            let (mut state, mut watch) = (fresh(), Watch::new(Schedule::default()));
            looks(&mut watch, &mut state, &incarnations(1, 5, 90_000));
            state.take(ORIGIN, report(1, 3), NOW).unwrap();
            state.region.next_merges(9);
            state.take_events();
            let looked = looks(&mut watch, &mut state, &second);
            assert_eq!((looked.is_wiped, looked.grace.is_some()), (wiped, graced), "{name}");
            assert_eq!(state.region.has_merges(), wiped, "{name}");
            assert_eq!(state.take_events().has(Event::Recover), graced, "{name}");
            assert_eq!(state.figures.store_wipes, u64::from(wiped), "{name}");
        }
        let (mut state, mut watch) = (fresh(), Watch::new(Schedule::default()));
        let looked = looks(&mut watch, &mut state, &incarnations(1, 1, YOUNG_MS - 1));
        assert!(!looked.is_wiped && looked.grace.is_some(), "the store was found just after it was emptied");
    }

    /// A marker as the store holds it: an id and the number of reads by each of two aggregators.
    #[derive(Clone)]
    struct Marker {
        id: u128,
        looks: [u64; 2],
    }

    impl Marker {
        fn look(&mut self, reader: usize, watch: &mut Watch, state: &mut RegionState) -> bool {
            if watch.renewals().get(&0) == Some(&self.id) {
                *self = Marker { id: self.id + 1, looks: [0; 2] };
            }
            self.looks[reader] += 1;
            looks(watch, state, &incarnations(self.id, self.looks[reader], 90_000)).is_wiped
        }
    }

    #[test]
    fn a_set_back_that_only_one_of_two_aggregators_can_detect_is_shown_to_both() {
        for first in [0, 1] {
            let mut states = [fresh(), fresh()];
            let mut watches = [Watch::new(Schedule::default()), Watch::new(Schedule::default())];
            let mut stored = Marker { id: 1, looks: [0; 2] };
            for reader in [0, 1, 0, 1, 0] {
                assert!(!stored.look(reader, &mut watches[reader], &mut states[reader]));
            }
            let copy = stored.clone();
            assert!(!stored.look(1, &mut watches[1], &mut states[1]));
            // The copy lacks only the last read of the second aggregator.
            stored = copy;
            let mut seen = [0; 2];
            for reader in [first, 1 - first, 0, 1, 0, 1, 0, 1] {
                let is_wiped = stored.look(reader, &mut watches[reader], &mut states[reader]);
                seen[reader] += u32::from(is_wiped);
            }
            assert_eq!(seen, [1, 1], "reader {first} read first");
        }
    }

    #[test]
    fn the_store_becomes_unavailable_with_its_breaker_and_a_later_read_finds_it_again() {
        let (mut state, mut watch) = (fresh(), Watch::new(Schedule::default()));
        looks(&mut watch, &mut state, &incarnations(1, 5, 90_000));
        let mut unavailable = 0;
        for look in 0..10 {
            if watch.next(&mut at(&mut state, look)) == Next::Call(()) {
                unavailable += u8::from(
                    watch.looked(&mut at(&mut state, look), Err(Failure::Timeout)).became_unavailable,
                );
                watch.next(&mut at(&mut state, look));
            }
        }
        assert_eq!(unavailable, 1, "it is reported once");
        assert!(matches!(watch.next(&mut at(&mut state, 300)), Next::Sleep(_)), "the breaker is open");
        assert_eq!(watch.next(&mut at(&mut state, 600)), Next::Call(()));
        assert!(watch.looked(&mut at(&mut state, 600), Ok(&incarnations(1, 6, 90_000))).is_back);
        assert!(state.is_usable(NOW.mono.after(600)));
    }
}
