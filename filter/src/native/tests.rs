//! The native filter in an Envoy that the tests are: [`Fake`] has its functions, and hooks are called as Envoy calls them.

use super::fake::{Fake, Request, Value};
use super::hooks::*;
use super::{installed, slots};
use crate::host::abi::{Bytes, Object, Pair};
use crate::host::calls;
use crate::host::shared::EnvoyShared;
use prost::Message;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use weir_core::control::Keeper;
use weir_core::model::time::Now;
use weir_core::model::wire::{
    Ack, Control, Controls, FilterFrame, PROTOCOL_VERSION, Pong, Push, RegionFrame, Welcome,
};

/// Slots, table and thread belong to the process, so tests run one at a time.
static ALONE: Mutex<()> = Mutex::new(());
/// What the hook of headers returns for a request that waits.
const PAUSED: u32 = 4;
const SOON: Duration = Duration::from_secs(20);

/// An Envoy, alone in the process.
struct Envoy {
    _alone: MutexGuard<'static, ()>,
}

/// A place in its configuration: its object, and the module's.
struct Place {
    object: Box<u64>,
    entry: *const c_void,
}

/// A request under way: its object, and the module's.
struct Sent {
    request: Box<Request>,
    filter: *const c_void,
    status: u32,
}

impl Envoy {
    fn start() -> Envoy {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        Fake::with(|fake| {
            fake.log.clear();
            fake.events.clear();
            fake.streams.clear();
            fake.metrics.clear();
            fake.refuses_streams = true;
            fake.validates = false;
            assert!(fake.schedulers.is_empty(), "another test has failed: {:?}", fake.schedulers);
        });
        // What an ended configuration has counted.
        crate::host::metrics::take_changes();
        Envoy { _alone: alone }
    }

    /// Makes a place; the module may refuse it.
    fn try_place(&self, config: &str) -> Option<Place> {
        let mut object = Box::new(0);
        let at: *mut u64 = &raw mut *object;
        let text = Bytes::of(config.as_bytes());
        let entry = unsafe { envoy_dynamic_module_on_http_filter_config_new(at.cast(), Bytes::NONE, text) };
        (!entry.is_null()).then_some(Place { object, entry })
    }

    fn place(&self, config: &str) -> Place {
        self.try_place(config).unwrap_or_else(|| panic!("{:?}", Fake::with(|fake| fake.log.clone())))
    }

    /// Delivers the events of a place, until `is_met`.
    fn until(&self, place: &Place, what: &str, mut is_met: impl FnMut(&mut Fake) -> bool) {
        let deadline = Instant::now() + SOON;
        while !Fake::with(&mut is_met) {
            assert!(Instant::now() < deadline, "{what}: {:?}", Fake::with(|fake| fake.log.clone()));
            if !place.deliver() {
                std::thread::park_timeout(Duration::from_millis(1));
            }
        }
    }

    /// Opens the stream of the worker 0 and accepts it. Returns its number.
    fn welcome(&self, place: &Place) -> u64 {
        Fake::with(|fake| fake.refuses_streams = false);
        let workers = Fake::with(|fake| fake.workers as usize);
        self.until(place, "streams are open", |fake| {
            fake.streams.values().filter(|stream| !stream.sent.is_empty()).count() >= workers
        });
        let streams: Vec<u64> = Fake::with(|fake| fake.streams.keys().copied().collect());
        let welcome = Welcome { version: PROTOCOL_VERSION, region: "here".to_owned() };
        let frame = RegionFrame { welcome: Some(welcome), ..RegionFrame::default() };
        streams.iter().for_each(|stream| place.receive(*stream, &frame));
        // A worker whose stream was accepted sends more than its first frame.
        let first: usize = Fake::with(|fake| fake.streams.values().map(|stream| stream.sent.len()).sum());
        self.until(place, "it is up", |fake| {
            fake.streams.values().map(|stream| stream.sent.len()).sum::<usize>() > first
        });
        streams[0]
    }
}

/// An aggregator behind all streams of a place. It answers pings, acknowledges reports, and has nothing to push.
#[derive(Default)]
struct Aggregator {
    /// The bytes of each stream that were read.
    read: BTreeMap<u64, usize>,
    /// When each ping was sent.
    pings: Vec<u64>,
}

