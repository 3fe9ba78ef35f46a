//! Queries for operators: each region's component of one key, and the last write of each region.
//!
//! The number of rows is bounded. The queries read the replica if there is one.

use super::rows::encode_identifier;
use crate::database::connection::retry::{self, Work};
use crate::database::connection::{Arg, Connection, Row};
use crate::database::{Database, DatabaseError};
use std::time::Duration;
use tokio::time::Instant;
use weir_core::model::key::KeyParts;
use weir_core::model::time::UnixMs;
use weir_core::model::window::MAX_COUNT;

/// Most rows of one key.
const MAX_SHARES: u64 = 256;
/// Rows that [`Database::regions`] reads: those that expire last.
pub const REGION_ROWS: u64 = 5_000;

/// A region's component of a cell, as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The region.
    pub region: Vec<u8>,
    /// The number of the cell.
    pub sequence: u64,
    /// The count.
    pub count: u64,
    /// The time of the last change, by the region's clock.
    pub updated: UnixMs,
}

/// A region with rows in the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrote {
    /// The region.
    pub region: Vec<u8>,
    /// The time of its last write, by its own clock; `None` if none of its rows was read.
    pub updated: Option<UnixMs>,
    /// The number of its rows among those read.
    pub rows: u64,
}

impl Database {
    /// Every region's component of a key's cells from `oldest` on, including this region's.
    pub async fn shares(
        &self,
        key: &KeyParts<'_>,
        oldest: u64,
        within: Duration,
    ) -> Result<Vec<Share>, DatabaseError> {
        let pool = self.replica();
        let identifier = encode_identifier(key);
        let args = [
            Arg::Bytes(key.workspace),
            Arg::Bytes(key.namespace),
            Arg::Bytes(&identifier),
            Arg::Int(key.duration_ms),
            Arg::Int(oldest.min(i64::MAX.unsigned_abs())),
            Arg::Int(MAX_SHARES),
        ];
        let read = Read { statement: pool.statements().shares, args: &args, row: share };
        retry::until(Instant::now() + within, pool, read).await
    }

    /// Every region with rows, ordered by name.
    pub async fn regions(&self, now: UnixMs, within: Duration) -> Result<Vec<Wrote>, DatabaseError> {
        let pool = self.replica();
        let args = [Arg::Int(now.0), Arg::Int(REGION_ROWS)];
        let read = Read { statement: pool.statements().regions, args: &args, row: wrote };
        retry::until(Instant::now() + within, pool, read).await
    }
}

struct Read<'a, T> {
    statement: &'static str,
    args: &'a [Arg<'a>],
    /// Reads a row; `None` if Weir does not write such rows.
    row: fn(&Row<'_>) -> Option<T>,
}

impl<T: Send> Work for Read<'_, T> {
    type Output = Vec<T>;

    async fn run(&mut self, connection: &mut Connection) -> Result<Vec<T>, DatabaseError> {
        let mut found = Vec::new();
        connection.each(self.statement, self.args, |row| found.extend((self.row)(row))).await?;
        Ok(found)
    }
}

fn share(row: &Row<'_>) -> Option<Share> {
    Some(Share {
        region: row.bytes(0)?.to_vec(),
        sequence: row.number(1)?,
        count: row.number(2)?.min(MAX_COUNT),
        updated: UnixMs(row.number(3)?),
    })
}

fn wrote(row: &Row<'_>) -> Option<Wrote> {
    let rows = row.number(2)?;
    let updated = (rows > 0).then(|| row.number(1)).flatten().map(UnixMs);
    Some(Wrote { region: row.bytes(0)?.to_vec(), updated, rows })
}
