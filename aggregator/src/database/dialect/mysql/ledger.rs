//! The ledger's procedure (`migrations/mysql/0006_check_velocity_cost.sql`), which operators may call by hand.

use super::statements::{ANSWER, CHECK_VELOCITY};
use crate::database::dialect::arg::Arg;
use crate::database::dialect::link::{Link, Row};
use crate::database::dialect::velocity::Velocity;
use crate::database::error::{DatabaseError, Reason};
use weir_core::replication::exact::plan::LedgerCharge;

/// Decides an attempt and records it.
pub(super) async fn check_velocity(
    link: &mut dyn Link,
    charge: &LedgerCharge,
    region: &[u8],
) -> Result<Velocity, DatabaseError> {
    let LedgerCharge { zone, bucket, cost } = charge;
    let args = [Arg::Int((*zone).into()), Arg::Bytes(bucket), Arg::Int(*cost), Arg::Bytes(region)];
    let mut answer = None;
    link.each(CHECK_VELOCITY, &args, &mut |row| answer = read_answer(row)).await?;
    answer.ok_or_else(|| {
        DatabaseError::new(Reason::Schema, "check_velocity_cost did not return Weir's columns")
    })
}

fn read_answer(row: &Row<'_>) -> Option<Velocity> {
    let [blocked, transaction, rate, window, used, reset_ms, retry_after_ms] =
        ANSWER.map(|column| row.number(column));
    Some(Velocity {
        transaction: transaction?,
        blocked: blocked? != 0,
        rate: rate?,
        window_ms: window?.saturating_mul(1_000),
        used: used?,
        reset_ms: reset_ms?,
        retry_after_ms,
    })
}
