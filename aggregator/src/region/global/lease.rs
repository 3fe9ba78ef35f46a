//! Without a store of its own, a region has one aggregator: its memory is all there is. A row in the database says who.
//!
//! Leaves to others: the row (`database`), what its word means (`weir_core::replication::globe::lease`), and where it
//! matters (`serve`).

use super::{Global, failure};
use crate::database::{DatabaseError, Lease};
use crate::region::hub::Hub;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::sleep;
use tracing::{info, warn};
use weir_core::model::time::MonoMs;
use weir_core::replication::Failure;
use weir_core::replication::globe::lease::{Holder, Keeping, TTL_MS, Taking, Then, WITHIN_MS};

/// Another aggregator serves this region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken;

/// Takes the region, or says that somebody else has it. A database that is away refuses nobody.
pub async fn take(global: &Global) -> Result<(), Taken> {
    let began = Instant::now();
    let mut taking = Taking::new(MonoMs(0));
    loop {
        let lease = renew(global).await;
        let now = MonoMs(u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX));
        let was_held = taking.is_held();
        match taking.answered(holder(&lease), now) {
            Then::Serve { .. } => {
                if let Err(error) = lease {
                    warn!(%error, "cannot tell whether another aggregator serves this region");
                }
                return Ok(());
            }
            Then::TakenOver => return Err(Taken),
            Then::Again(ms) => {
                if let (false, Ok(Lease::HeldBy { for_ms, .. })) = (was_held, &lease) {
                    info!(
                        for_ms,
                        "another aggregator served this region a moment ago; waiting for it to end"
                    );
                }
                sleep(Duration::from_millis(ms)).await;
            }
        }
    }
}

/// Keeps it for as long as the program runs, or until another serves the region.
pub async fn keep(hub: Arc<Hub>, global: Arc<Global>) {
    let mut keeping = Keeping::default();
    loop {
        sleep(Duration::from_millis(Keeping::pause_ms())).await;
        if keeping.answered(holder(&renew(&global).await)) {
            return hub.taken_over.notify_one();
        }
    }
}

/// Gives it up, so that the next one need not wait.
pub async fn release(global: &Global) {
    // If that fails, the next one waits.
    let _ = global.database.release(&global.id, Duration::from_millis(WITHIN_MS)).await;
}

async fn renew(global: &Global) -> Result<Lease, DatabaseError> {
    let (ttl, within) = (Duration::from_millis(TTL_MS), Duration::from_millis(WITHIN_MS));
    global.database.lease(&global.id, ttl, within).await
}

fn holder(lease: &Result<Lease, DatabaseError>) -> Result<Holder, Failure> {
    match lease {
        Ok(Lease::Mine) => Ok(Holder::Mine),
        Ok(Lease::HeldBy { .. }) => Ok(Holder::Another),
        Err(error) => Err(failure(error)),
    }
}
