//! Costs that only responses state: a request in progress holds its reserve, and the cost in the response is charged.

use std::io;

use hyper::body::Incoming;
use serde_json::{Value, json};
use weir_envoy::http::{Protocol, Request};
use weir_envoy::{EnvoyOptions, Filter, Reload, Weir, binaries, wait};

use super::common::{KEY, Region, SOON, config, get_as, rule, unanswered, with};
use super::upstream::{self, Upstream, held_back, send_all};

/// The response that the upstream should give: a number of tokens, or several for as many lines, `reset`, or no header.
const ANSWER: &str = "x-answer";
/// A path from which the upstream redirects to another one, each answered for what follows it.
const REDIRECT: &str = "/redirect/";

/// An upstream that states what a request used.
fn answer(request: &hyper::Request<Incoming>) -> io::Result<upstream::Response> {
    if let Some(tokens) = request.uri().path().strip_prefix(REDIRECT) {
        let mut response = upstream::whole(302, "ok\n");
        let location = format!("http://{}/landing", upstream::header(request, "host"));
        response.headers_mut().insert("location", location.parse().map_err(io::Error::other)?);
        if !tokens.is_empty() {
            let tokens = tokens.parse().map_err(io::Error::other)?;
            response.headers_mut().insert("x-tokens-used", tokens);
        }
        return Ok(response);
    }
    let mut response = upstream::whole(200, "ok\n");
    match request.headers().get(ANSWER) {
        Some(reset) if reset == "reset" => return Err(io::ErrorKind::ConnectionReset.into()),
        Some(tokens) => {
            for line in tokens.to_str().unwrap_or_default().split(' ') {
                let line = line.parse().map_err(io::Error::other)?;
                response.headers_mut().append("x-tokens-used", line);
            }
        }
        None => {}
    }
    Ok(response)
}

async fn start() -> Upstream {
    Upstream::start(Protocol::Http1, answer).await
}

fn tokens(limit: u64, cost: Value) -> Value {
    let cost_of = with(json!({ "response": {"header": "x-tokens-used"}, "max": 500 }), cost);
    with(rule("r", limit), json!({ "cost": cost_of }))
}

fn costing(tokens: &str) -> Request {
    get_as("a").header(ANSWER, tokens)
}

