//! After a loss, reads the counts that this region itself has published.

use super::calls::{Global, count, failure};
use crate::region::hub::Hub;
use crate::telemetry::metrics::Operation;
use std::sync::Arc;
use std::time::Instant;
use tracing::{info, warn};
use weir_core::replication::Next;
use weir_core::replication::global::paging::ReadPage;
use weir_core::replication::global::recover::Recovery;

/// Recovers after each loss, until the program ends.
pub(super) async fn run(hub: Arc<Hub>, global: Arc<Global>, mut recovery: Recovery) {
    while let Some(next) = step(&hub, &global, &mut recovery).await {
        hub.idle(next).await;
    }
}

/// Before the program serves: reads what the region had published, within a bound.
pub(super) async fn before_serving(hub: &Hub, global: &Global) -> Recovery {
    let mut recovery = Recovery::before_serving(global.schedule, hub.moment().mono);
    while !recovery.may_serve(hub.moment().mono) {
        if let Some(next) = step(hub, global, &mut recovery).await {
            hub.idle(next).await;
        }
    }
    if hub.state(|state, _| state.is_recovering()) {
        let cells = recovered(hub);
        warn!(
            cells,
            "not all counts that this region had published could be read in time; serving without the rest, which is read meanwhile"
        );
    }
    recovery
}

/// The next step; a call is made here. `None` if the machine has ended.
async fn step(hub: &Hub, global: &Global, recovery: &mut Recovery) -> Option<Next<ReadPage>> {
    match recovery.next(&mut &*hub) {
        Next::Call(page) => {
            read(hub, global, recovery, page).await;
            Some(Next::Yield)
        }
        Next::Over => None,
        idle => Some(idle),
    }
}

async fn read(hub: &Hub, global: &Global, recovery: &mut Recovery, page: ReadPage) {
    let started = Instant::now();
    let result = global.database.own(&page).await;
    count(hub, global, Operation::Recover, started, &result);
    recovery.recovered(&mut &*hub, result.as_ref().map(|own| &own.page).map_err(failure));
    if let Err(error) = &result {
        hub.warn(&format!("could not read the counts that this region had published: {error}"), None);
    }
    let cells = recovered(hub);
    if cells > 0 && !hub.state(|state, _| state.is_recovering()) {
        info!(cells, "read the counts that this region had published");
    }
}

fn recovered(hub: &Hub) -> u64 {
    hub.state(|state, _| state.figures.recovered)
}
