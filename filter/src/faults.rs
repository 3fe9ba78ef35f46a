//! Switches by which tests break a worker from outside, where the configuration says `test_faults`: never in production.
//!
//! The request header `x-weir-fault` takes `panic` (the VM dies at once) or `clock:<ms>` (the worker's wall clock is
//! off by so much from now on, negative for the past).

use weir_core::model::time::UnixMs;
use weir_core::rules::{Lines, Request};

/// What a request asks to break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The VM dies.
    Panic,
    /// The wall clock is off by so many milliseconds.
    Clock(i64),
}

/// The fault that `request` asks for.
pub fn asked(request: &impl Request) -> Option<Fault> {
    let Lines::One(fault) = request.header(b"x-weir-fault") else { return None };
    if fault == b"panic" {
        return Some(Fault::Panic);
    }
    let shift = std::str::from_utf8(fault.strip_prefix(b"clock:")?).ok()?;
    shift.parse().ok().map(Fault::Clock)
}

/// Dies as a defect would.
pub fn die() -> ! {
    std::process::abort()
}

/// `unix`, off by `shift_ms`.
pub fn shifted(unix: UnixMs, shift_ms: i64) -> UnixMs {
    UnixMs(unix.0.saturating_add_signed(shift_ms))
}
