//! The region's nodes: those with a stream to this aggregator, and those of its peers.

use super::cell::{ELSEWHERE, Peer};
use crate::model::key::NodeId;
use crate::model::room::most_of_part;
use crate::model::time::MonoMs;
use alloc::collections::BTreeMap;

/// A node counts as alive for this long after its last frame.
const NODE_ALIVE_MS: u64 = 2_000;
/// A node of another aggregator counts for this long after it was listed last: three intervals of the list. A store that was emptied
/// lists only who has announced itself since.
const ELSEWHERE_MS: u64 = 3_000;
/// A node is removed after this long without a frame.
const SILENT_MS: u64 = 3_600_000;
/// Most nodes that are counted of one peer (an address). A peer that invents nodes can reduce the slack of the others
/// by this factor at most.
pub const MAX_NODES_OF_PEER: usize = 64;

/// The peer of the aggregator's own node, which always has a place.
pub const OWN_PEER: u64 = u64::MAX;

/// The nodes of a region.
#[derive(Debug)]
pub struct Nodes {
    max: usize,
    /// The peer from which the first stream of each connected node came.
    peers: BTreeMap<NodeId, u64>,
    /// When each node last sent a frame, by the monotonic clock. After a step of the other clock all nodes would seem
    /// dead for a moment, and each would spend as if it were alone.
    last_frames: BTreeMap<NodeId, MonoMs>,
    /// Nodes that have reported counts, each with the peer that it belongs to.
    counted: BTreeMap<NodeId, u64>,
    /// Nodes connected to the region's other aggregators, and when each was listed last.
    elsewhere: BTreeMap<NodeId, MonoMs>,
}

impl Nodes {
    /// At most `max` nodes at the same time.
    pub(super) fn new(max: usize) -> Nodes {
        Nodes {
            max,
            peers: BTreeMap::new(),
            last_frames: BTreeMap::new(),
            counted: BTreeMap::new(),
            elsewhere: BTreeMap::new(),
        }
    }

    /// Whether `node` has a stream to this aggregator.
    pub(super) fn contains(&self, node: NodeId) -> bool {
        self.last_frames.contains_key(&node)
    }

    /// Gives `node`, which opens a stream from `peer`, a place for as long as it has a stream. Returns false if there are too many nodes
    /// already, or too many of this peer: a peer that invents nodes leaves a quarter of the places to others.
    pub fn admit(&mut self, node: NodeId, peer: u64, now: MonoMs) -> bool {
        if !self.contains(node) && peer != OWN_PEER {
            if !self.has_place_of(peer) {
                self.evict_silent(now);
            }
            if !self.has_place_of(peer) {
                return false;
            }
        }
        self.peers.entry(node).or_insert(peer);
        let last = self.last_frames.entry(node).or_default();
        *last = now.max(*last);
        true
    }

    /// The peer of a node, in the form in which cells have it.
    pub(super) fn peer_of(&self, node: NodeId) -> Peer {
        // Never 0, which stands for nodes elsewhere.
        self.peers.get(&node).map_or(ELSEWHERE, |peer| ((peer ^ (peer >> 32)) as Peer).max(1))
    }

    fn has_place(&self) -> bool {
        self.last_frames.len() < self.max
    }

    fn has_place_of(&self, peer: u64) -> bool {
        let of_peer = self.peers.values().filter(|of| **of == peer).count();
        self.has_place() && of_peer < most_of_part(self.max.saturating_sub(self.last_frames.len()))
    }

    fn evict_silent(&mut self, now: MonoMs) {
        self.last_frames.retain(|_, last| now.since(*last) < SILENT_MS);
        self.counted.retain(|node, _| self.last_frames.contains_key(node));
    }

    /// Records a frame of `node`. Returns false if there are too many nodes already.
    pub fn received_from(&mut self, node: NodeId, now: MonoMs) -> bool {
        if !self.contains(node) && !self.has_place() {
            self.evict_silent(now);
            if !self.has_place() {
                return false;
            }
        }
        let last = self.last_frames.entry(node).or_default();
        *last = now.max(*last);
        true
    }

    /// Counts `node`, whose streams come from `peer`, as it has reported counts; but only if fewer than
    /// [`MAX_NODES_OF_PEER`] nodes of the same peer are counted. Returns true if it is newly counted.
    pub fn count(&mut self, node: NodeId, peer: u64) -> bool {
        if !self.contains(node) || self.counted.contains_key(&node) {
            return false;
        }
        let of_peer = self.counted.values().filter(|of| **of == peer).count();
        if of_peer < MAX_NODES_OF_PEER {
            self.counted.insert(node, peer);
        }
        of_peer < MAX_NODES_OF_PEER
    }

    /// Removes a node whose last stream has ended.
    pub(super) fn remove(&mut self, node: NodeId) {
        self.peers.remove(&node);
        self.last_frames.remove(&node);
        self.counted.remove(&node);
    }

    /// The number of nodes that sent a frame within [`NODE_ALIVE_MS`], to this aggregator or to a peer.
    pub fn alive(&self, now: MonoMs) -> usize {
        let here = self.alive_here(now).count();
        here + self.elsewhere.keys().filter(|node| !self.counted.contains_key(*node)).count()
    }

    /// The number as sent to `node`: it includes `node`, even if that has reported nothing yet.
    pub fn alive_with(&self, node: NodeId, now: MonoMs) -> usize {
        let is_counted = self.counted.contains_key(&node) || self.elsewhere.contains_key(&node);
        self.alive(now) + usize::from(!is_counted)
    }

    /// Nodes that sent a frame to this aggregator within [`NODE_ALIVE_MS`].
    pub fn alive_here(&self, now: MonoMs) -> impl Iterator<Item = NodeId> + '_ {
        let alive = move |last: &MonoMs| now.since(*last) <= NODE_ALIVE_MS;
        let alive = self.last_frames.iter().filter(move |(_, last)| alive(last)).map(|(node, _)| *node);
        alive.filter(|node| self.counted.contains_key(node))
    }

    /// Takes the list of the nodes that are alive anywhere in the region. One that is no longer listed counts for a while.
    pub fn set_elsewhere(&mut self, nodes: &[NodeId], now: MonoMs) {
        self.elsewhere.retain(|_, listed| now.since(*listed) <= ELSEWHERE_MS);
        for node in nodes {
            if self.elsewhere.len() < self.max || self.elsewhere.contains_key(node) {
                self.elsewhere.insert(*node, now);
            }
        }
    }
}
