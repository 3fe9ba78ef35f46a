//! Exchanges packets with the database: writes this region's rows that are due, and reads what other writers have written since.
//!
//! A packet is sent once a second, and at once when a key is due at once ([`crate::region::Due`]). Packets follow each other with a pause,
//! never two at a time. Every ten seconds all that is due is written, whatever the budget of rows.
//!
//! The own marker shows whether the table still holds what was written ([`OwnMarker::is_kept_by`]). If not, all is published and read again.
//!
//! After a failure the next packet only reads, so that a database that accepts no writes is still read. A packet that failed may be
//! committed later. That does no harm, since its version is not used again and rows only grow.

use super::import::{Merging, OwnRows, merge_step};
use super::packet::{
    Cursor, Feed, MAX_FEED_ROWS, MAX_PACKET_ROWS, MAX_WRITERS, Marker, OwnMarker, Packet, Page, Writer,
};
use super::split::Listing;
use super::{allows, note};
use crate::model::breaker::State;
use crate::model::schedule::{Interval, Schedule};
use crate::model::time::{MonoMs, Now};
use crate::region::Due;
use crate::region::exchange::Publication;
use crate::replication::circuit_breaker::Traffic;
use crate::replication::events::Event;
use crate::replication::failure::Failure;
use crate::replication::figures::add;
use crate::replication::state::RegionState;
use crate::replication::{Access, Next};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

/// Rows that an aggregator may write in a second on average, without those of the interval.
const ROWS_A_SECOND: u64 = 600;
/// Rows that it may write at once after a quiet time.
const MAX_ROW_TOKENS: u64 = 20_000;
/// How long another region is listed after it was last seen, in milliseconds.
const REMEMBERED_MS: u64 = 3_600_000;
/// A marker that moved less than this ago has not expired, in milliseconds: half of its time, as clocks may differ.
const KEPT_MS: u64 = REMEMBERED_MS / 2;
/// Most packets within [`BURST_MS`].
const BURST_PACKETS: usize = 10;
/// See [`BURST_PACKETS`].
const BURST_MS: u64 = 2_000;

/// Exchange a packet, then call [`GlobalSync::exchanged`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The packet.
    pub packet: Packet,
    /// The deadline in milliseconds. After a timeout the next packet has twice the time.
    pub within_ms: u64,
}

#[derive(Debug)]
enum Stage {
    Resting,
    /// This packet is on its way.
    Exchanging(OnItsWay),
    Merging(Merging),
}

/// What a packet on its way writes.
#[derive(Debug)]
struct OnItsWay {
    version: Option<u64>,
    rows: Vec<Publication>,
}

/// Another writer.
#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    /// Rows up to this version were read.
    cursor: u64,
    /// The version of its marker.
    marker: u64,
    /// When its marker moved last; `None` if it was not seen to move.
    moved: Option<MonoMs>,
    /// It writes for this region.
    is_peer: bool,
    /// If so, whether the region's store lists it.
    listing: Listing,
}

/// Runs for as long as the aggregator does.
#[derive(Debug)]
pub struct GlobalSync {
    schedule: Schedule,
    id: [u8; 16],
    writer: Writer,
    /// How many numbers other processes had.
    namesakes: usize,
    region: Vec<u8>,
    /// The number of the last packet that was to be written.
    version: u64,
    /// The own marker as it was read last.
    acknowledged: OwnMarker,
    /// Another process has written the own marker, so this one takes another number.
    has_namesake: bool,
    others: BTreeMap<Writer, Reading>,
    stage: Stage,
    interval: Interval,
    tick: Interval,
    next_interval: MonoMs,
    next_tick: MonoMs,
    /// Keys that were due at the last interval and are not written yet.
    left_of_interval: usize,
    /// Rows of other writers wait that did not fit the last packet.
    has_more: bool,
    has_failed: bool,
    timeout_ms: u64,
    /// When the packet on its way was sent.
    sent: MonoMs,
    pace: Pace,
    tokens: Tokens,
}

impl GlobalSync {
    /// The writer of the aggregator with this `id`, which is random, for the region of this name. `random` is uniform.
    pub fn new(schedule: Schedule, id: [u8; 16], region: &[u8], now: MonoMs, random: u64) -> GlobalSync {
        let every = |ms| Interval::new(ms, schedule.jitter_percent, now, random);
        let mut interval = every(schedule.publish_ms);
        let next_interval = interval.next(now, random);
        GlobalSync {
            schedule,
            id,
            writer: Writer::of(&id, 0),
            namesakes: 0,
            region: region.to_vec(),
            version: 0,
            acknowledged: OwnMarker::default(),
            has_namesake: false,
            others: BTreeMap::new(),
            stage: Stage::Resting,
            interval,
            tick: every(schedule.exchange_ms),
            next_interval,
            // The first packet is sent at once: the number of regions is not known before.
            next_tick: now,
            left_of_interval: 0,
            has_more: false,
            has_failed: false,
            timeout_ms: schedule.packet_timeout_ms,
            sent: now,
            pace: Pace::default(),
            tokens: Tokens { rows: MAX_ROW_TOKENS, since: now },
        }
    }

