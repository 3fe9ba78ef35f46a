//! The host calls of a decision without the decision: what the benchmark compares Weir's paths with.
//!
//! The plugin's configuration is the name of a floor, see [`Floor`]. Only the callbacks that such a filter needs are exported.

#![no_std]

use core::cell::UnsafeCell;
use core::ptr::{null, null_mut};

#[link(wasm_import_module = "env")]
unsafe extern "C" {
    fn proxy_get_buffer_bytes(kind: u32, start: usize, max: usize, data: *mut *const u8, length: *mut usize)
    -> u32;
    fn proxy_get_header_map_value(
        map: u32,
        key: *const u8,
        key_length: usize,
        value: *mut *const u8,
        length: *mut usize,
    ) -> u32;
    fn proxy_get_header_map_pairs(map: u32, data: *mut *const u8, length: *mut usize) -> u32;
    fn proxy_get_shared_data(
        key: *const u8,
        key_length: usize,
        data: *mut *const u8,
        length: *mut usize,
        cas: *mut u32,
    ) -> u32;
    fn proxy_set_shared_data(key: *const u8, key_length: usize, value: *const u8, length: usize, cas: u32)
    -> u32;
    fn proxy_send_local_response(
        status: u32,
        details: *const u8,
        details_length: usize,
        body: *const u8,
        body_length: usize,
        headers: *const u8,
        headers_length: usize,
        grpc_status: i32,
    ) -> u32;
}

#[link(wasm_import_module = "wasi_snapshot_preview1")]
unsafe extern "C" {
    fn clock_time_get(clock: u32, precision: u64, time: *mut u64) -> u16;
}

const REQUEST_HEADERS: u32 = 0;
const PLUGIN_CONFIGURATION: u32 = 7;
const CLOCK_MONOTONIC: u32 = 1;
/// Buckets of Weir's table.
const BUCKETS: u32 = 32_768;
/// Bytes of a bucket with one or two entries.
const BUCKET_BYTES: usize = 256;

/// What a request pays for.
#[derive(Clone, Copy)]
enum Floor {
    /// One header.
    Header,
    /// All headers and the time: what a decision from memory needs.
    Headers,
    /// The same, and one get and set of shared data: what a charge of the table needs.
    Charge,
    /// All headers, the time and a local response with Weir's headers.
    Denial,
}

/// The memory into which Envoy writes, and the state. A VM has one thread.
struct Memory<T>(UnsafeCell<T>);

// SAFETY: a VM has one thread.
unsafe impl<T> Sync for Memory<T> {}

static ARENA: Memory<[u8; 65_536]> = Memory(UnsafeCell::new([0; 65_536]));
static FLOOR: Memory<Floor> = Memory(UnsafeCell::new(Floor::Header));
static NEXT: Memory<u32> = Memory(UnsafeCell::new(0));

/// The headers of Weir's denials as the ABI serialises them: count, lengths, then names and values.
static HEADERS: &[u8] = b"\x05\0\0\0\
    \x0b\0\0\0\x02\0\0\0\x11\0\0\0\x02\0\0\0\x15\0\0\0\x01\0\0\0\x11\0\0\0\x02\0\0\0\x13\0\0\0\x04\0\0\0\
    retry-after\042\0x-ratelimit-limit\010\0x-ratelimit-remaining\00\0x-ratelimit-reset\042\0x-envoy-ratelimited\0true\0";

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    core::arch::wasm32::unreachable()
}

#[unsafe(no_mangle)]
pub extern "C" fn proxy_abi_version_0_2_1() {}

/// Returns the same memory for each result of a host call.
#[unsafe(no_mangle)]
pub extern "C" fn proxy_on_memory_allocate(size: usize) -> *mut u8 {
    if size <= 65_536 { ARENA.0.get().cast() } else { null_mut() }
}

#[unsafe(no_mangle)]
pub extern "C" fn proxy_on_vm_start(_root: u32, _size: usize) -> u32 {
    1
}

/// Chooses the floor. Returns 0 to reject an unknown one.
#[unsafe(no_mangle)]
pub extern "C" fn proxy_on_configure(_root: u32, _size: usize) -> u32 {
    let (mut data, mut length) = (null(), 0);
    // SAFETY: the host writes two numbers, and the configuration to the arena.
    let name = unsafe {
        proxy_get_buffer_bytes(PLUGIN_CONFIGURATION, 0, usize::MAX, &raw mut data, &raw mut length);
        if data.is_null() { &[] } else { core::slice::from_raw_parts(data, length) }
    };
    let floor = match name {
        b"\"header\"" => Floor::Header,
        b"\"headers\"" => Floor::Headers,
        b"\"charge\"" => Floor::Charge,
        b"\"denial\"" => Floor::Denial,
        _ => return 0,
    };
    // SAFETY: a VM has one thread; the host reads live memory.
    unsafe {
        *FLOOR.0.get() = floor;
        for bucket in 0..BUCKETS {
            let key = bucket.to_le_bytes();
            proxy_set_shared_data(key.as_ptr(), key.len(), ARENA.0.get().cast(), BUCKET_BYTES, 0);
        }
    }
    1
}

#[unsafe(no_mangle)]
pub extern "C" fn proxy_on_request_headers(_context: u32, _count: usize, _end: u32) -> u32 {
    let (mut data, mut length, mut time, mut cas) = (null(), 0, 0, 0);
    // SAFETY: a VM has one thread; the host reads live memory, and writes numbers and the arena.
    unsafe {
        let floor = *FLOOR.0.get();
        if let Floor::Header = floor {
            let name = b"x-api-key";
            proxy_get_header_map_value(
                REQUEST_HEADERS,
                name.as_ptr(),
                name.len(),
                &raw mut data,
                &raw mut length,
            );
            return 0;
        }
        proxy_get_header_map_pairs(REQUEST_HEADERS, &raw mut data, &raw mut length);
        clock_time_get(CLOCK_MONOTONIC, 1, &raw mut time);
        match floor {
            Floor::Charge => {
                let next = NEXT.0.get();
                // Each request another bucket, far from the one before.
                *next = (*next).wrapping_add(12_289);
                let key = (*next % BUCKETS).to_le_bytes();
                proxy_get_shared_data(key.as_ptr(), key.len(), &raw mut data, &raw mut length, &raw mut cas);
                proxy_set_shared_data(key.as_ptr(), key.len(), data, length, cas);
                0
            }
            Floor::Denial => {
                let (details, body) = ("weir_limit_exceeded[per-key]", "rate limit exceeded");
                proxy_send_local_response(
                    429,
                    details.as_ptr(),
                    details.len(),
                    body.as_ptr(),
                    body.len(),
                    HEADERS.as_ptr(),
                    HEADERS.len(),
                    -1,
                );
                1
            }
            Floor::Header | Floor::Headers => 0,
        }
    }
}
