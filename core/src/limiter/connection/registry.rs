//! The worker registry of a process: which workers are alive, which one is the subscriber, whose counts are stored in the region.
//!
//! It is one value in shared data that each worker updates at its tick. The subscriber renews a lease; when it stops, another worker takes
//! over, preferably one that serves no requests. `acked_through` of each worker bounds eviction: an entry that was charged before the
//! least of them is stored in the region.
//!
//! Workers may be connected to different aggregators, and one that fails may lose what only it had acknowledged. So each opening of a
//! stream counts as a *gap*. Nothing is evicted until the subscriber has sent all counts again to its aggregator (`resent`), nor while a
//! worker is disconnected.
//!
//! An idle worker owes nothing and has no lease, so it bounds nothing and is not waited for: it updates the registry before its first charge.
//!
//! A worker that ends, with or without a last word, leaves the registry and a gap: the table has all that it has not reported. So the
//! registry holds the workers that are alive, one for each VM of the process, and needs no bound of its own.

use super::pace::{IDLE_PING_MS, IDLE_TICK_MS};
use crate::limiter::stats::Gauges;
use crate::model::shared::{Place, Shared};
use crate::model::time::MonoMs;
use alloc::vec::Vec;

/// A worker without a tick for this time is dead.
pub(super) const DEAD_MS: u64 = 5_000;
/// A number of nodes that leaves no slack to any, used while the number is unknown.
pub(super) const UNKNOWN_NODES: u32 = u32::MAX;
const SUBSCRIPTION_MS: u64 = 400;
/// The same of a subscriber that is idle.
const IDLE_SUBSCRIPTION_MS: u64 = SUBSCRIPTION_MS + IDLE_TICK_MS;
/// Time by which a worker that serves requests delays its claim to be the subscriber.
const DEFER_MS: u64 = 200;
/// Attempts at the compare-and-set before the next tick.
const MAX_TRIES: usize = 8;

/// Number of recalled keys that are listed. A worker lists no more than all others that tick have room for; one that has not ticked for
/// longer and missed more returns all its leases.
const MAX_RECALLED: usize = 16;
/// A worker without a tick for this time is not waited for.
const TICKS_MS: u64 = 500;

const LAYOUT: u64 = 8;
const HEADER_WORDS: usize = 16 + MAX_RECALLED;
/// For eviction, a stream without a frame for this time counts as ended.
const SILENT_MS: u64 = 1_000;
/// The same of an idle worker: after its next ping should have been answered, and the tick after that.
const IDLE_SILENT_MS: u64 = IDLE_PING_MS + 2 * IDLE_TICK_MS;
const WORKER_WORDS: usize = 9;

/// The region's clock as the subscriber measured it, or before the first measurement the machine's as the first worker read it. All
/// workers of the process use it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Clock {
    /// Unix time minus monotonic time in milliseconds.
    pub(super) offset_ms: u64,
    /// Time of the measurement; zero: no worker has entered the registry.
    pub(super) measured: MonoMs,
}

/// A worker's update of the registry.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) worker: u64,
    /// Time before which all its counts are stored; `None`: unknown, so nothing may be evicted.
    pub(super) acked_through: Option<MonoMs>,
    /// Whether it decides requests.
    pub(super) serves: bool,
    /// Whether its stream is open.
    pub(super) connected: bool,
    /// Last answered ping of its stream.
    pub(super) echo: MonoMs,
    /// Time of its aggregator's last frame; zero while its stream is closed.
    pub(super) last_seen: MonoMs,
    /// The clock of its aggregator, if its stream has measured it.
    pub(super) clock: Option<Clock>,
    /// Unix time minus monotonic time by the machine's clock, in milliseconds.
    pub(super) machine_offset_ms: u64,
    /// Live nodes of the region, as its aggregator counts them.
    pub(super) nodes: u32,
    /// Whether it received a complete snapshot on its stream.
    pub(super) complete: bool,
    /// Whether its stream was opened since its last update: counts that another aggregator had may be lost.
    pub(super) gap: bool,
    /// The number of gaps when its last completed resync began; all of that resync is stored.
    pub(super) resent: Option<u64>,
    /// Fingerprints of keys whose leases the others are to return.
    pub(super) recall: Vec<u64>,
    /// The others are to return all leases.
    pub(super) recalls_all: bool,
    /// Whether its stream has been open long enough to rely on `nodes`.
    pub(super) settled: bool,
    /// Cells that it has to report.
    pub(super) report_queue: u64,
    /// When something happened on it last.
    pub(super) active: MonoMs,
    /// Whether it ticks and pings rarely, as it owes nothing.
    pub(super) is_idle: bool,
}