    /// What to do now; `random` is uniform.
    pub fn next(&mut self, access: &mut impl Access, random: u64) -> Next<Call> {
        loop {
            match core::mem::replace(&mut self.stage, Stage::Resting) {
                Stage::Resting => {
                    if let Some(next) = access.state(|state, now| self.rest(state, now, random)) {
                        return next;
                    }
                }
                // The driver has dropped the packet.
                Stage::Exchanging(sent) => {
                    access.state(|state, now| state.region.publish_failed(&sent.rows, now.unix));
                }
                Stage::Merging(mut merging) => {
                    let own =
                        OwnRows { region: &self.region, grace_period_ms: self.schedule.grace_period_ms };
                    if access.state(|state, now| merge_step(state, &mut merging, Some(&own), now)) {
                        self.stage = Stage::Merging(merging);
                        return Next::Yield;
                    }
                    access.state(|state, now| state.figures.imported_at = Some(now.mono));
                }
            }
        }
    }

    /// Takes the result of the packet. Returns true if the table has lost rows; all are then written and read again.
    pub fn exchanged(&mut self, access: &mut impl Access, result: Result<Feed, Failure>) -> bool {
        let Stage::Exchanging(sent) = core::mem::replace(&mut self.stage, Stage::Resting) else {
            return false;
        };
        access.state(|state, now| {
            note(state, Traffic::Own, result.is_ok(), now);
            self.pace.ended(now.mono);
            self.has_failed = result.is_err();
            self.timeout_ms = match result {
                Err(Failure::Timeout) => self.timeout_ms.saturating_mul(2),
                _ => now.mono.since(self.sent).saturating_mul(2),
            }
            .clamp(self.schedule.packet_timeout_ms, self.schedule.global_timeout_ms);
            match result {
                Ok(feed) => self.take(state, &sent, feed, now),
                Err(_) => {
                    state.region.publish_failed(&sent.rows, now.unix);
                    false
                }
            }
        })
    }

    /// The next packet, or the pause before it; `None` to be called again.
    fn rest(&mut self, state: &mut RegionState, now: Now, random: u64) -> Option<Next<Call>> {
        let is_interval = self.next_interval <= now.mono || state.publishes_all;
        let is_tick = self.next_tick <= now.mono;
        let tokens = self.tokens.at(now.mono);
        let is_urgent = tokens > 0 && state.region.has_rows(Due::Now);
        if !(is_interval || is_tick || is_urgent || self.has_more || self.left_of_interval > 0) {
            let until = self.next_tick.min(self.next_interval);
            return Some(Next::Wait {
                events: Event::Publish.into(),
                at_most_ms: Some(until.since(now.mono)),
            });
        }
        let pause_ms = self.pace.pause_ms(&self.schedule, now.mono, random);
        if pause_ms > 0 {
            return Some(Next::Sleep(pause_ms));
        }
        if is_tick {
            self.next_tick = self.tick.next(now.mono, random);
        }
        // While the database fails, one packet a second tries it.
        let is_closed = state.database().is_some_and(|breakers| breakers.states(now.mono).0 == State::Closed);
        if !is_closed && (!(is_tick || is_interval) || !allows(state, Traffic::Own, now)) {
            return Some(Next::Sleep(self.next_tick.since(now.mono).max(1)));
        }
        if is_interval {
            self.next_interval = self.interval.next(now.mono, random);
            self.left_of_interval = state.region.waiting_keys();
            state.publishes_all = false;
        }
        let rows = match (self.has_failed, self.left_of_interval > 0) {
            (true, _) => Vec::new(),
            (false, true) => {
                let rows = state.region.next_rows(Due::AtInterval, MAX_PACKET_ROWS, now.unix);
                let left = self.left_of_interval.saturating_sub(rows.len());
                self.left_of_interval = if rows.is_empty() { 0 } else { left };
                rows
            }
            (false, false) => {
                let most = usize::try_from(tokens).unwrap_or(usize::MAX).min(MAX_PACKET_ROWS);
                let least = if is_tick { Due::AtTick } else { Due::Now };
                let rows = state.region.next_rows(least, most, now.unix);
                self.tokens.spend(rows.len());
                rows
            }
        };
        if rows.is_empty() && !(is_interval || is_tick || self.has_more || self.has_failed) {
            // What waited is not due any more, or all keys are being examined.
            return state.region.has_rows(Due::Now).then_some(Next::Yield);
        }
        if core::mem::take(&mut self.has_namesake) {
            self.namesakes = self.namesakes.saturating_add(1);
            self.writer = Writer::of(&self.id, self.namesakes);
            (self.version, self.acknowledged) = (0, OwnMarker::default());
        }
        let writes = !self.has_failed && (is_interval || !rows.is_empty() || self.version == 0);
        self.version = self.version.saturating_add(u64::from(writes));
        let cursor =
            |(writer, reading): (&Writer, &Reading)| Cursor { writer: *writer, version: reading.cursor };
        let packet = Packet {
            writer: self.writer,
            version: writes.then_some(self.version),
            acknowledged: self.acknowledged.version,
            rows: rows.clone(),
            cursors: self.others.iter().map(cursor).collect(),
        };
        self.stage = Stage::Exchanging(OnItsWay { version: packet.version, rows });
        self.sent = now.mono;
        Some(Next::Call(Call { packet, within_ms: self.timeout_ms }))
    }

