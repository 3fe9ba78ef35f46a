//! An Envoy for tests: it has the functions that a dynamic module calls, and keeps what it was asked for.
//!
//! An object that Envoy passes to the module is the address of a [`Request`] or of a [`Place`] here. Events that a scheduler was asked for are
//! kept until a test delivers them.

use crate::host::abi::{Bytes, Map, Object, Pair};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

/// What the tests of this process share: they run one at a time.
static FAKE: Mutex<Fake> = Mutex::new(Fake::NEW);

/// What Envoy was asked for.
#[derive(Debug)]
pub struct Fake {
    pub workers: u32,
    pub validates: bool,
    pub log: Vec<String>,
    /// Events for requests and for places, by their addresses.
    pub events: VecDeque<(usize, u64)>,
    /// Schedulers that were not deleted: the objects that they belong to.
    pub schedulers: BTreeMap<usize, usize>,
    pub last: usize,
    /// The streams that were started, by number.
    pub streams: BTreeMap<u64, Stream>,
    /// Streams are refused.
    pub refuses_streams: bool,
    /// Metrics by name.
    pub metrics: BTreeMap<String, i64>,
    pub names: Vec<String>,
}

/// A stream of a place.
#[derive(Debug, Default)]
pub struct Stream {
    pub place: usize,
    pub cluster: String,
    pub headers: Vec<(String, String)>,
    pub sent: Vec<u8>,
    pub is_reset: bool,
}

/// A request.
#[derive(Debug, Default)]
pub struct Request {
    pub worker: u32,
    pub headers: Vec<(String, String)>,
    pub response_headers: Vec<(String, String)>,
    pub attributes: BTreeMap<u32, String>,
    pub numbers: BTreeMap<u32, u64>,
    /// Metadata: texts, by namespace and key.
    pub metadata: BTreeMap<(String, String), Value>,
    pub filter_state: BTreeMap<String, String>,
    /// The local response: status, headers, body, details.
    pub answer: Option<Answer>,
    pub is_continued: bool,
}

/// Status, headers, body and details of a response.
pub type Answer = (u32, Vec<(String, String)>, String, String);

/// A value of metadata.
#[derive(Clone, Debug)]
pub enum Value {
    Text(String),
    Number(f64),
    Bool(bool),
    List(Vec<Value>),
    Null,
}

impl Fake {
    const NEW: Fake = Fake {
        workers: 1,
        validates: false,
        log: Vec::new(),
        events: VecDeque::new(),
        schedulers: BTreeMap::new(),
        last: 0,
        streams: BTreeMap::new(),
        refuses_streams: false,
        metrics: BTreeMap::new(),
        names: Vec::new(),
    };

    /// Runs `work` on it.
    pub fn with<R>(work: impl FnOnce(&mut Fake) -> R) -> R {
        work(&mut FAKE.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    fn scheduler(&mut self, of: usize) -> Object {
        self.last += 8;
        self.schedulers.insert(self.last, of);
        self.last as Object
    }

    fn commit(&mut self, scheduler: Object, event: u64) {
        let of = self.schedulers.get(&(scheduler as usize)).copied();
        self.events.push_back((of.expect("a scheduler that was deleted"), event));
    }

    fn define(&mut self, name: Bytes) -> usize {
        let name = text(name);
        self.metrics.entry(name.clone()).or_default();
        self.names.push(name);
        self.names.len() - 1
    }

    fn add(&mut self, id: usize, by: i64) -> u32 {
        let name = self.names[id].clone();
        *self.metrics.entry(name).or_default() += by;
        0
    }
}

fn text(bytes: Bytes) -> String {
    String::from_utf8_lossy(unsafe { bytes.get() }).into_owned()
}

fn pairs(headers: *const Pair, count: usize) -> Vec<(String, String)> {
    let headers = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(headers, count) } };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    headers.iter().map(|pair| unsafe { (text(pair.name()), text(pair.value())) }).collect()
}

fn request<'a>(object: Object) -> &'a mut Request {
    unsafe { &mut *object.cast::<Request>() }
}

fn map(request: &Request, map: Map) -> &[(String, String)] {
    match map {
        Map::Request => &request.headers,
        Map::Response => &request.response_headers,
        Map::ResponseTrailers => &[],
    }
}

fn metadata(object: Object, namespace: Bytes, key: Bytes) -> Option<&'static Value> {
    request(object).metadata.get(&(text(namespace), text(key)))
}

fn item(object: Object, namespace: Bytes, key: Bytes, at: usize) -> Option<&'static Value> {
    match metadata(object, namespace, key)? {
        Value::List(items) => items.get(at),
        _ => None,
    }
}

/// Writes what is there.
fn put<T>(value: Option<T>, to: *mut T) -> bool {
    value.map(|value| unsafe { to.write(value) }).is_some()
}

fn namespaces(object: Object) -> Vec<&'static str> {
    let mut namespaces: Vec<&str> =
        request(object).metadata.keys().map(|(namespace, _)| namespace.as_str()).collect();
    namespaces.dedup();
    namespaces
}

