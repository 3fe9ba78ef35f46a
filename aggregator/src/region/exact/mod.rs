//! Exact requests: all charges of a request pass, or none is charged.
//!
//! The core decides in which order the stores are called, and what is refunded when (`weir_core::replication::exact`). In
//! reading order: [`Exact`], here; `stores` (makes the core's calls); `logs` (the sliding logs, in Redis or in memory);
//! `ledgers` (the ledgers, in the database); `frames` (requests from streams); `issued` (which worker may refund which
//! transaction); `recent` (what was decided lately, for operators); `history` (what ledgers recorded).

mod frames;
mod history;
mod issued;
mod ledgers;
mod logs;
mod recent;
mod stores;

pub use history::{History, HistoryQuery, Recorded, Unread};
pub use recent::{ExactUsage, Nearest, RuleFacts};

use crate::database::{BucketUse, Database};
use crate::redis::Store;
use crate::telemetry::metrics::ExactFigures;
use issued::Issued;
use recent::Recent;
use std::sync::Arc;
use std::time::Duration;
use stores::{Refunds, Stores, micros};
use tokio::time::Instant;
use weir_core::model::breaker::State;
use weir_core::model::exact::{Charge, ChargeResult, ExactKey, ExactRequestId};
use weir_core::region::top::Match;
use weir_core::replication::exact::mixed::{MixedRequest, Step};
use weir_core::replication::exact::refund::Withdrawal;
use weir_core::replication::exact::request::Request;

/// Decides exact requests.
pub struct Exact {
    stores: Arc<Stores>,
    /// Which worker may refund which transaction.
    issued: Issued,
    recent: Recent,
    history: Option<History>,
    _refunds: Refunds,
}

impl Exact {
    /// Sliding logs are in `store`, or in memory without one; ledgers in `database`. Without a database every ledger is
    /// undecided. Needs a tokio runtime.
    pub fn new(store: Option<Store>, database: Option<Database>) -> Exact {
        let history = database.clone().map(History::new);
        let stores = Arc::new(Stores::new(store, database));
        let (issued, recent) = (Issued::default(), Recent::default());
        let refunds = Refunds::start(stores.clone());
        Exact { stores, issued, recent, history, _refunds: refunds }
    }

    /// Decides every charge of a request, in order, within the given time; see [`Request`].
    pub async fn decide(
        &self,
        id: ExactRequestId,
        charges: &[Charge],
        within: Duration,
    ) -> Vec<ChargeResult> {
        let mut request = self.request(id, charges, within);
        self.run(&mut request, charges).await;
        request.results()
    }

    /// A request of `charges`, to be decided within the given time.
    pub fn request(&self, id: ExactRequestId, charges: &[Charge], within: Duration) -> Request {
        Request::new(id, charges, micros(within).0, self.stores.now())
    }

    /// Decides every charge of a request.
    pub async fn run(&self, request: &mut Request, charges: &[Charge]) {
        let began = Instant::now();
        self.stores.drive(request).await;
        let results = request.results();
        self.stores.figures.decided(charges, &results, began.elapsed());
        self.recent.note(charges, &results);
    }

    /// What a request under exact limits and windows needs next.
    pub fn step(&self, request: &mut MixedRequest) -> Step {
        self.stores.state(|state, now| request.step(state, now))
    }

    /// Starts the refund of a request by its sender. If results are missing, the request may still be on its way and charge
    /// something; this is refunded after its time.
    pub fn refund_later(&self, withdrawal: &Withdrawal) {
        self.stores.state(|state, now| state.withdraw(withdrawal, now));
    }

    /// Evicts some expired entries; true if more remain.
    pub fn tick(&self) -> bool {
        self.stores.logs.tick(self.stores.now())
    }

    /// The state of each circuit breaker, by the store that it protects. Logs in memory have none; without a database, ledgers
    /// have none.
    pub fn breaker_states(&self) -> impl Iterator<Item = (&'static str, State)> {
        let logs = self.stores.state(|state, now| state.breaker_state(now)).map(|state| ("logs", state));
        let ledger = self.stores.ledgers.breaker_state().map(|state| ("ledger", state));
        logs.into_iter().chain(ledger)
    }

    /// The exact keys nearest their limits that match `text`, of those that this aggregator decided lately. `ruled` has what rules state of
    /// a key.
    pub async fn nearest<'a>(&self, text: &[u8], ruled: impl Fn(&ExactKey) -> RuleFacts<'a>) -> Arc<Nearest> {
        self.recent.nearest(text, &self.stores, ruled).await
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
                let queries = recent::query(key, most).into_iter().collect();
                let results = self.stores.read(queries, within).await;
                let decided = results.into_iter().next().and_then(Result::ok).ok_or(Unread::Log)?;
                Ok(Some(shown(recent::usage_of(&decided, most), log.parts().duration_ms)))
            }
            ExactKey::Ledger { zone, bucket } => {
                let found = self.stores.ledgers.look(*zone, bucket, within).await?;
                Ok(found.map(|BucketUse { rate, window_ms, used, reset_ms }| {
                    let wait_ms = if used < rate { Some(0) } else { (rate > 0).then_some(reset_ms) };
                    shown(recent::usage(used, rate, wait_ms), window_ms)
                }))
            }
        }
    }

    /// The ledger's history.
    pub fn history(&self) -> Result<&History, Unread> {
        self.history.as_ref().ok_or(Unread::NoDatabase)
    }

    /// The metrics.
    pub fn figures(&self) -> &ExactFigures {
        &self.stores.figures
    }
}
