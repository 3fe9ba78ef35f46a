//! Calls to Envoy, each as a function that cannot panic.
//!
//! Those about a request act on the one that is handled in this thread ([`Subject`]); without one they find nothing. What Envoy returns is
//! valid until the hook ends or a setter is called, so it is read in place, or copied.

use super::abi::{self, Bytes, Map, Object, Pair};
use super::request::Headers;
use crate::host::headers::{HeaderValue, Nothing};
use crate::host::kinds::{LogLevel, MetricType};
use prost::Message;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use weir_core::model::time::{MonoMs, UnixMs};
use weir_core::rules::{Config, METADATA_PATH, Parse};

pub use super::metrics::{define_metric, increment_metric, record_metric};

/// Headers of a request that are read without an allocation.
const USUAL_HEADERS: usize = 64;
const CLOCK_REALTIME: i32 = 0;
const CLOCK_MONOTONIC: i32 = 1;
const METADATA: &[u8] = b"metadata\0filter_metadata\0";
const FILTER_STATE: &[u8] = b"filter_state\0";
/// Most items of a list that are read.
const ITEMS_MAX: usize = 1_024;

/// Most paths in metadata whose kinds are noted.
const PATHS_MAX: usize = 256;

/// Attributes that are texts, by their paths, with Envoy's numbers for them.
const TEXTS: &[(&[u8], u32)] = &[
    (b"source\0address", 24),
    (b"xds\0route_name", 61),
    (b"xds\0virtual_host_name", 63),
    (b"connection\0uri_san_peer_certificate", 37),
    (b"connection\0dns_san_peer_certificate", 35),
    (b"connection\0subject_peer_certificate", 33),
    (b"connection\0sha256_peer_certificate_digest", 38),
    (b"response\0code_details", 16),
    (b"upstream\0local_address", 51),
    (b"request\0method", 4),
];
/// Attributes that are whole numbers.
const NUMBERS: &[(&[u8], u32)] =
    &[(b"upstream\0request_attempt_count", 53), (b"response\0size", 21), (b"request\0size", 13)];

/// Envoy rejected a call, with this status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused(pub u32);

thread_local! {
    static SUBJECT: Cell<Object> = const { Cell::new(std::ptr::null_mut()) };
    static TICK: Cell<Option<u32>> = const { Cell::new(None) };
    static MESSAGE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// While it is there, calls are about this request.
#[derive(Debug)]
pub struct Subject(Object);

impl Subject {
    /// Begins with the hook of a request.
    pub fn enter(request: Object) -> Subject {
        Subject(SUBJECT.replace(request))
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        SUBJECT.set(self.0);
    }
}

fn subject() -> Option<Object> {
    let subject = SUBJECT.get();
    (!subject.is_null()).then_some(subject)
}

/// Writes to Envoy's log.
pub fn log(level: LogLevel, message: &str) {
    // SAFETY: Envoy reads a live string.
    unsafe { abi::log(level as u32, Bytes::of(message.as_bytes())) };
}

/// The number of worker threads; on the main thread only.
pub fn concurrency() -> usize {
    // SAFETY: no memory is passed.
    usize::try_from(unsafe { abi::concurrency() }).unwrap_or(1).max(1)
}

/// Whether Envoy only checks its configuration; on the main thread only.
pub fn is_validation_mode() -> bool {
    // SAFETY: no memory is passed.
    unsafe { abi::is_validation_mode() }
}

fn clock_ms(clock: i32) -> u64 {
    let mut time = [0; 2];
    // SAFETY: the library writes two numbers.
    unsafe { abi::clock_gettime(clock, &raw mut time) };
    let [seconds, nanos] = time.map(|part: i64| u64::try_from(part).unwrap_or(0));
    seconds.saturating_mul(1_000).saturating_add(nanos.checked_div(1_000_000).unwrap_or(0))
}

/// The machine's clock.
pub fn unix_now() -> UnixMs {
    UnixMs(clock_ms(CLOCK_REALTIME))
}

/// The monotonic clock, the same for all threads.
pub fn mono_now() -> MonoMs {
    MonoMs(clock_ms(CLOCK_MONOTONIC))
}

/// Random bytes of the operating system.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // SAFETY: the library writes at most N bytes to an array of N.
    unsafe { abi::getrandom(bytes.as_mut_ptr(), N, 0) };
    bytes
}

