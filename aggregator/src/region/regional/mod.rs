//! The region's store at work: what several aggregators of one region do to be of one mind.
//!
//! In reading order: `replay` (what filters reported goes to the store), `consult` (the store's word on a question),
//! `broadcast` (what the other aggregators say, and the hot index behind it), `watch` (is it there, has it lost
//! anything, who is alive). Each drives a machine of `weir_core::replication`: it makes the calls, and hands back what came
//! of them.
//!
//! While the store is away, or as long as its breaker says so, everything is answered from memory; what it could not
//! be told waits, one entry for each cell.
//!
//! Leaves to others: the store itself (`store`), all that is decided (`weir_core::replication`).

mod broadcast;
mod consult;
mod replay;
mod watch;

use crate::redis::{PeerStatus, Store, StoreError};
use crate::region::hub::Hub;
use crate::telemetry::metrics::{Metrics, Operation};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use weir_core::model::schedule::Schedule;
use weir_core::model::wire::Changes;
use weir_core::replication::Failure;

pub use consult::answer;

/// The store, and when it is spoken to.
pub struct Regional {
    store: Store,
    /// Names this aggregator among those of its region.
    id: [u8; 16],
    /// When it is spoken to.
    pub schedule: Schedule,
}

impl Regional {
    /// A store that nothing is known of yet.
    pub fn new(store: Store, schedule: Schedule) -> Regional {
        Regional { store, id: rand::random(), schedule }
    }

    /// Names this aggregator among those of its region.
    pub fn id(&self) -> &[u8; 16] {
        &self.id
    }

    /// Says how this aggregator is, and hears how the others are.
    pub async fn exchange_status(&self, word: &[u8]) -> Result<Vec<PeerStatus>, StoreError> {
        self.store.status(&self.id, word, self.within()).await
    }

    /// Is none of the region's aggregators any more.
    pub async fn forget_status(&self) -> Result<(), StoreError> {
        self.store.forget_status(&self.id, self.within()).await
    }

    /// How long most calls may take.
    fn within(&self) -> Duration {
        Duration::from_millis(self.schedule.replay_timeout_ms)
    }
}

/// Begins everything that goes on beside streams.
pub fn start(hub: &Arc<Hub>, regional: &Arc<Regional>, tasks: &mut JoinSet<()>) {
    let (hub, regional) = (|| hub.clone(), || regional.clone());
    tasks.spawn(replay::run(hub(), regional()));
    tasks.spawn(watch::run(hub(), regional()));
    tasks.spawn(watch::heartbeat(hub(), regional()));
    tasks.spawn(broadcast::publish(hub(), regional()));
    tasks.spawn(broadcast::listen(hub(), regional()));
    tasks.spawn(broadcast::read_hot(hub(), regional()));
}

/// Tells the region's other aggregators that live controls changed. Should that be lost, their next interval finds out.
pub async fn broadcast_controls(hub: &Hub, regional: &Regional) {
    let changes = Changes { sender: regional.id.to_vec(), controls_changed: true, ..Changes::default() };
    // A failure is counted where it happens.
    let _ = broadcast::send(hub, regional, &changes).await;
}

/// Counts a call that began at `started`, and says of its failure what matters to the core.
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

/// The same of a call of several parts, whose first error speaks for all that failed.
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
