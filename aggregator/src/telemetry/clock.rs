//! The wall clock. Only this module reads it, behind a trait, so that tests can shift it. Durations are measured with
//! `std::time::Instant` where they are needed.

use rustix::time::{DynamicClockId, clock_gettime_dynamic};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weir_core::model::time::{MonoMs, UnixMs};

/// A wall clock.
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since the Unix epoch; may jump in either direction.
    fn now(&self) -> UnixMs;
}

/// Milliseconds since the machine started. On Linux the time in which it was suspended counts too; `Instant` leaves that out.
pub fn since_boot() -> MonoMs {
    #[cfg(target_os = "linux")]
    let id = DynamicClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    let id = DynamicClockId::Known(rustix::time::ClockId::Monotonic);
    // What guards fails closed: an unknown time is late.
    let time = clock_gettime_dynamic(id).ok().and_then(|time| Duration::try_from(time).ok());
    MonoMs(time.and_then(|time| u64::try_from(time.as_millis()).ok()).unwrap_or(u64::MAX))
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
