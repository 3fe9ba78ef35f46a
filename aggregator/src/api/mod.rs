//! APIs for callers without the filter: HTTP for applications, and Envoy's rate-limit service and rate-limit quota service by gRPC.
//!
//! - [`http`], [`rls`], [`rlqs`]: the APIs. [`embedded`]: the embedded limiter, with which all of them count.
//! - `envoy`: the messages of Envoy's services.
//! - `authentication`: certificates and tokens. [`permission`]: what a token allows. [`settings`]: options.

pub mod authentication;
pub mod embedded;
mod envoy;
pub mod http;
pub mod permission;
pub mod rlqs;
pub mod rls;
pub mod settings;

pub use embedded::{
    Answer, Booking, EmbeddedLimiter, Failure, LimitCheck, LimitCheckError, MAX_LIMIT_CHECKS,
    MAX_RESERVATIONS, MAX_RESERVED_CHECKS, ReservationName, ReserveError, Reserved, SettleError,
};
pub use settings::{ApiSettings, Insecure};
