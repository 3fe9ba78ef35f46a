//! Live control in an aggregator, and what each filter is to receive of it.
//!
//! The database numbers all changes (*revisions*). A [`Book`] has their log, deletions included, as the set that decides, so that
//! a filter that has all up to some revision receives only what is newer ([`Book::frames_since`]). Expired controls are dropped after a
//! time, in the database and here. The *floor* is the highest revision that was dropped; a filter below it receives everything. So does
//! a filter that has another *incarnation* of the database. A wiped database has a new incarnation by itself, and one that was set back
//! is given one ([`Reading::WentBack`]), as its revisions would be used twice.
//!
//! Each change has a random *stamp*. A database that was set back and changed again by an aggregator that had not read what was lost has
//! higher revisions, but not the stamps of what was lost. So each reading ends with digests of the stamps in the table ([`Contents`]).
//! They show that the table is not what the book was read from, or not what the changes have left.
//!
//! A filter may have a higher revision than a database that was set back. Its revision is accepted only with the [`proof`] that was sent
//! along with it, otherwise a filter could cause one incarnation after the other. The incarnation is the proof's key, so the wire carries
//! only its digest ([`sent_incarnation`]).

pub use super::log::{Entry, KEPT_OVER_MS, MAX_KEPT};

use super::log::{Log, Stored, ignore_change};
use super::set::Controls;
use crate::model::key::{HashKey, fingerprint};
use crate::model::time::UnixMs;
use crate::model::wire::{self, ControlsKnown, MAX_FRAME_CONTROLS};
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

/// Highest revision: epochs of keys have 32 bits.
pub const MAX_REVISION: u64 = u32::MAX as u64;
/// Highest stamp. The sum of those of 2^22 rows is within the signed 64 bits of a database's column.
pub const MAX_STAMP: u64 = (1 << 40) - 1;

/// Most revisions whose stamps are stored. A filter with an older one is sent everything.
const MAX_STAMPS: usize = MAX_KEPT;
/// Number of former incarnations that are stored; a database is set back rarely.
const MAX_FORMER: usize = 16;
/// Revisions of an incarnation begin at the Unix time of its beginning in seconds. Only a flood of changes for hours is further ahead than
/// this; a higher revision of a filter is rejected, as it could use up all revisions.
const MAX_AHEAD: u64 = 1_000_000;
/// Highest first revision, so that revisions are left even with a wrong clock; correct clocks reach it in 2072.
const LAST_FIRST: u64 = MAX_REVISION / 4 * 3;

/// A state of the database's controls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edition {
    /// The incarnation; never 0.
    pub incarnation: u64,
    /// The newest revision; never 0.
    pub revision: u64,
    /// The stamp of the change with that revision.
    pub stamp: u64,
    /// The floor: revisions up to it may have been dropped.
    pub floor: u64,
    /// Of those, the ones that expired until then.
    pub dropped_before: UnixMs,
}

/// The number of some controls, and the sum of their stamps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest {
    /// The number.
    pub rows: u64,
    /// The sum.
    pub stamps: u64,
}

/// What the table of controls has at the end of a reading, as the same transaction shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// All rows that the changes have left, by the edition.
    pub stated: Digest,
    /// All rows.
    pub all: Digest,
    /// Those that [`Edition::keeps`].
    pub kept: Digest,
}

/// Controls newer than a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// The edition of the database.
    pub edition: Edition,
    /// The revision after which entries were read; 0 for all.
    pub since: u64,
    /// The controls, in the order of revisions.
    pub entries: Vec<Entry>,
    /// Number of rows that are not controls.
    pub bad: u64,
    /// What the table has.
    pub contents: Contents,
}

/// What is to be read, by the database's edition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Nothing: nothing is new.
    Nothing,
    /// All with a higher revision than this.
    Since(u64),
    /// Everything.
    All,
    /// The database was set back: it is to be given a new incarnation first, with revisions above this.
    WentBack(u64),
}

/// The first revision of an incarnation that begins now. Earlier incarnations have not used it, as on average there is less than one
/// revision a second.
pub fn first_revision(now: UnixMs) -> u64 {
    now.0.checked_div(1_000).unwrap_or(0).clamp(1, LAST_FIRST)
}

