//! Reads all counts at once: those of the other regions, or those of this region.
//!
//! The markers of writers are no cells and are not read.

use super::rows::{self, Cells};
use crate::database::connection::pool::Pool;
use crate::database::connection::retry::{self, Work};
use crate::database::connection::{Arg, Connection, Row};
use crate::database::{COUNTS, Database, DatabaseError};
use crate::telemetry::spans;
use std::time::Duration;
use tokio::time::Instant;
use weir_core::model::time::UnixMs;
use weir_core::region::exchange::StoredRegion;

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

    /// For each cell that has not expired, the count of this region.
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
        let Rows { cells: Cells { regions, bad, bad_example }, truncated, .. } = rows;
        Ok(Imported { regions: rows::by_region(regions), bad, bad_example, truncated })
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
    cells: Cells,
    taken: u64,
    truncated: bool,
}

impl Rows {
    fn take(&mut self, row: &Row<'_>) {
        if self.taken >= MAX_IMPORT_ROWS {
            self.truncated = true;
            return;
        }
        self.taken += 1;
        self.cells.take(row);
    }
}
