//! Envoy's rate-limit service, for any Envoy without the filter and any other client of
//! `envoy.service.ratelimit.v3.RateLimitService`.
//!
//! In reading order: `wire` (the messages), `config` (the reference service's YAML), `matching` (a descriptor → its
//! limit), `naming` (a limit → the key that it counts on), `call` (a call → the embedded limiter's checks → its response),
//! `service` (the transport), `files` (the configuration, read again when it changes).
//!
//! Two things differ from the reference service: windows slide, and the limits of one call are all charged or none is.

pub mod call;
pub mod config;
pub mod files;
pub mod matching;
pub mod naming;
pub mod service;
pub mod wire;

pub use files::{Current, Files, FilesError};
pub use service::RateLimitService;
