//! Keys that wait to be published to the other regions, by urgency. Within an urgency the namespaces take turns as they share
//! the room for keys (`shares`), so that a flood in one of them, or in many invented ones, delays no other. The keys of a namespace go in
//! the order in which they became due.
//!
//! A key is due in one urgency, which its state names. An entry of any other urgency is stale and is skipped, as is one whose slot
//! has another key meanwhile.

use crate::region::cell::sharing::Due;
use crate::region::keys::Keys;
use crate::region::shares::Lineage;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};

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
    pub(in crate::region) fn push(&mut self, slot: usize, lineage: Lineage, due: Due, known: &mut Due) {
        if due <= *known {
            return;
        }
        *known = due;
        self.is_urgent |= due >= Due::Now;
        if let Some(queue) = self.queue(due) {
            queue.push(&lineage, slot);
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
                queue.retain(&|slot| keys.at(slot).is_some_and(|(_, state)| state.sharing.due == due));
            }
        }
    }

    fn queue(&mut self, due: Due) -> Option<&mut FairQueue> {
        let mut queues = Self::QUEUES.into_iter().zip(&mut self.queues);
        queues.find_map(|(of, queue)| (of == due).then_some(queue))
    }
}

/// Slots of keys by lineage: the workspaces take turns, then the grants of one, then the namespaces of one.
#[derive(Debug, Default)]
struct FairQueue {
    parts: BTreeMap<u32, FairQueue>,
    turns: VecDeque<u32>,
    /// Of a namespace.
    slots: VecDeque<usize>,
    len: usize,
}

impl FairQueue {
    fn push(&mut self, lineage: &[u32], slot: usize) {
        self.len = self.len.saturating_add(1);
        let Some((part, rest)) = lineage.split_first() else { return self.slots.push_back(slot) };
        let queue = self.parts.entry(*part).or_default();
        if queue.len == 0 {
            self.turns.push_back(*part);
        }
        queue.push(rest, slot);
    }

    fn pop(&mut self) -> Option<usize> {
        let slot = match self.slots.pop_front() {
            Some(slot) => slot,
            None => {
                let part = self.turns.pop_front()?;
                let queue = self.parts.get_mut(&part)?;
                let slot = queue.pop()?;
                if queue.len == 0 {
                    self.parts.remove(&part);
                } else {
                    self.turns.push_back(part);
                }
                slot
            }
        };
        self.len = self.len.saturating_sub(1);
        Some(slot)
    }

    fn retain(&mut self, stays: &dyn Fn(usize) -> bool) {
        let mut seen = BTreeSet::new();
        self.slots.retain(|slot| stays(*slot) && seen.insert(*slot));
        self.parts.values_mut().for_each(|queue| queue.retain(stays));
        self.parts.retain(|_, queue| queue.len > 0);
        self.turns.retain(|part| self.parts.contains_key(part));
        let of_parts: usize = self.parts.values().map(|queue| queue.len).sum();
        self.len = self.slots.len().saturating_add(of_parts);
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
            queue.push(&[0, 0, 1], slot);
        }
        queue.push(&[0, 0, 2], 10);
        queue.push(&[0, 0, 3], 20);
        queue.push(&[0, 0, 3], 21);
        let popped: Vec<usize> = core::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(popped, vec![0, 10, 20, 1, 21, 2, 3]);
        assert_eq!((queue.len, queue.parts.len(), queue.turns.len()), (0, 0, 0));
    }

    #[test]
    fn invented_namespaces_delay_no_other_grant() {
        let mut queue = FairQueue::default();
        for namespace in 0..100 {
            queue.push(&[0, 1, namespace], 0);
        }
        for slot in 1..=5 {
            queue.push(&[0, 2, 200], slot);
            queue.push(&[1, 3, 300], slot * 10);
        }
        let popped: Vec<usize> = core::iter::from_fn(|| queue.pop()).take(12).collect();
        assert_eq!(
            popped.iter().filter(|slot| **slot >= 10).count(),
            5,
            "half of the turns are the workspace's"
        );
        assert_eq!(
            popped.iter().filter(|slot| (1..10).contains(*slot)).count(),
            3,
            "a quarter is the grant's"
        );
    }

    #[test]
    fn stale_and_repeated_entries_are_dropped() {
        let mut queue = FairQueue::default();
        for slot in [1, 2, 1, 3] {
            queue.push(&[0, 0, 7], slot);
        }
        queue.retain(&|slot| slot != 3);
        let popped: Vec<usize> = core::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(popped, vec![1, 2]);
    }
}
