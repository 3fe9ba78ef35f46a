//! Live control is read: what is newer than is known, lists for people, and who changed what.
//!
//! All of it from the primary: a replica may lag behind what another aggregator just said.
//!
//! Leaves to others: what is done with it (`crate::region::control`, `apis`).

use super::action::Action;
use super::{Begin, StoredControl, begin, edition, end, entry, read_row, renew, select, slot_of};
use crate::database::connection::retry::{self, Work};
use crate::database::connection::{Arg, Connection, Row};
use crate::database::{Database, DatabaseError};
use std::time::Duration;
use tokio::time::Instant;
use weir_core::control::book::{Book, Edition, Entry, Reading};
use weir_core::control::{ALL_NAMESPACES, Control, MAX_CONTROLS, Slot};
use weir_core::model::time::UnixMs;

/// Most entries of one list.
pub const MAX_PAGE: u32 = 1_000;

/// Newer controls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// What the database says of itself.
    pub edition: Edition,
    /// All with a higher revision than this; 0 for all.
    pub since: u64,
    /// In the order of revisions.
    pub entries: Vec<Entry>,
    /// Rows that are no controls.
    pub bad: u64,
}

/// Of whom something is said. What is empty does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlaceFilter {
    /// Whose limits.
    pub workspace: String,
    /// Of which namespace, or of which rule.
    pub scope: String,
    /// Written as it was said.
    pub identifier: String,
    /// As it is told.
    pub network: String,
}

/// Which controls are asked for. What is missing does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControlFilter {
    /// Said of whom.
    pub place: PlaceFilter,
    /// Of which slot.
    pub slot: Option<Slot>,
    /// Only what names this raw identifier; then a scope stands for that of all namespaces too.
    pub matching: Option<String>,
    /// Only those with a higher revision.
    pub after: u64,
    /// Most entries, 1 to [`MAX_PAGE`].
    pub limit: u32,
}

/// Which changes are asked for. What is empty or missing does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Of what was said of whom.
    pub place: PlaceFilter,
    /// By whom.
    pub author: String,
    /// Only those before this number.
    pub before: Option<u64>,
    /// Most entries, 1 to [`MAX_PAGE`].
    pub limit: u32,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audited {
    /// Its number.
    pub id: u64,
    /// When, in milliseconds of Unix time.
    pub created_at: u64,
    /// Who.
    pub author: String,
    /// A rule did, not a person.
    pub automatic: bool,
    /// Through an aggregator of which region.
    pub region: String,
    /// What.
    pub action: Action,
    /// Whose limits.
    pub workspace: String,
    /// Of which namespace, or of which rule.
    pub scope: String,
    /// Empty if it is not about identifiers.
    pub identifier: String,
    /// Empty if it is not about addresses.
    pub network: String,
    /// 0 for all windows.
    pub window_ms: u64,
    /// In which slot.
    pub slot: Slot,
    /// Its revision.
    pub revision: u64,
    /// How it was, as JSON; empty if there was nothing.
    pub was: String,
    /// How it was afterwards, as JSON; empty if there was nothing.
    pub is_now: String,
    /// Why.
    pub reason: String,
}

impl Database {
    /// What `book` does not know; `None` if there is nothing. A database that is older than that begins another incarnation.
    pub async fn control_news(
        &self,
        book: &Book,
        now: UnixMs,
        within: Duration,
    ) -> Result<Option<News>, DatabaseError> {
        let reading = |found| book.reading(found);
        let work = Newer { reading: &reading, now };
        retry::until(Instant::now() + within, self.primary(), work).await
    }

    /// Controls that are in force, in the order of revisions.
    pub async fn controls(
        &self,
        filter: &ControlFilter,
        now: UnixMs,
        within: Duration,
    ) -> Result<Vec<StoredControl>, DatabaseError> {
        let work = List { filter, now };
        retry::until(Instant::now() + within, self.primary(), work).await
    }

    /// Changes, the newest first.
    pub async fn control_audit(
        &self,
        filter: &AuditFilter,
        within: Duration,
    ) -> Result<Vec<Audited>, DatabaseError> {
        retry::until(Instant::now() + within, self.primary(), Audit { filter }).await
    }
}

struct Newer<'a> {
    reading: &'a (dyn Fn(Edition) -> Reading + Sync),
    now: UnixMs,
}

impl Work for Newer<'_> {
    type Output = Option<News>;

    async fn run(&mut self, connection: &mut Connection) -> Result<Option<News>, DatabaseError> {
        let mut found = edition(connection, EDITION, self.now).await?;
        if let Reading::WentBack(_) = (self.reading)(found) {
            begin(connection, Begin::Write).await?;
            let result = self.renew(connection).await;
            found = end(connection, result).await?;
        }
        if (self.reading)(found) == Reading::Nothing {
            return Ok(None);
        }
        begin(connection, Begin::Snapshot).await?;
        let result = self.read(connection).await;
        end(connection, result).await
    }
}

