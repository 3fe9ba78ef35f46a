//! Weir's filter: what runs inside Envoy.
//!
//! The path of a request, from the top down:
//!
//! 1. `exports`: Envoy calls an exported function.
//! 2. `dispatch`: finds the plugin that the call belongs to, and carries out what the plugin decides.
//! 3. `plugin`: a configured filter. `plugin::request` matches the rules and calls the limiter; `plugin::verdict` turns the
//!    outcome into a response or lets the request continue; the others hold the configuration, the tick and the stream.
//! 4. [`responses`], [`bans`], [`counters`], `settle`: the response of a denial, bans by rules, counts of decisions, costs that
//!    a response states.
//! 5. [`host`]: calls to Envoy, the headers it passes, its shared data, the gRPC stream.
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

pub mod bans;
pub mod counters;
pub mod host;
pub mod responses;

#[cfg(target_arch = "wasm32")]
mod dispatch;
#[cfg(target_arch = "wasm32")]
mod exports;
#[cfg(target_arch = "wasm32")]
mod faults;
#[cfg(target_arch = "wasm32")]
mod plugin;
#[cfg(target_arch = "wasm32")]
mod settle;
