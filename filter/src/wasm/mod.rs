//! The entry of the WASM filter: Envoy calls `exports`, and `dispatch` passes the call to the VM's plugins.

mod dispatch;
mod exports;
