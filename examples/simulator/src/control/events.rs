//! What happens in the world, one step after the other.

use super::database::Reply;
use super::parts::{Reading, Stream};
use super::targets::{TARGETS, is_of_flood, target};
use super::{ACTIVE_MS, BEGIN_MS, World};
use weir_core::control::Effect;
use weir_core::control::book::ControlPush;
use weir_core::control::change::{Change, ChangeOutcome, Wish};
use weir_core::model::time::{MonoMs, UnixMs};
use weir_core::model::wire::{self, PROTOCOL_VERSION};
use weir_core::replication::global::controls::Read;
use weir_core::replication::{Alone, Event as Notice, Next};

/// Time between the ticks of a worker.
const TICK_MS: u64 = 50;
/// Least time between two rounds of pushes on a stream.
const COALESCE_MS: u64 = 20;
/// The same after a filter's revision has shown that it lost controls.
const AGAIN_MS: u64 = 200;
/// Longest time of a message, and of a statement without a fault.
pub const LATENCY_MS: u64 = 20;

/// An event. The numbers of starts, streams and waits are those at its planning; if they have changed, it has no effect.
pub enum Event {
    /// An aggregator's program starts.
    Start { aggregator: usize },
    /// The wait of an aggregator's reader is over.
    Wake { aggregator: usize, start: u64, wait: u64 },
    /// The database replies to one statement of a reading.
    Page { aggregator: usize, start: u64 },
    /// A peer's message that live control has changed arrives.
    Changed { aggregator: usize, start: u64 },
    /// A worker's timer.
    Tick { envoy: usize, worker: usize, start: u64 },
    /// An Envoy opens a stream.
    Open { envoy: usize, streams: u64 },
    /// An aggregator sends what a stream's filter lacks.
    Push { envoy: usize, streams: u64 },
    /// A frame arrives at an Envoy.
    Frame { envoy: usize, streams: u64, frame: wire::Controls },
    /// An Envoy's revision arrives at the aggregator.
    Known { envoy: usize, streams: u64, known: wire::ControlsKnown },
    /// An operator changes a control.
    Change,
    /// A client sends requests to an Envoy.
    Requests { envoy: usize },
    /// An Envoy's proposals of bans arrive at the aggregator.
    Proposes { envoy: usize, streams: u64, bans: Vec<wire::Ban> },
    /// Proposals of a filter that the world does not have arrive.
    Proposed { aggregator: usize, start: u64, bans: Vec<wire::Ban> },
    /// An aggregator stores proposals.
    Store { aggregator: usize, start: u64 },
    /// Something goes wrong.
    Fault,
}

impl World {
    /// Plans the first events.
    pub fn begin(&mut self) {
        for aggregator in 0..self.aggregators.len() {
            let after_ms = self.draw(0, 1_000);
            self.plan(after_ms, Event::Start { aggregator });
        }
        for envoy in 0..self.envoys.len() {
            self.begin_envoy(envoy);
            self.plan(1_000, Event::Requests { envoy });
        }
        self.plan(500, Event::Change);
        self.plan(2_000, Event::Fault);
    }

    /// Plans the ticks and the stream of an Envoy that starts.
    pub fn begin_envoy(&mut self, envoy: usize) {
        let (start, streams) = (self.envoys[envoy].start, self.envoys[envoy].streams);
        for worker in 0..self.envoys[envoy].workers.len() {
            let after_ms = self.draw(0, TICK_MS);
            self.plan(after_ms, Event::Tick { envoy, worker, start });
        }
        self.plan(10, Event::Open { envoy, streams });
    }

    pub fn handle(&mut self, event: Event) {
        let Some(event) = self.unless_frozen(event) else { return };
        match event {
            Event::Start { aggregator } => self.start(aggregator),
            Event::Wake { aggregator, start, wait } => {
                let found = &self.aggregators[aggregator];
                if found.start == start && found.process.as_ref().is_some_and(|process| process.waits == wait)
                {
                    self.step_reader(aggregator);
                }
            }
            Event::Page { aggregator, start } => self.page(aggregator, start),
            Event::Changed { aggregator, start } => self.changed(aggregator, start),
            Event::Tick { envoy, worker, start } => self.tick(envoy, worker, start),
            Event::Open { envoy, streams } => self.open(envoy, streams),
            Event::Push { envoy, streams } => self.push(envoy, streams),
            Event::Frame { envoy, streams, frame } => {
                let found = &mut self.envoys[envoy];
                if found.streams == streams {
                    let subscriber = found.subscriber;
                    found.workers[subscriber].keeper.on_frame(&mut found.shared, &frame);
                    self.answer(envoy);
                }
            }
            Event::Known { envoy, streams, known } => self.known(envoy, streams, known),
            Event::Change => self.change(),
            Event::Requests { envoy } => self.requests(envoy),
            Event::Proposes { envoy, streams, bans } => {
                let found = &self.envoys[envoy];
                let stream = found.stream.as_ref().filter(|_| found.streams == streams);
                if let Some(aggregator) = stream.map(|stream| stream.aggregator) {
                    self.proposed(aggregator, self.aggregators[aggregator].start, &bans);
                }
            }
            Event::Proposed { aggregator, start, bans } => self.proposed(aggregator, start, &bans),
            Event::Store { aggregator, start } => self.store(aggregator, start),
            Event::Fault => self.fault(),
        }
    }

