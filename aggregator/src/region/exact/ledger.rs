//! One charge to a ledger, as a ruling: the attempt is decided and recorded by the database.
//!
//! Leaves to others: the database (`database::ledger`), several charges that pass together or not at all (`exact`).

use crate::database::{Attempt, Database, DatabaseError, Velocity};
use std::time::Duration;
use weir_core::model::exact::{ChargeResult, Verdict};

/// Why a ledger ruled nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Undecided {
    /// There is nowhere to record anything.
    #[error("a ledger needs a database, and none is set; see --database-url or WEIR_DATABASE_URL")]
    NoDatabase,
    /// The rule names a zone that is not there.
    #[error("there is no zone {0}: weir-aggregator zones set makes it")]
    NoZone(u32),
    /// The database did not do it, or not in time. The attempt may be recorded nevertheless.
    #[error(transparent)]
    Failed(#[from] DatabaseError),
}

impl Undecided {
    /// One of a small fixed set of words, for metrics.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Undecided::NoDatabase => "no_database",
            Undecided::NoZone(_) => "no_zone",
            Undecided::Failed(error) => error.reason(),
        }
    }
}

/// Rules on one charge, and records it. Who gets an error says [`ChargeResult::UNDECIDED`].
pub(super) async fn decide(
    database: &Database,
    zone: u32,
    bucket: &[u8],
    cost: u64,
    within: Duration,
) -> Result<ChargeResult, Undecided> {
    let velocity = database.check_velocity(&Attempt { zone, bucket, cost }, within).await?;
    velocity.as_ref().map(result).ok_or(Undecided::NoZone(zone))
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
        // The rate may be lower than what was used under a higher one.
        let denied = |retry_after_ms| Velocity { blocked: true, used: 9, retry_after_ms, ..VELOCITY };
        for retry_after_ms in [None, Some(20)] {
            let verdict = Verdict::Denied { retry_after_ms };
            assert_eq!(result(&denied(retry_after_ms)), ChargeResult { verdict, remaining: 0, ..allowed });
        }
    }
}
