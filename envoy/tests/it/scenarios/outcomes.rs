//! Counting by the response: `cost.when` holds a reserve while a request is under way, and the first line that applies
//! to its response charges it.

use std::io;

use hyper::Method;
use hyper::body::{Bytes, Frame, Incoming};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use weir_envoy::http::{Protocol, Request};
use weir_envoy::{EnvoyOptions, wait};

use super::common::{KEY, Region, SOON, config, get_as, rule, with};
use super::upstream::{self, Upstream, held_back, send_all, streamed, trailers};

/// The response that the upstream should give: its status, or `reset` for none.
const STATUS: &str = "x-status";
/// Its `location`.
const LOCATION: &str = "x-location";
/// Its gRPC status, in its trailers.
const GRPC_STATUS: &str = "x-grpc-status";
/// The same without a body, so that trailers are its headers.
const GRPC_ONLY: &str = "x-grpc-only";
/// Its body; the connection breaks off after `cut`.
const BODY: &str = "x-body";
/// A later filter refuses requests with this header.
const REFUSED: &str = "x-refused";

fn answer(request: &hyper::Request<Incoming>) -> io::Result<upstream::Response> {
    let header = |name| upstream::header(request, name);
    let (wanted, body) = (header(STATUS), header(BODY).to_owned());
    if wanted == "reset" {
        return Err(io::ErrorKind::ConnectionReset.into());
    }
    let status = if wanted.is_empty() { 200 } else { wanted.parse().map_err(io::Error::other)? };
    let mut frames = vec![Ok(Frame::data(Bytes::from(body.clone())))];
    if !header(GRPC_STATUS).is_empty() {
        frames.push(Ok(trailers("grpc-status", header(GRPC_STATUS))));
    }
    if body == "cut" {
        frames.push(Err(io::ErrorKind::ConnectionReset.into()));
    }
    if !header(GRPC_ONLY).is_empty() {
        frames.clear();
    }
    let mut response = streamed(status, frames);
    let mut set = |name: &'static str, value: &str| {
        if !value.is_empty() {
            response.headers_mut().insert(name, value.parse().unwrap());
        }
    };
    set("location", header(LOCATION));
    set("grpc-status", header(GRPC_ONLY));
    set("content-type", header("content-type"));
    set("x-tokens", header("x-tokens"));
    Ok(response)
}

async fn start() -> Upstream {
    Upstream::start(Protocol::Http1, answer).await
}

/// A filter that refuses requests with [`REFUSED`].
fn refusing() -> Value {
    let with_header = json!({ "header": { "name": REFUSED, "present_match": true } });
    json!({ "name": "rbac", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC",
        "rules": { "action": "DENY", "policies": {
            "refused": { "permissions": [with_header], "principals": [{ "any": true }] },
        }},
    }})
}

fn costing(limit: u64, cost: Value) -> Value {
    with(rule("r", limit), json!({ "cost": cost }))
}

fn login(status: &str) -> Request {
    get_as("a").header(STATUS, status)
}

async fn status(region: &Region, request: Request) -> u16 {
    region.envoy().send(request).await.unwrap().status
}