/// What is random in an edition.
#[derive(Clone, Copy, Debug)]
pub struct EditionSeed {
    /// The incarnation; never 0.
    pub incarnation: u64,
    /// The stamp.
    pub stamp: u64,
}

/// The edition of a database that was set back to `found`, under a new incarnation: its revision was never used. `known` is the highest
/// one that is known of.
pub fn renewed(found: Edition, known: u64, drawn: EditionSeed, now: UnixMs) -> Edition {
    let EditionSeed { incarnation, stamp } = drawn;
    let used = found.revision.max(known).max(first_revision(now)).min(MAX_REVISION.saturating_sub(1));
    Edition { incarnation, revision: used.saturating_add(1), stamp, ..found }
}

/// Whether a revision may have been reached by now.
fn is_possible(revision: u64, now: UnixMs) -> bool {
    revision <= first_revision(now).saturating_add(MAX_AHEAD).min(MAX_REVISION)
}

/// The digest of an incarnation that filters receive; never 0.
pub fn sent_incarnation(incarnation: u64) -> u64 {
    fingerprint(b"weir life", HashKey(incarnation, !incarnation)).max(1)
}

/// Proves to an aggregator with the same incarnation that a filter received a revision.
pub fn proof(incarnation: u64, revision: u64) -> u64 {
    fingerprint(&revision.to_le_bytes(), HashKey(incarnation, incarnation.rotate_left(32)))
}

/// The state of a filter that received all up to this edition.
fn known_of(edition: Edition) -> ControlsKnown {
    let Edition { incarnation, revision, stamp, .. } = edition;
    ControlsKnown {
        incarnation: sent_incarnation(incarnation),
        revision,
        proof: proof(incarnation, revision),
        stamp,
    }
}

/// The log of live control as the database has it, and what is known of its editions.
#[derive(Clone, Debug, Default)]
pub struct Book {
    edition: Option<Edition>,
    controls: Controls,
    /// The highest proven revision of a filter in this incarnation.
    acknowledged: u64,
    /// The highest revision that was read, of any incarnation, and was possible by the time.
    seen: u64,
    /// Former incarnations, the newest last. If one returns, the database was set back.
    former: Vec<u64>,
    /// The stamps of the revisions that were read in this incarnation.
    stamps: BTreeMap<u64, u64>,
    /// The book has all that the table had when all was read, and all since. Rows that are not controls would be missing.
    is_comparable: bool,
    /// The table has lost controls, or has others than the book was read from.
    has_lost: bool,
}

impl Edition {
    /// Whether the database has an entry up to this revision for certain, unless it is replaced: cleanups drop no such entry.
    pub fn keeps(&self, entry: &Entry) -> bool {
        self.keeps_all_of(entry.control.revision, entry.is_deleted, entry.control.expires)
    }

    fn keeps_stored(&self, stored: &Stored) -> bool {
        self.keeps_all_of(stored.revision, stored.deleted, stored.expires)
    }

    fn keeps_all_of(&self, revision: u64, is_deleted: bool, expires: Option<UnixMs>) -> bool {
        let ends_later = expires.is_none_or(|at| at > self.dropped_before);
        revision > self.floor || (!is_deleted && ends_later)
    }
}

impl Digest {
    /// Adds a control.
    pub fn with(self, stamp: u64) -> Digest {
        Digest { rows: self.rows.saturating_add(1), stamps: self.stamps.saturating_add(stamp) }
    }
}

/// The time until which a control must have ended to be over even if the clock is somewhat wrong.
fn long_before(now: UnixMs) -> UnixMs {
    UnixMs(now.0.saturating_sub(KEPT_OVER_MS))
}

impl Book {
    /// An empty book, before the first reading.
    pub fn new() -> Book {
        Book::default()
    }

    /// The edition; `None` before the first reading.
    pub fn edition(&self) -> Option<Edition> {
        self.edition
    }

    /// The controls, as the set that decides.
    pub fn controls(&self) -> &Controls {
        &self.controls
    }

