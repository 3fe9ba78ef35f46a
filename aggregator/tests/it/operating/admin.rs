//! Tests of the admin listener: health, readiness, metrics, the status page and its data, and slow clients.

use crate::support::http::{Client, put};
use crate::support::server::{DEADLINE, Weir, settings, start, start_with, until};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::http::response::Parts;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use weir_aggregator::admin;
use weir_aggregator::database::DatabaseOptions;
use weir_aggregator::net::hosts::Hosts;
use weir_aggregator::server::Settings;
use weir_aggregator::telemetry::clock::Clock;
use weir_core::matching::canonical::canonical_identifier;
use weir_core::model::key::{Key, KeyParts};
use weir_core::model::schedule::Schedule;
use weir_core::model::wire::{Count, Counters, FilterFrame, Report, RuleCounters};

async fn call(weir: &Weir, method: Method, path: &str) -> (u16, String) {
    let (parts, body) = whole(weir, method, path).await;
    (parts.status.as_u16(), body)
}

async fn whole(weir: &Weir, method: Method, path: &str) -> (Parts, String) {
    let connection = TcpStream::connect(weir.server.admin_address()).await.unwrap();
    let (mut sender, driver) = hyper::client::conn::http1::handshake(TokioIo::new(connection)).await.unwrap();
    let driver = tokio::spawn(driver);
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "localhost")
        .body(Empty::<Bytes>::new())
        .unwrap();
    let response = timeout(DEADLINE, sender.send_request(request)).await.unwrap().unwrap();
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    driver.abort();
    (parts, String::from_utf8(body.to_vec()).unwrap())
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
    peer.answers(vec![weir.query(1, "alice", 5, 1, 5), weir.query(2, "alice", 5, 1, 6)]).await;
    let (status, text) = get(&weir, "/metrics").await;
    assert_eq!(status, 200);
    for line in [
        "weir_aggregator_streams 1",
        "weir_aggregator_live_nodes 1",
        "weir_aggregator_keys 1",
        "weir_aggregator_reports_total 1",
        "weir_aggregator_counts_merged_total 1",
        "weir_aggregator_queries_total{result=\"refused\"} 1",
        "weir_aggregator_queries_total{result=\"granted\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "no {line:?} in\n{text}");
    }
    assert!(
        !text.contains("alice") && !text.contains(&crate::support::server::node(1).to_string()),
        "no label by identifier or node"
    );
    weir.server.services().draining.send_replace(Some(Instant::now()));
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
    let (status, body) = get_json(&weir, "/v1/keys?namespace=api&identifier=al%20ice").await;
    assert_eq!(status, 200);
    assert_eq!(body["region"], "test-region");
    let window = &body["windows"][0];
    assert_eq!((&window["duration_ms"], &window["epoch"]), (&3_600_000.into(), &0.into()));
    assert_eq!((&window["used"], &window["limit"]), (&12.into(), &1_000.into()));
    let cell = &window["cells"][0];
    assert_eq!(cell["sequence"], weir.sequence());
    assert_eq!(cell["start_unix_ms"], weir.sequence() * 3_600_000);
    assert_eq!(cell["end_unix_ms"], (weir.sequence() + 1) * 3_600_000);
    assert_eq!((&cell["regional_total"], &cell["global_others"]), (&12.into(), &0.into()));
    assert_eq!(cell["regions"], json!([]));
    let components = cell["components"].as_array().unwrap();
    let of_second = components.iter().find(|one| one["node"] == crate::support::server::node(2).to_string());
    assert_eq!(of_second.unwrap()["own"], 7);
    assert!(cell["components"][0]["age_ms"].as_u64().unwrap() < 60_000);
}

#[tokio::test]
async fn a_long_identifier_is_found_by_its_digest() {
    let weir = start(None).await;
    let mut peer = weir.join(1, false).await;
    let raw = "x".repeat(300);
    let mut canonical = Vec::new();
    canonical_identifier(raw.as_bytes(), &mut canonical);
    let key = crate::support::server::key(std::str::from_utf8(&canonical).unwrap());
    let counts = vec![Count { key, ..weir.count("unused", 3) }];
    peer.send(FilterFrame { report: Some(Report { id: 1, counts }), ..FilterFrame::default() }).await;
    peer.next_with(|frame| frame.ack).await;
    let (status, body) = get_json(&weir, &format!("/v1/keys?namespace=api&identifier={raw}")).await;
    assert_eq!((status, &body["windows"][0]["used"]), (200, &3.into()));
}

/// Decisions of a worker's rule on the keys that `Weir::report` counts.
fn counters(shadow: bool, allowed: u64, shadow_denied: u64) -> FilterFrame {
    let rule = RuleCounters {
        identifier_parts: 1,
        name: "per-hour".into(),
        namespace: "api".into(),
        algorithm: "sliding_window".into(),
        limit: 1_000,
        window_ms: crate::support::server::HOUR_MS,
        shadow,
        allowed,
        shadow_denied,
        ..RuleCounters::default()
    };
    let counters = Counters { rules: vec![rule], workspace: "default".into() };
    FilterFrame { counters: Some(counters), ..FilterFrame::default() }
}

