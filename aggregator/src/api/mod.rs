//! APIs for callers without the filter: HTTP for applications, and the rate-limit service's gRPC for any Envoy.
//!
//! - [`http`], [`rls`]: the two APIs. [`embedded`]: the embedded limiter, with which both decide.
//! - `authentication`: certificates and tokens. [`ruled`]: which namespaces a token may count in. [`settings`]: options.

pub mod authentication;
pub mod embedded;
pub mod http;
pub mod rls;
pub mod ruled;
pub mod settings;

pub use embedded::{Answer, EmbeddedLimiter, Failure, LimitCheck, LimitCheckError, MAX_LIMIT_CHECKS};
pub use settings::{ApiSettings, Insecure};
