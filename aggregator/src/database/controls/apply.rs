//! Applies changes of live control, each group in one transaction together with its audit entries.
//!
//! The transaction locks the edition's row first, so changes are applied one transaction after another. The number of
//! queries does not depend on the number of changes: one reads the stored controls, one counts those in force, and one
//! batch writes the results, which core's [`Draft`] computes.

use super::{Begin, Place, begin, edition, end, random_stamp, read_row, renew, subtracted, tidy};
use crate::controls::{Action, described};
use crate::database::connection::retry::{self, Work};
use crate::database::connection::{Arg, Connection};
use crate::database::dialect::{ControlStatements, push_args, push_statement};
use crate::database::{Database, DatabaseError};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;
use tokio::time::Instant;
use weir_core::control::book::{Book, MAX_KEPT, Reading};
use weir_core::control::change::{Change, ChangeOutcome, Draft, InForce, Made, Room, StoredControl, Wish};
use weir_core::control::{Slot, Target};
use weir_core::model::time::UnixMs;

impl Database {
    /// Applies these changes in one transaction, or none of them, and returns the result of each. `book` is the newest
    /// edition that the caller has read. If the database is older (it was set back), the call begins a new incarnation
    /// first.
    pub async fn change_controls(
        &self,
        changes: &[Change],
        book: &Book,
        now: UnixMs,
        within: Duration,
    ) -> Result<Vec<ChangeOutcome>, DatabaseError> {
        let work = Apply { changes, region: self.region_bytes(), book, now };
        retry::until(Instant::now() + within, self.primary(), work).await
    }
}

struct Apply<'a> {
    changes: &'a [Change],
    region: &'a [u8],
    book: &'a Book,
    now: UnixMs,
}

impl Work for Apply<'_> {
    type Output = Vec<ChangeOutcome>;

    async fn run(&mut self, connection: &mut Connection) -> Result<Vec<ChangeOutcome>, DatabaseError> {
        if self.changes.is_empty() {
            return Ok(Vec::new());
        }
        begin(connection, Begin::Write).await?;
        let result = self.apply(connection).await;
        end(connection, result).await
    }
}

impl Apply<'_> {
    async fn apply(&self, connection: &mut Connection) -> Result<Vec<ChangeOutcome>, DatabaseError> {
        let lock = connection.statements().control_edition_lock;
        let found = edition(connection, lock, self.now).await?;
        let edition = match self.book.reading(found) {
            Reading::WentBack(known) => renew(connection, found, known, self.now).await?,
            _ => found,
        };
        let (mut draft, kept) = self.draft(connection, edition.revision).await?;
        let changed = self.changes.iter().map(|change| draft.take(change, random_stamp())).collect();
        if draft.made().is_empty() {
            return Ok(changed);
        }
        if kept.saturating_add(draft.made().len()) > MAX_KEPT {
            tidy::drop_over(connection, self.now, (MAX_KEPT / 4) as u64).await?;
        }
        let text = text(&draft, connection.statements().controls, self.region, self.now);
        connection.execute_text(text).await?;
        Ok(changed)
    }

    /// The draft of these changes, and the number of all stored controls.
    async fn draft(
        &self,
        connection: &mut Connection,
        revision: u64,
    ) -> Result<(Draft<'_>, usize), DatabaseError> {
        let mut stored = BTreeMap::new();
        let placed = |found: StoredControl| (found.place(), found);
        let find = self.find(connection.statements().controls);
        connection.each_text(find, &mut |row| stored.extend(read_row(row).map(placed))).await?;
        // Deletions need no room.
        let (room, kept) = match self.changes.iter().any(|change| matches!(change.wish, Wish::Set(..))) {
            true => count(connection, self.now).await?,
            false => (Room::default(), 0),
        };
        Ok((Draft::new(self.book, stored, room, revision, self.now), kept))
    }

    /// The query for the controls stored where a change applies.
    fn find(&self, statements: &ControlStatements) -> String {
        let places = self.changes.iter().map(|change| (&change.target, change.slot()));
        let mut sql = statements.find.to_owned();
        push_places(places, &mut sql);
        sql
    }
}

