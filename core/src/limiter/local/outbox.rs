//! Cells that a worker has to report, and reports that were not acknowledged.
//!
//! A cell has one row however many requests charged it. A row has the absolute count, so after a lost acknowledgement it is simply sent
//! again. The outbox is bounded; a resync reports what had no room.

use crate::limiter::table::{Cell, Entry};
use crate::model::time::{MonoMs, UnixMs};
use crate::model::wire;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::hash::{BuildHasherDefault, Hasher};
use hashbrown::HashMap;

/// Most cells waiting to be sent.
pub(super) const MAX_ROWS: usize = 16_384;
/// Most unacknowledged reports; beyond that no more are sent to a peer.
const MAX_IN_FLIGHT: usize = 16;

/// One cell to report.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'a> {
    pub(super) fingerprint: u64,
    pub(super) key: &'a [u8],
    pub(super) sequence: u64,
    pub(super) own: u64,
    pub(super) limit: u64,
    /// The limit without live control, if live control sets `limit`.
    pub(super) configured: Option<u64>,
    /// When the limit was applied; 0 if the row repeats an earlier one.
    pub(super) applied: UnixMs,
    pub(super) without_baseline: bool,
    /// The others' count as this process received it, if it is to be repeated; else 0.
    pub(super) region_others: u64,
    /// Whether the region has refused a count of the key before.
    pub(super) unstored: bool,
    /// What is reserved for deferred costs, if it has changed.
    pub(super) reserved: Option<Reserved>,
}

/// What is reserved of a key at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reserved {
    pub(super) at: UnixMs,
    pub(super) amount: u64,
}

/// Results of the rows of an acknowledged report.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Acknowledged {
    /// Fingerprints of rows that the region refused.
    pub(super) refused: Vec<u64>,
    /// Those of keys that it had refused before.
    pub(super) stored: Vec<StoredCell>,
}

#[derive(Debug, Default)]
pub(in crate::limiter) struct Outbox {
    rows: Vec<QueuedCell>,
    keys: Vec<u8>,
    index: HashMap<(u64, u64), usize, BuildHasherDefault<FingerprintHasher>>,
    in_flight: VecDeque<Batch>,
    /// Since when the oldest unacknowledged report is the oldest.
    oldest: MonoMs,
    since: Option<MonoMs>,
    last_id: u64,
    lost: bool,
}

#[derive(Debug)]
struct QueuedCell {
    fingerprint: u64,
    key: (usize, usize),
    sequence: u64,
    own: u64,
    limit: u64,
    configured: Option<u64>,
    applied: UnixMs,
    without_baseline: bool,
    region_others: u64,
    unstored: bool,
    reserved: Option<Reserved>,
}

/// A cell whose count the region has stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StoredCell {
    pub(super) fingerprint: u64,
    pub(super) sequence: u64,
    pub(super) own: u64,
}

#[derive(Debug)]
struct Batch {
    id: u64,
    since: MonoMs,
    sent: MonoMs,
    rows: Vec<QueuedCell>,
    keys: Vec<u8>,
}

/// Hasher for fingerprints, which are keyed hashes already.
#[derive(Debug, Default)]
struct FingerprintHasher(u64);

impl Hasher for FingerprintHasher {
    fn finish(&self) -> u64 {
        let wide = u128::from(self.0) * 0x9e37_79b9_7f4a_7c15;
        (wide as u64) ^ (wide >> 64) as u64
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = self.0.rotate_left(23) ^ word;
    }
}

impl Outbox {
    /// Notes that a cell's count is `row.own`.
    pub(super) fn note(&mut self, row: &Row<'_>, now: MonoMs) {
        if let Some(held) =
            self.index.get(&(row.fingerprint, row.sequence)).and_then(|at| self.rows.get_mut(*at))
        {
            if held.without_baseline == row.without_baseline {
                held.own = held.own.max(row.own);
            } else {
                // The key was evicted in between, or has its baseline now. What was noted before an eviction is stored.
                (held.own, held.without_baseline) = (row.own, row.without_baseline);
            }
            if row.applied >= held.applied {
                (held.limit, held.configured, held.applied) = (row.limit, row.configured, row.applied);
            }
            held.region_others = held.region_others.max(row.region_others);
            held.unstored |= row.unstored;
            let is_newer = |reserved: &Reserved| held.reserved.is_none_or(|held| held.at <= reserved.at);
            held.reserved = row.reserved.filter(is_newer).or(held.reserved);
            return;
        }
        if self.rows.len() >= MAX_ROWS {
            self.lost = true;
            return;
        }
        self.index.insert((row.fingerprint, row.sequence), self.rows.len());
        self.rows.push(QueuedCell {
            fingerprint: row.fingerprint,
            key: (self.keys.len(), row.key.len()),
            sequence: row.sequence,
            own: row.own,
            limit: row.limit,
            configured: row.configured,
            applied: row.applied,
            without_baseline: row.without_baseline,
            region_others: row.region_others,
            unstored: row.unstored,
            reserved: row.reserved,
        });
        self.keys.extend_from_slice(row.key);
        self.since.get_or_insert(now);
    }