impl Aggregator {
    /// Answers what was sent since the last call.
    fn serve(&mut self, place: &Place) {
        let streams: Vec<(u64, Vec<u8>)> = Fake::with(|fake| {
            fake.streams.iter().map(|(number, stream)| (*number, stream.sent.clone())).collect()
        });
        for (stream, sent) in streams {
            let read = self.read.entry(stream).or_default();
            while let Some(length) = sent.get(*read + 1..*read + 5) {
                let end = *read + 5 + u32::from_be_bytes(length.try_into().unwrap()) as usize;
                let frame = FilterFrame::decode(&sent[*read + 5..end]).unwrap();
                *read = end;
                self.pings.extend(frame.ping.as_ref().map(|ping| ping.sent_ms));
                place.receive(stream, &reply(frame));
            }
        }
    }

    /// Whether the last two pings lie as far apart as those of an idle worker.
    fn sees_an_idle_worker(&self) -> bool {
        matches!(self.pings[..], [.., before, last] if last - before >= 900)
    }
}

fn reply(frame: FilterFrame) -> RegionFrame {
    let subscribes = frame.hello.as_ref().map(|hello| hello.subscriber);
    RegionFrame {
        welcome: (subscribes == Some(false))
            .then(|| Welcome { version: PROTOCOL_VERSION, region: "here".to_owned() }),
        push: (subscribes == Some(true)).then(|| Push { complete: true, ..Push::default() }),
        pong: frame.ping.map(|ping| Pong {
            sent_ms: ping.sent_ms,
            unix_ms: calls::unix_now().0,
            live_nodes: 1,
        }),
        ack: frame.report.map(|report| Ack { report_id: report.id, ..Ack::default() }),
        ..RegionFrame::default()
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            Fake::with(|fake| assert!(fake.schedulers.is_empty(), "{:?}", fake.schedulers));
            assert!(installed::all().is_empty());
        }
    }
}

impl Place {
    fn address(&self) -> usize {
        (&raw const *self.object) as usize
    }

    fn object(&self) -> Object {
        self.address() as Object
    }

    /// Delivers an event; false if there is none.
    fn deliver(&self) -> bool {
        let event = Fake::with(|fake| {
            let at = fake.events.iter().position(|(of, _)| *of == self.address())?;
            fake.events.remove(at)
        });
        if let Some((_, event)) = event {
            unsafe { envoy_dynamic_module_on_http_filter_config_scheduled(self.object(), self.entry, event) };
        }
        event.is_some()
    }

    /// Passes a message of the aggregator on, in parts of one byte.
    fn receive(&self, stream: u64, frame: &RegionFrame) {
        let message = frame.encode_to_vec();
        let length = u32::try_from(message.len()).unwrap();
        let bytes = [&[0][..], &length.to_be_bytes(), &message].concat();
        for byte in bytes.chunks(1) {
            self.receive_bytes(stream, byte);
        }
    }

    fn receive_bytes(&self, stream: u64, bytes: &[u8]) {
        let data = [Bytes::of(bytes)];
        unsafe {
            envoy_dynamic_module_on_http_filter_config_http_stream_data(
                self.object(),
                self.entry,
                stream,
                data.as_ptr(),
                1,
                false,
            );
        }
    }

    /// Envoy removes a stream.
    fn remove(&self, stream: u64, reason: u32) {
        unsafe {
            envoy_dynamic_module_on_http_filter_config_http_stream_reset(
                self.object(),
                self.entry,
                stream,
                reason,
            );
        }
    }

    /// Sends a request through the filter on the worker 0.
    fn send(&self, headers: &[(&str, &str)]) -> Sent {
        self.send_request(Request { headers: owned(headers), ..Request::default() })
    }

    fn send_request(&self, request: Request) -> Sent {
        let request = Box::new(request);
        let object: Object = (&raw const *request).cast_mut().cast();
        let (filter, status) = unsafe {
            let filter = envoy_dynamic_module_on_http_filter_new(self.entry, object);
            (filter, envoy_dynamic_module_on_http_filter_request_headers(object, filter, true))
        };
        Sent { request, filter, status }
    }

