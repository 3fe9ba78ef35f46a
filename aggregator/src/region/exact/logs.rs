//! The sliding logs: in the region's Redis, or in this aggregator's memory.

use crate::redis::{Store, StoreError};
use crate::telemetry::spans;
use parking_lot::Mutex;
use std::time::Duration;
use weir_core::region::log::{self, LogCharge, LogDecision, LogsLimits, Micros};
use weir_core::replication::Failure;

/// Where the logs are kept.
pub(super) enum Logs {
    Redis(Store),
    Memory(Mutex<log::Logs>),
}

impl Logs {
    pub(super) fn new(store: Option<Store>) -> Logs {
        match store {
            Some(store) => Logs::Redis(store),
            None => Logs::Memory(Mutex::new(log::Logs::new(LogsLimits::default()))),
        }
    }

    /// Whether they are in a store, and not in memory.
    pub(super) fn are_stored(&self) -> bool {
        matches!(self, Logs::Redis(_))
    }

    /// Lets each log decide, in order and within the given time. In memory, `now` is the time of the decision.
    pub(super) async fn charge(
        &self,
        charges: &[LogCharge],
        within: Duration,
        now: Micros,
    ) -> Vec<Result<LogDecision, Failure>> {
        match self {
            Logs::Redis(store) => {
                let call = spans::redis(charges.len());
                let results = failures(store.charge_logs(charges, within).await);
                spans::failed(call, results.iter().any(Result::is_err).then_some("unanswered"));
                results
            }
            Logs::Memory(logs) => {
                let mut logs = logs.lock();
                let full = |_| Failure::Refused;
                charges.iter().map(|charge| logs.decide(now, charge).map_err(full)).collect()
            }
        }
    }

    /// Refunds charges within the given time. For each, whether it was present.
    pub(super) async fn refund(&self, charges: &[LogCharge], within: Duration) -> Vec<Result<bool, Failure>> {
        match self {
            Logs::Redis(store) => failures(store.refund_logs(charges, within).await),
            Logs::Memory(logs) => {
                let mut logs = logs.lock();
                charges.iter().map(|charge| Ok(logs.refund(&charge.key, charge.id))).collect()
            }
        }
    }

    /// Evicts some expired entries; true if more remain.
    pub(super) fn tick(&self, now: Micros) -> bool {
        match self {
            Logs::Redis(_) => false,
            Logs::Memory(logs) => logs.lock().tick(now),
        }
    }
}

fn failures<T>(results: Vec<Result<T, StoreError>>) -> Vec<Result<T, Failure>> {
    results.into_iter().map(|result| result.map_err(|error| error.failure())).collect()
}
