//! The wall clock. Only this module reads it, behind a trait, so that tests can shift it. Durations are measured with
//! `std::time::Instant` where they are needed.

use std::time::{SystemTime, UNIX_EPOCH};
use weir_core::model::time::UnixMs;

/// A wall clock.
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since the Unix epoch; may jump in either direction.
    fn now(&self) -> UnixMs;
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the wall clock")]
    fn now(&self) -> UnixMs {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        UnixMs(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
    }
}
