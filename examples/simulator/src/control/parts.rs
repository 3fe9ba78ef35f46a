//! Aggregators, Envoys, and the streams between them.

use super::check::{Made, Obeyed};
use std::collections::BTreeMap;
use weir_core::bans::making::Bans;
use weir_core::bans::proposals::Proposals;
use weir_core::bans::queue::BanQueue;
use weir_core::control::Keeper;
use weir_core::control::book::{Book, ControlPush, News};
use weir_core::control::news::UnfinishedNews;
use weir_core::limiter::table::{Geometry, Meta};
use weir_core::limiter::{Limiter, Output, Setup};
use weir_core::model::key::{HashKey, NodeId};
use weir_core::model::schedule::Schedule;
use weir_core::model::shared::MemoryShared;
use weir_core::model::time::{MonoMs, Now, UnixMs};
use weir_core::model::wire;
use weir_core::region::RegionLimits;
use weir_core::replication::RegionState;
use weir_core::replication::global::controls::Reader;
use weir_core::rules::Config;

/// The table of a process, with places for a flood.
const GEOMETRY: Geometry = Geometry { buckets: 256, keys_per_bucket: 8 };
/// The root of the configuration of all workers.
const ROOT: u32 = 1;

/// An aggregator's program and its machine.
pub struct Aggregator {
    /// Its region.
    pub region: u64,
    /// How far its wall clock is ahead, in milliseconds.
    pub skew_ms: i64,
    /// Nothing runs on it before this time.
    pub frozen_until: u64,
    /// Nothing that it does is checked before a time after this one, which is that of the last fault that concerns it.
    pub last_fault: u64,
    /// Counts the starts, so that events of an earlier process have no effect.
    pub start: u64,
    /// The program; `None` while it does not run.
    pub process: Option<Process>,
}

/// What an aggregator has in memory.
pub struct Process {
    /// The controls that it has read.
    pub book: Book,
    /// When it reads.
    pub reader: Reader,
    /// For the reader's events.
    pub state: RegionState,
    /// What it has read of a reading.
    pub so_far: UnfinishedNews,
    /// The reading under way.
    pub reading: Option<Reading>,
    /// Counts the waits, so that an earlier wait's end has no effect.
    pub waits: u64,
    /// What it obeyed.
    pub obeyed: Obeyed,
    /// The highest revision that it has read.
    pub seen: u64,
    /// Proposed bans that it has not stored yet.
    pub queue: BanQueue,
    /// It stores them, batch by batch.
    pub is_storing: bool,
}

/// A reading of the database.
#[derive(Clone, Copy)]
pub struct Reading {
    /// It fails after this time.
    pub until: u64,
    /// It compares the table, whatever the edition is.
    pub compares: bool,
}

impl Aggregator {
    /// One that is about to start.
    pub fn new(region: u64) -> Aggregator {
        Aggregator { region, skew_ms: 0, frozen_until: 0, last_fault: 0, start: 0, process: None }
    }

    /// Its clocks.
    pub fn clocks(&self, now: u64, slept_ms: u64) -> Now {
        Now { unix: clock(now + slept_ms, self.skew_ms), mono: MonoMs(now) }
    }

    /// Starts the program.
    pub fn start(&mut self, now: u64, random: u64) {
        self.start += 1;
        self.process = Some(Process {
            book: Book::new(),
            reader: Reader::new(Schedule::default(), MonoMs(now), random),
            state: RegionState::new(RegionLimits::default(), HashKey(1, 2)),
            so_far: UnfinishedNews::default(),
            reading: None,
            waits: 0,
            obeyed: Obeyed::default(),
            seen: 0,
            queue: BanQueue::default(),
            is_storing: false,
        });
    }
}

impl Process {
    /// Takes what was read, as `Live` of the aggregator does; returns whether it is new.
    pub fn take(&mut self, news: News, now: UnixMs) -> bool {
        let revision = news.edition.revision;
        if !self.book.take(news, now) {
            return false;
        }
        self.seen = self.seen.max(revision);
        true
    }
}

