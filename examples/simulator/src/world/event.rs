//! The events of a world and the data that they carry.

use super::network::StreamId;
use super::request::{Reply, Request, Store};
use crate::check::CellId;
use crate::measure::observe::Decided;
use crate::plan::traffic::Arrival;
use weir_core::model::wire::{FilterFrame, RegionFrame};

/// One end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The worker's end.
    Worker,
    /// The aggregator's end.
    Aggregator,
}

/// A message on a stream.
#[derive(Debug)]
pub enum Carried {
    /// A frame from the worker; `None`: the worker has closed its end.
    Up(Option<Box<FilterFrame>>),
    /// A frame to the worker; `None`: the aggregator has closed its end.
    Down(Option<Box<RegionFrame>>),
}

/// A worker: the number of its Envoy in the world, and its own number there; 0 is the main thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkerAt {
    /// The Envoy's number in the world.
    pub envoy: usize,
    /// The worker's number in the Envoy.
    pub worker: usize,
}

/// A scheduled action of an aggregator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// The region state's tick.
    Tick,
    /// The pause between two rounds of pushes is over.
    Pushed,
    /// The pushes to a subscriber continue.
    Pusher(StreamId),
    /// A pause of a machine is over: the numbers of the machine and of the pause.
    Pause(usize, u64),
    /// The subscription to peers' messages is established.
    Subscribed,
    /// Checks whether an orderly shutdown is complete.
    Shutdown,
    /// The aggregator starts again.
    Start,
    /// The pause of an exact request is over, by its number.
    Exact(u64),
    /// Refunds are due.
    Refunds,
}

/// An event of the queue.
#[derive(Debug)]
pub enum Event {
    /// A worker's timer, by its number; void if the timer was set again.
    Tick(WorkerAt, u64),
    /// The response to a request: the worker, the request's number, its arrival, and when it was admitted, in
    /// microseconds.
    Response(WorkerAt, u64, Arrival, u64),
    /// A frame reaches the aggregator's end of a stream; `None`: the worker has closed its end.
    Up(StreamId, Option<Box<FilterFrame>>),
    /// A frame reaches the worker's end of a stream; `None`: the aggregator has closed its end.
    Down(StreamId, Option<Box<RegionFrame>>),
    /// A keepalive of one end times out, unless its peer is reachable again.
    Keepalive(StreamId, End),
    /// A scheduled action of an aggregator, by its number and incarnation; void in another incarnation.
    Aggregator(usize, u64, Due),
    /// A call reaches a store: the store, the aggregator's number, the call's number, and the request.
    StoreTakes(Store, usize, u64, Box<Request>),
    /// The reply to a call, by its number; `None`: the call times out.
    Replied(u64, Option<Box<Reply>>),
    /// A message of a peer reaches an aggregator, by its number and incarnation; void in another incarnation.
    Received(usize, u64, Box<[u8]>),
    /// A fault, by its number in the plan, begins (`true`) or ends.
    Fault(usize, bool),
    /// A rolling restart ends an Envoy (`true`) or starts its next process.
    Roll(usize, bool),
    /// A call of an API arrives at an aggregator.
    ApiCall,
    /// The checkers compare what all parts hold with the bounds.
    CheckBounds,
    /// The checkers test whether a cell is at rest.
    Rest(CellId),
}

/// Something that arrived at a frozen aggregator.
#[derive(Debug)]
pub enum Inbox {
    /// A frame, or the end of a stream.
    Frame(StreamId, Option<Box<FilterFrame>>),
    /// A scheduled action and its incarnation.
    Due(u64, Due),
    /// The reply to a call, or its timeout.
    Reply(u64, Option<Box<Reply>>),
    /// A message of a peer and the incarnation it was sent to.
    Received(u64, Box<[u8]>),
}

/// What the observer receives.
pub enum Report {
    Arrived(Arrival),
    Decided(Decided),
}