#[tokio::test]
async fn the_keys_nearest_their_limits_come_first_and_lead_to_their_explanations() {
    const HOSTILE: &str = "<img src=x onerror=alert(1)>";
    let weir = start(None).await;
    let mut peer = weir.join(1, false).await;
    for (id, identifier, own) in [(1, "some", 10), (2, HOSTILE, 1_200), (3, "most", 999)] {
        peer.send(weir.report(id, identifier, own)).await;
        peer.next_with(|frame| frame.ack).await;
    }
    let (_, top) = get_json(&weir, "/v1/top?limit=2").await;
    let first = &top["keys"][0];
    assert_eq!((&first["identifier"], &top["keys"][1]["identifier"]), (&HOSTILE.into(), &"most".into()));
    assert_eq!(top["keys"].as_array().unwrap().len(), 2);
    assert_eq!(
        (&top["keys_held"], &top["keys_over"], &top["keys_past_half"]),
        (&3.into(), &1.into(), &2.into())
    );
    assert!(first["wait_ms"].as_u64().unwrap() > 0, "{first}");
    let path = format!("/v1/keys?namespace=api&counted={}", first["counted"].as_str().unwrap());
    let (_, body) = get_json(&weir, &path).await;
    let window = &body["windows"][0];
    assert_eq!(
        (&body["identifier"], &window["used"], &window["limit"]),
        (&HOSTILE.into(), &1_200.into(), &1_000.into())
    );
    assert_eq!((&window["passes"], &window["remaining"]), (&false.into(), &0.into()));
    let part = &window["cells"][0]["components"][0];
    assert_eq!((&part["own"], &part["here"]), (&1_200.into(), &true.into()));
    let (_, some) = get_json(&weir, "/v1/keys?namespace=api&identifier=some&window_ms=3600000").await;
    assert_eq!((&some["windows"][0]["passes"], &some["windows"][0]["wait_ms"]), (&true.into(), &0.into()));
    let (_, none) = get_json(&weir, "/v1/keys?namespace=api&identifier=some&window_ms=60000").await;
    assert_eq!((&none["identifier"], none["windows"].as_array().unwrap().len()), (&"some".into(), 0));
}

#[tokio::test]
async fn rules_are_reported_by_filters_and_a_shadow_rule_names_the_keys_it_would_deny() {
    let weir = start(None).await;
    let mut peer = weir.join(1, true).await;
    peer.send(counters(true, 500, 0)).await;
    peer.send(counters(true, 520, 5)).await;
    for (id, identifier, own) in [(1, "light", 10), (2, "heavy", 1_200)] {
        peer.send(weir.report(id, identifier, own)).await;
        peer.next_with(|frame| frame.ack).await;
    }
    let (_, body) = get_json(&weir, "/v1/rules").await;
    let rule = &body["rules"][0];
    assert_eq!(
        (&rule["name"], &rule["shadow"], &rule["workers"]),
        (&"per-hour".into(), &true.into(), &1.into())
    );
    assert_eq!((&rule["decided"]["allowed"], &rule["decided"]["shadow_denied"]), (&20.into(), &5.into()));
    assert_eq!(rule["per_second"]["last_10s"]["allowed"], 2.0);
    let would = &rule["would_deny"];
    assert_eq!((&would["keys"], &would["furthest"][0]["identifier"]), (&1.into(), &"heavy".into()));
    let (_, explained) = get_json(&weir, "/v1/keys?namespace=api&identifier=heavy").await;
    assert_eq!(explained["windows"][0]["rules"][0]["name"], "per-hour");
    let (_, parts) = get_json(&weir, "/v1/parts").await;
    let envoy = &parts["envoys"][0];
    assert_eq!(
        (&envoy["node"], &envoy["subscriber"]),
        (&crate::support::server::node(1).to_string().into(), &true.into())
    );
    assert!(envoy["address"].as_str().unwrap().starts_with("127.0.0.1:"), "{envoy}");
    assert_eq!((&parts["aggregator"]["reports"], &parts["redis"]), (&2.into(), &Value::Null));
    drop(peer);
    crate::support::server::until("the Envoy has left", || {
        weir.server.services().status.streams.nodes().is_empty()
    })
    .await;
    // Another query than before, as an answer serves a second.
    let (_, body) = get_json(&weir, "/v1/rules?limit=1").await;
    assert_eq!(
        (&body["rules"][0]["workers"], &body["rules"][0]["decided"]["allowed"]),
        (&0.into(), &20.into())
    );
}

