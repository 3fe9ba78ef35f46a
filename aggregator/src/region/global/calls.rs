//! The database in use, and how its calls are counted.

use crate::database::{Database, DatabaseError};
use crate::region::hub::Hub;
use crate::telemetry::metrics::Operation;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;
use tokio::sync::Notify;
use tracing::info;
use weir_core::model::schedule::Schedule;
use weir_core::replication::Failure;

/// The database, and the schedule of its calls.
pub struct Global {
    /// The database.
    pub database: Database,
    /// Identifies this aggregator in the region lease, and gives the number of its packets' writer.
    pub(super) id: [u8; 16],
    /// Intervals, timeouts and circuit breakers of the calls.
    pub schedule: Schedule,
    /// Whether the last import failed, and the last call of any other kind. They are separate, as only the replica may be
    /// unavailable.
    failing: [AtomicBool; 2],
    /// A packet was exchanged, or has failed.
    pub(super) exchanged: Notify,
}

impl Global {
    /// A database that has not been called yet. `id` is that of this aggregator, also in its Redis.
    pub fn new(database: Database, schedule: Schedule, id: [u8; 16]) -> Global {
        Global { database, id, schedule, failing: Default::default(), exchanged: Notify::new() }
    }

    /// Stores whether a call failed. True if it succeeded and all failures before it are over.
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
}

/// Counts a call that began at `started` in the metrics.
pub(super) fn count<T>(
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
        info!("database available again");
    }
}

pub(super) fn failure(error: &DatabaseError) -> Failure {
    use crate::database::Reason;
    match error.kind() {
        Reason::Timeout => Failure::Timeout,
        Reason::Unavailable => Failure::Unavailable,
        _ => Failure::Refused,
    }
}
