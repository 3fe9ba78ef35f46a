//! Load, change, store: one entry of the shared table, until no other worker was faster.
//!
//! Also where a key finds its place: its bucket, room made by eviction, or the overflow cell when the bucket is full
//! of work that must not be forgotten.

use crate::limiter::stats::Stats;
use crate::limiter::table::{
    Bucket, Change, Diverted, DivertedKeys, Entry, Found, Geometry, Removals, Reservation, ReservationKind,
    Tag,
};
use crate::model::key::{HashKey, KeyParts, MAX_KEY_BYTES};
use crate::model::shared::{Place, Shared, Version};
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
/// The owner of what is reserved in an overflow cell, where the key's entry counts it. No worker has this number, and nothing of it is
/// stored.
const ELSEWHERE: u64 = u64::MAX;

/// The table as one worker sees it.
#[derive(Debug)]
pub(in crate::limiter) struct Table {
    pub(in crate::limiter) secret: HashKey,
    pub(in crate::limiter) geometry: Geometry,
    /// Entries charged before this are stored in the region and may be evicted.
    pub(in crate::limiter) safe_before: MonoMs,
    bucket: Bucket,
    /// The bucket of a key that goes to the overflow cell.
    node: Bucket,
    key: Vec<u8>,
}

/// A key whose use goes to an overflow cell.
#[derive(Clone, Copy, Debug)]
struct DivertedKey<'a> {
    fingerprint: u64,
    /// Fingerprint of the overflow cell's key.
    family: u64,
    /// The key, if it goes there only as long as it has no entry.
    key: Option<&'a [u8]>,
}

/// The cell of a family that a diverted key goes to.
#[derive(Clone, Copy, Debug)]
struct OverflowCell {
    /// When it ends.
    end: MonoMs,
    cell_ms: u64,
    /// Number of cells before it in a window.
    before: u64,
}

/// Where a transaction is tried.
#[derive(Clone, Debug)]
struct Route<'a> {
    place: Place,
    fingerprint: u64,
    /// The key, if it has gone to the overflow cell.
    diverted: Option<DivertedKey<'a>>,
    /// What the key's bucket has noted of a change of the overflow cell that is not made yet, and when its cell ends.
    noted: Option<(Change, MonoMs)>,
}

/// An entry in the loaded bucket.
struct Located {
    found: Found,
    cell_ms: u64,
    /// What left the bucket for it, if it is new.
    made: Option<Removals>,
}

/// What became of an entry before its change.
struct Advanced {
    /// The position in its cells.
    at: Position,
    /// Its own use grew.
    regained: bool,
    /// The records that its bucket has from then on, if it had any.
    records: Option<DivertedKeys>,
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
pub(in crate::limiter) enum Make {
    /// Leave it so.
    Never,
    /// Leave it so, and decide by the entry that it would have: in the overflow cell if need be. For looking only.
    Look,
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
    /// Its own use grew beside the change: reservations of the dead became spent, or the key had used an overflow cell before. It is to
    /// be reported.
    pub(super) regained: bool,
    /// It is an overflow cell.
    pub(super) overflow: bool,
}

impl<R> Done<R> {
    /// The result, and the rest.
    pub(super) fn split(self) -> (R, Done<()>) {
        let Done { result, entry, regained, overflow } = self;
        (result, Done { result: (), entry, regained, overflow })
    }
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
            node: Bucket::default(),
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
        let diverted = DivertedKey { fingerprint: subject.fingerprint, family: fingerprint, key: None };
        let subject = Subject { fingerprint, key: Some(&key), ..subject };
        let route = Route { place: Place::Overflow, fingerprint, diverted: Some(diverted), noted: None };
        self.transact_on(shared, route, subject, now, stats, change)
    }

    /// The same, beginning at `place`.
    pub(super) fn transact_at<R>(
        &mut self,
        shared: &mut impl Shared,
        place: Place,
        subject: Subject<'_>,
        now: Now,
        stats: &mut Stats,
        change: impl FnMut(&mut Entry, &Position) -> (R, bool),
    ) -> Result<Done<R>, Failed> {
        let route = Route { place, fingerprint: subject.fingerprint, diverted: None, noted: None };
        self.transact_on(shared, route, subject, now, stats, change)
    }

