//! Aggregators: the core's state and machines behind streams.
//!
//! What stands here is what the aggregator's own edges do: letting streams in, handing frames to the state, sending what it
//! says, beginning and ending the program in order. No count is decided here.
//!
//! In reading order: what an aggregator is, and what wakes it, here; how its program begins and ends (`incarnation`); what workers send,
//! and what they are told (`peers`).
//!
//! Leaves to others: the machines beside the state (`machines`), streams (`streams`), what ends and begins one (`faults`).

mod life;
pub mod machines;
mod peers;

use super::World;
use super::clock::Clock;
use super::event::{Due, Event, Inbox};
use super::network::StreamId;
use super::request::PendingRefund;
use machines::Running;
use std::collections::{BTreeMap, VecDeque};
use weir_core::model::key::OriginId;
use weir_core::model::wire::{Consult, FilterFrame};
use weir_core::region::log::{Logs, Micros};
use weir_core::replication::Events as RegionEvents;
use weir_core::replication::push::Pusher;
use weir_core::replication::regional::broadcast as others;
use weir_core::replication::state::{Alone, LateAck, RegionState, TICK_MS};

/// A new connection for messages is there after this.
const LISTEN_US: u64 = 2_000;

/// One machine with an aggregator on it.
#[derive(Debug)]
pub struct Aggregator {
    /// Its region.
    pub region: usize,
    /// Its number there.
    pub number: usize,
    /// Its clocks.
    pub clock: Clock,
    /// Which of its lives this is, or was.
    pub incarnation: u64,
    /// `None`: there is none at the moment.
    pub process: Option<Process>,
    /// How many faults freeze it at the moment.
    pub frozen: u32,
    /// When the last message of a peer arrives.
    pub heard_us: u64,
    /// It is to begin anew as soon as it has ended.
    pub begins_anew: bool,
    /// What came while it was frozen.
    pub inbox: VecDeque<Inbox>,
}

/// The program.
#[derive(Debug)]
pub struct Process {
    /// What it knows.
    pub state: RegionState,
    /// Names it among those of its region.
    pub id: [u8; 16],
    /// What goes on beside streams.
    pub machines: Vec<Option<Running>>,
    /// Exact logs, where there is no Redis.
    pub logs: Logs,
    /// What is to be taken back.
    pub refunds: Vec<PendingRefund>,
    /// RegionEvents that notified and that nobody has heard.
    pub notified: RegionEvents,
    peers: BTreeMap<StreamId, Peer>,
    late: VecDeque<(StreamId, LateAck)>,
    serves: bool,
    listens: bool,
    push_rests: bool,
    /// When it was told to end.
    ending_us: Option<Ending>,
}

#[derive(Clone, Copy, Debug)]
struct Ending {
    since_us: u64,
    /// Rounds of replays that are to be over before it ends, once the streams have ended.
    last: Option<(u64, u64)>,
}

/// A stream that was let in.
#[derive(Debug)]
struct Peer {
    origin: OriginId,
    worker: u64,
    id: weir_core::replication::StreamId,
    pusher: Option<Pusher>,
    queries: usize,
    heard_us: u64,
    /// What was asked and not answered yet.
    asked: BTreeMap<u64, Consult>,
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
            heard_us: 0,
            begins_anew: false,
            inbox: VecDeque::new(),
        }
    }

    /// Connections are accepted, by its system at least.
    pub fn listens(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.serves && process.ending_us.is_none())
    }

    /// Messages of its peers reach it.
    pub fn receives_broadcasts(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.listens)
    }

    /// It does nothing at the moment.
    pub fn is_frozen(&self) -> bool {
        self.frozen > 0
    }
}

impl World<'_> {
    /// It goes on where it was.
    pub(in crate::world) fn thaw_aggregator(&mut self, at: usize) {
        if self.aggregators[at].is_frozen() {
            return;
        }
        for held in std::mem::take(&mut self.aggregators[at].inbox) {
            match held {
                Inbox::Frame(id, frame) => self.aggregator_hears(id, frame),
                Inbox::Due(incarnation, due) => self.aggregator_does(at, incarnation, due),
                Inbox::Answer(id, reply) => self.answered(id, reply),
                Inbox::Received(incarnation, message) => self.peer_says(at, incarnation, message),
            }
        }
    }

    /// A frame reaches the aggregator's end of a stream, or the news that it has ended.
    pub(in crate::world) fn aggregator_hears(&mut self, id: StreamId, frame: Option<Box<FilterFrame>>) {
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
            Some(frame) => self.take(at, id, *frame),
            None => self.leave(at, id),
        }
        self.notify(at);
    }

    pub(in crate::world) fn aggregator_does(&mut self, at: usize, incarnation: u64, due: Due) {
        let now_us = self.now_us;
        let host = &mut self.aggregators[at];
        if host.incarnation != incarnation {
            return;
        }
        if host.is_frozen() {
            host.inbox.push_back(Inbox::Due(incarnation, due));
            return;
        }
        let now = host.clock.now(now_us);
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
                self.refunds_due(at);
                self.queue.plan(now_us + TICK_MS * 1_000, Event::Aggregator(at, incarnation, Due::Tick));
            }
            Due::Pushed => process.push_rests = false,
            Due::Pusher(id) => self.push(at, id),
            Due::Pause(number, pause) => self.pause_over(at, number, pause),
            Due::Listens => {
                process.listens = true;
                others::connected(&mut Alone { state: &mut process.state, now });
            }
            Due::Ending => self.go_on_ending(at),
            Due::Start => {}
        }
        self.notify(at);
    }

    /// A message of a peer, or its own.
    pub(in crate::world) fn peer_says(&mut self, at: usize, incarnation: u64, message: Box<[u8]>) {
        let now_us = self.now_us;
        let host = &mut self.aggregators[at];
        if host.incarnation != incarnation {
            return;
        }
        if host.is_frozen() {
            host.inbox.push_back(Inbox::Received(incarnation, message));
            return;
        }
        let now = host.clock.now(now_us);
        let Some(process) = host.process.as_mut() else { return };
        let mut access = Alone { state: &mut process.state, now };
        if others::receive(&mut access, &process.id, &message).is_err() {
            self.check.violated("messages", now_us, || "a peer sent what is no message".to_owned());
        }
        self.notify(at);
    }

    /// Messages of peers may have been missed: the connection for them is made anew.
    pub(in crate::world) fn listen_anew(&mut self, region: usize) {
        for number in 0..self.plan.topology.aggregators {
            let at = self.aggregator_at(region, number);
            let incarnation = self.aggregators[at].incarnation;
            self.queue
                .plan(self.now_us + 100_000 + LISTEN_US, Event::Aggregator(at, incarnation, Due::Listens));
        }
    }
}
