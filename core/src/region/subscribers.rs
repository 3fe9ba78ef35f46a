//! Which keys each subscribed origin has still to be told about.
//!
//! A set of keys in order of first change: bounded by the region's keys however often they change, and what is told
//! is read from the region at the moment of telling.
//!
//! Leaves to others: what is told (`cells`), and sending it (`aggregator`).

use super::cells::KeyState;
use super::keys::Keys;
use crate::key::{Key, OriginId};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

#[derive(Debug, Default)]
pub(super) struct Subscribers {
    queues: BTreeMap<OriginId, Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    order: VecDeque<Key>,
    queued: BTreeSet<Key>,
    snapshot: Snapshot,
}

/// How much of what matters to it a new subscriber has been told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Snapshot {
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
        self.queues.insert(origin, Queue { snapshot: Snapshot::Scanning(0), ..Queue::default() });
    }

    pub(super) fn remove(&mut self, origin: OriginId) {
        self.queues.remove(&origin);
    }

    /// Queues a key for one origin, if it subscribes.
    pub(super) fn enqueue(&mut self, origin: OriginId, key: &Key) {
        if let Some(queue) = self.queues.get_mut(&origin) {
            queue.push(key);
        }
    }

    /// `writer` raised its component: the others who follow the key are to hear of it, or all if it is hot.
    pub(super) fn changed(&mut self, key: &Key, state: &KeyState, writer: OriginId) {
        self.tell(key, state, |origin| origin != writer);
    }

    /// Another region's share grew: everybody who follows the key is to hear of it.
    pub(super) fn changed_outside(&mut self, key: &Key, state: &KeyState) {
        self.tell(key, state, |_| true);
    }

    /// Queues the next part of a snapshot, where one is under way and nothing waits.
    pub(super) fn go_on(&mut self, origin: OriginId, keys: &Keys) {
        let Some(queue) = self.queues.get_mut(&origin).filter(|queue| queue.order.is_empty()) else { return };
        let Snapshot::Scanning(from) = queue.snapshot else { return };
        let (some, next) = keys.scan(from);
        for (key, _) in some.filter(|(_, state)| state.follows(origin) || state.is_hot()) {
            queue.push(key);
        }
        queue.snapshot = next.map_or(Snapshot::Draining, Snapshot::Scanning);
    }

    pub(super) fn has(&self, origin: OriginId) -> bool {
        self.queues.contains_key(&origin)
    }

    /// Takes up to `most` keys, and whether the snapshot is complete with them; it never is before the region is
    /// `whole`.
    pub(super) fn take(&mut self, origin: OriginId, most: usize, whole: bool) -> (Vec<Key>, bool) {
        let Some(queue) = self.queues.get_mut(&origin) else { return Default::default() };
        let taken = queue.order.len().min(most);
        let keys: Vec<Key> = queue.order.drain(..taken).collect();
        for key in &keys {
            queue.queued.remove(key);
        }
        let told = queue.order.is_empty() && matches!(queue.snapshot, Snapshot::Draining | Snapshot::Partial);
        let complete = told && whole;
        if told {
            queue.snapshot = if whole { Snapshot::Complete } else { Snapshot::Partial };
        }
        (keys, complete)
    }

    pub(super) fn has_work(&self, origin: OriginId, whole: bool) -> bool {
        self.queues.get(&origin).is_some_and(|queue| {
            let rests =
                queue.snapshot == Snapshot::Complete || (queue.snapshot == Snapshot::Partial && !whole);
            !rests || !queue.order.is_empty()
        })
    }

    pub(super) fn pending(&self) -> usize {
        self.queues.values().map(|queue| queue.order.len()).sum()
    }

    fn tell(&mut self, key: &Key, state: &KeyState, wants: impl Fn(OriginId) -> bool) {
        if state.is_hot() {
            for (_, queue) in self.queues.iter_mut().filter(|(origin, _)| wants(**origin)) {
                queue.push(key);
            }
            return;
        }
        for origin in state.followers().filter(|origin| wants(*origin)) {
            self.enqueue(origin, key);
        }
    }
}

impl Queue {
    fn push(&mut self, key: &Key) {
        if self.queued.insert(key.clone()) {
            self.order.push_back(key.clone());
        }
    }
}
