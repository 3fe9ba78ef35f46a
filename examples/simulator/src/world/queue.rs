//! Events in order of virtual time. Events of the same time keep the order in which they were planned.

use super::event::Event;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// The planned events.
#[derive(Debug, Default)]
pub struct Queue {
    heap: BinaryHeap<Planned>,
    planned: u64,
}

#[derive(Debug)]
struct Planned {
    at_us: u64,
    number: u64,
    event: Event,
}

impl Queue {
    /// Adds an event.
    pub fn plan(&mut self, at_us: u64, event: Event) {
        self.planned += 1;
        self.heap.push(Planned { at_us, number: self.planned, event });
    }

    /// The time of the next event.
    pub fn next_us(&self) -> Option<u64> {
        self.heap.peek().map(|planned| planned.at_us)
    }

    /// Removes the next event.
    pub fn pop(&mut self) -> Option<Event> {
        self.heap.pop().map(|planned| planned.event)
    }

    /// Number of events planned so far.
    pub fn planned(&self) -> u64 {
        self.planned
    }
}

impl Ord for Planned {
    /// `BinaryHeap` returns its greatest element first, so the earliest event compares as the greatest.
    fn cmp(&self, other: &Planned) -> Ordering {
        (other.at_us, other.number).cmp(&(self.at_us, self.number))
    }
}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Planned) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Planned {
    fn eq(&self, other: &Planned) -> bool {
        self.number == other.number
    }
}

impl Eq for Planned {}