/// The environment variables of the process, as `NAME=value` with a zero byte at the end of each.
pub fn environment() -> Vec<u8> {
    let mut all = Vec::new();
    for (name, value) in std::env::vars_os() {
        all.extend_from_slice(name.as_bytes());
        all.push(b'=');
        all.extend_from_slice(value.as_bytes());
        all.push(0);
    }
    all
}

/// How a configuration for this edge is parsed.
pub const PARSE: Parse = Config::parse_native;

/// Whether the filter receives responses.
pub fn has_response_callback() -> bool {
    true
}

/// Asks for a tick of the current root every `ms`.
pub fn set_tick_period(ms: u32) {
    TICK.set(Some(ms));
}

/// The period that the current root has asked for since the last call.
pub fn take_tick_period() -> Option<u32> {
    TICK.take()
}

/// Runs `work` while `message` is the one that a stream has received.
pub fn with_message<R>(message: Vec<u8>, work: impl FnOnce() -> R) -> R {
    MESSAGE.replace(message);
    let done = work();
    MESSAGE.replace(Vec::new());
    done
}

/// The message that a stream has received.
pub fn grpc_message<R>(read: impl FnOnce(&[u8]) -> R) -> R {
    MESSAGE.with_borrow(|message| read(message))
}

/// All headers of the current request.
pub fn request_headers<R>(read: impl FnOnce(&[Pair]) -> R) -> R {
    header_map(Map::Request, read)
}

/// All headers of the current response; empty if there is no response.
pub fn response_headers<R>(read: impl FnOnce(&[Pair]) -> R) -> R {
    header_map(Map::Response, read)
}

/// All trailers of the current response; empty if there are none yet.
pub fn response_trailers<R>(read: impl FnOnce(&[Pair]) -> R) -> R {
    header_map(Map::ResponseTrailers, read)
}

fn header_map<R>(map: Map, read: impl FnOnce(&[Pair]) -> R) -> R {
    let Some(subject) = subject() else { return read(&[]) };
    // SAFETY: the subject is a live request.
    let size = unsafe { abi::headers_size(subject, map) };
    if size <= USUAL_HEADERS {
        let mut pairs = [const { MaybeUninit::<Pair>::uninit() }; USUAL_HEADERS];
        // SAFETY: Envoy writes `size` headers, for which the array has room, or none and returns false.
        let pairs = unsafe {
            match size > 0 && abi::headers(subject, map, pairs.as_mut_ptr().cast()) {
                true => std::slice::from_raw_parts(pairs.as_ptr().cast::<Pair>(), size),
                false => &[],
            }
        };
        return read(pairs);
    }
    let mut pairs = Vec::<Pair>::with_capacity(size);
    // SAFETY: as above.
    unsafe {
        if abi::headers(subject, map, pairs.as_mut_ptr()) {
            pairs.set_len(size);
        }
    }
    read(&pairs)
}

/// Adds a header to the current response.
pub fn add_response_header(name: &str, value: &str) {
    if let Some(subject) = subject() {
        // SAFETY: the subject is a live request, and Envoy copies two live strings.
        unsafe {
            abi::add_header(subject, Map::Response, Bytes::of(name.as_bytes()), Bytes::of(value.as_bytes()));
        }
    }
}