#[tokio::test]
async fn keys_of_a_shadow_rule_are_no_denials_and_are_found() {
    let weir = start(None).await;
    let mut peer = weir.join(1, true).await;
    peer.send(counters(true, 500, 0)).await;
    for (id, identifier, own) in [(1, "light", 10), (2, "heavy", 1_200)] {
        peer.send(weir.report(id, identifier, own)).await;
        peer.next_with(|frame| frame.ack).await;
    }
    let (_, top) = get_json(&weir, "/v1/top").await;
    let counted = ["keys_over", "keys_past_half", "keys_limited"].map(|name| top[name].as_u64().unwrap());
    assert_eq!((&top["keys"], counted), (&json!([]), [0, 0, 2]));
    let (_, found) = get_json(&weir, "/v1/top?text=API").await;
    assert_eq!(found["keys_over"], 0);
    let keys = found["keys"].as_array().unwrap();
    let states: Vec<_> = keys
        .iter()
        .map(|key| {
            (key["identifier"].as_str().unwrap(), &key["wait_ms"], key["but_for_shadow"]["wait_ms"].is_u64())
        })
        .collect();
    assert_eq!(states, [("heavy", &json!(0), true), ("light", &json!(0), false)]);
    let top = serde_json::from_value(found).unwrap();
    let lines = weir_aggregator::cli::terminal::tables::keys(&top, 120);
    assert!(lines[1].ends_with("shadow") && lines[2].ends_with("passes"), "{lines:#?}");
    // An enforcing rule on the same keys denies.
    peer.send(counters(false, 500, 0)).await;
    let services = weir.server.services();
    until("the rule enforces", || services.status.counters.lock().facts().all(|rule| !rule.shadow)).await;
    let (_, found) = get_json(&weir, "/v1/top?text=heav").await;
    assert_eq!((&found["keys_over"], &found["keys"][0]["but_for_shadow"]), (&json!(1), &Value::Null));
    assert!(found["keys"][0]["wait_ms"].as_u64().unwrap() > 0, "{found}");
}

/// Two rules count the same identifiers in windows of their own, and the one in shadow mode is nearer its limit.
#[tokio::test]
async fn of_keys_that_a_search_finds_alike_those_that_may_be_denied_come_first() {
    const DAY_MS: u64 = 24 * crate::support::server::HOUR_MS;
    let weir = start(None).await;
    let mut peer = weir.join(1, true).await;
    let (shadow, enforced) = (counters(true, 500, 0), counters(false, 500, 0));
    let mut rules = shadow.counters.unwrap();
    let daily = enforced.counters.unwrap().rules.into_iter();
    rules.rules.extend(daily.map(|rule| RuleCounters { name: "per-day".into(), window_ms: DAY_MS, ..rule }));
    peer.send(FilterFrame { counters: Some(rules), ..FilterFrame::default() }).await;
    let parts = KeyParts {
        workspace: b"default",
        namespace: b"api",
        identifier: b"heavy",
        duration_ms: DAY_MS,
        epoch: 0,
        resolution: 1,
    };
    let key = Key::new(&parts).unwrap().as_bytes().to_vec();
    let sequence = weir.clock.now().0 / DAY_MS;
    let counts = vec![weir.count("heavy", 1_200), Count { key, sequence, ..weir.count("heavy", 7) }];
    peer.send(FilterFrame { report: Some(Report { id: 1, counts }), ..FilterFrame::default() }).await;
    peer.next_with(|frame| frame.ack).await;
    let (_, found) = get_json(&weir, "/v1/top?text=heavy").await;
    let keys = found["keys"].as_array().unwrap();
    let states: Vec<_> = keys.iter().map(|key| (&key["used"], key["but_for_shadow"].is_null())).collect();
    assert_eq!(states, [(&json!(7), true), (&json!(1_200), false)]);
}

#[tokio::test]
async fn rules_are_paged_filtered_and_summed() {
    let weir = start(None).await;
    let peer = weir.join(1, true).await;
    let rule = |number: u64, allowed| RuleCounters {
        identifier_parts: 1,
        name: format!("rule-{number:03}"),
        namespace: format!("n{}", number % 2),
        algorithm: "sliding_window".into(),
        limit: 10,
        window_ms: 60_000,
        allowed,
        ..RuleCounters::default()
    };
    let frame = |of: &dyn Fn(u64) -> u64| {
        let rules = (0..120).map(|number| rule(number, of(number))).collect();
        let counters = Some(Counters { rules, workspace: "default".into() });
        FilterFrame { counters, ..FilterFrame::default() }
    };
    peer.send(frame(&|_| 0)).await;
    peer.send(frame(&|number| number)).await;
    let services = weir.server.services();
    let has_all = || services.status.counters.lock().facts().count() == 120;
    until("all are reported", has_all).await;
    // Requests within ten seconds.
    let allowed = |of: &Value| (of["per_second"]["last_10s"]["allowed"].as_f64().unwrap() * 10.0).round();
    let page = async |query: &str| {
        let (_, body) = get_json(&weir, &format!("/v1/rules?{query}")).await;
        let names: Vec<String> = body["rules"]
            .as_array()
            .unwrap()
            .iter()
            .map(|rule| rule["name"].as_str().unwrap().into())
            .collect();
        (names, body["matching"].as_u64().unwrap(), allowed(&body["sum"]))
    };
    let (names, matching, sum) = page("limit=50&offset=100").await;
    assert_eq!((names.len(), names[0].as_str(), matching, sum), (20, "rule-100", 120, 7_140.0));
    let (names, matching, _) = page("limit=2&order=busiest").await;
    assert_eq!((names, matching), (vec!["rule-119".into(), "rule-118".into()], 120));
    let (names, matching, sum) = page("text=RULE-11").await;
    assert_eq!((names.len(), matching, sum), (10, 10, 1_145.0));
    assert_eq!(page("text=n1").await.1, 60, "by namespace");
    assert_eq!(page("offset=500").await.0.len(), 0);
    assert_eq!(page("").await.0.len(), 120, "all without a limit");
}

