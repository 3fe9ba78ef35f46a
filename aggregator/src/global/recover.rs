//! A region that has lost everything reads what it has published itself. That counts as a floor, not as anybody's use.
//!
//! Leaves to others: what becomes of a floor (`weir_core::region`), when something is lost (`regional`, `serve`).

use super::Global;
use crate::metrics::Operation;
use crate::shared::Shared;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::sleep;
use tracing::{info, warn};

/// How often it is tried within the time of grace, and how long it is waited in between.
const TRIES: usize = 4;
const PAUSE: Duration = Duration::from_millis(300);

/// Recovers after each loss, for as long as the program runs.
pub async fn run(shared: Arc<Shared>, global: Arc<Global>) {
    loop {
        shared.lost.notified().await;
        for _ in 0..TRIES {
            if recover(&shared, &global).await {
                break;
            }
            sleep(PAUSE).await;
        }
    }
}

async fn recover(shared: &Shared, global: &Global) -> bool {
    let started = Instant::now();
    let grace = Duration::from_millis(global.cadence.grace_ms);
    let result = global.database.own(shared.now(), grace / 2).await;
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
