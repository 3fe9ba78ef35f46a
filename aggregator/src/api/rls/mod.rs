//! Envoy's rate-limit service, for any Envoy without the filter and any other client of
//! `envoy.service.ratelimit.v3.RateLimitService`.
//!
//! In reading order: `wire` (the messages), `metadata` (structs in them), `config` (the reference service's YAML), `matching`
//! (a descriptor → its limit), `naming` (a limit → the key that it counts on), `call` (a call → its limits), `decide` (limits →
//! the embedded limiter's checks → the response), `waits` (when to try again), `service` (the transport), `settings`, and the two sources of the
//! configuration: `files` (read again when they change) and `xds` (a server).
//!
//! Two things differ from the reference service: windows slide, and the limits of one call are all charged or none is, unless
//! their descriptors state their own hits.

pub mod call;
pub mod config;
pub mod decide;
mod dynamic_metadata;
pub mod files;
pub mod matching;
pub mod metadata;
pub mod naming;
pub mod service;
pub mod settings;
mod waits;
pub mod wire;
pub mod xds;

pub use files::{Current, Files, FilesError};
pub use service::RateLimitService;
pub use settings::{Answering, Settings};
pub use xds::{Xds, XdsOptions};
