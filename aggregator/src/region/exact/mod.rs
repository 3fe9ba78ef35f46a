//! Exact requests: all charges of a request pass, or none is charged.
//!
//! In reading order: [`Exact`], here; `logs` (the sliding logs, in Redis or in memory); `ledger` (the result of
//! a ledger as a decision); `later` (refunds of what may have been charged without use); `frames` (requests from streams);
//! `issued` (which worker may refund which transaction); `recent` (what was decided lately, for operators).
//!
//! Logs are charged before ledgers, all at once. Ledgers are charged one after the other, as each records every attempt.
//! After the first denial nothing more is charged, and what was charged is refunded.

mod frames;
mod issued;
mod later;
mod ledger;
mod logs;
mod recent;

pub use recent::{ExactKey, ExactUsage, Nearest, Ruled};

use crate::database::{BucketUse, Database};
use crate::redis::Store;
use crate::telemetry::metrics::ExactFigures;
use crate::telemetry::spans;
use crate::telemetry::throttle::Throttle;
use issued::Issued;
use later::{Later, PendingRefund};
use ledger::Undecided;
use logs::{Logs, NoAnswer};
use recent::Recent;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use tracing::warn;
use weir_core::model::breaker::State;
use weir_core::model::exact::{Charge, ChargeResult, ExactRequestId};
use weir_core::region::log::{Decided, LogCharge, Micros, Outcome};
use weir_core::region::top::Match;
use weir_core::replication::exact::denials::{Denials, Found};
use weir_core::replication::exact::plan::{LogAnswer, Plan, Transaction};

/// Timeout of a refund that no request waits for.
const REFUND: Duration = Duration::from_secs(1);
/// Least time between two warnings about ledgers that cannot decide.
const BETWEEN_WARNINGS: Duration = Duration::from_secs(5);

/// Why the use of an exact key was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unread {
    /// Redis.
    #[error("Redis does not answer")]
    Log,
    /// The database.
    #[error("the database does not answer")]
    Ledger,
    /// No database is configured.
    #[error("a ledger needs a database, and none is set")]
    NoDatabase,
}

/// Decides exact requests.
pub struct Exact {
    stores: Arc<Stores>,
    later: Later,
    /// Which worker may refund which transaction.
    issued: Issued,
    recent: Recent,
    /// Operators read one bucket of a ledger at a time.
    reads: Semaphore,
}

/// The logs, the ledgers, and the cached denials.
struct Stores {
    logs: Logs,
    denials: Mutex<Denials>,
    /// The zero of the times of `denials`.
    started: Instant,
    database: Option<Database>,
    /// Limits the rate of warnings about ledgers that cannot decide.
    warnings: Throttle,
    figures: ExactFigures,
}

impl Exact {
    /// Sliding logs are in `store`, or in memory without one; ledgers in `database`. Without a database every ledger is
    /// undecided. Needs a tokio runtime.
    pub fn new(store: Option<Store>, database: Option<Database>) -> Exact {
        let stores = Arc::new(Stores {
            logs: Logs::new(store),
            denials: Mutex::default(),
            started: Instant::now(),
            database,
            warnings: Throttle::new(BETWEEN_WARNINGS),
            figures: ExactFigures::default(),
        });
        let (issued, recent) = (Issued::default(), Recent::default());
        Exact { later: Later::start(stores.clone()), stores, issued, recent, reads: Semaphore::new(1) }
    }

    /// Decides every charge of a request, in order, within the given time. All pass, or none is charged. A repeated request
    /// charges nothing twice in a log, but may meet a denial cached in the meantime. Charges of one log count as one: the sum
    /// of their costs against the lowest of their limits. More than [`weir_core::model::exact::MAX_CHARGES`] are undecided.
    pub async fn decide(
        &self,
        id: ExactRequestId,
        charges: &[Charge],
        within: Duration,
    ) -> Vec<ChargeResult> {
        let began = Instant::now();
        let results = match Plan::of(id, charges) {
            Some(plan) => self.rule(&plan, began, began + within).await,
            None => vec![ChargeResult::UNDECIDED; charges.len()],
        };
        self.stores.figures.decided(charges, &results, began.elapsed());
        self.recent.note(charges, &results);
        results
    }

    /// Refunds what a request was charged, because it did not pass after all. A refund that cannot be made now is tried again
    /// for a while.
    pub async fn refund(&self, id: ExactRequestId, charges: &[Charge], results: &[ChargeResult]) {
        let Some(refund) = PendingRefund::of(id, charges, results) else { return };
        if let Some(left) = self.stores.take_back(refund, Instant::now() + REFUND).await {
            self.later.push(left);
        }
    }

