//! The wall clock: the one place of this program that reads it, behind a trait so that tests can shift it.
//!
//! Leaves to others: measuring how long things take, for which `std::time::Instant` is used where it is needed.

use std::time::{SystemTime, UNIX_EPOCH};
use weir_core::model::time::UnixMs;

/// Says which moment it is.
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
