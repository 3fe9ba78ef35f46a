//! The signal that the program ends, as its parts wait for it.

use std::time::Instant;
use tokio::sync::watch;

/// Completes when the program begins to end.
pub async fn draining(mut draining: watch::Receiver<Option<Instant>>) {
    // An error means that everything is gone already.
    let _ = draining.wait_for(Option::is_some).await;
}
