//! The signal that the shutdown has begun.

use std::time::Instant;
use tokio::sync::watch;

/// Completes when the shutdown begins.
pub async fn draining(mut draining: watch::Receiver<Option<Instant>>) {
    // An error means that the sender is gone, so the program has already ended.
    let _ = draining.wait_for(Option::is_some).await;
}
