//! The bytes of one bucket: a header and a few entries, found by fingerprint and key.
//!
//! ```text
//! bucket:  layout u8 · entries u8 · evicted_through u64 · entry… · what diverted keys have used (see `diverted`)
//! entry:   length u16 · key length u8 · reservations u8 · hits u8 · flags u8 · 15 × u64 · key · older cell… · reservation…
//! flags:   current unbased · previous unbased · unstored · controlled · older cells u4
//! older:   unbased u8 · 4 × u64
//! ```
//! If an entry is controlled, its last reservation holds the configured limit. A filter of an earlier version, which may run beside this
//! one until its connections have drained, takes it for one of nothing that has expired.
//!
//! All little-endian. Bytes that do not parse (another layout, another program's data) count as an empty bucket; entries that do not
//! parse are dropped. `entry` has the meaning of the fields.

use super::diverted::DivertedKeys;
use super::entry::{Cell, Entry, MAX_OLDER, Reservation, ReservationKind, Tag};
use crate::model::time::{MonoMs, Now};
use crate::model::window::Position;
use alloc::vec::Vec;

const LAYOUT: u8 = 2;
const HEADER: usize = 10;
const FIXED: usize = 6 + 15 * 8;
const RESERVATION: usize = 4 * 8;
const CURRENT_UNBASED: u8 = 1;
const PREVIOUS_UNBASED: u8 = 2;
const UNSTORED: u8 = 4;
/// Live control set the limit: the last reservation has the one without it.
const CONTROLLED: u8 = 8;
/// Added to the configured limit in the place of a reservation's sequence: no cell has such a number.
const NO_SEQUENCE: u64 = 1 << 63;
/// Position of the number of older cells in the flags.
const OLDER_SHIFT: u8 = 4;
const OLDER: usize = 1 + 4 * 8;
const _: () = assert!(MAX_OLDER < 1 << (8 - OLDER_SHIFT));

/// A bucket's bytes, parsed in place. The buffer is reused.
#[derive(Clone, Debug, Default)]
pub struct Bucket {
    bytes: Vec<u8>,
    /// End of the entries in `bytes`.
    end: usize,
}

/// An entry and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Offset of the entry in the bucket's bytes.
    at: usize,
    /// Its length there; 0 if it is new.
    length: usize,
    /// The entry.
    pub entry: Entry,
}

/// Numbers of entries that left a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removals {
    /// Entries that no window counted any more.
    pub over: u32,
    /// Entries that a window still counted.
    pub evicted: u32,
}

/// Every entry of the bucket has unreported counts, so none may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

impl Bucket {
    /// The buffer to load a bucket's bytes into; call [`Bucket::check`] afterwards.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Validates the bytes. Bytes that are no bucket become an empty one. Entries from the first one that does not parse are dropped, and
    /// so is all after them that is no record of a diverted key.
    pub fn check(&mut self) {
        if self.bytes.first() != Some(&LAYOUT) || self.bytes.len() < HEADER {
            self.bytes.clear();
            self.bytes.resize(HEADER, 0);
            if let Some(layout) = self.bytes.first_mut() {
                *layout = LAYOUT;
            }
        }
        let (mut end, mut sound) = (HEADER, 0u8);
        while usize::from(sound) < self.len()
            && let Some(length) = self.length_at(end)
        {
            end += length;
            sound += 1;
        }
        let is_sound = usize::from(sound) == self.len();
        if let Some(count) = self.bytes.get_mut(1) {
            *count = sound;
        }
        self.end = end;
        if self.bytes.len() > end {
            let diverted = if is_sound { self.diverted() } else { DivertedKeys::default() };
            self.set_diverted(&diverted);
        }
    }

    /// Whether it has records of diverted keys.
    pub fn has_diverted(&self) -> bool {
        self.bytes.len() > self.end
    }

    /// The records of diverted keys.
    pub fn diverted(&self) -> DivertedKeys {
        DivertedKeys::decode(self.bytes.get(self.end..).unwrap_or_default())
    }

    /// Replaces the records of diverted keys.
    pub fn set_diverted(&mut self, diverted: &DivertedKeys) {
        self.bytes.truncate(self.end);
        diverted.encode(&mut self.bytes);
    }