fn keys(object: Object, namespace: Bytes) -> Vec<&'static str> {
    let all = request(object).metadata.keys();
    all.filter(|(of, _)| *of == text(namespace)).map(|(_, key)| key.as_str()).collect()
}

fn put_all(names: &[&str], to: *mut Bytes) -> bool {
    for (at, name) in names.iter().enumerate() {
        unsafe { to.add(at).write(Bytes::of(name.as_bytes())) };
    }
    true
}

fn as_text(value: &Value) -> Option<Bytes> {
    match value {
        Value::Text(text) => Some(Bytes::of(text.as_bytes())),
        _ => None,
    }
}

fn as_number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => Some(*number),
        _ => None,
    }
}

fn as_bool(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(value) => Some(*value),
        _ => None,
    }
}

macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)? $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($($argument: $type),*) $(-> $result)? $body
        )*
    };
}

functions! {
    envoy_dynamic_module_callback_log(level: u32, message: Bytes) {
        Fake::with(|fake| fake.log.push(format!("{level} {}", text(message))));
    }
    envoy_dynamic_module_callback_get_concurrency() -> u32 { Fake::with(|fake| fake.workers) }
    envoy_dynamic_module_callback_is_validation_mode() -> bool { Fake::with(|fake| fake.validates) }
    envoy_dynamic_module_callback_http_get_headers_size(object: Object, of: Map) -> usize {
        map(request(object), of).len()
    }
    envoy_dynamic_module_callback_http_get_headers(object: Object, of: Map, to: *mut Pair) -> bool {
        for (at, (name, value)) in map(request(object), of).iter().enumerate() {
            unsafe { to.add(at).write(Pair::of(name.as_bytes(), value.as_bytes())) };
        }
        true
    }
    envoy_dynamic_module_callback_http_add_header(object: Object, _of: Map, name: Bytes, value: Bytes) -> bool {
        request(object).response_headers.push((text(name), text(value)));
        true
    }
    envoy_dynamic_module_callback_http_send_response(
        object: Object, status: u32, headers: *const Pair, count: usize, body: Bytes, details: Bytes
    ) {
        request(object).answer = Some((status, pairs(headers, count), text(body), text(details)));
    }
    envoy_dynamic_module_callback_http_filter_get_attribute_string(object: Object, id: u32, to: *mut Bytes) -> bool {
        put(request(object).attributes.get(&id).map(|text| Bytes::of(text.as_bytes())), to)
    }
    envoy_dynamic_module_callback_http_filter_get_attribute_int(object: Object, id: u32, to: *mut u64) -> bool {
        put(request(object).numbers.get(&id).copied(), to)
    }
    envoy_dynamic_module_callback_http_get_metadata_string(
        object: Object, _source: u32, namespace: Bytes, key: Bytes, to: *mut Bytes
    ) -> bool {
        put(metadata(object, namespace, key).and_then(as_text), to)
    }
    envoy_dynamic_module_callback_http_get_metadata_number(
        object: Object, _source: u32, namespace: Bytes, key: Bytes, to: *mut f64
    ) -> bool {
        put(metadata(object, namespace, key).and_then(as_number), to)
    }
    envoy_dynamic_module_callback_http_get_metadata_bool(
        object: Object, _source: u32, namespace: Bytes, key: Bytes, to: *mut bool
    ) -> bool {
        put(metadata(object, namespace, key).and_then(as_bool), to)
    }
    envoy_dynamic_module_callback_http_get_metadata_namespaces_count(object: Object, _source: u32) -> usize {
        namespaces(object).len()
    }
    envoy_dynamic_module_callback_http_get_metadata_namespaces(object: Object, _source: u32, to: *mut Bytes) -> bool {
        put_all(&namespaces(object), to)
    }
    envoy_dynamic_module_callback_http_get_metadata_keys_count(object: Object, _source: u32, namespace: Bytes) -> usize {
        keys(object, namespace).len()
    }
    envoy_dynamic_module_callback_http_get_metadata_keys(
        object: Object, _source: u32, namespace: Bytes, to: *mut Bytes
    ) -> bool {
        put_all(&keys(object, namespace), to)
    }
    envoy_dynamic_module_callback_http_get_metadata_list_size(
        object: Object, _source: u32, namespace: Bytes, key: Bytes, to: *mut usize
    ) -> bool {
        let size = match metadata(object, namespace, key) {
            Some(Value::List(items)) => Some(items.len()),
            _ => None,
        };
        put(size, to)
    }
    envoy_dynamic_module_callback_http_get_metadata_list_string(
        object: Object, _source: u32, namespace: Bytes, key: Bytes, at: usize, to: *mut Bytes
    ) -> bool {
        put(item(object, namespace, key, at).and_then(as_text), to)
    }
    envoy_dynamic_module_callback_http_get_metadata_list_number(
        object: Object, _source: u32, namespace: Bytes, key: Bytes, at: usize, to: *mut f64
    ) -> bool {
        put(item(object, namespace, key, at).and_then(as_number), to)
    }
    envoy_dynamic_module_callback_http_get_metadata_list_bool(
        object: Object, _source: u32, namespace: Bytes, key: Bytes, at: usize, to: *mut bool
    ) -> bool {
        put(item(object, namespace, key, at).and_then(as_bool), to)
    }
    envoy_dynamic_module_callback_http_get_filter_state_bytes(object: Object, key: Bytes, to: *mut Bytes) -> bool {
        put(request(object).filter_state.get(&text(key)).map(|text| Bytes::of(text.as_bytes())), to)
    }
    envoy_dynamic_module_callback_http_get_filter_state_typed(_object: Object, _key: Bytes, _to: *mut Bytes) -> bool {
        false
    }
    envoy_dynamic_module_callback_http_set_filter_state_bytes(object: Object, key: Bytes, value: Bytes) -> bool {
        request(object).filter_state.insert(text(key), text(value));
        true
    }
    envoy_dynamic_module_callback_http_filter_continue_decoding(object: Object) {
        request(object).is_continued = true;
    }
    envoy_dynamic_module_callback_http_filter_get_worker_index(object: Object) -> u32 { request(object).worker }
    envoy_dynamic_module_callback_http_filter_scheduler_new(object: Object) -> Object {
        Fake::with(|fake| fake.scheduler(object as usize))
    }
    envoy_dynamic_module_callback_http_filter_scheduler_commit(scheduler: Object, event: u64) {
        Fake::with(|fake| fake.commit(scheduler, event));
    }
    envoy_dynamic_module_callback_http_filter_scheduler_delete(scheduler: Object) {
        Fake::with(|fake| assert!(fake.schedulers.remove(&(scheduler as usize)).is_some()));
    }
    envoy_dynamic_module_callback_http_filter_config_scheduler_new(object: Object) -> Object {
        Fake::with(|fake| fake.scheduler(object as usize))
    }
    envoy_dynamic_module_callback_http_filter_config_scheduler_commit(scheduler: Object, event: u64) {
        Fake::with(|fake| fake.commit(scheduler, event));
    }
    envoy_dynamic_module_callback_http_filter_config_scheduler_delete(scheduler: Object) {
        Fake::with(|fake| assert!(fake.schedulers.remove(&(scheduler as usize)).is_some()));
    }
    envoy_dynamic_module_callback_http_filter_config_define_counter(
        _object: Object, name: Bytes, _labels: *const Bytes, _count: usize, to: *mut usize
    ) -> u32 {
        u32::from(!put(Some(Fake::with(|fake| fake.define(name))), to))
    }
    envoy_dynamic_module_callback_http_filter_config_define_gauge(
        _object: Object, name: Bytes, _labels: *const Bytes, _count: usize, to: *mut usize
    ) -> u32 {
        u32::from(!put(Some(Fake::with(|fake| fake.define(name))), to))
    }
    envoy_dynamic_module_callback_http_filter_config_increment_counter(
        _object: Object, id: usize, _labels: *const Bytes, _count: usize, by: u64
    ) -> u32 {
        Fake::with(|fake| fake.add(id, by as i64))
    }
    envoy_dynamic_module_callback_http_filter_config_increment_gauge(
        _object: Object, id: usize, _labels: *const Bytes, _count: usize, by: u64
    ) -> u32 {
        Fake::with(|fake| fake.add(id, by as i64))
    }
    envoy_dynamic_module_callback_http_filter_config_decrement_gauge(
        _object: Object, id: usize, _labels: *const Bytes, _count: usize, by: u64
    ) -> u32 {
        Fake::with(|fake| fake.add(id, -(by as i64)))
    }
    envoy_dynamic_module_callback_http_filter_config_set_gauge(
        _object: Object, id: usize, _labels: *const Bytes, _count: usize, value: u64
    ) -> u32 {
        Fake::with(|fake| {
            let name = fake.names[id].clone();
            fake.metrics.insert(name, value as i64);
            0
        })
    }
    envoy_dynamic_module_callback_http_filter_config_start_http_stream(
        object: Object, to: *mut u64, cluster: Bytes, headers: *const Pair, count: usize, _body: Bytes, _end: bool,
        _timeout: u64
    ) -> u32 {
        Fake::with(|fake| {
            if fake.refuses_streams {
                return 2;
            }
            let number = fake.streams.len() as u64 + 1;
            let (place, cluster, headers) = (object as usize, text(cluster), pairs(headers, count));
            fake.streams.insert(number, Stream { place, cluster, headers, ..Stream::default() });
            unsafe { to.write(number) };
            0
        })
    }
    envoy_dynamic_module_callback_http_filter_config_stream_send_data(
        _object: Object, stream: u64, data: Bytes, _end: bool
    ) -> bool {
        Fake::with(|fake| match fake.streams.get_mut(&stream).filter(|stream| !stream.is_reset) {
            Some(stream) => {
                stream.sent.extend_from_slice(unsafe { data.get() });
                true
            }
            None => false,
        })
    }
    envoy_dynamic_module_callback_http_filter_config_reset_http_stream(_object: Object, stream: u64) {
        Fake::with(|fake| fake.streams.get_mut(&stream).expect("no such stream").is_reset = true);
    }
}