/// The registry as a worker reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::limiter) struct WorkerRegistry {
    pub(super) subscriber: u64,
    subscribed_until: MonoMs,
    /// Last answered ping of the subscriber.
    pub(super) echo: MonoMs,
    /// Whether the subscriber has a complete snapshot.
    pub(super) complete: bool,
    /// When something happened on any worker last.
    pub(super) active: MonoMs,
    /// The clock as the subscriber measured it last, even if its stream has ended since.
    pub(super) clock: Clock,
    /// Number of times that an aggregator may have been lost with counts that only it had.
    pub(super) gaps: u64,
    /// The number of gaps after which all counts were sent again and stored.
    resent: u64,
    /// Number of recalls.
    recalls: u64,
    /// The last recalls: number `n` is at `n` modulo the length.
    recalled: [u64; MAX_RECALLED],
    /// The process' gauges as the last update left them.
    gauges: Gauges,
    /// What the update that returned this registry changed in them. Not stored.
    pub(super) gauge_changes: Gauges,
    /// How many recalls of that update were listed. Not stored.
    pub(super) listed: usize,
    workers: Vec<Worker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Worker {
    id: u64,
    heartbeat: MonoMs,
    acked_through: MonoMs,
    last_seen: MonoMs,
    nodes: u64,
    settled: bool,
    report_queue: u64,
    /// The number of recalls that it has read.
    recalls: u64,
    is_idle: bool,
}

impl Worker {
    /// Whether its stream had a frame lately.
    fn receives(&self, now: MonoMs) -> bool {
        let silent_ms = if self.is_idle { IDLE_SILENT_MS } else { SILENT_MS };
        now.since(self.last_seen) <= silent_ms
    }
}

impl WorkerRegistry {
    /// Updates the entry of `me` and returns the registry; `None` if conflicts did not end.
    pub(super) fn sync(shared: &mut impl Shared, me: &Entry, now: MonoMs) -> Option<WorkerRegistry> {
        WorkerRegistry::change(shared, |registry| registry.update(me, now))
    }

    /// Removes `worker`, which ends in good order, so that others need not detect its end. Returns the change of the process' gauges.
    pub(super) fn sign_off(shared: &mut impl Shared, worker: u64, now: MonoMs) -> Gauges {
        let registry = WorkerRegistry::change(shared, |registry| {
            registry.remove(|other| other.id == worker);
            if registry.subscriber == worker {
                (registry.subscriber, registry.subscribed_until) = (0, now);
            }
            registry.update_gauges(now);
        });
        // If conflicts do not end, other workers remove it once it is dead.
        registry.map(|registry| registry.gauge_changes).unwrap_or_default()
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

    /// Time before which all charges of the process are stored in the region. It is zero while any worker is disconnected, as its last
    /// aggregator may have been lost with what it had acknowledged.
    pub(in crate::limiter) fn safe_before(&self, now: MonoMs) -> MonoMs {
        if !self.is_resent() || self.workers.is_empty() || !self.all_receive(now) {
            return MonoMs(0);
        }
        let owing = self.workers.iter().filter(|worker| !worker.is_idle);
        owing.map(|worker| worker.acked_through).min().unwrap_or(now)
    }

    /// Number of workers.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.workers.len()
    }

