//! Which keys each subscribed origin has still to be told about.
//!
//! A set of keys in order of first change: bounded by the region's keys however often they change, and what is told
//! is read from the region at the moment of telling.
//!
//! Leaves to others: what is told (`cells`), and sending it (`aggregator`).

use super::cells::KeyState;
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
    /// The subscriber has not yet been told that it knows everything.
    snapshot_due: bool,
}

impl Subscribers {
    pub(super) fn start(&mut self, origin: OriginId) {
        self.queues.insert(origin, Queue { snapshot_due: true, ..Queue::default() });
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

    /// Takes up to `most` keys, and whether the snapshot is complete with them.
    pub(super) fn take(&mut self, origin: OriginId, most: usize) -> Option<(Vec<Key>, bool)> {
        let queue = self.queues.get_mut(&origin)?;
        let mut keys = Vec::new();
        while let Some(key) = queue.order.pop_front() {
            queue.queued.remove(&key);
            keys.push(key);
            if keys.len() >= most {
                break;
            }
        }
        let complete = queue.order.is_empty() && core::mem::take(&mut queue.snapshot_due);
        (!keys.is_empty() || complete).then_some((keys, complete))
    }

    pub(super) fn has_work(&self, origin: OriginId) -> bool {
        self.queues.get(&origin).is_some_and(|queue| queue.snapshot_due || !queue.order.is_empty())
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
