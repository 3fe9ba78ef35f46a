//! An aggregator, but for its edges: all that decides what it knows, when it says it to whom, and what it believes.
//!
//! In reading order:
//!
//! 1. [`state`]: the region, the [`streams`] of each Envoy, and what the parts know together; [`events`] between them.
//! 2. [`push`]: what subscribers are sent.
//! 3. [`regional`]: the region's store and its other aggregators; [`grace`]: what is made up for after a loss.
//! 4. [`globe`]: the database that regions share.
//! 5. [`breaker`]: whether a store is queried at all; [`failure`]: why a call failed.
//!
//! Each part is a machine: asked what is [`Next`], it says what to call, or how long to wait; what came of a call is handed
//! back to it. Whoever drives it makes the calls, each with its own deadline, and asks again. It never waits itself, so
//! that tokio's tasks and a simulator's events drive the same code.
//!
//! Leaves to others: streams, stores, clocks, chance, logs (`aggregator`); counting (`region`).

pub mod circuit_breaker;
pub mod events;
pub mod failure;
pub mod figures;
pub mod globe;
pub mod grace_period;
pub mod push;
pub mod regional;
pub mod state;
pub mod streams;
#[cfg(test)]
mod testing;

pub use events::{Event, Events};
pub use failure::Failure;
pub use figures::Figures;
pub use state::{Access, Alone, RegionState};
pub use streams::StreamId;

use crate::model::time::Now;

/// What a machine's driver does before it asks again.
#[derive(Clone, Debug, PartialEq)]
pub enum Next<C> {
    /// Make this call, and hand back what came of it.
    Call(C),
    /// Wait for so many milliseconds.
    Sleep(u64),
    /// Wait until one of these events notifications, and where the machine has a `notified`, tell it; or until the time is over.
    Wait {
        /// Any of these.
        events: Events,
        /// In milliseconds; without it, for as long as it takes.
        at_most_ms: Option<u64>,
    },
    /// Let others have their turn.
    Yield,
    /// Nothing: the machine has done what it was for.
    Over,
}

/// Notes how a call of the region's store went.
fn note<T>(state: &mut RegionState, result: Result<T, Failure>, now: Now) {
    if let Some(breaker) = state.store() {
        breaker.note(result.err(), now.mono);
    }
}

/// The same of a call of several parts.
fn note_parts<T>(state: &mut RegionState, results: &[Result<T, Failure>], now: Now) {
    if let Some(breaker) = state.store() {
        breaker.note_parts(results, now.mono);
    }
}