    /// The next reports to send, as far as unacknowledged reports allow; all rows if this is the `last` call.
    pub(in crate::limiter) fn take(&mut self, last: bool, now: MonoMs, reports: &mut Vec<wire::Report>) {
        let room = if last { usize::MAX } else { MAX_IN_FLIGHT.saturating_sub(self.in_flight.len()) };
        let taken = self.rows.len().min(room.saturating_mul(wire::MAX_FRAME_CELLS));
        if taken == 0 {
            return;
        }
        let since = self.since.unwrap_or_default();
        let mut sent = core::mem::take(&mut self.rows);
        let mut keys = core::mem::take(&mut self.keys);
        self.keep_from(taken, &mut sent, &mut keys);
        while !sent.is_empty() {
            let rest = sent.split_off(sent.len().min(wire::MAX_FRAME_CELLS));
            let rest_keys = keys.split_off(rest.first().map_or(keys.len(), |held| held.key.0));
            let rows = core::mem::replace(&mut sent, rebased(rest));
            let batch = Batch {
                id: self.last_id + 1,
                since,
                sent: now,
                rows,
                keys: core::mem::replace(&mut keys, rest_keys),
            };
            self.last_id = batch.id;
            let counts = batch.rows.iter().map(|held| held.row(&batch.keys).count()).collect();
            reports.push(wire::Report { id: batch.id, counts });
            self.in_flight.push_back(batch);
        }
    }

    /// Applies an acknowledgement; calls `confirmed` for each stored cell.
    pub(super) fn on_ack(
        &mut self,
        id: u64,
        refused: &[u32],
        now: MonoMs,
        mut confirmed: impl FnMut(StoredCell),
    ) -> Acknowledged {
        let mut acknowledged = Acknowledged::default();
        let at = self.in_flight.iter().position(|batch| batch.id == id);
        let Some(batch) = at.and_then(|at| self.in_flight.remove(at)) else { return acknowledged };
        if at == Some(0) {
            self.oldest = now;
        }
        let mut places: Vec<u32> = refused.to_vec();
        places.sort_unstable();
        for (place, held) in (0u32..).zip(&batch.rows) {
            if places.binary_search(&place).is_ok() {
                // A row without own counts repeats others' counts only, so it may be dropped.
                acknowledged.refused.extend((held.own > 0).then_some(held.fingerprint));
            } else if !held.without_baseline {
                let &QueuedCell { fingerprint, sequence, own, .. } = held;
                let stored = StoredCell { fingerprint, sequence, own };
                confirmed(stored);
                acknowledged.stored.extend(held.unstored.then_some(stored));
            }
        }
        acknowledged
    }

    /// Queues unacknowledged rows again, as the stream has ended.
    pub(in crate::limiter) fn broken(&mut self) {
        let (waiting, keys) = (core::mem::take(&mut self.rows), core::mem::take(&mut self.keys));
        self.index.clear();
        for batch in core::mem::take(&mut self.in_flight) {
            for held in &batch.rows {
                self.note(&held.row(&batch.keys), batch.since);
            }
            self.since = self.since.min(Some(batch.since)).or(Some(batch.since));
        }
        // These are newer.
        let since = self.since.unwrap_or_default();
        waiting.iter().for_each(|held| self.note(&held.row(&keys), since));
    }

    /// Time before which all noted rows are stored in the region.
    pub(in crate::limiter) fn stored_through(&self, now: MonoMs) -> MonoMs {
        self.in_flight.iter().map(|batch| batch.since).chain(self.since).min().unwrap_or(now)
    }

    /// Time before which all of this worker's counts are stored in the region; `None` if rows had no room.
    pub(in crate::limiter) fn acked_through(&self, now: MonoMs) -> Option<MonoMs> {
        (!self.lost).then(|| self.stored_through(now))
    }

