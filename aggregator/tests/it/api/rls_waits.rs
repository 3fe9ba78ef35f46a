//! A denied client that waits exactly as long as an answer states, and sends the same again, passes.

use crate::support::http::Client;
use crate::support::rls::{Entries, OK, OVER, call, codes, descriptor, request, service};
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout};
use tonic::transport::Channel;
use weir_aggregator::api::rls::Answering;
use weir_aggregator::api::rls::wire::{Descriptor, RateLimitRequest, RateLimitResponse};

const LIMITS: &str = "
domain: edge
descriptors:
  - {key: user, rate_limit: {name: users, unit: second, unit_multiplier: 4, requests_per_unit: 3}}
  - {key: brief, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: slow, rate_limit: {unit: second, unit_multiplier: 5, requests_per_unit: 4}}
  - {key: one, quota_mode: true, rate_limit: {unit: second, unit_multiplier: 4, requests_per_unit: 3}}
  - {key: two, quota_mode: true, rate_limit: {unit: second, unit_multiplier: 5, requests_per_unit: 4}}
  - {key: shade, shadow_mode: true, rate_limit: {unit: second, unit_multiplier: 9, requests_per_unit: 1}}
  - {key: free, rate_limit: {unlimited: true}}
";
const NAMES: [&str; 3] = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
/// Longer than two windows.
const LONGEST: Duration = Duration::from_secs(20);

fn hits(entries: Entries<'_>, hits: u64) -> Descriptor {
    Descriptor { hits_addend: Some(hits), ..descriptor(entries) }
}

fn back(entries: Entries<'_>, given: u64) -> Descriptor {
    Descriptor { is_negative_hits: true, ..hits(entries, given) }
}

/// The shortest of all waits that a denial states, in seconds.
fn stated(response: &RateLimitResponse) -> u64 {
    let headers = response.response_headers_to_add.iter();
    let waits = headers.filter(|header| ["retry-after", NAMES[2]].contains(&header.key.as_str()));
    let waits: Vec<u64> = waits.map(|header| header.value.parse().unwrap()).collect();
    assert_eq!(waits.len(), 2, "{response:?}");
    // Envoy shows the reset of the limit of which the least is left.
    let resets = response.statuses.iter().filter_map(|status| status.duration_until_reset);
    let all = waits.into_iter().chain(resets.map(|reset| reset.seconds.cast_unsigned()));
    all.min().unwrap()
}

/// Sends a call until it is denied, then waits as stated and sends it again.
async fn passes_after_its_wait(channel: &Channel, what: &str, message: RateLimitRequest) {
    let denied = async {
        loop {
            let response = call(channel, message.clone()).await.unwrap();
            if codes(&response).0 == OVER {
                return response;
            }
        }
    };
    let response = timeout(LONGEST, denied).await.unwrap_or_else(|_| panic!("{what}: never denied"));
    let wait = Duration::from_secs(stated(&response));
    assert!(wait <= LONGEST, "{what}: {response:?}");
    sleep_until(Instant::now() + wait).await;
    let again = call(channel, message).await.unwrap();
    assert_eq!(codes(&again).0, OK, "{what}: after {wait:?} of {response:?}\n{again:?}");
}

async fn all_pass(answering: Answering, cases: Vec<(&str, RateLimitRequest)>) {
    let answering = Answering { response_headers: Some(NAMES.map(str::to_owned)), ..answering };
    let (_weir, channel, _folder) = service(LIMITS, answering).await;
    join_all(cases.into_iter().map(|(what, message)| passes_after_its_wait(&channel, what, message))).await;
}

