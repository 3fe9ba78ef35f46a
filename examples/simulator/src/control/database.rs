//! The shared database of live control: what the statements of an aggregator read and write in it.

use super::targets::Place;
use std::collections::BTreeMap;
use weir_core::control::book::{Book, Edition, Entry, Reading, first_revision, renewed};
use weir_core::control::news::{News, Page, UnfinishedNews};
use weir_core::control::{Control, Effect, Slot, Target};
use weir_core::model::time::UnixMs;

/// Rows of a page: few, so that most readings have several.
pub const PAGE_ROWS: usize = 3;

/// A row: the newest control of a place, or its deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The control; of a deletion, the one that was deleted.
    pub control: Control,
    /// Whether it was deleted.
    pub is_deleted: bool,
    /// When it was written, by the clock of the aggregator that did.
    pub updated_at: UnixMs,
}

/// The control of a row, if it is in force.
pub fn in_force(row: Option<&Row>, now: UnixMs) -> Option<&Control> {
    row.filter(|row| !row.is_deleted && row.control.is_in_force(now)).map(|row| &row.control)
}

/// All that a dump of the database has.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    edition: Option<Edition>,
    /// The rows by place.
    pub rows: BTreeMap<Place, Row>,
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
    fn edition(&mut self, random: u64, now: UnixMs) -> Edition {
        let anew = || Edition { incarnation: random.max(1), revision: first_revision(now), floor: 0 };
        *self.tables.edition.get_or_insert_with(anew)
    }

    /// The edition, under a new incarnation if the reader finds it set back.
    fn renew(&mut self, reading: impl Fn(Edition) -> Reading, random: u64, now: UnixMs) -> Edition {
        let found = self.edition(random, now);
        let edition = match reading(found) {
            Reading::WentBack(known) => renewed(found, known, random.max(1), now),
            _ => found,
        };
        self.tables.edition = Some(edition);
        edition
    }

    /// One statement of a reading, and the transaction before it that renews a database which was set back.
    pub fn read(
        &mut self,
        reading: impl Fn(Edition) -> Reading,
        so_far: &mut UnfinishedNews,
        random: u64,
        now: UnixMs,
    ) -> Reply {
        let edition = self.renew(&reading, random, now);
        let since = match reading(edition) {
            Reading::Since(since) => since,
            Reading::All => 0,
            Reading::Nothing | Reading::WentBack(_) => return Reply::Nothing,
        };
        let after = so_far.resume(edition, since);
        let mut rows: Vec<&Row> =
            self.tables.rows.values().filter(|row| row.control.revision > after).collect();
        rows.sort_by_key(|row| row.control.revision);
        rows.truncate(PAGE_ROWS);
        let entry = |row: &&Row| Entry { control: row.control.clone(), is_deleted: row.is_deleted };
        let page = Page {
            entries: rows.iter().map(entry).collect(),
            bad: 0,
            rows: rows.len(),
            through: rows.last().map_or(0, |row| row.control.revision),
        };
        so_far.add(page, PAGE_ROWS).map_or(Reply::Part, Reply::All)
    }

    /// A change: sets `effect` until `expires`, or deletes what is in its slot. Returns the row that was written; `None` if there is
    /// nothing to delete.
    pub fn change(
        &mut self,
        book: &Book,
        (target, effect): (Target, Effect),
        wish: Option<Option<UnixMs>>,
        random: u64,
        now: UnixMs,
    ) -> Option<Row> {
        let edition = self.renew(|found| book.reading(found), random, now);
        let place: (Target, Slot) = (target.clone(), effect.slot());
        let stands = self.tables.rows.get(&place);
        let stands = stands.filter(|row| !row.is_deleted && row.control.is_in_force(now));
        let (effect, expires, is_deleted) = match (wish, stands) {
            (Some(expires), _) => (effect, expires, false),
            (None, Some(row)) => (row.control.effect, row.control.expires, true),
            (None, None) => return None,
        };
        let revision = book.next_revision(edition.revision, now)?;
        let row = Row { control: Control { target, effect, expires, revision }, is_deleted, updated_at: now };
        self.tables.rows.insert(place, row.clone());
        self.tables.edition = Some(Edition { revision, ..edition });
        Some(row)
    }

    /// Drops rows that were deleted or expired before a time, and raises the floor.
    pub fn tidy(&mut self, before: UnixMs) {
        let Some(edition) = self.tables.edition else { return };
        let is_over = |row: &Row| match row.is_deleted {
            true => row.updated_at <= before,
            false => row.control.expires.is_some_and(|at| at <= before),
        };
        let over = self.tables.rows.values().filter(|row| is_over(row));
        let Some(last) = over.map(|row| row.control.revision).max() else { return };
        self.tables.rows.retain(|_, row| !is_over(row));
        self.tables.edition = Some(Edition { floor: edition.floor.max(last), ..edition });
    }
}
