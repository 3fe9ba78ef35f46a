//! Which streams belong to which Envoy, and which of them is the subscriber.
//!
//! Each worker of an Envoy has a stream; one of them subscribes for the whole process.

use crate::model::key::OriginId;
use alloc::collections::BTreeMap;

/// Identifies one stream for as long as the aggregator runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u64);

/// A stream that was registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entered {
    /// Its number.
    pub id: StreamId,
    /// Whether it is the only open stream of its Envoy.
    pub is_first: bool,
}

#[derive(Debug, Default)]
pub(super) struct Streams {
    last: u64,
    origins: BTreeMap<OriginId, OfOne>,
}

/// The streams of one Envoy.
#[derive(Debug, Default)]
struct OfOne {
    open: usize,
    subscriber: Option<StreamId>,
}

impl Streams {
    pub(super) fn enter(&mut self, origin: OriginId) -> Entered {
        self.last = self.last.saturating_add(1);
        let streams = self.origins.entry(origin).or_default();
        streams.open = streams.open.saturating_add(1);
        Entered { id: StreamId(self.last), is_first: streams.open == 1 }
    }

    /// Returns true if it was the last stream of its Envoy.
    pub(super) fn leave(&mut self, origin: OriginId) -> bool {
        let Some(streams) = self.origins.get_mut(&origin) else { return false };
        streams.open = streams.open.saturating_sub(1);
        let is_last = streams.open == 0;
        if is_last {
            self.origins.remove(&origin);
        }
        is_last
    }

    /// Returns the stream that it replaces as subscriber.
    pub(super) fn subscribe(&mut self, origin: OriginId, id: StreamId) -> Option<StreamId> {
        self.origins.entry(origin).or_default().subscriber.replace(id)
    }

    /// Returns false if another stream is the subscriber.
    pub(super) fn unsubscribe(&mut self, origin: OriginId, id: StreamId) -> bool {
        let streams = self.origins.get_mut(&origin);
        streams.is_some_and(|streams| streams.subscriber.take_if(|subscriber| *subscriber == id).is_some())
    }

    pub(super) fn subscribes(&self, origin: OriginId, id: StreamId) -> bool {
        self.origins.get(&origin).is_some_and(|streams| streams.subscriber == Some(id))
    }

    pub(super) fn subscribers(&self) -> impl Iterator<Item = (OriginId, StreamId)> + '_ {
        self.origins.iter().filter_map(|(origin, streams)| Some((*origin, streams.subscriber?)))
    }
}
