//! The workers of one process: who is alive, who takes the pushes for all, whose work is safely reported.
//!
//! One shared place, brought up to date by each worker's tick. The subscriber holds a lease that it renews; when it
//! falls silent another takes over, a worker that serves no requests first. `acked_through` of each worker bounds
//! what may be evicted: an entry charged before the least of them is stored in the region.

use crate::table::{Place, Shared};
use crate::time::MonoMs;
use alloc::vec::Vec;

/// A worker that has not ticked for this long is dead.
pub(super) const DEAD_MS: u64 = 5_000;
/// The subscriber renews its lease at every tick, for this long.
const SUBSCRIPTION_MS: u64 = 400;
/// A worker that serves requests lets others go first for this long.
const DEFER_MS: u64 = 200;
/// Most workers of a process. While there are so many, some may be unknown, and nothing is evicted.
const MAX_WORKERS: usize = 256;
/// Attempts at the compare-and-set; the next tick is near.
const MAX_TRIES: usize = 8;

/// Keys whose leases were called back last, told by name; a worker that has missed more returns all of its own.
pub(super) const MAX_RECALLED: usize = 16;

const LAYOUT: u64 = 3;
const HEADER_WORDS: usize = 7 + MAX_RECALLED;
/// A subscription that was not heard of for this long has ended, as far as eviction goes.
const SILENT_MS: u64 = 1_000;
const WORKER_WORDS: usize = 3;

/// What a worker brings to the roster.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) worker: u64,
    /// `None`: it has lost track, so nothing is safe.
    pub(super) acked_through: Option<MonoMs>,
    /// It decides requests.
    pub(super) serves: bool,
    /// Its stream is up.
    pub(super) connected: bool,
    /// Last echoed ping of its stream.
    pub(super) echo: MonoMs,
    /// Its stream has brought a complete snapshot.
    pub(super) complete: bool,
    /// Since its stream is up it has repeated everything that the process owns, and the region has stored it.
    pub(super) resent: bool,
    /// Keys (by fingerprint) of which it met budget that is only leased.
    pub(super) recall: Vec<u64>,
}

/// What a worker learns from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Roster {
    pub(super) subscriber: u64,
    subscribed_until: MonoMs,
    /// Last ping echoed to the subscriber.
    pub(super) echo: MonoMs,
    /// The subscriber has a complete snapshot.
    pub(super) complete: bool,
    /// The region holds everything that the process owned when its subscription began.
    resent: bool,
    /// How many recalls there have been.
    recalls: u64,
    /// The last of them: number `n` stands at `n` modulo their number.
    recalled: [u64; MAX_RECALLED],
    workers: Vec<Worker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Worker {
    id: u64,
    beat: MonoMs,
    acked_through: MonoMs,
}

impl Roster {
    /// Brings `me` up to date in the shared roster and returns what it says now; `None` if others were always faster.
    pub(super) fn sync(shared: &mut impl Shared, me: &Entry, buried: &[u64], now: MonoMs) -> Option<Roster> {
        let mut bytes = Vec::new();
        for _ in 0..MAX_TRIES {
            let version = shared.load(Place::Roster, &mut bytes);
            let mut roster = Roster::decode(&bytes);
            roster.update(me, buried, now);
            if shared.store(Place::Roster, &roster.encode(), version) {
                return Some(roster);
            }
        }
        None
    }

    /// Entries charged before this are stored in the region, whoever charged them. Nothing is while there is no region
    /// to be heard of: it may have died and taken with it what it had acknowledged.
    pub(super) fn safe_before(&self, now: MonoMs) -> MonoMs {
        if self.workers.len() >= MAX_WORKERS || !self.resent || now.since(self.echo) > SILENT_MS {
            return MonoMs(0);
        }
        self.workers.iter().map(|worker| worker.acked_through).min().unwrap_or_default()
    }

    /// Workers that have stopped ticking.
    pub(super) fn dead(&self, now: MonoMs) -> impl Iterator<Item = u64> + '_ {
        self.workers.iter().filter(move |worker| now.since(worker.beat) > DEAD_MS).map(|worker| worker.id)
    }

    /// Keys that were recalled since `before`; `None` if they were more than are told.
    pub(super) fn recalled_since(&self, before: &Roster) -> Option<impl Iterator<Item = u64> + '_> {
        let missed = self.recalls.saturating_sub(before.recalls);
        let told =
            (before.recalls..self.recalls).filter_map(|at| self.recalled.get(at as usize % MAX_RECALLED));
        (missed <= MAX_RECALLED as u64).then(|| told.copied())
    }

    fn update(&mut self, me: &Entry, buried: &[u64], now: MonoMs) {
        self.workers.retain(|worker| !buried.contains(&worker.id));
        self.beat(me, now);
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
        }
        if self.subscriber == me.worker {
            self.resent = me.connected && me.resent;
        }
    }

    fn beat(&mut self, me: &Entry, now: MonoMs) {
        let acked_through = me.acked_through;
        let room = self.workers.len() < MAX_WORKERS;
        match self.workers.iter_mut().find(|worker| worker.id == me.worker) {
            Some(worker) => {
                worker.beat = now;
                worker.acked_through =
                    acked_through.unwrap_or(worker.acked_through).max(worker.acked_through);
            }
            None if room => {
                let acked_through = acked_through.unwrap_or_default();
                self.workers.push(Worker { id: me.worker, beat: now, acked_through });
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
            u64::from(self.resent),
            self.recalls,
        ];
        let workers =
            self.workers.iter().flat_map(|worker| [worker.id, worker.beat.0, worker.acked_through.0]);
        header.into_iter().chain(self.recalled).chain(workers).flat_map(u64::to_le_bytes).collect()
    }

    fn decode(bytes: &[u8]) -> Roster {
        let (words, _) = bytes.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let Some((header, rest)) = words.split_first_chunk::<HEADER_WORDS>() else {
            return Roster::default();
        };
        let [LAYOUT, subscriber, until, echo, complete, resent, recalls, recalled @ ..] = *header else {
            return Roster::default();
        };
        let (workers, _) = rest.as_chunks::<WORKER_WORDS>();
        let worker = |&[id, beat, acked]: &[u64; WORKER_WORDS]| Worker {
            id,
            beat: MonoMs(beat),
            acked_through: MonoMs(acked),
        };
        Roster {
            subscriber,
            subscribed_until: MonoMs(until),
            echo: MonoMs(echo),
            complete: complete == 1,
            resent: resent == 1,
            recalls,
            recalled,
            workers: workers.iter().map(worker).collect(),
        }
    }
}
