//! Merges what the region sends into the table: pushes, baselines, what it has stored and refused, and answers to queries. A query reserves
//! its cost in the table until its answer has arrived.

use super::Local;
use super::judge::ANSWER_SERVES_MS;
use super::outbox::{Acknowledged, StoredCell};
use super::transact::{Failed, Make, Subject};
use crate::limiter::table::{Entry, ReservationKind, Tag};
use crate::model::key::{KeyParts, fingerprint};
use crate::model::shared::Shared;
use crate::model::time::{MonoMs, Now};
use crate::model::window::Position;
use crate::model::wire;

/// A query's reservation that was not released counts as spent after this time.
const QUERY_EXPIRES_MS: u64 = 4_000;
/// The most by which a live worker is late to decide a request after its deadline.
const DECIDED_LATE_MS: u64 = 1_000;

/// Why an entry stays after the answer to a query about it.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::limiter) struct Keeps {
    /// The region has granted the query's cost, which is not spent yet.
    pub(in crate::limiter) is_granted: bool,
    /// The last deadline of the requests that wait for another answer.
    pub(in crate::limiter) undecided_until: Option<MonoMs>,
}

/// What a query is about.
#[derive(Clone, Copy, Debug)]
pub(in crate::limiter) struct Asked<'a> {
    pub(in crate::limiter) fingerprint: u64,
    pub(in crate::limiter) key: &'a [u8],
    pub(in crate::limiter) limit: u64,
    /// Sum over the requests that joined.
    pub(in crate::limiter) cost: u64,
    /// Smallest cost among them.
    pub(in crate::limiter) least: u64,
}

/// Where a query's cost is reserved.
#[derive(Clone, Copy, Debug)]
pub(in crate::limiter) struct ReservedIn {
    /// The cell.
    pub(in crate::limiter) sequence: u64,
    /// It is in the overflow cell that the key shares with others.
    pub(in crate::limiter) overflow: bool,
}

impl Local {
    /// Applies an acknowledgement. Returns whether the region has refused counts, which are to be offered again.
    pub(in crate::limiter) fn on_ack(&mut self, shared: &mut impl Shared, ack: &wire::Ack, now: Now) -> bool {
        self.stats.refused = self.stats.refused.saturating_add(ack.refused.len() as u64);
        let worker_cache = &mut self.worker_cache;
        let acknowledged = self.outbox.on_ack(ack.report_id, &ack.refused, now.mono, |cell| {
            if let Some(slot) = worker_cache.get(cell.fingerprint) {
                slot.acked.note(cell.sequence, cell.own);
            }
        });
        let Acknowledged { refused, stored } = &acknowledged;
        let some_wait = self.unmark_stored(shared, stored, now);
        self.keep_unstored(shared, refused, now);
        self.merge_snapshots(shared, &ack.baselines, Make::Never, now);
        some_wait || !refused.is_empty()
    }

    /// Merges counts of keys, from a push or as baselines after a report. A pushed key that this process does not use enters the table only
    /// if no key in use has to leave for it.
    pub(in crate::limiter) fn merge_snapshots(
        &mut self,
        shared: &mut impl Shared,
        snapshots: &[wire::Snapshot],
        make: Make,
        now: Now,
    ) {
        for snapshot in snapshots {
            if KeyParts::decode(&snapshot.key).is_err() {
                self.stats.refused += 1;
                continue;
            }
            let subject = Subject {
                fingerprint: fingerprint(&snapshot.key, self.table.secret),
                key: Some(&snapshot.key),
                make,
            };
            let change = |entry: &mut Entry, _: &Position| {
                let without_baseline = entry.without_baseline_cells();
                // A push may come from an aggregator that has not received all that this process has reported to another.
                let changed = entry.merge(snapshot, make != Make::WhereFree, now.mono);
                (entry.without_baseline_cells() < without_baseline, changed)
            };
            match self.table.transact(shared, subject, now, &mut self.stats, change) {
                Ok(done) => {
                    self.stats.snapshots += 1;
                    if done.regained {
                        self.note_cells(&done.entry, now.mono);
                    } else if done.result {
                        self.note_based_cells(&done.entry, now.mono);
                    }
                }
                Err(Failed::Absent) => self.stats.unplaced += u64::from(make == Make::WhereFree),
                Err(Failed::Exhausted) => {}
            }
        }
    }

    /// Marks keys that the region refused: only this process has their counts, so they stay in the table and are offered again.
    fn keep_unstored(&mut self, shared: &mut impl Shared, fingerprints: &[u64], now: Now) {
        for fingerprint in fingerprints {
            let mark = |entry: &mut Entry| ((), !core::mem::replace(&mut entry.unstored, true));
            // If the key has left or conflicts do not end, another copy exists or the refusal will be repeated.
            self.change_entry(shared, *fingerprint, mark, now);
        }
    }

    /// Removes the mark of keys whose counts the region has stored completely, so that they may be evicted again. Returns whether one is left.
    fn unmark_stored(&mut self, shared: &mut impl Shared, stored: &[StoredCell], now: Now) -> bool {
        let mut some_wait = false;
        for StoredCell { fingerprint, sequence, own } in stored {
            let unmark = |entry: &mut Entry| {
                entry.confirm(*sequence, *own);
                // What was added to this cell since then is in a later report.
                let others_wait = entry.cells().any(|(at, cell)| at != *sequence && cell.is_unreported());
                entry.unstored &= others_wait;
                (entry.unstored, true)
            };
            some_wait |= self.change_entry(shared, *fingerprint, unmark, now).unwrap_or(false);
        }
        some_wait
    }