    fn transact_on<'a, R>(
        &mut self,
        shared: &mut impl Shared,
        mut route: Route<'a>,
        subject: Subject<'a>,
        now: Now,
        stats: &mut Stats,
        mut change: impl FnMut(&mut Entry, &Position) -> (R, bool),
    ) -> Result<Done<R>, Failed> {
        let first = route.place;
        self.set_key(subject.key);
        for _ in 0..MAX_TRIES {
            let version = shared.load(route.place, self.bucket.buffer());
            self.bucket.check();
            let Some(mut located) = self.find(route.fingerprint, subject, route.place, now)? else {
                if subject.make != Make::WhereFree {
                    stats.overflows += u64::from(subject.make != Make::Look);
                    self.divert(&mut route, subject);
                } else if self.forget_newcomer(shared, route.place, version, now) {
                    return Err(Failed::Absent);
                } else {
                    stats.conflicts += 1;
                }
                continue;
            };
            let Advanced { at, regained, records } = self.advance(&mut located, route.place, now);
            let Located { mut found, cell_ms, made } = located;
            let overflow = route.place == Place::Overflow;
            let diverted = route.diverted.filter(|_| overflow);
            let before = diverted.map(|_| found.entry.clone());
            let (result, keep) = change(&mut found.entry, &at);
            if records.is_some() {
                found.entry.reservations.retain(|held| held.tag.worker != ELSEWHERE);
            }
            if let Some((key, before)) = diverted.zip(before) {
                let changed = if keep { Change::between(&before, &found.entry) } else { Change::default() };
                let end = now.mono.after(at.until_next_ms());
                let cell = OverflowCell { end, cell_ms, before: before.before() };
                if !self.note_ahead(shared, &mut route.noted, key, changed, cell, now) {
                    // There is a place by now.
                    stats.conflicts += 1;
                    (route.place, route.fingerprint) = (first, subject.fingerprint);
                    self.set_key(subject.key);
                    continue;
                }
            }
            let done = |entry| Done { result, entry, regained: regained && keep, overflow };
            if !keep {
                return Ok(done(found.entry));
            }
            self.bucket.put(&found, &self.key);
            if let Some(records) = records {
                self.bucket.set_diverted(&records);
            }
            if shared.store(route.place, self.bucket.bytes(), version) {
                if let Some(removals) = made {
                    stats.made(&removals);
                }
                return Ok(done(found.entry));
            }
            stats.conflicts += 1;
        }
        stats.exhausted += 1;
        Err(Failed::Exhausted)
    }

    fn set_key(&mut self, key: Option<&[u8]>) {
        self.key.clear();
        self.key.extend_from_slice(key.unwrap_or_default());
    }

    /// Continues in the overflow cell, as the key's bucket has no room.
    fn divert<'a>(&mut self, route: &mut Route<'a>, subject: Subject<'a>) {
        (route.fingerprint, self.key) = self.overflow_of(&self.key);
        route.place = Place::Overflow;
        let (fingerprint, family) = (subject.fingerprint, route.fingerprint);
        route.diverted = Some(DivertedKey { fingerprint, family, key: subject.key });
    }

    /// Notes in the loaded bucket that it does not have all counts of a key without room, for which nothing has to leave. False if others
    /// were faster.
    fn forget_newcomer(
        &mut self,
        shared: &mut impl Shared,
        place: Place,
        version: Option<Version>,
        now: Now,
    ) -> bool {
        let end = now.mono_of(Position::at(now.unix, cell_ms(&self.key)).end());
        !self.bucket.forget_through(end) || shared.store(place, self.bucket.bytes(), version)
    }

    /// Moves an entry to `now`, and has it begin with what its key has used elsewhere.
    fn advance(&mut self, located: &mut Located, place: Place, now: Now) -> Advanced {
        let Located { found: Found { entry, .. }, cell_ms, made } = located;
        let held = entry.reservations.len();
        let at = entry.advance(&Position::at(now.unix, *cell_ms), now.mono);
        let regained = entry.reservations.len() < held;
        if place == Place::Overflow || !self.bucket.has_diverted() {
            return Advanced { at, regained, records: None };
        }
        let end = now.mono.after(at.until_next_ms());
        let (records, begins) = self.return_diverted(entry, made.is_some(), end, now);
        Advanced { at, regained: regained || begins, records: Some(records) }
    }

    /// Has the bucket of a diverted key note a change before the overflow cell has it: whatever happens in between, the key's use is not
    /// less than that. A change that was noted and not made is undone. False if the key has a place by now.
    fn note_ahead(
        &mut self,
        shared: &mut impl Shared,
        noted: &mut Option<(Change, MonoMs)>,
        key: DivertedKey<'_>,
        changed: Change,
        cell: OverflowCell,
        now: Now,
    ) -> bool {
        if noted.as_ref().is_some_and(|(noted, _)| *noted != changed)
            && let Some((noted, end)) = noted.take()
        {
            self.note_diverted(shared, key, &noted, true, OverflowCell { end, ..cell }, now);
        }
        if noted.is_none() && !changed.is_empty() {
            if !self.note_diverted(shared, key, &changed, false, cell, now) {
                return false;
            }
            *noted = Some((changed, cell.end));
        }
        true
    }

    /// Has an entry begin with what its key has used in the overflow cell, as far as its bucket has noted it. Returns the records that the
    /// bucket has from then on, and whether the entry's own use grew.
    fn return_diverted(
        &mut self,
        entry: &mut Entry,
        is_new: bool,
        end: MonoMs,
        now: Now,
    ) -> (DivertedKeys, bool) {
        let (mut records, mut begins) = (self.bucket.diverted(), false);
        if is_new || records.holds_rest() {
            let (family, _) = self.overflow_of(&self.key);
            if let Some(rest) = records.rest_of(family, entry.fingerprint) {
                let mut rest = rest.clone();
                rest.roll(end, now.mono);
                if is_new {
                    rest.count_beside(entry);
                }
                reserve_elsewhere(entry, &rest);
            }
        }
        if let Some(record) = records.get_mut(entry.fingerprint) {
            record.roll(end, now.mono);
            begins = record.return_to(entry, now.mono);
            reserve_elsewhere(entry, record);
        }
        records.drop_old(now.mono);
        (records, begins)
    }

    /// Notes in the bucket of a diverted key what the key uses in the overflow cell, or that it was `undone`. False if the key has an entry by
    /// now, so that it need not go to the overflow cell.
    fn note_diverted(
        &mut self,
        shared: &mut impl Shared,
        diverted: DivertedKey<'_>,
        change: &Change,
        undone: bool,
        cell: OverflowCell,
        now: Now,
    ) -> bool {
        let OverflowCell { end, cell_ms, before } = cell;
        let place = self.geometry.place(diverted.fingerprint);
        for _ in 0..MAX_TRIES {
            let version = shared.load(place, self.node.buffer());
            self.node.check();
            let has_entry = |key: &[u8]| self.node.find(diverted.fingerprint, key).is_some();
            if !undone && diverted.key.is_some_and(has_entry) {
                return false;
            }
            let mut records = self.node.diverted();
            records.drop_old(now.mono);
            let DivertedKey { fingerprint, family, .. } = diverted;
            if !undone {
                let new = Diverted::new(family, fingerprint, (end, cell_ms), before);
                records.note(new, change, now.mono);
            } else if !records.take_back((family, fingerprint), change, end, now.mono) {
                return true;
            }
            self.node.set_diverted(&records);
            if shared.store(place, self.node.bytes(), version) {
                return true;
            }
        }
        true
    }

    /// The subject's entry, made if that is asked for; `None` if its bucket has no room.
    fn find(
        &mut self,
        fingerprint: u64,
        subject: Subject<'_>,
        place: Place,
        now: Now,
    ) -> Result<Option<Located>, Failed> {
        if subject.key.is_none() {
            self.key.clear();
            let mut entries = self.bucket.entries();
            let (key, _) =
                entries.find(|(_, found)| found.entry.fingerprint == fingerprint).ok_or(Failed::Absent)?;
            self.key.extend_from_slice(key);
        }
        let cell_ms = cell_ms(&self.key);
        if let Some(found) = self.bucket.find(fingerprint, &self.key) {
            return Ok(Some(Located { found, cell_ms, made: None }));
        }
        if subject.make == Make::Never {
            return Err(Failed::Absent);
        }
        match self.vacancy(fingerprint, subject.make, place, now) {
            None if place == Place::Overflow => Err(Failed::Exhausted),
            None => Ok(None),
            Some((entry, removals)) => {
                Ok(Some(Located { found: self.bucket.vacant(entry), cell_ms, made: Some(removals) }))
            }
        }
    }

    /// A new entry, if there is room or can be made.
    fn vacancy(&mut self, fingerprint: u64, make: Make, place: Place, now: Now) -> Option<(Entry, Removals)> {
        let cell_ms = cell_ms(&self.key);
        let most = if place == Place::Overflow { MAX_OVERFLOW_KEYS } else { self.geometry.keys_per_bucket };
        let safe_before = self.safe_before;
        let position = |key: &[u8]| Position::at(now.unix, self::cell_ms(key));
        let may_leave = |entry: &Entry| {
            let spared = make == Make::WhereFree && entry.limit > 0;
            // Nobody else holds what the region refused: a key past half its limit stays, one of low use gives way.
            let pinned = entry.unstored && entry.is_hot();
            entry.charged < safe_before && !entry.is_reserved(now.mono) && !pinned && !spared
        };
        let removals = self.bucket.make_room(most, now.mono, position, may_leave).ok()?;
        let at = Position::at(now.unix, cell_ms);
        let starts = |sequence: u64| now.mono_of(UnixMs(sequence.saturating_mul(cell_ms)));
        let evicted_through = self.bucket.evicted_through();
        let mut entry = Entry::new(fingerprint, resolution(&self.key), at.sequence);
        entry.mark_without_baseline(|sequence| evicted_through > starts(sequence));
        Some((entry, removals))
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

/// Until they are settled in the overflow cell, the deferred costs of a record count as if another worker had reserved them.
fn reserve_elsewhere(entry: &mut Entry, record: &Diverted) {
    let (amount, expires) = record.held();
    if amount > 0 {
        let tag = Tag { worker: ELSEWHERE, kind: ReservationKind::Deferred };
        let sequence = entry.sequence;
        entry.reservations.push(Reservation { tag, sequence, amount, expires });
    }
}

/// Length of a cell of `key` in milliseconds.
pub(in crate::limiter) fn cell_ms(key: &[u8]) -> u64 {
    KeyParts::decode(key).map_or(1, |parts| parts.cell_ms())
}

fn resolution(key: &[u8]) -> u16 {
    KeyParts::decode(key).map_or(1, |parts| parts.resolution)
}
