//! The edge of the native filter, a dynamic module of Envoy: its ABI, the calls, a request's headers, shared data, the stream, and metrics.
//!
//! Its parts have the names of those of the WASM edge, and the plugin uses them in the same way. Workers, Envoy's main thread and a thread of
//! the module run plugins, so each call finds its request, its root and its message in the thread.

pub(crate) mod abi;
pub(crate) mod calls;
pub(crate) mod metrics;
pub(crate) mod request;
pub(crate) mod roots;
pub(crate) mod shared;
pub(crate) mod stream;
