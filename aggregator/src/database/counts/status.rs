//! A query for operators: the last write of each region.
//!
//! The number of rows is bounded. The query reads the replica if there is one.

use crate::database::connection::retry::{self, Work};
use crate::database::connection::{Arg, Connection, Row};
use crate::database::{Database, DatabaseError};
use std::time::Duration;
use tokio::time::Instant;
use weir_core::model::time::UnixMs;

/// Rows that [`Database::regions`] reads: those that expire last.
pub const REGION_ROWS: u64 = 5_000;

/// A region with rows or markers in the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrote {
    /// The region.
    pub region: Vec<u8>,
    /// The time of its last write, by its own clock; `None` if neither a row nor a marker with a time was read.
    pub updated: Option<UnixMs>,
    /// The number of its rows among those read.
    pub rows: u64,
}

impl Database {
    /// Every region with rows or markers, ordered by name.
    pub async fn regions(&self, now: UnixMs, within: Duration) -> Result<Vec<Wrote>, DatabaseError> {
        let pool = self.replica();
        let args = [Arg::Int(now.0), Arg::Int(REGION_ROWS)];
        let read = ReadRegions { statement: pool.statements().regions, args: &args };
        retry::until(Instant::now() + within, pool, read).await
    }
}

struct ReadRegions<'a> {
    statement: &'static str,
    args: &'a [Arg<'a>],
}

impl Work for ReadRegions<'_> {
    type Output = Vec<Wrote>;

    async fn run(&mut self, connection: &mut Connection) -> Result<Vec<Wrote>, DatabaseError> {
        let mut found = Vec::new();
        connection.each(self.statement, self.args, |row| found.extend(wrote(row))).await?;
        Ok(found)
    }
}

/// Reads a row; `None` if Weir does not write such rows.
fn wrote(row: &Row<'_>) -> Option<Wrote> {
    let rows = row.number(2)?;
    let updated = row.number(1).filter(|updated| *updated > 0).map(UnixMs);
    Some(Wrote { region: row.bytes(0)?.to_vec(), updated, rows })
}
