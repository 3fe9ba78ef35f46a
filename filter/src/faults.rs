//! Faults that tests cause in a worker by a request header, if the configuration has `test_faults`. Not for production.
//!
//! The header `x-weir-fault` is `panic` (the VM fails at once) or `clock:<ms>` (from now on the worker's wall clock is wrong by that
//! many milliseconds; negative: it is slow).

use weir_core::model::time::UnixMs;
use weir_core::rules::{Lines, Request};

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The VM fails.
    Panic,
    /// The wall clock is wrong by this many milliseconds.
    Clock(i64),
}

/// The fault that the header of `request` names.
pub fn requested(request: &impl Request) -> Option<Fault> {
    let Lines::One(fault) = request.header(b"x-weir-fault") else { return None };
    if fault == b"panic" {
        return Some(Fault::Panic);
    }
    let shift = std::str::from_utf8(fault.strip_prefix(b"clock:")?).ok()?;
    shift.parse().ok().map(Fault::Clock)
}

/// Fails as a defect would.
pub fn die() -> ! {
    // In a VM of WASM it ends the VM, and nothing else.
    #[cfg(target_arch = "wasm32")]
    std::process::abort();
    #[cfg(not(target_arch = "wasm32"))]
    std::panic::resume_unwind(Box::new("a fault that a test has asked for"))
}

/// `unix`, moved by `shift_ms`.
pub fn shifted(unix: UnixMs, shift_ms: i64) -> UnixMs {
    UnixMs(unix.0.saturating_add_signed(shift_ms))
}
