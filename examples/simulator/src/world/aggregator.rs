//! Aggregators: a region's counts behind streams.
//!
//! Leaves to others: streams (`streams`), the stores behind it (`redis`, `database`), what ends and begins one (`faults`).

use super::World;
use super::clock::Clock;
use super::queue::Event;
use super::streams::{Carried, End, StreamId};
use std::collections::{BTreeMap, VecDeque};
use weir_core::cadence::Cadence;
use weir_core::key::OriginId;
use weir_core::region::{Region, RegionLimits};
use weir_core::time::UnixMs;
use weir_core::wire::{Ack, Answer, FilterFrame, PROTOCOL_VERSION, Pong, RegionFrame, Welcome};

const PUSH_US: u64 = 10_000;
const TICK_US: u64 = 1_000_000;

/// What an aggregator has to do at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Push.
    Push,
    /// Forget.
    Tick,
    /// A time of grace is over.
    Grace(u32),
}

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
    pub life: u64,
    /// `None`: there is none at the moment.
    pub process: Option<Process>,
    /// How many faults freeze it at the moment.
    pub frozen: u32,
    inbox: VecDeque<Inbox>,
}

#[derive(Debug)]
enum Inbox {
    Frame(StreamId, Option<Box<FilterFrame>>),
    Due(u64, Due),
}

/// The program.
#[derive(Debug)]
pub struct Process {
    /// What it counts.
    pub region: Region,
    streams: BTreeMap<StreamId, OriginId>,
    origins: BTreeMap<OriginId, Peer>,
    push_planned: bool,
    since: UnixMs,
}

#[derive(Debug, Default)]
struct Peer {
    open: usize,
    subscriber: Option<StreamId>,
}

impl Aggregator {
    /// A machine without a program.
    pub fn new(region: usize, number: usize, clock: Clock) -> Aggregator {
        Aggregator { region, number, clock, life: 0, process: None, frozen: 0, inbox: VecDeque::new() }
    }

    /// Connections are accepted, by its system at least.
    pub fn listens(&self) -> bool {
        self.process.is_some()
    }

    /// It does nothing at the moment.
    pub fn is_frozen(&self) -> bool {
        self.frozen > 0
    }
}

