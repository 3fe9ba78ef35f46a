//! What aggregators of a region tell each other: one channel of opaque messages, any of which may be lost.
//!
//! A message is lost where the connection breaks, and where the reader does not keep up. Both are told as
//! [`Received::Connected`], after which the reader must read what it may have missed.
//!
//! Leaves to others: what messages say; reading the hot index (`hot`).

use super::Store;
use super::cluster::nodes::{Command, Nodes};
use super::error::StoreError;
use super::slots::slot_of;
use super::wire::HUNG_AFTER;
use redis::aio::{PubSubSink, PubSubStream};
use std::sync::Weak;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_stream::StreamExt;

/// Longest message that is passed on; none of ours is half as long. A longer one counts as missed.
const MAX_MESSAGE_BYTES: usize = 1024 * 1024;
/// Messages that wait for the reader.
const MAX_WAITING: usize = 1_024;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(100);
const PING_INTERVAL: Duration = Duration::from_millis(500);

/// What came over the channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// From now on messages are heard; earlier ones may have been missed. Comes first, and after every gap.
    Connected,
    /// What somebody published, the reader itself perhaps.
    Message(Vec<u8>),
}

impl Store {
    /// Sends `payload` to all who are subscribed at this moment.
    pub async fn publish(&self, payload: &[u8], within: Duration) -> Result<(), StoreError> {
        let channel = self.inner.names.channel();
        let mut what = redis::cmd("PUBLISH");
        what.arg(&channel).arg(payload);
        self.run_one(Command { slot: slot_of(channel.as_bytes()), what }, within).await.map(|_| ())
    }

    /// Hears what is published, for as long as both the receiver and the store are kept. Connects again by itself.
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
            subscribed = timeout(CONNECT_TIMEOUT, connect(&nodes, &channel, attempt)) => subscribed,
        };
        if let Ok(Some((sink, messages))) = subscribed {
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
    let client = nodes.upgrade()?.any_client(attempt)?;
    let mut connection = client.get_async_pubsub().await.ok()?;
    connection.subscribe(channel).await.ok()?;
    Some(connection.split())
}

/// Passes messages on until the connection breaks or hangs, or nobody listens any more.
async fn receive(
    nodes: &Weak<Nodes>,
    sink: PubSubSink,
    mut messages: PubSubStream,
    received: &mpsc::Sender<Received>,
) {
    // The reader must know of the gap before it gets the next message.
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
            // A reader that stopped is told as soon as it has made room.
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

/// Returns when the server does not answer, or the store is no longer kept.
async fn ping(nodes: &Weak<Nodes>, mut sink: PubSubSink) {
    while nodes.strong_count() > 0 {
        sleep(PING_INTERVAL).await;
        match timeout(HUNG_AFTER, sink.ping::<redis::Value>()).await {
            Ok(Ok(_)) => {}
            _ => return,
        }
    }
}
