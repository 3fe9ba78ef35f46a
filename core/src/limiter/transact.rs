//! Load, change, store: one entry of the shared table, until no other worker was faster.
//!
//! Also where a key finds its place: its bucket, room made by eviction, or the overflow cell when the bucket is full
//! of work that must not be forgotten.

use super::stats::Stats;
use crate::limiter::table::{Bucket, Entry, Found, Geometry, Left};
use crate::model::key::{HashKey, KeyParts, MAX_KEY_BYTES};
use crate::model::shared::{Place, Shared};
use crate::model::time::{MonoMs, Now, UnixMs};
use crate::model::window::Position;
use alloc::vec::Vec;

/// Attempts at the compare-and-set. Somebody succeeds each time, so this many failures in a row need hundreds of
/// workers in one microsecond.
const MAX_TRIES: u32 = 256;
/// Families of keys (workspace, namespace, window) that have an overflow cell of their own.
const MAX_OVERFLOW_KEYS: u8 = 64;
/// Identifier of overflow cells; `rules` never makes it, as it escapes every backslash.
pub const OVERFLOW_IDENTIFIER: &[u8] = b"\\~";

/// The table as one worker sees it.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) secret: HashKey,
    pub(super) geometry: Geometry,
    /// Entries charged before this are stored in the region and may be evicted.
    pub(super) safe_before: MonoMs,
    bucket: Bucket,
    key: Vec<u8>,
}

/// What a transaction is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject<'a> {
    pub(super) fingerprint: u64,
    /// `None`: whatever key has the fingerprint.
    pub(super) key: Option<&'a [u8]>,
    pub(super) make: Make,
}

/// What to do about a key without an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Make {
    /// Leave it so.
    Never,
    /// Make one, unless an entry that this process uses would have to leave; then the bucket notes that it does not
    /// have all counts, and the next request on it sends a query.
    WhereFree,
    /// Make one, in an overflow cell if need be.
    Always,
}

/// What a transaction did.
#[derive(Debug)]
pub(super) struct Done<R> {
    pub(super) result: R,
    /// The entry as it stands now.
    pub(super) entry: Entry,
    /// Reservations of the dead became spent.
    pub(super) reaped: bool,
    /// It is an overflow cell.
    pub(super) overflow: bool,
}

/// Why a transaction did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failed {
    /// There is no such entry.
    Absent,
    /// Others were always faster.
    Exhausted,
}

impl Table {
    pub(super) fn new(secret: HashKey, geometry: Geometry) -> Table {
        Table {
            secret,
            geometry,
            safe_before: MonoMs(0),
            bucket: Bucket::default(),
            key: Vec::with_capacity(MAX_KEY_BYTES),
        }
    }

    /// The key of the last transaction.
    pub(super) fn key(&self) -> &[u8] {
        &self.key
    }

    /// Runs `change` on the entry as it is now; stores it if `change` returns true for it.
    pub(super) fn transact<R>(
        &mut self,
        shared: &mut impl Shared,
        subject: Subject<'_>,
        now: Now,
        stats: &mut Stats,
        change: impl FnMut(&mut Entry, &Position) -> (R, bool),
    ) -> Result<Done<R>, Failed> {
        self.transact_at(shared, self.geometry.place(subject.fingerprint), subject, now, stats, change)
    }

    /// The same where it is known whether the key had to go to its family's `overflow` cell.
    pub(super) fn transact_where<R>(
        &mut self,
        shared: &mut impl Shared,
        overflow: bool,
        subject: Subject<'_>,
        now: Now,
        stats: &mut Stats,
        change: impl FnMut(&mut Entry, &Position) -> (R, bool),
    ) -> Result<Done<R>, Failed> {
        if !overflow {
            return self.transact(shared, subject, now, stats, change);
        }
        let (fingerprint, key) = self.overflow_of(subject.key.unwrap_or_default());
        let subject = Subject { fingerprint, key: Some(&key), ..subject };
        self.transact_at(shared, Place::Overflow, subject, now, stats, change)
    }

