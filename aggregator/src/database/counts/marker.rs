//! The marker: a row that shows whether the table of counts was wiped.
//!
//! A wipe breaks no connection, so nothing else shows it. Each region has one marker row, under a key that no cell has,
//! with a random incarnation as its count. If the row is missing, the next reader inserts a new one. Every other
//! aggregator of the region then reads a different incarnation and writes its counts again. The row expires at 0, so
//! imports and the cleanup ignore it.

use crate::database::connection::retry::{self, Work};
use crate::database::connection::{Arg, Connection};
use crate::database::{Database, DatabaseError, Reason};
use std::time::Duration;
use tokio::time::Instant;
use weir_core::model::window::MAX_COUNT;

impl Database {
    /// A number that stays the same until the table is wiped.
    pub async fn incarnation(&self, within: Duration) -> Result<u64, DatabaseError> {
        let fresh = rand::random_range(1..=MAX_COUNT);
        let look = ReadOrMake { region: self.region_bytes(), fresh };
        retry::until(Instant::now() + within, self.primary(), look).await
    }
}

/// Reads the incarnation, or inserts a new one.
struct ReadOrMake<'a> {
    region: &'a [u8],
    fresh: u64,
}

impl Work for ReadOrMake<'_> {
    type Output = u64;

    async fn run(&mut self, connection: &mut Connection) -> Result<u64, DatabaseError> {
        if let Some(number) = read(connection, self.region).await? {
            return Ok(number);
        }
        // Another aggregator may insert first; then its incarnation is read.
        let statement = connection.statements().marker_make;
        connection.execute(statement, &[Arg::Bytes(self.region), Arg::Int(self.fresh)]).await?;
        let made = read(connection, self.region).await?;
        made.ok_or_else(|| {
            DatabaseError::new(Reason::Other, "the marker row was deleted right after it was created")
        })
    }
}

async fn read(connection: &mut Connection, region: &[u8]) -> Result<Option<u64>, DatabaseError> {
    let mut number = None;
    let statement = connection.statements().marker_read;
    connection.each(statement, &[Arg::Bytes(region)], |row| number = row.number(0)).await?;
    Ok(number)
}