/// All writes as statements that are sent at once. The old row of a place is deleted before the new one is
/// inserted: the databases spell "insert or replace" differently, and MySQL's form would also replace a row with
/// the same revision.
fn text(draft: &Draft<'_>, statements: &ControlStatements, region: &[u8], now: UnixMs) -> String {
    let made = draft.made();
    let mut last: BTreeMap<_, &StoredControl> = BTreeMap::new();
    last.extend(made.iter().map(|made| (made.stored.place(), &made.stored)));
    let mut old = String::new();
    push_places(last.keys().map(|(target, slot)| (target, *slot)), &mut old);
    let mut sql = subtracted(&old);
    sql.push_str("; ");
    sql.push_str(statements.delete);
    sql.push_str(&old);
    sql.push_str(statements.insert);
    push_rows(last.values(), &mut sql, |stored, sql| push_control(stored, sql));
    sql.push_str(statements.record);
    push_rows(made, &mut sql, |made, sql| push_record(made, region, now, sql));
    let stamp = made.last().map_or(0, |made| made.stored.stamp);
    let stamps: u64 = last.values().map(|stored| stored.stamp).sum();
    let edition = [draft.revision(), stamp, last.len() as u64, stamps].map(Arg::Int);
    push_statement(statements.advance, &edition, &mut sql);
    sql
}

/// The numbers of stored controls: those in force by workspace, and all of them, deleted and expired ones included.
async fn count(connection: &mut Connection, now: UnixMs) -> Result<(Room, usize), DatabaseError> {
    let now = Arg::Int(now.0);
    let (mut room, mut kept) = (Room::default(), 0);
    connection
        .each(connection.statements().controls.count, &[now, now], &mut |row| {
            let number =
                |column| usize::try_from(row.number(column).unwrap_or_default()).unwrap_or(usize::MAX);
            kept += number(1);
            let found = InForce { controls: number(2), by_rules: number(3) };
            room.add(row.bytes(0).unwrap_or_default(), found);
        })
        .await?;
    Ok((room, kept))
}

/// Appends a condition that matches these places. In this form, all three databases look up each place by the primary key.
fn push_places<'a>(places: impl Iterator<Item = (&'a Target, Slot)>, sql: &mut String) {
    for (number, (target, slot)) in places.enumerate() {
        let place = Place::of(target, slot);
        sql.push_str(if number > 0 { " OR (" } else { "(" });
        for (number, (column, arg)) in PLACE.iter().zip(place.args(target)).enumerate() {
            let and = if number > 0 { " AND " } else { "" };
            // Writing to a `String` cannot fail.
            let _ = write!(sql, "{and}{column} = ");
            push_args(&[arg], sql);
        }
        sql.push(')');
    }
}

/// Appends rows of values, separated by commas.
fn push_rows<T>(rows: impl IntoIterator<Item = T>, sql: &mut String, mut push: impl FnMut(T, &mut String)) {
    for (number, row) in rows.into_iter().enumerate() {
        sql.push_str(if number > 0 { ", (" } else { "(" });
        push(row, sql);
        sql.push(')');
    }
}

/// The values of [`ControlStatements::insert`].
fn push_control(stored: &StoredControl, sql: &mut String) {
    let StoredControl { control, is_deleted, reason, author, automatic, created_at, updated_at, stamp } =
        stored;
    let wire = control.to_wire();
    push_args(&Place::of(&control.target, control.effect.slot()).args(&control.target), sql);
    sql.push(',');
    let values = [
        Arg::Int(wire.kind.into()),
        Arg::Int(wire.amount),
        Arg::Int(wire.expires_ms),
        Arg::Bytes(reason.as_bytes()),
        Arg::Bytes(author.as_bytes()),
        Arg::Int((*automatic).into()),
        Arg::Int((*is_deleted).into()),
        Arg::Int(control.revision),
        Arg::Int(*created_at),
        Arg::Int(*updated_at),
        Arg::Int(*stamp),
    ];
    push_args(&values, sql);
}

/// The values of [`ControlStatements::record`].
fn push_record(Made { stored, before }: &Made, region: &[u8], now: UnixMs, sql: &mut String) {
    let action = if stored.is_deleted { Action::Deleted } else { Action::Set };
    let was = before.as_ref().map(described).unwrap_or_default();
    let is_now = Some(stored).filter(|stored| !stored.is_deleted).map(described).unwrap_or_default();
    let target = &stored.control.target;
    let place = Place::of(target, stored.control.effect.slot());
    let [workspace, scope, identifier, network, window, slot] = place.args(target);
    let args = [
        Arg::Int(now.0),
        Arg::Bytes(stored.author.as_bytes()),
        Arg::Int(stored.automatic.into()),
        Arg::Bytes(region),
        Arg::Int(action.number()),
        workspace,
        scope,
        identifier,
        network,
        window,
        slot,
        Arg::Int(stored.control.revision),
        Arg::Bytes(was.as_bytes()),
        Arg::Bytes(is_now.as_bytes()),
        Arg::Bytes(stored.reason.as_bytes()),
    ];
    push_args(&args, sql);
}

/// The columns of a place, in the order of [`Place::args`].
const PLACE: [&str; 6] = ["workspace", "scope", "identifier", "network", "window_ms", "slot"];
