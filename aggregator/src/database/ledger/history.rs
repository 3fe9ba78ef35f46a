//! The recorded attempts of the ledger, and what a bucket has used, for operators.

use super::storable;
use crate::database::connection::retry::{self, Rows, Work};
use crate::database::connection::{Arg, Connection, Row};
use crate::database::{Database, DatabaseError};
use std::time::Duration;
use tokio::time::Instant;

/// Most transactions in one answer.
pub const MAX_HISTORY_ROWS: u32 = 1_000;

/// A recorded attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// The number of the transaction.
    pub id: u64,
    /// The zone.
    pub zone: u32,
    /// The bucket.
    pub bucket: Vec<u8>,
    /// The outcome.
    pub outcome: Outcome,
    /// The cost that was used, or was requested if the attempt was not allowed.
    pub cost: u64,
    /// The region of the aggregator that made the attempt; empty if it was made by hand.
    pub region: Vec<u8>,
    /// The time, in microseconds since the Unix epoch, by the database's clock.
    pub created_at_us: u64,
}

/// The outcome of an attempt: the column `blocked`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// 0: allowed; counts while it is in the window.
    Allowed,
    /// 1: blocked by its zone.
    Blocked,
    /// 2: allowed, then refunded because another limit denied the request.
    Refunded,
}

/// Most attempts that are summed for one bucket; more use is not seen.
const MAX_SUMMED: u64 = 100_000;

/// The use of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketUse {
    /// The zone's rate.
    pub rate: u64,
    /// The zone's window in milliseconds.
    pub window_ms: u64,
    /// The sum of all costs that count.
    pub used: u64,
    /// Milliseconds until the oldest counted attempt leaves the window; 0 if nothing counts.
    pub reset_ms: u64,
}

impl Database {
    /// What a bucket has used in its zone's window, without an attempt. Returns `None` if the zone does not exist.
    pub async fn bucket_use(
        &self,
        zone: u32,
        bucket: &[u8],
        within: Duration,
    ) -> Result<Option<BucketUse>, DatabaseError> {
        retry::until(Instant::now() + within, self.primary(), Sum { zone, bucket }).await
    }

    /// One transaction; `None` if there is none with this number.
    pub async fn transaction(&self, id: u64, within: Duration) -> Result<Option<Transaction>, DatabaseError> {
        let Some(id) = storable(id) else { return Ok(None) };
        let statement = self.primary().statements().transaction;
        let found = self.read_transactions(statement, &[Arg::Int(id)], within).await?;
        Ok(found.into_iter().next())
    }

    /// A bucket's transactions, newest first. If `before` is given, all have a lower number, so the last transaction of
    /// one page leads to the next page. Returns at most `limit` transactions, and never more than [`MAX_HISTORY_ROWS`].
    pub async fn transactions(
        &self,
        zone: u32,
        bucket: &[u8],
        before: Option<u64>,
        limit: u32,
        within: Duration,
    ) -> Result<Vec<Transaction>, DatabaseError> {
        let before = before.and_then(storable).unwrap_or(i64::MAX.unsigned_abs());
        let limit = limit.min(MAX_HISTORY_ROWS);
        let args = [Arg::Int(zone.into()), Arg::Bytes(bucket), Arg::Int(before), Arg::Int(limit.into())];
        self.read_transactions(self.primary().statements().transactions, &args, within).await
    }

    async fn read_transactions(
        &self,
        statement: &'static str,
        args: &[Arg<'_>],
        within: Duration,
    ) -> Result<Vec<Transaction>, DatabaseError> {
        // Reads the primary, because a replica may not have the newest attempts yet.
        retry::until(Instant::now() + within, self.primary(), Rows(statement, args, read_row)).await
    }
}

struct Sum<'a> {
    zone: u32,
    bucket: &'a [u8],
}

impl Work for Sum<'_> {
    type Output = Option<BucketUse>;

    async fn run(&mut self, connection: &mut Connection) -> Result<Option<BucketUse>, DatabaseError> {
        let zone = Arg::Int(self.zone.into());
        let statements = connection.statements();
        let [_, _, Some(rate), Some(window)] = connection.first(statements.zone, &[zone]).await? else {
            return Ok(None);
        };
        let args = [zone, Arg::Bytes(self.bucket), Arg::Int(window), Arg::Int(MAX_SUMMED)];
        let [used, oldest_us] = connection.first(statements.bucket_use, &args).await?;
        let left_us = |age_us: u64| window.saturating_mul(1_000_000).saturating_sub(age_us);
        Ok(Some(BucketUse {
            rate,
            window_ms: window.saturating_mul(1_000),
            used: used.unwrap_or_default(),
            reset_ms: oldest_us.map_or(0, |age_us| left_us(age_us).div_ceil(1_000)),
        }))
    }
}

/// `None` if Weir does not record such rows.
fn read_row(row: &Row<'_>) -> Option<Transaction> {
    let outcome = match row.number(3)? {
        0 => Outcome::Allowed,
        1 => Outcome::Blocked,
        2 => Outcome::Refunded,
        _ => return None,
    };
    Some(Transaction {
        id: row.number(0)?,
        zone: row.number(1)?.try_into().ok()?,
        bucket: row.bytes(2)?.to_vec(),
        outcome,
        created_at_us: row.number(4)?,
        cost: row.number(5)?,
        region: row.bytes(6)?.to_vec(),
    })
}
