//! What a worker still has to report, and what it has reported but not been acknowledged.
//!
//! One row for each cell however many requests charged it; each row holds the absolute count, so losing an
//! acknowledgement only means to send it again. Bounded: what does not fit is left to a walk over the table.

use crate::time::MonoMs;
use crate::wire;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::hash::{BuildHasherDefault, Hasher};
use hashbrown::HashMap;

/// Most cells waiting to be sent.
pub(super) const MAX_ROWS: usize = 16_384;
/// Most reports sent and not acknowledged; a peer that stalls gets no more.
const MAX_IN_FLIGHT: usize = 16;

/// One cell to report.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'a> {
    pub(super) fingerprint: u64,
    pub(super) key: &'a [u8],
    pub(super) sequence: u64,
    pub(super) own: u64,
    pub(super) limit: u64,
    pub(super) unbased: bool,
}

#[derive(Debug, Default)]
pub(super) struct Outbox {
    rows: Vec<Held>,
    keys: Vec<u8>,
    index: HashMap<(u64, u64), usize, BuildHasherDefault<Fold>>,
    in_flight: VecDeque<Batch>,
    since: Option<MonoMs>,
    last_id: u64,
    lost: bool,
}

#[derive(Debug)]
struct Held {
    fingerprint: u64,
    key: (usize, usize),
    sequence: u64,
    own: u64,
    limit: u64,
    unbased: bool,
}

#[derive(Debug)]
struct Batch {
    id: u64,
    since: MonoMs,
    fingerprints: Vec<u64>,
    counts: Vec<wire::Count>,
}

/// Fingerprints are keyed hashes already: folding them is enough.
#[derive(Debug, Default)]
struct Fold(u64);

impl Hasher for Fold {
    fn finish(&self) -> u64 {
        self.0
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
    /// Notes that a cell stands at `row.own`.
    pub(super) fn note(&mut self, row: &Row<'_>, now: MonoMs) {
        if let Some(held) =
            self.index.get(&(row.fingerprint, row.sequence)).and_then(|at| self.rows.get_mut(*at))
        {
            held.own = held.own.max(row.own);
            held.limit = row.limit;
            held.unbased &= row.unbased;
            return;
        }
        if self.rows.len() >= MAX_ROWS {
            self.lost = true;
            return;
        }
        self.index.insert((row.fingerprint, row.sequence), self.rows.len());
        self.rows.push(Held {
            fingerprint: row.fingerprint,
            key: (self.keys.len(), row.key.len()),
            sequence: row.sequence,
            own: row.own,
            limit: row.limit,
            unbased: row.unbased,
        });
        self.keys.extend_from_slice(row.key);
        self.since.get_or_insert(now);
    }

    /// The next reports to send, as far as acknowledgements allow, or all that is there if this is the `last` call.
    pub(super) fn take(&mut self, last: bool, reports: &mut Vec<wire::Report>) {
        let room = if last { usize::MAX } else { MAX_IN_FLIGHT.saturating_sub(self.in_flight.len()) };
        let taken = self.rows.len().min(room.saturating_mul(wire::MAX_FRAME_CELLS));
        if taken == 0 {
            return;
        }
        let since = self.since.unwrap_or_default();
        let rest = self.rows.split_off(taken);
        let sent = core::mem::replace(&mut self.rows, rest);
        for chunk in sent.chunks(wire::MAX_FRAME_CELLS) {
            self.last_id += 1;
            let counts: Vec<_> = chunk.iter().map(|held| self.count(held)).collect();
            reports.push(wire::Report { id: self.last_id, counts: counts.clone() });
            let fingerprints = chunk.iter().map(|held| held.fingerprint).collect();
            self.in_flight.push_back(Batch { id: self.last_id, since, fingerprints, counts });
        }
        self.reindex();
    }

    /// Takes an acknowledgement; calls `confirmed(fingerprint, sequence, own)` for each cell that is stored now.
    pub(super) fn acknowledged(&mut self, id: u64, mut confirmed: impl FnMut(u64, u64, u64)) {
        let Some(at) = self.in_flight.iter().position(|batch| batch.id == id) else { return };
        let Some(batch) = self.in_flight.remove(at) else { return };
        for (fingerprint, count) in batch.fingerprints.iter().zip(&batch.counts).filter(|(_, c)| !c.unbased) {
            confirmed(*fingerprint, count.sequence, count.own);
        }
    }

    /// The stream broke: what was not acknowledged is to be sent again.
    pub(super) fn broken(&mut self) {
        for batch in core::mem::take(&mut self.in_flight) {
            for (fingerprint, count) in batch.fingerprints.iter().zip(&batch.counts) {
                let row = Row {
                    fingerprint: *fingerprint,
                    key: &count.key,
                    sequence: count.sequence,
                    own: count.own,
                    limit: count.limit,
                    unbased: count.unbased,
                };
                self.note(&row, batch.since);
            }
            self.since = self.since.min(Some(batch.since)).or(Some(batch.since));
        }
    }

    /// Everything that this worker spent before this moment is stored in the region.
    pub(super) fn acked_through(&self, now: MonoMs) -> Option<MonoMs> {
        let oldest = self.in_flight.iter().map(|batch| batch.since).chain(self.since).min();
        (!self.lost).then(|| oldest.unwrap_or(now))
    }

    /// Rows had no room, so the table has to be walked.
    pub(super) fn has_lost(&self) -> bool {
        self.lost
    }

    /// A walk over the table has begun that will find what was lost.
    pub(super) fn found_again(&mut self) {
        self.lost = false;
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    fn count(&self, held: &Held) -> wire::Count {
        let (at, length) = held.key;
        wire::Count {
            key: self.keys.get(at..at + length).unwrap_or_default().to_vec(),
            sequence: held.sequence,
            own: held.own,
            limit: held.limit,
            unbased: held.unbased,
        }
    }

    /// After rows were taken from the front: the rest moves up.
    fn reindex(&mut self) {
        self.index.clear();
        let Some(first) = self.rows.first().map(|held| held.key.0) else {
            self.keys.clear();
            self.since = None;
            return;
        };
        self.keys.drain(..first);
        for (at, held) in self.rows.iter_mut().enumerate() {
            held.key.0 -= first;
            self.index.insert((held.fingerprint, held.sequence), at);
        }
    }
}
