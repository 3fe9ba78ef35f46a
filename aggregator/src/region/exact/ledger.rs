//! One charge to a ledger. The database decides and records the attempt.

use crate::database::{Database, DatabaseError, Velocity};
use std::time::Duration;
use weir_core::model::exact::{ChargeResult, Verdict};
use weir_core::replication::exact::plan::LedgerCharge;

/// Why a ledger could not decide.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Undecided {
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
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Undecided::NoDatabase => "no_database",
            Undecided::NoZone(_) => "no_zone",
            Undecided::Failed(error) => error.reason(),
        }
    }
}

/// Decides and records one charge. On an error the caller answers [`ChargeResult::UNDECIDED`].
pub(super) async fn decide(
    database: Option<&Database>,
    charge: &LedgerCharge,
    within: Duration,
) -> Result<ChargeResult, Undecided> {
    let database = database.ok_or(Undecided::NoDatabase)?;
    let velocity = database.check_velocity(charge, within).await?;
    velocity.as_ref().map(result).ok_or(Undecided::NoZone(charge.zone))
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
