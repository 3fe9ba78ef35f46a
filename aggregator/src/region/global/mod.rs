//! The global store at work: what the regions tell each other, every ten seconds or so.
//!
//! In reading order: `publish` (this region's use goes out), `import` (the others' comes in), `lease` (a region without
//! a store of its own has one aggregator), `recover` (a region that has lost everything reads its own figures). Each drives
//! a machine of `weir_core::replication::globe`.
//!
//! An aggregator that starts reads first and serves then, if the database answers at once. Nothing else that a request
//! waits for is here.
//!
//! Leaves to others: rows and statements (`database`), all that is decided (`weir_core::replication::globe`).

pub mod cached;
mod import;
pub mod lease;
mod publish;
mod recover;

use crate::database::{Database, DatabaseError};
use crate::region::hub::Hub;
use crate::telemetry::metrics::Operation;
use cached::CachedReads;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tracing::info;
use weir_core::model::schedule::Schedule;
use weir_core::replication::Failure;
use weir_core::replication::globe::import::Importer;
use weir_core::replication::globe::recover::Recovery;

/// The database, and when it is spoken to.
pub struct Global {
    /// The database.
    pub database: Database,
    /// Names this aggregator where only one may serve.
    id: [u8; 16],
    /// When it is spoken to.
    pub schedule: Schedule,
    /// What people who look have asked.
    pub cached: CachedReads,
    /// Whether the last import failed, and the last call of any other kind: a replica may be away alone.
    failing: [AtomicBool; 2],
}

impl Global {
    /// A database that nothing is known of yet.
    pub fn new(database: Database, schedule: Schedule) -> Global {
        Global {
            database,
            id: rand::random(),
            schedule,
            cached: CachedReads::default(),
            failing: Default::default(),
        }
    }

    /// Notes how a call went; true if it is the first that was answered after some were not.
    fn is_back(&self, operation: Operation, error: Option<&DatabaseError>) -> bool {
        let of = usize::from(operation == Operation::Import);
        let Some(error) = error else {
            return self.failing[of].swap(false, Relaxed) && !self.failing[1 - of].load(Relaxed);
        };
        if matches!(failure(error), Failure::Unavailable | Failure::Timeout) {
            self.failing[of].store(true, Relaxed);
        }
        false
    }

    /// How long a call may take.
    fn within(&self) -> Duration {
        Duration::from_millis(self.schedule.global_timeout_ms)
    }
}

/// Reads once what this region has published itself.
pub async fn recover_once(hub: &Hub, global: &Global) {
    recover::drive(hub, global, Recovery::once()).await;
}

/// Imports once what other regions have published.
pub async fn import_once(hub: &Hub, global: &Global) {
    import::drive(hub, global, Importer::once()).await;
}

/// Begins everything that goes on beside streams.
pub fn start(hub: &Arc<Hub>, global: &Arc<Global>, tasks: &mut JoinSet<()>) {
    let (hub, global) = (|| hub.clone(), || global.clone());
    tasks.spawn(publish::run(hub(), global()));
    tasks.spawn(import::run(hub(), global()));
    tasks.spawn(recover::run(hub(), global()));
}

/// Counts a call that began at `started`.
fn count<T>(
    hub: &Hub,
    global: &Global,
    operation: Operation,
    started: Instant,
    result: &Result<T, DatabaseError>,
) {
    hub.metrics.operation(operation, started.elapsed());
    if let Err(error) = result {
        hub.metrics.operation_failed(operation, error.reason());
    }
    if global.is_back(operation, result.as_ref().err()) {
        info!("the database is back");
    }
}

fn failure(error: &DatabaseError) -> Failure {
    use crate::database::Reason;
    match error.kind() {
        Reason::Timeout => Failure::Timeout,
        Reason::Unavailable => Failure::Unavailable,
        _ => Failure::Refused,
    }
}
