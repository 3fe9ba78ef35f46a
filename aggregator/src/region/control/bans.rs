//! Stores the bans that rules propose, batch by batch; the core decides which (`weir_core::bans::queue`).

use super::Live;
use crate::region::global::Global;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::sleep;
use tracing::debug;
use weir_core::bans::queue::{BETWEEN_MS, BanQueue, WITHIN_MS};
use weir_core::control::change::{Change, ChangeOutcome};
use weir_core::model::time::UnixMs;
use weir_core::model::wire::Ban;

/// Proposed bans that are not stored yet.
#[derive(Debug, Default)]
pub struct Proposals {
    waiting: Mutex<BanQueue>,
    woken: Notify,
}

impl Proposals {
    /// Queues the bans that a filter proposes. Returns how many were refused as invalid or beyond the bound.
    pub fn propose(&self, bans: &[Ban], now: UnixMs) -> usize {
        let refused = self.waiting.lock().propose(bans, now);
        self.woken.notify_one();
        refused
    }
}

/// Stores proposals until the program ends.
pub async fn store(live: Arc<Live>, global: Arc<Global>) {
    loop {
        live.bans.woken.notified().await;
        loop {
            let changes = live.bans.waiting.lock().take();
            if changes.is_empty() {
                break;
            }
            keep(&live, &global, &changes).await;
            sleep(Duration::from_millis(BETWEEN_MS)).await;
        }
    }
}

async fn keep(live: &Arc<Live>, global: &Arc<Global>, changes: &[Change]) {
    match live.change(global, changes, Duration::from_millis(WITHIN_MS)).await {
        Ok(changed) => {
            let full = changed.iter().filter(|changed| matches!(changed, ChangeOutcome::Full(_))).count();
            if full > 0 {
                live.hub.warn(
                    &format!(
                        "{full} bans by rules hold only in their Envoy: too many automatic bans are in force"
                    ),
                    None,
                );
            }
            debug!(proposed = changes.len(), "stored bans by rules");
        }
        // The Envoy still holds the bans, and proposes them again.
        Err(error) => live.hub.warn(&format!("could not store bans by rules: {error}"), None),
    }
}
