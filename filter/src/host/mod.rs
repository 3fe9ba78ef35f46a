//! What Envoy provides: host calls, a request's headers, shared data, the stream to the aggregator, and the log.
//!
//! `wasm` is the edge of the WASM filter. The rooms above use its parts by their names here.

pub mod headers;
pub mod kinds;
pub mod log_throttle;
pub mod wasm;

#[cfg(target_arch = "wasm32")]
pub(crate) use wasm::{calls, request, roots, shared, stream};
