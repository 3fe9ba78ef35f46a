//! Calls to Envoy, each as a function that cannot panic.
//!
//! The SDK's wrappers panic at an unexpected status and allocate for each result. These functions return the status and read results
//! in place. The numbers are those of the SDK's types.

pub use super::arena::has_response_callback;
use super::arena::{Arena, fetch};
use super::request::serialise;
use crate::host::headers::HeaderValue;
use crate::host::kinds::{LogLevel, MetricType};
use proxy_wasm::types::{BufferType, MapType, Status, StreamType};
use weir_core::model::time::{MonoMs, UnixMs};
use weir_core::rules::{Config, Parse};

mod raw {
    unsafe extern "C" {
        pub fn proxy_log(level: u32, message: *const u8, length: usize) -> u32;
        pub fn proxy_get_current_time_nanoseconds(time: *mut u64) -> u32;
        pub fn proxy_set_tick_period_milliseconds(period: u32) -> u32;
        pub fn proxy_get_buffer_bytes(
            buffer: u32,
            start: usize,
            max: usize,
            data: *mut *const u8,
            length: *mut usize,
        ) -> u32;
        pub fn proxy_get_header_map_pairs(map: u32, data: *mut *const u8, length: *mut usize) -> u32;
        pub fn proxy_add_header_map_value(
            map: u32,
            key: *const u8,
            key_length: usize,
            value: *const u8,
            value_length: usize,
        ) -> u32;
        pub fn proxy_get_property(
            path: *const u8,
            path_length: usize,
            data: *mut *const u8,
            length: *mut usize,
        ) -> u32;
        pub fn proxy_set_property(
            path: *const u8,
            path_length: usize,
            value: *const u8,
            length: usize,
        ) -> u32;
        pub fn proxy_get_shared_data(
            key: *const u8,
            key_length: usize,
            data: *mut *const u8,
            length: *mut usize,
            cas: *mut u32,
        ) -> u32;
        pub fn proxy_set_shared_data(
            key: *const u8,
            key_length: usize,
            value: *const u8,
            length: usize,
            cas: u32,
        ) -> u32;
        pub fn proxy_continue_stream(stream: u32) -> u32;
        pub fn proxy_send_local_response(
            status: u32,
            details: *const u8,
            details_length: usize,
            body: *const u8,
            body_length: usize,
            headers: *const u8,
            headers_length: usize,
            grpc_status: i32,
        ) -> u32;
        pub fn proxy_set_effective_context(context: u32) -> u32;
        pub fn proxy_define_metric(kind: u32, name: *const u8, length: usize, id: *mut u32) -> u32;
        pub fn proxy_increment_metric(id: u32, by: i64) -> u32;
        pub fn proxy_record_metric(id: u32, value: u64) -> u32;
        pub fn proxy_grpc_stream(
            service: *const u8,
            service_length: usize,
            name: *const u8,
            name_length: usize,
            method: *const u8,
            method_length: usize,
            metadata: *const u8,
            metadata_length: usize,
            token: *mut u32,
        ) -> u32;
        pub fn proxy_grpc_send(token: u32, message: *const u8, length: usize, end: u32) -> u32;
        pub fn proxy_grpc_cancel(token: u32) -> u32;
        pub fn proxy_call_foreign_function(
            name: *const u8,
            name_length: usize,
            argument: *const u8,
            argument_length: usize,
            data: *mut *const u8,
            length: *mut usize,
        ) -> u32;
    }

    #[link(wasm_import_module = "wasi_snapshot_preview1")]
    unsafe extern "C" {
        pub fn clock_time_get(clock: u32, precision: u64, time: *mut u64) -> u16;
        pub fn random_get(data: *mut u8, length: usize) -> u16;
        pub fn environ_sizes_get(count: *mut usize, bytes: *mut usize) -> u16;
        pub fn environ_get(entries: *mut *const u8, bytes: *mut u8) -> u16;
    }
}

const OK: u32 = Status::Ok as u32;
const CLOCK_MONOTONIC: u32 = 1;
const NANOS_A_MS: u64 = 1_000_000;

/// Envoy rejected a call, with this status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused(pub u32);

fn done(status: u32) -> Result<(), Refused> {
    if status == OK { Ok(()) } else { Err(Refused(status)) }
}

/// Writes to Envoy's log.
pub fn log(level: LogLevel, message: &str) {
    // SAFETY: the host reads `length` bytes of a live string.
    unsafe { raw::proxy_log(level as u32, message.as_ptr(), message.len()) };
}

/// The machine's clock.
pub fn unix_now() -> UnixMs {
    let mut nanos = 0;
    // SAFETY: the host writes one u64.
    unsafe { raw::proxy_get_current_time_nanoseconds(&raw mut nanos) };
    UnixMs(nanos.checked_div(NANOS_A_MS).unwrap_or(0))
}

