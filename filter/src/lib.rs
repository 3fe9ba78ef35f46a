//! Weir's filter: what runs inside Envoy.
//!
//! The path of a request, from the top down:
//!
//! 1. `wasm`, or `native` in a dynamic module: Envoy calls an exported function, which passes the call to the plugins of its VM or worker.
//! 2. `vm`: finds the plugin that the call belongs to; `perform`: carries out what a plugin decides.
//! 3. `plugin`: a configured filter. `plugin::request` matches the rules and calls the limiter; `plugin::verdict` turns the
//!    outcome into a response or lets the request continue.
//! 4. `worker`: what all plugins of a VM share: the limiter, live control and the stream to the aggregator.
//! 5. [`responses`], [`counters`], `settle`: the response of a denial, counts of decisions, costs that
//!    a response states.
//! 6. [`host`]: calls to Envoy, the headers it passes, its shared data, the gRPC stream.
//!
//! Decisions are made in `weir-core`. This crate never panics: after a panic Envoy would never resume the paused requests of the worker.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::unreachable,
    clippy::arithmetic_side_effects
)]
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]
#![warn(missing_docs)]

pub mod counters;
pub mod host;
pub mod responses;

#[cfg(any(target_arch = "wasm32", feature = "native", test))]
mod faults;
#[cfg(all(any(feature = "native", test), not(target_arch = "wasm32")))]
mod native;
#[cfg(any(target_arch = "wasm32", feature = "native", test))]
mod perform;
#[cfg(any(target_arch = "wasm32", feature = "native", test))]
mod plugin;
#[cfg(any(target_arch = "wasm32", feature = "native", test))]
mod settle;
#[cfg(any(target_arch = "wasm32", feature = "native", test))]
mod vm;
#[cfg(target_arch = "wasm32")]
mod wasm;
#[cfg(any(target_arch = "wasm32", feature = "native", test))]
mod worker;