/// An Envoy and its machine.
pub struct Envoy {
    /// Its region.
    pub region: u64,
    /// How far its wall clock is ahead, in milliseconds.
    pub skew_ms: i64,
    /// Nothing runs on it before this time.
    pub frozen_until: u64,
    /// The last fault that concerns it.
    pub last_fault: u64,
    /// Counts the starts.
    pub start: u64,
    /// The shared data of its workers.
    pub shared: MemoryShared,
    /// Its workers.
    pub workers: Vec<Worker>,
    /// The worker that receives live control.
    pub subscriber: usize,
    /// The subscriber's stream.
    pub stream: Option<Stream>,
    /// Counts the streams, so that what was sent on an earlier one is lost.
    pub streams: u64,
    /// Denials of clients in the process, by the second of the mark of the last ban that a worker had.
    pub violations: BTreeMap<(&'static str, u64), u64>,
    /// When a rule of the process last banned a client, and the denials since then.
    pub since_ban: BTreeMap<&'static str, (u64, u64)>,
    /// The bans that rules of the process made.
    pub made: Vec<Made>,
}

/// A worker of an Envoy.
pub struct Worker {
    /// Its limiter, which counts violations.
    pub limiter: Limiter,
    /// The last ping of the limiter that was not answered.
    pub ping: Option<wire::Ping>,
    /// Its controls.
    pub keeper: Keeper,
    /// The bans that its rules make.
    pub bans: Bans,
    /// What it proposes while it is the subscriber.
    pub proposals: Proposals,
    /// What it obeyed.
    pub obeyed: Obeyed,
}

/// A stream of a subscriber, with what its aggregator has sent on it.
pub struct Stream {
    /// The aggregator.
    pub aggregator: usize,
    /// When it was opened.
    pub opened: u64,
    /// What was sent; `None` before the first frame of the Envoy.
    pub push: Option<ControlPush>,
    /// A round of pushes is planned.
    pub is_due: bool,
    /// When the last message of the aggregator arrives: streams keep the order.
    pub arrives: u64,
    /// The same for the Envoy's messages.
    pub answers: u64,
}

impl Envoy {
    /// One that starts now, with as many workers.
    pub fn new(region: u64, workers: usize, config: &Config, now: u64) -> Envoy {
        let mut envoy = Envoy {
            region,
            skew_ms: 0,
            frozen_until: 0,
            last_fault: now,
            start: 0,
            shared: MemoryShared::default(),
            workers: Vec::new(),
            subscriber: 0,
            stream: None,
            streams: 0,
            violations: BTreeMap::new(),
            since_ban: BTreeMap::new(),
            made: Vec::new(),
        };
        envoy.restart(workers, config, now, 0);
        envoy
    }

    /// Starts the process again.
    pub fn restart(&mut self, workers: usize, config: &Config, now: u64, slept_ms: u64) {
        self.start += 1;
        self.streams += 1;
        self.stream = None;
        self.subscriber = 0;
        self.last_fault = self.last_fault.max(now);
        self.shared = MemoryShared::default();
        self.violations.clear();
        self.since_ban.clear();
        self.made.clear();
        let clocks = self.clocks(now, slept_ms);
        let proposal = Meta { node: NodeId([1; 16]), secret: HashKey(1, 2), geometry: GEOMETRY };
        let meta = Meta::establish(&mut self.shared, proposal);
        let worker = |number| Worker {
            limiter: Limiter::new(Setup { meta, worker: number, local_sets: 8 }, clocks),
            ping: None,
            keeper: Keeper::load(&mut self.shared, clocks),
            bans: Bans::new(ROOT, config),
            proposals: Proposals::default(),
            obeyed: Obeyed::default(),
        };
        self.workers = (1..).map(worker).take(workers).collect();
    }

    /// Its clocks.
    pub fn clocks(&self, now: u64, slept_ms: u64) -> Now {
        Now { unix: clock(now + slept_ms, self.skew_ms), mono: MonoMs(now) }
    }
}

impl Worker {
    /// What the filter does at a tick.
    pub fn tick(&mut self, shared: &mut MemoryShared, clocks: Now) {
        self.limiter.tick(shared, clocks);
        let now = self.limiter.moment(clocks.mono);
        self.keeper.tick(shared, now);
        self.outputs(shared, clocks.mono);
    }

    /// What the filter does with the limiter's outputs. The world opens streams at times of its own, and reports are lost: nothing
    /// here depends on counts of other Envoys.
    pub fn outputs(&mut self, shared: &mut MemoryShared, mono: MonoMs) {
        let now = self.limiter.moment(mono);
        while let Some(output) = self.limiter.next(shared, mono) {
            match output {
                Output::Struck(violator) => self.bans.ban(&violator, &mut self.keeper, now),
                Output::Send(frame) => self.ping = frame.ping.or(self.ping.take()),
                _ => {}
            }
        }
    }
}

/// The wall clock of a machine that is `skew_ms` ahead.
pub(super) fn clock(now: u64, skew_ms: i64) -> UnixMs {
    UnixMs(now.saturating_add_signed(skew_ms))
}
