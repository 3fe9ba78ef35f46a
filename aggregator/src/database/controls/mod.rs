//! Live control as stored in the database: targets, effects, authors, the order of changes, and the audit.
//!
//! One row, the edition, holds the database's random *incarnation*, the last revision, the highest dropped revision
//! (the *floor*), and a digest of the rows that the changes have left. Every change locks this row first, so a reader of
//! a revision finds all earlier changes. What a change makes of the stored control is decided in core
//! (`weir_core::control::change`). In reading order: this file (the stored form), `apply` (one transaction for a group
//! of changes), `read` (newer controls, lists, the audit), `tidy` (deletion of expired controls).

mod apply;
mod read;
mod tidy;

pub use read::{NEWS_ROWS, NewsPage};
pub use tidy::Tidied;

use super::connection::{Arg, Connection, Row};
use super::{DatabaseError, Reason};
use weir_core::control::book::{self, Edition, EditionSeed, Entry, MAX_STAMP, first_revision};
use weir_core::control::change::StoredControl;
use weir_core::control::{Control, Selector, Slot, Target};
use weir_core::model::time::UnixMs;
use weir_core::model::wire;

/// The column of the revision.
const REVISION: usize = 9;

/// Target and slot in the form of columns.
struct Place {
    network: String,
    window_ms: u64,
    slot: u64,
}

impl Place {
    fn of(target: &Target, slot: Slot) -> Place {
        let network = match &target.selector {
            Selector::Network(network) => network.to_string(),
            Selector::Identifier(_) | Selector::Rule => String::new(),
        };
        Place { network, window_ms: target.window_ms.unwrap_or(0), slot: slot_number(slot) }
    }

    fn args<'a>(&'a self, target: &'a Target) -> [Arg<'a>; 6] {
        let identifier = match &target.selector {
            Selector::Identifier(text) => text.as_bytes(),
            Selector::Network(_) | Selector::Rule => b"",
        };
        [
            Arg::Bytes(target.workspace.as_bytes()),
            Arg::Bytes(target.scope.as_bytes()),
            Arg::Bytes(identifier),
            Arg::Bytes(self.network.as_bytes()),
            Arg::Int(self.window_ms),
            Arg::Int(self.slot),
        ]
    }
}

fn slot_number(slot: Slot) -> u64 {
    match slot {
        Slot::Override => 1,
        Slot::Credit => 2,
        Slot::Reset => 3,
        Slot::Shadow => 4,
    }
}

fn slot_of(number: u64) -> Option<Slot> {
    Slot::WORDS.into_iter().map(|(_, slot)| slot).find(|slot| slot_number(*slot) == number)
}

/// Reads a selected row; `None` if it is not a control that Weir wrote.
fn read_row(row: &Row<'_>) -> Option<StoredControl> {
    let text = |column: usize| String::from_utf8(row.bytes(column)?.to_vec()).ok();
    let from = wire::Control {
        workspace: text(0)?,
        scope: text(1)?,
        identifier: text(2)?,
        network: text(3)?,
        window_ms: row.number(4)?,
        kind: row.number(5)?.try_into().ok()?,
        amount: row.number(6)?,
        expires_ms: row.number(7)?,
        deleted: row.number(8)? != 0,
        revision: row.number(REVISION)?,
    };
    Some(StoredControl {
        control: Control::from_wire(&from).ok()?,
        is_deleted: from.deleted,
        reason: text(10)?,
        author: text(11)?,
        automatic: row.number(12)? != 0,
        created_at: row.number(13)?,
        updated_at: row.number(14)?,
        stamp: row.number(15)?,
    })
}

fn entry(stored: StoredControl) -> Entry {
    Entry { control: stored.control, is_deleted: stored.is_deleted, stamp: stored.stamp }
}

