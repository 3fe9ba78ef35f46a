//! Tests of spans as a collector receives them, and of collectors that are unavailable, unresponsive or untrusted: they cost
//! only spans.

use crate::support::http::{Client, JSON, write};
use crate::support::server::{DEADLINE, Peer, Weir, settings, start_with, until};
use crate::support::tracing::*;
use rcgen::{CertificateParams, CertifiedIssuer, KeyPair};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::timeout;
use weir_aggregator::database::DatabaseOptions;
use weir_aggregator::redis::StoreOptions;
use weir_aggregator::server::Settings;
use weir_aggregator::telemetry::spans::{Telemetry, around, redis, statement};
use weir_core::model::schedule::Schedule;
use weir_core::model::wire::{self, Charge, ExactRequest, FilterFrame, LogLimit, MAX_FRAME_CELLS, Query};
use weir_envoy::{Collector, Redis, RedisOptions};

fn spans(weir: &Weir, result: &str) -> f64 {
    weir.metric(&format!("weir_aggregator_spans_total{{result=\"{result}\"}}"))
}

async fn queried(peer: &mut Peer, request: Query, traces: Vec<wire::Trace>) {
    assert!(peer.answers(vec![Query { timeout_ms: 5_000, traces, ..request }]).await[0].granted);
}

#[tokio::test]
async fn queries_are_in_the_traces_of_their_requests() {
    let collector = Collector::start(None).await.unwrap();
    let weir = start_with(to(&collector)).await;
    let mut peer = weir.join(1, false).await;
    let unrecorded = vec![trace(UNRECORDED, "unrecorded")];
    queried(&mut peer, weir.query(1, "alice", 0, 2, 10), unrecorded).await;
    let hostile = wire::Trace { trace_id: vec![0; 3], request_id: "\n".into(), ..wire::Trace::default() };
    let traces = vec![hostile, trace(RECORDED, "an-id"), trace(LINKED, "another")];
    queried(&mut peer, weir.query(2, "alice", 2, 3, 10), traces).await;
    let log = LogLimit { key: crate::support::server::key("bob"), most: 4 };
    let charge = Charge { log: Some(log), ledger: None, cost: 5 };
    let request = ExactRequest {
        id: 3,
        charges: vec![charge],
        timeout_ms: 5_000,
        trace: Some(trace(RECORDED, "exact")),
    };
    peer.send(FilterFrame { exact_requests: vec![request], ..FilterFrame::default() }).await;

    let query = found(&collector, "query", |_| true).await;
    assert_eq!((parent(&query), query.span.kind), (RECORDED[3..52].to_owned(), SERVER));
    let links: Vec<_> = query.span.links.iter().map(|link| hex(&link.trace_id)).collect();
    assert_eq!(links, [&LINKED[3..35]]);
    let expected = [
        ("guid:x-request-id", "an-id"),
        ("weir.workspace", "default"),
        ("weir.namespace", "api"),
        ("weir.window_ms", "3600000"),
        ("weir.cost", "3"),
        ("weir.limit", "10"),
        ("weir.outcome", "granted"),
        ("weir.answered_by", "memory"),
    ];
    attributes(&query, &expected);
    let region = (query.service.as_str(), query.resource("weir.region"));
    assert_eq!(region, ("weir-aggregator", Some("test-region".to_owned())));
    let request = found(&collector, "exact_request", |_| true).await;
    assert_eq!(parent(&request), RECORDED[3..52]);
    attributes(
        &request,
        &[("guid:x-request-id", "exact"), ("weir.outcome", "denied"), ("weir.charges.log", "1")],
    );
    let all = collector.spans();
    assert_eq!(all.iter().filter(|received| received.span.name == "query").count(), 1, "one is not recorded");
    let text = format!("{all:?}");
    assert!(["alice", "bob"].iter().all(|identifier| !text.contains(identifier)), "{text}");
    until("they are counted", || spans(&weir, "exported") == all.len() as f64).await;
}

#[tokio::test]
async fn calls_over_http_are_named_by_their_methods() {
    let collector = Collector::start(None).await.unwrap();
    let weir = start_with(to(&collector)).await;
    let mut client = Client::connect(&weir).await;
    // A client may send any method.
    let cases = [("GET", "GET"), ("PUT", "PUT"), ("DELETE", "DELETE"), ("POST", "POST"), ("ALICE", "_OTHER")];
    for (method, recorded) in cases {
        let head = [("traceparent", LINKED)];
        client.send(method, "/v1/overrides", &head, b"").await;
        let shown = if recorded == "_OTHER" { "HTTP" } else { recorded };
        let span = found(&collector, &format!("{shown} /v1/overrides"), |_| true).await;
        attributes(&span, &[("http.request.method", recorded), ("http.route", "/v1/overrides")]);
    }
}