/// A property of the current request, its path joined by NUL bytes; appended to `out` in the form in which a WASM filter gets it.
pub fn property(path: &[u8], out: &mut Vec<u8>) -> bool {
    let Some(subject) = subject() else { return false };
    let number_of = |table: &[(&[u8], u32)]| table.iter().find(|(of, _)| *of == path).map(|(_, id)| *id);
    if let Some(id) = number_of(TEXTS) {
        // SAFETY: the subject is a live request, and Envoy writes one value.
        return text(out, |value| unsafe { abi::attribute_text(subject, id, value) });
    }
    if let Some(id) = number_of(NUMBERS) {
        let mut value = 0;
        // SAFETY: as above.
        let found = unsafe { abi::attribute_number(subject, id, &raw mut value) };
        out.extend_from_slice(if found { value.to_le_bytes() } else { [0; 8] }.as_slice());
        return found;
    }
    if let Some(key) = path.strip_prefix(FILTER_STATE) {
        let key = Bytes::of(key);
        // SAFETY: as above, and Envoy reads a live slice.
        return text(out, |value| unsafe { abi::filter_state(subject, key, value) })
            || text(out, |value| unsafe { abi::filter_state_typed(subject, key, value) });
    }
    if path == METADATA_PATH {
        return all_numbers(subject).encode(out).is_ok();
    }
    let Some((namespace, key)) = path.strip_prefix(METADATA).and_then(split_at_nul) else { return false };
    // Envoy passes on what is at the top of a namespace alone; a configuration that reads more is refused.
    !key.contains(&0) && metadata(subject, path, Bytes::of(namespace), Bytes::of(key), out)
}

fn split_at_nul(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = bytes.iter().position(|byte| *byte == 0)?;
    let (before, after) = bytes.split_at_checked(at)?;
    Some((before, after.get(1..)?))
}

/// Appends a text of Envoy's; false if there is none.
fn text(out: &mut Vec<u8>, read: impl FnOnce(*mut Bytes) -> bool) -> bool {
    let mut value = Bytes::NONE;
    let found = read(&raw mut value);
    if found {
        // SAFETY: Envoy wrote a value that is valid until the hook ends.
        out.extend_from_slice(unsafe { value.get() });
    }
    found
}

/// What a value of metadata is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Number,
    Bool,
    List,
}

thread_local! {
    /// What the values at paths were that this thread has read.
    static KINDS: RefCell<Vec<(Box<[u8]>, Kind)>> = const { RefCell::new(Vec::new()) };
}

/// Appends the value at a path in metadata. Envoy logs an error where a value is read as what it is not, so what the last one was is tried first.
fn metadata(subject: Object, path: &[u8], namespace: Bytes, key: Bytes, out: &mut Vec<u8>) -> bool {
    // SAFETY: the subject is a live request, and Envoy reads a live slice.
    if unsafe { abi::metadata_keys_count(subject, abi::DYNAMIC, namespace) } == 0 {
        return false;
    }
    let last = KINDS.with_borrow(|kinds| kinds.iter().find(|(of, _)| **of == *path).map(|(_, kind)| *kind));
    let others = [Kind::Text, Kind::Number, Kind::Bool, Kind::List].into_iter();
    let mut kinds = last.into_iter().chain(others.filter(|kind| last != Some(*kind)));
    let Some(found) = kinds.find(|kind| read_metadata(*kind, subject, namespace, key, out)) else {
        return false;
    };
    if last != Some(found) {
        KINDS.with_borrow_mut(|kinds| {
            let has_room = kinds.len() < PATHS_MAX;
            match kinds.iter_mut().find(|(of, _)| **of == *path) {
                Some((_, kind)) => *kind = found,
                None if has_room => kinds.push((path.into(), found)),
                None => {}
            }
        });
    }
    true
}

