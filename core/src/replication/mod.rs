//! An aggregator, but for its edges: all that decides what it knows, when it says it to whom, and what it believes.
//!
//! In reading order:
//!
//! 1. [`desk`]: the region, the [`streams`] of each Envoy, and what the parts know together; [`bells`] between them.
//! 2. [`push`]: what subscribers are sent.
//! 3. [`regional`]: the region's store and its other aggregators; [`grace`]: what is made up for after a loss.
//! 4. [`globe`]: the database that regions share.
//! 5. [`guard`]: whether a store is queried at all; [`failure`]: why a call failed.
//!
//! Each part is a machine: asked what is [`Next`], it says what to call, or how long to wait; what came of a call is handed
//! back to it. Whoever drives it makes the calls, each with its own deadline, and asks again. It never waits itself, so
//! that tokio's tasks and a simulator's events drive the same code.
//!
//! Leaves to others: streams, stores, clocks, chance, logs (`aggregator`); counting (`region`).

pub mod bells;
pub mod desk;
pub mod failure;
pub mod figures;
pub mod globe;
pub mod grace;
pub mod guard;
pub mod push;
pub mod regional;
pub mod streams;
#[cfg(test)]
mod testing;

pub use bells::{Bell, Bells};
pub use desk::{Access, Alone, Desk};
pub use failure::Failure;
pub use figures::Figures;
pub use streams::StreamId;

use crate::model::time::Now;

/// What a machine's driver does before it asks again.
#[derive(Clone, Debug, PartialEq)]
pub enum Next<C> {
    /// Make this call, and hand back what came of it.
    Call(C),
    /// Wait for so many milliseconds.
    Sleep(u64),
    /// Wait until one of these bells rings, and where the machine has a `rang`, tell it; or until the time is over.
    Wait {
        /// Any of these.
        bells: Bells,
        /// In milliseconds; without it, for as long as it takes.
        at_most_ms: Option<u64>,
    },
    /// Let others have their turn.
    Yield,
    /// Nothing: the machine has done what it was for.
    Over,
}

/// Notes how a call of the region's store went.
fn note<T>(desk: &mut Desk, result: Result<T, Failure>, now: Now) {
    if let Some(guard) = desk.store() {
        guard.note(result.err(), now.mono);
    }
}

/// The same of a call of several parts.
fn note_parts<T>(desk: &mut Desk, results: &[Result<T, Failure>], now: Now) {
    if let Some(guard) = desk.store() {
        guard.note_parts(results, now.mono);
    }
}
