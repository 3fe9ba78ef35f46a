//! Watches whether the region's store is available, and whether it has lost data.
//!
//! A wipe does not break a connection. Therefore the aggregator reads the markers again and again (`marker`). The same
//! read shows that a store is available again. After a loss all counts stored here are written again at once, and a
//! recovery grace period begins (`grace_period`). If losses follow each other without end, as in a full store that evicts
//! keys, the pauses between two such writes double.

use crate::model::breaker::State;
use crate::model::schedule::Schedule;
use crate::model::time::{MonoMs, Now};
use crate::replication::events::Event;
use crate::replication::failure::Failure;
use crate::replication::grace_period::GracePeriod;
use crate::replication::regional::marker::{Incarnations, LastRead};
use crate::replication::state::{RegionState, Rewriting};
use crate::replication::{Access, Next, note};

/// If a store's incarnation began less than this before the store was found, it was emptied just now, for whatever
/// reason.
const YOUNG_MS: u64 = 10_000;
/// Between two reads until the store is found. Until then the connection is still being made.
const FIRST_READS_MS: u64 = 25;

/// Losses in a row after each of which all is written again at once.
const AT_ONCE: u32 = 4;
/// The first pause after these, in milliseconds; each further one doubles.
const FIRST_PAUSE_MS: u64 = 1_000;
/// The longest pause.
const LONGEST_PAUSE_MS: u64 = 300_000;
/// Losses that are further apart are not in a row, in milliseconds. After a longer pause, twice that.
const APART_MS: u64 = 60_000;

/// What a read of the markers has shown.
#[derive(Debug, Default)]
pub struct MarkersRead {
    /// The store is available for the first time.
    pub is_found: bool,
    /// A server of the store does not state which one it is, which is reported once.
    pub is_nameless: bool,
    /// The store has lost data, or may have: another server took over.
    pub is_wiped: bool,
    /// The store has just become unavailable.
    pub became_unavailable: bool,
    /// The store is available again.
    pub is_back: bool,
    /// The next write of all counts waits for this many milliseconds, as the store has lost data again and again.
    pub waits_ms: Option<u64>,
    /// A recovery grace period begins. The driver runs it concurrently with this watch.
    pub grace: Option<GracePeriod>,
}

/// Runs for as long as the aggregator does.
#[derive(Debug)]
pub struct Watch {
    schedule: Schedule,
    last_read: LastRead,
    unavailable: bool,
    looks: bool,
    began: MonoMs,
    /// When an aggregator that starts serves without the markers.
    serves_by: MonoMs,
    /// Whether the last read returned the markers of all servers.
    is_whole: bool,
    rewrites: Rewrites,
}

/// When all counts are written again after losses.
#[derive(Debug, Default)]
struct Rewrites {
    /// How many have begun in a row, and when the last one did.
    in_a_row: u32,
    last: Option<MonoMs>,
    /// A loss was found for which none has begun.
    is_owed: bool,
}

/// How the markers differ from those of the last read.
#[derive(Debug, Default)]
struct Compared {
    changed: bool,
    young: bool,
}

impl Watch {
    /// A watch that has read nothing yet, before the aggregator serves. If the store `has_answered`, the aggregator waits for the markers of all
    /// servers within the time of one call: until they are read, it would decide without the counts that the store has. For servers of a
    /// cluster that load their data it waits as long as for the database.
    pub fn before_serving(schedule: Schedule, has_answered: bool, now: MonoMs) -> Watch {
        let serves_by = if has_answered { now.after(schedule.replay_timeout_ms) } else { now };
        let (last_read, rewrites) = (LastRead::default(), Rewrites::default());
        Watch {
            schedule,
            last_read,
            unavailable: false,
            looks: false,
            began: now,
            serves_by,
            is_whole: false,
            rewrites,
        }
    }

