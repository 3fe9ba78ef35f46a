//! What one worker has in its process: the shared table, and beside it what no other worker has. Nothing here depends on the stream; what
//! a decision needs of the region comes as a [`Basis`](judge::Basis), or as the number of its nodes.
//!
//! - `round`: all checks of a request, coalesced to one `item` for each cell; all are charged or none.
//! - `charge`: one item, by a `lease` of the `worker_cache` or in the table (`transact`), where `judge` decides (`trial`: on one entry).
//! - `deferred`: costs that responses state. `violations`: denials that count towards a ban. `spent`: use that was decided elsewhere.
//! - `outbox`: counts on their way to the aggregator. `merge`: counts that it sent.

pub(super) mod charge;
pub(super) mod deferred;
mod item;
pub(super) mod judge;
mod lease;
pub(super) mod merge;
pub(super) mod outbox;
pub(super) mod round;
mod spent;
pub(super) mod transact;
mod trial;
pub(super) mod violations;
pub(super) mod visit;
pub(super) mod worker_cache;

use super::stats::Stats;
use super::table::{Meta, ReservationKind, Tag};
use crate::model::shared::Shared;
use crate::model::time::{MonoMs, Now};
use alloc::vec::Vec;
use deferred::DeferredCosts;
use item::Item;
use lease::Leases;
use outbox::Outbox;
use transact::Table;
use violations::Violations;
use worker_cache::{IDLE_MS, WorkerCache};

/// What one worker has in its process.
#[derive(Debug)]
pub(super) struct Local {
    pub(super) worker: u64,
    pub(super) table: Table,
    worker_cache: WorkerCache,
    /// How often the clock has stepped: a cached denial applies only until the next step.
    pub(super) clock_steps: u64,
    pub(super) leases: Leases,
    pub(super) outbox: Outbox,
    /// Requests whose cost comes from the response.
    deferred: DeferredCosts,
    violations: Violations,
    /// When this worker last decided, charged or settled something.
    pub(super) decided: MonoMs,
    items: Vec<Item>,
    pub(super) stats: Stats,
}

/// What an input acts on besides the connection.
pub(super) struct Turn<'a, S> {
    pub(super) local: &'a mut Local,
    pub(super) shared: &'a mut S,
    pub(super) now: Now,
}

impl Local {
    pub(super) fn new(meta: &Meta, worker: u64, cache_sets: usize, now: MonoMs) -> Local {
        Local {
            worker,
            table: Table::new(meta.secret, meta.geometry),
            worker_cache: WorkerCache::new(cache_sets),
            clock_steps: 0,
            leases: Leases::default(),
            outbox: Outbox::default(),
            deferred: DeferredCosts::default(),
            violations: Violations::default(),
            decided: now,
            items: Vec::new(),
            stats: Stats::default(),
        }
    }

    /// Owner of this worker's reservations of a kind.
    fn tag(&self, kind: ReservationKind) -> Tag {
        Tag { worker: self.worker, kind }
    }

    /// Whether nothing is leased or deferred, and all counts are stored.
    pub(super) fn owes_nothing(&self) -> bool {
        self.leases.is_empty() && !self.has_deferred() && self.outbox.is_empty()
    }

    /// Returns leases that are due, or all leases if they were recalled together.
    pub(super) fn settle_due(&mut self, shared: &mut impl Shared, nodes: u32, now: Now) {
        for fingerprint in self.leases.take_recalled() {
            self.settle(shared, fingerprint, false, nodes, now);
        }
        for (due, fingerprint) in self.leases.take_due(now.mono) {
            // A lease that was renewed early is listed twice; the later entry applies.
            if self.is_due(fingerprint, due) {
                self.settle(shared, fingerprint, true, nodes, now);
            }
        }
    }

    /// Ends the worker: returns its leases, and spends what is reserved for deferred costs.
    pub(super) fn shutdown(&mut self, shared: &mut impl Shared, nodes: u32, now: Now) {
        for fingerprint in self.leases.take_all() {
            self.settle(shared, fingerprint, false, nodes, now);
        }
        self.spend_all_open(shared, now);
        self.flush_violations(shared, now);
    }

    /// Makes the worker cache larger if keys lack room, and gives it back if the worker is idle.
    pub(super) fn fit_cache(&mut self, now: MonoMs) {
        match self.leases.is_empty() && now.since(self.decided) >= IDLE_MS {
            true => self.worker_cache.clear(),
            false => self.worker_cache.grow(),
        }
    }

    /// Gives the worker cache back.
    pub(super) fn clear_cache(&mut self) {
        self.worker_cache.clear();
    }
}
