//! A region that has lost everything reads what it has published itself.
//!
//! Leaves to others: how often, and what becomes of it (`weir_core::replication::globe::recover`).

use super::{Global, count, failure};
use crate::region::hub::Hub;
use crate::telemetry::metrics::Operation;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{info, warn};
use weir_core::replication::Next;
use weir_core::replication::globe::recover::{Own, Recovery};

/// Recovers after each loss, for as long as the program runs.
pub async fn run(hub: Arc<Hub>, global: Arc<Global>) {
    drive(&hub, &global, Recovery::new(global.schedule)).await;
}

/// Recovers for as long as the machine does.
pub(super) async fn drive(hub: &Hub, global: &Global, mut recovery: Recovery) {
    loop {
        match recovery.next(&mut &*hub) {
            Next::Call(call) => read(hub, global, &mut recovery, call).await,
            Next::Over => return,
            idle => drop(hub.idle(idle).await),
        }
    }
}

async fn read(hub: &Hub, global: &Global, recovery: &mut Recovery, call: Own) {
    let started = Instant::now();
    let result = global.database.own(hub.now(), Duration::from_millis(call.within_ms)).await;
    count(hub, global, Operation::Recover, started, &result);
    let own = result.as_ref().map(|own| own.cells.as_slice());
    recovery.recovered(&mut &*hub, own.map_err(failure));
    match &result {
        Ok(own) if !own.cells.is_empty() => {
            info!(cells = own.cells.len(), "read what this region had published");
        }
        Ok(_) => {}
        Err(error) => warn!(%error, "could not read what this region had published"),
    }
}
