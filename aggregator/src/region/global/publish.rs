//! This region's use goes out.
//!
//! Leaves to others: when, and what is worth it (`weir_core::replication::globe::publish`), statements and retries
//! (`database`).

use super::{Global, count, failure};
use crate::database::DatabaseError;
use crate::region::shared::Shared;
use crate::telemetry::metrics::Operation;
use crate::telemetry::spans::{Round, around};
use std::sync::Arc;
use std::time::Instant;
use tracing::{debug, warn};
use weir_core::region::exchange::Publication;
use weir_core::replication::Next;
use weir_core::replication::globe::publish::{Call, Publisher, stored};

/// Publishes for as long as the program runs.
pub async fn run(shared: Arc<Shared>, global: Arc<Global>) {
    let mut publisher = Publisher::new(global.cadence, shared.moment().mono, rand::random());
    let mut began = None;
    let mut round = Round::new("publish");
    loop {
        match publisher.next(&mut &*shared, rand::random()) {
            Next::Call(Call::Life) => {
                began = Some(Instant::now());
                look(&shared, &global, &mut publisher, &mut round).await;
            }
            Next::Call(Call::Write(rows)) => write(&shared, &global, &mut publisher, rows, &mut round).await,
            Next::Over => return,
            idle => {
                if idle != Next::Yield {
                    round.end();
                }
                if let Some(began) = began.take_if(|_| idle != Next::Yield) {
                    shared.metrics.publish_seconds.observe(began.elapsed().as_secs_f64());
                }
                shared.idle(idle).await;
            }
        }
    }
}

/// Whether the table is there.
async fn look(shared: &Shared, global: &Global, publisher: &mut Publisher, round: &mut Round) {
    let started = Instant::now();
    drop(round.call(&shared.telemetry));
    let life = global.database.life(global.within()).await;
    round.called(0, life.as_ref().err().map(DatabaseError::reason));
    count(shared, Operation::LookGlobal, started, &life);
    if let Err(error) = &life {
        shared.metrics.global_write_failed(error.reason(), 1);
        shared.warn(&format!("nothing could be published: {error}"), None);
    }
    if publisher.lived(&mut &*shared, life.map_err(|error| failure(&error))) {
        warn!("the database has lost what was published; it is published again");
    }
}

async fn write(
    shared: &Shared,
    global: &Global,
    publisher: &mut Publisher,
    rows: Vec<Publication>,
    round: &mut Round,
) {
    let (started, span) = (Instant::now(), round.call(&shared.telemetry));
    let told = |rows: &[Publication]| stored(&mut &*shared, rows);
    let publishing = global.database.publish(&rows, shared.now(), global.within(), told);
    let published = around(span.as_ref(), publishing).await;
    round.called(published.rows, published.last_error.as_ref().map(DatabaseError::reason));
    shared.metrics.global_writes.inc_by(published.rows);
    for (reason, count) in &published.errors {
        shared.metrics.global_write_failed(reason, *count);
    }
    if published.skipped > 0 {
        shared.metrics.bad_rows.inc_by(published.skipped);
        let example = &published.skipped_example;
        shared.warn(&format!("cells that no row can hold are not published, such as {example:?}"), None);
    }
    let result = published.last_error.map_or(Ok(()), Err);
    count(shared, Operation::Publish, started, &result);
    match &result {
        Ok(()) => debug!(rows = published.rows, "published"),
        Err(error) => {
            warn!(%error, rows = published.rows, "not all could be published; the rest goes with the next beat")
        }
    }
    publisher.wrote(&mut &*shared, rows, result.map_err(|error| failure(&error)));
}