/// Appends the value if it is of this kind.
fn read_metadata(kind: Kind, subject: Object, namespace: Bytes, key: Bytes, out: &mut Vec<u8>) -> bool {
    let (mut number, mut is_true, mut size) = (0.0, false, 0);
    // SAFETY: the subject is a live request, and Envoy reads two live slices and writes one value.
    unsafe {
        match kind {
            Kind::Text => text(out, |to| abi::metadata_text(subject, abi::DYNAMIC, namespace, key, to)),
            Kind::Number => {
                let found = abi::metadata_number(subject, abi::DYNAMIC, namespace, key, &raw mut number);
                out.extend(found.then_some(number).into_iter().flat_map(f64::to_le_bytes));
                found
            }
            Kind::Bool => {
                let found = abi::metadata_bool(subject, abi::DYNAMIC, namespace, key, &raw mut is_true);
                out.extend(found.then_some(u8::from(is_true)));
                found
            }
            Kind::List => {
                if !abi::metadata_list_size(subject, abi::DYNAMIC, namespace, key, &raw mut size) {
                    return false;
                }
                let items = (0..size.min(ITEMS_MAX)).map(|at| list_item(subject, namespace, key, at));
                let items: Option<Vec<Vec<u8>>> = items.collect();
                items.inspect(|items| push_list(items, out)).is_some()
            }
        }
    }
}

/// Appends a list as the WASM ABI serialises it: its items are the names of headers without values.
fn push_list(items: &[Vec<u8>], out: &mut Vec<u8>) {
    let number = |number: usize| u32::try_from(number).unwrap_or(0).to_le_bytes();
    out.extend_from_slice(&number(items.len()));
    for item in items {
        out.extend_from_slice(&number(item.len()));
        out.extend_from_slice(&number(0));
    }
    for item in items {
        out.extend_from_slice(item);
        out.extend_from_slice(&[0, 0]);
    }
}

/// An item of a list of metadata; `None` if it is null, a list or an object.
fn list_item(subject: Object, namespace: Bytes, key: Bytes, at: usize) -> Option<Vec<u8>> {
    let (mut item, mut number, mut is_true) = (Vec::new(), 0.0, false);
    // SAFETY: as for a single value.
    unsafe {
        if text(&mut item, |value| abi::metadata_list_text(subject, abi::DYNAMIC, namespace, key, at, value))
        {
            return Some(item);
        }
        if abi::metadata_list_number(subject, abi::DYNAMIC, namespace, key, at, &raw mut number) {
            return Some(f64::to_le_bytes(number).to_vec());
        }
        let found = abi::metadata_list_bool(subject, abi::DYNAMIC, namespace, key, at, &raw mut is_true);
        found.then(|| vec![u8::from(is_true)])
    }
}

/// Of Envoy's `Metadata`, the numbers: whether a value is one is what the whole metadata are read for.
#[derive(Clone, PartialEq, Message)]
struct Numbers {
    #[prost(btree_map = "string, message", tag = "1")]
    filter_metadata: BTreeMap<String, NumbersOfFilter>,
}

#[derive(Clone, PartialEq, Message)]
struct NumbersOfFilter {
    #[prost(btree_map = "string, message", tag = "1")]
    fields: BTreeMap<String, Number>,
}

#[derive(Clone, PartialEq, Message)]
struct Number {
    #[prost(double, optional, tag = "2")]
    number: Option<f64>,
}

fn all_numbers(subject: Object) -> Numbers {
    // SAFETY: the subject is a live request, and Envoy writes as many names as it has counted.
    let namespaces = unsafe {
        let count = abi::metadata_namespaces_count(subject, abi::DYNAMIC);
        names(count, |to| abi::metadata_namespaces(subject, abi::DYNAMIC, to))
    };
    let of_filter = |namespace: Bytes| {
        // SAFETY: as above.
        let keys = unsafe {
            let count = abi::metadata_keys_count(subject, abi::DYNAMIC, namespace);
            names(count, |to| abi::metadata_keys(subject, abi::DYNAMIC, namespace, to))
        };
        let numbers = keys.into_iter().filter_map(|key| {
            let mut number = 0.0;
            // SAFETY: as above; names are valid until the hook ends.
            let found =
                unsafe { abi::metadata_number(subject, abi::DYNAMIC, namespace, key, &raw mut number) };
            found.then(|| (owned(key), Number { number: Some(number) }))
        });
        (owned(namespace), NumbersOfFilter { fields: numbers.collect() })
    };
    Numbers { filter_metadata: namespaces.into_iter().map(of_filter).collect() }
}

