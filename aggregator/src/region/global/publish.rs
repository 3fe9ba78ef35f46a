//! Publishes this region's counts to the database.

use super::{Global, count, failure};
use crate::database::DatabaseError;
use crate::region::hub::Hub;
use crate::telemetry::metrics::Operation;
use crate::telemetry::spans::{Round, around};
use std::sync::Arc;
use std::time::Instant;
use tracing::{debug, warn};
use weir_core::region::exchange::Publication;
use weir_core::replication::Next;
use weir_core::replication::globe::publish::{Call, Publisher, stored};

/// Publishes until the program ends.
pub async fn run(hub: Arc<Hub>, global: Arc<Global>) {
    let mut publisher = Publisher::new(global.schedule, hub.moment().mono, rand::random());
    let mut began = None;
    let mut round = Round::new("publish");
    loop {
        match publisher.next(&mut &*hub, rand::random()) {
            Next::Call(Call::Incarnation) => {
                began = Some(Instant::now());
                read_marker(&hub, &global, &mut publisher, &mut round).await;
            }
            Next::Call(Call::Write(rows)) => write(&hub, &global, &mut publisher, rows, &mut round).await,
            Next::Over => return,
            idle => {
                if idle != Next::Yield {
                    round.end();
                }
                if let Some(began) = began.take_if(|_| idle != Next::Yield) {
                    hub.metrics.publish_seconds.observe(began.elapsed().as_secs_f64());
                }
                hub.idle(idle).await;
            }
        }
    }
}

/// Reads the incarnation of the database, which shows whether it has lost what was published.
async fn read_marker(hub: &Hub, global: &Global, publisher: &mut Publisher, round: &mut Round) {
    let started = Instant::now();
    drop(round.call(&hub.telemetry));
    let incarnation = global.database.incarnation(global.within()).await;
    round.called(0, incarnation.as_ref().err().map(DatabaseError::reason));
    count(hub, global, Operation::ReadGlobalMarker, started, &incarnation);
    if let Err(error) = &incarnation {
        hub.metrics.global_write_failed(error.reason(), 1);
        hub.warn(&format!("could not publish to the database: {error}"), None);
    }
    if publisher.lived(&mut &*hub, incarnation.map_err(|error| failure(&error))) {
        warn!("the database has lost published counts; publishing all again");
    }
}

async fn write(
    hub: &Hub,
    global: &Global,
    publisher: &mut Publisher,
    rows: Vec<Publication>,
    round: &mut Round,
) {
    let (started, span) = (Instant::now(), round.call(&hub.telemetry));
    let on_stored = |rows: &[Publication]| stored(&mut &*hub, rows);
    let publishing = global.database.publish(&rows, hub.now(), global.within(), on_stored);
    let published = around(span.as_ref(), publishing).await;
    round.called(published.rows, published.last_error.as_ref().map(DatabaseError::reason));
    hub.metrics.convergence.global_writes.inc_by(published.rows);
    for (reason, count) in &published.errors {
        hub.metrics.global_write_failed(reason, *count);
    }
    if published.skipped > 0 {
        hub.metrics.program.bad_rows.inc_by(published.skipped);
        let example = &published.skipped_example;
        hub.warn(&format!("cells that do not fit in a row are not published, such as {example:?}"), None);
    }
    let result = published.last_error.map_or(Ok(()), Err);
    count(hub, global, Operation::Publish, started, &result);
    match &result {
        Ok(()) => debug!(rows = published.rows, "published"),
        Err(error) => {
            warn!(%error, rows = published.rows, "could not publish all counts; the rest is published at the next interval")
        }
    }
    publisher.wrote(&mut &*hub, rows, result.map_err(|error| failure(&error)));
}
