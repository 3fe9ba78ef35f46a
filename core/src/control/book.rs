//! What an aggregator knows of live control, and what each filter is to be told of it.
//!
//! The database numbers all changes. A [`Book`] holds the newest word on each target and slot, those that are deleted
//! included, so that whoever knows all up to some revision is told what came since ([`Book::frames_since`]). What is over
//! is dropped one day, in the database and here; the *floor* is the highest revision that was dropped, and whoever knows
//! less is told everything anew. So is whoever knows another *life* of the database: one that was wiped begins another by
//! itself, and one that was set back is given another ([`Reading::WentBack`]), as its revisions would be used twice.
//!
//! A filter may know more than a database that was set back, and says so. It is believed only with the [`proof`] that it was
//! told of that revision, or it could have the database begin one life after the other. The life is the key of the proof: the
//! wire carries its digest ([`sent_incarnation`]).
//!
//! Leaves to others: reading and writing the database (`aggregator`), what a control means where it is applied.

use super::{Control, Slot, Target};
use crate::model::key::{HashKey, fingerprint};
use crate::model::time::UnixMs;
use crate::model::wire::{self, ControlsKnown, MAX_FRAME_CONTROLS};
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Bound::{Excluded, Unbounded};

/// Most controls that a database keeps and an aggregator holds, those that are deleted or expired included.
pub const MAX_KEPT: usize = 2 * super::MAX_CONTROLS;
/// What has been over for less is held and told all the same: the clock by which it is over may be wrong, and what is not told
/// counts as known. A day is more than clocks are wrong by for long, and little against what is kept anyway.
pub const KEPT_OVER_MS: u64 = 24 * 60 * 60 * 1_000;
/// Above this no revision is believed: epochs of keys have 32 bits.
pub const MAX_REVISION: u64 = u32::MAX as u64;

/// Former lives that are remembered; a database is set back rarely.
const MAX_FORMER: usize = 16;
/// A life's revisions begin at the second at which it does. Only a flood of changes, for hours, is further ahead of the time
/// than this; a filter that says so is not believed, as it could use up all revisions that there are.
const MAX_AHEAD: u64 = 1_000_000;
/// No life begins above it, that there are revisions left however wrong a clock is; reached by right ones in 2072.
const LAST_FIRST: u64 = MAX_REVISION / 4 * 3;

/// Which state of the database's controls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edition {
    /// Of which life; never 0.
    pub incarnation: u64,
    /// Up to which change; never 0.
    pub revision: u64,
    /// Up to which change something may have been dropped.
    pub floor: u64,
}

/// The newest word on one target and slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What it says.
    pub control: Control,
    /// It is no more.
    pub is_deleted: bool,
}

/// What is to be read, given the database's edition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Nothing: all is known.
    Nothing,
    /// What has a higher revision than this.
    Since(u64),
    /// Everything.
    All,
    /// The database is older than what was known of it: it is to be given another life first, with revisions above this.
    WentBack(u64),
}

/// The revision at which a life begins that begins now: it was never used by a life before, as revisions are given more
/// slowly than one a second on average.
pub fn first_revision(now: UnixMs) -> u64 {
    now.0.checked_div(1_000).unwrap_or(0).clamp(1, LAST_FIRST)
}

/// What filters are told of a life; never 0.
pub fn sent_incarnation(incarnation: u64) -> u64 {
    fingerprint(b"weir life", HashKey(incarnation, !incarnation)).max(1)
}

/// Shows who knows the life that a filter was told of a revision.
pub fn proof(incarnation: u64, revision: u64) -> u64 {
    fingerprint(&revision.to_le_bytes(), HashKey(incarnation, incarnation.rotate_left(32)))
}

