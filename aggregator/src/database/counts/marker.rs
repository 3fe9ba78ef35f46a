//! A row that tells whether the table was wiped.
//!
//! A wipe breaks no connection, so nothing else would show it. Each region has one row, under a key that no cell has,
//! with a random number for its count. A changed number says that all others are gone: whoever looks next makes a new
//! row, and every other aggregator of the region sees another number than it knows. It expires at 0, so neither imports
//! nor the cleanup touch it.
//!
//! Leaves to others: remembering the number, and writing everything again (`weir_core::region`).

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

/// Reads the number, or leaves a fresh one.
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
        // Another aggregator may be faster; then its number is read.
        let statement = connection.statements().marker_make;
        connection.execute(statement, &[Arg::Bytes(self.region), Arg::Int(self.fresh)]).await?;
        let made = read(connection, self.region).await?;
        made.ok_or_else(|| DatabaseError::new(Reason::Other, "the marker row was deleted as it was made"))
    }
}

async fn read(connection: &mut Connection, region: &[u8]) -> Result<Option<u64>, DatabaseError> {
    let mut number = None;
    let statement = connection.statements().marker_read;
    connection.each(statement, &[Arg::Bytes(region)], |row| number = row.number(0)).await?;
    Ok(number)
}
