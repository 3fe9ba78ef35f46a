//! The functions that Envoy calls.
//!
//! Each exported callback costs every request a call into the VM, so only these are exported: the build renames `weir_…` to
//! `proxy_…` and drops the SDK's own. The SDK's dispatcher would keep a map of contexts, and needs `on_context_create` and
//! `on_delete` for it. Of a request, the default module receives the headers alone: the build also drops `on_response_headers`, `on_log`
//! and `on_done` from it, as only deferred costs and headers of allowed responses need these.
//!
//! The memory into which Envoy writes is in `host::wasm::arena`; `dispatch` does the work.

use super::dispatch;

unsafe extern "C" {
    /// The C library's constructors, named by the linker.
    fn __wasm_call_ctors();
}

/// Called once, before any other export. Without it the linker would run constructors around each callback.
#[unsafe(no_mangle)]
pub extern "C" fn _initialize() {
    // SAFETY: called once, by the host, before any other export.
    unsafe { __wasm_call_ctors() };
}

/// Declares the version of the ABI by its name.
#[unsafe(no_mangle)]
pub extern "C" fn weir_abi_version_0_2_1() {}

/// The VM starts.
#[unsafe(no_mangle)]
pub extern "C" fn weir_on_vm_start(_root: u32, _size: usize) -> u32 {
    1
}

/// Configures a plugin. Returns 0 to reject the configuration.
#[unsafe(no_mangle)]
pub extern "C" fn weir_on_configure(root: u32, _size: usize) -> u32 {
    u32::from(dispatch::on_configure(root))
}

/// Handles a root's timer.
#[unsafe(no_mangle)]
pub extern "C" fn weir_on_tick(root: u32) {
    dispatch::on_tick(root);
}

/// Handles a request's headers. Returns 0 to continue, 1 to pause.
#[unsafe(no_mangle)]
pub extern "C" fn weir_on_request_headers(context: u32, _count: usize, end: u32) -> u32 {
    dispatch::on_request_headers(context, end != 0)
}

/// Handles a response's headers.
#[unsafe(no_mangle)]
pub extern "C" fn weir_on_response_headers(context: u32, _count: usize, _end: u32) -> u32 {
    dispatch::on_response_headers(context);
    0
}

/// Handles a message of the aggregator.
#[unsafe(no_mangle)]
pub extern "C" fn weir_on_grpc_receive(root: u32, token: u32, _size: usize) {
    dispatch::on_grpc_receive(root, token);
}

/// Handles the end of a stream.
#[unsafe(no_mangle)]
pub extern "C" fn weir_on_grpc_close(root: u32, token: u32, status: u32) {
    dispatch::on_grpc_close(root, token, status);
}

/// Handles a request's access log, which Envoy writes before it ends the request.
#[unsafe(no_mangle)]
pub extern "C" fn weir_on_log(context: u32) {
    dispatch::on_log(context);
}

/// Ends a request or a root. Returns 1: its context can be deleted at once.
#[unsafe(no_mangle)]
pub extern "C" fn weir_on_done(context: u32) -> u32 {
    dispatch::on_done(context);
    1
}
