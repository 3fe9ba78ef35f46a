//! Reads the counts that the other regions have published, and those of this region.
//!
//! The table may contain anything. A row that is not a cell is counted and skipped, and does not affect other rows.

use super::rows;
use crate::database::connection::pool::Pool;
use crate::database::connection::retry::{self, Work};
use crate::database::connection::{Arg, Connection, Row};
use crate::database::{COUNTS, Database, DatabaseError};
use crate::telemetry::spans;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;
use weir_core::model::time::UnixMs;
use weir_core::region::exchange::{Stored, StoredRegion};

/// Most rows in one import.
pub const MAX_IMPORT_ROWS: u64 = 1_000_000;

/// The result of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// The regions, each with its cells.
    pub regions: Vec<StoredRegion>,
    /// Number of rows that were skipped because Weir does not write such rows.
    pub bad: u64,
    /// A description of one skipped row.
    pub bad_example: Option<String>,
    /// The table had more than [`MAX_IMPORT_ROWS`] rows.
    pub truncated: bool,
}

impl Database {
    /// For each cell that has not expired, the count of each other region.
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
        let args = [Arg::Int(now.0), Arg::Bytes(self.region_bytes()), Arg::Int(MAX_IMPORT_ROWS + 1)];
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
        let mut rows = Rows::default();
        connection.each(self.statement, &self.args, |row| rows.take(row)).await?;
        let stored = |(region, cells)| StoredRegion { region, cells };
        Ok(Imported { regions: rows.regions.into_iter().map(stored).collect(), ..rows.imported })
    }
}

impl Imported {
    /// Number of cells of all regions.
    pub fn cells(&self) -> usize {
        self.regions.iter().map(|region| region.cells.len()).sum()
    }
}

/// The rows read so far.
#[derive(Default)]
struct Rows {
    imported: Imported,
    regions: BTreeMap<Vec<u8>, Vec<Stored>>,
    taken: u64,
}

impl Rows {
    fn take(&mut self, row: &Row<'_>) {
        if self.taken >= MAX_IMPORT_ROWS {
            self.imported.truncated = true;
            return;
        }
        self.taken += 1;
        match rows::read_row(row) {
            Ok((region, cell)) => match self.regions.get_mut(region) {
                Some(cells) => cells.push(cell),
                None => drop(self.regions.insert(region.to_vec(), vec![cell])),
            },
            Err(reason) => {
                self.imported.bad += 1;
                self.imported.bad_example.get_or_insert_with(|| format!("{}: {reason}", place(row)));
            }
        }
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
