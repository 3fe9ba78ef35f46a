//! Deletes expired rows in batches, so that writers never wait long for a lock.

use super::connection::Arg;
use super::connection::retry::{self, Execute, Number, Rows};
use super::{Database, DatabaseError};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use weir_core::model::time::UnixMs;

/// Deadline of one batch.
const BATCH_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest pause between two batches.
const MAX_REST: Duration = Duration::from_secs(1);
const DAY_SECONDS: u64 = 24 * 3_600;
/// An attempt is kept this much longer than its zone counts it. If the clock is set back by less, the attempt counts
/// again.
const CLOCK_STEP_SECONDS: u64 = 3_600;
/// A hundred years: databases cannot represent dates much further back.
const MAX_AGE_SECONDS: u64 = 100 * 365 * DAY_SECONDS;

/// A region's time that is a day off is replaced, so a writer that wrote last by a time before that has ended.
const MOST_BEHIND_MS: u64 = DAY_SECONDS * 1_000;
/// Most writers whose times are read: those that wrote last. A writer's marker stays for about an hour after its end.
const MAX_WRITERS: u64 = 4_096;
/// Pause between two reads of the writers' times.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// When each writer wrote last, by its region's time. By region and number of the writer.
type WriterTimes = BTreeMap<(Vec<u8>, u64), u64>;

/// Number of rows that a batch of [`Database::cleanup_ledger`] deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletedRows {
    /// Deleted transactions.
    Transactions(u64),
    /// Deleted bucket locks.
    Locks(u64),
}

impl Database {
    /// Deletes rows of all regions that expired more than `older_than` ago, `batch` at a time. Calls `on_batch` with
    /// the number of rows of each batch. Returns the total.
    ///
    /// Rows expire by their regions' times. If a writer seems to be further behind `now` than `older_than`, this waits for it to write, for
    /// `alive_within` at most: one that does is of a region that is behind, and then all is judged by its time; one that does not has ended.
    /// Each writer of a region counts by itself, as one that has ended may have written by a later time.
    pub async fn cleanup(
        &self,
        older_than: Duration,
        batch: u32,
        now: UnixMs,
        alive_within: Duration,
        mut on_batch: impl FnMut(u64),
    ) -> Result<u64, DatabaseError> {
        let older_than_ms = u64::try_from(older_than.as_millis()).unwrap_or(u64::MAX);
        let batch = u64::from(batch.max(1));
        let now = self.earliest_time(now, older_than_ms, alive_within).await?;
        let args = [Arg::Int(now.0.saturating_sub(older_than_ms)), Arg::Int(batch)];
        let mut deleted = 0;
        loop {
            let rows = self.delete_batch(self.primary().statements().cleanup, &args).await?;
            deleted += rows;
            on_batch(rows);
            if rows < batch {
                return Ok(deleted);
            }
        }
    }

    /// The earliest of `now` and the times of the writers that are alive and behind.
    async fn earliest_time(
        &self,
        now: UnixMs,
        older_than_ms: u64,
        alive_within: Duration,
    ) -> Result<UnixMs, DatabaseError> {
        let is_behind = |time: u64| {
            time < now.0.saturating_sub(older_than_ms) && time > now.0.saturating_sub(MOST_BEHIND_MS)
        };
        let mut behind = self.writer_times().await?;
        behind.retain(|_, time| is_behind(*time));
        let (until, mut earliest) = (Instant::now() + alive_within, now);
        while !behind.is_empty() && Instant::now() < until {
            sleep(LOOK_AGAIN.min(alive_within)).await;
            for (writer, time) in self.writer_times().await? {
                if behind.get(&writer).is_some_and(|before| time > *before) {
                    behind.remove(&writer);
                    earliest = earliest.min(UnixMs(time));
                }
            }
        }
        Ok(earliest)
    }

    async fn writer_times(&self) -> Result<WriterTimes, DatabaseError> {
        let args = [Arg::Int(MAX_WRITERS)];
        let times = Rows(self.primary().statements().writer_times, &args, |row| {
            Some(((row.bytes(0)?.to_vec(), row.number(1)?), row.number(2)?))
        });
        let found = retry::until(Instant::now() + BATCH_TIMEOUT, self.primary(), times).await?;
        Ok(found.into_iter().collect())
    }

    /// Deletes ledger transactions older than `retention`, except those that their zone still counts, and bucket locks
    /// unused for as long. Deletes `batch` rows at a time. The database's clock decides the age.
    pub async fn cleanup_ledger(
        &self,
        retention: Duration,
        batch: u32,
        mut on_batch: impl FnMut(DeletedRows),
    ) -> Result<(), DatabaseError> {
        let batch = u64::from(batch.max(1));
        let mut next_zone = Some(0);
        while let Some(zone) = self.recorded_zone(next_zone).await? {
            loop {
                let age = self.attempts_age(zone, retention).await?;
                let args = [Arg::Int(zone), Arg::Int(age), Arg::Int(batch)];
                let rows = self.delete_batch(self.primary().statements().cleanup_attempts, &args).await?;
                on_batch(DeletedRows::Transactions(rows));
                if rows < batch {
                    break;
                }
            }
            next_zone = zone.checked_add(1);
        }
        let Some(locks) = self.primary().statements().cleanup_locks else { return Ok(()) };
        let days = retention.as_secs().div_ceil(DAY_SECONDS).clamp(1, MAX_AGE_SECONDS / DAY_SECONDS);
        loop {
            let rows = self.delete_batch(locks, &[Arg::Int(days), Arg::Int(batch)]).await?;
            on_batch(DeletedRows::Locks(rows));
            if rows < batch {
                return Ok(());
            }
        }
    }

    async fn recorded_zone(&self, from: Option<u64>) -> Result<Option<u64>, DatabaseError> {
        let Some(from) = from else { return Ok(None) };
        let args = [Arg::Int(from)];
        let next = Number(self.primary().statements().recorded_zone, &args);
        retry::until(Instant::now() + BATCH_TIMEOUT, self.primary(), next).await
    }

    /// The minimum age, in seconds, of attempts to delete in a zone. Read before every batch, because a window may
    /// become longer.
    async fn attempts_age(&self, zone: u64, retention: Duration) -> Result<u64, DatabaseError> {
        let args = [Arg::Int(zone)];
        let window = Number(self.primary().statements().zone_window, &args);
        let window = retry::until(Instant::now() + BATCH_TIMEOUT, self.primary(), window).await?;
        let needed = window.map_or(0, |seconds| seconds.saturating_add(CLOCK_STEP_SECONDS));
        Ok(retention.as_secs().max(needed).min(MAX_AGE_SECONDS))
    }

    /// Deletes one batch, then pauses for as long as the batch took, so that writers and replicas keep up.
    async fn delete_batch(&self, statement: &'static str, args: &[Arg<'_>]) -> Result<u64, DatabaseError> {
        let began = Instant::now();
        let delete = Execute(statement, args);
        let rows = retry::until(began + BATCH_TIMEOUT, self.primary(), delete).await?;
        sleep(began.elapsed().min(MAX_REST)).await;
        Ok(rows)
    }
}
