//! The logic of an aggregator without I/O: what it stores, what it sends to which part, and when.
//!
//! In reading order:
//!
//! 1. [`state`]: the region, the [`streams`] of each Envoy, its [`members`], and what the parts share; [`events`] between the parts.
//! 2. [`push`]: what subscribers are sent.
//! 3. [`regional`]: the region's store and its other aggregators; [`grace_period`]: what is restored after a loss.
//! 4. [`global`]: the database that regions share; [`limits`]: limits of live control.
//! 5. [`exact`]: exact requests, decided by logs and ledgers.
//! 6. [`circuit_breaker`]: whether a store is queried at all; [`failure`]: why a call failed.
//!
//! Each part is a state machine. Its `next` returns a [`Next`], which states what its driver does: make a call, wait, or
//! stop. The driver makes the call with a deadline, passes the result back, and calls `next` again. A machine never
//! blocks, so that tokio's tasks and a simulator's events drive the same code.

pub mod circuit_breaker;
pub mod events;
pub mod exact;
pub mod failure;
pub mod figures;
pub mod global;
pub mod grace_period;
pub mod limits;
pub mod members;
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

/// What a machine's driver does before it calls `next` again.
#[derive(Clone, Debug, PartialEq)]
pub enum Next<C> {
    /// Make this call, and pass its result back to the machine.
    Call(C),
    /// Wait for this many milliseconds.
    Sleep(u64),
    /// Wait until one of these events is notified, or until the time is over. If the machine has a `notified`, call it
    /// with the event.
    Wait {
        /// Any of these ends the wait.
        events: Events,
        /// In milliseconds; `None` means without a time limit.
        at_most_ms: Option<u64>,
    },
    /// Let other tasks run.
    Yield,
    /// The machine has finished.
    Over,
}

/// Records the result of a call to the region's store.
fn note<T>(state: &mut RegionState, result: Result<T, Failure>, now: Now) {
    if let Some(breaker) = state.store() {
        breaker.note(result.err(), now.mono);
    }
}

/// Records the results of a call that has several parts.
fn note_parts<T>(state: &mut RegionState, results: &[Result<T, Failure>], now: Now) {
    if let Some(breaker) = state.store() {
        breaker.note_parts(results, now.mono);
    }
}
