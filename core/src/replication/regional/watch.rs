//! Whether the region's store is there, and whether it has lost anything.
//!
//! A wipe does not break a connection, so the sentinels are looked at over and over: keys with a random id, made when one
//! was found missing. The same look finds a store that has come back. After a wipe everything that is known here is told
//! again at once; and a time of grace begins (`grace`).
//!
//! Leaves to others: sentinels (`aggregator`), telling again (`replay`).

use crate::model::breaker::State;
use crate::model::cadence::Cadence;
use crate::model::time::{Now, UnixMs};
use crate::replication::bells::Bell;
use crate::replication::desk::Desk;
use crate::replication::failure::Failure;
use crate::replication::grace::Grace;
use crate::replication::{Access, Next, note};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// A store whose life began less than this before it was found has been emptied just now, by whatever has happened.
const YOUNG_MS: u64 = 10_000;
/// Between two looks before the store is found, which has to be connected to.
const FIRST_LOOKS_MS: u64 = 25;

/// One sentinel's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// Which sentinel: 0 on a single server, 0 to 63 on a cluster.
    pub place: u16,
    /// Random; another one than before means that the server of this sentinel was wiped or replaced.
    pub id: u128,
    /// How often this aggregator has looked at this sentinel, this look included. Not more than before means that older data took
    /// the server's place: it was restarted from a copy, or a replica took over that had not received everything.
    pub looks: u64,
    /// When it began, by the server's clock.
    pub since: UnixMs,
    /// How long ago that was, by the server's clock, in milliseconds.
    pub age_ms: u64,
}

/// What the sentinels say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lives {
    /// In the order of their places.
    pub seen: Vec<Life>,
    /// Sentinels whose server did not answer: nothing is known about these.
    pub unseen: usize,
}

/// What a look brought to light.
#[derive(Debug, Default)]
pub struct Looked {
    /// The store is there, for the first time.
    pub is_found: bool,
    /// It has lost what it held.
    pub is_wiped: bool,
    /// It is away from now on.
    pub went_away: bool,
    /// It is back.
    pub is_back: bool,
    /// A time of grace begins, to be driven beside this watch.
    pub grace: Option<Grace>,
}

/// Watches for as long as the aggregator runs.
#[derive(Debug)]
pub struct Watch {
    cadence: Cadence,
    /// The life that each sentinel told of last, and how often it had been looked at.
    known: BTreeMap<u16, (u128, u64)>,
    /// Sentinels that were set back, and the id that each then had.
    renewals: BTreeMap<u16, u128>,
    away: bool,
    looks: bool,
}

/// What sentinels say beside what they said before.
#[derive(Debug, Default)]
struct Compared {
    changed: bool,
    young: bool,
}

impl Watch {
    /// Nothing is known yet.
    pub fn new(cadence: Cadence) -> Watch {
        Watch { cadence, known: BTreeMap::new(), renewals: BTreeMap::new(), away: false, looks: false }
    }

    /// What to do now: look at the sentinels within [`Cadence::sentinel_timeout_ms`], then see [`Watch::looked`].
    pub fn next(&mut self, access: &mut impl Access) -> Next<()> {
        let due = !core::mem::replace(&mut self.looks, false);
        let (allowed, found) = access.desk(|desk, now| {
            desk.store()
                .map_or((false, false), |guard| (due && guard.allows_a_look(now.mono), guard.is_found()))
        });
        self.looks = allowed;
        if allowed {
            return Next::Call(());
        }
        // The pause is over when this is called again, whether or not there was a look before it.
        Next::Sleep(if found { self.cadence.sentinel_ms } else { FIRST_LOOKS_MS })
    }

    /// Sentinels that the next look is to give a new id, by place, where they still have the id named here. The new id shows the
    /// loss to the aggregators whose own last look is in the older data.
    pub fn renewals(&self) -> &BTreeMap<u16, u128> {
        &self.renewals
    }

