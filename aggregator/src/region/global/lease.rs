//! The region lease. Without a Redis a region may have only one aggregator, as its counts are only in that aggregator's
//! memory. A row of the database names it.

use super::calls::{Global, failure};
use crate::database::{DatabaseError, Lease};
use crate::region::hub::Hub;
use crate::telemetry::clock::since_boot;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use tracing::{info, warn};
use weir_core::model::time::MonoMs;
use weir_core::replication::Failure;
use weir_core::replication::global::lease::{Holder, Keeping, TTL_MS, Taking, Then, WITHIN_MS};

/// Another aggregator serves this region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServedElsewhere;

/// Takes the region lease, or returns [`ServedElsewhere`] if another aggregator holds it. If the database is unavailable, the aggregator
/// serves without the lease. Another aggregator may serve the region after the moment that is returned.
pub async fn take(global: &Global) -> Result<MonoMs, ServedElsewhere> {
    let mut taking = Taking::new(since_boot());
    loop {
        let sent = since_boot();
        let lease = renew(global, taking.abandoned(sent)).await;
        let was_held = taking.is_held();
        match taking.answered(holder(&lease), since_boot()) {
            Then::Serve { .. } => {
                if let Err(error) = lease {
                    warn!(%error, "could not check the region lease: another aggregator may serve this region");
                }
                return Ok(sent.after(TTL_MS));
            }
            Then::TakenOver => return Err(ServedElsewhere),
            Then::Again(ms) => {
                if let (false, Ok(Lease::HeldBy { for_ms, .. })) = (was_held, &lease) {
                    info!(
                        for_ms,
                        "another aggregator holds the region lease; waiting until it is released or expires"
                    );
                }
                sleep(Duration::from_millis(ms)).await;
            }
        }
    }
}

/// Renews the lease, which is valid `until` then, until the program ends or another aggregator holds it.
pub async fn keep(hub: Arc<Hub>, global: Arc<Global>, until: MonoMs) {
    let mut keeping = Keeping::new(until);
    loop {
        sleep(Duration::from_millis(Keeping::pause_ms())).await;
        // The row is valid from a moment after this one.
        let sent = since_boot();
        let is_lost = keeping.answered(holder(&renew(&global, None).await), sent);
        hub.serves_until(keeping.until());
        if is_lost {
            return hub.taken_over.notify_one();
        }
    }
}

/// Releases the lease, so that the next aggregator need not wait for it to expire.
pub async fn release(global: &Global) {
    // If this fails, the next aggregator waits until the lease expires.
    let _ = global.database.release(&global.id, Duration::from_millis(WITHIN_MS)).await;
}

async fn renew(global: &Global, abandoned: Option<u64>) -> Result<Lease, DatabaseError> {
    let (ttl, within) = (Duration::from_millis(TTL_MS), Duration::from_millis(WITHIN_MS));
    global.database.lease(&global.id, ttl, abandoned, within).await
}

fn holder(lease: &Result<Lease, DatabaseError>) -> Result<Holder, Failure> {
    match lease {
        Ok(Lease::Mine) => Ok(Holder::Mine),
        Ok(Lease::HeldBy { expires_at, .. }) => Ok(Holder::Another { expires_at: *expires_at }),
        Err(error) => Err(failure(error)),
    }
}
