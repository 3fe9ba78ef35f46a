//! What the table says to people who look: each region's share of one key, and when each region wrote last.
//!
//! Bounded in rows, and read from the replica where there is one.
//!
//! Leaves to others: how often somebody may look (`admin`).

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
/// Rows that [`Database::regions`] looks at: those that live longest.
pub const REGION_ROWS: u64 = 5_000;

/// What a region has used of a cell, as it wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Which region.
    pub region: Vec<u8>,
    /// Which cell.
    pub sequence: u64,
    /// How much.
    pub count: u64,
    /// When it wrote that, by its own clock.
    pub updated: UnixMs,
}

/// A region that has written to the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrote {
    /// Which.
    pub region: Vec<u8>,
    /// When it wrote last, by its own clock; `None` if none of its rows was looked at.
    pub updated: Option<UnixMs>,
    /// Its rows among those that were looked at.
    pub rows: u64,
}

impl Database {
    /// Every region's share of a key's cells from `oldest` on, this one's too.
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

    /// Every region that has written, in order of their names.
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
    /// `None` of what Weir does not write.
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
