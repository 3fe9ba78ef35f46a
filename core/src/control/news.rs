//! Controls newer than a revision, as an aggregator reads them from the database: page by page, also over calls that fail.

use super::book::{Contents, Edition, Entry, News};
use alloc::vec::Vec;

/// Rows that one statement has read, in the order of revisions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The controls.
    pub entries: Vec<Entry>,
    /// Number of rows that are not controls.
    pub bad: u64,
    /// Number of rows.
    pub rows: usize,
    /// The highest revision of a row; 0 if there are none.
    pub through: u64,
}

/// Controls that were read so far. It outlives a read that fails, so that the next one continues.
#[derive(Clone, Debug, Default)]
pub struct UnfinishedNews {
    /// The edition of the database at the last page.
    last: Option<Edition>,
    since: u64,
    /// The revision up to which all were read.
    through: u64,
    entries: Vec<Entry>,
    bad: u64,
}

impl UnfinishedNews {
    /// Returns the revision after which the next page begins, in a database that has the edition `found`, where all after `since` is read.
    ///
    /// Begins again, unless what was read is a part of this reading. A row that is changed meanwhile gets a higher revision and is read
    /// again; if rows were dropped, nothing shows what had become of them. In a database that was set back, a row may have again a
    /// revision that was passed already.
    pub fn resume(&mut self, found: Edition, since: u64) -> u64 {
        let continues = |last: Edition| {
            (last.incarnation, last.floor) == (found.incarnation, found.floor)
                && found.revision >= last.revision
        };
        if !self.last.is_some_and(continues) || self.since != since {
            *self = UnfinishedNews { since, through: since, ..UnfinishedNews::default() };
        }
        self.last = Some(found);
        self.through
    }

    /// Adds a page that was read after [`UnfinishedNews::resume`] with the same edition. Returns whether it is the last one: it has less
    /// than `most_rows`.
    pub fn add(&mut self, mut page: Page, most_rows: usize) -> bool {
        self.entries.append(&mut page.entries);
        self.bad = self.bad.saturating_add(page.bad);
        let has_more = page.rows >= most_rows && page.through > self.through;
        self.through = self.through.max(page.through);
        !has_more
    }

    /// All that was read, after the last page; `contents` are those of the transaction that has read it.
    pub fn finish(&mut self, contents: Contents) -> Option<News> {
        let UnfinishedNews { last, since, entries, bad, .. } = core::mem::take(self);
        last.map(|edition| News { edition, since, entries, bad, contents })
    }
}
