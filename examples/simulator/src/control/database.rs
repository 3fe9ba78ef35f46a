//! The shared database of live control: what the statements of an aggregator read and write in it.

use super::targets::Place;
use crate::random::Random;
use std::collections::{BTreeMap, BTreeSet};
use weir_core::control::Control;
use weir_core::control::book::{
    Book, Contents, Digest, Edition, EditionSeed, Entry, MAX_STAMP, News, Reading, first_revision, renewed,
};
use weir_core::control::change::{Change, ChangeOutcome, Draft, InForce, Made, Room, StoredControl};
use weir_core::control::news::{Page, UnfinishedNews};
use weir_core::model::time::UnixMs;

/// Rows of a page: few, so that most readings have several.
const PAGE_ROWS: usize = 3;
/// Most pages of a reading, about.
const PAGES: usize = 8;

fn entry(row: &StoredControl) -> Entry {
    Entry { control: row.control.clone(), is_deleted: row.is_deleted, stamp: row.stamp }
}

/// The control of a row, if it is in force.
pub fn in_force(row: Option<&StoredControl>, now: UnixMs) -> Option<&Control> {
    row.filter(|row| row.is_in_force(now)).map(|row| &row.control)
}

/// All that a dump of the database has.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    edition: Option<Edition>,
    /// The digest of the rows that the changes have left.
    stated: Digest,
    /// The rows by place.
    pub rows: BTreeMap<Place, StoredControl>,
    /// The stamps of all changes that led here, for the checkers.
    pub history: BTreeSet<u64>,
}

impl Tables {
    fn digest(&self, of: impl Fn(&StoredControl) -> bool) -> Digest {
        let rows = self.rows.values().filter(|row| of(row));
        rows.fold(Digest::default(), |digest, row| digest.with(row.stamp))
    }

    /// Removes rows as a statement does that subtracts them from the digest.
    fn remove(&mut self, of: impl Fn(&StoredControl) -> bool) {
        let Digest { rows, stamps } = self.digest(&of);
        self.stated.rows = self.stated.rows.wrapping_sub(rows);
        self.stated.stamps = self.stated.stamps.wrapping_sub(stamps);
        self.rows.retain(|_, row| !of(row));
    }

    /// Whether rows were deleted by hand, and no aggregator has found it yet.
    pub fn has_lost(&self) -> bool {
        self.edition.is_some() && self.stated != self.digest(|_| true)
    }
}

/// What one statement of a reading has led to.
pub enum Reply {
    /// There is nothing new.
    Nothing,
    /// A part was read.
    Part,
    /// All were read.
    All(News),
}

/// See the module.
#[derive(Debug, Default)]
pub struct Database {
    /// What it holds.
    pub tables: Tables,
    /// A dump that an operator may restore.
    pub dump: Option<Tables>,
    /// It answers from this time on.
    pub away_until: u64,
}

impl Database {
    /// The edition. Inserts one if there is none.
    fn edition(&mut self, random: &mut Random, now: UnixMs) -> Edition {
        let mut anew = || Edition {
            incarnation: random.next().max(1),
            revision: first_revision(now),
            stamp: random.below(MAX_STAMP),
            floor: 0,
            dropped_before: UnixMs(0),
        };
        *self.tables.edition.get_or_insert_with(&mut anew)
    }

    /// The edition, under a new incarnation if the reader finds it set back.
    fn renew(&mut self, reading: impl Fn(Edition) -> Reading, random: &mut Random, now: UnixMs) -> Edition {
        let found = self.edition(random, now);
        if let Reading::WentBack(known) = reading(found) {
            let drawn = EditionSeed { incarnation: random.next().max(1), stamp: random.below(MAX_STAMP) };
            let renewed = renewed(found, known, drawn, now);
            (self.tables.edition, self.tables.stated) = (Some(renewed), self.tables.digest(|_| true));
            return renewed;
        }
        found
    }