    /// The event, unless the machine that handles it is frozen; then it is planned for later.
    fn unless_frozen(&mut self, event: Event) -> Option<Event> {
        let until = match &event {
            Event::Start { aggregator }
            | Event::Wake { aggregator, .. }
            | Event::Page { aggregator, .. }
            | Event::Changed { aggregator, .. }
            | Event::Proposed { aggregator, .. }
            | Event::Store { aggregator, .. } => self.aggregators[*aggregator].frozen_until,
            Event::Push { envoy, .. } | Event::Known { envoy, .. } | Event::Proposes { envoy, .. } => {
                let stream = self.envoys[*envoy].stream.as_ref();
                stream.map_or(0, |stream| self.aggregators[stream.aggregator].frozen_until)
            }
            Event::Tick { envoy, .. }
            | Event::Open { envoy, .. }
            | Event::Frame { envoy, .. }
            | Event::Requests { envoy } => self.envoys[*envoy].frozen_until,
            Event::Change | Event::Fault => 0,
        };
        if until <= self.now {
            return Some(event);
        }
        self.plan(until - self.now, event);
        None
    }

    fn start(&mut self, aggregator: usize) {
        let (now, random) = (self.now, self.random.next());
        if self.aggregators[aggregator].process.is_none() {
            self.note(|| format!("aggregator {aggregator} starts"));
            self.aggregators[aggregator].start(now, random);
            // It reads once before it serves.
            self.begin_read(aggregator);
        }
    }

    /// Asks the reader what to do, and does it.
    fn step_reader(&mut self, aggregator: usize) {
        let (now, random) = (self.now, self.random.next());
        let found = &mut self.aggregators[aggregator];
        let (start, clocks) = (found.start, found.clocks(now, self.slept_ms));
        let Some(process) = found.process.as_mut().filter(|process| process.reading.is_none()) else {
            return;
        };
        process.waits += 1;
        let wait = process.waits;
        match process.reader.next(&mut Alone { state: &mut process.state, now: clocks }, random) {
            Next::Call(Read { within_ms, compares }) => {
                process.reading = Some(Reading { until: now + within_ms, compares });
                let after_ms = self.draw(1, LATENCY_MS);
                self.plan(after_ms, Event::Page { aggregator, start });
            }
            Next::Wait { at_most_ms, .. } => {
                self.plan(at_most_ms.unwrap_or(0), Event::Wake { aggregator, start, wait });
            }
            Next::Sleep(_) | Next::Yield | Next::Over => {}
        }
    }

    fn begin_read(&mut self, aggregator: usize) {
        let now = self.now;
        let start = self.aggregators[aggregator].start;
        if let Some(process) = &mut self.aggregators[aggregator].process
            && process.reading.is_none()
        {
            process.reading = Some(Reading { until: now + 10_000, compares: true });
            let after_ms = self.draw(1, LATENCY_MS);
            self.plan(after_ms, Event::Page { aggregator, start });
        }
    }

    /// One statement of a reading.
    fn page(&mut self, aggregator: usize, start: u64) {
        let now = self.now;
        let found = &mut self.aggregators[aggregator];
        if found.start != start {
            return;
        }
        let clocks = found.clocks(now, self.slept_ms);
        let Some(process) = found.process.as_mut() else { return };
        let Some(Reading { until, compares }) = process.reading else { return };
        let reply = match now > until || self.database.away_until > now {
            true => None,
            false => {
                let so_far = &mut process.so_far;
                Some(self.database.read(&process.book, so_far, compares, &mut self.random, clocks.unix))
            }
        };
        let is_part = matches!(reply, Some(Reply::Part));
        let went_well = reply.is_some();
        let is_news = match reply {
            Some(Reply::All(news)) => process.take(news, clocks.unix),
            _ => false,
        };
        // Controls that were lost are read again at once.
        let goes_on = is_part || process.book.has_lost() && went_well;
        if !goes_on {
            process.reading = None;
            process.reader.read(went_well);
        }
        if is_news {
            let edition = process.book.edition();
            self.note(|| format!("aggregator {aggregator} has read {edition:?}"));
            self.push_all(aggregator);
        }
        if goes_on {
            let after_ms = self.draw(1, LATENCY_MS);
            return self.plan(after_ms, Event::Page { aggregator, start });
        }
        self.check_aggregator(aggregator);
        self.step_reader(aggregator);
    }