    /// Reserves the cost of a query, and returns where, and what the table has of the key.
    pub(in crate::limiter) fn reserve_for_query(
        &mut self,
        shared: &mut impl Shared,
        asked: Asked<'_>,
        query: &mut wire::Query,
        now: Now,
    ) -> ReservedIn {
        let Asked { fingerprint, key, limit, cost, least } = asked;
        let tag = self.tag(ReservationKind::Query);
        let subject = Subject { fingerprint, key: Some(key), make: Make::Always };
        let change = |entry: &mut Entry, at: &Position| {
            let expires = now.mono.after(QUERY_EXPIRES_MS);
            if entry.is_without_baseline() || cost == 0 {
                // The entry stays for the answer, so that it also has what is pushed in between.
                return (0, entry.reserve(tag, 0, expires));
            }
            // A query for more than is left would be refused as a whole, though some of its requests could pass.
            let left = entry.used_and_reserved().remaining(at, limit);
            let cost = cost.min(left.max(least));
            let reserved = entry.reserve(tag, cost, expires);
            let unreserved = if reserved { 0 } else { cost };
            (entry.claimed_in(entry.sequence).saturating_add(unreserved), reserved)
        };
        let Ok(done) = self.table.transact(shared, subject, now, &mut self.stats, change) else {
            return ReservedIn { sequence: query.sequence, overflow: false };
        };
        query.sequence = done.entry.sequence;
        if done.overflow {
            query.key = self.table.key().to_vec();
        }
        // Also at a cost of 0: the region's lower bound may include this node's count.
        let current = done.entry.current;
        query.own = if current.without_baseline { 0 } else { current.own };
        query.cost = done.result;
        query.without_baseline = done.entry.is_without_baseline();
        if done.regained {
            self.note_cells(&done.entry, now.mono);
        }
        ReservedIn { sequence: query.sequence, overflow: done.overflow }
    }

    /// Releases what was `reserved` for a query, and merges its answer. The entry stays for requests that are undecided after it.
    pub(in crate::limiter) fn end_query<'a>(
        &mut self,
        shared: &mut impl Shared,
        (fingerprint, key): (u64, &[u8]),
        reserved: Option<ReservedIn>,
        snapshots: impl Iterator<Item = &'a wire::Snapshot> + Clone,
        keeps: Keeps,
        now: Now,
    ) {
        let (tag, kept) = (self.tag(ReservationKind::Query), Tag::keeping(self.worker));
        let change = |entry: &mut Entry, _: &Position| {
            if let Some(ReservedIn { sequence, .. }) = reserved {
                // The number of its cell may have changed when the clock stepped.
                if entry.release(tag, sequence).is_none() {
                    entry.release_newest(tag);
                }
            }
            let without_baseline = entry.without_baseline_cells();
            for snapshot in snapshots.clone() {
                entry.merge(snapshot, true, now.mono);
            }
            if keeps.is_granted {
                // It is spent next, and until then no worker may evict the entry: no report since now is acknowledged yet.
                entry.charged = now.mono;
            }
            if let Some(until) = keeps.undecided_until.filter(|_| entry.fingerprint == fingerprint) {
                entry.reserve(kept, 0, until.after(DECIDED_LATE_MS));
            }
            (entry.without_baseline_cells() < without_baseline, true)
        };
        let make = if snapshots.clone().next().is_none() { Make::Never } else { Make::Always };
        let overflow = reserved.is_some_and(|reserved| reserved.overflow);
        let subject = Subject { fingerprint, key: Some(key), make };
        let ended = self.table.transact_where(shared, overflow, subject, now, &mut self.stats, change);
        match ended {
            Ok(done) if done.regained => self.note_cells(&done.entry, now.mono),
            Ok(done) if done.result => self.note_based_cells(&done.entry, now.mono),
            _ => {}
        }
    }

    /// Lets the entries of these keys leave, which have stayed for a request.
    pub(in crate::limiter) fn release_entries(&mut self, shared: &mut impl Shared, keys: &[u64], now: Now) {
        let tag = Tag::keeping(self.worker);
        for fingerprint in keys {
            let release = |entry: &mut Entry| {
                let mut released = false;
                while entry.release_newest(tag).is_some() {
                    released = true;
                }
                ((), released)
            };
            self.change_entry(shared, *fingerprint, release, now);
        }
    }

    /// Changes the entry of a key, if the table has one: `change` returns its result, and whether to keep what it did.
    fn change_entry<R>(
        &mut self,
        shared: &mut impl Shared,
        fingerprint: u64,
        mut change: impl FnMut(&mut Entry) -> (R, bool),
        now: Now,
    ) -> Option<R> {
        let subject = Subject { fingerprint, key: None, make: Make::Never };
        let change = |entry: &mut Entry, _: &Position| change(entry);
        let done = self.table.transact(shared, subject, now, &mut self.stats, change).ok()?;
        if done.regained {
            self.note_cells(&done.entry, now.mono);
        }
        Some(done.result)
    }

    /// Applies a refusal for a short time to all requests of the key: at the limit a little becomes free all the time, and every worker of
    /// the region would query for it repeatedly, although one gets it.
    pub(in crate::limiter) fn prolong_denial(&mut self, fingerprint: u64, cell_ms: u64) {
        if let Some(denied) = self.worker_cache.get(fingerprint).and_then(|slot| slot.denied.as_mut()) {
            denied.until = denied.until.max(denied.since.after(ANSWER_SERVES_MS.min(cell_ms / 8)));
        }
    }
}
