//! The others' use comes in.
//!
//! Leaves to others: when, and what becomes of it (`weir_core::replication::globe::import`), the query (`database`).

use super::{Global, count, failure};
use crate::database::{DatabaseError, Imported};
use crate::region::shared::Shared;
use crate::telemetry::metrics::Operation;
use crate::telemetry::spans::{Round, around};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::debug;
use weir_core::replication::Next;
use weir_core::replication::globe::import::{Import, Importer};

/// Imports for as long as the program runs.
pub async fn run(shared: Arc<Shared>, global: Arc<Global>) {
    let importer = Importer::new(global.cadence, shared.moment().mono, rand::random());
    drive(&shared, &global, importer).await;
}

/// An import that is under way.
struct Going {
    began: Instant,
    /// Rows that were read, or none if that failed.
    read: Option<Imported>,
    /// Cells merged and refused so far, of all imports.
    before: (u64, u64),
}

/// Imports for as long as the machine does; what goes wrong is counted and said.
pub(super) async fn drive(shared: &Shared, global: &Global, mut importer: Importer) {
    let mut going: Option<Going> = None;
    let mut round = Round::new("import");
    loop {
        let next = importer.next(&mut &*shared, rand::random());
        match next {
            Next::Call(call) => going = Some(read(shared, global, &mut importer, call, &mut round).await),
            Next::Yield => drop(shared.idle(next).await),
            idle => {
                round.end();
                if let Some(going) = going.take() {
                    conclude(shared, going);
                }
                if idle == Next::Over {
                    return;
                }
                shared.idle(idle).await;
            }
        }
    }
}

async fn read(
    shared: &Shared,
    global: &Global,
    importer: &mut Importer,
    call: Import,
    round: &mut Round,
) -> Going {
    let (began, before, span) = (Instant::now(), merged(shared), round.call(&shared.telemetry));
    let importing = global.database.import(shared.now(), Duration::from_millis(call.within_ms));
    let result = around(span.as_ref(), importing).await;
    let cells = result.as_ref().map_or(0, |imported| imported.cells.len() as u64);
    round.called(cells, result.as_ref().err().map(DatabaseError::reason));
    count(shared, Operation::Import, began, &result);
    match result {
        Ok(mut imported) => {
            let polled = i64::try_from(imported.cells.len()).unwrap_or(i64::MAX);
            shared.metrics.global_rows_last_poll.set(polled);
            if imported.truncated {
                shared.warn("there are more cells in the database than are imported at once", None);
            }
            importer.imported(&mut &*shared, Ok(std::mem::take(&mut imported.cells)));
            Going { began, read: Some(imported), before }
        }
        Err(error) => {
            shared.metrics.global_sync_failed(error.reason());
            shared.warn(&format!("nothing could be imported: {error}"), None);
            importer.imported(&mut &*shared, Err(failure(&error)));
            Going { began, read: None, before }
        }
    }
}

fn conclude(shared: &Shared, going: Going) {
    if let Some(Imported { bad, bad_example, .. }) = going.read {
        let (merged, refused) = merged(shared);
        let bad = bad + refused.saturating_sub(going.before.1);
        if bad > 0 {
            shared.metrics.bad_rows.inc_by(bad);
            let example = bad_example.unwrap_or_default();
            shared.warn(&format!("{bad} rows of the database are skipped: {example}"), None);
        }
        debug!(applied = merged.saturating_sub(going.before.0), "imported");
    }
    shared.metrics.import_seconds.observe(going.began.elapsed().as_secs_f64());
}

fn merged(shared: &Shared) -> (u64, u64) {
    shared.desk(|desk, _| (desk.figures.imports_merged, desk.figures.imports_refused))
}