    /// The bytes to store.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.bytes.get(1).copied().map_or(0, usize::from)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// End of the last cell in which an evicted entry may have had a count, in monotonic time (see [`Now::mono_of`]). With Unix time, a
    /// clock that was far ahead would leave all later entries without a baseline.
    pub fn evicted_through(&self) -> MonoMs {
        MonoMs(word(&self.bytes, 2))
    }

    /// The entry of `key`.
    pub fn find(&self, fingerprint: u64, key: &[u8]) -> Option<Found> {
        let mut at = HEADER;
        for _ in 0..self.len() {
            let length = self.length_at(at)?;
            if word(&self.bytes, at + 6) == fingerprint && self.key_at(at) == Some(key) {
                return Some(Found { at, length, entry: self.read(at) });
            }
            at += length;
        }
        None
    }

    /// Every entry with its key.
    pub fn entries(&self) -> impl Iterator<Item = (&[u8], Found)> + '_ {
        let mut at = HEADER;
        (0..self.len()).map_while(move |_| {
            let length = self.length_at(at)?;
            let key = self.key_at(at)?;
            let found = Found { at, length, entry: self.read(at) };
            at += length;
            Some((key, found))
        })
    }

    /// A new entry at the end; [`Bucket::put`] writes it.
    pub fn vacant(&self, entry: Entry) -> Found {
        Found { at: self.end, length: 0, entry }
    }

    /// Writes an entry to its position, or a new one to the end.
    pub fn put(&mut self, found: &Found, key: &[u8]) {
        let entry = &found.entry;
        let length = length_of(key.len(), older_of(entry).len(), stored_reservations(entry));
        if found.length != length {
            let zeros = core::iter::repeat_n(0, length);
            self.bytes.splice(found.at..found.at + found.length, zeros);
            self.end = self.end.saturating_sub(found.length).saturating_add(length);
        }
        if found.length == 0 {
            self.count(1);
        }
        self.write(found.at, length, entry, key);
    }

    /// Makes room for one entry, below `most`: the least used entry that `may_leave` leaves. Entries that the region refused leave last.
    /// Entries whose cells no window counts leave first, unless they have deferred costs. Returns how many left.
    pub fn make_room(
        &mut self,
        most: u8,
        mono: MonoMs,
        at: impl Fn(&[u8]) -> Position,
        may_leave: impl Fn(&Entry) -> bool,
    ) -> Result<Removals, NoRoom> {
        let mut removals = Removals::default();
        while self.len() >= usize::from(most) {
            let victim = self
                .entries()
                .filter_map(|(key, found)| {
                    let now = at(key);
                    let over = found.entry.is_over(&now, mono) && !found.entry.is_deferred(mono);
                    (over || may_leave(&found.entry)).then(|| {
                        let Entry { unstored, hits, charged, .. } = found.entry;
                        let rank = if over { (false, 0, MonoMs(0)) } else { (unstored, hits, charged) };
                        (rank, found, now, over)
                    })
                })
                .min_by_key(|(rank, ..)| *rank);
            let (_, found, now, over) = victim.ok_or(NoRoom)?;
            self.remove(&found);
            if !over {
                let end = now.seen_from(found.entry.sequence).end();
                self.forget_through(Now { unix: now.unix(), mono }.mono_of(end));
                self.age();
                removals.evicted += 1;
            } else {
                removals.over += 1;
            }
        }
        Ok(removals)
    }

    /// Notes that counts of cells up to `end` were dropped; false if that was noted before.
    pub fn forget_through(&mut self, end: MonoMs) -> bool {
        let news = end > self.evicted_through();
        if news {
            self.set_evicted_through(end);
        }
        news
    }

    fn remove(&mut self, found: &Found) {
        self.bytes.drain(found.at..(found.at + found.length).min(self.bytes.len()));
        self.end = self.end.saturating_sub(found.length);
        self.count(-1);
    }

    /// Lowers all hit counts. New entries start at the lowest, so a flood of new keys evicts itself first.
    fn age(&mut self) {
        let mut at = HEADER;
        for _ in 0..self.len() {
            let Some(length) = self.length_at(at) else { return };
            if let Some(hits) = self.bytes.get_mut(at + 4) {
                *hits = hits.saturating_sub(1);
            }
            at += length;
        }
    }

    fn count(&mut self, change: i8) {
        if let Some(count) = self.bytes.get_mut(1) {
            *count = count.saturating_add_signed(change);
        }
    }

    fn set_evicted_through(&mut self, through: MonoMs) {
        set_word(&mut self.bytes, 2, through.0);
    }

    /// Length of the entry at `at`; `None` where it does not fit the bytes.
    fn length_at(&self, at: usize) -> Option<usize> {
        let length = usize::from(u16::from_le_bytes(*self.bytes.get(at..)?.first_chunk::<2>()?));
        let key = usize::from(*self.bytes.get(at + 2)?);
        let reservations = usize::from(*self.bytes.get(at + 3)?);
        let older = self.older_at(at)?;
        let is_controlled = *self.bytes.get(at + 5)? & CONTROLLED != 0;
        let sound = length == length_of(key, older, reservations) && (reservations > 0 || !is_controlled);
        let fits = sound && at + length <= self.bytes.len();
        fits.then_some(length)
    }

    /// Number of older cells of the entry at `at`.
    fn older_at(&self, at: usize) -> Option<usize> {
        let older = usize::from(self.bytes.get(at + 5)? >> OLDER_SHIFT);
        (older <= MAX_OLDER).then_some(older)
    }

    fn key_at(&self, at: usize) -> Option<&[u8]> {
        let key = usize::from(*self.bytes.get(at + 2)?);
        self.bytes.get(at + FIXED..at + FIXED + key)
    }

    fn read(&self, at: usize) -> Entry {
        let byte = |offset: usize| self.bytes.get(at + offset).copied().unwrap_or(0);
        let field = |index: usize| word(&self.bytes, at + 6 + index * 8);
        let cell = |first: usize, flag: u8| Cell {
            own: field(first),
            region_others: field(first + 1),
            global_others: field(first + 2),
            confirmed: field(first + 3),
            without_baseline: byte(5) & flag != 0,
        };
        let older = self.older_at(at).unwrap_or(0);
        let first = at + FIXED + usize::from(byte(2));
        let older_cell = |index: usize| read_older(&self.bytes, first + index * OLDER);
        let reserved = first + older * OLDER;
        let reservation = |index: usize| read_reservation(&self.bytes, reserved + index * RESERVATION);
        let is_controlled = byte(5) & CONTROLLED != 0;
        let reservations = usize::from(byte(3)).saturating_sub(usize::from(is_controlled));
        let configured = || word(&self.bytes, reserved + reservations * RESERVATION + 8) & !NO_SEQUENCE;
        Entry {
            fingerprint: field(0),
            limit: field(1),
            configured: is_controlled.then(configured),
            strict_until: MonoMs(field(2)),
            charged: MonoMs(field(3)),
            viewed: MonoMs(field(4)),
            hits: byte(4),
            unstored: byte(5) & UNSTORED != 0,
            sequence: field(5),
            current: cell(6, CURRENT_UNBASED),
            previous: cell(10, PREVIOUS_UNBASED),
            clock: field(14).checked_sub(1),
            older: (0..older).map(older_cell).collect(),
            reservations: (0..reservations).map(reservation).collect(),
        }
    }

    fn write(&mut self, at: usize, length: usize, entry: &Entry, key: &[u8]) {
        let Some(out) = self.bytes.get_mut(at..at + length) else { return };
        let without_baseline = |cell: &Cell, flag: u8| if cell.without_baseline { flag } else { 0 };
        let head = [
            (length & 0xff) as u8,
            (length >> 8) as u8,
            key.len() as u8,
            stored_reservations(entry) as u8,
            entry.hits,
            without_baseline(&entry.current, CURRENT_UNBASED)
                | without_baseline(&entry.previous, PREVIOUS_UNBASED)
                | if entry.unstored { UNSTORED } else { 0 }
                | if entry.configured.is_some() { CONTROLLED } else { 0 }
                | (older_of(entry).len() as u8) << OLDER_SHIFT,
        ];
        let (current, previous) = (&entry.current, &entry.previous);
        let words = [
            entry.fingerprint,
            entry.limit,
            entry.strict_until.0,
            entry.charged.0,
            entry.viewed.0,
            entry.sequence,
            current.own,
            current.region_others,
            current.global_others,
            current.confirmed,
            previous.own,
            previous.region_others,
            previous.global_others,
            previous.confirmed,
            entry.clock.map_or(0, |clock| clock.saturating_add(1)),
        ];
        for (byte, value) in out.iter_mut().zip(head) {
            *byte = value;
        }
        for (index, value) in words.into_iter().enumerate() {
            set_word(out, 6 + index * 8, value);
        }
        if let Some(place) = out.get_mut(FIXED..FIXED + key.len()) {
            place.copy_from_slice(key);
        }
        for (index, cell) in older_of(entry).iter().enumerate() {
            write_older(out, FIXED + key.len() + index * OLDER, cell);
        }
        let reserved = FIXED + key.len() + older_of(entry).len() * OLDER;
        for (index, reservation) in entry.reservations.iter().enumerate() {
            write_reservation(out, reserved + index * RESERVATION, reservation);
        }
        if let Some(configured) = entry.configured {
            let (tag, expires) = (Tag { worker: 0, kind: ReservationKind::Lease }, MonoMs(0));
            let sequence = configured.min(NO_SEQUENCE - 1) | NO_SEQUENCE;
            let last = Reservation { tag, sequence, amount: 0, expires };
            write_reservation(out, reserved + entry.reservations.len() * RESERVATION, &last);
        }
    }
}

