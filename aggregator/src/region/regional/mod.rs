//! The regional store in use: how several aggregators of one region converge through Redis.
//!
//! In reading order: `replay` (reported counts are written to the store), `consult` (a filter's query is decided with the
//! store), `broadcast` (messages of the other aggregators, and the hot index behind them), `watch` (whether the store is
//! available, has lost data, and which Envoys are alive). Each drives a state machine of `weir_core::replication`: it makes
//! the calls and hands back their results.
//!
//! While the store is unavailable or its circuit breaker is open, everything is decided from memory. Counts that could not
//! be written wait, one entry for each cell.

mod broadcast;
mod consult;
mod replay;
mod watch;

use crate::redis::{PeerStatus, Store, StoreError};
use crate::region::hub::Hub;
use crate::telemetry::metrics::{Metrics, Operation};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use weir_core::model::schedule::Schedule;
use weir_core::model::wire::Changes;
use weir_core::replication::Failure;
use weir_core::replication::regional::watch::Watch;

pub use consult::answer;
pub use watch::before_serving;

/// The store, and the schedule of its calls.
pub struct Regional {
    store: Store,
    /// Identifies this aggregator among those of its region.
    id: [u8; 16],
    /// Intervals, timeouts and circuit breakers of the calls.
    pub schedule: Schedule,
    /// By marker, the policy by which its server evicts keys; none should. One that does not answer keeps its last answer.
    evicts: Mutex<BTreeMap<usize, Option<String>>>,
}

impl Regional {
    /// A store that has not been called yet. `id` is that of this aggregator.
    pub fn new(store: Store, schedule: Schedule, id: [u8; 16]) -> Regional {
        Regional { store, id, schedule, evicts: Mutex::default() }
    }

    /// Identifies this aggregator among those of its region.
    pub fn id(&self) -> &[u8; 16] {
        &self.id
    }

    /// The policies by which the store's servers evict keys when they are full. There should be none.
    pub fn eviction_policies(&self) -> BTreeSet<String> {
        self.evicts.lock().values().flatten().cloned().collect()
    }

    /// Writes this aggregator's status and returns the status of the others.
    pub async fn exchange_status(&self, status: &[u8]) -> Result<Vec<PeerStatus>, StoreError> {
        self.store.status(&self.id, status, self.within()).await
    }

    /// Removes this aggregator's status from the store.
    pub async fn delete_status(&self) -> Result<(), StoreError> {
        self.store.delete_status(&self.id, self.within()).await
    }

    /// The timeout of most calls.
    fn within(&self) -> Duration {
        Duration::from_millis(self.schedule.replay_timeout_ms)
    }
}

/// Starts the tasks that replay, watch, announce, and exchange messages with peers.
pub fn start(hub: &Arc<Hub>, regional: &Arc<Regional>, watch: Watch, tasks: &mut JoinSet<()>) {
    let (hub, regional) = (|| hub.clone(), || regional.clone());
    tasks.spawn(replay::run(hub(), regional()));
    tasks.spawn(watch::run(hub(), regional(), watch));
    tasks.spawn(watch::heartbeat(hub(), regional()));
    tasks.spawn(watch::eviction(hub(), regional()));
    tasks.spawn(broadcast::publish(hub(), regional()));
    tasks.spawn(broadcast::listen(hub(), regional()));
    tasks.spawn(broadcast::read_hot(hub(), regional()));
}

/// Notifies the region's other aggregators that live controls changed. If the message is lost, they read the change at their
/// next interval.
pub async fn broadcast_controls(hub: &Hub, regional: &Regional) {
    let changes = Changes { sender: regional.id.to_vec(), controls_changed: true, ..Changes::default() };
    // `send` counts a failure.
    let _ = broadcast::send(hub, regional, &changes).await;
}

/// Counts a call that began at `started` in the metrics, and converts its error for the core.
fn counted<T>(
    metrics: &Metrics,
    operation: Operation,
    started: Instant,
    result: Result<T, StoreError>,
) -> Result<T, Failure> {
    let result = result.map_err(|error| error.failure());
    count(metrics, operation, started, result.as_ref().err());
    result
}

/// The same for a call of several parts; the first error is counted for all that failed.
fn counted_parts<T>(
    metrics: &Metrics,
    operation: Operation,
    started: Instant,
    results: Vec<Result<T, StoreError>>,
) -> Vec<Result<T, Failure>> {
    let results = failures(results);
    count(metrics, operation, started, results.iter().find_map(|result| result.as_ref().err()));
    results
}

fn count(metrics: &Metrics, operation: Operation, started: Instant, failure: Option<&Failure>) {
    metrics.operation(operation, started.elapsed());
    if let Some(failure) = failure {
        metrics.operation_failed(operation, failure.as_str());
    }
}

fn failures<T>(results: Vec<Result<T, StoreError>>) -> Vec<Result<T, Failure>> {
    results.into_iter().map(|result| result.map_err(|error| error.failure())).collect()
}