/// Names that Envoy writes, `count` of them.
fn names(count: usize, write: impl FnOnce(*mut Bytes) -> bool) -> Vec<Bytes> {
    let mut names = vec![Bytes::NONE; count];
    if count == 0 || !write(names.as_mut_ptr()) {
        names.clear();
    }
    names
}

fn owned(name: Bytes) -> String {
    // SAFETY: Envoy wrote a name that is valid until the hook ends.
    String::from_utf8_lossy(unsafe { name.get() }).into_owned()
}

/// Sets filter state of the current request, under `wasm.<name>`, so that formats of access logs serve both filters.
pub fn set_filter_state(name: &str, value: &str) {
    if let Some(subject) = subject() {
        let name = format!("wasm.{name}");
        // SAFETY: the subject is a live request, and Envoy copies two live strings.
        unsafe {
            abi::set_filter_state(subject, Bytes::of(name.as_bytes()), Bytes::of(value.as_bytes()));
        }
    }
}

/// Makes `context` the subject of the next calls. Natively a hook's own request is, and roots are ended by name.
pub fn set_effective_context(_context: u32) -> Result<(), Refused> {
    Ok(())
}

/// Resumes the current request, which was paused.
pub fn resume_request() -> Result<(), Refused> {
    let subject = subject().ok_or(Refused(0))?;
    // SAFETY: the subject is a live request.
    unsafe { abi::continue_decoding(subject) };
    Ok(())
}

/// Sends a local response to the current request. `grpc_status` is for gRPC requests only.
pub fn respond(
    status: u32,
    details: &str,
    headers: &[(impl AsRef<str>, HeaderValue)],
    body: &[u8],
    grpc_status: i32,
) -> Result<(), Refused> {
    let subject = subject().ok_or(Refused(0))?;
    let is_grpc = request_headers(|headers| {
        let kind = Headers::new(headers, Nothing).first(b"content-type");
        kind.is_some_and(|kind| kind.starts_with(b"application/grpc"))
    });
    let grpc_status = HeaderValue::from(u64::try_from(grpc_status).unwrap_or_default());
    let of_grpc = is_grpc.then_some(("grpc-status", &grpc_status));
    let named = headers.iter().map(|(name, value)| (name.as_ref(), value));
    let mut digits = [const { MaybeUninit::<itoa::Buffer>::uninit() }; 16];
    let texts = named.chain(of_grpc).zip(&mut digits);
    let pairs: Vec<Pair> = texts
        .map(|((name, value), digits)| {
            let value = match value {
                HeaderValue::Text(text) => text.as_bytes(),
                HeaderValue::Number(number) => digits.write(itoa::Buffer::new()).format(*number).as_bytes(),
            };
            Pair::of(name.as_bytes(), value)
        })
        .collect();
    // SAFETY: the subject is a live request, and Envoy copies live headers, body and details.
    unsafe {
        let (body, details) = (Bytes::of(body), Bytes::of(details.as_bytes()));
        abi::send_response(subject, status, pairs.as_ptr(), pairs.len(), body, details);
    }
    Ok(())
}

/// Wakes a paused request on its worker, from any thread.
#[derive(Debug)]
pub struct RequestScheduler(Object);

// SAFETY: Envoy's schedulers are made for other threads, and one is deleted once, by its last owner.
unsafe impl Send for RequestScheduler {}
// SAFETY: as above; a commit only posts an event.
unsafe impl Sync for RequestScheduler {}

impl RequestScheduler {
    /// Of the current request.
    pub fn new() -> Option<RequestScheduler> {
        // SAFETY: the subject is a live request.
        let scheduler = unsafe { abi::scheduler_new(subject()?) };
        (!scheduler.is_null()).then_some(RequestScheduler(scheduler))
    }

    /// Has Envoy call the request's hook with `event`, if the request is still there.
    pub fn commit(&self, event: u64) {
        // SAFETY: the scheduler is deleted with this value.
        unsafe { abi::scheduler_commit(self.0, event) };
    }
}

