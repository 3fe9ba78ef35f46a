//! The sliding logs: in the region's Redis, while its circuit breaker permits calls, or in this aggregator's memory.

use crate::redis::{Store, StoreError};
use crate::telemetry::spans::{self, Active};
use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use weir_core::model::breaker::{Breaker, Shown, State};
use weir_core::model::schedule::Schedule;
use weir_core::model::time::MonoMs;
use weir_core::region::log::{self, Decided, LogCharge, LogsLimits, Micros};

/// After a connection broke, it is established again at once, and the call is repeated after these pauses.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(30)];

/// Where the logs are kept.
pub(super) enum Logs {
    Redis(Remote),
    Memory { logs: Mutex<log::Logs>, began: Instant },
}

/// The store and its circuit breaker.
pub(super) struct Remote {
    store: Store,
    breaker: Mutex<Breaker>,
    began: Instant,
}

/// Why a log has not decided.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// Nothing was charged.
    NotCharged,
    /// The charge may have been made nevertheless.
    Unknown,
}

/// One call to the store. Its result is reported to the circuit breaker when it is dropped.
struct Call<'a> {
    remote: &'a Remote,
    patience: Duration,
    since: MonoMs,
    shown: Shown,
}

impl Logs {
    pub(super) fn new(store: Option<Store>) -> Logs {
        let began = Instant::now();
        match store {
            Some(store) => {
                let breaker = Mutex::new(Breaker::new(Schedule::default().store_breaker));
                Logs::Redis(Remote { store, breaker, began })
            }
            None => Logs::Memory { logs: Mutex::new(log::Logs::new(LogsLimits::default())), began },
        }
    }

    /// Lets each log decide, in order and by `deadline`.
    pub(super) async fn charge(
        &self,
        charges: &[LogCharge],
        deadline: Instant,
    ) -> Vec<Result<Decided, NoAnswer>> {
        match self {
            Logs::Redis(remote) => remote.charge(charges, deadline).await,
            Logs::Memory { logs, began } => {
                let now = micros(*began);
                let mut logs = logs.lock();
                let full = |_| NoAnswer::NotCharged;
                charges.iter().map(|charge| logs.decide(now, charge).map_err(full)).collect()
            }
        }
    }

    /// Refunds charges. For each, whether it was present; `None` if that is undecided at `deadline`.
    pub(super) async fn refund(&self, charges: &[LogCharge], deadline: Instant) -> Vec<Option<bool>> {
        match self {
            Logs::Redis(remote) => remote.refund(charges, deadline).await,
            Logs::Memory { logs, .. } => {
                let mut logs = logs.lock();
                charges.iter().map(|charge| Some(logs.refund(&charge.key, charge.id))).collect()
            }
        }
    }

    /// A span for a call to this many logs, if they are remote.
    pub(super) fn call_span(&self, logs: usize) -> Option<Active> {
        let remote = matches!(self, Logs::Redis(_)) && logs > 0;
        remote.then(|| spans::redis(logs)).flatten()
    }

    /// The state of the circuit breaker, if there is one.
    pub(super) fn breaker_state(&self) -> Option<State> {
        match self {
            Logs::Redis(remote) => Some(remote.breaker.lock().state(remote.now())),
            Logs::Memory { .. } => None,
        }
    }

    /// Evicts some expired entries; true if more remain.
    pub(super) fn tick(&self) -> bool {
        match self {
            Logs::Redis(_) => false,
            Logs::Memory { logs, began } => logs.lock().tick(micros(*began)),
        }
    }
}

impl Remote {
    async fn charge(&self, charges: &[LogCharge], deadline: Instant) -> Vec<Result<Decided, NoAnswer>> {
        let Some(call) = self.call(charges, deadline) else {
            return vec![Err(NoAnswer::NotCharged); charges.len()];
        };
        let mut results = self.store.charge_logs(charges, call.patience).await;
        // A charge that may have been made once stays in doubt until there is an answer.
        let in_doubt: Vec<bool> = results.iter().map(|r| r.as_ref().is_err_and(may_have_charged)).collect();
        for pause in PAUSES {
            let again = Instant::now() + pause;
            let (places, open): (Vec<_>, Vec<_>) = (0..)
                .zip(charges.iter().zip(&results))
                .filter(|(_, (_, result))| is_unavailable(result))
                .map(|(place, (charge, _)): (usize, _)| (place, charge.clone()))
                .unzip();
            if again >= deadline || open.is_empty() {
                break;
            }
            sleep_until(again).await;
            let within = deadline.saturating_duration_since(Instant::now());
            for (place, result) in places.into_iter().zip(self.store.charge_logs(&open, within).await) {
                if let Some(open) = results.get_mut(place) {
                    *open = result;
                }
            }
        }
        call.done(&results);
        let each = results.into_iter().zip(in_doubt);
        each.map(|(result, in_doubt)| {
            result.map_err(|error| match in_doubt || may_have_charged(&error) {
                true => NoAnswer::Unknown,
                false => NoAnswer::NotCharged,
            })
        })
        .collect()
    }

    async fn refund(&self, charges: &[LogCharge], deadline: Instant) -> Vec<Option<bool>> {
        let Some(call) = self.call(charges, deadline) else { return vec![None; charges.len()] };
        let results = self.store.refund_logs(charges, call.patience).await;
        call.done(&results);
        let refunded = |result: Result<bool, StoreError>| match result {
            // The key holds a value of another type, which will not become a log, so there is nothing to refund.
            Err(error) if error.is_of_the_cell() => Some(false),
            result => result.ok(),
        };
        results.into_iter().map(refunded).collect()
    }

    /// A call, if there is anything to charge and the circuit breaker permits it.
    fn call(&self, charges: &[LogCharge], deadline: Instant) -> Option<Call<'_>> {
        let (patience, since) = (deadline.saturating_duration_since(Instant::now()), self.now());
        let patience_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        let allowed = !charges.is_empty() && self.breaker.lock().allows_within(patience_ms, since);
        allowed.then_some(Call { remote: self, patience, since, shown: Shown::Nothing })
    }

    fn now(&self) -> MonoMs {
        MonoMs(u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX))
    }
}

impl Call<'_> {
    /// A call is answered if one of its parts is.
    fn done<T>(mut self, results: &[Result<T, StoreError>]) {
        let has = |is: fn(&StoreError) -> bool| results.iter().any(|result| result.as_ref().is_err_and(is));
        let did_nothing =
            results.iter().all(|result| result.as_ref().is_err_and(|error| !error.is_of_the_cell()));
        self.shown = match did_nothing {
            false => Shown::Answered,
            true if has(|error| matches!(error, StoreError::Busy)) => Shown::Nothing,
            true if has(|error| matches!(error, StoreError::Timeout)) => Shown::TimedOut,
            true => Shown::Failed,
        };
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let now = self.remote.now();
        self.remote.breaker.lock().showed(self.shown, self.since, now);
    }
}

fn may_have_charged(error: &StoreError) -> bool {
    match error {
        StoreError::Timeout | StoreError::Unavailable | StoreError::Protocol => true,
        StoreError::Unreachable(_) | StoreError::Busy | StoreError::Refused { .. } => false,
    }
}

fn is_unavailable<T>(result: &Result<T, StoreError>) -> bool {
    matches!(result, Err(StoreError::Unavailable))
}

fn micros(began: Instant) -> Micros {
    Micros(u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX))
}
