//! The wall clock and the monotonic clock of a machine, in virtual time.

use crate::plan::START_UNIX_MS;
use crate::random::Random;
use weir_core::model::time::{MonoMs, Now, UnixMs};

/// Monotonic clocks start at values up to this far apart, in microseconds.
const APART_US: u64 = 3_600_000_000;

/// The clocks of one machine.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Monotonic time at the world's beginning, in microseconds.
    mono_us: u64,
    /// Unix time at the world's beginning, in microseconds.
    unix_us: u64,
    /// How far the wall clock is ahead, in milliseconds.
    pub skew_ms: i64,
}

impl Clock {
    /// A correct clock in a world whose traffic begins after `settle_ms`.
    pub fn new(settle_ms: u64, chance: &mut Random) -> Clock {
        let unix_us = START_UNIX_MS.saturating_sub(settle_ms) * 1_000;
        Clock { mono_us: 1_000_000 + chance.below(APART_US), unix_us, skew_ms: 0 }
    }

    /// Monotonic time.
    pub fn mono(&self, now_us: u64) -> MonoMs {
        MonoMs((self.mono_us + now_us) / 1_000)
    }

    /// The time of the wall clock.
    pub fn unix(&self, now_us: u64) -> UnixMs {
        UnixMs(((self.unix_us + now_us) / 1_000).saturating_add_signed(self.skew_ms))
    }

    /// Both clocks.
    pub fn now(&self, now_us: u64) -> Now {
        Now { unix: self.unix(now_us), mono: self.mono(now_us) }
    }
}