/// Waits until the lines of the rule have settled so many requests.
async fn settled(region: &Region, lines: &[(&str, u64)]) {
    for (line, count) in lines {
        let name = format!("wasmcustom.weir_settled_total.rule.r.line.{line}");
        let waited = region.envoy().wait_stat(&name, SOON, |found| found == *count).await;
        waited.unwrap_or_else(|error| panic!("{line}: {error}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_hundred_simultaneous_wrong_passwords_five_reach_the_login() {
    let upstream = start().await;
    let options = EnvoyOptions { concurrency: 2, ..upstream.options() };
    let region = Region::start(1, options, &config(&[costing(5, json!({ "only": [401, 403] }))])).await;
    upstream.gate.send_replace(false);
    let mut sent = send_all(&region, 100, &login("401"));
    assert_eq!(held_back(&upstream, 0, &mut sent).await, 5);
    upstream.gate.send_replace(true);
    assert_eq!(sent.join_all().await, [401; 5]);
    region.settles_at("r", "a", 5).await;
    assert_eq!(status(&region, login("200")).await, 429, "the right password comes too late");
    assert_eq!(upstream.arrived(), 5);
    settled(&region, &[("1", 5)]).await;
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parallel_right_passwords_are_never_denied() {
    let upstream = start().await;
    let options = EnvoyOptions { concurrency: 2, ..upstream.options() };
    let region = Region::start(1, options, &config(&[costing(60, json!({ "only": [401, 403] }))])).await;
    for round in 1..=4 {
        upstream.gate.send_replace(false);
        let sent = send_all(&region, 50, &login("200"));
        let came = async || upstream.arrived() == 50 * round;
        wait::until("all are under way", SOON, came).await.unwrap();
        upstream.gate.send_replace(true);
        assert_eq!(sent.join_all().await, [200; 50]);
        settled(&region, &[("default", 50 * round)]).await;
    }
    region.settles_at("r", "a", 0).await;
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_end_of_a_request_has_its_line() {
    let upstream = start().await;
    let cost = json!({
        "when": [
            { "status": [401, 403], "cost": 1 },
            { "status": "500-501", "cost": 0 },
            { "header": { "name": "location", "prefix": "/login" }, "cost": 10 },
            { "status": 404, "from": "upstream", "cost": 100 },
            { "details": "direct_", "cost": 1_000 },
            { "status": 202, "cost": { "header": "x-tokens" }, "max": 5_000 },
        ],
        "default": 20_000, "reserve": 3, "unanswered": 300_000,
    });
    let options = EnvoyOptions { after: vec![refusing()], ..upstream.options() };
    let region = Region::start(1, options, &config(&[costing(u64::MAX, cost)])).await;
    let mut total = 0;
    for (request, expected, charge, why) in [
        (login("401"), 401, 1, "a wrong password"),
        (Request { method: Method::HEAD, ..login("403") }, 403, 1, "of a request without a body"),
        (login("401").header(BODY, "cut"), 0, 1, "an upstream that dies in mid-response"),
        (login("200").header(REFUSED, "1"), 403, 1, "a filter behind refuses it"),
        (login("500"), 500, 0, "an error"),
        (login("302").header(LOCATION, "/login?wrong"), 302, 10, "back to the form"),
        (login("302").header(LOCATION, "/home"), 302, 20_000, "no line applies"),
        (login("404"), 404, 100, "from upstream"),
        (login("202").header("x-tokens", "7"), 202, 7, "a header states it"),
        (login("202").header("x-tokens", "many"), 202, 5_000, "badly"),
        (login("202"), 202, 20_000, "not at all"),
        (login("204"), 204, 20_000, "no line applies"),
        (login("reset"), 503, 300_000, "an upstream that did not respond"),
    ] {
        let response = region.envoy().send(request).await;
        assert_eq!(response.map_or(0, |response| response.status), expected, "{why}");
        total += charge;
        region.settles_at("r", "a", total).await;
    }
    settled(&region, &[("1", 4), ("2", 1), ("3", 1), ("4", 1), ("6", 3), ("default", 2)]).await;
    settled(&region, &[("unanswered", 1)]).await;

    upstream.gate.send_replace(false);
    let before = upstream.arrived();
    let mut aborted = send_all(&region, 1, &login("200"));
    wait::until("it is under way", SOON, async || upstream.arrived() > before).await.unwrap();
    aborted.abort_all();
    while aborted.join_next().await.is_some() {}
    region.settles_at("r", "a", total + 300_000).await;
    settled(&region, &[("unanswered", 2)]).await;
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_the_server_are_refunded() {
    let upstream = start().await;
    let region =
        Region::start(1, upstream.options(), &config(&[costing(3, json!({ "refund": "5xx" }))])).await;
    for sent in ["503", "reset", "500", "200", "502", "404", "504", "200", "503"] {
        let expected = match sent {
            "reset" => 503,
            _ => sent.parse().unwrap(),
        };
        // With the third charge the limit is reached.
        let expected = if sent == "503" && upstream.arrived() == 8 { 429 } else { expected };
        assert_eq!(status(&region, login(sent)).await, expected, "{sent}");
    }
    region.settles_at("r", "a", 3).await;
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_status_of_grpc_counts_in_trailers_or_without_any() {
    let upstream = Upstream::start(Protocol::Http2, answer).await;
    let cost = json!({ "when": [{ "grpc_status": [7, 16], "cost": 1 }, { "status": 401, "cost": 10 }] });
    let options = EnvoyOptions { after: vec![refusing()], ..upstream.options() };
    let region = Region::start(1, options, &config(&[costing(u64::MAX, cost)])).await;
    let call =
        || Request::post("/service/Method", "").header(KEY, "a").header("content-type", "application/grpc");
    let mut total = 0;
    for (request, charge, why) in [
        (call().header(GRPC_STATUS, "16"), 1, "unauthenticated, in trailers"),
        (call().header(GRPC_STATUS, "16").header(BODY, "many bytes"), 1, "after a message"),
        (call().header(GRPC_ONLY, "16"), 1, "without trailers"),
        (call().header(GRPC_STATUS, "0"), 0, "ok"),
        (call().header(GRPC_ONLY, "0"), 0, "ok without trailers"),
        (call().header(BODY, "cut"), 10, "an upstream that dies before its trailers: the reserve"),
        (call().header(REFUSED, "1"), 1, "a filter behind refuses it"),
        (call().header(STATUS, "401"), 10, "a status of HTTP alone"),
        (get_as("a").header(GRPC_STATUS, "16"), 0, "a response that is not of gRPC"),
    ] {
        let _ = weir_envoy::http::send_by(Protocol::Http2, region.envoy().address(), request).await;
        total += charge;
        region.settles_at("r", "a", total).await;
        println!("{why}: {charge}");
    }
    // Nothing stays reserved.
    settled(&region, &[("1", 4), ("2", 1), ("default", 3), ("unanswered", 1)]).await;
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_of_a_response_decides_at_its_end() {
    let upstream = start().await;
    let parser = json!({ "name": "json_to_metadata", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.json_to_metadata.v3.JsonToMetadata",
        "response_rules": { "rules": [{
            "selectors": [{ "key": "result" }],
            "on_present": { "metadata_namespace": "weir.test", "key": "result" },
        }] },
    }});
    let wrong = json!({ "filter": "weir.test", "key": "result", "exact": "wrong" });
    let cost = json!({ "when": [{ "status": 401, "cost": 1 }, { "metadata": wrong, "cost": 10 }] });
    let others = with(rule("others", 1_000), json!({ "cost": { "only": 200 } }));
    let options = EnvoyOptions { after: vec![parser], ..upstream.options() };
    let region = Region::start(1, options, &config(&[costing(1_000, cost), others])).await;
    let call = |body: &str| login("200").header(BODY, body).header("content-type", "application/json");
    for (request, charge, other) in [
        (call(r#"{"result": "wrong"}"#), 10, 1),
        (call(r#"{"result": "right"}"#), 10, 2),
        (call("{}"), 10, 3),
        (login("401"), 11, 3),
        (call(r#"{"result": "wrong", "more": 1}"#), 21, 4),
    ] {
        region.envoy().send(request).await.unwrap();
        region.settles_at("r", "a", charge).await;
        region.settles_at("others", "a", other).await;
    }
    settled(&region, &[("1", 1), ("2", 2), ("default", 2)]).await;
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_charged_bans() {
    let upstream = start().await;
    let ban = json!({ "threshold": 3, "window": "1m", "duration": "1h", "count": "charged" });
    let rule = with(costing(100, json!({ "only": 401 })), json!({ "ban": ban }));
    let shadow = with(
        rule.clone(),
        json!({ "name": "shadow", "shadow_mode": true, "identifier": { "header": "x-other" } }),
    );
    let region = Region::start(1, upstream.options(), &config(&[rule, shadow])).await;
    let as_other = |request: Request| request.header("x-other", "b");
    for sent in ["200", "401", "200", "401", "500"] {
        assert_eq!(status(&region, as_other(login(sent))).await, sent.parse::<u16>().unwrap());
    }
    assert_eq!(status(&region, as_other(login("401"))).await, 401, "the third wrong password");
    let banned = async || {
        let response = region.envoy().send(login("200")).await.unwrap();
        // A denial by the limit has headers about the limit; one by a ban has none.
        response.status == 429 && response.header("x-ratelimit-limit").is_none()
    };
    wait::until("it is banned", SOON, banned).await.unwrap();
    let others: JoinSet<u16> =
        send_all(&region, 3, &Request::get("/").header(KEY, "c").header("x-other", "b"));
    assert_eq!(others.join_all().await, [200; 3], "a rule in shadow mode bans nobody");
    region.is_sound().await;
}