impl Drop for RequestScheduler {
    fn drop(&mut self) {
        // SAFETY: nothing else has it.
        unsafe { abi::scheduler_delete(self.0) };
    }
}

/// A filter's configuration in Envoy, whose calls belong to the main thread but for [`EnvoyConfig::commit`].
#[derive(Debug)]
pub struct EnvoyConfig {
    config: Object,
    scheduler: Object,
}

// SAFETY: other threads only commit.
unsafe impl Send for EnvoyConfig {}
// SAFETY: as above.
unsafe impl Sync for EnvoyConfig {}

impl EnvoyConfig {
    /// Of a configuration that Envoy is making.
    pub fn new(config: Object) -> EnvoyConfig {
        // SAFETY: the configuration lives until its hook of destruction returns.
        EnvoyConfig { config, scheduler: unsafe { abi::config_scheduler_new(config) } }
    }

    /// Has Envoy call the configuration's hook on the main thread.
    pub fn commit(&self) {
        // SAFETY: the scheduler is deleted with this value.
        unsafe { abi::config_scheduler_commit(self.scheduler, 0) };
    }

    /// Defines a metric. `None` if Envoy refuses; later than in the hook that makes the configuration it always does.
    pub fn define(&self, kind: MetricType, name: &str) -> Option<usize> {
        let (name, mut id) = (Bytes::of(name.as_bytes()), 0);
        let define = match kind {
            MetricType::Counter => abi::define_counter,
            MetricType::Gauge => abi::define_gauge,
        };
        // SAFETY: the configuration is alive, and Envoy copies a live string and writes one number.
        (unsafe { define(self.config, name, std::ptr::null(), 0, &raw mut id) } == 0).then_some(id)
    }

    /// Adds to a counter or gauge.
    pub fn increment(&self, kind: MetricType, id: usize, by: i64) {
        let change = match (kind, by < 0) {
            (MetricType::Counter, _) => abi::increment_counter,
            (MetricType::Gauge, false) => abi::increment_gauge,
            (MetricType::Gauge, true) => abi::decrement_gauge,
        };
        // SAFETY: the configuration is alive.
        unsafe { change(self.config, id, std::ptr::null(), 0, by.unsigned_abs()) };
    }

    /// Sets a gauge.
    pub fn record(&self, id: usize, value: u64) {
        // SAFETY: the configuration is alive.
        unsafe { abi::set_gauge(self.config, id, std::ptr::null(), 0, value) };
    }

    /// Opens a stream of a cluster. Returns its number. Its hooks may be called before that.
    pub fn start_stream(&self, cluster: &str, headers: &[(&str, &str)]) -> Result<u64, Refused> {
        let pair = |(name, value): &(&str, &str)| Pair::of(name.as_bytes(), value.as_bytes());
        let pairs: Vec<Pair> = headers.iter().map(pair).collect();
        let (cluster, mut id) = (Bytes::of(cluster.as_bytes()), 0);
        // SAFETY: the configuration is alive, and Envoy copies live headers and writes one number.
        let status = unsafe {
            abi::start_stream(
                self.config,
                &raw mut id,
                cluster,
                pairs.as_ptr(),
                pairs.len(),
                Bytes::NONE,
                false,
                0,
            )
        };
        if status == 0 { Ok(id) } else { Err(Refused(status)) }
    }

    /// Sends bytes on a stream; false if it has ended.
    pub fn send(&self, stream: u64, bytes: &[u8]) -> bool {
        // SAFETY: the configuration is alive, and Envoy copies a live slice.
        unsafe { abi::send_data(self.config, stream, Bytes::of(bytes), false) }
    }

    /// Resets a stream.
    pub fn reset(&self, stream: u64) {
        // SAFETY: the configuration is alive.
        unsafe { abi::reset_stream(self.config, stream) };
    }
}

impl Drop for EnvoyConfig {
    fn drop(&mut self) {
        // SAFETY: nothing else has the scheduler.
        unsafe { abi::config_scheduler_delete(self.scheduler) };
    }
}