/// The monotonic clock, the same for all workers of the process.
pub fn mono_now() -> MonoMs {
    let mut nanos = 0;
    // SAFETY: the host writes one u64.
    unsafe { raw::clock_time_get(CLOCK_MONOTONIC, 1, &raw mut nanos) };
    MonoMs(nanos.checked_div(NANOS_A_MS).unwrap_or(0))
}

/// Random bytes of the operating system.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // SAFETY: the host writes N bytes to an array of N.
    unsafe { raw::random_get(bytes.as_mut_ptr(), N) };
    bytes
}

/// The environment variables that Envoy passes to this VM, as `NAME=value` with a zero byte at the end of each.
pub fn environment() -> Vec<u8> {
    let (mut count, mut length) = (0, 0);
    // SAFETY: the host writes two numbers.
    if unsafe { raw::environ_sizes_get(&raw mut count, &raw mut length) } != 0 {
        return Vec::new();
    }
    let (mut entries, mut bytes) = (vec![std::ptr::null(); count], vec![0; length]);
    // SAFETY: the host writes `count` addresses and `length` bytes, as it returned above, to vectors of those lengths.
    match unsafe { raw::environ_get(entries.as_mut_ptr(), bytes.as_mut_ptr()) } {
        0 => bytes,
        _ => Vec::new(),
    }
}

/// Calls `on_tick` of the current root every `ms`.
pub fn set_tick_period(ms: u32) {
    // SAFETY: no memory is passed.
    unsafe { raw::proxy_set_tick_period_milliseconds(ms) };
}

/// How a configuration for this edge is parsed.
pub const PARSE: Parse = Config::parse_with;

/// The plugin's configuration.
pub fn plugin_configuration() -> Vec<u8> {
    buffer(BufferType::PluginConfiguration, <[u8]>::to_vec)
}

/// The message that a stream has received.
pub fn grpc_message<R>(read: impl FnOnce(&[u8]) -> R) -> R {
    buffer(BufferType::GrpcReceiveBuffer, read)
}

fn buffer<R>(kind: BufferType, read: impl FnOnce(&[u8]) -> R) -> R {
    // SAFETY: `fetch` gives valid places for the answer.
    let call =
        |data, length| unsafe { raw::proxy_get_buffer_bytes(kind as u32, 0, usize::MAX, data, length) };
    fetch(Arena::Other, call, |_, bytes| read(bytes))
}

/// All headers of the current request, as the ABI serialises them (see [`request`](super::request)).
pub fn request_headers<R>(read: impl FnOnce(&[u8]) -> R) -> R {
    let map = MapType::HttpRequestHeaders as u32;
    header_map(map, Arena::Headers, read)
}

/// All headers of the current response, in the same form; empty if there is no response.
pub fn response_headers<R>(read: impl FnOnce(&[u8]) -> R) -> R {
    header_map(MapType::HttpResponseHeaders as u32, Arena::Headers, read)
}

/// All trailers of the current response, in the same form; empty if there are none yet.
pub fn response_trailers<R>(read: impl FnOnce(&[u8]) -> R) -> R {
    header_map(MapType::HttpResponseTrailers as u32, Arena::Other, read)
}

fn header_map<R>(map: u32, arena: Arena, read: impl FnOnce(&[u8]) -> R) -> R {
    // SAFETY: `fetch` gives valid places for the answer.
    let call = |data, length| unsafe { raw::proxy_get_header_map_pairs(map, data, length) };
    fetch(arena, call, |_, bytes| read(bytes))
}

/// Adds a header to the current response.
pub fn add_response_header(name: &str, value: &str) {
    let map = MapType::HttpResponseHeaders as u32;
    // SAFETY: the host reads two live strings.
    unsafe {
        raw::proxy_add_header_map_value(map, name.as_ptr(), name.len(), value.as_ptr(), value.len());
    }
}

/// A property of the current request, its path joined by NUL bytes; appended to `out`.
pub fn property(path: &[u8], out: &mut Vec<u8>) -> bool {
    // SAFETY: the host reads a live slice; `fetch` gives valid places for the answer.
    let call = |data, length| unsafe { raw::proxy_get_property(path.as_ptr(), path.len(), data, length) };
    fetch(Arena::Other, call, |status, bytes| {
        out.extend_from_slice(bytes);
        status == OK
    })
}

