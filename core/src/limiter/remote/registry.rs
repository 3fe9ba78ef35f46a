//! The workers of one process: who is alive, who takes the pushes for all, whose work is safely reported.
//!
//! One shared place, brought up to date by each worker's tick. The subscriber holds a lease that it renews; when it
//! falls silent another takes over, a worker that serves no requests first. `acked_through` of each worker bounds
//! what may be evicted: an entry charged before the least of them is stored in the region.
//!
//! Workers may talk to different aggregators, and one that dies may take with it what it alone had acknowledged. So
//! each time that a worker's stream comes up, whoever it leads to, a *gap* is counted, and nothing may be evicted until
//! the subscriber has told everything once more to the aggregator that it talks to (`resent`), nor while any worker
//! hears nothing.

use crate::model::shared::{Place, Shared};
use crate::model::time::MonoMs;
use alloc::vec::Vec;

/// A worker that has not ticked for this long is dead.
pub(in crate::limiter) const DEAD_MS: u64 = 5_000;
/// The subscriber renews its lease at every tick, for this long.
/// So many processes may be there as leave nobody anything to spend without asking.
pub(in crate::limiter) const UNKNOWN_ORIGINS: u32 = u32::MAX;
const SUBSCRIPTION_MS: u64 = 400;
/// A worker that serves requests lets others go first for this long.
const DEFER_MS: u64 = 200;
/// Most workers of a process. While there are so many, some may be unknown, and nothing is evicted.
const MAX_WORKERS: usize = 256;
/// Attempts at the compare-and-set; the next tick is near.
const MAX_TRIES: usize = 8;

/// Keys whose leases were called back last, told by name; a worker that has missed more returns all of its own.
pub(in crate::limiter) const MAX_RECALLED: usize = 16;

const LAYOUT: u64 = 5;
const HEADER_WORDS: usize = 10 + MAX_RECALLED;
/// A stream on which nothing was heard for this long has ended, as far as eviction goes.
const SILENT_MS: u64 = 1_000;
const WORKER_WORDS: usize = 5;

/// The region's clock, as the subscriber measured it: all workers of the process decide by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::limiter) struct Clock {
    /// Unix time minus monotonic time in milliseconds.
    pub(in crate::limiter) offset_ms: u64,
    /// When; zero: never.
    pub(in crate::limiter) measured: MonoMs,
}

/// What a worker brings to the registry.
#[derive(Clone, Debug)]
pub(in crate::limiter) struct Entry {
    pub(in crate::limiter) worker: u64,
    /// `None`: it has lost track, so nothing is safe.
    pub(in crate::limiter) acked_through: Option<MonoMs>,
    /// It decides requests.
    pub(in crate::limiter) serves: bool,
    /// Its stream is up.
    pub(in crate::limiter) connected: bool,
    /// Last echoed ping of its stream.
    pub(in crate::limiter) echo: MonoMs,
    /// When it last heard of its aggregator; zero while its stream is down.
    pub(in crate::limiter) heard: MonoMs,
    /// The clock of its aggregator, if its stream has measured it.
    pub(in crate::limiter) clock: Option<Clock>,
    /// Live processes of the region, as its aggregator counts them.
    pub(in crate::limiter) origins: u32,
    /// Its stream has brought a complete snapshot.
    pub(in crate::limiter) complete: bool,
    /// Its stream has come up since it was here last: what was told to another aggregator may be lost.
    pub(in crate::limiter) gap: bool,
    /// A walk of its that began at this many gaps has told everything, and all of it is stored.
    pub(in crate::limiter) resent: Option<u64>,
    /// Keys (by fingerprint) of which it met budget that is only leased.
    pub(in crate::limiter) recall: Vec<u64>,
}

/// What a worker learns from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::limiter) struct WorkerRegistry {
    pub(in crate::limiter) subscriber: u64,
    subscribed_until: MonoMs,
    /// Last ping echoed to the subscriber.
    pub(in crate::limiter) echo: MonoMs,
    /// The subscriber has a complete snapshot.
    pub(in crate::limiter) complete: bool,
    /// As the subscriber measured it last, whatever has become of its stream since.
    pub(in crate::limiter) clock: Clock,
    /// Times that an aggregator may have been lost together with what it alone knew.
    pub(in crate::limiter) gaps: u64,
    /// Everything that the process owned at so many gaps was told since, and stored.
    resent: u64,
    /// How many recalls there have been.
    recalls: u64,
    /// The last of them: number `n` stands at `n` modulo their number.
    recalled: [u64; MAX_RECALLED],
    workers: Vec<Worker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Worker {
    id: u64,
    heartbeat: MonoMs,
    acked_through: MonoMs,
    heard: MonoMs,
    origins: u64,
}

