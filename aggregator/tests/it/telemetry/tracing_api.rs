//! Tests of spans of the rate-limit service, of ledgers and of live control, as a collector receives them.

use crate::support::database::ledger::{ZONE, set_zone};
use crate::support::database::{Scene, Store, run};
use crate::support::http::{Client, JSON, OVERRIDES, write};
use crate::support::rls::{METHOD, OVER, descriptor, request, send};
use crate::support::server::{TOKEN, Weir, start_with, until};
use crate::support::tracing::*;
use serde_json::json;
use std::time::Duration;
use tonic::{Code, Request};
use weir_aggregator::api::rls::wire::RateLimitRequest;
use weir_aggregator::api::{ApiSettings, rls};
use weir_aggregator::database::DatabaseOptions;
use weir_aggregator::server::Settings;
use weir_core::model::wire::{Charge, ExactRequest, FilterFrame, LedgerLimit};
use weir_envoy::{Collector, Received};

const CALL: &str = "CALL check_velocity";
const LIMITS: &str = "
domain: edge
descriptors: [{key: user, rate_limit: {unit: month, requests_per_unit: 1}}]
";

/// A call of the rate-limit service with these additional headers.
fn rls(message: RateLimitRequest, headers: &[(&'static str, &str)]) -> Request<RateLimitRequest> {
    let mut request = Request::new(message);
    request.set_timeout(Duration::from_secs(5));
    for (name, value) in headers {
        request.metadata_mut().insert(*name, value.parse().unwrap());
    }
    request
}

#[tokio::test]
async fn calls_of_the_rate_limit_service_are_in_the_traces_of_their_callers() {
    let (collector, folder) = (Collector::start(None).await.unwrap(), tempfile::tempdir().unwrap());
    let file = write(folder.path(), "edge.yaml", LIMITS);
    let api = ApiSettings {
        rls: rls::Settings { files: Some(file), ..rls::Settings::default() },
        ..ApiSettings::default()
    };
    let weir = start_with(Settings { api, token: Some(TOKEN.into()), ..to(&collector) }).await;
    let (channel, bearer) = (weir.connect().await, format!("Bearer {TOKEN}"));
    let message = || request(vec![descriptor(&[("user", "alice")])]);
    let headers = |traceparent: &'static str, id: &'static str| {
        [("authorization", bearer.as_str()), ("traceparent", traceparent), ("x-request-id", id)]
    };
    send(&channel, rls(message(), &headers(UNRECORDED, "unrecorded"))).await.unwrap();
    let denied = send(&channel, rls(message(), &headers(RECORDED, "denied"))).await.unwrap();
    assert_eq!(denied.overall_code(), OVER);
    let malformed = send(&channel, rls(request(Vec::new()), &headers(LINKED, "malformed"))).await;
    assert_eq!(malformed.unwrap_err().code(), Code::InvalidArgument);
    let tokenless = send(&channel, rls(message(), &[("x-request-id", "tokenless")])).await;
    assert_eq!(tokenless.unwrap_err().code(), Code::Unauthenticated);

    for (id, above, code) in [
        ("denied", Some(RECORDED), Code::Ok),
        ("malformed", Some(LINKED), Code::InvalidArgument),
        ("tokenless", None, Code::Unauthenticated),
    ] {
        let is_it = |span: &Received| span.attribute("guid:x-request-id").as_deref() == Some(id);
        let call = found(&collector, METHOD.trim_start_matches('/'), is_it).await;
        assert_eq!(call.span.kind, SERVER);
        match above {
            Some(traceparent) => assert_eq!(parent(&call), traceparent[3..52]),
            None => assert!(call.span.parent_span_id.is_empty(), "a trace of its own: {call:#?}"),
        }
        let code = (code as i32).to_string();
        let (service, method) = METHOD[1..].split_once('/').unwrap();
        let expected = [("rpc.system", "grpc"), ("rpc.service", service), ("rpc.method", method)];
        attributes(&call, &[&expected[..], &[("rpc.grpc.status_code", &code)]].concat());
        let error = (code != "0").then(|| "grpc_status".to_owned());
        assert_eq!(call.attribute("error.type"), error, "a denial must not be an error");
    }
    let text = format!("{:?}", collector.spans());
    assert!(!text.contains("alice") && !text.contains("\"unrecorded\"") && !text.contains(TOKEN), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ledgers_of_mariadb() {
    let mut store = Store::mariadb().await;
    run!(&store, calls_of_ledgers_are_children_of_their_requests);
    a_ledger_that_is_unavailable(&mut store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ledgers_of_sqlite() {
    run!(&Store::sqlite(), calls_of_ledgers_are_children_of_their_requests);
}

/// A server with a zone, and with spans.
async fn start(scene: &Scene, collector: &Collector) -> Weir {
    set_zone(&scene.open("test-region"), ZONE, 1, 3_600).await;
    let database = DatabaseOptions { url: scene.url.clone(), read_url: None, region: "test-region".into() };
    start_with(Settings { database: Some(database), ..to(collector) }).await
}

/// A filter's exact request for ledgers.
fn exact_request(id: u64, zones: &[u32], request_id: &str, timeout_ms: u32) -> FilterFrame {
    let ledger = |zone: &u32| LedgerLimit { zone: *zone, bucket: b"alice".to_vec() };
    let charge = |zone| Charge { log: None, ledger: Some(ledger(zone)), cost: 1 };
    let trace = Some(trace(RECORDED, request_id));
    let exact_request = ExactRequest { id, charges: zones.iter().map(charge).collect(), timeout_ms, trace };
    FilterFrame { exact_requests: vec![exact_request], ..FilterFrame::default() }
}

/// The span of the request once it has ended, and its single child.
async fn ended(collector: &Collector, request_id: &str) -> (Received, Received) {
    let is_it = |span: &Received| span.attribute("guid:x-request-id").as_deref() == Some(request_id);
    let exact_request = found(collector, "exact_request", is_it).await;
    let call = found(collector, CALL, |call| is_beneath(call, &exact_request)).await;
    assert_eq!((parent(&exact_request).as_str(), call.span.kind), (&RECORDED[3..52], CLIENT));
    (exact_request, call)
}

async fn calls_of_ledgers_are_children_of_their_requests(store: &Store) {
    let (collector, scene) = (Collector::start(None).await.unwrap(), store.fresh().await);
    let weir = start(&scene, &collector).await;
    let peer = weir.join(1, false).await;
    peer.send(exact_request(1, &[ZONE], "first", 5_000)).await;
    ended(&collector, "first").await;
    peer.send(exact_request(2, &[ZONE, ZONE], "second", 5_000)).await;
    peer.send(exact_request(3, &[ZONE + 1], "no-zone", 5_000)).await;
    let system = if scene.is_mysql() { "mysql" } else { "sqlite" };
    let cases = [
        ("first", "allowed", "1", None),
        // After one has denied, the next is not queried.
        ("second", "denied", "2", None),
        ("no-zone", "undecided", "1", Some("no_zone")),
    ];
    for (id, outcome, ledgers, error) in cases {
        let (exact_request, call) = ended(&collector, id).await;
        let expected =
            [("weir.outcome", outcome), ("weir.charges.ledger", ledgers), ("weir.charges.log", "0")];
        attributes(&exact_request, &expected);
        attributes(&call, &[("db.system.name", system), ("db.operation.name", "CALL")]);
        assert_eq!(call.attribute("error.type").as_deref(), error, "{call:#?}");
        let calls = collector.spans().into_iter().filter(|span| is_beneath(span, &exact_request)).count();
        assert_eq!(calls, 1, "beneath {id}");
    }
    by_http(&weir, &collector).await;
    let text = format!("{:?}", collector.spans());
    assert!(!text.contains("alice") && !text.contains("bob"), "{text}");
}

async fn by_http(weir: &Weir, collector: &Collector) {
    let mut client = Client::connect(weir).await;
    let head = [JSON, ("traceparent", LINKED), ("x-request-id", "by-http")];
    let body = json!({"identifier": "bob", "algorithm": "ledger", "zone": ZONE, "timeout": "5s"});
    let answer = client.send("POST", "/v1/check", &head, body.to_string().as_bytes()).await;
    assert_eq!(answer.body["allowed"], true, "{answer:?}");
    let change = json!({"namespace": "n", "identifier": "bob", "exempt": true}).to_string();
    assert_eq!(client.send("PUT", OVERRIDES, &head, change.as_bytes()).await.status, 200);
    let path = format!("{OVERRIDES}?namespace=n&identifier=bob");
    assert_eq!(client.send("DELETE", &path, &head, b"").await.status, 200);

    let limit = found(collector, "POST /v1/check", |_| true).await;
    let call = found(collector, CALL, |call| is_beneath(call, &limit)).await;
    assert_eq!((call.span.kind, call.attribute("error.type")), (CLIENT, None));
    for method in ["PUT", "DELETE"] {
        let call = found(collector, &format!("{method} {OVERRIDES}"), |_| true).await;
        assert_eq!(parent(&call), LINKED[3..52]);
        attributes(&call, &[("http.request.method", method), ("guid:x-request-id", "by-http")]);
    }
}

async fn a_ledger_that_is_unavailable(store: &mut Store) {
    let (collector, scene) = (Collector::start(None).await.unwrap(), store.fresh().await);
    let weir = start(&scene, &collector).await;
    let peer = weir.join(1, false).await;
    store.server.as_mut().unwrap().process().kill().unwrap();
    peer.send(exact_request(1, &[ZONE], "unavailable", 5_000)).await;
    let (exact_request, call) = ended(&collector, "unavailable").await;
    attributes(&exact_request, &[("weir.outcome", "undecided")]);
    attributes(&call, &[("error.type", "unavailable")]);
    let undecided = "weir_aggregator_ledger_undecided_total{reason=\"unavailable\"}";
    until("it is counted", || weir.metric(undecided) == 1.0).await;
}
