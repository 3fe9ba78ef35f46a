//! Aggregators: the core's region state behind streams. The files here do what the program does around the core: they
//! accept streams, pass frames to the state, send its replies, and start and end the program. They decide no counts.
//!
//! - `lifecycle`: how the program starts and ends.
//! - `peers`: the streams of workers: frames, queries, acknowledgements and pushes.
//! - `machines`: the core's background tasks, driven by events.

mod lifecycle;
pub mod machines;
mod peers;

use super::World;
use super::clock::Clock;
use super::event::{Due, Event, Inbox};
use super::network::StreamId;
use super::request::{ExactCall, ExactWork};
use machines::Running;
use std::collections::{BTreeMap, VecDeque};
use weir_core::model::key::NodeId;
use weir_core::model::time::Now;
use weir_core::model::wire::{FilterFrame, Query};
use weir_core::region::log::{Logs, Micros};
use weir_core::replication::Events as RegionEvents;
use weir_core::replication::exact::ExactState;
use weir_core::replication::exact::ledger::LedgerBreaker;
use weir_core::replication::push::Pusher;
use weir_core::replication::regional::broadcast as others;
use weir_core::replication::regional::clock::RegionClock;
use weir_core::replication::regional::receipts::Receipts;
use weir_core::replication::state::{Alone, LateAck, RegionState, TICK_MS};

/// Time to establish a subscription to peers' messages.
const SUBSCRIBE_US: u64 = 2_000;

/// A machine with an aggregator.
#[derive(Debug)]
pub struct Aggregator {
    /// Its region.
    pub region: usize,
    /// Its number in the region.
    pub number: usize,
    /// The machine's clocks.
    pub clock: Clock,
    /// The number of its current or last incarnation.
    pub incarnation: u64,
    /// The running program; `None` if there is none.
    pub process: Option<Process>,
    /// Number of faults that freeze it now.
    pub frozen: u32,
    /// When the last message of a peer arrives.
    pub last_broadcast_us: u64,
    /// It starts again as soon as its shutdown is complete.
    pub restarts: bool,
    /// Input that arrived while it was frozen.
    pub inbox: VecDeque<Inbox>,
}

/// A running program.
#[derive(Debug)]
pub struct Process {
    /// The core's region state.
    pub state: RegionState,
    /// Identifies the program among its peers.
    pub id: [u8; 16],
    /// The clock that numbers cells.
    pub region_clock: RegionClock,
    /// The background tasks; `None` for one that has finished.
    pub machines: Vec<Option<Running>>,
    /// What Redis has answered about its writes.
    pub receipts: Receipts,
    /// The exact logs, if the region has no Redis.
    pub logs: Logs,
    /// What its exact requests and refunds share.
    pub exact: ExactState,
    /// The circuit breaker of the ledgers.
    pub ledger: LedgerBreaker,
    /// Exact requests that pause, and the call that is then tried again, by the number of the pause.
    pub pausing: BTreeMap<u64, (Box<ExactWork>, Option<ExactCall>)>,
    pub pauses: u64,
    /// When refunds were last planned to be made.
    pub refunds_planned: Option<Micros>,
    /// Events of the state that no machine has received yet.
    pub notified: RegionEvents,
    peers: BTreeMap<StreamId, Peer>,
    late: VecDeque<(StreamId, LateAck)>,
    serves: bool,
    /// Not all machines run yet that read before it serves.
    prepares: bool,
    /// The first packet is on its way. The region's own counts are read after it.
    recovers_next: bool,
    subscribed: bool,
    push_paused: bool,
    /// When its shutdown began.
    shutdown: Option<Shutdown>,
}

#[derive(Clone, Copy, Debug)]
struct Shutdown {
    since_us: u64,
    /// The round of replays that must be over before it ends, and the time at which it ends anyway.
    last: Option<(u64, u64)>,
}

/// An accepted stream.
#[derive(Debug)]
struct Peer {
    node: NodeId,
    worker: u64,
    id: weir_core::replication::StreamId,
    pusher: Option<Pusher>,
    queries: usize,
    last_frame_us: u64,
    /// Queries without a reply so far.
    open_queries: BTreeMap<u64, Query>,
}

impl Aggregator {
    /// A machine without a program.
    pub fn new(region: usize, number: usize, clock: Clock) -> Aggregator {
        Aggregator {
            region,
            number,
            clock,
            incarnation: 0,
            process: None,
            frozen: 0,
            last_broadcast_us: 0,
            restarts: false,
            inbox: VecDeque::new(),
        }
    }

