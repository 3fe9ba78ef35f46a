//! The admin HTTP: health, readiness, metrics, the explanation of a key, and clients that take their time.

mod common;

use common::{DEADLINE, Weir, start};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use weir_core::rules::identifier::canonical_identifier;
use weir_core::wire::{Count, FilterFrame, Report};

async fn call(weir: &Weir, method: Method, path: &str) -> (u16, String) {
    let connection = TcpStream::connect(weir.server.admin_address()).await.unwrap();
    let (mut sender, driver) = hyper::client::conn::http1::handshake(TokioIo::new(connection)).await.unwrap();
    let driver = tokio::spawn(driver);
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "weir")
        .body(Empty::<Bytes>::new())
        .unwrap();
    let response = timeout(DEADLINE, sender.send_request(request)).await.unwrap().unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    driver.abort();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

async fn get(weir: &Weir, path: &str) -> (u16, String) {
    call(weir, Method::GET, path).await
}

async fn get_json(weir: &Weir, path: &str) -> (u16, Value) {
    let (status, body) = get(weir, path).await;
    (status, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{body}: {error}")))
}

#[tokio::test]
async fn health_readiness_and_metrics() {
    let weir = start(None).await;
    assert_eq!(get(&weir, "/healthz").await.0, 200);
    assert_eq!(get(&weir, "/readyz").await.0, 200);
    let mut peer = weir.join(1, true).await;
    peer.send(weir.report(1, "alice", 5)).await;
    peer.next_with(|frame| frame.ack).await;
    peer.answers(vec![weir.consult(1, "alice", 5, 1, 5), weir.consult(2, "alice", 5, 1, 6)]).await;
    let (status, text) = get(&weir, "/metrics").await;
    assert_eq!(status, 200);
    for line in [
        "weir_aggregator_streams 1",
        "weir_aggregator_live_origins 1",
        "weir_aggregator_keys 1",
        "weir_aggregator_reports_total 1",
        "weir_aggregator_counts_merged_total 1",
        "weir_aggregator_consults_total{result=\"refused\"} 1",
        "weir_aggregator_consults_total{result=\"granted\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "no {line:?} in\n{text}");
    }
    assert!(!text.contains("alice") && !text.contains("0101"), "no label by identifier or origin");
    weir.server.shared().draining.send_replace(Some(Instant::now()));
    assert_eq!(get(&weir, "/readyz").await.0, 503);
    assert_eq!(get(&weir, "/healthz").await.0, 200);
}

#[tokio::test]
async fn a_key_is_explained() {
    let weir = start(None).await;
    let mut first = weir.join(1, false).await;
    let mut second = weir.join(2, false).await;
    for (peer, own) in [(&mut first, 5), (&mut second, 7)] {
        peer.send(weir.report(1, "al ice", own)).await;
        peer.next_with(|frame| frame.ack).await;
    }
    let (status, said) = get_json(&weir, "/v1/keys?namespace=api&identifier=al%20ice").await;
    assert_eq!(status, 200);
    assert_eq!(said["region"], "test-region");
    let window = &said["windows"][0];
    assert_eq!((&window["duration_ms"], &window["epoch"]), (&3_600_000.into(), &0.into()));
    assert_eq!((&window["effective"], &window["limit"]), (&12.into(), &1_000.into()));
    let cell = &window["cells"][0];
    assert_eq!(cell["sequence"], weir.sequence());
    assert_eq!(cell["start"]["unix_ms"], weir.sequence() * 3_600_000);
    assert!(cell["end"]["rfc3339"].as_str().unwrap().ends_with(":00:00.000Z"), "{cell}");
    assert_eq!((&cell["regional_total"], &cell["global_others"]), (&12.into(), &0.into()));
    assert!(cell["global_others_age_ms"].is_null());
    assert_eq!(cell["components"][1]["origin"], "02".repeat(16));
    assert_eq!(cell["components"][1]["own"], 7);
    assert!(cell["components"][0]["age_ms"].as_u64().unwrap() < 60_000);
}

#[tokio::test]
async fn a_long_identifier_is_found_by_its_digest() {
    let weir = start(None).await;
    let mut peer = weir.join(1, false).await;
    let raw = "x".repeat(300);
    let mut canonical = Vec::new();
    canonical_identifier(raw.as_bytes(), &mut canonical);
    let key = common::key(std::str::from_utf8(&canonical).unwrap());
    let counts = vec![Count { key, ..weir.count("unused", 3) }];
    peer.send(FilterFrame { report: Some(Report { id: 1, counts }), ..FilterFrame::default() }).await;
    peer.next_with(|frame| frame.ack).await;
    let (status, said) = get_json(&weir, &format!("/v1/keys?namespace=api&identifier={raw}")).await;
    assert_eq!((status, &said["windows"][0]["effective"]), (200, &3.into()));
}

#[tokio::test]
async fn errors_are_json_and_kind() {
    let weir = start(None).await;
    let cases = [
        (Method::GET, "/v1/keys", 400, "namespace, identifier"),
        (Method::GET, "/v1/keys?namespace=api", 400, "missing: identifier"),
        (Method::GET, "/v1/keys?namespace=api&identifier=%", 400, "percent"),
        (Method::GET, "/v1/keys?namespace=api&identifier=nobody", 404, "nothing is known"),
        (Method::GET, "/v2", 404, "/v1/keys"),
        (Method::POST, "/v1/keys", 405, "GET"),
    ];
    for (method, path, expected, part) in cases {
        let (status, body) = call(&weir, method, path).await;
        let said: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(status, expected, "{path}");
        assert!(said["error"].as_str().unwrap().contains(part), "{path}: {said}");
    }
}

#[tokio::test]
async fn a_client_that_does_not_finish_its_request_is_let_go() {
    let weir = start(None).await;
    let mut connection = TcpStream::connect(weir.server.admin_address()).await.unwrap();
    connection.write_all(b"GET /healthz HTTP/1.1\r\nhost: we").await.unwrap();
    let mut said = Vec::new();
    let ended = timeout(Duration::from_secs(8), connection.read_to_end(&mut said)).await;
    assert!(ended.is_ok(), "the connection is still held");
    assert_eq!(get(&weir, "/healthz").await.0, 200);
}
