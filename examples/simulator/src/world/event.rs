//! What happens in a world, as plain data: events of the queue, and what waits for a frozen aggregator.

use super::network::StreamId;
use super::request::{Reply, Request, Store};
use crate::check::CellId;
use crate::plan::traffic::Arrival;
use weir_core::model::wire::{FilterFrame, RegionFrame};

/// One end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The worker's.
    Worker,
    /// The aggregator's.
    Aggregator,
}

/// What travels.
#[derive(Debug)]
pub enum Carried {
    /// From the worker; nothing: it has closed its end.
    Up(Option<Box<FilterFrame>>),
    /// To the worker.
    Down(Option<Box<RegionFrame>>),
}

/// A worker, by its Envoy's number in the world and its own there; 0 is the main thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkerAt {
    /// Which Envoy.
    pub envoy: usize,
    /// Which of its workers.
    pub worker: usize,
}

/// What an aggregator has to do at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// The state forgets what is over.
    Tick,
    /// The rest between two rounds of pushes is over.
    Pushed,
    /// A subscriber's pushes go on.
    Pusher(StreamId),
    /// A machine's pause, and which, is over.
    Pause(usize, u64),
    /// Messages of peers are heard.
    Listens,
    /// It ends: is everything said?
    Ending,
    /// It is started again.
    Start,
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
    Aggregator(usize, u64, Due),
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
    Rest(CellId),
}

/// Something that waits for a frozen aggregator.
#[derive(Debug)]
pub enum Inbox {
    /// A frame, or the end of a stream.
    Frame(StreamId, Option<Box<FilterFrame>>),
    /// A timer.
    Due(u64, Due),
    /// A store's answer, or the end of the time for it.
    Answer(u64, Option<Box<Reply>>),
    /// A message of a peer.
    Received(u64, Box<[u8]>),
}
