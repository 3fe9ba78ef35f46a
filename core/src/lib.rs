//! Weir's core: decisions and convergence of counts, without I/O.
//!
//! The parts, from the ground up; each uses only those listed before it:
//!
//! 1. [`model`]: identities of checks, clocks as values, the arithmetic of sliding windows, the frames.
//! 2. [`matching`]: patterns over identifiers, IP networks, canonical identifiers.
//! 3. [`fields`]: untrusted text as values, read field by field, with every error and its path.
//! 4. [`limiter`]: one worker's decision over the table that its process shares: allow, deny or query; reports, leases.
//! 5. [`control`]: what operators change while everything runs: overrides, bans, resets, credits, shadow switches.
//! 6. [`rules`]: configuration and request → the checks that apply, each with a canonical identifier.
//! 7. [`bans`]: bans by rules, from a denial to a live control of all regions.
//! 8. [`region`]: an aggregator's counts: components of all nodes, grants, pushes, a sliding log of exact uses.
//! 9. [`replication`]: when an aggregator writes to and reads from Redis, its peers and the database.
//! 10. [`quota`]: how a limit is divided among proxies that decide alone and report afterwards; uses only the model.
//!
//! ```
//! use weir_core::limiter::table::{Geometry, Meta};
//! use weir_core::limiter::{Check, Decision, Limiter, Policy, Setup};
//! use weir_core::model::exact::Algorithm;
//! use weir_core::model::key::{HashKey, Key, KeyParts, NodeId};
//! use weir_core::model::shared::MemoryShared;
//! use weir_core::model::time::{MonoMs, Now, UnixMs};
//!
//! // In Envoy: the shared data of all workers. The process' first worker establishes the table.
//! let mut shared = MemoryShared::default();
//! let geometry = Geometry::of_keys(1_000);
//! let meta = Meta { node: NodeId([1; 16]), secret: HashKey(1, 2), geometry };
//! let meta = Meta::establish(&mut shared, meta);
//! let now = Now { unix: UnixMs(1_700_000_000_000), mono: MonoMs(1_000) };
//! let mut limiter = Limiter::new(Setup { meta, worker: 7, local_sets: 64 }, now);
//! // There is no aggregator, so the process decides by its own counts.
//! limiter.on_closed(&mut shared, now.mono);
//!
//! // Alice may send two requests a minute.
//! let key = Key::new(&KeyParts {
//!     workspace: b"default",
//!     namespace: b"api",
//!     identifier: b"alice",
//!     duration_ms: 60_000,
//!     epoch: 0,
//!     resolution: 1,
//! })
//! .unwrap();
//! let check = Check {
//!     rule: 0,
//!     algorithm: Algorithm::Window,
//!     key: key.as_bytes(),
//!     cell_ms: 60_000,
//!     limit: 2,
//!     configured: None,
//!     cost: 1,
//!     policy: Policy::default(),
//! };
//! let mut is_allowed = |request| {
//!     let outcome = limiter.decide(&mut shared, request, &[check], now.mono);
//!     matches!(outcome.decision, Decision::Allow(_))
//! };
//! assert_eq!([is_allowed(1), is_allowed(2), is_allowed(3)], [true, true, false]);
//! ```
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

pub mod bans;
pub mod control;
pub mod fields;
pub mod limiter;
pub mod matching;
pub mod model;
pub mod quota;
pub mod region;
pub mod replication;
pub mod rules;
pub mod usage;