/// Length of an entry with these numbers of older cells and reservations.
fn length_of(key: usize, older: usize, reservations: usize) -> usize {
    FIXED + key + older * OLDER + reservations * RESERVATION
}

/// Its reservations, and one if live control set its limit.
fn stored_reservations(entry: &Entry) -> usize {
    entry.reservations.len().saturating_add(usize::from(entry.configured.is_some()))
}

fn older_of(entry: &Entry) -> &[Cell] {
    entry.older.get(..MAX_OLDER).unwrap_or(&entry.older)
}

fn read_older(bytes: &[u8], at: usize) -> Cell {
    let field = |index: usize| word(bytes, at + 1 + index * 8);
    Cell {
        own: field(0),
        region_others: field(1),
        global_others: field(2),
        confirmed: field(3),
        without_baseline: bytes.get(at) == Some(&1),
    }
}

fn write_older(bytes: &mut [u8], at: usize, cell: &Cell) {
    if let Some(without_baseline) = bytes.get_mut(at) {
        *without_baseline = u8::from(cell.without_baseline);
    }
    let words = [cell.own, cell.region_others, cell.global_others, cell.confirmed];
    for (index, value) in words.into_iter().enumerate() {
        set_word(bytes, at + 1 + index * 8, value);
    }
}

fn read_reservation(bytes: &[u8], at: usize) -> Reservation {
    let packed = word(bytes, at);
    let kind = match packed & 3 {
        0 => ReservationKind::Lease,
        1 => ReservationKind::Hold,
        2 => ReservationKind::Query,
        _ => ReservationKind::Deferred,
    };
    Reservation {
        tag: Tag { worker: packed >> 2, kind },
        sequence: word(bytes, at + 8),
        amount: word(bytes, at + 16),
        expires: MonoMs(word(bytes, at + 24)),
    }
}

fn write_reservation(bytes: &mut [u8], at: usize, reservation: &Reservation) {
    let kind = match reservation.tag.kind {
        ReservationKind::Lease => 0,
        ReservationKind::Hold => 1,
        ReservationKind::Query => 2,
        ReservationKind::Deferred => 3,
    };
    set_word(bytes, at, reservation.tag.worker << 2 | kind);
    set_word(bytes, at + 8, reservation.sequence);
    set_word(bytes, at + 16, reservation.amount);
    set_word(bytes, at + 24, reservation.expires.0);
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()).map_or(0, |word| u64::from_le_bytes(*word))
}

fn set_word(bytes: &mut [u8], at: usize, value: u64) {
    if let Some(place) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<8>()) {
        *place = value.to_le_bytes();
    }
}