    /// One statement of a reading, and the transaction before it that renews a database which was set back.
    pub fn read(
        &mut self,
        book: &Book,
        so_far: &mut UnfinishedNews,
        compares: bool,
        random: &mut Random,
        now: UnixMs,
    ) -> Reply {
        let edition = self.renew(|found| book.reading(found), random, now);
        let since = match book.reading(edition) {
            Reading::Since(since) => since,
            Reading::All => 0,
            Reading::Nothing if compares => edition.revision,
            Reading::Nothing | Reading::WentBack(_) => return Reply::Nothing,
        };
        let after = so_far.resume(edition, since);
        let mut rows: Vec<&StoredControl> =
            self.tables.rows.values().filter(|row| row.control.revision > after).collect();
        rows.sort_by_key(|row| row.control.revision);
        let most = PAGE_ROWS.max(self.tables.rows.len() / PAGES);
        rows.truncate(most);
        let page = Page {
            entries: rows.iter().map(|row| entry(row)).collect(),
            bad: 0,
            rows: rows.len(),
            through: rows.last().map_or(0, |row| row.control.revision),
        };
        if !so_far.add(page, most) {
            return Reply::Part;
        }
        let contents = Contents {
            stated: self.tables.stated,
            all: self.tables.digest(|_| true),
            kept: self.tables.digest(|row| edition.keeps(&entry(row))),
        };
        so_far.finish(contents).map_or(Reply::Part, Reply::All)
    }

    /// Applies changes in one transaction, and returns the result of each.
    pub fn change(
        &mut self,
        book: &Book,
        changes: &[Change],
        random: &mut Random,
        now: UnixMs,
    ) -> Vec<ChangeOutcome> {
        let edition = self.renew(|found| book.reading(found), random, now);
        let places = changes.iter().map(|change| (change.target.clone(), change.slot()));
        let rows = &self.tables.rows;
        let stored = places.filter_map(|place| rows.get(&place).cloned().map(|row| (place, row))).collect();
        let mut room = Room::default();
        for row in rows.values().filter(|row| row.is_in_force(now)) {
            let found = InForce { controls: 1, by_rules: row.automatic.into() };
            room.add(row.control.target.workspace.as_bytes(), found);
        }
        let mut draft = Draft::new(book, stored, room, edition.revision, now);
        let changed = changes.iter().map(|change| draft.take(change, random.below(MAX_STAMP))).collect();
        for Made { stored, .. } in draft.made() {
            let place = stored.place();
            self.tables.remove(|old| old.place() == place);
            self.tables.stated = self.tables.stated.with(stored.stamp);
            self.tables.rows.insert(place, stored.clone());
            self.tables.history.insert(stored.stamp);
            let (revision, stamp) = (stored.control.revision, stored.stamp);
            self.tables.edition = Some(Edition { revision, stamp, ..edition });
        }
        changed
    }

    /// Drops rows that were deleted or expired before a time, and raises the floor.
    pub fn tidy(&mut self, before: UnixMs) {
        let Some(edition) = self.tables.edition else { return };
        let is_over = |row: &StoredControl| match row.is_deleted {
            true => row.updated_at <= before.0,
            false => row.control.expires.is_some_and(|at| at <= before),
        };
        let over = self.tables.rows.values().filter(|row| is_over(row));
        let Some(last) = over.map(|row| row.control.revision).max() else { return };
        self.tables.remove(is_over);
        let (floor, dropped_before) = (edition.floor.max(last), edition.dropped_before.max(before));
        self.tables.edition = Some(Edition { floor, dropped_before, ..edition });
    }

    /// Deletes rows beside their edition, as an operator may by hand: one of a place, or all.
    pub fn lose(&mut self, place: Option<&Place>) {
        match place {
            Some(place) => drop(self.tables.rows.remove(place)),
            None => self.tables.rows.clear(),
        }
    }
}
