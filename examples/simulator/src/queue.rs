//! Events in order of virtual time, in the unit of the world that plans them. Events of the same time keep the order in which they were planned.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// The planned events.
#[derive(Debug)]
pub struct Queue<E> {
    heap: BinaryHeap<Planned<E>>,
    planned: u64,
}

#[derive(Debug)]
struct Planned<E> {
    at: u64,
    number: u64,
    event: E,
}

impl<E> Default for Queue<E> {
    fn default() -> Queue<E> {
        Queue { heap: BinaryHeap::new(), planned: 0 }
    }
}

impl<E> Queue<E> {
    /// Adds an event.
    pub fn plan(&mut self, at: u64, event: E) {
        self.planned += 1;
        self.heap.push(Planned { at, number: self.planned, event });
    }

    /// The time of the next event.
    pub fn next_at(&self) -> Option<u64> {
        self.heap.peek().map(|planned| planned.at)
    }

    /// Removes the next event.
    pub fn pop(&mut self) -> Option<E> {
        self.heap.pop().map(|planned| planned.event)
    }

    /// Number of events planned so far.
    pub fn planned(&self) -> u64 {
        self.planned
    }
}

impl<E> Ord for Planned<E> {
    /// `BinaryHeap` returns its greatest element first, so the earliest event compares as the greatest.
    fn cmp(&self, other: &Planned<E>) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl<E> PartialOrd for Planned<E> {
    fn partial_cmp(&self, other: &Planned<E>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Planned<E> {
    fn eq(&self, other: &Planned<E>) -> bool {
        self.number == other.number
    }
}

impl<E> Eq for Planned<E> {}
