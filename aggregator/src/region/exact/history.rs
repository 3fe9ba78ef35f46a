//! The ledger's history, for operators and applications.

use crate::database::{Database, DatabaseError, MAX_BUCKET_BYTES, MAX_HISTORY_ROWS, Outcome, Transaction};
use crate::telemetry::throttle::Throttle;
use serde::Serialize;
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};
use tracing::warn;

/// Timeout of a database call, including the wait for a turn.
const WITHIN: Duration = Duration::from_secs(2);
/// Most concurrent reads. The region's publishing and importing share the same four connections.
const MAX_READS: usize = 2;
/// Least time between two warnings that the database does not answer.
const BETWEEN_WARNINGS: Duration = Duration::from_secs(5);

/// Reads the ledger's history.
pub struct History {
    database: Database,
    turns: Semaphore,
    warnings: Throttle,
}

/// Why the use of an exact key, or a ledger's history, was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unread {
    /// Redis.
    #[error("Redis does not answer")]
    Log,
    /// The database.
    #[error("the database does not answer")]
    Ledger,
    /// No database is configured.
    #[error("a ledger needs a database, and none is set")]
    NoDatabase,
    /// Too many others read.
    #[error("too many reads of the ledger's history at once; try again later")]
    Busy,
}

/// A query for a part of a bucket's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryQuery {
    /// The zone.
    pub zone: u32,
    /// The bucket as the ledger stores it, at most [`HistoryQuery::MAX_BUCKET_BYTES`].
    pub bucket: Vec<u8>,
    /// Only transactions with a lower number.
    pub before: Option<u64>,
    /// Most transactions, 1 to [`HistoryQuery::MAX_ROWS`].
    pub limit: u32,
}

/// A transaction as responses show it.
#[derive(Debug, Serialize)]
pub struct Recorded {
    /// Its number.
    pub id: u64,
    /// The zone.
    pub zone: u32,
    bucket: String,
    outcome: &'static str,
    cost: u64,
    region: String,
    /// Milliseconds of Unix time.
    created_at: u64,
}

impl HistoryQuery {
    /// Most transactions of one part.
    pub const MAX_ROWS: u32 = MAX_HISTORY_ROWS;
    /// Longest bucket in bytes.
    pub const MAX_BUCKET_BYTES: usize = MAX_BUCKET_BYTES;
}

impl History {
    /// The history in `database`.
    pub(super) fn new(database: Database) -> History {
        let warnings = Throttle::new(BETWEEN_WARNINGS);
        History { database, turns: Semaphore::new(MAX_READS), warnings }
    }

    /// One transaction; `None` if there is none of this number.
    pub async fn one(&self, id: u64) -> Result<Option<Recorded>, Unread> {
        let (_turn, within) = self.turn().await?;
        let found = self.database.transaction(id, within).await;
        Ok(found.map_err(|error| self.failed(&error))?.map(Recorded::of))
    }

    /// A bucket's transactions, the newest first.
    pub async fn several(&self, query: &HistoryQuery) -> Result<Vec<Recorded>, Unread> {
        let (_turn, within) = self.turn().await?;
        let HistoryQuery { zone, bucket, before, limit } = query;
        let found = self.database.transactions(*zone, bucket, *before, *limit, within).await;
        let found = found.map_err(|error| self.failed(&error))?;
        Ok(found.into_iter().map(Recorded::of).collect())
    }

    /// Waits for a turn to read; returns it with the time that remains.
    async fn turn(&self) -> Result<(SemaphorePermit<'_>, Duration), Unread> {
        let deadline = Instant::now() + WITHIN;
        match timeout_at(deadline, self.turns.acquire()).await {
            Ok(Ok(turn)) => Ok((turn, deadline.saturating_duration_since(Instant::now()))),
            _ => Err(Unread::Busy),
        }
    }

    fn failed(&self, error: &DatabaseError) -> Unread {
        // The database's error may name its address, so it is only logged.
        if let Some(held_back) = self.warnings.pass() {
            warn!(%error, held_back, "could not read the ledger's history");
        }
        Unread::Ledger
    }
}

impl Recorded {
    fn of(transaction: Transaction) -> Recorded {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let outcome = match transaction.outcome {
            Outcome::Allowed => "allowed",
            Outcome::Blocked => "blocked",
            Outcome::Refunded => "refunded",
        };
        Recorded {
            id: transaction.id,
            zone: transaction.zone,
            bucket: text(&transaction.bucket),
            outcome,
            cost: transaction.cost,
            region: text(&transaction.region),
            created_at: transaction.created_at_us / 1_000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::DatabaseOptions;

    #[tokio::test(start_paused = true)]
    async fn a_request_without_a_turn_is_refused_in_time() {
        let options = DatabaseOptions {
            url: "sqlite:///nowhere/weir.db".to_owned(),
            read_url: None,
            region: "here".to_owned(),
        };
        let history = History::new(Database::open(&options).unwrap());
        let others = [history.turn().await.unwrap(), history.turn().await.unwrap()];
        let began = Instant::now();
        let refused = history.one(1).await.unwrap_err();
        assert_eq!((refused, began.elapsed()), (Unread::Busy, WITHIN));
        drop(others);
        assert!(history.turn().await.is_ok());
    }
}
