//! What happens when: events in order of virtual time, those of one moment in the order in which they were planned.
//!
//! Leaves to others: what an event does (`world`).

use super::calls::{Reply, Request, Store};
use super::streams::{End, StreamId};
use crate::plan::traffic::Arrival;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use weir_core::model::wire::{FilterFrame, RegionFrame};

/// A worker, by its Envoy's number in the world and its own there; 0 is the main thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkerAt {
    /// Which Envoy.
    pub envoy: usize,
    /// Which of its workers.
    pub worker: usize,
}

/// Something that is due.
#[derive(Debug)]
pub enum Event {
    /// A worker's timer; void if it was set anew since.
    Tick(WorkerAt, u64),
    /// The response to a request that a worker admitted, and when it did.
    Response(WorkerAt, u64, Arrival, u64),
    /// A frame reaches the aggregator's end of a stream; without one, the news that the other end has closed it.
    Up(StreamId, Option<Box<FilterFrame>>),
    /// The same at the worker's end.
    Down(StreamId, Option<Box<RegionFrame>>),
    /// One end of a connection was not answered, unless its peer is back.
    Keepalive(StreamId, End),
    /// An aggregator has something to do; void in another life of it.
    Aggregator(usize, u64, super::aggregator::Due),
    /// A call of an aggregator reaches a store.
    StoreTakes(Store, usize, u64, Box<Request>),
    /// A call is answered; without an answer, its time is over.
    Answered(u64, Option<Box<Reply>>),
    /// A message of a peer reaches an aggregator; void in another life of it.
    Received(usize, u64, Box<[u8]>),
    /// A fault begins, or ends.
    Fault(usize, bool),
    /// An Envoy of a rolling restart ends, or the next one takes its place.
    Roll(usize, bool),
    /// The checkers look at everything.
    Look,
    /// The checkers see whether a cell has come to rest.
    Rest(crate::check::CellId),
}

/// All that is to come.
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
    /// Plans an event.
    pub fn plan(&mut self, at_us: u64, event: Event) {
        self.planned += 1;
        self.heap.push(Planned { at_us, number: self.planned, event });
    }

    /// When the next one is due.
    pub fn next_us(&self) -> Option<u64> {
        self.heap.peek().map(|planned| planned.at_us)
    }

    /// Takes the next one.
    pub fn pop(&mut self) -> Option<Event> {
        self.heap.pop().map(|planned| planned.event)
    }

    /// How many events were planned so far.
    pub fn planned(&self) -> u64 {
        self.planned
    }
}

impl Ord for Planned {
    /// The heap has its greatest on top: the earliest is that.
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