/// Sets live control for an identifier of namespace `api`.
async fn set(weir: &Weir, identifier: &str, what: &str, amount: u64) {
    let body = json!({"namespace": "api", "identifier": identifier, what: amount, "expires_in": "1h"});
    put(weir, body).await;
}

#[tokio::test]
async fn a_live_limit_or_credit_applies_as_soon_as_it_is_set() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/weir.db", folder.path().display());
    let database = Some(DatabaseOptions { url, read_url: None, region: "test-region".into() });
    let schedule = Schedule::for_tests();
    let weir = start_with(Settings { database, migrate: true, schedule, ..settings() }).await;
    let mut peer = weir.join(1, true).await;
    peer.send(counters(true, 500, 0)).await;
    let cases = [("alice", 1_200, 1_000), ("bob", 1_100, 1_000), ("carol", 900, 1_000), ("dora", 400, 1_200)];
    for (id, (identifier, own, limit)) in (1..).zip(cases) {
        // Of a limit that live control sets, a filter states the configured one too.
        let configured = (limit > 1_000).then_some(1_000);
        let counts = vec![Count { limit, configured, ..weir.count(identifier, own) }];
        peer.send(FilterFrame { report: Some(Report { id, counts }), ..FilterFrame::default() }).await;
        peer.next_with(|frame| frame.ack).await;
    }
    let stands = async |identifier: &str| {
        let (_, body) = get_json(&weir, &format!("/v1/keys?namespace=api&identifier={identifier}")).await;
        let window = &body["windows"][0];
        assert_eq!(window["passes"] == json!(true), window["wait_ms"] == json!(0), "{window}");
        // The rule is in shadow mode, so all requests pass; this is the outcome without shadow mode.
        let passes = window["passes"] == true && window["but_for_shadow"].is_null();
        (window["limit"].as_u64().unwrap(), window["remaining"].as_u64().unwrap(), passes)
    };
    let order = async || {
        // By their namespace: the rule is in shadow mode, so without a text its keys are left out.
        let (_, top) = get_json(&weir, "/v1/top?text=api").await;
        let names: Vec<_> =
            top["keys"].as_array().unwrap().iter().map(|key| key["identifier"].clone()).collect();
        (names, top["keys"][0]["limit"].clone())
    };
    let would_deny = async || {
        let (_, body) = get_json(&weir, "/v1/rules").await;
        let would = body["rules"][0]["would_deny"].clone();
        (would["keys"].clone(), would["furthest"][0]["identifier"].clone())
    };
    assert_eq!((stands("alice").await, stands("bob").await), ((1_000, 0, false), (1_000, 0, false)));
    assert_eq!(
        order().await,
        (vec!["alice".into(), "bob".into(), "carol".into(), "dora".into()], json!(1_000))
    );
    assert_eq!(would_deny().await, (json!(2), json!("alice")));
    set(&weir, "alice", "limit", 5_000).await;
    assert_eq!(stands("alice").await, (5_000, 3_800, true));
    assert_eq!(order().await.0, ["bob", "carol", "dora", "alice"]);
    assert_eq!(would_deny().await, (json!(1), json!("bob")));
    set(&weir, "bob", "credit", 200).await;
    assert_eq!(stands("bob").await, (1_200, 100, true));
    assert_eq!(would_deny().await.0, json!(0));
    set(&weir, "dora", "credit", 200).await;
    assert_eq!(stands("dora").await, (1_200, 800, true));
    set(&weir, "carol", "limit", 7).await;
    assert_eq!(stands("carol").await, (7, 0, false));
    assert_eq!(order().await, (vec!["carol".into(), "bob".into(), "dora".into(), "alice".into()], json!(7)));
}