/// Reads the edition. Inserts one if there is none, as in a new or wiped database.
async fn edition(
    connection: &mut Connection,
    statement: &'static str,
    now: UnixMs,
) -> Result<Edition, DatabaseError> {
    if let Some(edition) = find_edition(connection, statement).await? {
        return Ok(edition);
    }
    // Another aggregator may insert first; then its edition is read.
    let make = connection.statements().control_edition_make;
    let args = [Arg::Int(random_incarnation()), Arg::Int(first_revision(now)), Arg::Int(random_stamp())];
    connection.execute(make, &args).await?;
    let made = find_edition(connection, statement).await?;
    made.ok_or_else(|| {
        DatabaseError::new(
            Reason::Other,
            "the edition of live control was deleted right after it was created",
        )
    })
}

async fn find_edition(
    connection: &mut Connection,
    statement: &'static str,
) -> Result<Option<Edition>, DatabaseError> {
    let mut found = None;
    connection
        .each(statement, &[], &mut |row| {
            let read = || {
                Some(Edition {
                    incarnation: row.number(0)?,
                    revision: row.number(1)?,
                    stamp: row.number(2)?,
                    floor: row.number(3)?,
                    dropped_before: UnixMs(row.number(4)?),
                })
            };
            found = found.or(read());
        })
        .await?;
    Ok(found)
}

/// Gives a database that was set back a new incarnation, with revisions that were never used.
async fn renew(
    connection: &mut Connection,
    found: Edition,
    known: u64,
    now: UnixMs,
) -> Result<Edition, DatabaseError> {
    let drawn = EditionSeed { incarnation: random_incarnation(), stamp: random_stamp() };
    let renewed = book::renewed(found, known, drawn, now);
    let Edition { incarnation, revision, stamp, .. } = renewed;
    let statement = connection.statements().controls.renew;
    connection.execute(statement, &[incarnation, revision, stamp].map(Arg::Int)).await?;
    Ok(renewed)
}

fn random_incarnation() -> u64 {
    // The incarnation keys the proofs of the filters, so it has as many random bits as every database's column holds.
    rand::random_range(1..=i64::MAX.cast_unsigned())
}

fn random_stamp() -> u64 {
    rand::random_range(1..=MAX_STAMP)
}

/// A statement that subtracts rows from the edition's digest; it precedes the one that deletes them.
fn subtracted(condition: &str) -> String {
    format!(
        "UPDATE weir_control_edition
         SET controls = controls - (SELECT COUNT(*) FROM weir_controls WHERE {condition}),
             stamps = stamps - (SELECT COALESCE(SUM(stamp), 0) FROM weir_controls WHERE {condition})
         WHERE id = 1"
    )
}

/// The kind of a transaction.
#[derive(Clone, Copy)]
enum Begin {
    /// A transaction that writes.
    Write,
    /// A read transaction with one consistent snapshot.
    Snapshot,
}

/// Begins a transaction; see [`end`].
async fn begin(connection: &mut Connection, begin: Begin) -> Result<(), DatabaseError> {
    // MySQL cannot prepare these statements.
    let statements = connection.statements();
    let begin = match begin {
        Begin::Write => statements.begin_write,
        Begin::Snapshot => statements.begin_snapshot,
    };
    connection.execute_text(begin.to_owned()).await.map(drop)
}

/// Commits the transaction, or rolls it back if `result` is an error.
async fn end<T>(connection: &mut Connection, result: Result<T, DatabaseError>) -> Result<T, DatabaseError> {
    let statements = connection.statements();
    let statement = if result.is_ok() { statements.commit } else { statements.rollback };
    match (connection.execute_text(statement.to_owned()).await, result) {
        (Ok(_), result) => result,
        // If the transaction could not be ended, its connection must not return to the pool.
        (Err(_), Err(error)) if !error.spares_connection() => Err(error),
        (Err(error), Ok(_)) if error.kind() == Reason::Unavailable => Err(error),
        (Err(error), _) => Err(DatabaseError::new(Reason::Other, error)),
    }
}
