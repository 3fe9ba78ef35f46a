//! The regional aggregator: merges what the Envoys of a region report and tells each what the others used.
//!
//! The parts, from the top down; each uses those below it alone:
//!
//! 1. [`cli`]: the commands.
//! 2. [`server`]: the listeners, from the first bind to a graceful end.
//! 3. [`api`]: HTTP for applications, the rate-limit service for any Envoy, and the limiter within this program that both use.
//! 4. [`admin`]: health, metrics, keys, the status page.
//! 5. [`region`]: the region at work: streams of filters, pushes, Redis, the database, live control.
//! 6. [`auth`]: tokens and client certificates, and what their holders may do.
//! 7. [`net`]: connections, certificates, files that change.
//! 8. [`redis`], [`database`]: the stores themselves.
//! 9. [`telemetry`]: metrics, spans, logs.
//!
//! What it leaves to others: all that is decided is `weir_core::replication`, every rule of counting `weir_core::region`,
//! every frame `weir_core::model::wire`. Nothing but [`telemetry::clock`] reads the wall clock.
#![forbid(unsafe_code)]

pub mod admin;
pub mod api;
pub mod auth;
pub mod cli;
pub mod database;
pub mod net;
pub mod redis;
pub mod region;
pub mod server;
pub mod telemetry;
