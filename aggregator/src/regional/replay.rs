//! What filters reported goes to the store, one entry for each cell that changed, many cells at once.
//!
//! A round takes what waits as it begins. When it is over, all reports that were merged before it are acknowledged:
//! their counts are in the store, or the store is away and memory is all there is.
//!
//! Leaves to others: which cells wait (`weir_core::region`), acknowledging (`stream`).

use super::{Regional, ms};
use crate::metrics::Operation;
use crate::shared::Shared;
use crate::store::StoreError;
use std::sync::Arc;
use std::time::Instant;
use tokio::time::sleep;
use tracing::debug;
use weir_core::region::exchange::{Merge, Merged};
use weir_core::region::{HotCell, most_used};

/// Most cells in one call.
const CALL_CELLS: usize = 1_024;

/// Replays for as long as the program runs.
pub async fn run(shared: Arc<Shared>, regional: Arc<Regional>) {
    loop {
        regional.unstored.notified().await;
        let round = shared.begin_replay();
        if regional.is_usable() {
            replay(&shared, &regional, round.waiting).await;
        }
        shared.replayed(round);
        if regional.is_usable() {
            name_hot(&shared, &regional).await;
        }
        if regional.is_usable() && shared.region(|region, _| region.has_merges()) {
            regional.unstored.notify_one();
        }
        sleep(ms(regional.cadence.replay_ms)).await;
    }
}

/// Tells the store of up to `waiting` cells, until it fails.
async fn replay(shared: &Shared, regional: &Regional, waiting: usize) {
    let mut told = 0;
    while told < waiting {
        let merges = shared.region(|region, _| region.next_merges(CALL_CELLS));
        if merges.is_empty() {
            return;
        }
        told += merges.len();
        let started = Instant::now();
        let results = regional.store.merge(&merges, ms(regional.cadence.replay_timeout_ms)).await;
        let whole = take(shared, &merges, &results);
        regional.note(&shared.metrics, Operation::Replay, started, &whole);
        regional.changed.notify_one();
        shared.changed.notify_one();
        if let Err(error) = whole {
            debug!(%error, "the regional store did not take a replay");
            return;
        }
    }
}

/// Hands the store's words to the region; what failed waits again. The first error speaks for all.
fn take(shared: &Shared, merges: &[Merge], results: &[Result<Merged, StoreError>]) -> Result<(), StoreError> {
    shared.region(|region, now| {
        for (merge, result) in merges.iter().zip(results) {
            match result {
                Ok(merged) => region.merged(merge, merged, now),
                Err(_) => region.merge_failed(std::slice::from_ref(merge)),
            }
        }
    });
    results.iter().find_map(|result| result.as_ref().err().cloned()).map_or(Ok(()), Err)
}

/// Names cells that became hot in the index, from which aggregators learn what messages have missed.
async fn name_hot(shared: &Shared, regional: &Regional) {
    let found = shared.region(|region, _| region.next_hot(2 * regional.cadence.namespace_cap));
    if found.is_empty() {
        return;
    }
    let choice = most_used(found, regional.cadence.namespace_cap, |hot| (&hot.key, hot.utilisation));
    shared.metrics.hot_left.inc_by(choice.left.len() as u64);
    let failed = note_hot(shared, regional, &choice.chosen).await.is_err();
    shared.region(|region, _| {
        region.hot_failed(&choice.left);
        if failed {
            region.hot_failed(&choice.chosen);
        }
    });
}

async fn note_hot(shared: &Shared, regional: &Regional, hot: &[HotCell]) -> Result<(), StoreError> {
    let named: Vec<_> = hot.iter().map(|hot| (hot.key.clone(), hot.sequence, hot.expires)).collect();
    let started = Instant::now();
    let result = regional.store.note_hot(&named, ms(regional.cadence.replay_timeout_ms)).await;
    regional.note(&shared.metrics, Operation::NameHot, started, &result);
    result
}
