//! The ledgers: the database decides and records each attempt.

use super::history::Unread;
use crate::database::{BucketUse, Database, DatabaseError, Velocity};
use crate::telemetry::metrics::ExactFigures;
use crate::telemetry::throttle::Throttle;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use tracing::warn;
use weir_core::model::breaker::State;
use weir_core::model::exact::{ChargeResult, Verdict};
use weir_core::replication::exact::plan::{LedgerCharge, Transaction};

/// Least time between two warnings about ledgers that cannot decide.
const BETWEEN_WARNINGS: Duration = Duration::from_secs(5);

/// Where the ledgers are kept.
pub(super) struct Ledgers {
    database: Option<Database>,
    /// Operators read one bucket at a time.
    reads: Semaphore,
    /// Limits the rate of warnings about ledgers that cannot decide.
    warnings: Throttle,
}

/// Why a ledger could not decide.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Undecided {
    /// No database is configured.
    #[error("a ledger needs a database, and none is set; see --database-url or WEIR_DATABASE_URL")]
    NoDatabase,
    /// The rule names a zone that does not exist.
    #[error("zone {0} does not exist; create it with weir-aggregator zones set")]
    NoZone(u32),
    /// The database failed, or did not answer in time. The attempt may be recorded nevertheless.
    #[error(transparent)]
    Failed(#[from] DatabaseError),
}

impl Undecided {
    /// The metric's label, from a small fixed set.
    fn reason(&self) -> &'static str {
        match self {
            Undecided::NoDatabase => "no_database",
            Undecided::NoZone(_) => "no_zone",
            Undecided::Failed(error) => error.reason(),
        }
    }
}

impl Ledgers {
    pub(super) fn new(database: Option<Database>) -> Ledgers {
        Ledgers { database, reads: Semaphore::new(1), warnings: Throttle::new(BETWEEN_WARNINGS) }
    }

    /// The state of the circuit breaker, if there is a database.
    pub(super) fn breaker_state(&self) -> Option<State> {
        Some(self.database.as_ref()?.ledger_state())
    }

    /// Decides and records one charge within the given time.
    pub(super) async fn charge(
        &self,
        charge: &LedgerCharge,
        within: Duration,
        figures: &ExactFigures,
    ) -> ChargeResult {
        self.decide(charge, within).await.unwrap_or_else(|undecided| {
            figures.ledger_undecided(undecided.reason());
            if let Some(held_back) = self.warnings.pass() {
                warn!(zone = charge.zone, held_back, "a ledger could not decide: {undecided}");
            }
            ChargeResult::UNDECIDED
        })
    }

    async fn decide(&self, charge: &LedgerCharge, within: Duration) -> Result<ChargeResult, Undecided> {
        let database = self.database.as_ref().ok_or(Undecided::NoDatabase)?;
        let velocity = database.check_velocity(charge, within).await?;
        velocity.as_ref().map(result).ok_or(Undecided::NoZone(charge.zone))
    }

    /// Refunds an attempt within the given time: whether it counted until now; `None` if the database has not answered.
    pub(super) async fn refund(&self, transaction: &Transaction, within: Duration) -> Option<bool> {
        // Without a database there are no transactions.
        let Some(database) = &self.database else { return Some(false) };
        database.refund(transaction, within).await.ok()
    }

    /// The use of a bucket now; nothing is recorded. `None` for a zone that does not exist.
    pub(super) async fn look(
        &self,
        zone: u32,
        bucket: &[u8],
        within: Duration,
    ) -> Result<Option<BucketUse>, Unread> {
        let deadline = Instant::now() + within;
        let database = self.database.as_ref().ok_or(Unread::NoDatabase)?;
        let _turn = timeout_at(deadline, self.reads.acquire()).await.map_err(|_| Unread::Ledger)?;
        let within = deadline.saturating_duration_since(Instant::now());
        database.bucket_use(zone, bucket, within).await.map_err(|_| Unread::Ledger)
    }
}

fn result(velocity: &Velocity) -> ChargeResult {
    let Velocity { transaction, blocked, rate, window_ms, used, reset_ms, retry_after_ms } = *velocity;
    ChargeResult {
        verdict: if blocked { Verdict::Denied { retry_after_ms } } else { Verdict::Allowed },
        limit: rate,
        remaining: rate.saturating_sub(used),
        reset_ms,
        window_ms,
        transaction: Some(transaction),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VELOCITY: Velocity = Velocity {
        transaction: 7,
        blocked: false,
        rate: 5,
        window_ms: 60_000,
        used: 3,
        reset_ms: 1_500,
        retry_after_ms: None,
    };

    #[test]
    fn results() {
        let allowed = ChargeResult {
            verdict: Verdict::Allowed,
            limit: 5,
            remaining: 2,
            reset_ms: 1_500,
            window_ms: 60_000,
            transaction: Some(7),
        };
        assert_eq!(result(&VELOCITY), allowed);
        // The use may exceed the rate, if the rate was lowered after it.
        let denied = |retry_after_ms| Velocity { blocked: true, used: 9, retry_after_ms, ..VELOCITY };
        for retry_after_ms in [None, Some(20)] {
            let verdict = Verdict::Denied { retry_after_ms };
            assert_eq!(result(&denied(retry_after_ms)), ChargeResult { verdict, remaining: 0, ..allowed });
        }
    }
}