/// The filter sends nothing after its first report.
#[tokio::test]
async fn a_live_limit_reaches_the_keys_that_the_region_holds() {
    let (_folder, weir, mut peer) = with_rule(counters(false, 500, 0)).await;
    peer.send(weir.report(1, "alice", 160)).await;
    peer.next_with(|frame| frame.ack).await;
    let services = weir.server.services();
    let held = || {
        let explained = services.explain(b"default", b"api", b"alice");
        (explained[0].newest_limit, explained[0].cells[0].limit)
    };
    assert_eq!((held(), services.stats().pending_publications), ((None, 1_000), 0));
    for (limit, expected) in [(100, (Some(100), 100)), (5_000, (Some(5_000), 100))] {
        set(&weir, "alice", "limit", limit).await;
        until("the limit is applied", || held() == expected).await;
    }
    let is_written = |line: &str| line.contains("global_writes_total") && line.ends_with(" 1");
    let is_published = || services.metrics_text().lines().any(is_written);
    until("the use is published", is_published).await;
}

/// A limit falls below what is used and rises again, as a filter's denial and its next admission report it.
#[tokio::test]
async fn the_limit_that_was_applied_last_is_displayed() {
    let weir = start(None).await;
    let mut peer = weir.join(1, true).await;
    let since = weir.clock.now().0 - 10;
    for (turn, limit, remaining, passes) in [(1, 1_000, 850, true), (2, 50, 0, false), (3, 900, 750, true)] {
        let counts = vec![Count { limit, applied_ms: since + turn, ..weir.count("alice", 150) }];
        let report = Some(Report { id: turn, counts });
        peer.send(FilterFrame { report, ..FilterFrame::default() }).await;
        peer.next_with(|frame| frame.ack).await;
        let (window, body) = explained(&weir, "namespace=api&identifier=alice").await;
        let shown = (&window["limit"], &window["remaining"], &window["passes"]);
        assert_eq!(shown, (&json!(limit), &json!(remaining), &json!(passes)), "{window}");
        let lines = weir_aggregator::cli::terminal::explained::lines(&serde_json::from_value(body).unwrap());
        let verdict =
            if passes { "a request of cost 1 would pass" } else { "a request of cost 1 would be denied" };
        assert!(lines.iter().any(|line| line.contains(verdict)), "{lines:#?}");
        // The search for a text walks over all keys, while the page without one shows the last walk for a while.
        let (_, top) = get_json(&weir, &format!("/v1/top?text={}", &"alice"[..turn as usize])).await;
        let key = &top["keys"][0];
        assert_eq!((&key["limit"], key["wait_ms"] == 0), (&json!(limit), passes), "{top}");
        assert_eq!(top["keys_over"], json!(u8::from(!passes)), "{top}");
    }
}

/// The first window of an explanation.
async fn explained(weir: &Weir, query: &str) -> (Value, Value) {
    let (_, body) = get_json(weir, &format!("/v1/keys?{query}")).await;
    (body["windows"][0].clone(), body)
}

/// A region with a database and one filter, whose only rule has a window of one hour. The database exists as long as
/// the folder.
async fn with_rule(rule: FilterFrame) -> (tempfile::TempDir, Weir, crate::support::server::Peer) {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/weir.db", folder.path().display());
    let database = Some(DatabaseOptions { url, read_url: None, region: "test-region".into() });
    let schedule = Schedule::for_tests();
    let weir = start_with(Settings { database, migrate: true, schedule, ..settings() }).await;
    let peer = weir.join(1, true).await;
    peer.send(rule).await;
    let reported =
        || weir.server.services().status.counters.lock().rules(weir.server.services().moment().mono);
    crate::support::server::until("the rule is reported", || !reported().is_empty()).await;
    (folder, weir, peer)
}

/// What is reserved stands beside what is used, for an Envoy and for the API, as long as they are connected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_reserved_is_explained_beside_what_is_used() {
    let weir = start(None).await;
    let mut peer = weir.join(1, false).await;
    let holding = |id: u64, own: u64, reserved: u64, ms: u64| {
        let now = weir.server.services().now().0;
        let counts = vec![Count { reserved, reserved_ms: now - 1_000 + ms, ..weir.count("alice", own) }];
        FilterFrame { report: Some(Report { id, counts }), ..FilterFrame::default() }
    };
    peer.send(holding(1, 30, 500, 1)).await;
    peer.next_with(|frame| frame.ack).await;
    let query = "namespace=api&identifier=alice";
    let (window, body) = explained(&weir, query).await;
    assert_eq!((&window["used"], &window["reserved"]), (&json!(30), &json!(500)), "{body}");
    let [holder] = &window["reservations"].as_array().unwrap()[..] else { panic!("{body}") };
    let node = crate::support::server::node(1).to_string();
    assert_eq!((&holder["node"], &holder["amount"]), (&json!(node), &json!(500)));
    let lines = |body: Value| {
        weir_aggregator::cli::terminal::explained::lines(&serde_json::from_value(body).unwrap())
    };
    assert!(lines(body).iter().any(|line| line.contains("500 reserved beside that by 1 node")));
    let mut client = Client::connect(&weir).await;
    let request = json!({"id": "one", "namespace": "api", "identifier": "alice", "limit": 1_000, "duration": "1h",
                         "cost": 70, "timeout": "5s"});
    assert_eq!(client.post("/v1/reserve", &request).await.body["allowed"], true);
    let reserved = async || {
        let (window, _) = explained(&weir, query).await;
        assert!(window["used"].as_u64().unwrap() >= 30, "{window}");
        window["reserved"].as_u64().unwrap()
    };
    let until_shown = async |what: &str, expected: u64| {
        let began = Instant::now();
        while reserved().await != expected {
            assert!(began.elapsed() < DEADLINE, "{what}: {:?}", reserved().await);
        }
    };
    until_shown("the API's reservation is added", 570).await;
    assert_eq!(client.post("/v1/settle", &json!({"id": "one", "cost": 4})).await.status, 200);
    until_shown("it is settled", 500).await;
    peer.send(holding(2, 90, 0, 2)).await;
    peer.next_with(|frame| frame.ack).await;
    assert_eq!(reserved().await, 0);
    peer.send(holding(3, 90, 60, 3)).await;
    peer.next_with(|frame| frame.ack).await;
    assert_eq!(reserved().await, 60);
    drop(peer);
    until_shown("an Envoy that left settles nothing", 0).await;
}

