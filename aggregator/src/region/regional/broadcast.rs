//! What the region's aggregators tell each other: changed cells, soon; and the hot index, in case that was missed.
//!
//! Leaves to others: what is told, believed and read again (`weir_core::replication`), connections (`store`).

use super::{Regional, count, counted, failures};
use crate::redis::Received;
use crate::region::hub::Hub;
use crate::telemetry::metrics::Operation;
use prost::Message;
use std::sync::Arc;
use std::time::Instant;
use tracing::debug;
use weir_core::model::wire::Changes;
use weir_core::replication::regional::broadcast::{self, Broadcaster};
use weir_core::replication::regional::hot::{Call, HotReader, SHARD_CELLS};
use weir_core::replication::{Failure, Next};

/// Tells the others what changed here, for as long as the program runs.
pub async fn publish(hub: Arc<Hub>, regional: Arc<Regional>) {
    let mut broadcaster = Broadcaster::new(regional.id, regional.schedule);
    loop {
        match broadcaster.next(&mut &*hub) {
            Next::Call(changes) => {
                let result = send(&hub, &regional, &changes).await;
                broadcaster.sent(&mut &*hub, result);
            }
            idle => drop(hub.idle(idle).await),
        }
    }
}

/// Sends a message to the others.
pub(super) async fn send(hub: &Hub, regional: &Regional, changes: &Changes) -> Result<(), Failure> {
    let message = changes.encode_to_vec();
    let started = Instant::now();
    let result = regional.store.publish(&message, regional.within()).await;
    counted(&hub.metrics, Operation::Broadcast, started, result)
}

/// Takes what the others say, for as long as the program runs.
pub async fn listen(hub: Arc<Hub>, regional: Arc<Regional>) {
    let mut heard = regional.store.subscribe();
    while let Some(heard) = heard.recv().await {
        match heard {
            Received::Connected => broadcast::connected(&mut &*hub),
            Received::Message(message) => {
                if broadcast::receive(&mut &*hub, &regional.id, &message).is_err() {
                    hub.warn("an aggregator of this region sent what is no message", None);
                }
            }
        }
    }
}

/// Reads the hot index over and over, for as long as the program runs.
pub async fn read_hot(hub: Arc<Hub>, regional: Arc<Regional>) {
    let mut reader = HotReader::new(regional.schedule);
    let mut started = Instant::now();
    loop {
        let ended = match reader.next(&mut &*hub) {
            Next::Call(Call::Shard(shard)) => {
                started = Instant::now();
                let hot = regional.store.hot(shard, hub.now(), SHARD_CELLS, regional.within()).await;
                if let Err(error) = &hot {
                    debug!(%error, "the hot index could not be read");
                }
                reader.indexed(&mut &*hub, hot.map_err(|error| error.failure()))
            }
            Next::Call(Call::Cells(cells)) => {
                let results = failures(regional.store.read(&cells, regional.within()).await);
                reader.read(&mut &*hub, &cells, &results)
            }
            idle => {
                if hub.idle(idle).await.is_some() {
                    reader.notified(&mut &*hub);
                }
                None
            }
        };
        if let Some(result) = ended {
            count(&hub.metrics, Operation::ReadHot, started, result.err().as_ref());
        }
    }
}
