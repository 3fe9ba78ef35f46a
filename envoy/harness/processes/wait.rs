//! Waits for conditions with deadlines, so that scenarios need no fixed sleeps.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Polls until `condition` holds; fails with `what` if it does not hold within `timeout`.
pub async fn until(what: &str, timeout: Duration, mut condition: impl AsyncFnMut() -> bool) -> Result<()> {
    until_some(what, timeout, async || Ok(condition().await.then_some(()))).await
}

/// Polls until `condition` returns a value. An error from it ends the wait at once.
pub async fn until_some<T>(
    what: &str,
    timeout: Duration,
    mut condition: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + timeout;
    loop {
        if let Some(value) = condition().await? {
            return Ok(value);
        }
        if Instant::now() >= deadline {
            bail!("waited {timeout:?} in vain: {what}");
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
