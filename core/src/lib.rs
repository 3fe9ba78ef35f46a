//! Weir's core: everything that decides and everything that converges, and nothing else.
//!
//! The way of a request, in reading order:
//!
//! 1. [`rules`]: configuration and request → the checks that apply, each with a canonical identifier.
//! 2. [`key`]: a check's identity → key bytes, cells and sequences.
//! 3. [`window`]: the arithmetic of a sliding window: used, effective, when could it pass.
//! 4. [`table`]: what one Envoy process knows of its keys, as bytes that all its workers share.
//! 5. [`limiter`]: one worker's decision over that table: allow, deny or consult; reports, leases, memory of denials.
//! 6. [`wire`]: the frames between a filter and an aggregator.
//! 7. [`region`]: an aggregator's view: components of all origins, grants, pushes, and what its stores are told.
//! 8. [`aggregator`]: what is around a region but for its edges: when which store is told and asked, and what is believed.
//! 9. [`exact`]: limits that are worth a round trip: what is asked about them and what is ruled;
//!    [`log`]: a sliding log of exactly what was used.
//! 10. [`control`]: what operators change while everything runs: overrides, bans, resets, credits, shadow switches.
//! 11. [`cadence`] and [`breaker`]: when stores are spoken to, and whether.
//! 12. [`trace`]: whence a request comes, for those who look at traces.
//!
//! Nothing here reads a clock, draws a random number, performs I/O or holds a global: time, seeds and messages
//! come in as values, effects go out as values. The shells (`filter`, `aggregator`) do the rest.
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs)]
// All of this runs inside Envoy, where a panic strands every paused request of a worker.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::unreachable
    )
)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod aggregator;
pub mod breaker;
pub mod cadence;
pub mod control;
pub mod exact;
pub mod key;
pub mod limiter;
pub mod log;
pub mod region;
pub mod rules;
pub mod table;
pub mod time;
pub mod trace;
pub mod window;
pub mod wire;
