//! This region's use goes out: on each beat all cells that are due, in one go.
//!
//! A sentinel row tells whether the table still holds what was published; if not, all of it is due again. Too much of
//! one namespace waits for the next beat, the least used first.
//!
//! Leaves to others: which cells are due (`weir_core::region`), statements and retries (`database`).

use super::Global;
use crate::metrics::Operation;
use crate::shared::Shared;
use std::sync::Arc;
use std::time::Instant;
use tokio::task::yield_now;
use tracing::{debug, warn};
use weir_core::region::exchange::Publication;
use weir_core::region::{Due, most_used};

/// Most cells taken from the region while others wait for it.
const STEP_CELLS: usize = 4_096;

/// Publishes for as long as the program runs.
pub async fn run(shared: Arc<Shared>, global: Arc<Global>) {
    let mut beat = global.beat(global.cadence.publish_ms);
    let mut life = None;
    loop {
        global.wait_for(&mut beat).await;
        if global.is_allowed(Operation::Publish) {
            let started = Instant::now();
            publish(&shared, &global, &mut life).await;
            shared.metrics.publish_seconds.observe(started.elapsed().as_secs_f64());
        }
    }
}

async fn publish(shared: &Shared, global: &Global, life: &mut Option<u64>) {
    if !still_lives(shared, global, life).await {
        return;
    }
    let due = all_due(shared).await;
    let choice = most_used(due, global.cadence.namespace_cap, |due| (&due.publication.key, due.utilisation));
    let left: Vec<Publication> = choice.left.into_iter().map(|due| due.publication).collect();
    shared.metrics.global_left.inc_by(left.len() as u64);
    wait_again(shared, &left).await;
    let rows: Vec<Publication> = choice.chosen.into_iter().map(|due| due.publication).collect();
    if rows.is_empty() || write(shared, global, &rows).await {
        shared.metrics.published.touch();
    }
}

/// False if not all of it stands in the table now.
async fn write(shared: &Shared, global: &Global, rows: &[Publication]) -> bool {
    let started = Instant::now();
    let published = global
        .database
        .publish(rows, shared.now(), global.within(), |stored| {
            shared.region(|region, _| region.published(stored));
        })
        .await;
    // What stands in the table by now is no longer worth publishing and does not wait again.
    wait_again(shared, rows).await;
    shared.metrics.global_writes.inc_by(published.rows);
    for (reason, count) in &published.errors {
        shared.metrics.global_write_failed(reason, *count);
    }
    if published.skipped > 0 {
        shared.metrics.bad_rows.inc_by(published.skipped);
        shared.warn(
            &format!("cells that no row can hold are not published, such as {:?}", published.skipped_example),
            None,
        );
    }
    let result = published.last_error.map_or(Ok(()), Err);
    global.note(&shared.metrics, Operation::Publish, started, &result);
    match &result {
        Ok(()) => debug!(rows = published.rows, "published"),
        Err(error) => {
            warn!(%error, rows = published.rows, "not all could be published; the rest goes with the next beat")
        }
    }
    result.is_ok()
}

/// Whether the table is there. If it was wiped, all is due again.
async fn still_lives(shared: &Shared, global: &Global, life: &mut Option<u64>) -> bool {
    let started = Instant::now();
    let seen = global.database.life(global.within()).await;
    global.note(&shared.metrics, Operation::LookGlobal, started, &seen);
    match seen {
        Ok(seen) => {
            if life.replace(seen).is_some_and(|before| before != seen) {
                warn!("the database has lost what was published; it is published again");
                shared.metrics.wiped("global");
                shared.region(|region, _| region.forget_published());
            }
            true
        }
        Err(error) => {
            shared.metrics.global_write_failed(error.reason(), 1);
            shared.warn(&format!("nothing could be published: {error}"), None);
            false
        }
    }
}

/// Everything that is due, taken in steps, so that no consult waits for long. A busy cell may come more than once, so
/// there is an end to it.
async fn all_due(shared: &Shared) -> Vec<Due> {
    let cells = usize::try_from(shared.stats().windows).unwrap_or(usize::MAX);
    let mut all = Vec::new();
    while all.len() <= cells {
        let (due, more) = shared.region(|region, _| region.next_due(STEP_CELLS));
        all.extend(due);
        if !more {
            break;
        }
        yield_now().await;
    }
    all
}

async fn wait_again(shared: &Shared, rows: &[Publication]) {
    for rows in rows.chunks(STEP_CELLS) {
        shared.region(|region, _| region.publish_failed(rows));
        yield_now().await;
    }
}