#[tokio::test]
async fn keys_that_a_shadow_rule_would_deny_pass() {
    let (_folder, weir, mut peer) = with_rule(counters(true, 500, 0)).await;
    peer.send(weir.report(1, "heavy", 1_200)).await;
    peer.next_with(|frame| frame.ack).await;
    put(&weir, json!({"namespace": "api", "identifier": "bad*", "ban": true, "reason": "spam"})).await;
    for (identifier, waits) in [("heavy", true), ("bad-one", false)] {
        let (window, body) = explained(&weir, &format!("namespace=api&identifier={identifier}")).await;
        assert_eq!((&window["passes"], &window["wait_ms"]), (&true.into(), &0.into()), "{body}");
        let denied = &window["but_for_shadow"];
        assert_eq!((denied.is_object(), denied["wait_ms"].is_u64()), (true, waits), "{body}");
        let lines = weir_aggregator::cli::terminal::explained::lines(&serde_json::from_value(body).unwrap());
        let verdict = lines.iter().find(|line| line.contains("denied")).unwrap();
        assert!(verdict.contains("every request passes because of shadow mode"), "{lines:#?}");
    }
    // Live control takes the rule out of shadow mode.
    put(&weir, json!({"rule": "per-hour", "shadow": false})).await;
    let (window, _) = explained(&weir, "namespace=api&identifier=heavy").await;
    assert_eq!((&window["passes"], &window["but_for_shadow"]), (&false.into(), &Value::Null), "{window}");
}

#[tokio::test]
async fn live_control_is_explained_before_any_use_and_names_its_entry() {
    let (_folder, weir, _peer) = with_rule(counters(false, 500, 0)).await;
    let set = async |mut body: Value| {
        body["namespace"] = body["namespace"].as_str().unwrap_or("api").into();
        put(&weir, body).await
    };
    let banned = set(json!({"namespace": "*", "identifier": "t*", "ban": true, "reason": "spam"})).await;
    set(json!({"network": "203.0.113.0/24", "ban": true, "reason": "scraping"})).await;
    set(json!({"identifier": "none", "limit": 0})).await;
    set(json!({"identifier": "short", "limit": 3, "window": "1h"})).await;
    set(json!({"identifier": "other", "limit": 4, "window": "1m"})).await;

    let (window, body) = explained(&weir, "namespace=api&identifier=t2").await;
    assert_eq!((&window["passes"], &window["used"]), (&false.into(), &0.into()), "{body}");
    let expected = json!({"kind": "ban", "namespace": "*", "identifier": "t*", "network": null,
                          "window_ms": null, "revision": banned["revision"], "author": "anybody", "reason": "spam"});
    assert_eq!((&body["control"]["entries"][0], &window["control"]["entries"][0]), (&expected, &expected));
    let lines = weir_aggregator::cli::terminal::explained::lines(&serde_json::from_value(body).unwrap());
    let entry = format!(
        "banned permanently (identifier t*, namespace *, revision {}, by anybody: spam)",
        banned["revision"]
    );
    assert!(lines.iter().any(|line| line.contains(&entry)), "no {entry:?} in {lines:#?}");

    let (window, body) = explained(&weir, "namespace=api&identifier=203.0.113.9").await;
    assert_eq!((&window["passes"], &body["unknown"]), (&false.into(), &Value::Null), "{body}");
    assert_eq!(body["control"]["entries"][0]["network"], "203.0.113.0/24");
    for (identifier, duration_ms, limit, passes) in [
        ("none", crate::support::server::HOUR_MS, 0, false),
        ("short", crate::support::server::HOUR_MS, 3, true),
        ("other", 60_000, 4, true),
    ] {
        let (window, body) = explained(&weir, &format!("namespace=api&identifier={identifier}")).await;
        let expected = (&json!(duration_ms), &json!(limit), &json!(passes));
        assert_eq!((&window["duration_ms"], &window["limit"], &window["passes"]), expected, "{body}");
        assert_eq!(body["windows"].as_array().unwrap().len(), 1, "{body}");
    }
}