impl World<'_> {
    /// A program begins with nothing.
    pub(super) fn start_aggregator(&mut self, at: usize) {
        let now_us = self.now_us;
        let host = &mut self.aggregators[at];
        host.life += 1;
        let mut chance = self.chance.root.fork("aggregator", at as u64).fork("life", host.life);
        let region = Region::new(RegionLimits::default(), (chance.next(), chance.next()));
        host.process = Some(Process {
            region,
            streams: BTreeMap::new(),
            origins: BTreeMap::new(),
            push_planned: false,
            since: host.clock.unix(now_us),
        });
        let life = host.life;
        self.queue.plan(now_us + chance.below(TICK_US), Event::Aggregator(at, life, Due::Tick));
        self.queue
            .plan(now_us + Cadence::default().grace_ms * 1_000, Event::Aggregator(at, life, Due::Grace(1)));
    }

    /// A program ends: in good order, or not.
    pub(super) fn end_aggregator(&mut self, at: usize, _in_order: bool) {
        let host = &mut self.aggregators[at];
        host.inbox.clear();
        let Some(process) = host.process.take() else { return };
        drop(process);
        for id in self.streams.ids() {
            if self.streams.get(id).is_some_and(|stream| stream.aggregator == at)
                && self.is_open(id, End::Aggregator)
            {
                self.closed(id, End::Aggregator);
            }
        }
    }

    /// It goes on where it was.
    pub(super) fn thaw_aggregator(&mut self, at: usize) {
        if self.aggregators[at].is_frozen() {
            return;
        }
        for held in std::mem::take(&mut self.aggregators[at].inbox) {
            match held {
                Inbox::Frame(id, frame) => self.aggregator_hears(id, frame),
                Inbox::Due(life, due) => self.aggregator_does(at, life, due),
            }
        }
    }

    /// A frame reaches the aggregator's end of a stream, or the news that it has ended.
    pub(super) fn aggregator_hears(&mut self, id: StreamId, frame: Option<Box<FilterFrame>>) {
        let Some(stream) = self.streams.get(id) else { return };
        let (at, life) = (stream.aggregator, stream.aggregator_life);
        let host = &mut self.aggregators[at];
        if host.is_frozen() {
            host.inbox.push_back(Inbox::Frame(id, frame));
            return;
        }
        if host.life != life || host.process.is_none() {
            return;
        }
        match frame {
            Some(frame) => self.take(at, id, *frame),
            None => {
                self.leave(at, id);
                self.closed(id, End::Aggregator);
            }
        }
    }

    pub(super) fn aggregator_does(&mut self, at: usize, life: u64, due: Due) {
        let now_us = self.now_us;
        let host = &mut self.aggregators[at];
        if host.life != life {
            return;
        }
        if host.is_frozen() {
            host.inbox.push_back(Inbox::Due(life, due));
            return;
        }
        let now = host.clock.unix(now_us);
        let Some(process) = host.process.as_mut() else { return };
        match due {
            Due::Push => self.push(at),
            Due::Tick => {
                while process.region.tick(now) {}
                self.queue.plan(now_us + TICK_US, Event::Aggregator(at, life, Due::Tick));
            }
            Due::Grace(times) => {
                let since = process.since;
                process.region.end_grace_here(since, now);
                if times < 5 {
                    let next = now_us + Cadence::default().grace_ms * 1_000;
                    self.queue.plan(next, Event::Aggregator(at, life, Due::Grace(times + 1)));
                }
                self.plan_push(at);
            }
        }
    }

    fn take(&mut self, at: usize, id: StreamId, frame: FilterFrame) {
        let now_us = self.now_us;
        let host = &mut self.aggregators[at];
        let now = host.clock.unix(now_us);
        let Some(Process { region, streams, origins, .. }) = host.process.as_mut() else { return };
        let mut reply = RegionFrame::default();
        if let Some(hello) = &frame.hello {
            let Some(origin) = OriginId::parse(&hello.origin) else { return };
            region.heard(origin, now);
            let peer = origins.entry(origin).or_default();
            if streams.insert(id, origin).is_none() {
                peer.open += 1;
                reply.welcome = Some(Welcome { version: PROTOCOL_VERSION, region: "r".into() });
            }
            match (hello.subscriber, peer.subscriber == Some(id)) {
                (true, false) => {
                    peer.subscriber = Some(id);
                    region.subscribe(origin);
                }
                (false, true) => {
                    peer.subscriber = None;
                    region.unsubscribe(origin);
                }
                _ => {}
            }
        }
        let Some(&origin) = streams.get(&id) else { return };
        region.heard(origin, now);
        if let Some(report) = &frame.report {
            let reported = region.report(origin, &report.counts, now);
            let bases = reported.bases.into_iter().map(|(_, base)| base).collect();
            let refused = reported.refused.iter().map(|(place, _)| *place).collect();
            reply.ack = Some(Ack { report_id: report.id, bases, refused });
        }
        reply.answers = frame
            .consults
            .iter()
            .map(|ask| {
                let unjudged = Answer { id: ask.id, ..Answer::default() };
                region.consult(origin, ask, now).unwrap_or(unjudged)
            })
            .collect();
        for (ask, answer) in frame.consults.iter().zip(&reply.answers) {
            if answer.granted && ask.cost > 0 {
                self.check.granted(origin, ask, now_us);
            }
        }
        if let Some(ping) = frame.ping {
            let live_origins = region.live_origins(now) as u32;
            reply.pong = Some(Pong { sent_ms: ping.sent_ms, unix_ms: now.0, live_origins });
        }
        let changes = frame.report.is_some() || !reply.answers.is_empty() || frame.hello.is_some();
        if reply != RegionFrame::default() {
            self.reply(id, reply);
        }
        if changes {
            self.plan_push(at);
        }
    }

    fn leave(&mut self, at: usize, id: StreamId) {
        let Some(Process { region, streams, origins, .. }) = self.aggregators[at].process.as_mut() else {
            return;
        };
        let Some(origin) = streams.remove(&id) else { return };
        let Some(peer) = origins.get_mut(&origin) else { return };
        if peer.subscriber == Some(id) {
            peer.subscriber = None;
            region.unsubscribe(origin);
        }
        peer.open -= 1;
        if peer.open == 0 {
            origins.remove(&origin);
            region.gone(origin);
        }
    }

    fn reply(&mut self, id: StreamId, frame: RegionFrame) {
        self.counts.frames += 1;
        self.carry(id, Carried::Down(Some(Box::new(frame))));
    }

    fn plan_push(&mut self, at: usize) {
        let host = &mut self.aggregators[at];
        let life = host.life;
        let Some(process) = host.process.as_mut() else { return };
        if !std::mem::replace(&mut process.push_planned, true) {
            self.queue.plan(self.now_us + PUSH_US, Event::Aggregator(at, life, Due::Push));
        }
    }

    fn push(&mut self, at: usize) {
        let now_us = self.now_us;
        let host = &mut self.aggregators[at];
        let now = host.clock.unix(now_us);
        let Some(Process { region, origins, push_planned, .. }) = host.process.as_mut() else { return };
        *push_planned = false;
        let mut pushes = Vec::new();
        for (origin, peer) in origins.iter() {
            let Some(id) = peer.subscriber else { continue };
            while let Some(push) = region.next_push(*origin, now) {
                if !push.views.is_empty() || push.complete {
                    pushes.push((id, push));
                }
            }
        }
        for (id, push) in pushes {
            self.reply(id, RegionFrame { push: Some(push), ..RegionFrame::default() });
        }
    }
}