    fn take(&mut self, state: &mut RegionState, sent: &OnItsWay, feed: Feed, now: Now) -> bool {
        // A version that this process has not used is another one's, or was never used.
        self.has_namesake = feed.own.version > self.version;
        let is_lost = self.has_namesake
            || !self.acknowledged.is_kept_by(feed.own, sent.version)
            || self.has_peer_lost(&feed.markers, now.mono);
        self.acknowledged = feed.own;
        state.region.published(&sent.rows, now.unix);
        let has_marker = feed.own.version > 0 && !self.has_namesake;
        if is_lost {
            add(&mut state.figures.database_wipes, 1);
            state.region.forget_published();
            // What was written before the loss may be among the rows, so these count as lost too.
            for (writer, reading) in &mut self.others {
                let found = feed.markers.iter().find(|marker| marker.writer == *writer);
                let marker = found.map_or(0, |found| found.version.min(reading.marker));
                *reading =
                    Reading { cursor: 0, marker, moved: None, listing: Listing::default(), ..*reading };
            }
            self.has_more = true;
        } else {
            self.read(state, &feed.markers, &feed.pages, now);
        }
        state.guard = has_marker.then_some(state.figures.database_wipes);
        if !state.region.has_rows(Due::AtInterval) {
            state.figures.published_at = Some(now.mono);
        }
        self.stage = Stage::Merging(Merging::new(feed.regions));
        is_lost
    }

    /// Whether the marker of another writer of this region went back, or is gone before it can have expired. What it had published
    /// counted as published here too ([`merge_step`]), and it may have ended.
    fn has_peer_lost(&self, markers: &[Marker], now: MonoMs) -> bool {
        let went_back = |marker: &Marker| {
            let known = self.others.get(&marker.writer).map_or(0, |known| known.marker);
            marker.region == self.region && marker.version < known
        };
        let is_recent = |at: MonoMs| now.since(at) < KEPT_MS;
        let is_gone = |(writer, known): (&Writer, &Reading)| {
            let is_read = markers.iter().any(|marker| marker.writer == *writer);
            known.is_peer && known.moved.is_some_and(is_recent) && !is_read
        };
        // Beyond the most markers, those that expire first are not read.
        markers.iter().any(went_back) || (markers.len() < MAX_WRITERS && self.others.iter().any(is_gone))
    }

    /// Moves the cursors, and records which regions are alive.
    fn read(&mut self, state: &mut RegionState, markers: &[Marker], pages: &[Page], now: Now) {
        let full =
            |writer: Writer| pages.iter().find(|page| page.writer == writer && page.rows >= MAX_FEED_ROWS);
        let before = core::mem::take(&mut self.others);
        self.has_more = false;
        state.foreign_writers = 0;
        for Marker { writer, region, version } in markers.iter().take(MAX_WRITERS) {
            let known = before.get(writer).copied();
            let cursor = match (known, full(*writer)) {
                (None, _) => 0,
                (Some(_), Some(page)) => page.last_version.saturating_sub(1),
                (Some(_), None) => *version,
            };
            self.has_more |= cursor < *version;
            // A writer that is seen for the first time may have ended long ago. It counts as alive, as too few regions
            // would be unsafe.
            let has_moved = known.is_none_or(|known| known.marker != *version);
            let moved = if has_moved { known.map(|_| now.mono) } else { known.and_then(|known| known.moved) };
            let is_peer = *region == self.region;
            let mut listing = known.map_or_else(Listing::default, |known| known.listing);
            if is_peer {
                let has_moved = has_moved && known.is_some();
                listing.read((*writer, has_moved), state.members(), &self.schedule, now.mono);
                state.foreign_writers += usize::from(listing.is_foreign(&self.schedule));
            }
            self.others.insert(*writer, Reading { cursor, marker: *version, moved, is_peer, listing });
            if !is_peer
                && has_moved
                && let Ok(other) = state.region.other_region(region)
            {
                state.others.insert(other, now.mono);
            }
        }
        state.others.retain(|_, seen| now.mono.since(*seen) < REMEMBERED_MS);
        let alive = state.others_alive(now.mono).saturating_add(1);
        state.region.set_regions(alive);
    }
}

/// The times of the last packets.
#[derive(Debug, Default)]
struct Pace {
    ends: VecDeque<MonoMs>,
}

impl Pace {
    fn ended(&mut self, now: MonoMs) {
        if self.ends.len() >= BURST_PACKETS {
            self.ends.pop_front();
        }
        self.ends.push_back(now);
    }

    /// How long to wait for the next packet.
    fn pause_ms(&self, schedule: &Schedule, now: MonoMs, random: u64) -> u64 {
        let Some(last) = self.ends.back() else { return 0 };
        let jitter_ms = schedule.packet_pause_ms.saturating_mul(schedule.jitter_percent) / 100;
        let jittered = random.checked_rem(jitter_ms.saturating_mul(2).saturating_add(1)).unwrap_or(0);
        let pause_ms = schedule.packet_pause_ms.saturating_sub(jitter_ms).saturating_add(jittered);
        let after_last = last.after(pause_ms).since(now);
        let burst_ms = schedule.packet_pause_ms.saturating_mul(BURST_MS) / 100;
        let after_burst = match (self.ends.len() >= BURST_PACKETS, self.ends.front()) {
            (true, Some(first)) => first.after(burst_ms).since(now),
            _ => 0,
        };
        after_last.max(after_burst)
    }
}

