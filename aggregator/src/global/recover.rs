//! A region that has lost everything reads what it has published itself. That counts as a floor, not as anybody's use.
//!
//! While the database is away it is asked over and over: a floor that comes late is still better than none.
//!
//! Leaves to others: what becomes of a floor (`weir_core::region`), when something is lost (`regional`, `serve`).

use super::Global;
use crate::metrics::Operation;
use crate::shared::Shared;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::sleep;
use tracing::{info, warn};

/// Between two tries within the time of grace; later on as long as between two publications.
const PAUSE: Duration = Duration::from_millis(300);

/// Recovers after each loss, for as long as the program runs.
pub async fn run(shared: Arc<Shared>, global: Arc<Global>) {
    let grace = Duration::from_millis(global.cadence.grace_ms);
    loop {
        shared.lost.notified().await;
        let lost_at = shared.now();
        let lost = Instant::now();
        while !recover(&shared, &global, grace / 2).await {
            let is_late = lost.elapsed() > grace;
            sleep(if is_late { Duration::from_millis(global.cadence.publish_ms) } else { PAUSE }).await;
        }
        // Who gives floors to the base has done so at the end of the time of grace. A region with a store keeps a
        // floor that comes later in memory.
        if lost.elapsed() > grace && shared.regional.is_none() {
            shared.region(|region, now| region.end_grace_here(lost_at, now));
        }
    }
}

/// Reads what this region had published. False if that was not possible.
pub(super) async fn recover(shared: &Shared, global: &Global, within: Duration) -> bool {
    let started = Instant::now();
    let result = global.database.own(shared.now(), within).await;
    global.note(&shared.metrics, Operation::Recover, started, &result);
    match result {
        Ok(own) => {
            let cells = own.cells.len();
            for chunk in own.cells.chunks(1_024) {
                shared.region(|region, now| {
                    for cell in chunk {
                        // A row that cannot be a cell of now is of no use here either.
                        let _ = region.witness(&cell.key, cell.sequence, cell.count, now);
                    }
                });
            }
            shared.changed.notify_one();
            if cells > 0 {
                info!(cells, "read what this region had published");
            }
            true
        }
        Err(error) => {
            warn!(%error, "could not read what this region had published");
            false
        }
    }
}