    /// Whether an aggregator that starts may serve.
    pub fn may_serve(&self, now: MonoMs) -> bool {
        self.is_whole || now >= self.serves_by
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

    /// What the last reads have returned. The next one must state it.
    pub fn last_read(&self) -> &LastRead {
        &self.last_read
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
            looked.is_nameless =
                looked.is_found && incarnations.seen.iter().any(|read| read.server.is_none());
            let compared = self.compare(incarnations);
            looked.is_wiped = compared.changed;
            let store_ids = self.last_read.ids();
            access.state(|state, now| {
                act(state, looked.is_found, compared.changed);
                state.region.set_store_ids(store_ids);
                if compared.changed {
                    looked.waits_ms = self.rewrites.lost(now.mono);
                    state.rewriting = Rewriting::Waits;
                }
                let begins = self.rewrites.begins(now.mono);
                if begins {
                    state.region.write_again();
                    state.rewriting = Rewriting::Runs;
                    state.notify(Event::Missed);
                }
                if compared.young && !looked.is_found {
                    // The server was away, and may have been emptied: what peers have found in it counts as stored here.
                    state.region.store_wiped();
                    state.rewriting = Rewriting::Runs;
                }
                if begins || compared.young {
                    looked.grace = Some(GracePeriod::begin(state, self.schedule, now));
                }
            });
        }
        self.is_whole = result.is_ok_and(|incarnations| incarnations.unseen == 0);
        let is_loading =
            result.map_or_else(|failure| failure == Failure::Loading, |incarnations| incarnations.is_loading);
        access.state(|state, now| {
            if is_loading {
                self.wait(now.mono);
            }
            self.note(state, result.map(|_| ()), now, &mut looked);
        });
        looked
    }

    /// A server of the store loads its data.
    fn wait(&mut self, now: MonoMs) {
        if now < self.serves_by {
            let most = self.began.after(self.schedule.restore_ms);
            self.serves_by = now.after(self.schedule.replay_timeout_ms).min(most).max(self.serves_by);
        }
    }