#[tokio::test]
async fn an_unknown_key_is_explained_by_what_is_counted() {
    let weir = start(None).await;
    let mut peer = weir.join(1, true).await;
    let mut rules = counters(false, 0, 0);
    let frame = rules.counters.as_mut().unwrap();
    frame.rules.push(RuleCounters {
        identifier_parts: 1,
        name: "exact".into(),
        namespace: "held".into(),
        algorithm: "sliding_log".into(),
        ..frame.rules[0].clone()
    });
    frame.workspace = "demo".into();
    peer.send(rules).await;
    peer.send(weir.report(1, "alice", 5)).await;
    peer.next_with(|frame| frame.ack).await;
    let unknown = async |query: &str| explained(&weir, query).await.1["unknown"].clone();
    let body = unknown("namespace=api&identifier=bob").await;
    assert!(body.as_str().unwrap().contains("filters count in namespace api of workspace demo, "), "{body}");
    let body = unknown("namespace=api&identifier=alice&window_ms=60000").await;
    assert_eq!(body, "this identifier has used nothing in a window of 1m, but has in 1h");
    assert_eq!(unknown("namespace=api&identifier=alice").await, Value::Null);
    let (_, body) = explained(&weir, "workspace=demo&namespace=held&identifier=bob").await;
    assert_eq!(
        (&body["unknown"], &body["exact"][0]["algorithm"]),
        (&Value::Null, &"sliding_log".into()),
        "{body}"
    );
    let lines = weir_aggregator::cli::terminal::explained::lines(&serde_json::from_value(body).unwrap());
    assert_eq!(lines[2..4], ["exact log of 1h, rule exact", "  a request of cost 1 would pass; 1,000 left"]);
}

/// The counts that a rule keeps for its bans are not keys.
#[tokio::test]
async fn counters_of_bans_are_no_keys() {
    let weir = start(None).await;
    let mut peer = weir.join(1, false).await;
    let parts = KeyParts {
        workspace: b"default",
        namespace: b"~api",
        identifier: b"alice",
        duration_ms: crate::support::server::HOUR_MS,
        epoch: 0,
        resolution: 1,
    };
    let counter = Count { key: Key::new(&parts).unwrap().as_bytes().to_vec(), ..weir.count("alice", 1_200) };
    let counts = vec![counter, weir.count("alice", 600)];
    peer.send(FilterFrame { report: Some(Report { id: 1, counts }), ..FilterFrame::default() }).await;
    peer.next_with(|frame| frame.ack).await;
    let (_, top) = get_json(&weir, "/v1/top").await;
    let names: Vec<_> = top["keys"].as_array().unwrap().iter().map(|key| &key["namespace"]).collect();
    assert_eq!(
        (names, &top["keys_over"], &top["keys_past_half"]),
        (vec![&json!("api")], &0.into(), &1.into()),
        "{top}"
    );
}

#[tokio::test]
async fn refused_filters_are_shown_and_apis_are_no_envoys() {
    let weir = start(Some("secret")).await;
    let mut peer = crate::support::server::Peer::try_open(weir.connect().await, Some("guess")).await.unwrap();
    peer.refused().await;
    let check = json!({"namespace": "n", "identifier": "a", "limit": 5, "duration": "1h", "timeout": "5s"});
    Client::connect(&weir).await.post("/v1/check", &check).await;
    let parts = admin::parts::parts(weir.server.services());
    assert_eq!(parts.refused.first().map(|refused| refused.reason.as_str()), Some("token"), "{parts:?}");
    assert_eq!((parts.envoys.len(), parts.aggregator.status.envoys), (1, 0), "{parts:?}");
    let health = weir_aggregator::cli::terminal::tables::health(&parts);
    assert!(health.starts_with("! streams refused: token (last "), "{health}");
}

#[tokio::test]
async fn the_page_is_part_of_the_program_and_loads_nothing_else() {
    let weir = start(None).await;
    let (head, index) = whole(&weir, Method::GET, "/").await;
    let policy = head.headers["content-security-policy"].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"), "{policy}");
    let header = |name: &str| head.headers[name].to_str().unwrap().to_owned();
    assert_eq!([header("x-content-type-options"), header("cache-control")], ["nosniff", "no-store"]);
    let mut files = vec!["/page/main.js".to_owned()];
    files.extend(index.split('"').filter(|part| part.starts_with("/page/")).map(str::to_owned));
    let mut at = 0;
    while let Some(file) = files.get(at).cloned() {
        let (head, text) = whole(&weir, Method::GET, &file).await;
        assert_eq!(head.status, 200, "{file}");
        assert!(!text.contains("https://") && !text.contains("innerHTML"), "{file}");
        // A script imports others by paths relative to its own.
        let folder = file.rsplit_once('/').unwrap().0;
        let imported =
            text.split('"').filter_map(|part| match (part.strip_prefix("./"), part.strip_prefix("../")) {
                (Some(beside), _) => Some(format!("{folder}/{beside}")),
                (_, Some(above)) => Some(format!("/page/{above}")),
                _ => None,
            });
        for file in imported.filter(|file| file.ends_with(".js")).collect::<Vec<_>>() {
            if !files.contains(&file) {
                files.push(file);
            }
        }
        at += 1;
    }
    assert!(files.len() > 12, "{files:?}");
}

