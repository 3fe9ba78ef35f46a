//! What others used, summed by the database; and what this region itself had published.
//!
//! Anything may stand in a table. A row that is no cell is counted and left out, and spoils nothing else.
//!
//! Leaves to others: what a region does with it (`weir_core::region`).

use super::rows;
use crate::database::connection::pool::Pool;
use crate::database::connection::retry::{self, Work};
use crate::database::connection::{Arg, Connection, Row};
use crate::database::{COUNTS, Database, DatabaseError};
use crate::telemetry::spans;
use std::time::Duration;
use tokio::time::Instant;
use weir_core::model::time::UnixMs;
use weir_core::region::exchange::Stored;

/// Most cells that one import takes.
pub const MAX_IMPORT_CELLS: u64 = 1_000_000;

/// What an import brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// The cells, each once.
    pub cells: Vec<Stored>,
    /// Rows that were left out, as they are none that Weir writes.
    pub bad: u64,
    /// What is wrong with one of them.
    pub bad_example: Option<String>,
    /// There were more than [`MAX_IMPORT_CELLS`].
    pub truncated: bool,
}

impl Database {
    /// For each cell that is not over, the sum of all other regions.
    pub async fn import(&self, now: UnixMs, within: Duration) -> Result<Imported, DatabaseError> {
        let pool = self.replica();
        self.read(pool, pool.statements().import, now, within).await
    }

    /// For each cell that is not over, what this region had published.
    pub async fn own(&self, now: UnixMs, within: Duration) -> Result<Imported, DatabaseError> {
        let pool = self.primary();
        self.read(pool, pool.statements().own, now, within).await
    }

    async fn read(
        &self,
        pool: &Pool,
        statement: &'static str,
        now: UnixMs,
        within: Duration,
    ) -> Result<Imported, DatabaseError> {
        let args = [Arg::Int(now.0), Arg::Bytes(self.region_bytes()), Arg::Int(MAX_IMPORT_CELLS + 1)];
        let call = spans::statement(pool.statements().system, "SELECT", COUNTS, 1);
        let result = retry::until(Instant::now() + within, pool, Read { statement, args }).await;
        spans::failed(call, result.as_ref().err().map(DatabaseError::reason));
        result
    }
}

struct Read<'a> {
    statement: &'static str,
    args: [Arg<'a>; 3],
}

impl Work for Read<'_> {
    type Output = Imported;

    async fn run(&mut self, connection: &mut Connection) -> Result<Imported, DatabaseError> {
        let mut imported = Imported::default();
        connection.each(self.statement, &self.args, |row| imported.take(row)).await?;
        Ok(imported)
    }
}

impl Imported {
    fn take(&mut self, row: &Row<'_>) {
        let implausible = row.number(6).unwrap_or_default();
        if implausible > 0 {
            self.note(implausible, "its count is above 2^53");
        }
        if self.cells.len() as u64 >= MAX_IMPORT_CELLS {
            self.truncated = true;
            return;
        }
        match rows::read_row(row) {
            // Nothing but implausible counts.
            Ok(cell) if implausible > 0 && cell.count == 0 => {}
            Ok(cell) => self.cells.push(cell),
            Err(reason) => self.note(1, &format!("{}: {reason}", place(row))),
        }
    }

    fn note(&mut self, rows: u64, reason: &str) {
        self.bad = self.bad.saturating_add(rows);
        self.bad_example.get_or_insert_with(|| reason.to_owned());
    }
}

/// Where to look for a row, without telling who was limited.
fn place(row: &Row<'_>) -> String {
    const SHOWN_BYTES: usize = 64;
    let text = |column| {
        let bytes = row.bytes(column).unwrap_or_default();
        bytes.get(..SHOWN_BYTES).unwrap_or(bytes).escape_ascii().to_string()
    };
    format!("a row of workspace \"{}\", namespace \"{}\"", text(0), text(1))
}
