//! Tests of reservations over HTTP: costs that are reserved before they are known, and settled once.

use crate::support::http::{Answer, Client, put, start_apis, token, write};
use crate::support::server::{DEADLINE, HOUR_MS, Weir, settings, start, start_on, start_with, until, used};
use serde_json::{Value, json};
use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use weir_aggregator::api::{
    ApiSettings, Booking, LimitCheck, MAX_RESERVATIONS, ReservationName, ReserveError,
};
use weir_aggregator::auth::{Entry, NewToken};
use weir_aggregator::database::DatabaseOptions;
use weir_aggregator::server::Settings;
use weir_core::model::exact::Algorithm;
use weir_envoy::{Redis, RedisOptions};

/// More than a busy machine takes to decide.
const TIMEOUT: &str = "5s";
/// What others have reserved may be returned at any time, so a denial comes once the time is over.
const SHORT: &str = "30ms";

fn reservation(id: &str, identifier: &str, limit: u64, cost: u64) -> Value {
    json!({"id": id, "namespace": "api", "identifier": identifier, "limit": limit, "duration": "1h", "cost": cost,
           "timeout": TIMEOUT})
}

fn briefly(mut request: Value) -> Value {
    request["timeout"] = SHORT.into();
    request
}

async fn reserve(client: &mut Client, request: &Value) -> Answer {
    client.post("/v1/reserve", request).await
}

async fn settle(client: &mut Client, id: &str, cost: u64) -> Answer {
    client.post("/v1/settle", &json!({"id": id, "cost": cost})).await
}

fn passes(answer: &Answer) -> bool {
    assert_eq!(answer.status, 200, "{answer:?}");
    let allowed = answer.body["allowed"].as_bool().unwrap();
    assert_eq!(answer.body.get("expires").is_some(), allowed, "{answer:?}");
    allowed
}

fn code(answer: &Answer) -> (u16, &str) {
    (answer.status, answer.body["error"]["code"].as_str().unwrap_or_default())
}