#[tokio::test]
async fn calls_of_stores_are_children_of_their_requests() {
    let collector = Collector::start(None).await.unwrap();
    let redis = Redis::start(RedisOptions::default()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/weir.db", folder.path().display());
    let database = DatabaseOptions { url, read_url: None, region: "test-region".into() };
    let weir = start_with(Settings {
        store: Some(StoreOptions::parse(&redis.url(), "test-region").unwrap()),
        database: Some(database),
        migrate: true,
        schedule: Schedule::for_tests(),
        ..to(&collector)
    })
    .await;
    until("the store is used", || weir.server.services().store_is_usable()).await;
    let mut peer = weir.join(1, false).await;
    // Past half of its limit, so that it is published.
    queried(&mut peer, weir.query(1, "alice", 0, 9, 10), vec![trace(RECORDED, "an-id")]).await;
    peer.send(weir.report(1, "carol", 700)).await;
    let body = json!({ "namespace": "api", "identifier": "dora", "limit": 3, "duration": "1m", "algorithm": "sliding_log" });
    let mut client = Client::connect(&weir).await;
    let head = [JSON, ("traceparent", LINKED), ("x-request-id", "by-http")];
    let answer = client.send("POST", "/v1/check", &head, body.to_string().as_bytes()).await;
    assert_eq!(answer.status, 200, "{answer:?}");

    let query = found(&collector, "query", |_| true).await;
    attributes(&query, &[("weir.answered_by", "redis"), ("weir.outcome", "granted")]);
    let http = found(&collector, "POST /v1/check", |_| true).await;
    assert_eq!(parent(&http), LINKED[3..52]);
    attributes(&http, &[("guid:x-request-id", "by-http"), ("http.response.status_code", "200")]);
    let replay =
        found(&collector, "replay", |replay| replay.attribute("weir.cells").is_some_and(|n| n != "0")).await;
    let exchange =
        found(&collector, "exchange", |packet| packet.attribute("weir.cells").is_some_and(|n| n != "0"))
            .await;
    let import = found(&collector, "import", |_| true).await;
    let (insert, select) = ("INSERT ratelimit_window_counts", "SELECT ratelimit_window_counts");
    for (name, system, above) in [
        ("EVALSHA", "redis", &query),
        ("EVALSHA", "redis", &http),
        ("EVALSHA", "redis", &replay),
        (insert, "sqlite", &exchange),
        (select, "sqlite", &import),
    ] {
        let call = found(&collector, name, |call| is_beneath(call, above)).await;
        assert_eq!(call.span.kind, CLIENT);
        attributes(&call, &[("db.system.name", system)]);
    }
    let last = collector.spans().len();
    queried(&mut peer, weir.query(2, "erin", 0, 1, 10), vec![trace(RECORDED, "the-last")]).await;
    weir.server.stop().await;
    let exported = collector.spans();
    let the_last = exported[last..]
        .iter()
        .any(|span| span.attribute("guid:x-request-id").as_deref() == Some("the-last"));
    assert!(the_last, "spans that ended before the shutdown must be exported");
}

/// The collector does not accept connections; the system's backlog does.
#[tokio::test]
async fn an_unresponsive_collector_costs_spans_alone() {
    let unresponsive = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", unresponsive.local_addr().unwrap());
    let weir = start_with(Settings { telemetry: options(endpoint, None), ..settings() }).await;
    let mut peer = weir.join(1, false).await;
    const FRAMES: usize = 16;
    for _ in 0..FRAMES {
        let queries: Vec<_> =
            (0..MAX_FRAME_CELLS as u64).map(|id| weir.query(id, &format!("user-{id}"), 0, 1, 10)).collect();
        assert_eq!(peer.answers(queries).await.len(), MAX_FRAME_CELLS);
    }
    let made = (FRAMES * MAX_FRAME_CELLS) as f64;
    until("the queue is full", || spans(&weir, "dropped") > 0.0).await;
    assert!(spans(&weir, "dropped") < made && spans(&weir, "exported") == 0.0);
    timeout(DEADLINE, weir.server.stop()).await.expect("the server must stop, whatever is queued");
}

#[tokio::test]
async fn a_collector_that_is_unavailable_costs_spans_alone_until_it_is_there() {
    let port = weir_envoy::ports::free().unwrap();
    let endpoint = format!("http://127.0.0.1:{port}");
    let weir = start_with(Settings { telemetry: options(endpoint, None), ..settings() }).await;
    let mut peer = weir.join(1, false).await;
    queried(&mut peer, weir.query(1, "alice", 0, 1, 10), Vec::new()).await;
    until("the failure is counted", || spans(&weir, "failed") == 1.0).await;
    queried(&mut peer, weir.query(2, "alice", 1, 1, 10), Vec::new()).await;
    until("the second failure is counted", || spans(&weir, "failed") == 2.0).await;
    assert_eq!((spans(&weir, "exported"), spans(&weir, "dropped")), (0.0, 0.0));
}

#[tokio::test]
async fn tls_authenticates_the_collector() {
    let folder = tempfile::tempdir().unwrap();
    let authority = || {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    };
    let (trusted, other) = (authority(), authority());
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &trusted).unwrap().pem();
    let collector = Collector::start(Some((certificate, key.serialize_pem()))).await.unwrap();
    for (authority, result) in [(&trusted, "exported"), (&other, "failed")] {
        let ca_file = Some(write(folder.path(), result, &authority.pem()));
        let endpoint = format!("https://localhost:{}", collector.port());
        let weir = start_with(Settings { telemetry: options(endpoint, ca_file), ..settings() }).await;
        let mut peer = weir.join(1, false).await;
        queried(&mut peer, weir.query(1, "alice", 0, 1, 10), Vec::new()).await;
        until(result, || spans(&weir, result) == 1.0).await;
    }
    assert_eq!(collector.spans().len(), 1);
}

#[tokio::test]
async fn without_options_nothing_is_made() {
    let weir = start_with(settings()).await;
    let mut peer = weir.join(1, false).await;
    let request = || weir.query(1, "alice", 0, 1, 10);
    queried(&mut peer, request(), vec![trace(RECORDED, "an-id")]).await;
    let results = ["exported", "dropped", "failed"];
    assert!(results.iter().all(|result| spans(&weir, result) == 0.0));
    let off = Telemetry::off();
    assert!(off.queries(&[request()]).is_none() && off.exact_request(&ExactRequest::default()).is_none());
    let beneath =
        around(None, async { redis(1).is_none() && statement("sqlite", "SELECT", "t", 1).is_none() });
    assert!(beneath.await);
    off.end().await;
}
