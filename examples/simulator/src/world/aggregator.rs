//! Aggregators: the core's desk and machines behind streams.
//!
//! What stands here is what the aggregator's own edges do: letting streams in, handing frames to the desk, sending what it
//! says, beginning and ending the program in order. No count is decided here.
//!
//! Leaves to others: the machines beside the desk (`machines`), streams (`streams`), what ends and begins one (`faults`).

use super::World;
use super::calls::{Caller, Reply, Request, Store};
use super::clock::Clock;
use super::machines::{Machine, Running};
use super::queue::Event;
use super::streams::{Carried, End, StreamId};
use std::collections::{BTreeMap, VecDeque};
use weir_core::aggregator::desk::{Alone, Desk, LateAck, TICK_MS};
use weir_core::aggregator::globe::import::Importer;
use weir_core::aggregator::globe::lease::{Keeping, Taking};
use weir_core::aggregator::globe::publish::Publisher;
use weir_core::aggregator::globe::recover::Recovery;
use weir_core::aggregator::grace::Grace;
use weir_core::aggregator::hot::HotReader;
use weir_core::aggregator::push::{COALESCE_MS, Pusher, Step};
use weir_core::aggregator::questions::Questions;
use weir_core::aggregator::replay::Replay;
use weir_core::aggregator::watch::Watch;
use weir_core::aggregator::{Bell, Bells, announce, sisters};
use weir_core::cadence::Cadence;
use weir_core::key::OriginId;
use weir_core::region::RegionLimits;
use weir_core::wire::{Answer, Consult, FilterFrame, PROTOCOL_VERSION, RegionFrame, Welcome};

/// Frames of one stream whose questions may wait for the store; those of further ones are answered from memory.
const OPEN_QUESTIONS: usize = 32;
/// A stream that sends nothing for so long while the program ends has nothing more on the way.
const QUIET_US: u64 = 30_000;
/// How long streams are still served when the program ends.
const DRAIN_US: u64 = 2_000_000;
/// What the store gets to take what was reported last.
const LAST_REPLAY_US: u64 = 500_000;
/// Between looks at a program that ends.
const ENDING_US: u64 = 10_000;
/// A new connection for messages is there after this.
const LISTEN_US: u64 = 2_000;

/// What an aggregator has to do at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// The desk forgets what is over.
    Tick,
    /// The rest between two rounds of pushes is over.
    Pushed,
    /// A subscriber's pushes go on.
    Pusher(StreamId),
    /// A machine's pause, and which, is over.
    Pause(usize, u64),
    /// Messages of sisters are heard.
    Listens,
    /// It ends: is everything said?
    Ending,
    /// It is started again.
    Start,
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
    /// When the last message of a sister arrives.
    pub heard_us: u64,
    /// It is to begin anew as soon as it has ended.
    pub begins_anew: bool,
    /// What came while it was frozen.
    pub inbox: VecDeque<Inbox>,
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
    /// A message of a sister.
    Heard(u64, Box<[u8]>),
}

/// The program.
#[derive(Debug)]
pub struct Process {
    /// What it knows.
    pub desk: Desk,
    /// Names it among those of its region.
    pub id: [u8; 16],
    /// What goes on beside streams.
    pub machines: Vec<Option<Running>>,
    /// Bells that rang and that nobody has heard.
    pub rung: Bells,
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
    id: weir_core::aggregator::StreamId,
    pusher: Option<Pusher>,
    questions: usize,
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
            life: 0,
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

    /// Messages of its sisters reach it.
    pub fn hears_sisters(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.listens)
    }

    /// It does nothing at the moment.
    pub fn is_frozen(&self) -> bool {
        self.frozen > 0
    }
}

