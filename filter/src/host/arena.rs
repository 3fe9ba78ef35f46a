//! The memory that Envoy fills, and what the build says of this module.

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

/// Whether this module exports `on_response_headers`: the build that leaves it out says so here.
static RESPONSES: [u8; 28] = *b"weir:on_response_headers=yes";

/// Whether Envoy will tell of responses.
pub fn has_response_callback() -> bool {
    // SAFETY: a live static; volatile, as the build changes it behind the compiler's back.
    let marker = unsafe { std::ptr::read_volatile(&raw const RESPONSES) };
    marker.ends_with(b"yes")
}