/// A call each of whose descriptors without its own hits has this many.
fn with_hits(hits_addend: u32, descriptors: Vec<Descriptor>) -> RateLimitRequest {
    RateLimitRequest { hits_addend, ..request(descriptors) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_client_that_waits_as_stated_passes() {
    let cases = vec![
        ("one limit", request(vec![descriptor(&[("user", "a")])])),
        ("several hits", with_hits(2, vec![descriptor(&[("user", "b")])])),
        ("all hits", with_hits(3, vec![descriptor(&[("user", "c")])])),
        ("several limits", with_hits(3, vec![descriptor(&[("user", "d")]), descriptor(&[("slow", "d")])])),
        ("one limit twice", request(vec![descriptor(&[("user", "e")]), descriptor(&[("user", "e")])])),
        ("own hits", request(vec![hits(&[("user", "f")], 2)])),
        ("own hits, as many as the limit", request(vec![hits(&[("user", "g")], 3)])),
        (
            "own hits, which pass, beside a limit that denies",
            request(vec![hits(&[("slow", "h")], 2), descriptor(&[("brief", "h")])]),
        ),
        ("own hits twice", request(vec![hits(&[("slow", "i")], 2), hits(&[("slow", "i")], 2)])),
        (
            "own hits and others of one limit",
            request(vec![descriptor(&[("slow", "j")]), hits(&[("slow", "j")], 2)]),
        ),
        ("a quota", with_hits(3, vec![descriptor(&[("one", "k")])])),
        ("quotas", with_hits(3, vec![descriptor(&[("one", "l")]), descriptor(&[("two", "l")])])),
        ("own hits of a quota", request(vec![hits(&[("one", "m")], 2)])),
        (
            "own hits of a quota beside another, and a limit",
            with_hits(
                2,
                vec![hits(&[("one", "n")], 3), descriptor(&[("two", "n")]), descriptor(&[("user", "n")])],
            ),
        ),
        ("a shadow limit", request(vec![descriptor(&[("shade", "o")]), descriptor(&[("user", "o")])])),
        ("an unlimited one", with_hits(3, vec![descriptor(&[("free", "p")]), descriptor(&[("user", "p")])])),
        ("none beside a quota", with_hits(3, vec![descriptor(&[("one", "q")]), descriptor(&[("none", "")])])),
    ];
    all_pass(Answering::default(), cases).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_client_that_waits_as_stated_passes_if_every_limit_is_a_quota() {
    let cases = vec![
        ("one", with_hits(3, vec![descriptor(&[("user", "a")])])),
        ("two", with_hits(3, vec![descriptor(&[("user", "b")]), descriptor(&[("slow", "b")])])),
        (
            "beside an unlimited one",
            with_hits(3, vec![descriptor(&[("user", "c")]), descriptor(&[("free", "")])]),
        ),
    ];
    all_pass(Answering { quota_mode: true, ..Answering::default() }, cases).await;
}

/// What is given back ends with its unit of time, before the wait may be over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_client_that_waits_as_stated_passes_though_hits_were_given_back() {
    let answering = Answering { response_headers: Some(NAMES.map(str::to_owned)), ..Answering::default() };
    let (weir, channel, _folder) = service(LIMITS, answering).await;
    let of = async |user: &str| {
        let entries: Entries = &[("user", user)];
        // All within one unit, or again in the next.
        loop {
            let begun = weir.server.services().moment().unix.0 / 4_000;
            call(&channel, request(vec![hits(entries, 3)])).await.unwrap();
            call(&channel, request(vec![back(entries, 1)])).await.unwrap();
            if weir.server.services().moment().unix.0 / 4_000 == begun {
                return;
            }
        }
    };
    let grpc = async {
        of("a").await;
        passes_after_its_wait(&channel, "given back", with_hits(2, vec![descriptor(&[("user", "a")])])).await;
    };
    let http = async {
        of("b").await;
        let body = json!({"namespace": "users", "identifier": "b", "limit": 3, "duration": "4s", "cost": 2});
        http_passes_after_its_wait(&weir, "given back", body).await;
    };
    tokio::join!(grpc, http);
}

/// Sends a check until it is denied, then waits as stated and sends it again.
async fn http_passes_after_its_wait(weir: &crate::support::server::Weir, what: &str, body: Value) {
    let mut client = Client::connect(weir).await;
    let denied = loop {
        let answer = client.post("/v1/check", &body).await.body;
        if answer["allowed"] == false {
            break answer;
        }
    };
    let wait_ms = denied["retry_after_ms"].as_u64().unwrap();
    let until_reset_ms = denied["reset"].as_u64().unwrap() - weir.server.services().moment().unix.0;
    let wait = Duration::from_millis(wait_ms.min(until_reset_ms));
    assert!(wait <= LONGEST, "{what}: {denied}");
    sleep_until(Instant::now() + wait).await;
    let again = client.post("/v1/check", &body).await.body;
    assert_eq!(again["allowed"], true, "{what}: after {denied}\n{again}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_application_that_waits_as_stated_passes() {
    let (weir, _channel, _folder) = service(LIMITS, Answering::default()).await;
    let check = |identifier: &str, more: Value| {
        let mut body = json!({"identifier": identifier, "limit": 3, "duration": "3s"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let cases = [
        ("one", check("a", json!({}))),
        ("several", check("b", json!({"cost": 2}))),
        ("all", check("c", json!({"cost": 3}))),
        ("a hard limit", check("d", json!({"cost": 3, "hard_limit": true}))),
        ("a log", check("e", json!({"cost": 2, "algorithm": "sliding_log"}))),
    ];
    join_all(cases.into_iter().map(|(what, body)| http_passes_after_its_wait(&weir, what, body))).await;
}
