//! Weir's filter: what runs inside Envoy.
//!
//! The path of a request, from the top down:
//!
//! 1. `wasm`: Envoy calls an exported function, which passes the call to the VM's plugins, and carries out what they decide.
//! 2. `vm`: finds the plugin that the call belongs to.
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

#[cfg(target_arch = "wasm32")]
mod faults;
#[cfg(target_arch = "wasm32")]
mod perform;
#[cfg(target_arch = "wasm32")]
mod plugin;
#[cfg(target_arch = "wasm32")]
mod settle;
#[cfg(target_arch = "wasm32")]
mod vm;
#[cfg(target_arch = "wasm32")]
mod wasm;
#[cfg(target_arch = "wasm32")]
mod worker;
