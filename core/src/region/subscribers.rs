//! Which keys wait to be pushed to each subscriber.
//!
//! They form a set, in order of first change. It is bounded by the region's keys, however often they change; the counts
//! are read from the region at the moment of sending.

use super::key_state::KeyState;
use super::keys::Keys;
use crate::model::key::NodeId;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::hash::{BuildHasherDefault, Hasher};
use hashbrown::HashSet;

/// Capacity in keys above which an emptied queue is reallocated.
const KEPT_CAPACITY: usize = 4_096;

#[derive(Debug, Default)]
pub(super) struct Subscribers {
    queues: BTreeMap<NodeId, Queue>,
}

/// Keys by their slots. If a slot has been reused for another key since, one unnecessary push is sent.
#[derive(Debug, Default)]
struct Queue {
    order: VecDeque<usize>,
    queued: HashSet<usize, BuildHasherDefault<SlotHasher>>,
    delivered: Delivered,
}

/// Slots are assigned here in sequence, not chosen by clients, so that a simple hash is safe.
#[derive(Default)]
struct SlotHasher(u64);

impl Hasher for SlotHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_usize(usize::from(*byte)));
    }

    fn write_usize(&mut self, slot: usize) {
        self.0 = (self.0 ^ slot as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}

/// How much of its snapshot a new subscriber has been sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Delivered {
    /// The region's keys are being scanned; the slot to continue from.
    Scanning(usize),
    /// All keys were scanned; those found are still queued.
    Draining,
    /// All was sent, but the region itself does not hold all hot keys yet.
    Partial,
    /// All was sent, and the subscriber was notified of that.
    #[default]
    Complete,
}

impl Subscribers {
    pub(super) fn start(&mut self, node: NodeId) {
        self.queues.insert(node, Queue { delivered: Delivered::Scanning(0), ..Queue::default() });
    }

    pub(super) fn remove(&mut self, node: NodeId) {
        self.queues.remove(&node);
    }

    /// Queues a key for one node, if it subscribes.
    pub(super) fn enqueue(&mut self, node: NodeId, slot: usize) {
        if let Some(queue) = self.queues.get_mut(&node) {
            queue.push(slot);
        }
    }

    /// `writer` raised its component: queues the key for its other followers, or for all others if it is hot.
    pub(super) fn changed(&mut self, slot: usize, state: &KeyState, writer: NodeId) {
        self.tell(slot, state, |node| node != writer);
    }

    /// Another region's use grew: queues the key for all its followers.
    pub(super) fn changed_outside(&mut self, slot: usize, state: &KeyState) {
        self.tell(slot, state, |_| true);
    }

    /// Queues the next part of a snapshot, if one is in progress and the queue is empty.
    pub(super) fn go_on(&mut self, node: NodeId, keys: &Keys) {
        let Some(queue) = self.queues.get_mut(&node).filter(|queue| queue.order.is_empty()) else { return };
        let Delivered::Scanning(from) = queue.delivered else { return };
        let (some, next) = keys.scan(from);
        for (slot, _) in some.filter(|(_, state)| state.follows(node) || state.is_pushed_to_all()) {
            queue.push(slot);
        }
        queue.delivered = next.map_or(Delivered::Draining, Delivered::Scanning);
    }

    /// Takes as many keys as fit in `most` snapshots; `snapshots_of` returns how many one key needs. Also returns
    /// whether the subscriber's snapshot is complete with them, which it never is before `all_read`, that is, before
    /// the region holds all hot keys.
    pub(super) fn take(
        &mut self,
        node: NodeId,
        most: usize,
        snapshots_of: impl Fn(usize) -> usize,
        all_read: bool,
    ) -> (Vec<usize>, bool) {
        let Some(queue) = self.queues.get_mut(&node) else { return Default::default() };
        let mut snapshots = 0usize;
        let fits = |slot: &&usize| {
            // A key without cells costs time as well, so it counts as one.
            snapshots = snapshots.saturating_add(snapshots_of(**slot).max(1));
            snapshots <= most
        };
        let taken = queue.order.iter().take_while(fits).count();
        let slots: Vec<usize> = queue.order.drain(..taken).collect();
        for slot in &slots {
            queue.queued.remove(slot);
        }
        if queue.order.is_empty() && queue.order.capacity() > KEPT_CAPACITY {
            // For example, the recovery of a store has made all keys change at once.
            queue.order = VecDeque::new();
            queue.queued = HashSet::default();
        }
        let sent =
            queue.order.is_empty() && matches!(queue.delivered, Delivered::Draining | Delivered::Partial);
        let complete = sent && all_read;
        if sent {
            queue.delivered = if all_read { Delivered::Complete } else { Delivered::Partial };
        }
        (slots, complete)
    }

    pub(super) fn has_work(&self, node: NodeId, all_read: bool) -> bool {
        self.queues.get(&node).is_some_and(|queue| {
            let rests = queue.delivered == Delivered::Complete
                || (queue.delivered == Delivered::Partial && !all_read);
            !rests || !queue.order.is_empty()
        })
    }

    pub(super) fn pending(&self) -> usize {
        self.queues.values().map(|queue| queue.order.len()).sum()
    }

    fn tell(&mut self, slot: usize, state: &KeyState, wants: impl Fn(NodeId) -> bool) {
        if state.is_pushed_to_all() {
            for (_, queue) in self.queues.iter_mut().filter(|(node, _)| wants(**node)) {
                queue.push(slot);
            }
            return;
        }
        for node in state.followers().filter(|node| wants(*node)) {
            self.enqueue(node, slot);
        }
    }
}

impl Queue {
    fn push(&mut self, slot: usize) {
        if self.queued.insert(slot) {
            self.order.push_back(slot);
        }
    }
}
