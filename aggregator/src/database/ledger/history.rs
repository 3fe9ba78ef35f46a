//! What the ledger recorded, for people who want to know why.
//!
//! Leaves to others: recording (`ledger`), deleting what is old (`cleanup`).

use super::storable;
use crate::database::connection::retry::{self, Work};
use crate::database::connection::{Arg, Connection, Row};
use crate::database::{Database, DatabaseError};
use std::time::Duration;
use tokio::time::Instant;

/// Most transactions of one answer.
pub const MAX_HISTORY_ROWS: u32 = 1_000;

/// An attempt as it is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// Its number.
    pub id: u64,
    /// In which zone.
    pub zone: u32,
    /// Whose.
    pub bucket: Vec<u8>,
    /// What became of it.
    pub outcome: Outcome,
    /// What it used, or would have.
    pub cost: u64,
    /// Of the aggregator that asked; empty if a person did.
    pub region: Vec<u8>,
    /// When, in microseconds since the Unix epoch by the database's clock.
    pub created_at_us: u64,
}

/// What became of an attempt: the column `blocked`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// 0: it was allowed, and counts while it is in the window.
    Allowed,
    /// 1: its zone blocked it.
    Blocked,
    /// 2: it was allowed, but another limit refused its request.
    Refunded,
}

impl Database {
    /// One transaction; `None` if there is none of that number.
    pub async fn transaction(&self, id: u64, within: Duration) -> Result<Option<Transaction>, DatabaseError> {
        let Some(id) = storable(id) else { return Ok(None) };
        let statement = self.primary().statements().transaction;
        let found = self.read_transactions(statement, &[Arg::Int(id)], within).await?;
        Ok(found.into_iter().next())
    }

    /// A bucket's transactions, the newest first, all of them older than the number `before` if one is given: the last
    /// of one answer leads to the next. At most `limit`, and never more than [`MAX_HISTORY_ROWS`].
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
        // Not from a replica, which may not know yet what was answered a moment ago.
        retry::until(Instant::now() + within, self.primary(), Read { statement, args }).await
    }
}

struct Read<'a> {
    statement: &'static str,
    args: &'a [Arg<'a>],
}

impl Work for Read<'_> {
    type Output = Vec<Transaction>;

    async fn run(&mut self, connection: &mut Connection) -> Result<Vec<Transaction>, DatabaseError> {
        let mut transactions = Vec::new();
        connection.each(self.statement, self.args, |row| transactions.extend(read_row(row))).await?;
        Ok(transactions)
    }
}

/// `None` of what nobody records.
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
