//! The connected streams: their Envoys, since when they are connected, and when the last frame arrived.

use crate::region::status::counters::{Counters, OfStream};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use weir_core::model::key::NodeId;
use weir_core::model::time::MonoMs;
use weir_core::model::wire;

use super::Status;

/// Most Envoys that are listed.
pub const MAX_SHOWN: usize = 256;

/// The open streams.
#[derive(Default)]
pub struct Streams {
    streams: Mutex<BTreeMap<u64, Arc<Stream>>>,
    next: AtomicU64,
}

struct Stream {
    node: NodeId,
    address: Option<SocketAddr>,
    since: MonoMs,
    received: AtomicU64,
    subscriber: AtomicBool,
}

/// An open stream's entry; removed when it is dropped.
pub struct Seat<'a> {
    status: &'a Status,
    id: u64,
    stream: Arc<Stream>,
    counted: OfStream,
}

/// An Envoy, or the embedded limiter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Envoy {
    /// The node of its process.
    pub node: String,
    /// The address of the last of its streams; `None` for the embedded limiter.
    pub address: Option<String>,
    /// Its open streams, one for each worker.
    pub streams: u64,
    /// Time since the first of these connected, in milliseconds.
    pub connected_ms: u64,
    /// Time since the last frame of any of them, in milliseconds.
    pub silent_ms: u64,
    /// Whether one of them is the subscriber.
    pub subscriber: bool,
}

impl Streams {
    /// Every connected Envoy, ordered by node, at most [`MAX_SHOWN`]; and how many there are.
    pub fn envoys(&self, now: MonoMs) -> (Vec<Envoy>, usize) {
        let mut found: BTreeMap<NodeId, Envoy> = BTreeMap::new();
        for stream in self.streams.lock().values() {
            let (connected_ms, silent_ms) =
                (now.since(stream.since), now.since(MonoMs(stream.received.load(Relaxed))));
            let envoy = found.entry(stream.node).or_insert_with(|| Envoy {
                node: stream.node.to_string(),
                address: None,
                streams: 0,
                connected_ms,
                silent_ms,
                subscriber: false,
            });
            envoy.streams += 1;
            envoy.connected_ms = envoy.connected_ms.max(connected_ms);
            envoy.silent_ms = envoy.silent_ms.min(silent_ms);
            envoy.subscriber |= stream.subscriber.load(Relaxed);
            envoy.address = stream.address.map(|address| address.to_string());
        }
        let all = found.len();
        (found.into_values().take(MAX_SHOWN).collect(), all)
    }

    /// The number of connected Envoys, without the embedded limiter.
    pub fn connected(&self) -> usize {
        let streams = self.streams.lock();
        let envoys = streams.values().filter(|stream| stream.address.is_some());
        envoys.map(|stream| stream.node).collect::<BTreeSet<_>>().len()
    }

    /// The connected nodes.
    pub fn nodes(&self) -> BTreeSet<NodeId> {
        self.streams.lock().values().map(|stream| stream.node).collect()
    }
}

impl Status {
    /// Adds an entry for a stream.
    pub fn seat(&self, node: NodeId, address: Option<SocketAddr>, now: MonoMs) -> Seat<'_> {
        let id = self.streams.next.fetch_add(1, Relaxed);
        let stream = Arc::new(Stream {
            node,
            address,
            since: now,
            received: AtomicU64::new(now.0),
            subscriber: AtomicBool::new(false),
        });
        self.streams.streams.lock().insert(id, stream.clone());
        Seat { status: self, id, stream, counted: OfStream::default() }
    }
}

impl Seat<'_> {
    /// Takes the time and the counters of a frame.
    pub fn received(&mut self, counters: Option<&wire::Counters>, now: MonoMs) {
        self.stream.received.store(now.0, Relaxed);
        if let Some(counters) = counters {
            self.status.counters.lock().take(&mut self.counted, counters, now);
        }
    }

    /// Sets whether the stream is its process' subscriber.
    pub fn subscribes(&self, subscribes: bool) {
        self.stream.subscriber.store(subscribes, Relaxed);
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.status.streams.streams.lock().remove(&self.id);
        Counters::left(&mut self.status.counters.lock(), &self.counted);
    }
}