    /// Sends a request, and waits until it is decided: before the first stream has failed, a request waits for it.
    fn decide(&self, request: Request) -> Sent {
        let sent = self.send_request(request);
        let deadline = Instant::now() + SOON;
        while sent.status == PAUSED && !sent.is_decided() {
            assert!(Instant::now() < deadline, "{:?}", Fake::with(|fake| fake.log.clone()));
            if !self.deliver() && !sent.deliver() {
                std::thread::park_timeout(Duration::from_millis(1));
            }
        }
        sent
    }

    /// Sends a request with headers, and waits until it is decided.
    fn get(&self, headers: &[(&str, &str)]) -> Sent {
        self.decide(Request { headers: owned(headers), ..Request::default() })
    }

    fn end(self) {
        unsafe { envoy_dynamic_module_on_http_filter_config_destroy(self.entry.cast_mut()) };
    }
}

impl Sent {
    fn is_decided(&self) -> bool {
        self.request.is_continued || self.request.answer.is_some()
    }

    fn object(&self) -> Object {
        (&raw const *self.request).cast_mut().cast()
    }

    /// Delivers what was decided after it had waited.
    fn deliver(&self) -> bool {
        let address = self.object() as usize;
        let event = Fake::with(|fake| {
            let at = fake.events.iter().position(|(of, _)| *of == address)?;
            fake.events.remove(at)
        });
        if let Some((_, event)) = event {
            unsafe { envoy_dynamic_module_on_http_filter_scheduled(self.object(), self.filter, event) };
        }
        event.is_some()
    }

    /// The status of the local response, or 200 if it passes.
    fn finish(self) -> u32 {
        let status = self.request.answer.as_ref().map_or(200, |answer| answer.0);
        unsafe {
            envoy_dynamic_module_on_http_filter_response_headers(self.object(), self.filter, true);
            envoy_dynamic_module_on_http_filter_stream_complete(self.object(), self.filter);
            envoy_dynamic_module_on_http_filter_destroy(self.filter.cast_mut());
        }
        status
    }
}

fn owned(headers: &[(&str, &str)]) -> Vec<(String, String)> {
    headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// One rule by the header `k`, counted in a namespace that no other test has.
fn config(namespace: &str, limit: u64, more: &str) -> String {
    format!(
        r#"{{"aggregator": {{"cluster": "region"}}, "test_faults": true{more}, "rules": [{{"name": "r.1", "namespace": "{namespace}",
            "identifier": {{"header": "k"}}, "limit": {limit}, "window": "31d", "timeout": "1s"}}]}}"#
    )
}

fn statuses(place: &Place, count: usize) -> Vec<u32> {
    (0..count).map(|_| place.get(&[("k", "a")]).finish()).collect()
}

#[test]
fn requests_are_limited_and_denials_are_as_usual() {
    let envoy = Envoy::start();
    let place = envoy.place(&config("hooks", 2, ""));
    assert_eq!(statuses(&place, 2), [200, 200]);
    let denied = place.get(&[("k", "a"), ("content-type", "application/grpc")]);
    let (status, headers, body, details) = denied.request.answer.as_ref().unwrap();
    assert_eq!(
        (*status, body.as_str(), details.as_str()),
        (429, "rate limit exceeded", "weir_limit_exceeded[r.1]")
    );
    let value =
        |wanted: &str| headers.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str());
    assert_eq!([value("x-ratelimit-limit"), value("grpc-status")], [Some("2"), Some("8")]);
    assert!(denied.request.filter_state.is_empty(), "{:?}", denied.request.filter_state);
    denied.finish();
    envoy.until(&place, "decisions are counted", |fake| {
        let of =
            |outcome: &str| fake.metrics.get(&format!("weir_decisions_total.rule.r.1.outcome.{outcome}"));
        (of("allowed"), of("denied")) == (Some(&2), Some(&1))
    });
    place.end();
}

