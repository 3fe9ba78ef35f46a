//! Queries of live control: controls newer than a known revision, lists for operators, and the audit.
//!
//! All of them read the primary, because a replica may lag behind a change that another aggregator just made.

use super::{Begin, REVISION, begin, edition, end, entry, read_row, renew, slot_of};
use crate::controls::{Action, AuditEntry, AuditFilter, ControlFilter, PlaceFilter};
use crate::database::connection::retry::{self, Rows, Work};
use crate::database::connection::{Arg, Connection, Row};
use crate::database::{Database, DatabaseError};
use std::time::Duration;
use tokio::time::Instant;
use weir_core::control::book::{Book, Contents, Digest, Edition, News, Reading};
use weir_core::control::change::StoredControl;
use weir_core::control::news::{Page, UnfinishedNews};
use weir_core::control::{ALL_NAMESPACES, Control, MAX_CONTROLS};
use weir_core::model::time::UnixMs;

/// Most rows of one statement that reads controls newer than a revision. A table may have twenty times as many.
pub const NEWS_ROWS: usize = 1_000;

/// What one statement has read of the controls newer than a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewsPage {
    /// There are none.
    Nothing,
    /// A part of them, and more are left.
    Part,
    /// The last of them. These are all.
    All(News),
}

impl Database {
    /// Reads on in the controls that `book` does not have, at most [`NEWS_ROWS`] of them. If the database is older than `book`, or has
    /// lost controls of it, the call begins a new incarnation. The last part has the table's digests; if it `compares`, it has them also
    /// if there are no new controls.
    pub async fn control_news(
        &self,
        book: &Book,
        so_far: &mut UnfinishedNews,
        compares: bool,
        now: UnixMs,
        within: Duration,
    ) -> Result<NewsPage, DatabaseError> {
        let reading = |found| book.reading(found);
        let work = Newer { reading: &reading, so_far, compares, now };
        retry::until(Instant::now() + within, self.primary(), work).await
    }

    /// Controls in force, in the order of revisions.
    pub async fn controls(
        &self,
        filter: &ControlFilter,
        now: UnixMs,
        within: Duration,
    ) -> Result<Vec<StoredControl>, DatabaseError> {
        let ControlFilter { place, slot, matching, after, limit } = filter;
        let slot = Arg::Int(slot.map_or(0, super::slot_number));
        let wide;
        // SQL cannot match an identifier against patterns, so all rows are read and filtered here.
        let (selected, rows) = match matching {
            None => (place, u64::from(*limit)),
            Some(_) => {
                wide = PlaceFilter { scope: String::new(), ..place.clone() };
                (&wide, u64::try_from(MAX_CONTROLS).unwrap_or(u64::MAX))
            }
        };
        let mut args = args_of(selected);
        args.extend([slot, slot, Arg::Int(*after), Arg::Int(now.0), Arg::Int(rows)]);
        let list = Rows(self.primary().statements().controls.list, &args, read_row);
        let mut found = retry::until(Instant::now() + within, self.primary(), list).await?;
        if let Some(raw) = matching {
            let in_scope = |scope: &str| [place.scope.as_str(), ALL_NAMESPACES].contains(&scope);
            found.retain(|StoredControl { control: Control { target, .. }, .. }| {
                (place.scope.is_empty() || in_scope(&target.scope)) && target.meets(raw.as_bytes())
            });
            found.truncate(usize::try_from(*limit).unwrap_or(usize::MAX));
        }
        Ok(found)
    }

    /// Audit entries, newest first.
    pub async fn control_audit(
        &self,
        filter: &AuditFilter,
        within: Duration,
    ) -> Result<Vec<AuditEntry>, DatabaseError> {
        let AuditFilter { place, author, before, limit } = filter;
        let before = before.unwrap_or(u64::MAX).min(i64::MAX.cast_unsigned());
        let mut args = args_of(place);
        args.extend(twice([author]));
        args.extend([Arg::Int(before), Arg::Int((*limit).into())]);
        let audit = Rows(self.primary().statements().controls.audit, &args, read_audited);
        retry::until(Instant::now() + within, self.primary(), audit).await
    }
}

struct Newer<'a> {
    reading: &'a (dyn Fn(Edition) -> Reading + Sync),
    so_far: &'a mut UnfinishedNews,
    compares: bool,
    now: UnixMs,
}