    /// Since when the next acknowledgement is due; `None` if there is none. The time of a report begins when the one before it was
    /// acknowledged, so that a slow peer is not taken for one that does not acknowledge.
    pub(in crate::limiter) fn owed_since(&self) -> Option<MonoMs> {
        self.in_flight.front().map(|batch| batch.sent.max(self.oldest))
    }

    /// Whether rows had no room, so that a resync is needed.
    pub(in crate::limiter) fn has_lost(&self) -> bool {
        self.lost
    }

    /// Notes that a resync has begun, which finds the rows that had no room.
    pub(in crate::limiter) fn found_again(&mut self) {
        self.lost = false;
    }

    pub(in crate::limiter) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether nothing waits to be reported or acknowledged.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.in_flight.is_empty() && !self.lost
    }

    /// Keeps the first `taken` of `rows` and queues the others again.
    fn keep_from(&mut self, taken: usize, rows: &mut Vec<QueuedCell>, keys: &mut Vec<u8>) {
        self.index.clear();
        self.rows = rows.split_off(taken);
        self.keys = keys.split_off(self.rows.first().map_or(keys.len(), |held| held.key.0));
        self.rows = rebased(core::mem::take(&mut self.rows));
        for (at, held) in self.rows.iter().enumerate() {
            self.index.insert((held.fingerprint, held.sequence), at);
        }
        if self.rows.is_empty() {
            self.since = None;
        }
    }
}

/// The rows with offsets of keys relative to the first row's.
fn rebased(mut rows: Vec<QueuedCell>) -> Vec<QueuedCell> {
    let first = rows.first().map_or(0, |held| held.key.0);
    rows.iter_mut().for_each(|held| held.key.0 -= first);
    rows
}

impl QueuedCell {
    fn row<'a>(&self, keys: &'a [u8]) -> Row<'a> {
        let (at, length) = self.key;
        Row {
            fingerprint: self.fingerprint,
            key: keys.get(at..at + length).unwrap_or_default(),
            sequence: self.sequence,
            own: self.own,
            limit: self.limit,
            configured: self.configured,
            applied: self.applied,
            without_baseline: self.without_baseline,
            region_others: self.region_others,
            unstored: self.unstored,
            reserved: self.reserved,
        }
    }
}

impl Row<'_> {
    fn count(&self) -> wire::Count {
        let reserved = self.reserved.unwrap_or_default();
        wire::Count {
            key: self.key.to_vec(),
            sequence: self.sequence,
            own: self.own,
            limit: self.limit,
            without_baseline: self.without_baseline,
            region_others: self.region_others,
            applied_ms: self.applied.0,
            configured: self.configured,
            reserved: reserved.amount,
            reserved_ms: reserved.at.0,
        }
    }
}