    /// The same, beginning at `place`.
    pub(super) fn transact_at<R>(
        &mut self,
        shared: &mut impl Shared,
        mut place: Place,
        subject: Subject<'_>,
        now: Now,
        stats: &mut Stats,
        mut change: impl FnMut(&mut Entry, &Position) -> (R, bool),
    ) -> Result<Done<R>, Failed> {
        let mut fingerprint = subject.fingerprint;
        self.key.clear();
        self.key.extend_from_slice(subject.key.unwrap_or_default());
        for _ in 0..MAX_TRIES {
            let version = shared.load(place, self.bucket.buffer());
            self.bucket.check();
            let Some((mut found, cell_ms, made)) = self.find(fingerprint, subject, place, now)? else {
                if subject.make == Make::WhereFree {
                    let end = now.mono_of(Position::at(now.unix, cell_ms(&self.key)).end());
                    if self.bucket.forget_through(end) && !shared.store(place, self.bucket.bytes(), version) {
                        stats.conflicts += 1;
                        continue;
                    }
                    return Err(Failed::Absent);
                }
                stats.overflows += 1;
                (fingerprint, self.key) = self.overflow_of(&self.key);
                place = Place::Overflow;
                continue;
            };
            let held = found.entry.reservations.len();
            let at = found.entry.advance(&Position::at(now.unix, cell_ms), now.mono);
            let reaped = found.entry.reservations.len() < held;
            let (result, keep) = change(&mut found.entry, &at);
            let done =
                |entry| Done { result, entry, reaped: reaped && keep, overflow: place == Place::Overflow };
            if !keep {
                return Ok(done(found.entry));
            }
            self.bucket.put(&found, &self.key);
            if shared.store(place, self.bucket.bytes(), version) {
                if let Some(left) = made {
                    stats.made(&left);
                }
                return Ok(done(found.entry));
            }
            stats.conflicts += 1;
        }
        stats.exhausted += 1;
        Err(Failed::Exhausted)
    }

    /// The entry, its cell length, and what left the bucket for it if it is new; `None` if its bucket has no room.
    fn find(
        &mut self,
        fingerprint: u64,
        subject: Subject<'_>,
        place: Place,
        now: Now,
    ) -> Result<Option<(Found, u64, Option<Left>)>, Failed> {
        if subject.key.is_none() {
            self.key.clear();
            let mut entries = self.bucket.entries();
            let (key, _) =
                entries.find(|(_, found)| found.entry.fingerprint == fingerprint).ok_or(Failed::Absent)?;
            self.key.extend_from_slice(key);
        }
        let cell_ms = cell_ms(&self.key);
        if let Some(found) = self.bucket.find(fingerprint, &self.key) {
            return Ok(Some((found, cell_ms, None)));
        }
        if subject.make == Make::Never {
            return Err(Failed::Absent);
        }
        let Some((entry, left)) = self.vacancy(fingerprint, subject.make, place, now) else {
            return if place == Place::Overflow { Err(Failed::Exhausted) } else { Ok(None) };
        };
        Ok(Some((self.bucket.vacant(entry), cell_ms, Some(left))))
    }

    /// A new entry, if there is room or can be made.
    fn vacancy(&mut self, fingerprint: u64, make: Make, place: Place, now: Now) -> Option<(Entry, Left)> {
        let cell_ms = cell_ms(&self.key);
        let most = if place == Place::Overflow { MAX_OVERFLOW_KEYS } else { self.geometry.keys_per_bucket };
        let safe_before = self.safe_before;
        let position = |key: &[u8]| Position::at(now.unix, self::cell_ms(key));
        let may_leave = |entry: &Entry| {
            let spared = make == Make::WhereFree && entry.limit > 0;
            // Nobody else holds what the region refused: a key past half its limit stays, one of low use gives way.
            let pinned = entry.unstored && entry.is_hot();
            entry.charged < safe_before && entry.reservations.is_empty() && !pinned && !spared
        };
        let left = self.bucket.make_room(most, now.mono, position, may_leave).ok()?;
        let at = Position::at(now.unix, cell_ms);
        let starts = |sequence: u64| now.mono_of(UnixMs(sequence.saturating_mul(cell_ms)));
        let evicted_through = self.bucket.evicted_through();
        let mut entry = Entry::new(fingerprint, resolution(&self.key), at.sequence);
        entry.mark_without_baseline(|sequence| evicted_through > starts(sequence));
        Some((entry, left))
    }

    /// Fingerprint and key of the overflow cell of the key's family.
    pub(super) fn overflow_of(&self, key: &[u8]) -> (u64, Vec<u8>) {
        let mut diverted = Vec::with_capacity(MAX_KEY_BYTES);
        if let Ok(parts) = KeyParts::decode(key) {
            let family = KeyParts { identifier: OVERFLOW_IDENTIFIER, ..parts };
            if family.encode(&mut diverted).is_err() {
                diverted.clear();
            }
        }
        (crate::model::key::fingerprint(&diverted, self.secret), diverted)
    }
}

/// Length of a cell of `key` in milliseconds.
pub(super) fn cell_ms(key: &[u8]) -> u64 {
    KeyParts::decode(key).map_or(1, |parts| parts.cell_ms())
}

fn resolution(key: &[u8]) -> u16 {
    KeyParts::decode(key).map_or(1, |parts| parts.resolution)
}
