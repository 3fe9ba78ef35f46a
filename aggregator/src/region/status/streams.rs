//! Who is connected: each stream, whose it is, since when, and when it was last heard.
//!
//! Leaves to others: what streams say (`stream`), who counts as alive (`weir_core::region`).

use crate::region::status::counters::{Counters, OfStream};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use weir_core::model::key::OriginId;
use weir_core::model::time::MonoMs;
use weir_core::model::wire;

use super::Status;

/// Most Envoys that are shown.
pub const MAX_SHOWN: usize = 256;

/// The streams that are open.
#[derive(Default)]
pub struct Streams {
    streams: Mutex<BTreeMap<u64, Arc<Stream>>>,
    next: AtomicU64,
}

struct Stream {
    origin: OriginId,
    address: Option<SocketAddr>,
    since: MonoMs,
    received: AtomicU64,
    subscriber: AtomicBool,
}

/// A stream's place among the others, for as long as it is open.
pub struct Seat<'a> {
    status: &'a Status,
    id: u64,
    stream: Arc<Stream>,
    said: OfStream,
}

/// An Envoy, or what decides within this program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Envoy {
    /// Its process.
    pub origin: String,
    /// Where it connects from; the last of its streams. `None`: within this program.
    pub address: Option<String>,
    /// Workers connected here.
    pub streams: u64,
    /// Since the first of these connected.
    pub connected_ms: u64,
    /// Since any of them said anything.
    pub silent_ms: u64,
    /// One of them is told what others used.
    pub subscriber: bool,
}

impl Streams {
    /// Every Envoy connected here in the order of their origins, at most [`MAX_SHOWN`], and how many there are.
    pub fn envoys(&self, now: MonoMs) -> (Vec<Envoy>, usize) {
        let mut found: BTreeMap<OriginId, Envoy> = BTreeMap::new();
        for stream in self.streams.lock().values() {
            let (connected_ms, silent_ms) =
                (now.since(stream.since), now.since(MonoMs(stream.received.load(Relaxed))));
            let envoy = found.entry(stream.origin).or_insert_with(|| Envoy {
                origin: stream.origin.to_string(),
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

    /// Envoys connected here: this program's APIs are none.
    pub fn connected(&self) -> usize {
        let streams = self.streams.lock();
        let envoys = streams.values().filter(|stream| stream.address.is_some());
        envoys.map(|stream| stream.origin).collect::<BTreeSet<_>>().len()
    }

    /// Origins connected here.
    pub fn origins(&self) -> BTreeSet<OriginId> {
        self.streams.lock().values().map(|stream| stream.origin).collect()
    }
}

impl Status {
    /// Gives a stream its seat.
    pub fn seat(&self, origin: OriginId, address: Option<SocketAddr>, now: MonoMs) -> Seat<'_> {
        let id = self.streams.next.fetch_add(1, Relaxed);
        let stream = Arc::new(Stream {
            origin,
            address,
            since: now,
            received: AtomicU64::new(now.0),
            subscriber: AtomicBool::new(false),
        });
        self.streams.streams.lock().insert(id, stream.clone());
        Seat { status: self, id, stream, said: OfStream::default() }
    }
}

impl Seat<'_> {
    /// The stream said something.
    pub fn received(&mut self, counters: Option<&wire::Counters>, now: MonoMs) {
        self.stream.received.store(now.0, Relaxed);
        if let Some(counters) = counters {
            self.status.counters.lock().take(&mut self.said, counters, now);
        }
    }

    /// It is told what others used, or not.
    pub fn subscribes(&self, subscribes: bool) {
        self.stream.subscriber.store(subscribes, Relaxed);
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.status.streams.streams.lock().remove(&self.id);
        Counters::left(&mut self.status.counters.lock(), &self.said);
    }
}