    /// All entries in the order of revisions.
    pub fn entries(&self) -> impl DoubleEndedIterator<Item = Entry> + '_ {
        self.controls.log().after(0)
    }

    /// The entry of a revision.
    pub fn of_revision(&self, revision: u64) -> Option<Entry> {
        self.controls.log().entry(revision)
    }

    /// Number of controls in force.
    pub fn in_force(&self, now: UnixMs) -> usize {
        self.controls.log().stored().filter(|stored| !stored.is_over(now)).count()
    }

    /// The revision of a change to a database whose last one is `revision`; `None` if all are used. It is above all that this book has seen,
    /// also in former incarnations: a database that was emptied or set back has no revision of what it has lost.
    pub fn next_revision(&self, revision: u64, now: UnixMs) -> Option<u64> {
        let last = revision.max(self.seen).max(self.acknowledged);
        (last < MAX_REVISION).then(|| last.saturating_add(1).max(first_revision(now)))
    }

    /// Notes the revision of a filter. A higher one than the database's shows that the database was set back.
    pub fn acknowledged(&mut self, known: ControlsKnown, now: UnixMs) {
        if self.is_news(known, now) {
            self.acknowledged = known.revision;
        }
    }

    /// Whether a filter's revision is proven, higher than any seen before, and possible by the time.
    pub fn is_news(&self, known: ControlsKnown, now: UnixMs) -> bool {
        let more = |held: Edition| {
            let ControlsKnown { revision, stamp, .. } = known;
            let shown = known_of(Edition { revision, stamp, ..held }) == known;
            shown && held.revision.max(self.acknowledged) < known.revision
        };
        self.edition.is_some_and(more) && is_possible(known.revision, now)
    }

    /// What is to be read of a database with this edition.
    pub fn reading(&self, found: Edition) -> Reading {
        let Some(held) = self.edition else { return Reading::All };
        let known = held.revision.max(self.acknowledged);
        if held.incarnation != found.incarnation && !self.former.contains(&found.incarnation) {
            return Reading::All;
        }
        let is_older = found.revision < known
            || found.floor < held.floor
            || (found.revision == held.revision && found.stamp != held.stamp);
        if held.incarnation != found.incarnation || is_older || self.has_lost {
            return Reading::WentBack(known);
        }
        if found == held {
            return Reading::Nothing;
        }
        if held.revision < found.floor { Reading::All } else { Reading::Since(held.revision) }
    }

    /// Merges what was read. Returns whether anything changed; nothing does if it does not continue the book. If the table
    /// [has lost](Book::has_lost) controls afterwards, it is to be read again at once.
    pub fn take(&mut self, news: News, now: UnixMs) -> bool {
        let News { edition: found, since, entries, bad, contents } = news;
        let held = self.edition.filter(|held| held.incarnation == found.incarnation);
        let continues = held.is_some_and(|held| since <= held.revision);
        if (since > 0 && !continues) || held.is_some_and(|held| found.revision < held.revision) {
            return false;
        }
        if since == 0 {
            self.stamps.clear();
        }
        if is_possible(found.revision, now) {
            self.seen = self.seen.max(found.revision);
        }
        self.seen = self.seen.max(self.acknowledged);
        if held.is_none() {
            self.acknowledged = 0;
            self.former.extend(self.edition.map(|before| before.incarnation));
            let many = self.former.len().saturating_sub(MAX_FORMER);
            self.former.drain(..many);
        }
        self.put_all(since, entries.iter().filter(|entry| entry.control.revision <= found.revision));
        self.controls.complete_through(known_of(found));
        if held.is_none_or(|held| held.floor < found.floor) {
            self.drop_over(found, now);
        }
        self.stamp(found);
        self.edition = Some(found);
        let kept = self.kept(found);
        self.is_comparable = bad == 0 && if since == 0 { kept == contents.kept } else { self.is_comparable };
        self.has_lost = contents.stated != contents.all || (self.is_comparable && kept != contents.kept);
        since == 0 || held != Some(found)
    }

    /// Whether the last reading has shown that the database is not the one that this book was read from, or that rows were deleted.
    /// [`Book::reading`] then is [`Reading::WentBack`].
    pub fn has_lost(&self) -> bool {
        self.has_lost
    }

    /// The digest of what the database has for certain.
    fn kept(&self, found: Edition) -> Digest {
        let kept = self.controls.log().stored().filter(|stored| found.keeps_stored(stored));
        kept.fold(Digest::default(), |digest, stored| digest.with(stored.stamp))
    }

    /// Notes the stamp of an edition that was read, and drops those that are of no use.
    fn stamp(&mut self, found: Edition) {
        self.stamps.insert(found.revision, found.stamp);
        self.stamps = self.stamps.split_off(&found.floor);
        while self.stamps.len() > MAX_STAMPS {
            self.stamps.pop_first();
        }
    }

    /// Whether a filter with this revision has what was read up to it, or is ahead of this book.
    fn is_behind(&self, known: ControlsKnown, held: Edition) -> bool {
        known.revision > held.revision || self.stamps.get(&known.revision) == Some(&known.stamp)
    }

    /// The frames with all that a filter lacks; empty if it lacks nothing.
    pub fn frames_since(&self, known: Option<ControlsKnown>, now: UnixMs) -> Vec<wire::Controls> {
        let Some(edition) = self.edition else { return Vec::new() };
        let Edition { incarnation, revision, floor, .. } = edition;
        let since = known.filter(|known| {
            known.incarnation == sent_incarnation(incarnation)
                && known.revision >= floor
                && self.is_behind(*known, edition)
        });
        let entries: Vec<wire::Control> = match since {
            Some(known) if known.revision >= revision => return Vec::new(),
            Some(known) => self.controls.log().after(known.revision).map(|entry| entry.to_wire()).collect(),
            None => {
                let needed = self.entries().filter(|entry| !entry.is_over(long_before(now)));
                needed.map(|entry| entry.to_wire()).collect()
            }
        };
        let frame = |entries: &[wire::Control]| wire::Controls {
            incarnation: sent_incarnation(incarnation),
            entries: entries.to_vec(),
            ..Default::default()
        };
        let mut frames: Vec<wire::Controls> = entries.chunks(MAX_FRAME_CONTROLS).map(frame).collect();
        if frames.is_empty() {
            frames = vec![frame(&[])];
        }
        let mut after = since.map_or(0, |known| known.revision);
        let as_of = if since.is_none() { revision } else { 0 };
        for frame in &mut frames {
            frame.as_of = as_of;
            (frame.after, frame.now_ms) = (after, now.0);
            after = frame.entries.last().map_or(after, |entry| entry.revision);
        }
        if let Some(first) = frames.first_mut() {
            first.from_scratch = since.is_none();
        }
        if let Some(last) = frames.last_mut() {
            (last.complete_through, last.proof) = (revision, proof(incarnation, revision));
            last.stamp = edition.stamp;
        }
        frames
    }

    /// Adds what was read after the revision `since`; 0 for all.
    fn put_all<'a>(&mut self, since: u64, entries: impl Iterator<Item = &'a Entry>) {
        let mut all = (since == 0).then(Log::default);
        for entry in entries {
            self.stamps.insert(entry.control.revision, entry.stamp);
            match &mut all {
                Some(all) => drop(all.insert(entry, ignore_change)),
                None => self.controls.put(entry),
            }
        }
        if let Some(all) = all {
            self.controls.replace(all);
        }
    }

    /// Drops expired entries that the database may have dropped; filters that lack them receive everything. It may have dropped them by
    /// another clock, so entries that may be in force stay, unless there are too many.
    fn drop_over(&mut self, found: Edition, now: UnixMs) {
        let too_many = self.controls.log().len() > MAX_KEPT;
        let since = if too_many { now } else { long_before(now) };
        self.controls.drop_where(|stored| !found.keeps_stored(stored) && stored.is_over(since));
    }
}

/// What was sent of live control to one filter on one stream.
#[derive(Clone, Copy, Debug)]
pub struct ControlPush {
    sent: ControlsKnown,
}

impl ControlPush {
    /// For a filter that has what is `known`.
    pub fn new(known: ControlsKnown) -> ControlPush {
        ControlPush { sent: known }
    }

    /// Notes what the filter has. True if it lacks something that was sent.
    pub fn acknowledged(&mut self, known: ControlsKnown) -> bool {
        let is_other = known != self.sent && known.revision <= self.sent.revision;
        let lost = known.incarnation != self.sent.incarnation || is_other;
        self.sent = known;
        lost
    }

    /// What to send now; all of it, in this order.
    pub fn next(&mut self, book: &Book, now: UnixMs) -> Vec<wire::Controls> {
        let frames = book.frames_since(Some(self.sent), now);
        if let (Some(edition), false) = (book.edition(), frames.is_empty()) {
            self.sent = known_of(edition);
        }
        frames
    }
}

#[cfg(test)]
mod tests;
