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
mod tests;