    fn compare(&mut self, incarnations: &Incarnations) -> Compared {
        let mut compared = Compared::default();
        for incarnation in &incarnations.seen {
            match self.last_read.insert(*incarnation) {
                // A store that is no Redis may keep the id of a marker that was set back.
                Some(last) => {
                    compared.changed |= last.id != incarnation.id || last.looks >= incarnation.looks;
                }
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

impl Rewrites {
    /// The store has lost data. Returns how long the next write of all counts waits, unless it begins at once or waits already.
    fn lost(&mut self, now: MonoMs) -> Option<u64> {
        let pause_ms = self.pause_ms();
        if self.last.is_none_or(|last| now.since(last) > APART_MS.max(pause_ms.saturating_mul(2))) {
            self.in_a_row = 0;
        }
        let left_ms = self.pause_ms().saturating_sub(self.last.map_or(u64::MAX, |last| now.since(last)));
        let waited = core::mem::replace(&mut self.is_owed, true);
        (left_ms > 0 && !waited).then_some(left_ms)
    }

    /// Whether the write of all counts that is owed begins now.
    fn begins(&mut self, now: MonoMs) -> bool {
        let is_due = self.last.is_none_or(|last| now.since(last) >= self.pause_ms());
        let begins = self.is_owed && is_due;
        if begins {
            (self.in_a_row, self.last, self.is_owed) = (self.in_a_row.saturating_add(1), Some(now), false);
        }
        begins
    }

    fn pause_ms(&self) -> u64 {
        match self.in_a_row.checked_sub(AT_ONCE) {
            None => 0,
            Some(further) => FIRST_PAUSE_MS.saturating_mul(1 << further.min(20)).min(LONGEST_PAUSE_MS),
        }
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
        state.region.store_lost();
        // The store lists no node, until each aggregator has announced its own again.
        state.notify(Event::Heartbeat);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::time::UnixMs;
    use crate::region::exchange::Merged;
    use crate::replication::regional::marker::{Incarnation, Look, Marker, Server};
    use crate::replication::regional::receipts::Receipts;
    use crate::replication::testing::{NODE, NOW, at, report, state};
    use std::vec;

    fn incarnations(id: u128, looks: u64, age_ms: u64) -> Incarnations {
        let (server, since) = (None, UnixMs(0));
        let seen = vec![Incarnation { place: 0, id, looks, server, since, age_ms }];
        Incarnations { seen, ..Incarnations::default() }
    }

    fn unread() -> Watch {
        Watch::before_serving(Schedule::default(), true, NOW.mono)
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
        let (mut state, mut watch) = (fresh(), unread());
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
    fn an_aggregator_serves_once_the_markers_are_read_or_the_store_is_away() {
        let (mut state, mut watch) = (fresh(), unread());
        let until = NOW.mono.after(Schedule::default().replay_timeout_ms);
        assert!(!watch.may_serve(NOW.mono.after(1)) && watch.may_serve(until));
        assert!(Watch::before_serving(Schedule::default(), false, NOW.mono).may_serve(NOW.mono));
        looks(&mut watch, &mut state, &incarnations(1, 1, YOUNG_MS));
        assert!(watch.may_serve(NOW.mono.after(1)));
    }

    #[test]
    fn an_aggregator_that_starts_waits_for_all_servers_of_a_cluster() {
        let Schedule { replay_timeout_ms, restore_ms, .. } = Schedule::default();
        let part = |unseen, is_loading| Incarnations { unseen, is_loading, ..incarnations(1, 1, YOUNG_MS) };
        let look = |state: &mut RegionState, watch: &mut Watch, ms: u64, read: &Incarnations| {
            while watch.next(&mut at(state, ms)) != Next::Call(()) {}
            watch.looked(&mut at(state, ms), Ok(read));
            watch.may_serve(NOW.mono.after(ms))
        };
        // One that does not answer.
        let (mut state, mut watch) = (fresh(), unread());
        assert!(!look(&mut state, &mut watch, 0, &part(21, false)), "others of the cluster lack");
        assert!(!look(&mut state, &mut watch, replay_timeout_ms - 1, &part(21, false)));
        assert!(look(&mut state, &mut watch, replay_timeout_ms, &part(21, false)));
        // One that loads its data.
        let (mut state, mut watch) = (fresh(), unread());
        for ms in (0..restore_ms).step_by(1_000) {
            assert!(!look(&mut state, &mut watch, ms, &part(21, true)), "{ms}");
        }
        assert!(look(&mut state, &mut watch, restore_ms, &part(21, true)), "the bound");
        // One that has loaded it.
        let (mut state, mut watch) = (fresh(), unread());
        assert!(!look(&mut state, &mut watch, 0, &part(21, true)));
        assert!(look(&mut state, &mut watch, 10, &part(0, false)));
        // One that ends while it loads is away.
        let (mut state, mut watch) = (fresh(), unread());
        assert!(!look(&mut state, &mut watch, 1_500, &part(21, true)));
        assert!(!look(&mut state, &mut watch, 1_500 + replay_timeout_ms - 1, &part(21, false)));
        assert!(look(&mut state, &mut watch, 1_500 + replay_timeout_ms, &part(21, false)));
    }

    #[test]
    fn losses_in_a_row_are_answered_ever_more_rarely() {
        let (mut state, mut watch) = (fresh(), unread());
        let mut look = |watch: &mut Watch, ms: u64, id: u128| {
            while watch.next(&mut at(&mut state, ms)) != Next::Call(()) {}
            let looked = watch.looked(&mut at(&mut state, ms), Ok(&incarnations(id, 1, 0)));
            (looked.grace.is_some(), looked.waits_ms)
        };
        look(&mut watch, 0, 1);
        // A loss with each read, for ten minutes.
        let mut written = vec![];
        for read in 1..6_000 {
            let ms = read * 100;
            let (is_written, waits_ms) = look(&mut watch, ms, u128::from(read) + 1);
            if is_written {
                written.push(ms);
            }
            if ms == 500 {
                assert_eq!(waits_ms, Some(900), "it is reported once");
            }
        }
        assert_eq!(written[..8], [100, 200, 300, 400, 1_400, 3_400, 7_400, 15_400]);
        assert!(written.len() <= 14, "{written:?}");
        // The last loss is answered, too, without another one.
        let last = *written.last().unwrap();
        let mut answered = 0;
        for read in 6_000..10_000 {
            let ms = read * 100;
            while watch.next(&mut at(&mut state, ms)) != Next::Call(()) {}
            let looked = watch.looked(&mut at(&mut state, ms), Ok(&incarnations(6_000, read, 0)));
            answered += u32::from(looked.grace.is_some());
        }
        assert_eq!(answered, 1, "after {last}");
        while watch.next(&mut at(&mut state, 1_700_000)) != Next::Call(()) {}
        let looked = watch.looked(&mut at(&mut state, 1_700_000), Ok(&incarnations(7_000, 1, 0)));
        assert!(looked.grace.is_some() && looked.waits_ms.is_none(), "long after the last one");
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
            let (mut state, mut watch) = (fresh(), unread());
            looks(&mut watch, &mut state, &incarnations(1, 5, 90_000));
            state.take(NODE, report(1, 3), NOW).unwrap();
            state.region.next_merges(9);
            state.take_events();
            let looked = looks(&mut watch, &mut state, &second);
            assert_eq!((looked.is_wiped, looked.grace.is_some()), (wiped, graced), "{name}");
            assert_eq!(state.region.has_merges(), wiped, "{name}");
            assert_eq!(state.take_events().has(Event::Recover), graced, "{name}");
            assert_eq!(state.figures.store_wipes, u64::from(wiped), "{name}");
        }
        let (mut state, mut watch) = (fresh(), unread());
        let looked = looks(&mut watch, &mut state, &incarnations(1, 1, YOUNG_MS - 1));
        assert!(!looked.is_wiped && looked.grace.is_some(), "the store was found just after it was emptied");
    }

    /// A server and the marker that it stores.
    #[derive(Clone)]
    struct Store {
        server: Server,
        marker: Option<Marker>,
        reads: u64,
    }

    fn store() -> Store {
        Store { server: Server { process: 1, promotion: 0 }, marker: None, reads: 0 }
    }

    impl Store {
        /// A read of an aggregator; returns what it has found, unless the answer is lost.
        fn read(&mut self, reader: u8, watch: &Watch) -> Incarnations {
            self.reads += 1;
            let (reader, fresh) = ([reader; 16], (self.server.process << 64) + u128::from(self.reads));
            let last = watch.last_read().clone();
            let look = Look { reader, fresh, last, receipts: Receipts::default() };
            // The first incarnation began long ago.
            let now = UnixMs(self.reads * 2 * YOUNG_MS);
            let read = Marker::read(&mut self.marker, 0, &look, Some(self.server), now);
            Incarnations { seen: vec![read], ..Incarnations::default() }
        }

        fn look(&mut self, reader: u8, watch: &mut Watch, state: &mut RegionState) -> bool {
            let read = self.read(reader, watch);
            looks(watch, state, &read).is_wiped
        }

        /// Takes the place of a server that is gone, with the data of `self`.
        fn promote(&mut self) {
            self.server = Server { process: self.server.process + 1, promotion: self.server.process };
        }
    }

    /// Reports a count and writes it to the store, which acknowledges it.
    fn write(state: &mut RegionState, own: u64) {
        state.take(NODE, report(own, own), NOW).unwrap();
        for merge in state.region.next_merges(9) {
            let merged = Merged { current: merge.parts.clone(), limit: 10, ..Merged::default() };
            state.region.merged(&merge, &merged, NOW.unix);
        }
        assert!(!state.region.has_merges());
    }

    #[test]
    fn what_was_acknowledged_after_the_last_read_is_written_again_after_a_failover() {
        let (mut state, mut watch, mut primary) = (fresh(), unread(), store());
        for _ in 0..5 {
            primary.look(0, &mut watch, &mut state);
        }
        let mut replica = primary.clone();
        write(&mut state, 3);
        replica.promote();
        assert!(replica.look(0, &mut watch, &mut state));
        assert!(state.region.has_merges());
        assert!(!replica.look(0, &mut watch, &mut state), "it is one loss");
    }

    #[test]
    fn an_aggregator_that_starts_after_a_failover_begins_a_recovery_grace_period() {
        let mut primary = store();
        primary.look(0, &mut unread(), &mut fresh());
        for promoted in [false, true] {
            if promoted {
                primary.promote();
            }
            let (mut state, mut watch) = (fresh(), unread());
            let read = primary.read(1, &watch);
            assert_eq!(looks(&mut watch, &mut state, &read).grace.is_some(), promoted);
        }
    }

    #[test]
    fn a_set_back_that_only_one_of_two_aggregators_can_detect_is_shown_to_both() {
        for first in [0, 1] {
            let mut states = [fresh(), fresh()];
            let mut watches = [unread(), unread()];
            let mut stored = store();
            for reader in [0, 1, 0, 1, 0] {
                assert!(!stored.look(
                    reader,
                    &mut watches[usize::from(reader)],
                    &mut states[usize::from(reader)]
                ));
            }
            let copy = stored.marker.clone();
            assert!(!stored.look(1, &mut watches[1], &mut states[1]));
            // The copy lacks only the last read of the second aggregator.
            stored.marker = copy;
            let mut seen = [0; 2];
            for reader in [first, 1 - first, 0, 1, 0, 1, 0, 1] {
                let at = usize::from(reader);
                seen[at] += u32::from(stored.look(reader, &mut watches[at], &mut states[at]));
            }
            assert_eq!(seen, [1, 1], "reader {first} read first");
            assert!(states[0].region.store_ids().agree(states[1].region.store_ids()));
        }
    }

    #[test]
    fn a_wipe_after_a_set_back_is_a_loss_of_its_own() {
        for is_answered in [true, false] {
            let (mut state, mut watch, mut stored) = (fresh(), unread(), store());
            stored.look(0, &mut watch, &mut state);
            let copy = stored.marker.clone();
            stored.look(0, &mut watch, &mut state);
            stored.marker = copy;
            // This read gives the marker a new id.
            match is_answered {
                true => assert!(stored.look(0, &mut watch, &mut state)),
                false => drop(stored.read(0, &watch)),
            }
            write(&mut state, 3);
            stored.marker = None;
            assert!(stored.look(0, &mut watch, &mut state));
            assert!(state.region.has_merges());
        }
    }

    #[test]
    fn the_store_becomes_unavailable_with_its_breaker_and_a_later_read_finds_it_again() {
        let (mut state, mut watch) = (fresh(), unread());
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