impl WorkerRegistry {
    /// Brings `me` up to date in the shared registry and returns what it says now; `None` if others were always faster.
    pub(in crate::limiter) fn sync(
        shared: &mut impl Shared,
        me: &Entry,
        reaped: &[u64],
        now: MonoMs,
    ) -> Option<WorkerRegistry> {
        WorkerRegistry::change(shared, |registry| registry.update(me, reaped, now))
    }

    /// Takes `worker` off the registry: it ends in good order. Nobody has to wait for its death, and as what it told last
    /// may not be stored, and nobody will notice if its aggregator dies, everything is to be told again.
    pub(in crate::limiter) fn sign_off(shared: &mut impl Shared, worker: u64, now: MonoMs) {
        // Where others are always faster, they reap it later.
        let _ = WorkerRegistry::change(shared, |registry| {
            registry.workers.retain(|other| other.id != worker);
            registry.gaps += 1;
            if registry.subscriber == worker {
                (registry.subscriber, registry.subscribed_until) = (0, now);
            }
        });
    }

    fn change(shared: &mut impl Shared, change: impl Fn(&mut WorkerRegistry)) -> Option<WorkerRegistry> {
        let mut bytes = Vec::new();
        for _ in 0..MAX_TRIES {
            let version = shared.load(Place::WorkerRegistry, &mut bytes);
            let mut registry = WorkerRegistry::decode(&bytes);
            change(&mut registry);
            if shared.store(Place::WorkerRegistry, &registry.encode(), version) {
                return Some(registry);
            }
        }
        None
    }

    /// Entries charged before this are stored in the region, whoever charged them. Nothing is while any worker, a dead
    /// one that is not reaped included, hears of no aggregator: its last one may have died with what it had acknowledged.
    pub(in crate::limiter) fn safe_before(&self, now: MonoMs) -> MonoMs {
        let deaf = |worker: &Worker| now.since(worker.heard) > SILENT_MS;
        if self.workers.len() >= MAX_WORKERS || !self.is_resent() || self.workers.iter().any(deaf) {
            return MonoMs(0);
        }
        self.workers.iter().map(|worker| worker.acked_through).min().unwrap_or_default()
    }

    /// Everything that the process owns has been told since an aggregator may have been lost.
    pub(in crate::limiter) fn is_resent(&self) -> bool {
        self.gaps == self.resent
    }

    /// Every worker that is alive hears of an aggregator.
    pub(in crate::limiter) fn all_receive(&self, now: MonoMs) -> bool {
        let alive = |worker: &&Worker| now.since(worker.heartbeat) <= DEAD_MS;
        self.workers.iter().filter(alive).all(|worker| now.since(worker.heard) <= SILENT_MS)
    }

    /// Live processes of the region: aggregators that have lost each other know of different ones, and the largest
    /// number is the careful one.
    pub(in crate::limiter) fn origins(&self, now: MonoMs) -> u32 {
        self.reported_origins(now).max().unwrap_or(1)
    }

    /// The same, by those workers alone whose streams have settled.
    pub(in crate::limiter) fn settled_origins(&self, now: MonoMs) -> Option<u32> {
        self.reported_origins(now).filter(|origins| *origins != UNKNOWN_ORIGINS).max()
    }

