//! The ledger: each attempt is decided against its zone's rate and recorded, allowed or not, before it is answered.
//!
//! An attempt is allowed if its cost, plus the costs of all allowed attempts younger than the zone's window, is at most
//! the rate. MySQL and MariaDB decide in a stored procedure (`migrations/mysql/0006_check_velocity_cost.sql`), which
//! operators may call by hand. For SQLite, this file decides in one transaction, with the same results.

pub(in crate::database) mod history;
pub(in crate::database) mod zones;

use crate::database::connection::mysql;
use crate::database::connection::retry::{Execute, Work};
use crate::database::connection::sqlite;
use crate::database::connection::{Arg, Connection, Row};
use crate::database::{Database, DatabaseError, Reason};
use crate::telemetry::spans;
use std::time::Duration;
use weir_core::model::breaker::State;
use weir_core::model::window::MAX_COUNT;

/// Longest bucket in bytes, the size of the table's column.
pub const MAX_BUCKET_BYTES: usize = 255;

/// An attempt to decide and record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt<'a> {
    /// The zone, which defines rate and window.
    pub zone: u32,
    /// The bucket that is limited, compared byte by byte; at most [`MAX_BUCKET_BYTES`].
    pub bucket: &'a [u8],
    /// The cost. A cost of 0 only queries the count, and is recorded too. A cost above 2^53 is taken as 2^53.
    pub cost: u64,
}

/// The decision on an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Velocity {
    /// The number of the recorded transaction.
    pub transaction: u64,
    /// Whether the attempt is blocked.
    pub blocked: bool,
    /// The zone's rate.
    pub rate: u64,
    /// The zone's window in milliseconds.
    pub window_ms: u64,
    /// The sum of all counted costs, including this attempt if it was allowed.
    pub used: u64,
    /// Milliseconds until the oldest counted attempt leaves the window; 0 if nothing counts.
    pub reset_ms: u64,
    /// For a blocked attempt, milliseconds until the same cost would be allowed; `None` if the cost exceeds the rate.
    pub retry_after_ms: Option<u64>,
}

impl Database {
    /// Decides an attempt and records it. Returns `None` if the zone does not exist; nothing is recorded then. After an
    /// error the attempt may be recorded nevertheless, unless the database certainly rolled it back.
    pub async fn check_velocity(
        &self,
        attempt: &Attempt<'_>,
        within: Duration,
    ) -> Result<Option<Velocity>, DatabaseError> {
        if attempt.bucket.len() > MAX_BUCKET_BYTES {
            let text =
                format!("a bucket of {} bytes is longer than {MAX_BUCKET_BYTES}", attempt.bucket.len());
            return Err(DatabaseError::new(Reason::Other, text));
        }
        if attempt.cost > MAX_COUNT {
            let text = format!(
                "a cost of {} is more than {MAX_COUNT}, which is the most that is recorded",
                attempt.cost
            );
            return Err(DatabaseError::new(Reason::Other, text));
        }
        let call = spans::statement(self.primary().statements().system, "CALL", "check_velocity", 1);
        let result = self
            .ledger()
            .call(attempt.zone, within, Check { attempt: *attempt, region: self.region_bytes() })
            .await;
        spans::failed(call, result.as_ref().err().map(DatabaseError::reason));
        match result {
            Ok(velocity) => Ok(Some(velocity)),
            Err(error) if error.kind() == Reason::NoZone => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Refunds an allowed attempt of this zone and bucket, so that it no longer counts. Returns whether this call
    /// refunded it: `false` if the attempt is unknown, belongs to another bucket, was blocked, or had been refunded
    /// before.
    pub async fn refund(
        &self,
        transaction: u64,
        zone: u32,
        bucket: &[u8],
        within: Duration,
    ) -> Result<bool, DatabaseError> {
        let Some(transaction) = storable(transaction) else { return Ok(false) };
        let args = [Arg::Int(transaction), Arg::Int(u64::from(zone)), Arg::Bytes(bucket)];
        let statement = self.primary().statements().refund;
        let rows = self.ledger().call(zone, within, Execute(statement, &args)).await?;
        Ok(rows > 0)
    }

    /// The state of the ledger's circuit breaker.
    pub fn ledger_state(&self) -> State {
        self.ledger().state()
    }
}

/// The number, if every column can store it.
pub(in crate::database) fn storable(number: u64) -> Option<u64> {
    i64::try_from(number).is_ok().then_some(number)
}

/// Decides one attempt on one connection.
struct Check<'a> {
    attempt: Attempt<'a>,
    region: &'a [u8],
}

impl Work for Check<'_> {
    type Output = Velocity;