#[test]
fn a_denial_writes_filter_state_where_that_is_configured() {
    let envoy = Envoy::start();
    let place = envoy.place(&config("state", 0, r#", "responses": {"filter_state": true}"#));
    let denied = place.get(&[("k", "a")]);
    let label = |name: &str| denied.request.filter_state.get(name).map(String::as_str);
    assert_eq!([label("wasm.weir_rule"), label("wasm.weir_outcome")], [Some("r.1"), Some("denied")]);
    assert_eq!(denied.finish(), 429);
    place.end();
}

#[test]
fn a_request_has_any_number_of_headers() {
    let envoy = Envoy::start();
    let place = envoy.place(&config("headers", 1, ""));
    for count in [1, 63, 64, 65, 1_000] {
        let mut headers: Vec<_> = (1..count).map(|at| (format!("x-{at}"), "v".to_owned())).collect();
        headers.push(("k".to_owned(), count.to_string()));
        let send = || place.decide(Request { headers: headers.clone(), ..Request::default() }).finish();
        assert_eq!([send(), send()], [200, 429], "{count} headers");
    }
    place.end();
}

#[test]
fn a_request_that_waits_is_resumed_on_its_worker() {
    let envoy = Envoy::start();
    let place = envoy.place(&config("waits", 100, ""));
    let stream = envoy.welcome(&place);
    let waits = place.send(&[("k", "new")]);
    assert_eq!((waits.status, waits.request.is_continued), (PAUSED, false), "its key is not known here");
    // The stream ends, so that this process decides.
    place.remove(stream, 0);
    assert!(waits.deliver() && waits.request.is_continued);
    assert_eq!(waits.finish(), 200);
    place.end();
}

#[test]
fn the_first_request_of_an_idle_worker_meets_live_control_that_another_worker_has_stored() {
    let envoy = Envoy::start();
    let place = envoy.place(&config("idle", 3, ""));
    Fake::with(|fake| fake.refuses_streams = false);
    let (mut aggregator, deadline) = (Aggregator::default(), Instant::now() + SOON);
    while !aggregator.sees_an_idle_worker() {
        assert!(Instant::now() < deadline, "{:?}", aggregator.pings);
        if !place.deliver() {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        aggregator.serve(&place);
    }
    let ban = Control {
        revision: 1,
        workspace: "default".to_owned(),
        scope: "idle".to_owned(),
        identifier: "a".to_owned(),
        kind: 3,
        ..Control::default()
    };
    let controls = Controls {
        incarnation: 7,
        entries: vec![ban],
        complete_through: 1,
        from_scratch: true,
        as_of: 1,
        ..Controls::default()
    };
    let now = Now { unix: calls::unix_now(), mono: calls::mono_now() };
    Keeper::load(&mut EnvoyShared, now).on_frame(&mut EnvoyShared, &controls);
    // A worker looks for live control at most every 40 ms; its next tick would be up to a quarter of a second later.
    let looks = Instant::now() + Duration::from_millis(45);
    while Instant::now() < looks {
        std::thread::park_timeout(Duration::from_millis(1));
    }
    assert_eq!(place.send(&[("k", "a")]).finish(), 403);
    Fake::with(|fake| fake.refuses_streams = true);
    place.end();
}

#[test]
fn a_request_may_end_before_and_after_it_is_decided() {
    let envoy = Envoy::start();
    let place = envoy.place(&config("ends", 100, ""));
    let stream = envoy.welcome(&place);
    let before = place.send(&[("k", "before")]);
    let after = place.send(&[("k", "after")]);
    assert_eq!((before.status, after.status), (PAUSED, PAUSED));
    before.finish();
    place.remove(stream, 0);
    let address = after.object() as usize;
    Fake::with(|fake| assert!(fake.events.iter().any(|(of, _)| *of == address)));
    // Its client leaves while the event is under way.
    after.finish();
    place.end();
}

#[test]
fn a_request_passes_over_a_panic_and_its_worker_begins_anew() {
    let envoy = Envoy::start();
    let place = envoy.place(&config("panics", 3, ""));
    assert_eq!(statuses(&place, 1), [200]);
    let stream = envoy.welcome(&place);
    let waits = place.send(&[("k", "waits")]);
    assert_eq!(waits.status, PAUSED);
    let broken = place.send(&[("k", "a"), ("x-weir-fault", "panic")]);
    assert_eq!((broken.status, broken.finish()), (0, 200));
    assert!(waits.deliver() && waits.request.is_continued, "a request that waited continues");
    waits.finish();
    envoy.until(&place, "the stream is closed", |fake| fake.streams[&stream].is_reset);
    envoy.until(&place, "the panic is counted", |fake| fake.metrics["weir_panics_total"] >= 1);
    Fake::with(|fake| fake.refuses_streams = true);
    place.end();
    // The table has outlived the plugins.
    let place = envoy.place(&config("panics", 3, ""));
    assert_eq!(statuses(&place, 3), [200, 200, 429]);
    place.end();
}

#[test]
fn a_panic_in_any_work_of_a_slot_is_caught() {
    let envoy = Envoy::start();
    let place = envoy.place(&config("any", 1, ""));
    let root = installed::all()[0].root;
    for slot in slots::all() {
        slot.run(root, |_| panic!("a tick, a message, or an end"));
        assert_eq!(slot.guard(7, || slot.on_request(root, |_| -> u32 { panic!("a request") })), 7);
    }
    assert_eq!(statuses(&place, 2), [200, 429]);
    place.end();
}

#[test]
fn equal_configurations_are_one_and_others_share_the_table() {
    let envoy = Envoy::start();
    let (one, same) = (envoy.place(&config("equal", 3, "")), envoy.place(&config("equal", 3, "")));
    let other = envoy.place(&config("equal", 3, r#", "responses": {"ietf_headers": true}"#));
    assert_eq!(installed::all().len(), 2);
    assert_eq!([statuses(&one, 1), statuses(&same, 1), statuses(&other, 2)].concat(), [200, 200, 200, 429]);
    // The first place of the text ends; the second one has it still.
    one.end();
    assert_eq!((installed::all().len(), statuses(&same, 1)), (2, vec![429]));
    same.end();
    assert_eq!((installed::all().len(), statuses(&other, 1)), (1, vec![429]));
    other.end();
}

#[test]
fn a_reload_keeps_counts() {
    let envoy = Envoy::start();
    let before = envoy.place(&config("reload", 3, ""));
    assert_eq!(statuses(&before, 2), [200, 200]);
    let after = envoy.place(&config("reload", 4, ""));
    before.end();
    assert_eq!(statuses(&after, 3), [200, 200, 429]);
    after.end();
}

#[test]
fn a_stream_that_ends_with_its_place_is_no_failure() {
    let envoy = Envoy::start();
    let before = envoy.place(&config("moves", 3, ""));
    envoy.welcome(&before);
    let after = envoy.place(&config("moves", 4, ""));
    let streams: Vec<u64> = Fake::with(|fake| fake.streams.keys().copied().collect());
    streams.iter().for_each(|stream| before.remove(*stream, 2));
    before.end();
    envoy.until(&after, "streams are open", |fake| {
        let opened = fake.streams.values().filter(|stream| stream.place == after.address());
        opened.filter(|stream| !stream.sent.is_empty()).count() >= 1
    });
    Fake::with(|fake| {
        assert!(!fake.log.iter().any(|line| line.contains("no stream")), "{:?}", fake.log);
        fake.refuses_streams = true;
    });
    after.end();
}

#[test]
fn an_answer_that_is_no_message_ends_the_stream() {
    let envoy = Envoy::start();
    let place = envoy.place(&config("long", 3, ""));
    let stream = envoy.welcome(&place);
    place.receive_bytes(stream, &[0, 0xff, 0xff, 0xff, 0xff]);
    envoy.until(&place, "it is removed", |fake| fake.streams[&stream].is_reset);
    Fake::with(|fake| fake.refuses_streams = true);
    place.end();
}

#[test]
fn a_call_without_a_token_is_refused_with_its_status() {
    let envoy = Envoy::start();
    let place = envoy.place(&config("token", 3, ""));
    Fake::with(|fake| fake.refuses_streams = false);
    envoy.until(&place, "streams are open", |fake| !fake.streams.is_empty());
    let stream = Fake::with(|fake| {
        let (number, stream) = fake.streams.iter().next().unwrap();
        assert_eq!(stream.cluster, "region");
        let path = (":path".to_owned(), "/weir.v1.Region/Follow".to_owned());
        assert!(stream.headers.contains(&path), "{:?}", stream.headers);
        *number
    });
    let headers = [Pair::of(b":status", b"200"), Pair::of(b"grpc-status", b"16")];
    unsafe {
        envoy_dynamic_module_on_http_filter_config_http_stream_headers(
            place.object(),
            place.entry,
            stream,
            headers.as_ptr(),
            headers.len(),
            true,
        );
    }
    Fake::with(|fake| {
        assert!(fake.log.iter().any(|line| line.contains("it ended with gRPC status 16")), "{:?}", fake.log);
        fake.refuses_streams = true;
    });
    place.end();
}

#[test]
fn a_check_of_the_configuration_starts_nothing() {
    let envoy = Envoy::start();
    Fake::with(|fake| fake.validates = true);
    let place = envoy.place(&config("checked", 3, ""));
    assert!(installed::all().is_empty());
    assert_eq!(place.send(&[("k", "a")]).finish(), 200);
    place.end();
    let claim = r#"{"aggregator": {"cluster": "c"}, "rules": [{"name": "r", "limit": 1, "window": "1m",
        "identifier": {"jwt_claim": {"claim": "sub"}}}]}"#;
    for (wrong, expected) in [("{}", "aggregator"), (claim, "rules[0].identifier.jwt_claim: ")] {
        assert!(envoy.try_place(wrong).is_none());
        Fake::with(|fake| {
            let last = fake.log.drain(..).collect::<String>();
            assert!(last.contains("weir: configuration: ") && last.contains(expected), "{last}");
        });
    }
}

/// A number whose bytes are a text is told from that text.
#[test]
fn a_call_of_json_rpc_is_answered_with_its_id() {
    let envoy = Envoy::start();
    let config = r#"{"aggregator": {"cluster": "region"}, "rules": [{"name": "r", "namespace": "rpc", "limit": 1, "window": "31d",
        "identifier": {"header": "k"}, "response": {"format": "json_rpc"}}]}"#;
    let place = envoy.place(config);
    assert_eq!(statuses(&place, 1), [200]);
    for (id, expected) in [
        (Value::Number(7.0), "\"id\":7,"),
        (Value::Text("abcdef3C".to_owned()), "\"id\":\"abcdef3C\","),
        (Value::Number(f64::from_le_bytes(*b"abcdef3C")), "\"id\":5460610219467361,"),
        (Value::Null, "\"id\":null,"),
    ] {
        let mut request = Request { headers: owned(&[("k", "a")]), ..Request::default() };
        request.metadata.insert(("envoy.filters.http.mcp".to_owned(), "id".to_owned()), id);
        let denied = place.decide(request);
        let (_, _, body, _) = denied.request.answer.as_ref().unwrap();
        assert!(body.contains(expected), "{body}");
        denied.finish();
    }
    place.end();
}

