//! Deletes what is over, some rows at a time, so that writers never wait for long.
//!
//! Leaves to others: running it now and then (cron), arguments and exit codes (`main`).

use super::connection::Arg;
use super::retry::{self, Execute};
use super::{Database, DatabaseError};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use weir_core::time::UnixMs;

/// How long one batch may take.
const BATCH_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest rest between two batches.
const MAX_REST: Duration = Duration::from_secs(1);

impl Database {
    /// Deletes rows of all regions that expired more than `older_than` ago, `batch` at a time, and tells `on_batch`
    /// how many each time. Rests after each batch for as long as it took, so that writers and replicas keep up.
    pub async fn cleanup(
        &self,
        older_than: Duration,
        batch: u32,
        now: UnixMs,
        mut on_batch: impl FnMut(u64),
    ) -> Result<u64, DatabaseError> {
        let older_than_ms = u64::try_from(older_than.as_millis()).unwrap_or(u64::MAX);
        let batch = u64::from(batch.max(1));
        let args = [Arg::Int(now.0.saturating_sub(older_than_ms)), Arg::Int(batch)];
        let mut deleted = 0;
        loop {
            let began = Instant::now();
            let delete = Execute(self.primary().statements().cleanup, &args);
            let rows = retry::until(began + BATCH_TIMEOUT, self.primary(), delete).await?;
            deleted += rows;
            on_batch(rows);
            if rows < batch {
                return Ok(deleted);
            }
            sleep(began.elapsed().min(MAX_REST)).await;
        }
    }
}
