//! What Envoy provides: host calls, a request's headers, shared data, the stream to the aggregator, and the log.
//!
//! `wasm` is the edge of the WASM filter, `native` that of the native one. The rooms above use their parts by the names here.

pub mod headers;
pub mod kinds;
pub mod log_throttle;
pub mod wasm;

#[cfg(all(any(feature = "native", test), not(target_arch = "wasm32")))]
mod native;
#[cfg(any(target_arch = "wasm32", feature = "native", test))]
pub(crate) mod properties;

#[cfg(all(any(feature = "native", test), not(target_arch = "wasm32")))]
pub(crate) use native::{abi, calls, metrics, request, roots, shared, stream};
#[cfg(target_arch = "wasm32")]
pub(crate) use wasm::{calls, request, roots, shared, stream};
