//! Messages between the aggregators of a region: one publish/subscribe channel of opaque messages. Any message may be
//! lost.
//!
//! Messages are lost if the connection breaks, or if the reader is too slow. In both cases the reader receives
//! [`Received::Connected`] and must then read what it may have missed.

use super::Store;
use super::cluster::nodes::Nodes;
use super::command::Command;
use super::connection::HUNG_AFTER;
use super::error::StoreError;
use redis::aio::{PubSubSink, PubSubStream};
use std::sync::Weak;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_stream::StreamExt;

/// Longest message that is passed on; Weir's own messages are less than half as long. A longer one counts as lost.
const MAX_MESSAGE_BYTES: usize = 1024 * 1024;
/// Most messages queued for the reader.
const MAX_WAITING: usize = 1_024;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(100);
const PING_INTERVAL: Duration = Duration::from_millis(500);

/// An event of the channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// Messages are received from now on; earlier ones may be lost. Sent first, and after every gap.
    Connected,
    /// A published message, possibly the reader's own.
    Message(Vec<u8>),
}

impl Store {
    /// Publishes `payload` to all current subscribers.
    pub async fn publish(&self, payload: &[u8], within: Duration) -> Result<(), StoreError> {
        let channel = self.inner.names.channel();
        let mut what = redis::cmd("PUBLISH");
        what.arg(&channel).arg(payload);
        self.run_one(Command::on(&channel, what), within).await.map(|_| ())
    }

    /// Subscribes to the channel, for as long as both the receiver and the store exist. Reconnects by itself.
    pub fn subscribe(&self) -> mpsc::Receiver<Received> {
        let (received, receiver) = mpsc::channel(MAX_WAITING);
        let nodes = std::sync::Arc::downgrade(&self.inner.nodes);
        tokio::spawn(listen(nodes, self.inner.names.channel(), received));
        receiver
    }
}

async fn listen(nodes: Weak<Nodes>, channel: String, received: mpsc::Sender<Received>) {
    for attempt in 0.. {
        let subscribed = tokio::select! {
            () = received.closed() => return,
            subscribed = connect(&nodes, &channel, attempt) => subscribed,
        };
        if let Some((sink, messages)) = subscribed {
            receive(&nodes, sink, messages, &received).await;
        }
        tokio::select! {
            () = received.closed() => return,
            () = sleep(RETRY) => {}
        }
        if nodes.strong_count() == 0 {
            return;
        }
    }
}

async fn connect(nodes: &Weak<Nodes>, channel: &str, attempt: usize) -> Option<(PubSubSink, PubSubStream)> {
    let target = nodes.upgrade()?.any_target(attempt)?;
    let server = target.find().await.ok()?;
    let subscribed = async {
        let mut connection = server.get_async_pubsub().await?;
        connection.subscribe(channel).await?;
        redis::RedisResult::Ok(connection.split())
    };
    timeout(CONNECT_TIMEOUT, subscribed).await.ok()?.ok()
}

/// Passes messages on until the connection breaks or hangs, or the receiver is dropped.
async fn receive(
    nodes: &Weak<Nodes>,
    sink: PubSubSink,
    mut messages: PubSubStream,
    received: &mpsc::Sender<Received>,
) {
    // The reader must receive the gap before the next message.
    let mut gap = true;
    let mut alive = std::pin::pin!(ping(nodes, sink));
    loop {
        if gap {
            match received.try_reserve() {
                Ok(room) => {
                    room.send(Received::Connected);
                    gap = false;
                }
                Err(mpsc::error::TrySendError::Closed(())) => return,
                Err(mpsc::error::TrySendError::Full(())) => {}
            }
        }
        tokio::select! {
            () = received.closed() => return,
            () = &mut alive => return,
            // A reader whose queue was full receives the gap as soon as the queue has room.
            _ = received.reserve(), if gap => {}
            message = messages.next() => match message {
                None => return,
                Some(_) if gap => {}
                Some(message) if message.get_payload_bytes().len() > MAX_MESSAGE_BYTES => gap = true,
                Some(message) => {
                    gap = received.try_send(Received::Message(message.get_payload_bytes().to_vec())).is_err();
                }
            },
        }
    }
}

/// Returns if the server does not answer, or if the store was dropped.
async fn ping(nodes: &Weak<Nodes>, mut sink: PubSubSink) {
    while nodes.strong_count() > 0 {
        sleep(PING_INTERVAL).await;
        match timeout(HUNG_AFTER, sink.ping::<redis::Value>()).await {
            Ok(Ok(_)) => {}
            _ => return,
        }
    }
}
