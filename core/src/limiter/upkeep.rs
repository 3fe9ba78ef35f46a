//! Periodic work of each tick: the worker registry, due leases, the end of a resync.

use super::cache::worker_cache::IDLE_MS;
use super::remote::registry::{self, WorkerRegistry};
use super::{Limiter, REST_MS_MAX};
use crate::model::shared::Shared;
use crate::model::time::{MonoMs, Now};
use alloc::vec::Vec;

impl Limiter {
    pub(super) fn sync_registry(&mut self, shared: &mut impl Shared, now: Now) {
        let (recall, recalls_all) = self.leases.take_recalls();
        let mut me = registry::Entry {
            worker: self.worker,
            acked_through: self.acked_through(now.mono),
            serves: self.serves,
            connected: self.link.is_up(),
            echo: self.link.echo(),
            complete: self.subscription.is_complete(),
            last_seen: self.link.last_seen(),
            clock: self.link.clock(),
            machine_offset_ms: self.clock.machine_offset_ms(),
            nodes: self.link.nodes(now.mono),
            gap: self.resync.gap(),
            resent: self.resync.resent(),
            recall,
            recalls_all,
            settled: self.link.has_settled(now.mono),
            report_queue: self.outbox.len() as u64,
        };
        let Some(registry) = WorkerRegistry::sync(shared, &me, now.mono) else {
            self.leases.keep_recalls(me.recall, me.recalls_all);
            return;
        };
        self.leases.keep_recalls(me.recall.split_off(registry.listed), false);
        self.synced = Some(now.mono);
        self.stats.gauges.add(&registry.gauge_changes);
        self.resync.registered();
        self.subscription.registered(me.connected);
        let before = core::mem::replace(&mut self.registry, registry);
        self.table.safe_before = self.registry.safe_before(now.mono);
        self.registered_nodes = self.registry.nodes(now.mono);
        if let Some(count) = self.registry.settled_nodes(now.mono) {
            self.link.suppose_nodes(count);
        }
        let recalled: Option<Vec<u64>> = self.registry.recalled_since(&before).map(Iterator::collect);
        match recalled {
            Some(recalled) => recalled.into_iter().for_each(|key| self.settle(shared, key, false, now)),
            None => self.leases.recall_all(),
        }
    }

    /// The time of a request. A worker that is new, or that was inactive for so long that others may take it for dead, enters the
    /// registry first. Otherwise its counts could leave the table before they are reported.
    pub(super) fn enter(&mut self, shared: &mut impl Shared, mono: MonoMs) -> Now {
        if core::mem::take(&mut self.rests) {
            self.rests_after_ms = self.rests_after_ms.saturating_mul(2).min(REST_MS_MAX);
        }
        self.decided = mono;
        if self.synced.is_none_or(|synced| mono.since(synced) > registry::DEAD_MS / 2) {
            self.sync_registry(shared, self.moment(mono));
        }
        self.moment(mono)
    }

    /// Live nodes of the region, this one included, as the aggregator of this or another worker counts them.
    pub(super) fn nodes(&self, now: MonoMs) -> u32 {
        self.link.nodes(now).max(self.registered_nodes)
    }

    /// The time before which all of this worker's counts are stored in the region; `None` if unknown.
    fn acked_through(&self, now: MonoMs) -> Option<MonoMs> {
        let recovering = self.resync.recovers();
        self.outbox.acked_through(now).filter(|_| !recovering)
    }

    /// Returns leases that are due, or all leases if they were recalled together.
    pub(super) fn settle_due(&mut self, shared: &mut impl Shared, now: Now) {
        for fingerprint in self.leases.take_recalled() {
            self.settle(shared, fingerprint, false, now);
        }
        for (due, fingerprint) in self.leases.take_due(now.mono) {
            // A lease that was renewed early is listed twice; the later entry applies.
            if self.is_due(fingerprint, due) {
                self.settle(shared, fingerprint, true, now);
            }
        }
    }

    pub(super) fn return_leases(&mut self, shared: &mut impl Shared, now: Now) {
        for fingerprint in self.leases.take_all() {
            self.settle(shared, fingerprint, false, now);
        }
    }

    /// Makes the worker cache larger if keys lack room, and gives it back if the worker is idle.
    pub(super) fn fit_cache(&mut self, now: MonoMs) {
        match self.leases.is_empty() && now.since(self.decided) >= IDLE_MS {
            true => self.worker_cache.clear(),
            false => self.worker_cache.grow(),
        }
    }

    /// Ends a resync once all that it reported is stored.
    pub(super) fn finish_resync(&mut self, now: Now) {
        let stored = self.outbox.stored_through(now.mono);
        self.resync.finish(stored);
    }
}