/// What is left, by a check that charges nothing.
async fn left(client: &mut Client, identifier: &str, limit: u64) -> Value {
    let check = json!({"namespace": "api", "identifier": identifier, "limit": limit, "duration": "1h", "cost": 0,
                       "timeout": SHORT});
    client.post("/v1/check", &check).await.body["remaining"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_reserved_is_not_given_to_others_until_it_is_settled() {
    let weir = start(None).await;
    let mut client = Client::connect(&weir).await;
    let before = weir.server.services().now().0;
    let first = reserve(&mut client, &reservation("one", "a", 1_000, 600)).await;
    assert!(passes(&first));
    assert_eq!((&first.body["id"], &first.body["remaining"]), (&json!("one"), &json!(400)), "{first:?}");
    let expires = first.body["expires"].as_u64().unwrap();
    assert!((before + 600_000..before + 660_000).contains(&expires), "ten minutes by default: {first:?}");
    let second = reserve(&mut client, &briefly(reservation("two", "a", 1_000, 600))).await;
    assert!(!passes(&second), "{second:?}");
    let settled = settle(&mut client, "one", 100).await;
    assert_eq!((settled.status, &settled.body), (200, &json!({"id": "one", "cost": 100})));
    assert_eq!(left(&mut client, "a", 1_000).await, 900);
    let second = reserve(&mut client, &reservation("two", "a", 1_000, 600)).await;
    assert!(passes(&second), "a denied reservation is decided again: {second:?}");
    assert_eq!(weir.metric("weir_aggregator_http_requests_total{route=\"settle\",code=\"2xx\"}"), 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_requests_have_the_same_answer_and_charge_nothing_further() {
    let weir = start(None).await;
    let mut client = Client::connect(&weir).await;
    let request = reservation("one", "a", 1_000, 600);
    let first = reserve(&mut client, &request).await;
    assert!(passes(&first));
    for _ in 0..3 {
        let again = reserve(&mut client, &request).await;
        assert_eq!((again.status, &again.body), (200, &first.body));
    }
    assert_eq!(left(&mut client, "a", 1_000).await, 400);
    for other in [
        reservation("one", "a", 1_000, 601),
        reservation("one", "a", 1_001, 600),
        reservation("one", "b", 1_000, 600),
    ] {
        assert_eq!(code(&reserve(&mut client, &other).await), (409, "reservation_differs"), "{other}");
    }
    let settled = settle(&mut client, "one", 200).await;
    for _ in 0..3 {
        let again = settle(&mut client, "one", 200).await;
        assert_eq!((again.status, &again.body), (200, &settled.body));
    }
    assert_eq!(code(&settle(&mut client, "one", 201).await), (409, "reservation_settled"));
    let late = reserve(&mut client, &request).await;
    assert_eq!((late.status, &late.body), (200, &first.body), "a copy that arrives late reserves nothing");
    assert_eq!(left(&mut client, "a", 1_000).await, 800);
    assert_eq!(code(&settle(&mut client, "never", 1).await), (404, "reservation_unknown"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn debt_is_kept_and_a_reserve_above_the_limit_passes_alone() {
    let weir = start(None).await;
    let mut client = Client::connect(&weir).await;
    let above = reserve(&mut client, &reservation("one", "a", 1_000, 50_000)).await;
    assert!(passes(&above) && above.body["remaining"] == 0, "{above:?}");
    assert!(!passes(&reserve(&mut client, &briefly(reservation("two", "a", 1_000, 1))).await));
    assert_eq!(settle(&mut client, "one", 3_000).await.status, 200);
    until("the debt counts in full", || used(&weir, "a") == 3_000).await;
    let denied = reserve(&mut client, &reservation("two", "a", 1_000, 1)).await;
    assert!(!passes(&denied), "{denied:?}");
    let wait = denied.body["retry_after_ms"].as_u64().unwrap();
    assert!(wait > HOUR_MS, "three times the limit lasts beyond the cell: {denied:?}");
    assert!(!passes(&reserve(&mut client, &reservation("three", "b", 0, 1)).await), "a limit of 0 stays one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_limits_are_reserved_together_or_not_at_all() {
    let weir = start(None).await;
    let mut client = Client::connect(&weir).await;
    let check = |identifier: &str, limit: u64, cost: u64| json!({"namespace": "api", "identifier": identifier, "limit": limit, "duration": "1h", "cost": cost});
    let request = |id: &str, requests: u64| {
        json!({"id": id, "timeout": TIMEOUT, "checks": [
            check("tokens", 1_000, 300), check("dollars", 10_000, 4_000), check("tokens", 1_000, 200),
            check("requests", 1, requests)]})
    };
    let first = reserve(&mut client, &request("one", 1)).await;
    assert!(passes(&first));
    let remaining: Vec<&Value> =
        first.body["checks"].as_array().unwrap().iter().map(|of| &of["remaining"]).collect();
    assert_eq!(remaining, [&json!(500), &json!(6_000), &json!(500), &json!(0)], "of one window they add up");
    assert!(!passes(&reserve(&mut client, &briefly(request("two", 1))).await), "one request is under way");
    assert_eq!(left(&mut client, "tokens", 1_000).await, 500, "nothing of the denied one is reserved");
    for (costs, field) in [(json!([1, 2, 3]), "costs"), (json!([1, 2, 3, 4, 5]), "costs")] {
        let answer = client.post("/v1/settle", &json!({"id": "one", "costs": costs})).await;
        assert_eq!(
            (code(&answer), &answer.body["error"]["field"]),
            ((400, "invalid_request"), &json!(field))
        );
    }
    let one = settle(&mut client, "one", 1).await;
    assert_eq!((code(&one), &one.body["error"]["field"]), ((400, "invalid_request"), &json!("cost")));
    let settled = client.post("/v1/settle", &json!({"id": "one", "costs": [30, 2_500, 20, 1]})).await;
    assert_eq!((settled.status, &settled.body), (200, &json!({"id": "one", "costs": [30, 2_500, 20, 1]})));
    for (identifier, limit, rest) in [("tokens", 1_000, 950), ("dollars", 10_000, 7_500), ("requests", 1, 0)]
    {
        assert_eq!(left(&mut client, identifier, limit).await, rest, "{identifier} has its cost");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parallel_work_cannot_pass_a_limit_together() {
    let weir = start(None).await;
    let mut all = JoinSet::new();
    for number in 0..64 {
        let mut client = Client::connect(&weir).await;
        all.spawn(async move {
            let request = briefly(reservation(&number.to_string(), "a", 1_000, 50));
            let passed = passes(&reserve(&mut client, &request).await);
            passed.then_some(number)
        });
    }
    let passed: Vec<i32> = all.join_all().await.into_iter().flatten().collect();
    assert_eq!(passed.len(), 20, "as many as the limit has room for");
    let mut client = Client::connect(&weir).await;
    for number in passed {
        assert_eq!(settle(&mut client, &number.to_string(), 10).await.status, 200);
    }
    assert_eq!(left(&mut client, "a", 1_000).await, 800);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_of_a_reservation_that_arrive_together_are_one() {
    let weir = start(None).await;
    let mut all = JoinSet::new();
    for _ in 0..16 {
        let mut client = Client::connect(&weir).await;
        all.spawn(async move { reserve(&mut client, &reservation("one", "a", 1_000, 600)).await.body });
    }
    let answers = all.join_all().await;
    assert!(
        answers[0]["allowed"] == true && answers.iter().all(|answer| *answer == answers[0]),
        "{answers:?}"
    );
    let mut client = Client::connect(&weir).await;
    assert_eq!(left(&mut client, "a", 1_000).await, 400);
}

/// An application that does not wait for the answer repeats the request, and finds what the first one reserved. On one thread nothing is
/// decided within the first poll.
#[tokio::test]
async fn a_reservation_whose_caller_disconnects_is_found_again() {
    let weir = start(None).await;
    let embedded = weir.server.embedded();
    let (name, booking) = (named("one"), booked("a", 600));
    let mut first = Box::pin(embedded.reserve(name.clone(), booking.clone(), Duration::from_secs(5)));
    let waits = poll_fn(|context| Poll::Ready(first.as_mut().poll(context).is_pending())).await;
    assert!(waits, "it is decided in a task of its own");
    drop(first);
    let again = embedded.reserve(name, booking, Duration::from_secs(5)).await.unwrap();
    assert!(again.answer.allowed, "{again:?}");
    let mut client = Client::connect(&weir).await;
    assert_eq!(left(&mut client, "a", 1_000).await, 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reservation_that_is_never_settled_is_charged_when_it_expires() {
    let weir = start(None).await;
    let mut client = Client::connect(&weir).await;
    let mut request = reservation("one", "a", 1_000, 600);
    request["lifetime"] = "1s".into();
    assert!(passes(&reserve(&mut client, &request).await));
    let began = Instant::now();
    while reserve(&mut client, &request).await.status == 200 {
        assert!(began.elapsed() < DEADLINE, "it must expire");
    }
    for cost in [0, 600, 5_000] {
        assert_eq!(code(&settle(&mut client, "one", cost).await), (410, "reservation_expired"));
    }
    assert_eq!(code(&reserve(&mut client, &request).await), (410, "reservation_expired"));
    assert_eq!(left(&mut client, "a", 1_000).await, 400, "charged once, and nothing more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_reserved_when_the_aggregator_ends_is_charged() {
    let redis = Redis::start(RedisOptions::default()).await.unwrap();
    let weir = start_on(&redis).await;
    let mut client = Client::connect(&weir).await;
    assert!(passes(&reserve(&mut client, &reservation("one", "a", 1_000, 600)).await));
    drop(client);
    weir.server.stop().await;
    let other = start_on(&redis).await;
    let mut client = Client::connect(&other).await;
    let rest = reserve(&mut client, &briefly(reservation("two", "a", 1_000, 401))).await;
    assert!(!passes(&rest), "{rest:?}");
    assert!(passes(&reserve(&mut client, &reservation("two", "a", 1_000, 400)).await));
    assert_eq!(code(&settle(&mut client, "one", 1).await), (404, "reservation_unknown"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_requests_are_refused_with_the_field() {
    let weir = start(None).await;
    let mut client = Client::connect(&weir).await;
    let sound = reservation("one", "a", 1_000, 600);
    let with = |name: &str, value: Value| {
        let mut request = sound.clone();
        request[name] = value;
        request
    };
    let above = (1_u64 << 53) + 1;
    for (request, field) in [
        (with("cost", json!(-1)), "cost"),
        (with("cost", json!(1.5)), "cost"),
        (with("cost", json!("600")), "cost"),
        (with("cost", json!(above)), "cost"),
        (with("cost", json!(null)), "cost"),
        (with("id", json!("")), "id"),
        (with("id", json!("x".repeat(65))), "id"),
        (with("id", json!(7)), "id"),
        (with("lifetime", json!("999ms")), "lifetime"),
        (with("lifetime", json!("61m")), "lifetime"),
        (with("on_failure", json!("allow")), "on_failure"),
        (with("algorithm", json!("sliding_log")), "algorithm"),
        (with("algorithm", json!("ledger")), "algorithm"),
        (with("hard_limit", json!(true)), "hard_limit"),
        (with("checks", json!([])), "identifier"),
        (json!({"id": "one", "checks": []}), "checks"),
        (
            json!({"id": "one", "checks": vec![json!({"identifier": "a", "limit": 1, "duration": "1m", "cost": 1}); 9]}),
            "checks",
        ),
        (
            json!({"id": "one", "checks": [{"identifier": "a", "limit": 1, "duration": "1m"}]}),
            "checks[0].cost",
        ),
        (json!({"id": "one", "identifier": "a", "limit": 1, "duration": "1m"}), "cost"),
        (json!({"identifier": "a", "limit": 1, "duration": "1m", "cost": 1}), "id"),
    ] {
        let answer = reserve(&mut client, &request).await;
        assert_eq!(code(&answer), (400, "invalid_request"), "{request}");
        assert_eq!(answer.body["error"]["field"], field, "{request}: {answer:?}");
    }
    assert!(passes(&reserve(&mut client, &sound).await), "none of them has taken the id");
    for (request, field) in [
        (json!({"id": "one"}), "cost"),
        (json!({"id": "one", "cost": -1}), "cost"),
        (json!({"id": "one", "cost": 0.5}), "cost"),
        (json!({"id": "one", "cost": "12"}), "cost"),
        (json!({"id": "one", "cost": above}), "cost"),
        (json!({"id": "one", "cost": null}), "cost"),
        (json!({"id": "one", "cost": 1, "costs": [1]}), "cost"),
        (json!({"id": "one", "costs": [1, -1]}), "costs[1]"),
        (json!({"id": "one", "costs": 1}), "costs"),
        (json!({"id": "one", "cost": 1, "usage": {}}), "usage"),
        (json!({"cost": 1}), "id"),
    ] {
        let answer = client.post("/v1/settle", &request).await;
        assert_eq!(code(&answer), (400, "invalid_request"), "{request}");
        assert_eq!(answer.body["error"]["field"], field, "{request}: {answer:?}");
    }
    assert_eq!(left(&mut client, "a", 1_000).await, 400, "nothing is settled");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_reaches_the_reservations_of_its_workspace_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (shop, first) = token("shop", "one", "[]");
    let (other, second) = token("other", "two", "[]");
    let jobs = NewToken::new(Entry::application("jobs", "one")).unwrap();
    let third = format!("{}  namespaces: [jobs]\n", jobs.entry);
    let small = NewToken::new(Entry::application("small", "one")).unwrap();
    let fourth = format!("{}  namespaces: all\n  max_cost: 700\n", small.entry);
    let path = write(folder.path(), "tokens.yaml", &format!("{first}{second}{third}{fourth}"));
    let weir = start_apis(ApiSettings { tokens_file: Some(path), ..ApiSettings::default() }).await;
    let mut client = Client::connect(&weir).await;
    let request = reservation("one", "a", 1_000, 600);
    assert_eq!(code(&reserve(&mut client, &request).await), (401, "token_missing"));
    assert!(passes(&client.post_as(&shop, "/v1/reserve", &request).await));
    let cost = |cost: u64| json!({"id": "one", "cost": cost});
    let there = json!({"id": "one", "cost": 1, "workspace": "one"});
    for (token, body, status, expected) in [
        (&other, cost(1), 404, "reservation_unknown"),
        (&other, there, 403, "workspace_not_allowed"),
        (&jobs.token, cost(1), 403, "namespace_not_allowed"),
        (&small.token, cost(701), 403, "cost_not_allowed"),
    ] {
        let answer = client.post_as(token, "/v1/settle", &body).await;
        assert_eq!(code(&answer), (status, expected), "{answer:?}");
    }
    for (token, request, expected) in [
        (&jobs.token, reservation("two", "a", 1_000, 1), "namespace_not_allowed"),
        (&small.token, reservation("two", "a", 1_000, 701), "cost_not_allowed"),
    ] {
        assert_eq!(code(&client.post_as(token, "/v1/reserve", &request).await), (403, expected));
    }
    assert!(passes(&client.post_as(&other, "/v1/reserve", &request).await), "its id is its own");
    assert_eq!(client.post_as(&shop, "/v1/settle", &cost(900)).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn live_control_applies_and_costs_are_charged_where_they_belong() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/weir.db", folder.path().display());
    let database = DatabaseOptions { url, read_url: None, region: "test-region".into() };
    let weir = start_with(Settings { database: Some(database), migrate: true, ..settings() }).await;
    put(&weir, json!({"namespace": "api", "identifier": "free", "exempt": true})).await;
    put(&weir, json!({"namespace": "api", "identifier": "bad", "ban": true, "reason": "spam"})).await;
    let mut client = Client::connect(&weir).await;
    let check = |identifier: &str, cost: u64| json!({"namespace": "api", "identifier": identifier, "limit": 1_000, "duration": "1h", "cost": cost});
    let mixed = json!({"id": "one", "timeout": TIMEOUT, "checks": [check("free", 9_000), check("a", 600)]});
    assert!(passes(&reserve(&mut client, &mixed).await));
    assert_eq!(client.post("/v1/settle", &json!({"id": "one", "costs": [8_000, 7]})).await.status, 200);
    assert_eq!(left(&mut client, "a", 1_000).await, 993, "the second cost is that of the second check");
    assert_eq!(used(&weir, "free"), 0);
    assert!(!passes(&reserve(&mut client, &reservation("two", "bad", 1_000, 1)).await));
    assert!(passes(&reserve(&mut client, &reservation("three", "free", 1, 50)).await));
    assert_eq!(settle(&mut client, "three", 50).await.status, 200);
}

fn named(id: &str) -> ReservationName {
    ReservationName { workspace: b"default".to_vec(), id: id.as_bytes().to_vec() }
}

fn booked(identifier: &str, cost: u64) -> Booking {
    let check = LimitCheck {
        algorithm: Algorithm::Window,
        workspace: b"default".to_vec(),
        namespace: b"api".to_vec(),
        identifier: identifier.as_bytes().to_vec(),
        duration_ms: HOUR_MS,
        hard_limit: false,
        limit: 1_000,
        cost,
    };
    Booking { checks: vec![check], lifetime_ms: 600_000 }
}

/// Fills the room of the workspace `default`; returns how many it may have.
pub async fn fill(weir: &Weir) -> usize {
    for number in 0..=MAX_RESERVATIONS {
        let reserved = weir.server.embedded().reserve(
            named(&format!("fill {number}")),
            booked("room", 0),
            Duration::from_secs(5),
        );
        match reserved.await {
            Ok(reserved) => assert!(reserved.answer.allowed, "{reserved:?}"),
            Err(error) => {
                assert_eq!(error, ReserveError::Full);
                return number;
            }
        }
    }
    panic!("there is no bound");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workspace_that_fills_its_room_leaves_some_to_others() {
    let weir = start(None).await;
    let held = fill(&weir).await;
    assert!(held < MAX_RESERVATIONS * 3 / 4 && held > MAX_RESERVATIONS / 2, "{held}");
    let mut client = Client::connect(&weir).await;
    let answer = reserve(&mut client, &reservation("one", "a", 1_000, 1)).await;
    assert_eq!(code(&answer), (503, "too_many_reservations"));
    let mut other = reservation("one", "a", 1_000, 1);
    other["workspace"] = "other".into();
    assert!(passes(&reserve(&mut client, &other).await));
    assert_eq!(settle(&mut client, "fill 0", 5).await.status, 200);
    assert!(passes(&reserve(&mut client, &reservation("one", "a", 1_000, 1)).await), "one has left");
    until("what was settled counts, and nothing else", || used(&weir, "room") == 5).await;
}