    /// Takes what the sentinels say.
    pub fn looked(&mut self, access: &mut impl Access, result: Result<&Lives, Failure>) -> Looked {
        let mut looked = Looked::default();
        // Before the breaker may close, the region must know whether the store has lost anything.
        if let Ok(lives) = result {
            looked.is_found = self.known.is_empty();
            let compared = self.compare(lives);
            looked.is_wiped = compared.changed;
            access.desk(|desk, now| {
                act(desk, looked.is_found, compared.changed);
                if compared.changed || compared.young {
                    looked.grace = Some(Grace::begin(desk, self.cadence, now));
                }
            });
        }
        access.desk(|desk, now| self.note(desk, result.map(|_| ()), now, &mut looked));
        looked
    }

    fn compare(&mut self, lives: &Lives) -> Compared {
        let mut compared = Compared::default();
        for life in &lives.seen {
            let renewed = self.renewals.remove(&life.place);
            match self.known.insert(life.place, (life.id, life.looks)) {
                Some((id, _)) if id != life.id => compared.changed |= renewed != Some(id),
                Some((id, looks)) if looks >= life.looks => {
                    compared.changed = true;
                    self.renewals.insert(life.place, id);
                }
                Some(_) => {}
                None => compared.young |= life.age_ms < YOUNG_MS,
            }
        }
        compared
    }

    fn note(&mut self, desk: &mut Desk, result: Result<(), Failure>, now: Now, looked: &mut Looked) {
        note(desk, result, now);
        match result {
            Ok(()) if core::mem::take(&mut self.away) => {
                looked.is_back = true;
                desk.ring(Bell::Missed);
                desk.ring(Bell::Announce);
            }
            Ok(()) => {}
            Err(_) => {
                let closed = desk.store().is_some_and(|guard| guard.state(now.mono) == State::Closed);
                looked.went_away = !closed && !core::mem::replace(&mut self.away, true);
            }
        }
        // What nobody else wakes for: cells that wait again after a failure.
        desk.ring(Bell::Replay);
    }
}

