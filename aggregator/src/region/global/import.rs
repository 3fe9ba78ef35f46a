//! Imports the other regions' counts from the database.

use super::{Global, count, failure};
use crate::database::{DatabaseError, Imported};
use crate::region::hub::Hub;
use crate::telemetry::metrics::Operation;
use crate::telemetry::spans::{Round, around};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::debug;
use weir_core::replication::Next;
use weir_core::replication::globe::import::{Import, Importer};

/// Imports until the program ends.
pub async fn run(hub: Arc<Hub>, global: Arc<Global>) {
    let importer = Importer::new(global.schedule, hub.moment().mono, rand::random());
    drive(&hub, &global, importer).await;
}

/// An import in progress.
struct Going {
    began: Instant,
    /// What was read; `None` if reading failed.
    read: Option<Imported>,
    /// Cells merged and refused by all imports before this one.
    before: (u64, u64),
}

/// Imports until `importer` ends; counts and logs failures.
pub(super) async fn drive(hub: &Hub, global: &Global, mut importer: Importer) {
    let mut going: Option<Going> = None;
    let mut round = Round::new("import");
    loop {
        let next = importer.next(&mut &*hub, rand::random());
        match next {
            Next::Call(call) => going = Some(read(hub, global, &mut importer, call, &mut round).await),
            Next::Yield => drop(hub.idle(next).await),
            idle => {
                round.end();
                if let Some(going) = going.take() {
                    conclude(hub, going);
                }
                if idle == Next::Over {
                    return;
                }
                hub.idle(idle).await;
            }
        }
    }
}

async fn read(hub: &Hub, global: &Global, importer: &mut Importer, call: Import, round: &mut Round) -> Going {
    let (began, before, span) = (Instant::now(), merged(hub), round.call(&hub.telemetry));
    let importing = global.database.import(hub.now(), Duration::from_millis(call.within_ms));
    let result = around(span.as_ref(), importing).await;
    let cells = result.as_ref().map_or(0, |imported| imported.cells() as u64);
    round.called(cells, result.as_ref().err().map(DatabaseError::reason));
    count(hub, global, Operation::Import, began, &result);
    match result {
        Ok(mut imported) => {
            let polled = i64::try_from(cells).unwrap_or(i64::MAX);
            hub.metrics.convergence.global_rows_last_poll.set(polled);
            if imported.truncated {
                hub.warn(
                    "the database holds more rows than one import may read; the rest is not imported",
                    None,
                );
            }
            importer.imported(&mut &*hub, Ok(std::mem::take(&mut imported.regions)));
            Going { began, read: Some(imported), before }
        }
        Err(error) => {
            hub.metrics.global_sync_failed(error.reason());
            hub.warn(&format!("could not import from the database: {error}"), None);
            importer.imported(&mut &*hub, Err(failure(&error)));
            Going { began, read: None, before }
        }
    }
}

fn conclude(hub: &Hub, going: Going) {
    if let Some(Imported { bad, bad_example, .. }) = going.read {
        let (merged, refused) = merged(hub);
        let bad = bad + refused.saturating_sub(going.before.1);
        if bad > 0 {
            hub.metrics.program.bad_rows.inc_by(bad);
            let example = bad_example.unwrap_or_default();
            hub.warn(&format!("skipped {bad} invalid rows of the database: {example}"), None);
        }
        debug!(applied = merged.saturating_sub(going.before.0), "imported");
    }
    hub.metrics.import_seconds.observe(going.began.elapsed().as_secs_f64());
}

fn merged(hub: &Hub) -> (u64, u64) {
    hub.state(|state, _| (state.figures.imports_merged, state.figures.imports_refused))
}