impl World<'_> {
    /// A program begins with nothing.
    pub(super) fn start_aggregator(&mut self, at: usize) {
        let (has_store, has_database) = (self.has_redis(), self.has_database());
        let cadence = Cadence::default();
        let host = &mut self.aggregators[at];
        host.life += 1;
        host.begins_anew = false;
        let mut chance = self.chance.root.fork("aggregator", at as u64).fork("life", host.life);
        let mut desk = Desk::new(RegionLimits::default(), (chance.next(), chance.next()));
        if has_store {
            desk = desk.with_store(cadence.store_breaker);
        }
        if has_database {
            desk = desk.with_database(cadence.global_breaker, false);
        }
        let mut id = [0; 16];
        id[..8].copy_from_slice(&chance.next().to_be_bytes());
        host.process = Some(Process {
            desk,
            id,
            machines: Vec::new(),
            rung: Bells::new(),
            peers: BTreeMap::new(),
            late: VecDeque::new(),
            serves: false,
            listens: false,
            push_rests: false,
            ending_us: None,
        });
        let mono = host.clock.mono(self.now_us);
        match has_database && !has_store {
            true => self.spawn(at, Machine::Taking(Taking::new(mono)), false),
            false => self.prepare(at),
        }
    }

    /// Reads what the database knows before anybody is served.
    pub(super) fn prepare(&mut self, at: usize) {
        if self.has_database() {
            // Both are there before one may be over.
            self.spawn(at, Machine::Importer(Importer::once()), true);
            if !self.has_redis() {
                self.spawn(at, Machine::Recovery(Recovery::once()), true);
            }
        } else {
            self.serve_when_ready(at);
        }
    }

    /// Serves, once what has to be over before is.
    pub(super) fn serve_when_ready(&mut self, at: usize) {
        let (has_store, has_database) = (self.has_redis(), self.has_database());
        let cadence = Cadence::default();
        let (one, two) = (self.chance.stores.next(), self.chance.stores.next());
        let now_us = self.now_us;
        let host = &mut self.aggregators[at];
        let (life, now) = (host.life, host.clock.now(now_us));
        let Some(process) = host.process.as_mut() else { return };
        if process.machines.iter().any(Option::is_some) || std::mem::replace(&mut process.serves, true) {
            return;
        }
        let id = process.id;
        let tick = now_us + one % (TICK_MS * 1_000);
        self.queue.plan(tick, Event::Aggregator(at, life, Due::Tick));
        let mut machines = Vec::new();
        if has_database {
            machines.push(Machine::Publisher(Publisher::new(cadence, now.mono, one)));
            machines.push(Machine::Importer(Importer::new(cadence, now.mono, two)));
            machines.push(Machine::Recovery(Recovery::new(cadence)));
        }
        if has_store {
            machines.push(Machine::Replay(Replay::new(cadence)));
            machines.push(Machine::Watch(Watch::new(cadence)));
            machines.push(Machine::Announcer(announce::Announcer::new(id, cadence)));
            machines.push(Machine::Teller(sisters::Teller::new(id, cadence)));
            machines.push(Machine::HotReader(HotReader::new(cadence)));
            self.queue.plan(now_us + LISTEN_US, Event::Aggregator(at, life, Due::Listens));
        } else {
            machines.push(Machine::Grace(Grace::anew(cadence, now.unix)));
            if has_database {
                machines.push(Machine::Keeping(Keeping::default()));
            }
        }
        for machine in machines {
            self.spawn(at, machine, false);
        }
    }

    /// A program ends: in good order, or at once.
    pub(super) fn end_aggregator(&mut self, at: usize, in_order: bool) {
        let now_us = self.now_us;
        let host = &mut self.aggregators[at];
        let life = host.life;
        let Some(process) = host.process.as_mut() else { return };
        if in_order && process.serves {
            process.ending_us.get_or_insert(Ending { since_us: now_us, last: None });
            self.queue.plan(now_us, Event::Aggregator(at, life, Due::Ending));
        } else {
            self.check.region_lost(host.region, now_us, !in_order);
            self.end_aggregator_now(at);
        }
    }

    pub(super) fn end_aggregator_now(&mut self, at: usize) {
        let host = &mut self.aggregators[at];
        host.inbox.clear();
        if host.process.take().is_none() {
            return;
        }
        // Nothing that was planned for it concerns the next one.
        host.life += 1;
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
                Inbox::Answer(id, reply) => self.answered(id, reply),
                Inbox::Heard(life, message) => self.sister_says(at, life, message),
            }
        }
    }

    /// A frame reaches the aggregator's end of a stream, or the news that it has ended.
    pub(super) fn aggregator_hears(&mut self, id: StreamId, frame: Option<Box<FilterFrame>>) {
        let Some(stream) = self.streams.get(id) else { return };
        let (at, life) = (stream.aggregator, stream.aggregator_life);
        let host = &mut self.aggregators[at];
        if host.life != life || host.process.is_none() {
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
        self.ring(at);
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
                while process.desk.tick(now) {}
                self.queue.plan(now_us + TICK_MS * 1_000, Event::Aggregator(at, life, Due::Tick));
            }
            Due::Pushed => process.push_rests = false,
            Due::Pusher(id) => self.push(at, id),
            Due::Pause(number, pause) => self.pause_over(at, number, pause),
            Due::Listens => {
                process.listens = true;
                sisters::connected(&mut Alone { desk: &mut process.desk, now });
            }
            Due::Ending => self.go_on_ending(at),
            Due::Start => {}
        }
        self.ring(at);
    }

    /// A message of a sister, or its own.
    pub(super) fn sister_says(&mut self, at: usize, life: u64, message: Box<[u8]>) {
        let now_us = self.now_us;
        let host = &mut self.aggregators[at];
        if host.life != life {
            return;
        }
        if host.is_frozen() {
            host.inbox.push_back(Inbox::Heard(life, message));
            return;
        }
        let now = host.clock.now(now_us);
        let Some(process) = host.process.as_mut() else { return };
        let mut access = Alone { desk: &mut process.desk, now };
        if sisters::hear(&mut access, &process.id, &message).is_err() {
            self.check.violated("messages", now_us, || "a sister sent what is no message".to_owned());
        }
        self.ring(at);
    }

    /// Messages of sisters may have been missed: the connection for them is made anew.
    pub(super) fn listen_anew(&mut self, region: usize) {
        for number in 0..self.plan.topology.aggregators {
            let at = self.aggregator_at(region, number);
            let life = self.aggregators[at].life;
            self.queue.plan(self.now_us + 100_000 + LISTEN_US, Event::Aggregator(at, life, Due::Listens));
        }
    }

    fn take(&mut self, at: usize, id: StreamId, mut frame: FilterFrame) {
        let now_us = self.now_us;
        let host = &mut self.aggregators[at];
        let now = host.clock.now(now_us);
        let Some(process) = host.process.as_mut() else { return };
        let mut welcome = None;
        if !process.peers.contains_key(&id) {
            let hello = frame.hello.as_ref();
            let Some(origin) = hello.and_then(|hello| OriginId::parse(&hello.origin)) else {
                return self.closed(id, End::Aggregator);
            };
            let Ok(entered) = process.desk.enter(origin, now) else {
                return self.closed(id, End::Aggregator);
            };
            let peer = Peer {
                origin,
                id: entered.id,
                pusher: None,
                questions: 0,
                heard_us: now_us,
                asked: BTreeMap::new(),
            };
            process.peers.insert(id, peer);
            welcome = Some(Welcome { version: PROTOCOL_VERSION, region: "simulated".to_owned() });
        }
        if welcome.is_some() {
            self.reply(id, RegionFrame { welcome, ..RegionFrame::default() });
        }
        let subscribes = frame.hello.take().map(|hello| hello.subscriber);
        if let Some(subscribes) = subscribes {
            self.take_role(at, id, subscribes);
        }
        let host = &mut self.aggregators[at];
        let Some(process) = host.process.as_mut() else { return };
        let Some(peer) = process.peers.get_mut(&id) else { return };
        peer.heard_us = now_us;
        let origin = peer.origin;
        for ask in frame.consults.iter().filter(|ask| ask.cost > 0) {
            peer.asked.insert(ask.id, ask.clone());
            self.check.proposed(origin, ask, now_us);
        }
        let Ok(taken) = process.desk.take(origin, frame, now) else {
            return self.closed(id, End::Aggregator);
        };
        if let Some(late) = taken.ack {
            process.late.push_back((id, late));
        }
        if taken.reply != RegionFrame::default() {
            self.reply(id, taken.reply);
        }
        if !taken.asks.is_empty() {
            self.ask(at, id, origin, taken.asks);
        }
    }

    fn ask(&mut self, at: usize, id: StreamId, origin: OriginId, asks: Vec<Consult>) {
        let host = &mut self.aggregators[at];
        let now = host.clock.now(self.now_us);
        let region = host.region;
        let Some(process) = host.process.as_mut() else { return };
        let Some(peer) = process.peers.get_mut(&id) else { return };
        if peer.questions >= OPEN_QUESTIONS {
            let answers = process.desk.answer_from_memory(origin, &asks, now);
            return self.reply(id, RegionFrame { answers, ..RegionFrame::default() });
        }
        peer.questions += 1;
        let questions = Questions::propose(&mut Alone { desk: &mut process.desk, now }, origin, asks);
        if questions.merges().is_empty() {
            return self.conclude_questions(at, questions, id, Reply::Merged(Vec::new()));
        }
        let (request, within_ms) = (Request::Merge(questions.merges().to_vec()), questions.patience_ms());
        let caller = Caller::Questions(Box::new(questions), id);
        self.call(at, Store::Redis(region), request, within_ms, caller);
    }

    pub(super) fn conclude_questions(&mut self, at: usize, questions: Questions, id: StreamId, reply: Reply) {
        let Reply::Merged(results) = reply else { return };
        let host = &mut self.aggregators[at];
        let now = host.clock.now(self.now_us);
        let Some(process) = host.process.as_mut() else { return };
        if let Some(peer) = process.peers.get_mut(&id) {
            peer.questions -= 1;
        }
        let answers = questions.conclude(&mut Alone { desk: &mut process.desk, now }, &results);
        self.reply(id, RegionFrame { answers, ..RegionFrame::default() });
        self.ring(at);
    }

    /// Begins or ends pushes, as the worker says that it is its process' subscriber or not.
    fn take_role(&mut self, at: usize, id: StreamId, subscribes: bool) {
        let Some(process) = self.aggregators[at].process.as_mut() else { return };
        let Some(peer) = process.peers.get_mut(&id) else { return };
        if subscribes == peer.pusher.is_some() {
            return;
        }
        let mine = peer.id;
        match subscribes {
            true => {
                let superseded = process.desk.subscribe(peer.origin, peer.id);
                peer.pusher = Some(Pusher::new(peer.origin, peer.id));
                // It hears that its place is taken, and may take it again.
                let theirs =
                    process.peers.values_mut().find(|peer| Some(peer.id) == superseded && peer.id != mine);
                if let Some(peer) = theirs {
                    peer.pusher = None;
                }
                self.push(at, id);
            }
            false => {
                peer.pusher = None;
                process.desk.unsubscribe(peer.origin, peer.id);
            }
        }
    }

    fn leave(&mut self, at: usize, id: StreamId) {
        if let Some(process) = self.aggregators[at].process.as_mut()
            && let Some(peer) = process.peers.remove(&id)
        {
            process.desk.leave(peer.origin, peer.id);
        }
        self.closed(id, End::Aggregator);
    }

    fn reply(&mut self, id: StreamId, frame: RegionFrame) {
        let stream = self.streams.get(id).map(|stream| stream.aggregator);
        let process = stream.and_then(|at| self.aggregators[at].process.as_mut());
        if let Some(peer) = process.and_then(|process| process.peers.get_mut(&id)) {
            for Answer { id, granted, .. } in &frame.answers {
                if let Some(ask) = peer.asked.remove(id).filter(|_| *granted) {
                    self.check.granted(peer.origin, &ask, self.now_us);
                }
            }
        }
        self.counts.frames += 1;
        self.carry(id, Carried::Down(Some(Box::new(frame))));
    }

    /// Acknowledges what the rounds that are over have stored.
    pub(super) fn acknowledge(&mut self, at: usize) {
        loop {
            let Some(process) = self.aggregators[at].process.as_mut() else { return };
            let replayed = process.desk.replayed();
            if process.late.front().is_none_or(|(_, late)| late.after > replayed) {
                return;
            }
            let Some((id, late)) = process.late.pop_front() else { return };
            let Some(peer) = process.peers.get(&id) else { continue };
            let ack = Some(process.desk.acknowledge(peer.origin, late));
            self.reply(id, RegionFrame { ack, ..RegionFrame::default() });
        }
    }

    /// Wakes the subscribers that have something to be told, and rests.
    pub(super) fn watch_pushes(&mut self, at: usize) {
        let host = &mut self.aggregators[at];
        let life = host.life;
        let Some(process) = host.process.as_mut() else { return };
        if process.push_rests || process.rung.hear(Bell::Push.into()).is_none() {
            return;
        }
        process.push_rests = true;
        let told: Vec<_> = process.desk.to_be_told().collect();
        let peers = process.peers.iter().filter(|(_, peer)| told.contains(&peer.id));
        let ids: Vec<StreamId> = peers.map(|(id, _)| *id).collect();
        let rested = self.now_us + COALESCE_MS * 1_000;
        self.queue.plan(rested, Event::Aggregator(at, life, Due::Pushed));
        ids.into_iter().for_each(|id| self.push(at, id));
    }

    fn push(&mut self, at: usize, id: StreamId) {
        loop {
            let host = &mut self.aggregators[at];
            let (life, now) = (host.life, host.clock.now(self.now_us));
            let Some(process) = host.process.as_mut() else { return };
            let Some(peer) = process.peers.get_mut(&id) else { return };
            let Some(pusher) = &mut peer.pusher else { return };
            match pusher.next(&mut Alone { desk: &mut process.desk, now }) {
                Step::Send(push) => {
                    self.reply(id, RegionFrame { push: Some(push), ..RegionFrame::default() })
                }
                Step::Sleep(ms) => {
                    let due = Event::Aggregator(at, life, Due::Pusher(id));
                    return self.queue.plan(self.now_us + ms * 1_000, due);
                }
                Step::Wait => return,
                Step::Over => {
                    peer.pusher = None;
                    return;
                }
            }
        }
    }

    /// Ends streams that have nothing more on the way, has the store take what they said last, and ends.
    fn go_on_ending(&mut self, at: usize) {
        let now_us = self.now_us;
        let host = &mut self.aggregators[at];
        let (life, region) = (host.life, host.region);
        let Some(process) = host.process.as_mut() else { return };
        let Some(mut ending) = process.ending_us else { return };
        let late = now_us - ending.since_us > DRAIN_US;
        let over = |peer: &Peer| late || now_us - peer.heard_us.max(ending.since_us) > QUIET_US;
        let quiet: Vec<StreamId> =
            process.peers.iter().filter(|(_, peer)| over(peer)).map(|(id, _)| *id).collect();
        let all = quiet.len() == process.peers.len();
        if all && ending.last.is_none() {
            // The round after the next: the index names what became hot in the one before.
            ending.last = Some((process.desk.next_round() + 1, now_us + LAST_REPLAY_US));
            process.ending_us = Some(ending);
        }
        process.desk.ring(Bell::Replay);
        let (replayed, id) = (process.desk.replayed(), process.id);
        quiet.into_iter().for_each(|id| self.leave(at, id));
        let stored = |(round, until): (u64, u64)| replayed >= round || now_us >= until;
        if !ending.last.is_some_and(|last| !self.has_redis() || stored(last)) {
            self.queue.plan(now_us + ENDING_US, Event::Aggregator(at, life, Due::Ending));
            return;
        }
        if self.has_database() && !self.has_redis() {
            self.call(at, Store::Database, Request::Release(id), 700, Caller::Nobody);
        }
        self.check.region_lost(region, now_us, false);
        let begins_anew = self.aggregators[at].begins_anew;
        self.end_aggregator_now(at);
        if begins_anew {
            self.start_aggregator(at);
        }
    }
}
