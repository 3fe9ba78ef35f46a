//! After a loss, reads the counts that this region itself has published.

use super::{Global, count, failure};
use crate::region::hub::Hub;
use crate::telemetry::metrics::Operation;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{info, warn};
use weir_core::replication::Next;
use weir_core::replication::globe::recover::{Own, Recovery};

/// Recovers after each loss, until the program ends.
pub async fn run(hub: Arc<Hub>, global: Arc<Global>) {
    drive(&hub, &global, Recovery::new(global.schedule)).await;
}

/// Recovers until `recovery` ends.
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
    // All rows are of this region.
    let own = result.as_ref().map(|own| own.regions.first().map_or(&[][..], |region| &region.cells));
    recovery.recovered(&mut &*hub, own.map_err(failure));
    match &result {
        Ok(own) if own.cells() > 0 => {
            info!(cells = own.cells(), "read the counts that this region had published");
        }
        Ok(_) => {}
        Err(error) => warn!(%error, "could not read the counts that this region had published"),
    }
}
