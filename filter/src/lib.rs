//! Weir's filter: what runs inside Envoy.
//!
//! The way of a request, in reading order:
//!
//! 1. `exports`: Envoy calls an exported function.
//! 2. `dispatch`: which plugin's request it is, and that no call meets another half done.
//! 3. [`headers`]: the request's headers, read in one host call, as the rules see them.
//! 4. `plugin`: rules, then the limiter decides (`plugin::request`), and what follows (`plugin::verdict`); the stream to the
//!    aggregator; the tick; [`bans`] by rules.
//! 5. [`answer`]: a denial as a response, in the formats that clients know; `settle`: what a response says of its request's cost.
//! 6. `host`: everything that Envoy is asked for.
//!
//! What is decided stands in `weir-core`; this crate is its edge. It never panics: a panic would strand every paused
//! request of the worker.
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

pub mod answer;
pub mod bans;
pub mod counter_reporter;
pub mod counters;
pub mod headers;
pub mod log_throttle;

#[cfg(target_arch = "wasm32")]
mod arena;
#[cfg(target_arch = "wasm32")]
mod dispatch;
#[cfg(target_arch = "wasm32")]
mod exports;
#[cfg(target_arch = "wasm32")]
mod faults;
#[cfg(target_arch = "wasm32")]
mod host;
#[cfg(target_arch = "wasm32")]
mod metrics;
#[cfg(target_arch = "wasm32")]
mod plugin;
#[cfg(target_arch = "wasm32")]
mod settle;
#[cfg(target_arch = "wasm32")]
mod shared;
#[cfg(target_arch = "wasm32")]
mod stream;