/// A request whose first response Envoy follows.
fn redirected(first: &str, second: &str) -> Request {
    Request::get(&format!("{REDIRECT}{first}")).header(KEY, "a").header(ANSWER, second)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_in_progress_cannot_exceed_the_limit_together() {
    let upstream = start().await;
    let options = EnvoyOptions { concurrency: 2, ..upstream.options() };
    let region = Region::start(1, options, &config(&[tokens(100, json!({ "reserve": 10 }))])).await;
    upstream.gate.send_replace(false);
    let mut sent = send_all(&region, 40, &costing("3"));
    assert_eq!(held_back(&upstream, 0, &mut sent).await, 10, "as many as the limit has reserves");
    upstream.gate.send_replace(true);
    assert_eq!(sent.join_all().await, [200; 10]);
    region.settles_at("r", "a", 30).await;

    assert_eq!(region.envoy().send(costing("90")).await.unwrap().status, 200, "unused reserves are returned");
    region.settles_at("r", "a", 120).await;
    let denied = region.envoy().send(costing("1")).await.unwrap();
    assert_eq!((denied.status, denied.header("x-ratelimit-remaining")), (429, Some("0")));
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_states_what_is_left_after_its_own_cost() {
    let upstream = start().await;
    let rule = with(tokens(1_000, json!({ "reserve": 100 })), json!({ "window": "31d" }));
    let headers_on_allowed = with(config(&[rule]), json!({ "responses": { "headers_on_allowed": true } }));
    let region = Region::start(1, upstream.options(), &headers_on_allowed).await;
    for (tokens, left) in [("300", "700"), ("0", "700"), ("50", "650")] {
        let allowed = region.envoy().send(costing(tokens)).await.unwrap();
        assert_eq!((allowed.status, allowed.header("x-ratelimit-remaining")), (200, Some(left)), "{tokens}");
    }
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_shown_once_a_smaller_share_of_them_is_left_than_of_requests() {
    let upstream = start().await;
    let long = json!({ "window": "31d" });
    let requests = with(rule("requests", 600), long.clone());
    let tokens = with(tokens(100_000, json!({ "reserve": 100, "max": 100_000 })), long);
    let formats = json!({ "responses": { "headers_on_allowed": true, "ietf_headers": true } });
    let region = Region::start(1, upstream.options(), &with(config(&[requests, tokens]), formats)).await;
    for (cost, limit, remaining, left) in
        [("0", "600", "599", 100_000), ("30000", "100000", "70000", 70_000), ("69999", "100000", "1", 1)]
    {
        let allowed = region.envoy().send(costing(cost)).await.unwrap();
        let shown = ["x-ratelimit-limit", "x-ratelimit-remaining"].map(|name| allowed.header(name));
        assert_eq!((allowed.status, shown), (200, [Some(limit), Some(remaining)]), "{cost}");
        let listed = allowed.header("ratelimit").unwrap();
        assert!(listed.contains(&format!("\"r\";r={left};t=")), "{listed}");
    }
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_end_of_a_request_has_its_cost() {
    let upstream = start().await;
    let rule = tokens(100_000, json!({ "reserve": 20, "default": 7 }));
    let region = Region::start(1, upstream.options(), &config(&[rule])).await;
    let mut total = 0;
    for (request, status, cost, why) in [
        (costing("0"), 200, 0, "an upstream may report a cost of 0"),
        (costing("11"), 200, 11, "less than reserved"),
        (costing("444"), 200, 444, "more than reserved"),
        (get_as("a"), 200, 7, "without the header the default"),
        (costing("many"), 200, 500, "no number costs the cap"),
        (costing("1 90"), 200, 90, "of two lines the largest"),
        (costing("90 1"), 200, 90, "whichever comes first"),
        (costing("1 many"), 200, 500, "and the cap if one is no number"),
        (redirected("85", "5"), 200, 90, "a response that Envoy follows, and the one to which it leads"),
        (redirected("", "5"), 200, 12, "the default of such a response without the header"),
        (costing("99999999999999999999"), 200, 500, "nor does more than the cap"),
        (costing("reset"), 503, 20, "an upstream that did not respond may have used what was reserved"),
    ] {
        assert_eq!(region.envoy().send(request).await.unwrap().status, status, "{why}");
        total += cost;
        region.settles_at("r", "a", total).await;
    }

    upstream.gate.send_replace(false);
    let before = upstream.arrived();
    let mut aborted = send_all(&region, 1, &costing("1"));
    let came = async || upstream.arrived() > before;
    wait::until("it is in progress", SOON, came).await.unwrap();
    aborted.abort_all();
    while aborted.join_next().await.is_some() {}
    region.settles_at("r", "a", total + 20).await;

    drop(upstream);
    let unreached =
        async || region.envoy().send(costing("1")).await.unwrap().header("x-tokens-used").is_none();
    wait::until("the upstream is unreachable", SOON, unreached).await.unwrap();
    assert_eq!(region.envoy().send(costing("1")).await.unwrap().status, 503);
    assert_eq!(region.envoy().send(get_as("b")).await.unwrap().status, 503);
    assert_eq!(region.total("r", "b").await, 0, "an upstream that was never reached used nothing");
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_vm_held_counts_as_spent() {
    let upstream = start().await;
    let rule = tokens(10, json!({ "reserve": 10, "hold_timeout": "1s" }));
    let faulty = with(config(&[rule]), json!({ "test_faults": true }));
    let region = Region::start(1, upstream.options(), &faulty).await;
    upstream.gate.send_replace(false);
    let _under_way = send_all(&region, 1, &costing("1"));
    let came = async || upstream.arrived() == 1;
    wait::until("it is in progress", SOON, came).await.unwrap();
    let died = region.envoy().send(get_as("b").header("x-weir-fault", "panic")).await.unwrap();
    assert_eq!(died.status, 503);
    let spent = async || {
        let refused = region.envoy().send(costing("1")).await.unwrap();
        assert!([429, 503].contains(&refused.status), "{refused:?}");
        region.total("r", "a").await == 10
    };
    wait::until("it counts as spent", SOON, spent).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_envoys_hold_together() {
    let upstream = start().await;
    // The region must decide: after a timeout each Envoy would decide by its own counts, which this test does not
    // cover.
    let patient = json!({ "timeout": "1s", "on_failure": "deny" });
    let rule = with(tokens(1_000, json!({ "reserve": 50 })), patient);
    let region = Region::start(2, upstream.options(), &config(&[rule])).await;
    let (mut sent_so_far, mut late) = (0, 0);
    for attempt in 1.. {
        let before = upstream.arrived();
        upstream.gate.send_replace(false);
        let request = get_as(&format!("a{attempt}")).header(ANSWER, "10");
        let mut sent = send_all(&region, 60, &request);
        let under_way = held_back(&upstream, before, &mut sent).await;
        println!("{under_way} of 60 under way, 20 reserves in the limit");
        upstream.gate.send_replace(true);
        assert!(sent.join_all().await.iter().all(|status| *status == 200));
        sent_so_far += 60;
        region.counted(sent_so_far).await;
        // Each Envoy may hold an eighth of what is left without a query.
        assert!(under_way <= 24, "{under_way}");
        let late_before = std::mem::replace(&mut late, unanswered(&region.envoys).await);
        if late == late_before {
            assert!(under_way >= 10, "{under_way}");
            break;
        }
        // Requests whose query timed out were denied.
        assert!(attempt < 5, "the region is never in time");
    }
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_module_without_responses_refuses_costs_from_responses() {
    let options = EnvoyOptions { reloadable: true, ..EnvoyOptions::default() };
    let mut region = Region::start(1, options, &config(&[rule("r", 3)])).await;
    let without_responses = Weir {
        module: binaries::filter().unwrap(),
        ..Weir::new(binaries::filter().unwrap(), config(&[tokens(10, json!({ "reserve": 1 }))]))
    };
    assert_eq!(region.envoys[0].reload(Filter::Weir(without_responses)).await.unwrap(), Reload::Rejected);
    let log = region.envoy().log().unwrap();
    assert!(log.contains("rules[0].cost.response.header: this module does not receive responses"), "{log}");
}
