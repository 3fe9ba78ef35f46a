//! Which streams belong to which Envoy, and which of them is the subscriber.
//!
//! Each worker of an Envoy has a stream; one of them subscribes for the whole process.

use crate::model::key::NodeId;
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
    nodes: BTreeMap<NodeId, OfOne>,
}

/// The streams of one Envoy.
#[derive(Debug, Default)]
struct OfOne {
    open: usize,
    subscriber: Option<StreamId>,
}

impl Streams {
    pub(super) fn enter(&mut self, node: NodeId) -> Entered {
        self.last = self.last.saturating_add(1);
        let streams = self.nodes.entry(node).or_default();
        streams.open = streams.open.saturating_add(1);
        Entered { id: StreamId(self.last), is_first: streams.open == 1 }
    }

    /// Returns true if it was the last stream of its Envoy.
    pub(super) fn leave(&mut self, node: NodeId) -> bool {
        let Some(streams) = self.nodes.get_mut(&node) else { return false };
        streams.open = streams.open.saturating_sub(1);
        let is_last = streams.open == 0;
        if is_last {
            self.nodes.remove(&node);
        }
        is_last
    }

    /// Returns the stream that it replaces as subscriber.
    pub(super) fn subscribe(&mut self, node: NodeId, id: StreamId) -> Option<StreamId> {
        self.nodes.entry(node).or_default().subscriber.replace(id)
    }

    /// Returns false if another stream is the subscriber.
    pub(super) fn unsubscribe(&mut self, node: NodeId, id: StreamId) -> bool {
        let streams = self.nodes.get_mut(&node);
        streams.is_some_and(|streams| streams.subscriber.take_if(|subscriber| *subscriber == id).is_some())
    }

    pub(super) fn subscribes(&self, node: NodeId, id: StreamId) -> bool {
        self.nodes.get(&node).is_some_and(|streams| streams.subscriber == Some(id))
    }

    pub(super) fn subscribers(&self) -> impl Iterator<Item = (NodeId, StreamId)> + '_ {
        self.nodes.iter().filter_map(|(node, streams)| Some((*node, streams.subscriber?)))
    }
}
