//! The functions that Envoy calls.
//!
//! Each exported callback costs every request a crossing, so only these are exported: the build renames `weir_…` to
//! `proxy_…` and drops the SDK's own. The SDK's dispatcher would keep a map of contexts, and needs `on_delete` to
//! clean it; a request here leaves nothing behind that would have to be cleaned.
//!
//! The memory that Envoy fills is in `arena`; everything is decided in `dispatch`.

use crate::dispatch;

unsafe extern "C" {
    /// The C library's constructors, named by the linker.
    fn __wasm_call_ctors();
}

/// Called once, before anything else. Without it the linker would run constructors around every single callback.
#[unsafe(no_mangle)]
pub extern "C" fn _initialize() {
    // SAFETY: called once, by the host, before any other export.
    unsafe { __wasm_call_ctors() };
}

/// Tells the ABI's version by its name.
#[unsafe(no_mangle)]
pub extern "C" fn weir_abi_version_0_2_1() {}

/// A root or a request begins.
#[unsafe(no_mangle)]
pub extern "C" fn weir_on_context_create(context: u32, root: u32) {
    dispatch::on_context_create(context, root);
}

/// The VM starts.
#[unsafe(no_mangle)]
pub extern "C" fn weir_on_vm_start(_root: u32, _size: usize) -> u32 {
    1
}

/// A plugin's configuration is there. 0 refuses it.
#[unsafe(no_mangle)]
pub extern "C" fn weir_on_configure(root: u32, _size: usize) -> u32 {
    u32::from(dispatch::on_configure(root))
}

/// The timer of a root.
#[unsafe(no_mangle)]
pub extern "C" fn weir_on_tick(root: u32) {
    dispatch::on_tick(root);
}

/// A request's headers are there. 0 lets it go on, 1 pauses it.
#[unsafe(no_mangle)]
pub extern "C" fn weir_on_request_headers(context: u32, _count: usize, _end: u32) -> u32 {
    dispatch::on_request_headers(context)
}

/// A response's headers are there.
#[unsafe(no_mangle)]
pub extern "C" fn weir_on_response_headers(context: u32, _count: usize, _end: u32) -> u32 {
    dispatch::on_response_headers(context);
    0
}

/// A message of the aggregator.
#[unsafe(no_mangle)]
pub extern "C" fn weir_on_grpc_receive(root: u32, token: u32, size: usize) {
    dispatch::on_grpc_receive(root, token, size);
}

/// A stream ended.
#[unsafe(no_mangle)]
pub extern "C" fn weir_on_grpc_close(root: u32, token: u32, status: u32) {
    dispatch::on_grpc_close(root, token, status);
}

/// A request or a root is over. 1: nothing holds it back.
#[unsafe(no_mangle)]
pub extern "C" fn weir_on_done(context: u32) -> u32 {
    dispatch::on_done(context);
    1
}
