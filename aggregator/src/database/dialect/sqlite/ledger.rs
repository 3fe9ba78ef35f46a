//! The ledger in one transaction, with the same results as the procedure of MySQL and MariaDB.

use super::statements::{CLOCK, COUNT, ENOUGH, RECORD, STATEMENTS};
use crate::database::dialect::arg::Arg;
use crate::database::dialect::link::Link;
use crate::database::dialect::velocity::Velocity;
use crate::database::error::{DatabaseError, Reason};
use weir_core::replication::exact::plan::LedgerCharge;

/// Decides an attempt and records it.
pub(super) async fn check_velocity(
    link: &mut dyn Link,
    charge: &LedgerCharge,
    region: &[u8],
) -> Result<Velocity, DatabaseError> {
    link.execute(STATEMENTS.begin_write, &[]).await?;
    let result = decide(link, charge, region).await;
    let end = if result.is_ok() { STATEMENTS.commit } else { STATEMENTS.rollback };
    // If the transaction could not be ended, its connection must not return to the pool.
    let ended = link.execute(end, &[]).await;
    ended.map_err(|error| DatabaseError::new(Reason::Other, error))?;
    result
}

/// Decides like the stored procedure.
async fn decide(
    link: &mut dyn Link,
    charge: &LedgerCharge,
    region: &[u8],
) -> Result<Velocity, DatabaseError> {
    let (zone, bucket, cost) = (Arg::Int(charge.zone.into()), Arg::Bytes(&charge.bucket), charge.cost);
    let [_, _, Some(rate), Some(window)] = link.first(STATEMENTS.zone, &[zone]).await? else {
        return Err(DatabaseError::new(Reason::NoZone, "there is no such zone"));
    };
    let [now] = link.first(CLOCK, &[]).await?;
    let now = now.unwrap_or_default();
    let window_us = window.saturating_mul(1_000_000);
    let since = now.saturating_sub(window_us);
    let counted = [zone, bucket, Arg::Int(since)];
    let [used, oldest] = link.first(COUNT, &counted).await?;
    let used = used.unwrap_or_default();
    let excess = used.saturating_add(cost).saturating_sub(rate);
    let blocked = excess > 0;
    let [enough] = match blocked && cost <= rate {
        true => link.first(ENOUGH, &[zone, bucket, Arg::Int(since), Arg::Int(excess)]).await?,
        false => [None],
    };
    let record = [zone, bucket, Arg::Int(blocked.into()), Arg::Int(now), Arg::Int(cost), Arg::Bytes(region)];
    let [transaction] = link.first(RECORD, &record).await?;
    let until_left_ms = |moment: u64| moment.saturating_sub(since).div_ceil(1_000);
    let oldest = oldest.or((cost > 0 && !blocked).then_some(now));
    Ok(Velocity {
        transaction: transaction.unwrap_or_default(),
        blocked,
        rate,
        window_ms: window.saturating_mul(1_000),
        used: if blocked { used } else { used + cost },
        reset_ms: oldest.map_or(0, until_left_ms),
        retry_after_ms: enough.map(until_left_ms),
    })
}