    /// Like [`Exact::refund`], but without waiting. If `results` are missing, the request may still be on its way and charge
    /// something within `still`; this is refunded after that time.
    pub fn refund_later(
        &self,
        id: ExactRequestId,
        charges: &[Charge],
        results: &[ChargeResult],
        still: Duration,
    ) {
        let Some(refund) = PendingRefund::of(id, charges, results) else { return };
        if results.len() < charges.len() {
            self.later.push(PendingRefund::of_undecided(refund.charges.clone(), Instant::now() + still));
        }
        self.later.push(refund);
    }

    /// Evicts some expired entries; true if more remain.
    pub fn tick(&self) -> bool {
        self.stores.logs.tick()
    }

    /// The state of each circuit breaker, by the store that it protects. Logs in memory have none; without a database, ledgers
    /// have none.
    pub fn breaker_states(&self) -> impl Iterator<Item = (&'static str, State)> {
        let logs = self.stores.logs.breaker_state().map(|state| ("logs", state));
        let ledger = self.stores.database.as_ref().map(|database| ("ledger", database.ledger_state()));
        logs.into_iter().chain(ledger)
    }

    /// The exact keys nearest their limits that match `text`, of those that this aggregator decided lately. `ruled` has what rules state of
    /// a key.
    pub async fn nearest<'a>(&self, text: &[u8], ruled: impl Fn(&ExactKey) -> Ruled<'a>) -> Arc<Nearest> {
        self.recent.nearest(text, &self.stores.logs, ruled).await
    }

    /// The exact keys of an identifier that this aggregator decided lately.
    pub fn of_identifier(&self, identifier: &[u8]) -> Vec<ExactUsage> {
        self.recent.of_identifier(identifier)
    }

    /// The use of a key now, under `most` if it is a log; nothing is charged. `None` for a ledger whose zone does not exist. After
    /// `within`, it was not read.
    pub async fn look(
        &self,
        key: &ExactKey,
        most: u64,
        within: Duration,
    ) -> Result<Option<ExactUsage>, Unread> {
        let deadline = Instant::now() + within;
        let denied = self.recent.last(key).map_or(0, |last| last.denied);
        let shown = |usage, window_ms| ExactUsage {
            key: key.clone(),
            usage,
            window_ms,
            denied,
            age_ms: 0,
            matches: Match::Whole,
        };
        match key {
            ExactKey::Log(log) => {
                let charges: Vec<_> = recent::query(key, most).into_iter().collect();
                let results = self.stores.logs.charge(&charges, deadline).await;
                let decided = results.into_iter().next().and_then(Result::ok).ok_or(Unread::Log)?;
                Ok(Some(shown(recent::usage_of(&decided, most), log.parts().duration_ms)))
            }
            ExactKey::Ledger { zone, bucket } => {
                let database = self.stores.database.as_ref().ok_or(Unread::NoDatabase)?;
                let turn = timeout_at(deadline, self.reads.acquire()).await.map_err(|_| Unread::Ledger)?;
                let within = deadline.saturating_duration_since(Instant::now());
                let found = database.bucket_use(*zone, bucket, within).await.map_err(|_| Unread::Ledger)?;
                drop(turn);
                Ok(found.map(|BucketUse { rate, window_ms, used, reset_ms }| {
                    let wait_ms = if used < rate { Some(0) } else { (rate > 0).then_some(reset_ms) };
                    shown(recent::usage(used, rate, wait_ms), window_ms)
                }))
            }
        }
    }

    /// The metrics.
    pub fn figures(&self) -> &ExactFigures {
        &self.stores.figures
    }

    async fn rule(&self, plan: &Plan, began: Instant, deadline: Instant) -> Vec<ChargeResult> {
        let requested = self.stores.time_of(began);
        let found = self.stores.denials.lock().find(&plan.logs, requested);
        if let Some(Found { log: denied, decided }) = found {
            self.stores.figures.exact_cached_denials.inc();
            let answer = |log| if log == denied { LogAnswer::Decided(decided) } else { LogAnswer::Untried };
            return plan.results(answer, &[], true);
        }
        let call = self.stores.logs.call_span(plan.logs.len());
        let decided = self.stores.logs.charge(&plan.logs, deadline).await;
        spans::failed(call, decided.iter().any(Result::is_err).then_some("unanswered"));
        for (charge, decided) in plan.logs.iter().zip(&decided) {
            if let Ok(decided) = decided {
                self.stores.denials.lock().insert(charge, decided, requested);
            }
        }
        self.disown(plan, &decided, deadline);
        let denied_by_log = decided.iter().any(denies);
        let ledgers = if denied_by_log { Vec::new() } else { self.charge_ledgers(plan, deadline).await };
        // An undecided charge overturns nothing: its rule decides whether the request passes, and the charges that were
        // decided stay valid in either case.
        let in_vain = denied_by_log || ledgers.iter().any(ChargeResult::is_denied);
        if in_vain {
            self.take_back(plan, &decided, &ledgers, deadline).await;
        }
        let answer = |log: usize| match decided.get(log) {
            Some(Ok(decided)) => LogAnswer::Decided(*decided),
            _ => LogAnswer::Undecided,
        };
        plan.results(answer, &ledgers, in_vain)
    }

    /// Charges ledgers one after the other, up to the first that denies.
    async fn charge_ledgers(&self, plan: &Plan, deadline: Instant) -> Vec<ChargeResult> {
        let mut results = Vec::new();
        for charge in plan.ledgers() {
            let within = deadline.saturating_duration_since(Instant::now());
            let result =
                self.stores.charge_ledger(charge.zone, &charge.bucket, charge.cost, within).await;
            results.push(result);
            if result.is_denied() {
                break;
            }
        }
        results
    }

    /// Schedules the refund of charges that may still be made, for the time at which they can be made no longer.
    fn disown(&self, plan: &Plan, decided: &[Result<Decided, NoAnswer>], deadline: Instant) {
        let unknown = charged(plan, decided).filter(|(_, decided)| **decided == Err(NoAnswer::Unknown));
        let charges: Vec<_> = unknown.map(|(charge, _)| charge.clone()).collect();
        if !charges.is_empty() {
            self.later.push(PendingRefund::of_undecided(charges, deadline));
        }
    }

    /// Refunds what a denied request was charged.
    async fn take_back(
        &self,
        plan: &Plan,
        decided: &[Result<Decided, NoAnswer>],
        ledgers: &[ChargeResult],
        deadline: Instant,
    ) {
        let passed = charged(plan, decided).filter(|(_, decided)| passed(decided));
        let charges = passed.map(|(charge, _)| charge.clone()).collect();
        let transactions = plan.transactions(ledgers);
        if let Some(left) = self.stores.take_back(PendingRefund::now(charges, transactions), deadline).await {
            self.later.push(left);
        }
    }
}