/// The row of a cell, as a repetition of an earlier one.
pub(super) fn row<'a>(entry: &Entry, key: &'a [u8], sequence: u64, cell: &Cell) -> Row<'a> {
    Row {
        fingerprint: entry.fingerprint,
        key,
        sequence,
        own: cell.own,
        limit: entry.limit,
        configured: entry.configured,
        applied: UnixMs(0),
        without_baseline: cell.without_baseline,
        region_others: 0,
        unstored: entry.unstored,
        reserved: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;
    use std::vec;

    fn row(key: &[u8], own: u64) -> Row<'_> {
        Row {
            fingerprint: u64::from(key[0]),
            key,
            sequence: 7,
            own,
            limit: 10,
            configured: None,
            applied: UnixMs(1),
            without_baseline: false,
            region_others: 0,
            unstored: false,
            reserved: None,
        }
    }

    fn counts_of(reports: &[wire::Report]) -> Vec<(String, u64)> {
        let counts = reports.iter().flat_map(|report| &report.counts);
        counts.map(|count| (String::from_utf8(count.key.clone()).unwrap(), count.own)).collect()
    }

    #[test]
    fn a_cell_is_reported_once_with_its_latest_count() {
        let mut outbox = Outbox::default();
        for (key, own) in [("a", 1), ("bb", 5), ("a", 3), ("a", 2)] {
            outbox.note(&row(key.as_bytes(), own), MonoMs(1));
        }
        let mut reports = vec![];
        outbox.take(false, MonoMs(6), &mut reports);
        assert_eq!(counts_of(&reports), [("a".into(), 3), ("bb".into(), 5)]);
    }

    fn rows_of(outbox: &mut Outbox) -> Vec<(u64, bool)> {
        let mut reports = vec![];
        outbox.take(false, MonoMs(6), &mut reports);
        let counts = reports.iter().flat_map(|report| &report.counts);
        counts.map(|count| (count.own, count.without_baseline)).collect()
    }

    #[test]
    fn a_count_without_its_baseline_is_never_reported_as_a_whole_count() {
        let evicted = |own| Row { without_baseline: true, ..row(b"a", own) };
        let mut outbox = Outbox::default();
        outbox.note(&row(b"a", 0), MonoMs(1));
        outbox.note(&evicted(4), MonoMs(2));
        assert_eq!(rows_of(&mut outbox), [(4, true)]);
        outbox.note(&evicted(5), MonoMs(3));
        outbox.note(&row(b"a", 9), MonoMs(4));
        assert_eq!(rows_of(&mut outbox), [(9, false)]);
        outbox.broken();
        assert_eq!(rows_of(&mut outbox), [(9, false)], "the newest row in flight");
        outbox.note(&evicted(2), MonoMs(5));
        outbox.broken();
        assert_eq!(rows_of(&mut outbox), [(2, true)], "a row that waited is newer");
    }

    #[test]
    fn what_is_reserved_is_reported_as_it_was_last() {
        let reserved =
            |ms, amount| Row { reserved: Some(Reserved { at: UnixMs(ms), amount }), ..row(b"a", 1) };
        let mut outbox = Outbox::default();
        let rows = [row(b"a", 1), reserved(5, 70), reserved(7, 0), reserved(6, 30), row(b"a", 2)];
        rows.iter().for_each(|row| outbox.note(row, MonoMs(1)));
        let mut reports = vec![];
        outbox.take(false, MonoMs(6), &mut reports);
        let [count] = &reports[0].counts[..] else { panic!("{reports:?}") };
        assert_eq!((count.own, count.reserved, count.reserved_ms), (2, 0, 7));
    }

    #[test]
    fn unacknowledged_counts_are_reported_again_after_the_stream_was_closed() {
        let mut outbox = Outbox::default();
        let keys: Vec<String> =
            (0..600).map(|n| std::format!("{}-{n}", char::from(b'a' + (n % 26) as u8))).collect();
        for (at, key) in keys.iter().enumerate() {
            let fingerprint = at as u64;
            let unstored = at == 256 || at == 258;
            outbox.note(&Row { fingerprint, unstored, ..row(key.as_bytes(), fingerprint) }, MonoMs(5));
        }
        let mut reports = vec![];
        outbox.take(false, MonoMs(6), &mut reports);
        assert_eq!(reports.iter().map(|report| report.counts.len()).collect::<Vec<_>>(), [256, 256, 88]);
        assert_eq!(outbox.acked_through(MonoMs(9)), Some(MonoMs(5)));
        let mut confirmed = vec![];
        let acknowledged =
            outbox.on_ack(2, &[1, 0, 9_999], MonoMs(7), |cell| confirmed.push((cell.fingerprint, cell.own)));
        let stored = vec![StoredCell { fingerprint: 258, sequence: 7, own: 258 }];
        assert_eq!(acknowledged, Acknowledged { refused: vec![256, 257], stored });
        assert_eq!(confirmed, (258..512).map(|at| (at, at)).collect::<Vec<_>>());
        outbox.broken();
        let mut again = vec![];
        outbox.take(true, MonoMs(6), &mut again);
        let expected: Vec<_> = (0..256).chain(512..600).map(|at| (keys[at].clone(), at as u64)).collect();
        assert_eq!(counts_of(&again), expected);
    }

    #[test]
    fn reports_in_flight_are_bounded_without_acknowledgements() {
        let mut outbox = Outbox::default();
        let mut reports = vec![];
        for fingerprint in 0..(MAX_ROWS as u64) {
            outbox.note(&Row { fingerprint, ..row(b"k", 1) }, MonoMs(1));
        }
        outbox.take(false, MonoMs(6), &mut reports);
        assert_eq!(reports.len(), MAX_IN_FLIGHT);
        assert_eq!(outbox.len(), MAX_ROWS - MAX_IN_FLIGHT * wire::MAX_FRAME_CELLS);
        outbox.take(false, MonoMs(6), &mut reports);
        assert_eq!(reports.len(), MAX_IN_FLIGHT);
    }
}