/// What a filter knows that was told all up to this edition.
fn known_of(edition: Edition) -> ControlsKnown {
    let Edition { incarnation, revision, .. } = edition;
    ControlsKnown {
        incarnation: sent_incarnation(incarnation),
        revision,
        proof: proof(incarnation, revision),
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Book {
    edition: Option<Edition>,
    /// By revision, each target and slot once.
    entries: BTreeMap<u64, Entry>,
    places: BTreeMap<(Target, Slot), u64>,
    /// The highest revision of this life that a filter said it knows.
    acknowledged: u64,
    /// Lives before this one, the newest last: one that comes again was set back.
    former: Vec<u64>,
}

impl Entry {
    fn is_over(&self, now: UnixMs) -> bool {
        self.is_deleted || !self.control.is_in_force(now)
    }

    /// Whether nobody needs to know of it, even if this moment is not quite the right one.
    fn is_long_over(&self, now: UnixMs) -> bool {
        self.is_over(UnixMs(now.0.saturating_sub(KEPT_OVER_MS)))
    }

    fn to_wire(&self) -> wire::Control {
        wire::Control { deleted: self.is_deleted, ..self.control.to_wire() }
    }
}

impl Book {
    /// Nothing is known, and nobody is told anything.
    pub fn new() -> Book {
        Book::default()
    }

    /// What is held; `None` before the first reading.
    pub fn edition(&self) -> Option<Edition> {
        self.edition
    }

    /// All that is held, in the order of revisions.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// How many are in force.
    pub fn in_force(&self, now: UnixMs) -> usize {
        self.entries.values().filter(|entry| !entry.is_over(now)).count()
    }

    /// A filter says what it knows. One that knows more than a database may say shows that the database went back.
    pub fn acknowledged(&mut self, known: ControlsKnown, now: UnixMs) {
        if self.is_news(known, now) {
            self.acknowledged = known.revision;
        }
    }

    /// Whether a filter knows more than anybody was known to, can show it, and knows no more than there can be by now.
    pub fn is_news(&self, known: ControlsKnown, now: UnixMs) -> bool {
        let more = |held: Edition| {
            let shown = known_of(Edition { revision: known.revision, ..held }) == known;
            shown && held.revision.max(self.acknowledged) < known.revision
        };
        let most = first_revision(now).saturating_add(MAX_AHEAD).min(MAX_REVISION);
        self.edition.is_some_and(more) && known.revision <= most
    }

    /// What is to be read of a database that says this of itself.
    pub fn reading(&self, found: Edition) -> Reading {
        let Some(held) = self.edition else { return Reading::All };
        let known = held.revision.max(self.acknowledged);
        if held.incarnation != found.incarnation && !self.former.contains(&found.incarnation) {
            return Reading::All;
        }
        if held.incarnation != found.incarnation || found.revision < known {
            return Reading::WentBack(known);
        }
        if found.revision == held.revision && found.floor <= held.floor {
            return Reading::Nothing;
        }
        if held.revision < found.floor { Reading::All } else { Reading::Since(held.revision) }
    }

    /// Takes what was read at one moment: all entries with a higher revision than `since`, or all with 0. False if that
    /// does not continue what is held.
    pub fn take(&mut self, found: Edition, since: u64, entries: Vec<Entry>, now: UnixMs) -> bool {
        let held = self.edition.filter(|held| held.incarnation == found.incarnation);
        let continues = held.is_some_and(|held| since <= held.revision);
        if (since > 0 && !continues) || held.is_some_and(|held| found.revision < held.revision) {
            return false;
        }
        if since == 0 {
            self.entries.clear();
            self.places.clear();
        }
        if held.is_none() {
            self.acknowledged = 0;
            self.former.extend(self.edition.map(|before| before.incarnation));
            let many = self.former.len().saturating_sub(MAX_FORMER);
            self.former.drain(..many);
        }
        for entry in entries.into_iter().filter(|entry| entry.control.revision <= found.revision) {
            self.put(entry);
        }
        if held.is_none_or(|held| held.floor < found.floor) {
            self.drop_over(found.floor, now);
        }
        // A database that was set back to before it dropped something has it again; here it is gone.
        self.edition = Some(Edition { floor: found.floor.max(held.map_or(0, |held| held.floor)), ..found });
        true
    }

    /// What tells a filter all that it does not know; empty if there is nothing.
    pub fn frames_since(&self, known: Option<ControlsKnown>, now: UnixMs) -> Vec<wire::Controls> {
        let Some(Edition { incarnation, revision, floor }) = self.edition else { return Vec::new() };
        let since = known
            .filter(|known| known.incarnation == sent_incarnation(incarnation) && known.revision >= floor);
        let entries: Vec<wire::Control> = match since {
            Some(known) if known.revision >= revision => return Vec::new(),
            Some(known) => {
                let newer = self.entries.range((Excluded(known.revision), Unbounded));
                newer.map(|(_, entry)| entry.to_wire()).collect()
            }
            None => {
                self.entries.values().filter(|entry| !entry.is_long_over(now)).map(Entry::to_wire).collect()
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
        }
        frames
    }

    /// The same in one frame, for who shares the memory.
    pub fn frame_since(&self, known: Option<ControlsKnown>, now: UnixMs) -> Option<wire::Controls> {
        let frames = self.frames_since(known, now);
        let (complete_through, proof) = (frames.last()?.complete_through, frames.last()?.proof);
        let first = frames.first()?.clone();
        let entries = frames.into_iter().flat_map(|frame| frame.entries).collect();
        Some(wire::Controls { entries, complete_through, proof, ..first })
    }

    fn put(&mut self, entry: Entry) {
        let revision = entry.control.revision;
        let place = (entry.control.target.clone(), entry.control.effect.slot());
        match self.places.get(&place) {
            Some(held) if *held > revision => return,
            Some(held) => drop(self.entries.remove(held)),
            None => {}
        }
        self.places.insert(place, revision);
        self.entries.insert(revision, entry);
    }

    /// Whoever does not know these is told everything anew. The database may have dropped them by another clock, so those stay
    /// that may be in force, unless there are too many.
    fn drop_over(&mut self, floor: u64, now: UnixMs) {
        let is_over = if self.entries.len() > MAX_KEPT { Entry::is_over } else { Entry::is_long_over };
        let dropped = |entry: &Entry| entry.control.revision <= floor && is_over(entry, now);
        self.entries.retain(|_, entry| !dropped(entry));
        self.places.retain(|_, revision| self.entries.contains_key(revision));
    }
}

/// What one filter was told of live control, on one stream.
#[derive(Clone, Copy, Debug)]
pub struct ControlPush {
    sent: ControlsKnown,
}

impl ControlPush {
    /// For a filter that says what it knows.
    pub fn new(known: ControlsKnown) -> ControlPush {
        ControlPush { sent: known }
    }

    /// The filter says again what it knows: all, if nothing was lost. True if it is to be told something again.
    pub fn acknowledged(&mut self, known: ControlsKnown) -> bool {
        let lost = known.incarnation != self.sent.incarnation || known.revision < self.sent.revision;
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