    async fn run(&mut self, connection: &mut Connection) -> Result<Velocity, DatabaseError> {
        match connection {
            Connection::MySql(_) => self.call(connection).await,
            Connection::Sqlite(_) => self.transact(connection).await,
        }
    }
}

impl Check<'_> {
    async fn call(&self, connection: &mut Connection) -> Result<Velocity, DatabaseError> {
        let Attempt { zone, bucket, cost } = self.attempt;
        let args = [Arg::Int(zone.into()), Arg::Bytes(bucket), Arg::Int(cost), Arg::Bytes(self.region)];
        let mut answer = None;
        connection.each(mysql::CHECK_VELOCITY, &args, |row| answer = read_answer(row)).await?;
        answer.ok_or_else(|| {
            DatabaseError::new(Reason::Schema, "check_velocity_cost did not return Weir's columns")
        })
    }

    async fn transact(&self, connection: &mut Connection) -> Result<Velocity, DatabaseError> {
        connection.execute(sqlite::BEGIN, &[]).await?;
        let result = self.decide(connection).await;
        let end = if result.is_ok() { "COMMIT" } else { "ROLLBACK" };
        // If the transaction could not be ended, its connection must not return to the pool.
        let ended = connection.execute(end, &[]).await;
        ended.map_err(|error| DatabaseError::new(Reason::Other, error))?;
        result
    }

    /// Decides like the stored procedure.
    async fn decide(&self, connection: &mut Connection) -> Result<Velocity, DatabaseError> {
        let Attempt { zone, bucket, cost } = self.attempt;
        let (zone, bucket) = (Arg::Int(zone.into()), Arg::Bytes(bucket));
        let statement = sqlite::STATEMENTS.zone;
        let [_, _, Some(rate), Some(window)] = first(connection, statement, &[zone]).await? else {
            return Err(DatabaseError::new(Reason::NoZone, "there is no such zone"));
        };
        let [now] = first(connection, sqlite::CLOCK, &[]).await?;
        let now = now.unwrap_or_default();
        let window_us = window.saturating_mul(1_000_000);
        let since = now.saturating_sub(window_us);
        let counted = [zone, bucket, Arg::Int(since)];
        let [used, oldest] = first(connection, sqlite::COUNT, &counted).await?;
        let used = used.unwrap_or_default();
        let excess = used.saturating_add(cost).saturating_sub(rate);
        let blocked = excess > 0;
        let [enough] = match blocked && cost <= rate {
            true => {
                first(connection, sqlite::ENOUGH, &[zone, bucket, Arg::Int(since), Arg::Int(excess)]).await?
            }
            false => [None],
        };
        let region = Arg::Bytes(self.region);
        let record = [zone, bucket, Arg::Int(blocked.into()), Arg::Int(now), Arg::Int(cost), region];
        let [transaction] = first(connection, sqlite::RECORD, &record).await?;
        let until_left_ms = |moment: u64| moment.saturating_sub(since).div_ceil(1_000);
        let oldest = oldest.or((cost > 0 && !blocked).then_some(now));
        Ok(Velocity {
            transaction: transaction.unwrap_or_default(),
            blocked,
            rate,
            window_ms: window.saturating_mul(1_000),
            used: if blocked { used } else { used + cost },
            reset_ms: oldest.map_or(0, until_left_ms),
            retry_after_ms: enough.map(until_left_ms),
        })
    }
}

/// The first `N` numbers of the first row.
async fn first<const N: usize>(
    connection: &mut Connection,
    statement: &'static str,
    args: &[Arg<'_>],
) -> Result<[Option<u64>; N], DatabaseError> {
    let mut numbers = [None; N];
    connection
        .each(statement, args, |row| numbers = std::array::from_fn(|column| row.number(column)))
        .await?;
    Ok(numbers)
}

fn read_answer(row: &Row<'_>) -> Option<Velocity> {
    let [blocked, transaction, rate, window, used, reset_ms, retry_after_ms] =
        mysql::ANSWER.map(|column| row.number(column));
    Some(Velocity {
        transaction: transaction?,
        blocked: blocked? != 0,
        rate: rate?,
        window_ms: window?.saturating_mul(1_000),
        used: used?,
        reset_ms: reset_ms?,
        retry_after_ms,
    })
}