impl Newer<'_> {
    /// Unless another was faster.
    async fn renew(&self, connection: &mut Connection) -> Result<Edition, DatabaseError> {
        let lock = connection.statements().control_edition_lock;
        let found = edition(connection, lock, self.now).await?;
        match (self.reading)(found) {
            Reading::WentBack(known) => renew(connection, found, known, self.now).await,
            _ => Ok(found),
        }
    }

    async fn read(&self, connection: &mut Connection) -> Result<Option<News>, DatabaseError> {
        let Some(edition) = super::find_edition(connection, EDITION).await? else { return Ok(None) };
        let since = match (self.reading)(edition) {
            Reading::Since(since) => since,
            Reading::All => 0,
            // It changed in between; the next reading sees to it.
            Reading::Nothing | Reading::WentBack(_) => return Ok(None),
        };
        let (mut entries, mut bad) = (Vec::new(), 0);
        connection
            .each(NEWER, &[Arg::Int(since)], |row| match read_row(row) {
                Some(stored) => entries.push(entry(stored)),
                None => bad += 1,
            })
            .await?;
        Ok(Some(News { edition, since, entries, bad }))
    }
}

struct List<'a> {
    filter: &'a ControlFilter,
    now: UnixMs,
}

impl Work for List<'_> {
    type Output = Vec<StoredControl>;

    async fn run(&mut self, connection: &mut Connection) -> Result<Vec<StoredControl>, DatabaseError> {
        let ControlFilter { place, slot, matching, after, limit } = self.filter;
        let slot = Arg::Int(slot.map_or(0, super::slot_number));
        let wide;
        // No statement knows which patterns meet an identifier.
        let (selected, rows) = match matching {
            None => (place, u64::from(*limit)),
            Some(_) => {
                wide = PlaceFilter { scope: String::new(), ..place.clone() };
                (&wide, u64::try_from(MAX_CONTROLS).unwrap_or(u64::MAX))
            }
        };
        let mut args = selected.args();
        args.extend([slot, slot, Arg::Int(*after), Arg::Int(self.now.0), Arg::Int(rows)]);
        let mut found: Vec<StoredControl> = Vec::new();
        connection.each(LIST, &args, |row| found.extend(read_row(row))).await?;
        if let Some(raw) = matching {
            let in_scope = |scope: &str| [place.scope.as_str(), ALL_NAMESPACES].contains(&scope);
            found.retain(|StoredControl { control: Control { target, .. }, .. }| {
                (place.scope.is_empty() || in_scope(&target.scope)) && target.meets(raw.as_bytes())
            });
            found.truncate(usize::try_from(*limit).unwrap_or(usize::MAX));
        }
        Ok(found)
    }
}

struct Audit<'a> {
    filter: &'a AuditFilter,
}

impl Work for Audit<'_> {
    type Output = Vec<Audited>;

    async fn run(&mut self, connection: &mut Connection) -> Result<Vec<Audited>, DatabaseError> {
        let AuditFilter { place, author, before, limit } = self.filter;
        let before = before.unwrap_or(u64::MAX).min(i64::MAX.cast_unsigned());
        let mut args = place.args();
        args.extend(twice([author]));
        args.extend([Arg::Int(before), Arg::Int((*limit).into())]);
        let mut found = Vec::new();
        connection.each(AUDIT, &args, |row| found.extend(read_audited(row))).await?;
        Ok(found)
    }
}

impl PlaceFilter {
    /// For [`in_place`].
    fn args(&self) -> Vec<Arg<'_>> {
        twice([&self.workspace, &self.scope, &self.identifier, &self.network])
    }
}

/// For conditions that ask of a text whether it is empty, and what equals it.
fn twice<const N: usize>(texts: [&String; N]) -> Vec<Arg<'_>> {
    texts.into_iter().flat_map(|text| [Arg::Bytes(text.as_bytes()); 2]).collect()
}

fn read_audited(row: &Row<'_>) -> Option<Audited> {
    let text = |column: usize| Some(String::from_utf8_lossy(row.bytes(column)?).into_owned());
    Some(Audited {
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

const EDITION: &str = "SELECT incarnation, revision, floor FROM weir_control_edition WHERE id = 1";
/// What is newer: revision.
const NEWER: &str = select!("WHERE revision > ? ORDER BY revision");

/// The condition of a [`PlaceFilter`].
macro_rules! in_place {
    () => {
        "WHERE (LENGTH(?) = 0 OR workspace = ?) AND (LENGTH(?) = 0 OR scope = ?)
           AND (LENGTH(?) = 0 OR identifier = ?) AND (LENGTH(?) = 0 OR network = ?) "
    };
}

/// What is in force: place, slot twice, revision, now, most rows.
const LIST: &str = concat!(
    select!(""),
    in_place!(),
    "AND (? = 0 OR slot = ?) AND revision > ? AND deleted = 0 AND (expires_at = 0 OR expires_at > ?)
     ORDER BY revision LIMIT ?"
);
/// Changes: place, author twice, number, most rows.
const AUDIT: &str = concat!(
    "SELECT id, created_at, author, automatic, region, action, workspace, scope, identifier, network, window_ms, slot,
            revision, was, is_now, reason
     FROM weir_control_audit ",
    in_place!(),
    "AND (LENGTH(?) = 0 OR author = ?) AND id < ? ORDER BY id DESC LIMIT ?"
);
