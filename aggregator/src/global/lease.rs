//! Without a store of its own, a region has one aggregator: its memory is all there is. A row in the database says who.
//!
//! Leaves to others: the row (`database`), and where it matters (`serve`).

use super::Global;
use crate::database::Lease;
use crate::shared::Shared;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::sleep;
use tracing::{info, warn};

/// How long the row speaks for its holder; a killed aggregator keeps its successor waiting for as long.
const TTL: Duration = Duration::from_secs(3);
/// Between two renewals.
const RENEW: Duration = Duration::from_millis(750);
/// How long a new aggregator waits for the last one's row to run out.
const PATIENCE: Duration = Duration::from_secs(6);
/// How long one statement may take.
const WITHIN: Duration = Duration::from_millis(700);

/// Another aggregator serves this region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken;

/// Takes the region, or says that somebody else has it. A database that is away refuses nobody.
pub async fn take(global: &Global) -> Result<(), Taken> {
    let began = Instant::now();
    let mut said = false;
    loop {
        match global.database.lease(&global.id, TTL, WITHIN).await {
            Ok(Lease::Mine) => return Ok(()),
            Ok(Lease::HeldBy { .. }) if began.elapsed() > PATIENCE => return Err(Taken),
            Ok(Lease::HeldBy { for_ms, .. }) => {
                if !std::mem::replace(&mut said, true) {
                    info!(
                        for_ms,
                        "another aggregator served this region a moment ago; waiting for it to end"
                    );
                }
            }
            // Who is known to have held it a moment ago is believed to hold it still.
            Err(_) if said && began.elapsed() <= PATIENCE => {}
            Err(error) => {
                warn!(%error, "cannot tell whether another aggregator serves this region");
                return Ok(());
            }
        }
        sleep(RENEW / 3).await;
    }
}

/// Keeps it for as long as the program runs. Who was silent for too long, frozen perhaps, may find that another took it:
/// then this one has to end, as each would keep the limits for itself.
pub async fn keep(shared: Arc<Shared>, global: Arc<Global>) {
    let mut lost = 0;
    while lost < 2 {
        sleep(RENEW).await;
        lost = match global.database.lease(&global.id, TTL, WITHIN).await {
            Ok(Lease::HeldBy { .. }) => lost + 1,
            Ok(Lease::Mine) => 0,
            Err(_) => lost,
        };
    }
    shared.taken_over.notify_one();
}

/// Gives it up, so that the next one need not wait.
pub async fn release(global: &Global) {
    // If that fails, the next one waits.
    let _ = global.database.release(&global.id, WITHIN).await;
}