impl Work for Newer<'_> {
    type Output = NewsPage;

    async fn run(&mut self, connection: &mut Connection) -> Result<NewsPage, DatabaseError> {
        let read = connection.statements().controls.edition;
        let mut found = edition(connection, read, self.now).await?;
        if let Reading::WentBack(_) = (self.reading)(found) {
            begin(connection, Begin::Write).await?;
            let result = self.renew(connection).await;
            found = end(connection, result).await?;
        }
        if (self.reading)(found) == Reading::Nothing && !self.compares {
            return Ok(NewsPage::Nothing);
        }
        begin(connection, Begin::Snapshot).await?;
        let result = self.read(connection).await;
        end(connection, result).await
    }
}

impl Newer<'_> {
    /// Begins a new incarnation, unless another aggregator already did.
    async fn renew(&self, connection: &mut Connection) -> Result<Edition, DatabaseError> {
        let lock = connection.statements().control_edition_lock;
        let found = edition(connection, lock, self.now).await?;
        match (self.reading)(found) {
            Reading::WentBack(known) => renew(connection, found, known, self.now).await,
            _ => Ok(found),
        }
    }

    async fn read(&mut self, connection: &mut Connection) -> Result<NewsPage, DatabaseError> {
        let statements = connection.statements().controls;
        let Some(edition) = super::find_edition(connection, statements.edition).await? else {
            return Ok(NewsPage::Nothing);
        };
        let since = match (self.reading)(edition) {
            Reading::Since(since) => since,
            Reading::All => 0,
            Reading::Nothing if self.compares => edition.revision,
            // The edition changed in between; the next read handles it.
            Reading::Nothing | Reading::WentBack(_) => return Ok(NewsPage::Nothing),
        };
        let after = self.so_far.resume(edition, since);
        let args = [Arg::Int(after), Arg::Int(NEWS_ROWS as u64)];
        let mut page = Page::default();
        connection
            .each(statements.newer, &args, &mut |row| {
                page.rows += 1;
                page.through = page.through.max(row.number(REVISION).unwrap_or_default());
                match read_row(row) {
                    Some(stored) => page.entries.push(entry(stored)),
                    None => page.bad += 1,
                }
            })
            .await?;
        if !self.so_far.add(page, NEWS_ROWS) {
            return Ok(NewsPage::Part);
        }
        let contents = contents(connection).await?;
        Ok(self.so_far.finish(contents).map_or(NewsPage::Part, NewsPage::All))
    }
}

/// The digests of the table.
async fn contents(connection: &mut Connection) -> Result<Contents, DatabaseError> {
    let mut found = Contents::default();
    let statement = connection.statements().controls.contents;
    connection
        .each(statement, &[], &mut |row| {
            // A digest below 0 is that of no rows.
            let number = |column| row.number(column).unwrap_or(u64::MAX);
            let digest = |column| Digest { rows: number(column), stamps: number(column + 1) };
            found = Contents { stated: digest(0), all: digest(2), kept: digest(4) };
        })
        .await?;
    Ok(found)
}

/// The parameters of the condition on a place.
fn args_of(place: &PlaceFilter) -> Vec<Arg<'_>> {
    twice([&place.workspace, &place.scope, &place.identifier, &place.network])
}

/// Each text twice, for conditions that test whether a text is empty and compare it.
fn twice<const N: usize>(texts: [&String; N]) -> Vec<Arg<'_>> {
    texts.into_iter().flat_map(|text| [Arg::Bytes(text.as_bytes()); 2]).collect()
}

fn read_audited(row: &Row<'_>) -> Option<AuditEntry> {
    let text = |column: usize| Some(String::from_utf8_lossy(row.bytes(column)?).into_owned());
    Some(AuditEntry {
        id: row.number(0)?,
        created_at: row.number(1)?,
        author: text(2)?,
        automatic: row.number(3)? != 0,
        region: text(4)?,
        action: [Action::Set, Action::Deleted]
            .into_iter()
            .find(|action| Some(action.number()) == row.number(5))?,
        workspace: text(6)?,
        scope: text(7)?,
        identifier: text(8)?,
        network: text(9)?,
        window_ms: row.number(10)?,
        slot: slot_of(row.number(11)?)?,
        revision: row.number(12)?,
        was: text(13)?,
        is_now: text(14)?,
        reason: text(15)?,
    })
}
