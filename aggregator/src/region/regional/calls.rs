//! The regional store in use, and how its calls are counted.

use crate::redis::{PeerStatus, Store, StoreError};
use crate::telemetry::metrics::{Metrics, Operation};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use weir_core::model::schedule::Schedule;
use weir_core::replication::Failure;

/// The store, and the schedule of its calls.
pub struct Regional {
    pub(super) store: Store,
    /// Identifies this aggregator among those of its region.
    pub(super) id: [u8; 16],
    /// Intervals, timeouts and circuit breakers of the calls.
    pub schedule: Schedule,
    /// By marker, the policy by which its server evicts keys; none should. One that does not answer keeps its last answer.
    pub(super) evicts: Mutex<BTreeMap<usize, Option<String>>>,
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
    pub(super) fn within(&self) -> Duration {
        Duration::from_millis(self.schedule.replay_timeout_ms)
    }
}

/// Counts a call that began at `started` in the metrics, and converts its error for the core.
pub(super) fn counted<T>(
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
pub(super) fn counted_parts<T>(
    metrics: &Metrics,
    operation: Operation,
    started: Instant,
    results: Vec<Result<T, StoreError>>,
) -> Vec<Result<T, Failure>> {
    let results = failures(results);
    count(metrics, operation, started, results.iter().find_map(|result| result.as_ref().err()));
    results
}

pub(super) fn count(metrics: &Metrics, operation: Operation, started: Instant, failure: Option<&Failure>) {
    metrics.operation(operation, started.elapsed());
    if let Some(failure) = failure {
        metrics.operation_failed(operation, failure.as_str());
    }
}

pub(super) fn failures<T>(results: Vec<Result<T, StoreError>>) -> Vec<Result<T, Failure>> {
    results.into_iter().map(|result| result.map_err(|error| error.failure())).collect()
}