#[tokio::test]
async fn errors_are_json_and_kind() {
    let weir = start(None).await;
    let cases = [
        (Method::GET, "/v1/keys", 400, "namespace, identifier"),
        (Method::GET, "/v1/keys?namespace=api", 400, "missing: identifier"),
        (Method::GET, "/v1/keys?namespace=api&identifier=%", 400, "percent"),
        (Method::GET, "/v1/keys?namespace=api&counted=a&identifier=a", 400, "expected one of them"),
        (Method::GET, "/v1/top?limit=0", 400, "from 1 to 100"),
        (Method::GET, "/v1/overrides?kind=x", 400, "not a kind"),
        (Method::GET, "/v1/overrides/audit?limit=201", 400, "from 1 to 200"),
        (Method::DELETE, "/v1/overrides?namespace=api&identifier=a", 405, "read-only"),
        (Method::GET, "/page/../main.rs", 404, "no such"),
        (Method::POST, "/v1/rules", 405, "GET"),
        (Method::GET, "/v2", 404, "/v1/keys"),
        (Method::POST, "/v1/keys", 405, "GET"),
    ];
    for (method, path, expected, part) in cases {
        let (status, body) = call(&weir, method, path).await;
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(status, expected, "{path}");
        assert!(body["error"].as_str().unwrap().contains(part), "{path}: {body}");
    }
}

/// The status of a request with a hand-written head.
async fn status_of(weir: &Weir, head: &str) -> u16 {
    let mut connection = TcpStream::connect(weir.server.admin_address()).await.unwrap();
    let request = format!("{head}connection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut body = String::new();
    timeout(DEADLINE, connection.read_to_string(&mut body)).await.unwrap().unwrap();
    let status = body.split(' ').nth(1).unwrap().parse().unwrap();
    assert_eq!(status == 421, body.contains("WEIR_ADMIN_HOSTS"), "{body}");
    status
}

#[tokio::test]
async fn a_foreign_web_page_receives_nothing() {
    let admin_hosts = Hosts::parse("weir.internal").unwrap();
    let weir = start_with(Settings { admin_hosts, ..settings() }).await;
    let address = weir.server.admin_address();
    let pages = [
        "/",
        "/page/main.js",
        "/docs/core/README.md",
        "/v1/top",
        "/v1/rules",
        "/v1/parts",
        "/v1/keys?namespace=a",
        "/v1/overrides",
        "/v1/overrides/audit",
        "/v1/links",
    ];
    for page in pages {
        let get = |host: &str| format!("GET {page} HTTP/1.1\r\nhost: {host}\r\n");
        assert_eq!(status_of(&weir, &get("attacker.example")).await, 421, "{page}");
        for host in [&address.to_string(), "localhost:7070", "[::1]", "WEIR.internal:80"] {
            assert_ne!(status_of(&weir, &get(host)).await, 421, "{page} {host}");
        }
    }
    for head in [
        "GET /v1/top HTTP/1.1\r\n",
        "GET /v1/top HTTP/1.0\r\n",
        "GET /v1/top HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n",
        "GET http://attacker.example/v1/top HTTP/1.1\r\nhost: localhost\r\n",
    ] {
        assert_eq!(status_of(&weir, head).await, 421, "{head}");
    }
    assert_eq!(status_of(&weir, "GET http://localhost/v1/top HTTP/1.1\r\nhost: localhost\r\n").await, 200);
    // Probes and Prometheus use host names that are not on the allow-list.
    for path in ["/healthz", "/readyz", "/metrics"] {
        let head = format!("GET {path} HTTP/1.1\r\nhost: weir-aggregator.weir.svc:7070\r\n");
        assert_eq!(status_of(&weir, &head).await, 200, "{path}");
    }
}

#[tokio::test]
async fn a_client_that_does_not_finish_its_request_is_disconnected() {
    let weir = start(None).await;
    let mut connection = TcpStream::connect(weir.server.admin_address()).await.unwrap();
    connection.write_all(b"GET /healthz HTTP/1.1\r\nhost: we").await.unwrap();
    let mut body = Vec::new();
    let ended = timeout(Duration::from_secs(8), connection.read_to_end(&mut body)).await;
    assert!(ended.is_ok(), "the connection is still held");
    assert_eq!(get(&weir, "/healthz").await.0, 200);
}
