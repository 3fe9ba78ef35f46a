//! Messages among the region's aggregators: changed cells, soon after the change. The hot index is read in case a message
//! was missed.

use super::calls::{Regional, count, counted, failures};
use crate::redis::Received;
use crate::region::hub::Hub;
use crate::region::machine::Machine;
use crate::telemetry::metrics::Operation;
use prost::Message;
use std::sync::Arc;
use std::time::Instant;
use tracing::debug;
use weir_core::model::wire::Changes;
use weir_core::replication::regional::broadcast::{self, Broadcaster};
use weir_core::replication::regional::hot::{Call, HotReader, SHARD_CELLS};
use weir_core::replication::{Event, Failure, Next};

/// Publishes to the peers what changed here.
pub(super) struct PublishTask {
    pub(super) regional: Arc<Regional>,
    pub(super) broadcaster: Broadcaster,
}

impl Machine for PublishTask {
    type Call = Changes;

    fn next(&mut self, mut hub: &Hub) -> Next<Changes> {
        self.broadcaster.next(&mut hub)
    }

    async fn call(&mut self, hub: &Arc<Hub>, changes: Changes) {
        let result = send(hub, &self.regional, &changes).await;
        self.broadcaster.sent(&mut &**hub, result);
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

/// Reads the hot index repeatedly.
pub(super) struct HotIndexTask {
    regional: Arc<Regional>,
    reader: HotReader,
    /// When the reading of the index began.
    began: Instant,
}

impl HotIndexTask {
    pub(super) fn new(regional: Arc<Regional>) -> HotIndexTask {
        let reader = HotReader::new(regional.schedule);
        HotIndexTask { regional, reader, began: Instant::now() }
    }
}

impl Machine for HotIndexTask {
    type Call = Call;

    fn next(&mut self, mut hub: &Hub) -> Next<Call> {
        self.reader.next(&mut hub)
    }

    async fn call(&mut self, hub: &Arc<Hub>, call: Call) {
        let HotIndexTask { regional, reader, began } = self;
        let ended = match call {
            Call::Shard(shard) => {
                *began = Instant::now();
                let hot = regional.store.hot(shard, hub.now(), SHARD_CELLS, regional.within()).await;
                if let Err(error) = &hot {
                    debug!(%error, "could not read the hot index");
                }
                reader.indexed(&mut &**hub, hot.map_err(|error| error.failure()))
            }
            Call::Cells(cells) => {
                let results = failures(regional.store.read(&cells, regional.within()).await);
                reader.read(&mut &**hub, &cells, &results)
            }
        };
        if let Some(result) = ended {
            count(&hub.metrics, Operation::ReadHot, *began, result.err().as_ref());
        }
    }

    fn notified(&mut self, mut hub: &Hub, _event: Event) {
        self.reader.notified(&mut hub);
    }
}
