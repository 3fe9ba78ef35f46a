//! The edge of the WASM filter: the ABI's calls, the memory through which Envoy passes data, headers as the ABI serialises them, shared data,
//! the gRPC stream, and which root a request belongs to.

#[cfg(target_arch = "wasm32")]
pub(crate) mod arena;
#[cfg(target_arch = "wasm32")]
pub(crate) mod calls;
pub mod request;
#[cfg(target_arch = "wasm32")]
pub(crate) mod roots;
#[cfg(target_arch = "wasm32")]
pub(crate) mod shared;
#[cfg(target_arch = "wasm32")]
pub(crate) mod stream;
