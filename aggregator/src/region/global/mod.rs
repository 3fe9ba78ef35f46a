//! The global store in use: the counts that regions exchange through the database.
//!
//! In reading order: `sync` (packets: this region's counts are written, and what others have written since is read), `import` (all counts
//! of the other regions are read, once a minute), `lease` (a region without a Redis has one aggregator), `recover` (after a loss, a region
//! reads its own counts). All drive state machines of `weir_core::replication::global`.
//!
//! At the start, an aggregator reads before it serves, within a bound ([`Start`]). Requests wait for none of this.

mod calls;
mod import;
pub mod lease;
mod recover;
mod sync;

use crate::region::hub::Hub;
use import::ImportTask;
use recover::RecoverTask;
use std::sync::Arc;
use sync::SyncTask;
use tokio::task::JoinSet;
use weir_core::replication::global::recover::Recovery;

pub use calls::Global;

/// The tasks that have read the database before the program serves, and go on afterwards.
pub struct Start {
    sync: SyncTask,
    import: ImportTask,
    recovery: Recovery,
}

/// Before the program serves: reads what other regions have published and, if this aggregator alone holds its region's counts, what this
/// region has published itself.
pub async fn before_serving(hub: &Arc<Hub>, global: &Arc<Global>, alone: bool) -> Start {
    let own = async {
        let mut sync = SyncTask::new(hub, global);
        let recovery = match alone {
            true => {
                // Its marker shows from then on if the rows are lost that are read here.
                sync.exchange_first(hub).await;
                recover::before_serving(hub, global).await
            }
            false => Recovery::new(global.schedule),
        };
        (sync, recovery)
    };
    // Boxed, as the program's start would otherwise hold the states of both on its stack.
    let ((sync, recovery), import) =
        tokio::join!(Box::pin(own), Box::pin(import::before_serving(hub, global)));
    Start { sync, import, recovery }
}

/// The program serves: starts the tasks that exchange packets, import and recover.
pub fn start(hub: &Arc<Hub>, global: &Arc<Global>, start: Start, tasks: &mut JoinSet<()>) {
    let Start { sync, mut import, mut recovery } = start;
    import.serve();
    recovery.serve(&mut &**hub);
    hub.start(sync, tasks);
    hub.start(import, tasks);
    hub.start(RecoverTask { global: global.clone(), recovery }, tasks);
}

/// Before the program ends: publishes all that is due, and waits until the database holds it.
pub async fn publish_last(hub: &Hub, global: &Global) {
    let began = hub.state(|state, now| {
        state.publish_all();
        now.mono
    });
    loop {
        let exchanged = global.exchanged.notified();
        if hub.state(|state, _| state.figures.published_at.is_some_and(|at| at >= began)) {
            return;
        }
        exchanged.await;
    }
}
