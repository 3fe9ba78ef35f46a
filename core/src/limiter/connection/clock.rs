//! The time of a worker: Unix time by the region's clock, as the subscriber measured it last.
//!
//! Without a newer measurement it continues with the monotonic clock, and approaches the machine's so slowly that no
//! limit notices. Before the first measurement it begins with the machine's clock, as the process' first worker read it. So a
//! step of the machine's clock moves no cell.

use super::registry;
use crate::model::time::{MonoMs, Now, SLOW_PARTS, UnixMs, toward};

/// A step of the clock by more than this invalidates cached denials and leases.
const STEP_MS: u64 = 1_000;

/// Unix time minus monotonic time.
#[derive(Debug)]
pub(super) struct Clock {
    /// By the machine's own clock, in milliseconds.
    machine_offset_ms: u64,
    /// The last measurement of the region's clock.
    measured: registry::Clock,
    /// That measurement, moved towards the machine's clock since, in microseconds.
    offset_us: u64,
    /// When it was moved last.
    moved: MonoMs,
    /// By the clock that was used at the last tick.
    used_offset_ms: u64,
}

impl Clock {
    pub(super) fn new(now: Now) -> Clock {
        let offset_ms = offset_ms(now);
        Clock {
            machine_offset_ms: offset_ms,
            measured: registry::Clock::default(),
            offset_us: 0,
            moved: now.mono,
            used_offset_ms: offset_ms,
        }
    }

    /// Notes the machine's clock, and the registry's measurement of the region's.
    pub(super) fn tick(&mut self, measured: registry::Clock, now: Now) {
        self.machine_offset_ms = offset_ms(now);
        let elapsed_ms = now.mono.since(self.moved);
        self.moved = self.moved.max(now.mono);
        if measured != self.measured {
            self.measured = measured;
            self.offset_us = measured.offset_ms.saturating_mul(1_000);
            // A worker may begin long after the last measurement, and then is where the others are.
            self.approach(now.mono.since(measured.measured));
        } else {
            self.approach(elapsed_ms);
        }
    }

    /// Unix time minus monotonic time by the machine's own clock, in milliseconds.
    pub(super) fn machine_offset_ms(&self) -> u64 {
        self.machine_offset_ms
    }

    fn approach(&mut self, elapsed_ms: u64) {
        let most_us = elapsed_ms.saturating_mul(1_000) / SLOW_PARTS;
        self.offset_us = toward(self.offset_us, self.machine_offset_ms.saturating_mul(1_000), most_us);
    }

    /// Both clocks at `mono`, given the registry's measurement of the region's clock.
    pub(super) fn moment(&self, measured: registry::Clock, mono: MonoMs) -> Now {
        let offset = match measured.measured {
            MonoMs(0) => self.machine_offset_ms,
            // Rounded: a part of a millisecond towards a clock that is behind is not yet one.
            _ if measured == self.measured => self.offset_us.saturating_add(500) / 1_000,
            _ => measured.offset_ms,
        };
        Now { unix: UnixMs(mono.0.saturating_add(offset)), mono }
    }

    /// Notes the clock that is used now, and returns whether it has stepped since the last tick.
    pub(super) fn steps_to(&mut self, now: Now) -> bool {
        let offset_ms = offset_ms(now);
        let before = core::mem::replace(&mut self.used_offset_ms, offset_ms);
        offset_ms.abs_diff(before) > STEP_MS
    }
}

fn offset_ms(now: Now) -> u64 {
    now.unix.0.saturating_sub(now.mono.0)
}