/// Calls a function of Envoy's that is not part of the ABI. `read` gets its status and result.
pub fn call_foreign<R>(name: &[u8], argument: &[u8], read: impl FnOnce(u32, &[u8]) -> R) -> R {
    // SAFETY: the host reads two live slices; `fetch` gives valid places for the answer.
    let call = |data, length| unsafe {
        let (name, argument) = ((name.as_ptr(), name.len()), (argument.as_ptr(), argument.len()));
        raw::proxy_call_foreign_function(name.0, name.1, argument.0, argument.1, data, length)
    };
    fetch(Arena::Other, call, read)
}

/// Sets filter state of the current request, under `wasm.<name>`.
pub fn set_filter_state(name: &str, value: &str) {
    // SAFETY: the host reads two live strings.
    unsafe { raw::proxy_set_property(name.as_ptr(), name.len(), value.as_ptr(), value.len()) };
}

/// Shared data: replaces `into` and returns the version; `None` if there is no such key.
pub fn shared_get(key: &[u8], into: &mut Vec<u8>) -> Option<u32> {
    let mut cas = 0;
    // SAFETY: the host reads a live slice and writes one u32; `fetch` gives valid places for the answer.
    let call = |data, length| unsafe {
        raw::proxy_get_shared_data(key.as_ptr(), key.len(), data, length, &raw mut cas)
    };
    let status = fetch(Arena::Other, call, |status, bytes| {
        into.clear();
        into.extend_from_slice(bytes);
        status
    });
    (status == OK).then_some(cas)
}

/// Shared data: stores `value` if the version is still `cas` (0: always). False if it has changed.
pub fn shared_set(key: &[u8], value: &[u8], cas: u32) -> bool {
    // SAFETY: the host reads two live slices.
    OK == unsafe { raw::proxy_set_shared_data(key.as_ptr(), key.len(), value.as_ptr(), value.len(), cas) }
}

/// Makes `context` the subject of the next calls; fails if it has ended.
pub fn set_effective_context(context: u32) -> Result<(), Refused> {
    // SAFETY: no memory is passed.
    done(unsafe { raw::proxy_set_effective_context(context) })
}

/// Resumes the current request, which was paused.
pub fn resume_request() -> Result<(), Refused> {
    // SAFETY: no memory is passed.
    done(unsafe { raw::proxy_continue_stream(StreamType::HttpRequest as u32) })
}

/// Sends a local response to the current request. `grpc_status` is for gRPC requests only.
pub fn respond(
    status: u32,
    details: &str,
    headers: &[(impl AsRef<str>, HeaderValue)],
    body: &[u8],
    grpc_status: i32,
) -> Result<(), Refused> {
    let headers = serialise(headers);
    // SAFETY: the host reads four live slices.
    done(unsafe {
        raw::proxy_send_local_response(
            status,
            details.as_ptr(),
            details.len(),
            body.as_ptr(),
            body.len(),
            headers.as_ptr(),
            headers.len(),
            grpc_status,
        )
    })
}

/// Defines a metric, or finds it; `None` if Envoy refuses.
pub fn define_metric(kind: MetricType, name: &str) -> Option<u32> {
    let mut id = 0;
    // SAFETY: the host reads a live string and writes one u32.
    let status = unsafe { raw::proxy_define_metric(kind as u32, name.as_ptr(), name.len(), &raw mut id) };
    (status == OK).then_some(id)
}

/// Adds to a counter or gauge.
pub fn increment_metric(id: u32, by: i64) {
    // SAFETY: no memory is passed.
    unsafe { raw::proxy_increment_metric(id, by) };
}

/// Sets a gauge.
pub fn record_metric(id: u32, value: u64) {
    // SAFETY: no memory is passed.
    unsafe { raw::proxy_record_metric(id, value) };
}

/// Opens a gRPC stream to the serialised `GrpcService`, with serialised headers as its metadata. Returns its token.
pub fn grpc_stream(service: &[u8], name: &str, method: &str, metadata: &[u8]) -> Result<u32, Refused> {
    let mut token = 0;
    // SAFETY: the host reads four live slices and writes one u32.
    let status = unsafe {
        raw::proxy_grpc_stream(
            service.as_ptr(),
            service.len(),
            name.as_ptr(),
            name.len(),
            method.as_ptr(),
            method.len(),
            metadata.as_ptr(),
            metadata.len(),
            &raw mut token,
        )
    };
    done(status).map(|()| token)
}

/// Sends a message on a stream.
pub fn grpc_send(token: u32, message: &[u8]) -> Result<(), Refused> {
    // SAFETY: the host reads a live slice.
    done(unsafe { raw::proxy_grpc_send(token, message.as_ptr(), message.len(), 0) })
}

/// Cancels a stream, closed or not.
pub fn grpc_cancel(token: u32) {
    // SAFETY: no memory is passed.
    unsafe { raw::proxy_grpc_cancel(token) };
}