    fn reported_origins(&self, now: MonoMs) -> impl Iterator<Item = u32> + '_ {
        let hears = move |worker: &&Worker| now.since(worker.heard) <= SILENT_MS;
        let told = self.workers.iter().filter(hears).map(|worker| worker.origins);
        told.map(|origins| u32::try_from(origins).unwrap_or(u32::MAX))
    }

    /// Workers that have stopped ticking.
    pub(in crate::limiter) fn dead(&self, now: MonoMs) -> impl Iterator<Item = u64> + '_ {
        self.workers
            .iter()
            .filter(move |worker| now.since(worker.heartbeat) > DEAD_MS)
            .map(|worker| worker.id)
    }

    /// Keys that were recalled since `before`; `None` if they were more than are told.
    pub(in crate::limiter) fn recalled_since(
        &self,
        before: &WorkerRegistry,
    ) -> Option<impl Iterator<Item = u64> + '_> {
        let missed = self.recalls.saturating_sub(before.recalls);
        let told =
            (before.recalls..self.recalls).filter_map(|at| self.recalled.get(at as usize % MAX_RECALLED));
        (missed <= MAX_RECALLED as u64).then(|| told.copied())
    }

    fn update(&mut self, me: &Entry, reaped: &[u64], now: MonoMs) {
        self.workers.retain(|worker| !reaped.contains(&worker.id));
        self.heartbeat(me, now);
        for fingerprint in &me.recall {
            if let Some(place) = self.recalled.get_mut(self.recalls as usize % MAX_RECALLED) {
                *place = *fingerprint;
            }
            self.recalls += 1;
        }
        let patience = if me.serves { DEFER_MS } else { 0 };
        let vacant = self.subscribed_until.after(patience) <= now;
        if me.connected && (self.subscriber == me.worker || vacant) {
            self.subscriber = me.worker;
            self.subscribed_until = now.after(SUBSCRIPTION_MS);
            self.echo = me.echo;
            self.complete = me.complete;
            self.clock = me.clock.unwrap_or(self.clock);
        }
        self.gaps += u64::from(me.gap);
        self.resent = self.resent.max(me.resent.unwrap_or(0));
    }

    fn heartbeat(&mut self, me: &Entry, now: MonoMs) {
        let acked_through = me.acked_through;
        let room = self.workers.len() < MAX_WORKERS;
        let (heard, origins) = (me.heard, u64::from(me.origins));
        match self.workers.iter_mut().find(|worker| worker.id == me.worker) {
            Some(worker) => {
                (worker.heartbeat, worker.heard, worker.origins) = (now, heard, origins);
                worker.acked_through =
                    acked_through.unwrap_or(worker.acked_through).max(worker.acked_through);
            }
            None if room => {
                let acked_through = acked_through.unwrap_or_default();
                self.workers.push(Worker { id: me.worker, heartbeat: now, acked_through, heard, origins });
            }
            None => {}
        }
    }

    fn encode(&self) -> Vec<u8> {
        let header = [
            LAYOUT,
            self.subscriber,
            self.subscribed_until.0,
            self.echo.0,
            u64::from(self.complete),
            self.gaps,
            self.resent,
            self.recalls,
            self.clock.offset_ms,
            self.clock.measured.0,
        ];
        let words = |worker: &Worker| {
            [worker.id, worker.heartbeat.0, worker.acked_through.0, worker.heard.0, worker.origins]
        };
        let workers = self.workers.iter().flat_map(words);
        header.into_iter().chain(self.recalled).chain(workers).flat_map(u64::to_le_bytes).collect()
    }

    fn decode(bytes: &[u8]) -> WorkerRegistry {
        let (words, _) = bytes.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let Some((header, rest)) = words.split_first_chunk::<HEADER_WORDS>() else {
            return WorkerRegistry::default();
        };
        let [
            LAYOUT,
            subscriber,
            until,
            echo,
            complete,
            gaps,
            resent,
            recalls,
            offset_ms,
            measured,
            recalled @ ..,
        ] = *header
        else {
            return WorkerRegistry::default();
        };
        let (workers, _) = rest.as_chunks::<WORKER_WORDS>();
        let worker = |&[id, heartbeat, acked, heard, origins]: &[u64; WORKER_WORDS]| Worker {
            id,
            heartbeat: MonoMs(heartbeat),
            acked_through: MonoMs(acked),
            heard: MonoMs(heard),
            origins,
        };
        WorkerRegistry {
            subscriber,
            subscribed_until: MonoMs(until),
            echo: MonoMs(echo),
            complete: complete == 1,
            clock: Clock { offset_ms, measured: MonoMs(measured) },
            gaps,
            resent,
            recalls,
            recalled,
            workers: workers.iter().map(worker).collect(),
        }
    }
}