    /// The region's time as the running program has it, or else the machine's, and the monotonic time.
    pub fn now(&mut self, now_us: u64) -> Now {
        let machine = self.clock.now(now_us);
        self.process.as_mut().map_or(machine, |process| process.region_clock.at(machine))
    }

    /// Whether it accepts connections, at least by its operating system.
    pub fn accepts_streams(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.serves && process.shutdown.is_none())
    }

    /// Whether messages of its peers reach it.
    pub fn receives_broadcasts(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.subscribed)
    }

    /// Whether a fault freezes it.
    pub fn is_frozen(&self) -> bool {
        self.frozen > 0
    }
}

impl World<'_> {
    /// Processes what arrived during a freeze.
    pub(in crate::world) fn thaw_aggregator(&mut self, at: usize) {
        if self.aggregators[at].is_frozen() {
            return;
        }
        for held in std::mem::take(&mut self.aggregators[at].inbox) {
            match held {
                Inbox::Frame(id, frame) => self.aggregator_receives(id, frame),
                Inbox::Due(incarnation, due) => self.aggregator_due(at, incarnation, due),
                Inbox::Reply(id, reply) => self.replied(id, reply),
                Inbox::Received(incarnation, message) => self.receive_broadcast(at, incarnation, message),
            }
        }
    }

    /// A frame reaches the aggregator's end of a stream; `None`: the stream has ended.
    pub(in crate::world) fn aggregator_receives(&mut self, id: StreamId, frame: Option<Box<FilterFrame>>) {
        let Some(stream) = self.streams.get(id) else { return };
        let (at, incarnation) = (stream.aggregator, stream.aggregator_incarnation);
        let host = &mut self.aggregators[at];
        if host.incarnation != incarnation || host.process.is_none() {
            return;
        }
        if host.is_frozen() {
            host.inbox.push_back(Inbox::Frame(id, frame));
            return;
        }
        match frame {
            Some(frame) => self.receive_frame(at, id, *frame),
            None => self.leave(at, id),
        }
        self.notify(at);
    }

    pub(in crate::world) fn aggregator_due(&mut self, at: usize, incarnation: u64, due: Due) {
        let now_us = self.now_us;
        let host = &mut self.aggregators[at];
        if host.incarnation != incarnation {
            return;
        }
        if host.is_frozen() {
            host.inbox.push_back(Inbox::Due(incarnation, due));
            return;
        }
        let now = host.now(now_us);
        if due == Due::Start {
            if host.process.is_none() {
                self.start_aggregator(at);
            }
            return;
        }
        let Some(process) = host.process.as_mut() else { return };
        match due {
            Due::Tick => {
                while process.state.tick(now) {}
                process.logs.tick(Micros(now_us));
                self.queue.plan(now_us + TICK_MS * 1_000, Event::Aggregator(at, incarnation, Due::Tick));
            }
            Due::Pushed => process.push_paused = false,
            Due::Pusher(id) => self.push(at, id),
            Due::Pause(number, pause) => self.pause_over(at, number, pause),
            Due::Subscribed => {
                process.subscribed = true;
                others::connected(&mut Alone { state: &mut process.state, now });
            }
            Due::Shutdown => self.continue_shutdown(at),
            Due::Exact(number) => self.exact_continues(at, number),
            Due::Refunds => self.make_refunds(at),
            Due::Start => {}
        }
        self.notify(at);
    }

    /// A message of a peer or of the aggregator itself arrives.
    pub(in crate::world) fn receive_broadcast(&mut self, at: usize, incarnation: u64, message: Box<[u8]>) {
        let now_us = self.now_us;
        let host = &mut self.aggregators[at];
        if host.incarnation != incarnation {
            return;
        }
        if host.is_frozen() {
            host.inbox.push_back(Inbox::Received(incarnation, message));
            return;
        }
        let now = host.now(now_us);
        let Some(process) = host.process.as_mut() else { return };
        let mut access = Alone { state: &mut process.state, now };
        if others::receive(&mut access, &process.id, &message).is_err() {
            self.check.violated("messages", now_us, || "a peer sent an invalid message".to_owned());
        }
        self.notify(at);
    }

    /// Messages of peers may have been missed, so the region's aggregators subscribe again.
    pub(in crate::world) fn resubscribe(&mut self, region: usize) {
        for number in 0..self.plan.topology.aggregators {
            let at = self.aggregator_at(region, number);
            let incarnation = self.aggregators[at].incarnation;
            self.queue.plan(
                self.now_us + 100_000 + SUBSCRIBE_US,
                Event::Aggregator(at, incarnation, Due::Subscribed),
            );
        }
    }
}
