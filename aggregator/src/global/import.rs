//! The others' use comes in: on each beat the sum of all other regions, cell by cell.
//!
//! Leaves to others: the query (`database`), merging and who is pushed to (`weir_core::region`).

use super::Global;
use crate::database::DatabaseError;
use crate::metrics::Operation;
use crate::shared::Shared;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::yield_now;
use tracing::debug;
use weir_core::region::exchange::Stored;

/// Most cells merged while others wait for the region: each is told to every Envoy.
const STEP_CELLS: usize = 256;

/// Imports for as long as the program runs.
pub async fn run(shared: Arc<Shared>, global: Arc<Global>) {
    let mut beat = global.beat(global.cadence.import_ms);
    loop {
        global.wait_for(&mut beat).await;
        if global.is_allowed(Operation::Import) {
            import_now(&shared, &global, global.within()).await;
        }
    }
}

/// Imports once; what goes wrong is counted and said.
pub(super) async fn import_now(shared: &Shared, global: &Global, within: Duration) {
    let started = Instant::now();
    if let Err(error) = import(shared, global, within).await {
        shared.metrics.global_sync_failed(error.reason());
        shared.warn(&format!("nothing could be imported: {error}"), None);
    }
    shared.metrics.import_seconds.observe(started.elapsed().as_secs_f64());
}

async fn import(shared: &Shared, global: &Global, within: Duration) -> Result<(), DatabaseError> {
    let started = Instant::now();
    let result = global.database.import(shared.now(), within).await;
    global.note(&shared.metrics, Operation::Import, started, &result);
    let imported = result?;
    let polled = i64::try_from(imported.cells.len()).unwrap_or(i64::MAX);
    shared.metrics.global_rows_last_poll.set(polled);
    if imported.truncated {
        shared.warn("there are more cells in the database than are imported at once", None);
    }
    let (mut applied, mut bad) = (0, imported.bad);
    for cells in imported.cells.chunks(STEP_CELLS) {
        let (merged, refused) = merge(shared, cells);
        applied += merged;
        bad += refused;
        shared.changed.notify_one();
        yield_now().await;
    }
    shared.metrics.global_rows_applied.inc_by(applied);
    if bad > 0 {
        shared.metrics.bad_rows.inc_by(bad);
        let example = imported.bad_example.unwrap_or_default();
        shared.warn(&format!("{bad} rows of the database are skipped: {example}"), None);
    }
    debug!(cells = polled, applied, "imported");
    shared.metrics.imported.touch();
    Ok(())
}

/// How many were merged and how many cannot be.
fn merge(shared: &Shared, cells: &[Stored]) -> (u64, u64) {
    shared.region(|region, now| {
        let (mut merged, mut refused) = (0, 0);
        for cell in cells {
            match region.import(&cell.key, cell.sequence, cell.count, now) {
                Ok(created) => {
                    merged += 1;
                    if created {
                        shared.metrics.global_entries_created.inc();
                    }
                }
                Err(_) => refused += 1,
            }
        }
        (merged, refused)
    })
}
