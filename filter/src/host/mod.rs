//! What Envoy provides: host calls, the memory through which it passes data, a request's headers, shared data, the stream to the
//! aggregator, and the log.

#[cfg(target_arch = "wasm32")]
pub(crate) mod arena;
#[cfg(target_arch = "wasm32")]
pub(crate) mod calls;
pub mod headers;
pub mod log_throttle;
#[cfg(target_arch = "wasm32")]
pub(crate) mod roots;
#[cfg(target_arch = "wasm32")]
pub(crate) mod shared;
#[cfg(target_arch = "wasm32")]
pub(crate) mod stream;
