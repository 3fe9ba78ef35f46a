//! The memory into which Envoy writes, and a marker that shows which callbacks the build left in this module.

use std::cell::{Cell, RefCell};

/// A buffer that grew beyond this is freed after use.
const KEEP_BYTES: usize = 256 * 1024;

/// Where the host writes its next bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Arena {
    /// Headers of the current request while it is decided, or of its response while its cost is settled.
    Headers,
    /// Anything else, kept until the next host call that returns bytes.
    Other,
}

thread_local! {
    static TARGET: Cell<Arena> = const { Cell::new(Arena::Other) };
    static HEADERS: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static OTHER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Runs a host call that returns bytes into `arena`, and passes them to `read`.
///
/// `call` gets the places for their address and length, as the ABI defines them, and returns the status.
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
    // made while `read` runs: nothing that reads `Headers` fetches them, and `Other` is copied or parsed at once.
    let bytes = unsafe { std::slice::from_raw_parts(data, length) };
    read(status, bytes)
}

/// Allocates memory for bytes that the host returns.
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

/// Whether this module exports `on_response_headers`; the build that removes the export changes this marker.
static RESPONSES: [u8; 28] = *b"weir:on_response_headers=yes";

/// Whether Envoy calls this module with response headers.
pub fn has_response_callback() -> bool {
    // SAFETY: a static; read as volatile, since the build changes it after compilation.
    let marker = unsafe { std::ptr::read_volatile(&raw const RESPONSES) };
    marker.ends_with(b"yes")
}
