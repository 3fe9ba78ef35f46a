//! The time of a worker: Unix time by the region's clock, if that was measured lately, otherwise by the machine's.

use super::remote::registry;
use crate::model::time::{MonoMs, Now, UnixMs};

/// A step of the clock by more than this invalidates cached denials and leases.
const STEP_MS: u64 = 1_000;
/// A measurement of the region's clock is used for this long.
const MEMORY_MS: u64 = 60_000;

/// Unix time minus monotonic time.
#[derive(Debug)]
pub(in crate::limiter) struct Clock {
    /// By the machine's own clock.
    machine_offset_ms: u64,
    /// By the clock that was used at the last tick.
    used_offset_ms: u64,
}

impl Clock {
    pub(in crate::limiter) fn new(now: Now) -> Clock {
        let offset_ms = offset_ms(now);
        Clock { machine_offset_ms: offset_ms, used_offset_ms: offset_ms }
    }

    /// Notes the machine's clock.
    pub(in crate::limiter) fn set_machine(&mut self, now: Now) {
        self.machine_offset_ms = offset_ms(now);
    }

    /// Both clocks at `mono`, given the registry's measurement of the region's clock.
    pub(in crate::limiter) fn moment(&self, measured: registry::Clock, mono: MonoMs) -> Now {
        let is_measured = measured.measured != MonoMs(0) && mono.since(measured.measured) < MEMORY_MS;
        let offset = if is_measured { measured.offset_ms } else { self.machine_offset_ms };
        Now { unix: UnixMs(mono.0.saturating_add(offset)), mono }
    }

    /// Notes the clock that is used now, and returns whether it has stepped since the last tick.
    pub(in crate::limiter) fn steps_to(&mut self, now: Now) -> bool {
        let offset_ms = offset_ms(now);
        let before = core::mem::replace(&mut self.used_offset_ms, offset_ms);
        offset_ms.abs_diff(before) > STEP_MS
    }
}

fn offset_ms(now: Now) -> u64 {
    now.unix.0.saturating_sub(now.mono.0)
}
