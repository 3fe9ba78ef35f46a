//! Weir's core: decisions and convergence of counts, without I/O.
//!
//! The parts, from the ground up; each uses only those listed before it:
//!
//! 1. [`model`]: identities of checks, clocks as values, the arithmetic of sliding windows, the frames.
//! 2. [`matching`]: patterns over identifiers, IP networks, canonical identifiers.
//! 3. [`limiter`]: one worker's decision over the table that its process shares: allow, deny or consult; reports, leases.
//! 4. [`control`]: what operators change while everything runs: overrides, bans, resets, credits, shadow switches.
//! 5. [`rules`]: configuration and request → the checks that apply, each with a canonical identifier.
//! 6. [`region`]: an aggregator's counts: components of all origins, grants, pushes, a sliding log of exact uses.
//! 7. [`replication`]: when an aggregator writes to and reads from Redis, its peers and the database.
//!
//! Nothing here reads a clock, draws a random number, performs I/O or uses a global. Time, seeds and messages are passed in as values,
//! effects are returned as values. The crates `filter` and `aggregator` do the rest.
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs)]
// This runs inside Envoy, where after a panic the paused requests of a worker are never resumed.
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

pub mod control;
pub mod limiter;
pub mod matching;
pub mod model;
pub mod region;
pub mod replication;
pub mod rules;
