//! The stores and their faults: frozen, slow, stopped, wiped.
//!
//! - `redis`: a region's Redis.
//! - `database`: the database that all regions share.

pub mod database;
pub mod redis;

use crate::check::exact::Keeper;
use crate::plan::Part;
use crate::world::World;
use crate::world::request::{Request, Store};
use redis::Redis;
use weir_core::region::log::{Logs, LogsLimits};

/// The current faults of a store.
#[derive(Debug, Default)]
pub struct Condition {
    frozen: u32,
    stopped: u32,
    slow_us: u64,
    /// What a Redis is set back to.
    older: Option<Older>,
    /// The calls whose pipeline a Redis has begun, and those whose writes it has executed as well, until it has executed all of it.
    begun: Vec<u64>,
    written: Vec<u64>,
    /// Calls that arrived while it was frozen: the aggregator's number, the call's number, and the request.
    held: Vec<(usize, u64, Box<Request>)>,
}

/// An earlier state of a Redis.
#[derive(Debug)]
struct Older {
    redis: Box<Redis>,
    /// The calls whose pipeline it had begun.
    begun: Vec<u64>,
}

/// A step of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PipelineStep {
    First,
    Writes,
    Last,
}

/// The faults of all stores.
#[derive(Debug)]
pub struct Stores {
    redis: Vec<Condition>,
    database: Condition,
}

impl Stores {
    /// No faults.
    pub fn new(regions: usize) -> Stores {
        let redis = (0..regions).map(|_| Condition::default()).collect();
        Stores { redis, database: Condition::default() }
    }
}

