//! After a loss, reads the counts that this region itself has published.

use super::calls::{Global, count, failure};
use crate::region::hub::Hub;
use crate::region::machine::Machine;
use crate::telemetry::metrics::Operation;
use std::sync::Arc;
use std::time::Instant;
use tracing::{info, warn};
use weir_core::replication::Next;
use weir_core::replication::global::paging::ReadPage;
use weir_core::replication::global::recover::Recovery;

/// Recovers after each loss.
pub(super) struct RecoverTask {
    pub(super) global: Arc<Global>,
    pub(super) recovery: Recovery,
}

/// Before the program serves: reads what the region had published, within a bound.
pub(super) async fn before_serving(hub: &Arc<Hub>, global: &Arc<Global>) -> Recovery {
    let recovery = Recovery::before_serving(global.schedule, hub.moment().mono);
    let mut task = RecoverTask { global: global.clone(), recovery };
    hub.drive_until(&mut task, |task, hub| task.recovery.may_serve(hub.moment().mono)).await;
    if hub.state(|state, _| state.is_recovering()) {
        let cells = recovered(hub);
        warn!(
            cells,
            "not all counts that this region had published could be read in time; serving without the rest, which is read meanwhile"
        );
    }
    task.recovery
}

impl Machine for RecoverTask {
    type Call = ReadPage;

    fn next(&mut self, mut hub: &Hub) -> Next<ReadPage> {
        self.recovery.next(&mut hub)
    }

    async fn call(&mut self, hub: &Arc<Hub>, page: ReadPage) {
        read(hub, &self.global, &mut self.recovery, page).await;
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
