//! The functions that Envoy calls, and the memory that it fills.
//!
//! Each exported callback costs every request a crossing, so only these are exported: the build renames `weir_…` to
//! `proxy_…` and drops the SDK's own. The SDK's dispatcher would keep a map of contexts, and needs `on_delete` to
//! clean it; a request here leaves nothing behind that would have to be cleaned.
//!
//! Leaves to others: everything that is decided (`vm`).

use crate::vm;
use std::cell::{Cell, RefCell};

/// A buffer that once had to be larger than this is given back.
const KEEP_BYTES: usize = 256 * 1024;

/// Where the host's next bytes go: headers of the request at hand, or anything else.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Arena {
    /// Lives as long as the request is decided.
    Headers,
    /// Until the next host call that returns bytes.
    Other,
}

thread_local! {
    static TARGET: Cell<Arena> = const { Cell::new(Arena::Other) };
    static HEADERS: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static OTHER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Runs a host call that returns bytes, with `arena` as the place for them; `read` sees the bytes.
///
/// `call` gets where to put their address and length, as the ABI has it, and returns the status.
pub fn fetch<R>(
    arena: Arena,
    call: impl FnOnce(*mut *const u8, *mut usize) -> u32,
    read: impl FnOnce(u32, &[u8]) -> R,
) -> R {
    TARGET.set(arena);
    let mut data: *const u8 = std::ptr::null();
    let mut length: usize = 0;
    let status = call(&raw mut data, &raw mut length);
    TARGET.set(Arena::Other);
    if status != 0 || data.is_null() || length == 0 {
        return read(status, &[]);
    }
    // SAFETY: the host wrote `length` bytes to an address that it got from `weir_on_memory_allocate`, which lies in
    // one of the arenas. Those are only touched by the next call of this function for the same arena, and none is
    // made while `read` runs: `Headers` is fetched once a request, `Other` is copied or parsed at once.
    let bytes = unsafe { std::slice::from_raw_parts(data, length) };
    read(status, bytes)
}

/// The host asks for memory to return bytes in.
#[unsafe(no_mangle)]
pub extern "C" fn weir_on_memory_allocate(size: usize) -> *mut u8 {
    let arena = if TARGET.get() == Arena::Headers { &HEADERS } else { &OTHER };
    arena.with(|arena| match arena.try_borrow_mut() {
        Ok(mut buffer) => {
            buffer.clear();
            if buffer.capacity() > KEEP_BYTES && size <= KEEP_BYTES {
                buffer.shrink_to(KEEP_BYTES);
            }
            buffer.reserve(size.max(1));
            buffer.as_mut_ptr()
        }
        Err(_) => std::ptr::null_mut(),
    })
}

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
    vm::on_context_create(context, root);
}

/// The VM starts.
#[unsafe(no_mangle)]
pub extern "C" fn weir_on_vm_start(_root: u32, _size: usize) -> u32 {
    1
}

/// A plugin's configuration is there. 0 refuses it.
#[unsafe(no_mangle)]
pub extern "C" fn weir_on_configure(root: u32, _size: usize) -> u32 {
    u32::from(vm::on_configure(root))
}

/// The timer of a root.
#[unsafe(no_mangle)]
pub extern "C" fn weir_on_tick(root: u32) {
    vm::on_tick(root);
}

/// A request's headers are there. 0 lets it go on, 1 pauses it.
#[unsafe(no_mangle)]
pub extern "C" fn weir_on_request_headers(context: u32, _count: usize, _end: u32) -> u32 {
    vm::on_request_headers(context)
}

/// Whether this module exports `on_response_headers`: the build that leaves it out says so here.
static RESPONSES: [u8; 28] = *b"weir:on_response_headers=yes";

/// Whether Envoy will tell of responses.
pub fn hears_responses() -> bool {
    // SAFETY: a live static; volatile, as the build changes it behind the compiler's back.
    let marker = unsafe { std::ptr::read_volatile(&raw const RESPONSES) };
    marker.ends_with(b"yes")
}

/// A response's headers are there.
#[unsafe(no_mangle)]
pub extern "C" fn weir_on_response_headers(context: u32, _count: usize, _end: u32) -> u32 {
    vm::on_response_headers(context);
    0
}

/// A message of the aggregator.
#[unsafe(no_mangle)]
pub extern "C" fn weir_on_grpc_receive(root: u32, token: u32, size: usize) {
    vm::on_grpc_receive(root, token, size);
}

/// A stream ended.
#[unsafe(no_mangle)]
pub extern "C" fn weir_on_grpc_close(root: u32, token: u32, status: u32) {
    vm::on_grpc_close(root, token, status);
}

/// A request or a root is over. 1: nothing holds it back.
#[unsafe(no_mangle)]
pub extern "C" fn weir_on_done(context: u32) -> u32 {
    vm::on_done(context);
    1
}