impl World<'_> {
    /// Whether regions have a Redis.
    pub(in crate::world) fn has_redis(&self) -> bool {
        self.plan.topology.aggregators > 1
    }

    /// Whether there is a database.
    pub(in crate::world) fn has_database(&self) -> bool {
        self.plan.topology.regions > 1
    }

    pub(in crate::world) fn is_store_frozen(&self, store: Store) -> bool {
        self.condition(store).frozen > 0
    }

    pub(in crate::world) fn is_store_running(&self, store: Store) -> bool {
        self.condition(store).stopped == 0
    }

    pub(in crate::world) fn slow_us(&self, store: Store) -> u64 {
        self.condition(store).slow_us
    }

    pub(in crate::world) fn held_mut(&mut self, store: Store) -> &mut Vec<(usize, u64, Box<Request>)> {
        &mut self.condition_mut(store).held
    }

    pub(in crate::world) fn freeze_store(&mut self, part: Part, begins: bool) {
        let Some(store) = self.store_of(part) else { return };
        let condition = self.condition_mut(store);
        condition.frozen = if begins { condition.frozen + 1 } else { condition.frozen.saturating_sub(1) };
        if condition.frozen == 0 {
            for (at, id, request) in std::mem::take(&mut condition.held) {
                self.store_takes(store, at, id, request);
            }
            self.reconnect_subscribers(store);
        }
    }

    pub(in crate::world) fn slow_store(&mut self, part: Part, ms: u64, begins: bool) {
        let Some(store) = self.store_of(part) else { return };
        let condition = self.condition_mut(store);
        let us = ms.saturating_mul(1_000);
        condition.slow_us =
            if begins { condition.slow_us + us } else { condition.slow_us.saturating_sub(us) };
    }

    /// Stops or starts a store. A Redis that stops loses its data; the database keeps it.
    pub(in crate::world) fn stop_store(&mut self, part: Part, begins: bool) {
        let Some(store) = self.store_of(part) else { return };
        let condition = self.condition_mut(store);
        condition.stopped = if begins { condition.stopped + 1 } else { condition.stopped.saturating_sub(1) };
        if begins {
            condition.held.clear();
            condition.begun.clear();
            condition.written.clear();
        }
        match (store, begins) {
            (Store::Redis(_), true) => self.wipe_store(part),
            (_, true) => {}
            (_, false) => self.reconnect_subscribers(store),
        }
    }

    pub(in crate::world) fn wipe_store(&mut self, part: Part) {
        match self.store_of(part) {
            Some(Store::Redis(region)) => {
                self.redis[region].wipe();
                self.logs[region] = Logs::new(LogsLimits::default());
                self.check.exact.lost(Keeper::Redis(region), self.now_us);
                self.check.wiped(region, self.now_us);
            }
            Some(Store::Database) => {
                self.database.wipe();
                self.ledger.clear();
                self.check.exact.lost(Keeper::Database, self.now_us);
            }
            None => {}
        }
    }

    /// Keeps what the database holds when the fault of this number begins, and restores it when the fault ends.
    pub(in crate::world) fn restore_database(&mut self, fault: usize, begins: bool) {
        if begins {
            self.dumps.insert(fault, (self.database.clone(), self.ledger.clone()));
        } else if let Some((database, ledger)) = self.dumps.remove(&fault) {
            self.database.restore(database);
            self.ledger = ledger;
            self.check.exact.lost(Keeper::Database, self.now_us);
        }
    }

    /// A Redis executes a step of a call's pipeline.
    pub(in crate::world) fn note_step(&mut self, region: usize, call: u64, step: PipelineStep) {
        let Some(Condition { begun, written, .. }) = self.stores.redis.get_mut(region) else { return };
        let (from, to) = match step {
            PipelineStep::First => return begun.push(call),
            PipelineStep::Writes => (begun, Some(written)),
            PipelineStep::Last => (written, None),
        };
        if let Some(at) = from.iter().position(|other| *other == call) {
            from.swap_remove(at);
            to.into_iter().for_each(|to| to.push(call));
        }
    }

    /// A copy of a Redis receives nothing from the fault's beginning on, and replaces the server at its end. The one loss that
    /// receipts do not show does not occur: a copy from before the writes of a pipeline and after its first step replaces no server that
    /// has executed the writes, and not yet the last step. That of a replica shows all the same.
    pub(in crate::world) fn set_back(&mut self, region: usize, is_replica: bool, begins: bool) {
        let Some(redis) = self.redis.get_mut(region) else { return };
        let Condition { older, begun, written, .. } = &mut self.stores.redis[region];
        if begins {
            *older = Some(Older { redis: Box::new(redis.clone()), begun: begun.clone() });
            return;
        }
        let Some(older) = older.take() else { return };
        if !is_replica && older.begun.iter().any(|call| written.contains(call)) {
            return;
        }
        redis.set_back(*older.redis, is_replica);
        self.counts.set_backs += 1;
        // The copy has no exact logs.
        self.logs[region] = Logs::new(LogsLimits::default());
        self.check.exact.lost(Keeper::Redis(region), self.now_us);
        self.check.wiped(region, self.now_us);
        self.resubscribe(region);
    }

    /// Checks what was written to a Redis.
    pub(in crate::world) fn check_redis(&mut self, region: usize) {
        let redis: &mut Redis = &mut self.redis[region];
        for at in std::mem::take(&mut redis.written) {
            if let Some(cell) = redis.cells.get(&at) {
                let parts = cell.parts.iter().map(|(node, own)| (*node, *own));
                self.check.stored(region, &at.0, at.1, parts, self.now_us);
            }
        }
    }

    /// Subscribers have to connect to the store again.
    fn reconnect_subscribers(&mut self, store: Store) {
        if let Store::Redis(region) = store {
            self.resubscribe(region);
        }
    }

    fn store_of(&self, part: Part) -> Option<Store> {
        match part {
            Part::Redis { region } if region < self.redis.len() => Some(Store::Redis(region)),
            Part::Database => Some(Store::Database),
            _ => None,
        }
    }

    fn condition(&self, store: Store) -> &Condition {
        match store {
            Store::Redis(region) => &self.stores.redis[region],
            Store::Database => &self.stores.database,
        }
    }

    fn condition_mut(&mut self, store: Store) -> &mut Condition {
        match store {
            Store::Redis(region) => &mut self.stores.redis[region],
            Store::Database => &mut self.stores.database,
        }
    }
}
