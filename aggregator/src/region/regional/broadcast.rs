//! Messages among the region's aggregators: changed cells, soon after the change. The hot index is read in case a message
//! was missed.

use super::calls::{Regional, count, counted, failures};
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

/// Publishes to the peers what changed here, until the program ends.
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

/// Publishes a message to the peers.
pub(super) async fn send(hub: &Hub, regional: &Regional, changes: &Changes) -> Result<(), Failure> {
    let message = changes.encode_to_vec();
    let started = Instant::now();
    let result = regional.store.publish(&message, regional.within()).await;
    counted(&hub.metrics, Operation::Broadcast, started, result)
}

/// Processes the messages of the peers, until the program ends.
pub async fn listen(hub: Arc<Hub>, regional: Arc<Regional>) {
    let mut messages = regional.store.subscribe();
    while let Some(received) = messages.recv().await {
        match received {
            Received::Connected => broadcast::connected(&mut &*hub),
            Received::Message(message) => {
                if broadcast::receive(&mut &*hub, &regional.id, &message).is_err() {
                    hub.warn("an aggregator of this region sent a message that cannot be decoded", None);
                }
            }
        }
    }
}

/// Reads the hot index repeatedly, until the program ends.
pub async fn read_hot(hub: Arc<Hub>, regional: Arc<Regional>) {
    let mut reader = HotReader::new(regional.schedule);
    let mut started = Instant::now();
    loop {
        let ended = match reader.next(&mut &*hub) {
            Next::Call(Call::Shard(shard)) => {
                started = Instant::now();
                let hot = regional.store.hot(shard, hub.now(), SHARD_CELLS, regional.within()).await;
                if let Err(error) = &hot {
                    debug!(%error, "could not read the hot index");
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
