//! The aggregator of a region: merges what the region's Envoys report, and pushes to each what the others used.
//!
//! The modules, from the top down; each uses only those below it:
//!
//! 1. [`cli`]: the commands.
//! 2. [`server`]: the listeners, from start to shutdown.
//! 3. [`api`]: HTTP for applications, the rate-limit service for any Envoy, and the embedded limiter that both use.
//! 4. [`admin`]: health, metrics, keys, the status page.
//! 5. [`region`]: streams of filters, pushes, Redis, the database, live control.
//! 6. [`auth`]: tokens and client certificates, and what their holders may do.
//! 7. [`net`]: connections, certificates, watched files.
//! 8. [`redis`], [`database`]: the stores.
//! 9. [`controls`]: live control as operators see it.
//! 10. [`telemetry`]: metrics, spans, logs.
//!
//! Decisions are made in `weir_core::replication`, counting in `weir_core::region`, and frames are defined in
//! `weir_core::model::wire`. Only [`telemetry::clock`] reads the wall clock.
#![forbid(unsafe_code)]
// Those panic if the reader has gone: `cli::outcome` prints.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod admin;
pub mod api;
pub mod auth;
pub mod cli;
pub mod controls;
pub mod database;
pub mod net;
pub mod redis;
pub mod region;
pub mod server;
pub mod telemetry;