/// The budget of rows.
#[derive(Debug)]
struct Tokens {
    rows: u64,
    since: MonoMs,
}

impl Tokens {
    fn at(&mut self, now: MonoMs) -> u64 {
        let more = now.since(self.since).saturating_mul(ROWS_A_SECOND) / 1_000;
        if more > 0 {
            self.rows = self.rows.saturating_add(more).min(MAX_ROW_TOKENS);
            self.since = now;
        }
        self.rows
    }

    fn spend(&mut self, rows: usize) {
        self.rows = self.rows.saturating_sub(rows as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{NODE, NOW, SEQUENCE, at, count, key, state};
    use super::*;
    use crate::model::wire::{FilterFrame, Report};
    use crate::region::exchange::{Page as TablePage, Stored, StoredRegion};
    use crate::replication::global::recover::Recovery;
    use crate::replication::members::Member;
    use std::format;
    use std::vec;

    const ID: [u8; 16] = [0, 0, 0, 7, 0, 0, 0, 71, 0, 0, 0, 72, 0, 0, 0, 73];
    const ME: Writer = Writer::new(7);
    const NORTH: Writer = Writer::new(8);
    const SOUTH: Writer = Writer::new(9);
    const PEER: Writer = Writer::new(10);

    /// A region with a database, its packets, and the clock.
    struct Driven {
        state: RegionState,
        sync: GlobalSync,
        ms: u64,
        within_ms: u64,
        /// The packet that was sent last.
        packet: Option<Packet>,
        /// The own marker in the table.
        marker: OwnMarker,
    }

    fn driven() -> Driven {
        let schedule = Schedule { jitter_percent: 0, ..Schedule::default() };
        let state = state().with_database(schedule.global_breaker, false);
        let sync = GlobalSync::new(schedule, ID, b"here", NOW.mono, 5_000);
        Driven { state, sync, ms: 0, within_ms: 0, packet: None, marker: OwnMarker::default() }
    }

    impl Driven {
        /// Lets time pass until the next packet.
        fn packet(&mut self) -> Packet {
            for _ in 0..10_000 {
                match self.sync.next(&mut at(&mut self.state, self.ms), 0) {
                    Next::Call(call) => {
                        self.within_ms = call.within_ms;
                        self.packet = Some(call.packet.clone());
                        return call.packet;
                    }
                    Next::Sleep(ms) => self.ms += ms,
                    Next::Wait { at_most_ms, .. } => {
                        let is_notified = self.state.take_events().has(Event::Publish);
                        self.ms += if is_notified { 0 } else { at_most_ms.unwrap() };
                    }
                    Next::Yield => {}
                    Next::Over => panic!("packets never end"),
                }
            }
            panic!("no packet within a long time");
        }

        /// Writes the last packet, as the database does.
        fn write(&mut self) {
            let Packet { version: Some(version), acknowledged, .. } = self.packet.take().unwrap() else {
                return;
            };
            if self.marker.version == 0 || self.marker.version < acknowledged {
                self.marker.since = version;
            }
            self.marker.version = self.marker.version.max(version);
        }

        /// Reads the own marker and these.
        fn read(&mut self, others: &[(Writer, &[u8], u64)]) -> bool {
            let markers = others.iter().map(|other| marker(*other)).collect();
            self.feed(Feed { own: self.marker, markers, ..Feed::default() })
        }

        fn reply(&mut self, others: &[(Writer, &[u8], u64)]) -> bool {
            self.write();
            self.read(others)
        }

        fn feed(&mut self, feed: Feed) -> bool {
            self.sync.exchanged(&mut at(&mut self.state, self.ms), Ok(feed))
        }

        fn fail(&mut self) {
            self.sync.exchanged(&mut at(&mut self.state, self.ms), Err(Failure::Timeout));
        }

        fn use_keys(&mut self, keys: core::ops::Range<usize>, own: u64) {
            let keys: Vec<usize> = keys.collect();
            for keys in keys.chunks(crate::model::wire::MAX_FRAME_CELLS) {
                let counts = keys.iter().map(|key| count(&format!("i{key}"), own)).collect();
                let frame = FilterFrame { report: Some(Report { id: 1, counts }), ..FilterFrame::default() };
                self.state.take(NODE, frame, super::super::super::testing::NOW).unwrap();
            }
        }
    }

    fn marker((writer, region, version): (Writer, &[u8], u64)) -> Marker {
        Marker { writer, region: region.to_vec(), version }
    }

    fn cells(keys: core::ops::Range<usize>, region: &[u8]) -> Vec<StoredRegion> {
        let cell = |n: usize| Stored { key: key(&format!("i{n}")), sequence: SEQUENCE, count: 4, limit: 10 };
        vec![StoredRegion { region: region.to_vec(), cells: keys.map(cell).collect() }]
    }

    const LISTED: [u8; 16] = [0, 0, 0, 10, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3];

    /// Reads a peer's marker, which moves at each interval, for so long. The store lists `aggregators`, unless it does not answer.
    fn beside_a_peer(driven: &mut Driven, seconds: u64, version: &mut u64, aggregators: Option<&[[u8; 16]]>) {
        let until = driven.ms + seconds * 1_000;
        while driven.ms < until {
            *version += u64::from(driven.packet().version.is_some());
            if let Some(aggregators) = aggregators {
                let now = NOW.mono.after(driven.ms);
                let listed: Vec<_> = aggregators.iter().map(|id| Member { id: *id, owes: false }).collect();
                driven.state.members.listed(&listed, &ID, now);
            }
            driven.reply(&[(PEER, b"here", *version), (NORTH, b"north", *version)]);
        }
    }

    #[test]
    fn a_writer_of_the_region_that_its_store_does_not_list_splits_it() {
        let (mut driven, mut version) = (driven(), 5);
        driven.state =
            std::mem::replace(&mut driven.state, state()).with_store(Schedule::default().store_breaker);
        beside_a_peer(&mut driven, 60, &mut version, Some(&[ID, LISTED]));
        assert_eq!(driven.state.foreign_writers(), 0, "it is listed");
        beside_a_peer(&mut driven, 25, &mut version, Some(&[ID]));
        assert_eq!(driven.state.foreign_writers(), 0, "the store may have been emptied a moment ago");
        beside_a_peer(&mut driven, 30, &mut version, Some(&[ID]));
        assert_eq!(driven.state.foreign_writers(), 1);
        beside_a_peer(&mut driven, 2, &mut version, Some(&[ID, LISTED]));
        assert_eq!(driven.state.foreign_writers(), 0, "it is listed again");
    }

    #[test]
    fn neither_a_restart_nor_a_store_that_is_away_splits_the_region() {
        let (mut driven, mut version) = (driven(), 5);
        driven.state =
            std::mem::replace(&mut driven.state, state()).with_store(Schedule::default().store_breaker);
        beside_a_peer(&mut driven, 120, &mut version, None);
        assert_eq!(driven.state.foreign_writers(), 0, "the store lists nothing");
        // The peer ends: the store does not list it any more, and its marker stays as it is.
        for second in 0..120 {
            driven.packet();
            let now = NOW.mono.after(driven.ms);
            driven.state.members.listed(&[Member { id: ID, owes: false }], &ID, now);
            driven.reply(&[(PEER, b"here", version + u64::from(second > 3))]);
            assert_eq!(driven.state.foreign_writers(), 0);
        }
        // Another number, as another process has taken the first.
        let second = Writer::new(0x0101_0101);
        assert_eq!([0, 1, 4].map(|attempt| Writer::of(&LISTED, attempt)), [PEER, second, PEER]);
    }

    #[test]
    fn a_region_without_a_store_has_no_second_writer() {
        let (mut driven, mut version) = (driven(), 5);
        beside_a_peer(&mut driven, 60, &mut version, None);
        assert_eq!(driven.state.foreign_writers(), 1);
    }

    #[test]
    fn a_packet_each_second_reads_and_one_each_ten_seconds_writes_the_marker() {
        let mut driven = driven();
        let mut written = vec![];
        for packet in 0..31 {
            let sent = driven.packet();
            assert_eq!(sent.rows, vec![]);
            if let Some(version) = sent.version {
                written.push((driven.ms / 1_000, version));
            }
            assert!(!driven.reply(&[]), "packet {packet}");
        }
        assert_eq!(written, vec![(0, 1), (5, 2), (15, 3), (25, 4)]);
        assert!((28_000..=31_000).contains(&driven.ms), "{}", driven.ms);
    }

    #[test]
    fn what_is_due_at_once_is_written_at_once_and_packets_keep_their_distance() {
        let mut driven = driven();
        driven.packet();
        driven.reply(&[]);
        driven.ms += 300;
        let mut times = vec![];
        for keys in 0..14 {
            driven.use_keys(keys..keys + 1, 9);
            let packet = driven.packet();
            assert_eq!((packet.rows.len(), packet.version), (1, Some(keys as u64 + 2)));
            times.push(driven.ms);
            driven.reply(&[]);
        }
        let pauses: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(times[0], 300);
        assert!(pauses[..8].iter().all(|pause| *pause == 100), "{pauses:?}");
        assert!(times[10] - times[0] >= 2_000, "ten in two seconds: {times:?}");
    }

    #[test]
    fn all_due_keys_are_written_a_thousand_in_a_packet_and_what_failed_is_written_again() {
        let mut driven = driven();
        driven.packet();
        driven.reply(&[]);
        driven.use_keys(0..2_500, 9);
        let mut rows = vec![];
        for expected in [1_000, 1_000, 500] {
            let packet = driven.packet();
            assert_eq!(packet.rows.len(), expected);
            rows.extend(packet.rows);
            driven.reply(&[]);
        }
        let keys: alloc::collections::BTreeSet<_> = rows.iter().map(|row| &row.key).collect();
        assert_eq!(keys.len(), 2_500);
        assert!(!driven.state.region.has_rows(Due::AtInterval));
        driven.use_keys(5_000..5_010, 9);
        let lost = driven.packet();
        assert_eq!(lost.rows.len(), 10);
        driven.fail();
        let read = driven.packet();
        assert_eq!((read.version, read.rows.len()), (None, 0), "the packet after a failure only reads");
        driven.reply(&[]);
        let again = driven.packet();
        assert_eq!(again.rows.len(), 10);
        assert!(again.version > lost.version, "no version is used twice");
    }

    /// What happens to the table.
    type Loss = fn(&mut Driven);

    const WIPED: Loss = |driven| driven.marker = OwnMarker::default();
    /// Packet 1 is in the dump, and packet 2 is not.
    const SET_BACK: Loss = |driven| driven.marker = OwnMarker { version: 1, since: 1 };

    /// Three keys are published by packet 2.
    fn published() -> Driven {
        let mut driven = driven();
        driven.packet();
        driven.reply(&[(NORTH, b"north", 5)]);
        driven.use_keys(0..3, 9);
        assert_eq!(driven.packet().version, Some(2));
        driven.reply(&[(NORTH, b"north", 5)]);
        driven
    }

    /// The next packet writes all keys, and reads from the beginning. What is kept then is not lost again.
    fn is_written_again(driven: &mut Driven, keys: usize) {
        let packet = driven.packet();
        assert_eq!((packet.rows.len(), packet.cursors[0].version), (keys, 0));
        for _ in 0..20 {
            assert!(!driven.reply(&[(NORTH, b"north", 5)]));
            driven.packet();
        }
        assert_eq!(driven.packet().cursors, vec![Cursor { writer: NORTH, version: 5 }]);
        assert_eq!(driven.state.figures.database_wipes, 1);
    }

    #[test]
    fn a_table_that_loses_rows_at_any_moment_of_a_packet_is_written_and_read_again() {
        for loss in [WIPED, SET_BACK] {
            // Before the packet is written, and after.
            for is_written_first in [false, true] {
                let mut driven = published();
                driven.use_keys(3..4, 9);
                assert_eq!(driven.packet().rows.len(), 1);
                if is_written_first {
                    driven.write();
                    loss(&mut driven);
                } else {
                    loss(&mut driven);
                    driven.write();
                }
                assert!(driven.read(&[(NORTH, b"north", 5)]), "written first: {is_written_first}");
                is_written_again(&mut driven, 4);
            }
            // Beside a packet that writes nothing.
            let mut driven = published();
            assert_eq!(driven.packet().version, None);
            loss(&mut driven);
            assert!(driven.reply(&[(NORTH, b"north", 5)]));
            is_written_again(&mut driven, 3);
        }
    }

    #[test]
    fn a_loss_is_found_although_the_answer_that_showed_it_was_lost() {
        for loss in [WIPED, SET_BACK] {
            let mut driven = published();
            driven.use_keys(3..4, 9);
            driven.packet();
            loss(&mut driven);
            driven.write();
            driven.fail();
            driven.packet();
            assert!(driven.reply(&[(NORTH, b"north", 5)]), "read by the packet after the failure");
            is_written_again(&mut driven, 4);
        }
        // The packet is committed after the next one was read, and before the one after that is written.
        let mut driven = published();
        driven.use_keys(3..4, 9);
        driven.packet();
        let late = driven.packet.take();
        driven.fail();
        driven.packet();
        assert!(!driven.reply(&[(NORTH, b"north", 5)]));
        WIPED(&mut driven);
        assert_eq!(driven.packet().version, Some(4));
        let next = core::mem::replace(&mut driven.packet, late);
        driven.write();
        driven.packet = next;
        assert!(driven.reply(&[(NORTH, b"north", 5)]));
        is_written_again(&mut driven, 4);
    }

    #[test]
    fn a_packet_that_is_committed_late_is_no_loss() {
        let mut driven = published();
        let mut late = vec![];
        for key in 3..6 {
            driven.use_keys(key..key + 1, 9);
            while driven.packet().version.is_none() {
                driven.reply(&[(NORTH, b"north", 5)]);
            }
            late.push(driven.packet.take());
            driven.fail();
        }
        let mut next = driven.packet();
        for packet in late {
            assert!(!driven.reply(&[(NORTH, b"north", 5)]), "{next:?}");
            next = driven.packet();
            let this = core::mem::replace(&mut driven.packet, packet);
            driven.write();
            driven.packet = this;
        }
        assert!(!driven.reply(&[(NORTH, b"north", 5)]));
        assert_eq!(driven.state.figures.database_wipes, 0);
    }

    #[test]
    fn what_a_peer_had_published_is_lost_if_its_marker_goes_back() {
        let mut driven = published();
        driven.use_keys(3..4, 4);
        driven.packet();
        driven.reply(&[(NORTH, b"north", 5), (PEER, b"here", 7)]);
        // Another writer of this region has published a key: this one need not.
        driven.packet();
        driven.write();
        let markers = vec![marker((NORTH, b"north", 5)), marker((PEER, b"here", 7))];
        let own = driven.marker;
        driven.feed(Feed { own, markers, pages: vec![], regions: cells(3..4, b"here") });
        for (peer, is_lost) in [(7, false), (8, false), (6, true), (6, false), (9, false)] {
            driven.packet();
            let others: [(Writer, &[u8], u64); 2] = [(NORTH, b"north", 2), (PEER, b"here", peer)];
            assert_eq!(driven.reply(&others), is_lost, "{peer}");
        }
        assert_eq!(
            driven.state.figures.database_wipes, 1,
            "the marker of another region that goes back is none"
        );
    }

    #[test]
    fn a_writer_whose_number_another_process_uses_takes_another_one() {
        for version in [3, crate::model::window::MAX_COUNT] {
            let mut driven = published();
            driven.packet();
            driven.marker.version = version;
            assert!(driven.read(&[]));
            driven.use_keys(0..3, 9);
            let packet = driven.packet();
            let other = Writer::of(&ID, 1);
            assert_eq!((packet.writer, packet.version, packet.rows.len()), (other, Some(1), 3));
            driven.marker = OwnMarker::default();
            for _ in 0..20 {
                assert!(!driven.reply(&[(ME, b"here", version)]));
                assert_eq!(driven.packet().writer, other);
            }
        }
    }

    #[test]
    fn each_writer_is_read_on_from_where_it_was_and_pages_are_not_split() {
        let mut driven = driven();
        driven.packet();
        driven.reply(&[(NORTH, b"north", 5)]);
        let before = driven.ms;
        assert_eq!(driven.packet().cursors, vec![Cursor { writer: NORTH, version: 0 }], "a new writer");
        assert!(driven.ms - before <= 100, "it is read at once");
        driven.feed(Feed {
            own: driven.marker,
            markers: vec![marker((NORTH, b"north", 9)), marker((SOUTH, b"south", 1))],
            pages: vec![Page { writer: NORTH, rows: MAX_FEED_ROWS, last_version: 7 }],
            regions: cells(0..600, b"north"),
        });
        let cursors = driven.packet().cursors;
        assert_eq!(cursors[0], Cursor { writer: NORTH, version: 6 }, "rows of version 7 may be missing");
        assert_eq!(cursors[1], Cursor { writer: SOUTH, version: 0 });
        assert_eq!(driven.state.figures.imports_created, 600);
        assert_eq!(driven.state.region.regions(), 3);
        driven.feed(Feed {
            own: driven.marker,
            markers: vec![marker((NORTH, b"north", 9))],
            pages: vec![Page { writer: NORTH, rows: 30, last_version: 9 }],
            regions: cells(0..1, b"here"),
        });
        assert_eq!(driven.packet().cursors, vec![Cursor { writer: NORTH, version: 9 }]);
        assert_eq!(driven.state.figures.imports_merged, 600, "own rows are not imported");
    }

    #[test]
    fn a_region_counts_as_alive_while_its_marker_moves() {
        let mut driven = driven();
        let quiet: &[(Writer, &[u8], u64)] = &[(NORTH, b"north", 5)];
        driven.packet();
        driven.reply(quiet);
        assert_eq!(driven.state.region.regions(), 2);
        driven.ms += ALIVE - 2_000;
        driven.packet();
        driven.reply(&[(NORTH, b"north", 5), (SOUTH, b"south", 1)]);
        assert_eq!(driven.state.region.regions(), 3);
        // While the database is unavailable, the number stays.
        driven.ms += ALIVE;
        driven.packet();
        driven.fail();
        assert_eq!(driven.state.region.regions(), 3);
        driven.packet();
        driven.reply(&[(NORTH, b"north", 5), (SOUTH, b"south", 2)]);
        assert_eq!(driven.state.region.regions(), 2);
    }

    const ALIVE: u64 = 600_000;

    #[test]
    fn a_failing_database_is_tried_once_a_second() {
        let mut driven = driven();
        let mut times = vec![];
        for _ in 0..20 {
            driven.use_keys(0..5, 9);
            driven.packet();
            times.push(driven.ms);
            driven.fail();
        }
        let pauses: Vec<u64> = times[6..].windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(pauses.iter().all(|pause| (900..=2_100).contains(pause)), "{pauses:?}");
        driven.packet();
        driven.reply(&[]);
        assert_eq!(driven.packet().rows.len(), 5);
    }

    #[test]
    fn a_slow_database_gets_more_time() {
        let mut driven = driven();
        let mut timeouts = vec![];
        for _ in 0..5 {
            driven.packet();
            timeouts.push(driven.within_ms);
            driven.ms += driven.within_ms;
            driven.fail();
        }
        assert_eq!(timeouts, vec![2_000, 4_000, 8_000, 10_000, 10_000]);
        for (took_ms, next_ms) in [(3_000, 6_000), (7_000, 10_000), (90, 2_000)] {
            driven.packet();
            driven.ms += took_ms;
            driven.reply(&[]);
            driven.packet();
            assert_eq!(driven.within_ms, next_ms, "after {took_ms} ms");
            driven.reply(&[]);
        }
    }

    #[test]
    fn rows_beyond_the_budget_wait_for_the_interval() {
        let mut driven = driven();
        driven.packet();
        driven.reply(&[]);
        driven.use_keys(0..22_000, 9);
        let mut written = 0;
        while driven.ms < 4_900 {
            written += driven.packet().rows.len();
            driven.reply(&[]);
        }
        assert!((19_000..=22_000).contains(&written), "{written}");
        while driven.ms < 6_000 {
            written += driven.packet().rows.len();
            driven.reply(&[]);
        }
        assert_eq!(written, 22_000);
    }

    /// A row of the own region, of which 9 of 10 were used.
    fn own_row() -> Vec<StoredRegion> {
        let cell = Stored { key: key("i0"), sequence: SEQUENCE, count: 9, limit: 10 };
        vec![StoredRegion { region: b"here".to_vec(), cells: vec![cell] }]
    }

    /// The rows of the next packets.
    fn written(driven: &mut Driven, packets: usize) -> Vec<u64> {
        let mut rows = vec![];
        for _ in 0..packets {
            rows.extend(driven.packet().rows.iter().map(|row| row.count));
            driven.reply(&[]);
        }
        rows
    }

    #[test]
    fn what_was_recovered_before_a_loss_that_no_marker_shows_is_written_again() {
        let mut driven = driven();
        let mut recovery = Recovery::before_serving(Schedule::default(), NOW.mono);
        assert!(matches!(recovery.next(&mut at(&mut driven.state, 0)), Next::Call(_)));
        let page = TablePage { regions: own_row(), end: None };
        recovery.recovered(&mut at(&mut driven.state, 0), Ok(&page));
        // The table is wiped before the first packet is written. The node sends its count again.
        driven.use_keys(0..1, 9);
        assert_eq!(written(&mut driven, 20), [9]);
    }

    #[test]
    fn what_a_peer_had_published_is_written_again_if_a_loss_shows_in_no_marker() {
        let mut driven = driven();
        driven.packet();
        driven.fail();
        driven.packet();
        driven.read(&[(PEER, b"here", 3)]);
        driven.use_keys(0..1, 9);
        // The database accepts no writes, and is read.
        while driven.packet().version.is_some() {
            driven.fail();
        }
        let markers = vec![marker((PEER, b"here", 3))];
        driven.feed(Feed { own: OwnMarker::default(), markers, pages: vec![], regions: own_row() });
        // The table is wiped. Then it accepts writes again.
        assert_eq!(written(&mut driven, 20), [9]);
    }

    #[test]
    fn what_a_peer_had_published_is_lost_if_its_marker_is_gone() {
        let mut driven = driven();
        let mut lost = vec![];
        for peer in [Some(1), Some(1), Some(2), None, None] {
            driven.packet();
            let others: Vec<(Writer, &[u8], u64)> =
                peer.map(|version| (PEER, &b"here"[..], version)).into_iter().collect();
            lost.push(driven.reply(&others));
        }
        assert_eq!(lost, [false, false, false, true, false], "a restore from before its first packet");
        // A marker that has not moved for long has expired.
        for (peer, ms) in [(Some(5), 0), (Some(6), 0), (None, 3_600_000)] {
            driven.ms += ms;
            driven.packet();
            let others: Vec<(Writer, &[u8], u64)> =
                peer.map(|version| (PEER, &b"here"[..], version)).into_iter().collect();
            assert!(!driven.reply(&others));
        }
    }

    #[test]
    fn an_aggregator_that_ends_publishes_what_would_be_due_later() {
        let mut driven = driven();
        driven.packet();
        driven.reply(&[]);
        // Used by this region alone, and less above the published count than is due at once.
        driven.use_keys(0..1, 5);
        assert_eq!(driven.packet().rows.len(), 1);
        driven.reply(&[]);
        driven.use_keys(0..1, 6);
        let began_ms = driven.ms;
        driven.state.publish_all();
        let rows = driven.packet().rows;
        assert_eq!((rows.len(), rows[0].count), (1, 6));
        assert!(driven.ms < began_ms + 1_000, "before the next tick");
        driven.reply(&[]);
        assert!(driven.state.figures.published_at.is_some_and(|at| at >= NOW.mono.after(began_ms)));
    }

    /// The last process of a region without a store has ended. Its last packet is committed after its successor has read the region's rows.
    #[test]
    fn what_an_earlier_process_commits_late_counts() {
        for (late_ms, grace_ms) in [(100, 2_100), (3_000, 3_000)] {
            let mut driven = driven();
            driven.packet();
            driven.reply(&[]);
            let mut recovery = Recovery::before_serving(Schedule::default(), NOW.mono);
            assert!(matches!(recovery.next(&mut at(&mut driven.state, 0)), Next::Call(_)));
            recovery.recovered(&mut at(&mut driven.state, 0), Ok(&TablePage::default()));
            recovery.serve(&mut at(&mut driven.state, 0));
            driven.packet();
            driven.reply(&[(PEER, b"here", 2)]);
            driven.ms = driven.ms.max(late_ms);
            driven.packet();
            let markers = vec![marker((PEER, b"here", 3))];
            driven.write();
            driven.feed(Feed { own: driven.marker, markers, pages: vec![], regions: own_row() });
            driven.packet();
            let used = |driven: &Driven| {
                let explained = driven.state.region.explain(b"w", b"n", b"i0");
                explained.first().map_or(0, |key| key.cells[0].regional_total())
            };
            assert_eq!(used(&driven), 9);
            let settled = at(&mut driven.state, grace_ms).now.unix;
            driven.state.region.end_grace_period_here(NOW.unix, settled);
            let explained = driven.state.region.explain(b"w", b"n", b"i0");
            assert_eq!(explained[0].cells[0].components.len(), 1, "it is the baseline");
            assert!(driven.state.region.stats(NOW.mono).pending_publications == 0, "the database holds it");
        }
    }
}