    /// Whether all counts were sent again since the last gap.
    pub(in crate::limiter) fn is_resent(&self) -> bool {
        self.gaps == self.resent
    }

    /// Whether every worker is connected.
    pub(super) fn all_receive(&self, now: MonoMs) -> bool {
        self.workers.iter().all(|worker| worker.receives(now))
    }

    /// Live nodes of the region. Aggregators that cannot reach each other count different ones; the largest number is the safe one.
    pub(super) fn nodes(&self, now: MonoMs) -> u32 {
        self.reported_nodes(now).max().unwrap_or(1)
    }

    /// The same, by workers with settled streams only.
    pub(super) fn settled_nodes(&self, now: MonoMs) -> Option<u32> {
        self.reported_nodes(now).filter(|nodes| *nodes != UNKNOWN_NODES).max()
    }

    fn reported_nodes(&self, now: MonoMs) -> impl Iterator<Item = u32> + '_ {
        let live = move |worker: &&Worker| worker.receives(now);
        let counts = self.workers.iter().filter(live).map(|worker| worker.nodes);
        counts.map(|nodes| u32::try_from(nodes).unwrap_or(u32::MAX))
    }

    /// Keys that were recalled since `before`; `None` if there were more than are listed.
    pub(super) fn recalled_since(&self, before: &WorkerRegistry) -> Option<impl Iterator<Item = u64> + '_> {
        let missed = self.recalls.saturating_sub(before.recalls);
        let keys =
            (before.recalls..self.recalls).filter_map(|at| self.recalled.get(at as usize % MAX_RECALLED));
        (missed <= MAX_RECALLED as u64).then(|| keys.copied())
    }

    fn update(&mut self, me: &Entry, now: MonoMs) {
        self.recall(me, now);
        self.heartbeat(me, now);
        self.remove(|worker| now.since(worker.heartbeat) > DEAD_MS);
        let patience = if me.serves { DEFER_MS } else { 0 };
        let vacant = self.subscribed_until.after(patience) <= now;
        if me.connected && (self.subscriber == me.worker || vacant) {
            self.subscriber = me.worker;
            self.subscribed_until =
                now.after(if me.is_idle { IDLE_SUBSCRIPTION_MS } else { SUBSCRIPTION_MS });
            self.echo = me.echo;
            self.complete = me.complete;
            self.clock = me.clock.unwrap_or(self.clock);
        }
        if self.clock.measured == MonoMs(0) {
            // The machine's clock may step before a region is reached, and some workers would follow before others.
            self.clock = Clock { offset_ms: me.machine_offset_ms, measured: now };
        }
        self.active = self.active.max(me.active);
        self.gaps += u64::from(me.gap);
        self.resent = self.resent.max(me.resent.unwrap_or(0));
        self.update_gauges(now);
    }

    /// Removes workers that have ended. Their last reports may not be stored, and no worker would notice the loss of their aggregators, so
    /// each leaves a gap.
    fn remove(&mut self, has_ended: impl Fn(&Worker) -> bool) {
        let before = self.workers.len();
        self.workers.retain(|worker| !has_ended(worker));
        self.gaps += (before - self.workers.len()) as u64;
    }

    /// Lists keys whose leases are to be returned, as far as no other worker misses one.
    fn recall(&mut self, me: &Entry, now: MonoMs) {
        let ticks = |worker: &&Worker| {
            worker.id != me.worker && !worker.is_idle && now.since(worker.heartbeat) <= TICKS_MS
        };
        let unread =
            self.workers.iter().filter(ticks).map(|worker| self.recalls.saturating_sub(worker.recalls)).max();
        let unread = usize::try_from(unread.unwrap_or_default()).unwrap_or(usize::MAX);
        self.listed = me.recall.len().min(MAX_RECALLED.saturating_sub(unread));
        for fingerprint in me.recall.iter().take(self.listed) {
            if let Some(place) = self.recalled.get_mut(self.recalls as usize % MAX_RECALLED) {
                *place = *fingerprint;
            }
            self.recalls += 1;
        }
        if me.recalls_all {
            // More than any worker can have read since its last tick.
            self.recalls += MAX_RECALLED as u64 + 1;
        }
    }

    /// Brings the process' gauges up to date.
    fn update_gauges(&mut self, now: MonoMs) {
        let connected = |worker: &&Worker| worker.receives(now);
        let workers = || self.workers.iter();
        let gauges = Gauges {
            workers: self.workers.len() as u64,
            streams_connected: workers().filter(connected).count() as u64,
            streams_settled: workers().filter(|worker| worker.settled).count() as u64,
            subscribers: u64::from(self.subscriber != 0 && self.subscribed_until > now),
            report_queue: workers().map(|worker| worker.report_queue).fold(0, u64::saturating_add),
        };
        self.gauge_changes = gauges.since(&self.gauges);
        self.gauges = gauges;
    }

    fn heartbeat(&mut self, me: &Entry, now: MonoMs) {
        let beats = Worker {
            id: me.worker,
            heartbeat: now,
            acked_through: me.acked_through.unwrap_or_default(),
            last_seen: me.last_seen,
            nodes: me.nodes.into(),
            settled: me.settled,
            report_queue: me.report_queue,
            recalls: self.recalls,
            is_idle: me.is_idle,
        };
        match self.workers.iter_mut().find(|worker| worker.id == me.worker) {
            Some(worker) => {
                *worker = Worker { acked_through: worker.acked_through.max(beats.acked_through), ..beats };
            }
            None => self.workers.push(beats),
        }
    }

    fn encode(&self) -> Vec<u8> {
        let header = [
            LAYOUT,
            self.subscriber,
            self.subscribed_until.0,
            self.echo.0,
            u64::from(self.complete),
            self.active.0,
            self.gaps,
            self.resent,
            self.recalls,
            self.clock.offset_ms,
            self.clock.measured.0,
            self.gauges.workers,
            self.gauges.streams_connected,
            self.gauges.streams_settled,
            self.gauges.subscribers,
            self.gauges.report_queue,
        ];
        let words = |worker: &Worker| {
            let Worker {
                id,
                heartbeat,
                acked_through,
                last_seen,
                nodes,
                settled,
                report_queue,
                recalls,
                is_idle,
            } = *worker;
            let [settled, is_idle] = [settled, is_idle].map(u64::from);
            let [heartbeat, acked, last_seen] = [heartbeat.0, acked_through.0, last_seen.0];
            [id, heartbeat, acked, last_seen, nodes, settled, report_queue, recalls, is_idle]
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
            active,
            gaps,
            resent,
            recalls,
            offset_ms,
            measured,
            in_registry,
            streams_connected,
            streams_settled,
            subscribers,
            report_queue,
            recalled @ ..,
        ] = *header
        else {
            return WorkerRegistry::default();
        };
        let (workers, _) = rest.as_chunks::<WORKER_WORDS>();
        let worker = |words: &[u64; WORKER_WORDS]| {
            let [id, heartbeat, acked, last_seen, nodes, settled, report_queue, recalls, is_idle] = *words;
            Worker {
                id,
                heartbeat: MonoMs(heartbeat),
                acked_through: MonoMs(acked),
                last_seen: MonoMs(last_seen),
                nodes,
                settled: settled == 1,
                report_queue,
                recalls,
                is_idle: is_idle == 1,
            }
        };
        WorkerRegistry {
            subscriber,
            subscribed_until: MonoMs(until),
            echo: MonoMs(echo),
            complete: complete == 1,
            active: MonoMs(active),
            clock: Clock { offset_ms, measured: MonoMs(measured) },
            gaps,
            resent,
            recalls,
            recalled,
            gauges: Gauges {
                workers: in_registry,
                streams_connected,
                streams_settled,
                subscribers,
                report_queue,
            },
            gauge_changes: Gauges::default(),
            listed: 0,
            workers: workers.iter().map(worker).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::shared::MemoryShared;

    /// A connected worker that owes nothing; the first update after its stream was opened has a `gap`.
    fn entry(worker: u64, gap: bool, resent: Option<u64>, now: MonoMs) -> Entry {
        Entry {
            worker,
            acked_through: Some(now),
            serves: true,
            connected: true,
            echo: now,
            last_seen: now,
            clock: None,
            machine_offset_ms: 0,
            nodes: 1,
            complete: true,
            gap,
            resent,
            recall: Vec::new(),
            recalls_all: false,
            settled: true,
            report_queue: 0,
            active: MonoMs(0),
            is_idle: false,
        }
    }

    /// 64 threads, whose VMs end without a last word at each of 100 updates.
    #[test]
    fn workers_that_ended_take_no_room_and_block_no_eviction() {
        const THREADS: u64 = 64;
        let mut shared = MemoryShared::default();
        let mut now = MonoMs(1_000_000);
        let mut registry = None;
        for update in 0..100 {
            now = now.after(10_000);
            for worker in update * THREADS..(update + 1) * THREADS {
                registry = WorkerRegistry::sync(&mut shared, &entry(worker, true, None, now), now);
            }
            let registry = registry.as_ref().unwrap();
            assert_eq!(registry.safe_before(now), MonoMs(0), "what the earlier ones owed may be missing");
            // The subscriber repeats all counts.
            let last = (update + 1) * THREADS - 1;
            let resent = Some(registry.gaps);
            let after = WorkerRegistry::sync(&mut shared, &entry(last, false, resent, now), now).unwrap();
            assert_eq!((after.len() as u64, after.safe_before(now)), (THREADS, now), "update {update}");
        }
    }

    #[test]
    fn an_idle_worker_bounds_no_eviction_and_is_not_waited_for() {
        let mut shared = MemoryShared::default();
        let start = MonoMs(1_000_000);
        let mut sync = |entry: Entry, now| WorkerRegistry::sync(&mut shared, &entry, now).unwrap();
        sync(Entry { is_idle: true, ..entry(1, false, None, start) }, start);
        let now = start.after(1_400);
        let busy = entry(2, false, None, now);
        let registry = sync(busy.clone(), now);
        assert_eq!(registry.safe_before(now), now, "the idle one was last seen 1.4 s ago, and owes nothing");
        assert!(registry.all_receive(now));
        let many = Entry { recall: (1..=20).collect(), ..busy.clone() };
        assert_eq!(sync(many.clone(), now).listed, MAX_RECALLED);
        assert_eq!(sync(many.clone(), now).listed, MAX_RECALLED, "the idle one has no lease to return");
        let silent = start.after(IDLE_SILENT_MS + 1);
        let registry = sync(entry(2, false, None, silent), silent);
        assert_eq!(registry.safe_before(silent), MonoMs(0), "its ping was not answered");
        sync(entry(1, false, None, silent), silent);
        sync(many.clone(), silent.after(40));
        assert_eq!(sync(many, silent.after(50)).listed, 0, "the first one is to read sixteen already");
    }

    #[test]
    fn an_idle_subscriber_keeps_its_claim_until_its_next_tick() {
        let mut shared = MemoryShared::default();
        let start = MonoMs(1_000_000);
        let mut sync = |entry: Entry, now| WorkerRegistry::sync(&mut shared, &entry, now).unwrap();
        let other = |now| Entry { serves: false, ..entry(2, false, None, now) };
        assert_eq!(sync(entry(1, false, None, start), start).subscriber, 1);
        assert_eq!(sync(other(start.after(399)), start.after(399)).subscriber, 1);
        let rests = start.after(399);
        sync(Entry { is_idle: true, active: start, ..entry(1, false, None, rests) }, rests);
        let registry = sync(other(rests.after(649)), rests.after(649));
        assert_eq!((registry.subscriber, registry.active), (1, start));
        assert_eq!(sync(other(rests.after(650)), rests.after(650)).subscriber, 2);
    }
}