#[test]
fn properties_are_those_of_the_wasm_filter() {
    let envoy = Envoy::start();
    let config = r#"{"aggregator": {"cluster": "region"}, "rules": [{"name": "r", "namespace": "properties", "limit": 1,
        "window": "31d", "identifier": [{"metadata": {"filter": "f", "key": "k"}}, {"filter_state": "s"}, {"client_address": {}}]}]}"#;
    let place = envoy.place(config);
    let send = |value: Value, state: &str, address: &str| {
        let mut request = Request::default();
        request.metadata.insert(("f".to_owned(), "k".to_owned()), value);
        request.filter_state.insert("s".to_owned(), state.to_owned());
        request.attributes.insert(24, format!("{address}:1234"));
        place.decide(request).finish()
    };
    let text = || Value::Text("7".to_owned());
    assert_eq!([send(text(), "t", "10.0.0.1"), send(text(), "t", "10.0.0.1")], [200, 429]);
    assert_eq!([send(text(), "u", "10.0.0.1"), send(text(), "t", "10.0.0.2")], [200, 200]);
    // A number is the same identifier as its digits.
    assert_eq!(send(Value::Number(7.0), "t", "10.0.0.1"), 429);
    assert_eq!(
        [send(Value::Number(8.0), "t", "10.0.0.1"), send(Value::Number(8.0), "t", "10.0.0.1")],
        [200, 429]
    );
    assert_eq!(send(Value::Bool(true), "t", "10.0.0.1"), 200);
    // A list of one is its item; null is nothing, and requests without a part share a count.
    assert_eq!(send(Value::List(vec![text()]), "t", "10.0.0.1"), 429);
    assert_eq!([send(Value::Null, "t", "10.0.0.1"), send(Value::Null, "t", "10.0.0.1")], [200, 429]);
    place.end();
}