    fn changed(&mut self, aggregator: usize, start: u64) {
        if self.aggregators[aggregator].start != start {
            return;
        }
        if let Some(process) = &mut self.aggregators[aggregator].process {
            process.state.notify(Notice::Controls);
            self.step_reader(aggregator);
        }
    }

    fn tick(&mut self, envoy: usize, worker: usize, start: u64) {
        let now = self.now;
        let found = &mut self.envoys[envoy];
        if found.start != start {
            return;
        }
        let clocks = found.clocks(now, self.slept_ms);
        let subscriber = found.subscriber;
        if let Some(of_worker) = found.workers.get_mut(worker) {
            let before = of_worker.epochs(of_worker.limiter.moment(MonoMs(now)));
            of_worker.tick(&mut found.shared, clocks);
            self.note_bans(envoy, worker, before);
        }
        if worker == subscriber {
            self.ping(envoy);
            self.answer(envoy);
            self.propose(envoy);
        }
        self.check_worker(envoy, worker);
        self.plan(TICK_MS, Event::Tick { envoy, worker, start });
    }

    /// The subscriber sends its revision, if it changed.
    fn answer(&mut self, envoy: usize) {
        let after_ms = self.draw(1, LATENCY_MS);
        let now = self.now;
        let found = &mut self.envoys[envoy];
        let (streams, subscriber) = (found.streams, found.subscriber);
        for (at, worker) in found.workers.iter_mut().enumerate() {
            let is_subscribed = at == subscriber && found.stream.is_some();
            if let (Some(known), Some(stream)) = (worker.keeper.to_send(is_subscribed), &mut found.stream) {
                stream.answers = stream.answers.max(now + after_ms);
                self.queue.plan(stream.answers, Event::Known { envoy, streams, known });
            }
        }
    }

    fn open(&mut self, envoy: usize, streams: u64) {
        let found = &self.envoys[envoy];
        if found.streams != streams || found.stream.is_some() {
            return;
        }
        let region = found.region;
        let is_up = |at: &usize| {
            let aggregator = &self.aggregators[*at];
            aggregator.region == region && aggregator.process.is_some()
        };
        let up: Vec<usize> = (0..self.aggregators.len()).filter(is_up).collect();
        let Some(aggregator) = up.get(self.random.below(up.len() as u64) as usize).copied() else {
            return self.plan(100, Event::Open { envoy, streams });
        };
        let now = self.now;
        self.note(|| format!("envoy {envoy} opens a stream to aggregator {aggregator}"));
        let stream = Stream { aggregator, opened: now, push: None, is_due: false, arrives: 0, answers: 0 };
        let found = &mut self.envoys[envoy];
        (found.stream, found.last_fault) = (Some(stream), found.last_fault.max(now));
        // The first revision on a stream is sent whatever was sent on the last one.
        for worker in &mut found.workers {
            worker.keeper.to_send(false);
            worker.proposals.propose_anew();
        }
        let (subscriber, welcome) =
            (found.subscriber, wire::Welcome { version: PROTOCOL_VERSION, ..Default::default() });
        if let Some(worker) = found.workers.get_mut(subscriber) {
            worker.ping = None;
            let welcome = wire::RegionFrame { welcome: Some(welcome), ..Default::default() };
            worker.limiter.on_frame(&mut found.shared, &welcome, MonoMs(now));
        }
        self.answer(envoy);
    }

    fn push_all(&mut self, aggregator: usize) {
        for envoy in 0..self.envoys.len() {
            if self.envoys[envoy].stream.as_ref().is_some_and(|stream| stream.aggregator == aggregator) {
                self.plan_push(envoy, COALESCE_MS);
            }
        }
    }

    fn plan_push(&mut self, envoy: usize, after_ms: u64) {
        let streams = self.envoys[envoy].streams;
        if let Some(stream) = &mut self.envoys[envoy].stream
            && stream.push.is_some()
            && !std::mem::replace(&mut stream.is_due, true)
        {
            self.plan(after_ms, Event::Push { envoy, streams });
        }
    }

