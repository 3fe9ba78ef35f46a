//! Which keys each subscribed origin has still to be told about.
//!
//! A set of keys in order of first change: bounded by the region's keys however often they change, and what is told
//! is read from the region at the moment of telling.
//!
//! Leaves to others: what is told (`cells`), and sending it (`aggregator`).

use super::cells::KeyState;
use super::keys::Keys;
use crate::model::key::OriginId;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::hash::{BuildHasherDefault, Hasher};
use hashbrown::HashSet;

/// An emptied queue keeps room for so many keys.
const KEPT_CAPACITY: usize = 4_096;

#[derive(Debug, Default)]
pub(super) struct Subscribers {
    queues: BTreeMap<OriginId, Queue>,
}

/// Keys by their slots. A slot that has gone to another key since costs a push that was not needed.
#[derive(Debug, Default)]
struct Queue {
    order: VecDeque<usize>,
    queued: HashSet<usize, BuildHasherDefault<SlotHasher>>,
    delivered: Delivered,
}

/// Slots are given out here one after the other; nobody outside chooses them.
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

/// How much of what matters to it a new subscriber has been told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Delivered {
    /// The region's keys are looked through; the slot to go on from.
    Scanning(usize),
    /// All were looked through, and what was found is still queued.
    Draining,
    /// All was told, but the region itself does not know all yet.
    Partial,
    /// All was told, and the subscriber knows it.
    #[default]
    Complete,
}

impl Subscribers {
    pub(super) fn start(&mut self, origin: OriginId) {
        self.queues.insert(origin, Queue { delivered: Delivered::Scanning(0), ..Queue::default() });
    }

    pub(super) fn remove(&mut self, origin: OriginId) {
        self.queues.remove(&origin);
    }

    /// Queues a key for one origin, if it subscribes.
    pub(super) fn enqueue(&mut self, origin: OriginId, slot: usize) {
        if let Some(queue) = self.queues.get_mut(&origin) {
            queue.push(slot);
        }
    }

    /// `writer` raised its component: the others who follow the key are to hear of it, or all if it is hot.
    pub(super) fn changed(&mut self, slot: usize, state: &KeyState, writer: OriginId) {
        self.tell(slot, state, |origin| origin != writer);
    }

    /// Another region's share grew: everybody who follows the key is to hear of it.
    pub(super) fn changed_outside(&mut self, slot: usize, state: &KeyState) {
        self.tell(slot, state, |_| true);
    }

    /// Queues the next part of a snapshot, where one is under way and nothing waits.
    pub(super) fn go_on(&mut self, origin: OriginId, keys: &Keys) {
        let Some(queue) = self.queues.get_mut(&origin).filter(|queue| queue.order.is_empty()) else { return };
        let Delivered::Scanning(from) = queue.delivered else { return };
        let (some, next) = keys.scan(from);
        for (slot, _) in some.filter(|(_, state)| state.follows(origin) || state.is_hot()) {
            queue.push(slot);
        }
        queue.delivered = next.map_or(Delivered::Draining, Delivered::Scanning);
    }

    pub(super) fn has(&self, origin: OriginId) -> bool {
        self.queues.contains_key(&origin)
    }

    /// Takes the slots of as many keys as have room in `most` views, of which each needs some by `snapshots_of`.
    /// And whether the snapshot is complete with them; it never is before the region is `all_read`.
    pub(super) fn take(
        &mut self,
        origin: OriginId,
        most: usize,
        snapshots_of: impl Fn(usize) -> usize,
        all_read: bool,
    ) -> (Vec<usize>, bool) {
        let Some(queue) = self.queues.get_mut(&origin) else { return Default::default() };
        let mut snapshots = 0usize;
        let fits = |slot: &&usize| {
            // A key without cells costs a look, so they are not taken without end either.
            snapshots = snapshots.saturating_add(snapshots_of(**slot).max(1));
            snapshots <= most
        };
        let taken = queue.order.iter().take_while(fits).count();
        let slots: Vec<usize> = queue.order.drain(..taken).collect();
        for slot in &slots {
            queue.queued.remove(slot);
        }
        if queue.order.is_empty() && queue.order.capacity() > KEPT_CAPACITY {
            // A store that went and came back, say, made everything change at once.
            queue.order = VecDeque::new();
            queue.queued = HashSet::default();
        }
        let told =
            queue.order.is_empty() && matches!(queue.delivered, Delivered::Draining | Delivered::Partial);
        let complete = told && all_read;
        if told {
            queue.delivered = if all_read { Delivered::Complete } else { Delivered::Partial };
        }
        (slots, complete)
    }

    pub(super) fn has_work(&self, origin: OriginId, all_read: bool) -> bool {
        self.queues.get(&origin).is_some_and(|queue| {
            let rests = queue.delivered == Delivered::Complete
                || (queue.delivered == Delivered::Partial && !all_read);
            !rests || !queue.order.is_empty()
        })
    }

    pub(super) fn pending(&self) -> usize {
        self.queues.values().map(|queue| queue.order.len()).sum()
    }

    fn tell(&mut self, slot: usize, state: &KeyState, wants: impl Fn(OriginId) -> bool) {
        if state.is_hot() {
            for (_, queue) in self.queues.iter_mut().filter(|(origin, _)| wants(**origin)) {
                queue.push(slot);
            }
            return;
        }
        for origin in state.followers().filter(|origin| wants(*origin)) {
            self.enqueue(origin, slot);
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