impl Stores {
    fn time_of(&self, moment: Instant) -> Micros {
        let since = moment.saturating_duration_since(self.started);
        Micros(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
    }

    /// The decision of a ledger, which records the attempt.
    async fn charge_ledger(&self, zone: u32, bucket: &[u8], cost: u64, within: Duration) -> ChargeResult {
        let ruled = match &self.database {
            Some(database) => ledger::decide(database, zone, bucket, cost, within).await,
            None => Err(Undecided::NoDatabase),
        };
        ruled.unwrap_or_else(|undecided| {
            self.figures.ledger_undecided(undecided.reason());
            if let Some(held_back) = self.warnings.pass() {
                warn!(zone, held_back, "a ledger could not decide: {undecided}");
            }
            ChargeResult::UNDECIDED
        })
    }

    /// Makes the refunds that it can, and returns the rest.
    async fn take_back(&self, refund: PendingRefund, deadline: Instant) -> Option<PendingRefund> {
        if refund.is_empty() {
            return None;
        }
        let (mut left, mut open) = (refund, Vec::new());
        let charges = std::mem::take(&mut left.charges);
        for (charge, refunded) in charges.iter().zip(self.logs.refund(&charges, deadline).await) {
            self.denials.lock().remove(&charge.key);
            match refunded {
                Some(true) => self.figures.refunded("done"),
                Some(false) => self.figures.refunded("missing"),
                None => open.push(charge.clone()),
            }
        }
        left.charges = open;
        left.transactions = self.take_back_transactions(left.transactions, deadline).await;
        (!left.is_empty()).then_some(left)
    }

    /// Refunds transactions; returns those that could not be refunded.
    async fn take_back_transactions(
        &self,
        transactions: Vec<Transaction>,
        deadline: Instant,
    ) -> Vec<Transaction> {
        // Without a database there are no transactions.
        let Some(database) = &self.database else { return Vec::new() };
        let mut open = Vec::new();
        for transaction in transactions {
            let within = deadline.saturating_duration_since(Instant::now());
            let Transaction { id, zone, bucket } = &transaction;
            match database.refund(*id, *zone, bucket, within).await {
                Ok(true) => self.figures.refunded("done"),
                Ok(false) => self.figures.refunded("missing"),
                Err(_) => open.push(transaction),
            }
        }
        open
    }
}

/// The charges of a cost above 0, and their results.
fn charged<'a>(
    plan: &'a Plan,
    decided: &'a [Result<Decided, NoAnswer>],
) -> impl Iterator<Item = (&'a LogCharge, &'a Result<Decided, NoAnswer>)> {
    plan.logs.iter().zip(decided).filter(|(charge, _)| charge.cost > 0)
}

fn denies(decided: &Result<Decided, NoAnswer>) -> bool {
    decided.as_ref().is_ok_and(|decided| decided.outcome != Outcome::Allowed)
}

fn passed(decided: &Result<Decided, NoAnswer>) -> bool {
    decided.as_ref().is_ok_and(|decided| decided.outcome == Outcome::Allowed)
}