fn act(desk: &mut Desk, is_found: bool, is_wiped: bool) {
    if is_found {
        if let Some(guard) = desk.store() {
            guard.found();
        }
        desk.ring(Bell::Missed);
        desk.ring(Bell::Announce);
    }
    if is_wiped {
        desk.figures.store_wipes = desk.figures.store_wipes.saturating_add(1);
        desk.region.store_wiped();
        desk.ring(Bell::Missed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replication::testing::{NOW, ORIGIN, at, desk, report};
    use std::vec;

    fn lives(id: u128, looks: u64, age_ms: u64) -> Lives {
        Lives { seen: vec![Life { place: 0, id, looks, since: UnixMs(0), age_ms }], unseen: 0 }
    }

    fn fresh() -> Desk {
        desk().with_store(Cadence::default().store_breaker)
    }

    fn looks(watch: &mut Watch, desk: &mut Desk, lives: &Lives) -> Looked {
        assert_eq!(watch.next(&mut at(desk, 0)), Next::Call(()));
        let looked = watch.looked(&mut at(desk, 0), Ok(lives));
        assert_eq!(watch.next(&mut at(desk, 0)), Next::Sleep(Cadence::default().sentinel_ms));
        looked
    }

    #[test]
    fn a_store_is_used_once_it_is_found() {
        let (mut desk, mut watch) = (fresh(), Watch::new(Cadence::default()));
        assert_eq!(watch.next(&mut at(&mut desk, 0)), Next::Call(()));
        watch.looked(&mut at(&mut desk, 0), Err(Failure::Away));
        assert_eq!(watch.next(&mut at(&mut desk, 0)), Next::Sleep(FIRST_LOOKS_MS));
        assert!(!desk.is_usable(NOW.mono));
        let looked = looks(&mut watch, &mut desk, &lives(1, 1, YOUNG_MS));
        assert!(looked.is_found && !looked.is_wiped && looked.grace.is_none());
        let bells = desk.take_bells();
        assert!(bells.has(Bell::Missed) && bells.has(Bell::Announce) && bells.has(Bell::Replay));
        assert!(desk.is_usable(NOW.mono));
    }

    #[test]
    fn losses() {
        let cases = [
            ("the same", lives(1, 6, 90_000), false, false),
            ("a young one at first", lives(1, 6, 1), false, false),
            ("another id", lives(2, 1, 0), true, true),
            ("fewer looks", lives(1, 4, 90_000), true, true),
            ("set back by one look", lives(1, 5, 90_000), true, true),
        ];
        for (name, second, wiped, graced) in cases {
            let (mut desk, mut watch) = (fresh(), Watch::new(Cadence::default()));
            looks(&mut watch, &mut desk, &lives(1, 5, 90_000));
            desk.take(ORIGIN, report(1, 3), NOW).unwrap();
            desk.region.next_merges(9);
            desk.take_bells();
            let looked = looks(&mut watch, &mut desk, &second);
            assert_eq!((looked.is_wiped, looked.grace.is_some()), (wiped, graced), "{name}");
            assert_eq!(desk.region.has_merges(), wiped, "{name}");
            assert_eq!(desk.take_bells().has(Bell::Recover), graced, "{name}");
            assert_eq!(desk.figures.store_wipes, u64::from(wiped), "{name}");
        }
        let (mut desk, mut watch) = (fresh(), Watch::new(Cadence::default()));
        let looked = looks(&mut watch, &mut desk, &lives(1, 1, YOUNG_MS - 1));
        assert!(!looked.is_wiped && looked.grace.is_some(), "found just after it was emptied");
    }

    /// A sentinel as the store holds it: an id and the looks of each of two readers.
    #[derive(Clone)]
    struct Sentinel {
        id: u128,
        looks: [u64; 2],
    }

    impl Sentinel {
        fn look(&mut self, reader: usize, watch: &mut Watch, desk: &mut Desk) -> bool {
            if watch.renewals().get(&0) == Some(&self.id) {
                *self = Sentinel { id: self.id + 1, looks: [0; 2] };
            }
            self.looks[reader] += 1;
            looks(watch, desk, &lives(self.id, self.looks[reader], 90_000)).is_wiped
        }
    }

    #[test]
    fn a_set_back_that_only_one_of_two_can_see_is_shown_to_both() {
        for first in [0, 1] {
            let mut desks = [fresh(), fresh()];
            let mut watches = [Watch::new(Cadence::default()), Watch::new(Cadence::default())];
            let mut stored = Sentinel { id: 1, looks: [0; 2] };
            for reader in [0, 1, 0, 1, 0] {
                assert!(!stored.look(reader, &mut watches[reader], &mut desks[reader]));
            }
            let copy = stored.clone();
            assert!(!stored.look(1, &mut watches[1], &mut desks[1]));
            // Only the second reader's last look is missing in the copy.
            stored = copy;
            let mut seen = [0; 2];
            for reader in [first, 1 - first, 0, 1, 0, 1, 0, 1] {
                let is_wiped = stored.look(reader, &mut watches[reader], &mut desks[reader]);
                seen[reader] += u32::from(is_wiped);
            }
            assert_eq!(seen, [1, 1], "reader {first} looked first");
        }
    }

    #[test]
    fn it_goes_away_with_its_breaker_and_a_look_after_the_rest_finds_it_back() {
        let (mut desk, mut watch) = (fresh(), Watch::new(Cadence::default()));
        looks(&mut watch, &mut desk, &lives(1, 5, 90_000));
        let mut away = 0;
        for look in 0..10 {
            if watch.next(&mut at(&mut desk, look)) == Next::Call(()) {
                away += u8::from(watch.looked(&mut at(&mut desk, look), Err(Failure::Timeout)).went_away);
                watch.next(&mut at(&mut desk, look));
            }
        }
        assert_eq!(away, 1, "it is said once");
        assert!(matches!(watch.next(&mut at(&mut desk, 300)), Next::Sleep(_)), "nobody looks");
        assert_eq!(watch.next(&mut at(&mut desk, 600)), Next::Call(()));
        assert!(watch.looked(&mut at(&mut desk, 600), Ok(&lives(1, 6, 90_000))).is_back);
        assert!(desk.is_usable(NOW.mono.after(600)));
    }
}