    fn push(&mut self, envoy: usize, streams: u64) {
        let now = self.now;
        let found = &mut self.envoys[envoy];
        let Some(stream) = found.stream.as_mut().filter(|_| found.streams == streams) else { return };
        stream.is_due = false;
        let aggregator = &mut self.aggregators[stream.aggregator];
        let clocks = aggregator.clocks(now, self.slept_ms);
        let (Some(process), Some(push)) = (&aggregator.process, &mut stream.push) else { return };
        for frame in push.next(&process.book, clocks.unix) {
            stream.arrives = stream.arrives.max(now + 1 + self.random.below(LATENCY_MS));
            self.queue.plan(stream.arrives, Event::Frame { envoy, streams, frame });
        }
    }

    fn known(&mut self, envoy: usize, streams: u64, known: wire::ControlsKnown) {
        let now = self.now;
        let found = &mut self.envoys[envoy];
        let Some(stream) = found.stream.as_mut().filter(|_| found.streams == streams) else { return };
        let aggregator = &mut self.aggregators[stream.aggregator];
        let clocks = aggregator.clocks(now, self.slept_ms);
        if let Some(process) = &mut aggregator.process {
            process.book.acknowledged(known, clocks.unix);
        }
        let after_ms = match &mut stream.push {
            Some(push) => {
                if push.acknowledged(known) {
                    AGAIN_MS
                } else {
                    COALESCE_MS
                }
            }
            None => {
                stream.push = Some(ControlPush::new(known));
                0
            }
        };
        self.plan_push(envoy, after_ms);
    }

    /// An operator sets or deletes a control through an aggregator.
    fn change(&mut self) {
        let after_ms = match self.random.below(4) {
            0 => self.draw(5, 100),
            _ => self.draw(500, 3_000),
        };
        if self.now < BEGIN_MS + ACTIVE_MS {
            self.plan(after_ms, Event::Change);
        }
        let now = self.now;
        let at = self.random.below(self.aggregators.len() as u64) as usize;
        let which = self.random.below(TARGETS);
        let (target, effect) = target(which, 1 + self.random.below(1_000));
        let wish = match self.random.below(4) {
            0 => None,
            1 => Some(None),
            _ => Some(Some(self.draw(200, 20_000))),
        };
        let aggregator = &self.aggregators[at];
        let clocks = aggregator.clocks(now, self.slept_ms);
        let is_up = aggregator.process.is_some() && aggregator.frozen_until <= now;
        if !is_up || self.database.away_until > now {
            return;
        }
        // A reset has no end.
        let until =
            |ms: Option<u64>| ms.filter(|_| effect != Effect::Reset).map(|ms| UnixMs(clocks.unix.0 + ms));
        let wish = match wish {
            Some(ends) => Wish::Set(effect, until(ends)),
            None => Wish::Delete(effect.slot()),
        };
        let author = "operator".to_owned();
        let change = Change { target, wish, reason: String::new(), author, automatic: None };
        let results = self.write(at, &[change], clocks.unix);
        let done = results.iter().filter(|changed| matches!(changed, ChangeOutcome::Done(..))).count();
        self.changes += done as u64;
    }

    /// Makes changes through an aggregator, which announces them to its region.
    pub fn write(&mut self, aggregator: usize, changes: &[Change], now: UnixMs) -> Vec<ChangeOutcome> {
        let Some(process) = &self.aggregators[aggregator].process else { return Vec::new() };
        let seen = process.seen;
        let results = self.database.change(&process.book, changes, &mut self.random, now);
        let mut is_changed = false;
        for (changed, change) in results.iter().zip(changes) {
            if let ChangeOutcome::Done(row, _) = changed {
                is_changed = true;
                if !is_of_flood(&row.control.target) {
                    self.note(|| format!("aggregator {aggregator} writes {row:?}"));
                }
                self.committed(row, change, seen, now);
            }
        }
        if is_changed {
            self.new_version();
            self.announce(aggregator);
        }
        results
    }

    fn announce(&mut self, aggregator: usize) {
        let region = self.aggregators[aggregator].region;
        for peer in 0..self.aggregators.len() {
            let start = self.aggregators[peer].start;
            // A message to a peer may be lost.
            let arrives = peer == aggregator || !self.random.per_mille(100);
            if self.aggregators[peer].region == region && arrives {
                let after_ms = self.draw(1, LATENCY_MS);
                self.plan(after_ms, Event::Changed { aggregator: peer, start });
            }
        }
    }
}
