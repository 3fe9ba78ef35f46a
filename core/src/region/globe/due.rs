//! Keys that wait to be published to the other regions, by urgency. Within an urgency the namespaces take turns, so that a flood in one of
//! them delays no other, and the keys of a namespace go in the order in which they became due.
//!
//! A key is due in one urgency, which its state names. An entry of any other urgency is stale and is skipped, as is one whose slot
//! has another key meanwhile.

use crate::region::cell::sharing::Due;
use crate::region::keys::Keys;
use alloc::collections::{BTreeMap, VecDeque};

/// Entries beyond twice the number of keys that a queue may hold: stale ones.
const STALE_ENTRIES: usize = 4_096;

/// The queues.
#[derive(Debug, Default)]
pub(in crate::region) struct DueKeys {
    /// One for each of [`DueKeys::QUEUES`].
    queues: [FairQueue; 4],
    /// A key has become due at once since the last [`DueKeys::take_urgent`].
    is_urgent: bool,
}

impl DueKeys {
    const QUEUES: [Due; 4] = [Due::First, Due::Now, Due::AtTick, Due::AtInterval];

    /// Queues a key unless it waits with the same or a higher urgency.
    pub(in crate::region) fn push(&mut self, slot: usize, namespace: u64, due: Due, known: &mut Due) {
        if due <= *known {
            return;
        }
        *known = due;
        self.is_urgent |= due >= Due::Now;
        if let Some(queue) = self.queue(due) {
            queue.push(namespace, slot);
        }
    }

    /// The slot of the next key of this urgency, which then waits no more.
    pub(in crate::region) fn pop(&mut self, due: Due, keys: &mut Keys) -> Option<usize> {
        let queue = self.queue(due)?;
        while let Some(slot) = queue.pop() {
            if let Some((_, state)) = keys.at_mut(slot)
                && state.sharing.due == due
            {
                state.sharing.due = Due::No;
                return Some(slot);
            }
        }
        None
    }

    /// Whether a key has become due at once since the last call.
    pub(in crate::region) fn take_urgent(&mut self) -> bool {
        core::mem::take(&mut self.is_urgent)
    }

    /// Number of entries of this and higher urgencies, with stale ones.
    pub(in crate::region) fn len(&self, least: Due) -> usize {
        let queues = Self::QUEUES.into_iter().zip(&self.queues);
        queues.filter(|(due, _)| *due >= least).map(|(_, queue)| queue.len).sum()
    }

    /// Drops stale entries once there are many of them, since the database may be unavailable for long.
    pub(in crate::region) fn sweep(&mut self, keys: &Keys) {
        for (due, queue) in Self::QUEUES.into_iter().zip(&mut self.queues) {
            if queue.len > keys.len().saturating_mul(2).saturating_add(STALE_ENTRIES) {
                queue.retain(|slot| keys.at(slot).is_some_and(|(_, state)| state.sharing.due == due));
            }
        }
    }

    fn queue(&mut self, due: Due) -> Option<&mut FairQueue> {
        let mut queues = Self::QUEUES.into_iter().zip(&mut self.queues);
        queues.find_map(|(of, queue)| (of == due).then_some(queue))
    }
}

/// Slots of keys by namespace; the namespaces take turns.
#[derive(Debug, Default)]
struct FairQueue {
    namespaces: BTreeMap<u64, VecDeque<usize>>,
    turns: VecDeque<u64>,
    len: usize,
}

impl FairQueue {
    fn push(&mut self, namespace: u64, slot: usize) {
        let slots = self.namespaces.entry(namespace).or_default();
        if slots.is_empty() {
            self.turns.push_back(namespace);
        }
        slots.push_back(slot);
        self.len = self.len.saturating_add(1);
    }

    fn pop(&mut self) -> Option<usize> {
        let namespace = self.turns.pop_front()?;
        let slots = self.namespaces.get_mut(&namespace)?;
        let slot = slots.pop_front()?;
        self.len = self.len.saturating_sub(1);
        if slots.is_empty() {
            self.namespaces.remove(&namespace);
        } else {
            self.turns.push_back(namespace);
        }
        Some(slot)
    }

    fn retain(&mut self, stays: impl Fn(usize) -> bool) {
        let all = core::mem::take(self);
        for (namespace, slots) in all.namespaces {
            let mut seen = alloc::collections::BTreeSet::new();
            for slot in slots.into_iter().filter(|slot| stays(*slot) && seen.insert(*slot)) {
                self.push(namespace, slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    #[test]
    fn namespaces_take_turns_and_their_keys_keep_their_order() {
        let mut queue = FairQueue::default();
        for slot in 0..4 {
            queue.push(1, slot);
        }
        queue.push(2, 10);
        queue.push(3, 20);
        queue.push(3, 21);
        let popped: Vec<usize> = core::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(popped, vec![0, 10, 20, 1, 21, 2, 3]);
        assert_eq!((queue.len, queue.namespaces.len(), queue.turns.len()), (0, 0, 0));
    }

    #[test]
    fn stale_and_repeated_entries_are_dropped() {
        let mut queue = FairQueue::default();
        for slot in [1, 2, 1, 3] {
            queue.push(7, slot);
        }
        queue.retain(|slot| slot != 3);
        let popped: Vec<usize> = core::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(popped, vec![1, 2]);
    }
}
