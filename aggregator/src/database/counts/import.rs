//! Imports the other regions' counts, summed by the database, and reads this region's own published counts.
//!
//! The table may contain anything. A row that is not a cell is counted and skipped, and does not affect other rows.

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

/// Most cells in one import.
pub const MAX_IMPORT_CELLS: u64 = 1_000_000;

/// The result of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// The cells, each once.
    pub cells: Vec<Stored>,
    /// Number of rows that were skipped because Weir does not write such rows.
    pub bad: u64,
    /// A description of one skipped row.
    pub bad_example: Option<String>,
    /// The table had more than [`MAX_IMPORT_CELLS`] cells.
    pub truncated: bool,
}

impl Database {
    /// For each cell that has not expired, the sum of all other regions.
    pub async fn import(&self, now: UnixMs, within: Duration) -> Result<Imported, DatabaseError> {
        let pool = self.replica();
        self.read(pool, pool.statements().import, now, within).await
    }

    /// For each cell that has not expired, the count that this region published.
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
            // The row has only implausible counts.
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

/// Identifies a row for operators without exposing the limited identifier.
fn place(row: &Row<'_>) -> String {
    const SHOWN_BYTES: usize = 64;
    let text = |column| {
        let bytes = row.bytes(column).unwrap_or_default();
        bytes.get(..SHOWN_BYTES).unwrap_or(bytes).escape_ascii().to_string()
    };
    format!("a row of workspace \"{}\", namespace \"{}\"", text(0), text(1))
}
