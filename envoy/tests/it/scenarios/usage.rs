//! Token and money budgets: Envoy's AI protocol manager reads what a language model used, and the filter charges it.

use std::io;

use hyper::body::{Bytes, Frame, Incoming};
use serde_json::{Value, json};
use weir_envoy::http::{Protocol, Request};
use weir_envoy::{EnvoyOptions, wait};

use super::bodies::Example;
use super::common::{KEY, Region, SOON, config, long_window, rule, with};
use super::upstream::{self, Upstream, held_back, send_all, streamed};

/// What the model does: `stream`, `json`, `gzip`, `silent` (a stream without use), `cut` (one that breaks off), `error`, or `reset`.
const ACTS: &str = "x-acts";
/// The tokens of its answer.
const OUTPUT: &str = "x-output";
const INPUT: u64 = 11;

fn event(json: &Value) -> io::Result<Frame<Bytes>> {
    Ok(Frame::data(Bytes::from(format!("data: {json}\n\n"))))
}

fn used(output: u64) -> Value {
    json!({ "prompt_tokens": INPUT, "completion_tokens": output, "total_tokens": INPUT + output,
            "prompt_tokens_details": { "cached_tokens": 4 }, "completion_tokens_details": { "reasoning_tokens": 2 } })
}

/// A stream of one event for each token of the answer.
fn stream(output: u64) -> Vec<io::Result<Frame<Bytes>>> {
    let delta = json!({ "id": "x", "object": "chat.completion.chunk", "model": "gpt-4o", "usage": null,
        "choices": [{ "index": 0, "delta": { "content": "wörd " }, "finish_reason": null }] });
    (0..output).map(|_| event(&delta)).collect()
}

fn answer(request: &hyper::Request<Incoming>) -> io::Result<upstream::Response> {
    let output = upstream::header(request, OUTPUT).parse().unwrap_or(0);
    let whole = json!({ "id": "x", "object": "chat.completion", "model": "gpt-4o", "usage": used(output),
        "choices": [{ "index": 0, "message": { "role": "assistant", "content": "hi" }, "finish_reason": "stop" }] });
    let last = json!({ "id": "x", "object": "chat.completion.chunk", "model": "gpt-4o", "usage": used(output), "choices": [] });
    let done = || Ok(Frame::data(Bytes::from_static(b"data: [DONE]\n\n")));
    let acts = upstream::header(request, ACTS);
    let mut frames = stream(output);
    match acts {
        "reset" => return Err(io::ErrorKind::ConnectionReset.into()),
        "stream" => frames.extend([event(&last), done()]),
        "silent" => frames.push(done()),
        "cut" => frames.push(Err(io::ErrorKind::ConnectionReset.into())),
        "error" => frames = vec![Ok(Frame::data(Bytes::from_static(b"{\"error\":{}}")))],
        _ => frames = vec![Ok(Frame::data(Bytes::from(whole.to_string())))],
    }
    let is_stream = matches!(acts, "stream" | "silent" | "cut");
    let mut response = streamed(if acts == "error" { 400 } else { 200 }, frames);
    let kind = if is_stream { "text/event-stream" } else { "application/json" };
    response.headers_mut().insert("content-type", kind.parse().unwrap());
    if acts == "gzip" {
        response.headers_mut().insert("content-encoding", "gzip".parse().unwrap());
    }
    Ok(response)
}

/// Envoy's filter that reads requests and answers of language models.
fn manager() -> Value {
    json!({ "name": "envoy.filters.http.ai_protocol_manager", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.ai_protocol_manager.v3.AiProtocolManager",
        "request_handling": {}, "response_handling": { "token_usage": {} },
        "filters": [{ "name": "request_info", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.http.ai_filters.request_info.v3.RequestInfo",
            "token_estimation": { "tokens_per_byte": 0.25 },
        }}],
    }})
}

async fn start(rules: &[Value]) -> (Upstream, Region) {
    let upstream = Upstream::start(Protocol::Http1, answer).await;
    let options = EnvoyOptions {
        before: vec![manager()],
        route_filters: json!({ "envoy.filters.http.ai_protocol_manager": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.ai_protocol_manager.v3.AiProtocolManagerPerRoute",
            "request": { "llm_protocol": "OPENAI_CHAT_COMPLETIONS" },
        }}),
        concurrency: 2,
        ..upstream.options()
    };
    let region = Region::start(1, options, &config(rules)).await;
    (upstream, region)
}

fn tokens(limit: u64, more: Value) -> Value {
    let cost = with(json!({ "usage": "envoy", "max": 100_000 }), more);
    with(rule("r", limit), json!({ "cost": cost }))
}

/// A call of a model with a cap of 100 tokens.
fn call(acts: &str, output: u64) -> Request {
    let body = json!({ "model": "gpt-4o", "max_tokens": 100, "messages": [{ "role": "user", "content": "x".repeat(400) }] });
    let request = Request::post("/v1/chat/completions", body.to_string()).header(KEY, "a");
    request.header("content-type", "application/json").header(ACTS, acts).header(OUTPUT, output.to_string())
}

async fn usage(region: &Region, results: &[(&str, u64)]) {
    for (result, count) in results {
        let name = format!("wasmcustom.weir_usage_total.rule.r.result.{result}");
        let waited = region.envoy().wait_stat(&name, SOON, |found| found == *count).await;
        waited.unwrap_or_else(|error| panic!("{result}: {error}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_end_of_an_answer_has_its_charge() {
    let more = json!({ "weights": { "cached_input": 0.5, "output": 2, "reasoning": 3 }, "without_usage": 7_000,
                       "on_disconnect": "reserve", "on_error_status": 50_000 });
    let (upstream, region) = start(&[tokens(10_000_000, more)]).await;
    // 7 tokens of input, 4 of the cache at a half, 3 at 2, and 2 of reasoning at 3.
    let charge = |output: u64| 7 + 2 + 2 * (output - 2) + 6;
    let mut total = 0;
    for (request, status, cost, why) in [
        (call("stream", 5), 200, charge(5), "a stream"),
        (call("json", 9), 200, charge(9), "JSON"),
        (call("silent", 5), 200, 7_000, "a stream without use"),
        (call("gzip", 5), 200, 7_000, "a compressed answer"),
        (call("error", 0), 400, 50_000, "an error"),
        (Request::get("/v1/models").header(KEY, "a").header(ACTS, "silent"), 200, 0, "no prompt"),
        (
            Request::get("/v1/models").header(KEY, "a").header(ACTS, "error"),
            400,
            0,
            "an error without a prompt",
        ),
    ] {
        assert_eq!(region.envoy().send(request).await.unwrap().status, status, "{why}");
        total += cost;
        println!("{why}: {cost}");
        region.settles_at("r", "a", total).await;
    }
    usage(
        &region,
        &[("complete", 2), ("missing", 1), ("encoded", 1), ("error_status", 1), ("without_body", 2)],
    )
    .await;
    let kinds = [("input", 22), ("cached_input", 8), ("output", 14), ("reasoning", 4)];
    for (kind, count) in kinds {
        let name = format!("wasmcustom.weir_usage_tokens_total.rule.r.kind.{kind}");
        region.envoy().wait_stat(&name, SOON, |found| found == count).await.unwrap();
    }

    let reserve = {
        upstream.gate.send_replace(false);
        let before = upstream.arrived();
        let mut aborted = send_all(&region, 1, &call("stream", 5));
        wait::until("it is under way", SOON, async || upstream.arrived() > before).await.unwrap();
        aborted.abort_all();
        while aborted.join_next().await.is_some() {}
        usage(&region, &[("disconnected", 1)]).await;
        upstream.gate.send_replace(true);
        region.total("r", "a").await - total
    };
    // At most 100 tokens of output at 2, and an estimate of some 130 of input.
    assert!((250..=400).contains(&reserve), "{reserve}");
    total += reserve;
    for (acts, why) in [("cut", "an upstream that breaks off"), ("reset", "one that does not answer")] {
        let _ = region.envoy().send(call(acts, 5)).await;
        total += reserve;
        println!("{why}");
        region.settles_at("r", "a", total).await;
    }
    usage(&region, &[("reset", 2)]).await;
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_fifty_concurrent_calls_ten_reserves_pass() {
    let reserve = json!({ "input": 0, "output": "max_tokens" });
    let (upstream, region) = start(&[tokens(1_000, json!({ "reserve": reserve }))]).await;
    upstream.gate.send_replace(false);
    let mut sent = send_all(&region, 50, &call("stream", 20));
    assert_eq!(held_back(&upstream, 0, &mut sent).await, 10);
    upstream.gate.send_replace(true);
    assert_eq!(sent.join_all().await, [200; 10]);
    usage(&region, &[("complete", 10)]).await;
    // 310 are used; what is left serves six further reserves.
    for _ in 0..6 {
        assert_eq!(region.envoy().send(call("stream", 2)).await.unwrap().status, 200);
    }
    usage(&region, &[("complete", 16)]).await;
    let output = "wasmcustom.weir_usage_tokens_total.rule.r.kind.output";
    region.envoy().wait_stat(output, SOON, |found| found == 10 * 20 + 6 * 2).await.unwrap();
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reserve_beyond_the_limit_passes_alone_and_debt_is_kept() {
    let requests = with(rule("requests", 4), json!({ "identifier": { "header": "x-other" } }));
    let (upstream, region) = start(&[tokens(50, json!({})), requests]).await;
    assert_eq!(region.envoy().send(call("stream", 30)).await.unwrap().status, 200);
    region.settles_at("r", "a", INPUT + 30).await;
    assert_eq!(
        region.envoy().send(call("stream", 1)).await.unwrap().status,
        429,
        "it does not pass beside other use"
    );

    let as_one = |key: &str, output| {
        let mut request = call("stream", output).header("x-other", key);
        request.headers.retain(|(name, _)| name != KEY);
        request.header(KEY, key)
    };
    assert_eq!(region.envoy().send(as_one("b", 500)).await.unwrap().status, 200);
    region.settles_at("r", "b", INPUT + 500).await;
    let denied = region.envoy().send(as_one("b", 1)).await.unwrap();
    assert_eq!((denied.status, denied.header("x-ratelimit-remaining")), (429, Some("0")), "debt is kept");
    assert_eq!(region.total("requests", "b").await, 1, "what one rule denies, no other charges");

    upstream.gate.send_replace(false);
    let before = upstream.arrived();
    let mut sent = send_all(&region, 3, &as_one("c", 1));
    assert_eq!(held_back(&upstream, before, &mut sent).await, 1, "and not beside another reserve");
    upstream.gate.send_replace(true);
    assert_eq!(sent.join_all().await, [200]);
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prices_count_dollars_and_clients_of_openai_read_the_rest() {
    let priced = json!({
        "name": "r", "identifier": { "header": KEY }, "limit": { "usd": 0.001 }, "window": long_window(), "timeout": "1s",
        "cost": { "usage": "envoy", "prices": { "gpt-4o": { "input": 2.5, "cached_input": 1.25, "output": 10 }, "*": { "input": 10, "output": 30 } } },
        "response": { "headers": "openai", "format": "openai" },
    });
    let (_upstream, region) = start(&[priced]).await;
    // More than 900 of 1000 micro-dollars.
    assert_eq!(region.envoy().send(call("json", 90)).await.unwrap().status, 200);
    usage(&region, &[("complete", 1)]).await;
    let denied = region.envoy().send(call("json", 1)).await.unwrap();
    assert_eq!((denied.status, denied.header("x-ratelimit-limit-tokens")), (429, Some("1000")));
    let left: u64 = denied.header("x-ratelimit-remaining-tokens").unwrap().parse().unwrap();
    assert!(left <= 77, "{left}");
    assert!(denied.header("x-ratelimit-reset-tokens").unwrap().ends_with('s'));
    assert_eq!(denied.json().unwrap()["error"]["code"], "rate_limit_exceeded");
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_of_any_filter_is_use() {
    let upstream = Upstream::start(Protocol::Http1, answer).await;
    let parser = json!({ "name": "json_to_metadata", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.json_to_metadata.v3.JsonToMetadata",
        "response_rules": { "rules": [{
            "selectors": [{ "key": "usage" }, { "key": "total_tokens" }],
            "on_present": { "metadata_namespace": "io.envoy.ai_gateway", "key": "llm_total_token", "type": "NUMBER" },
        }] },
    }});
    let gateway = with(rule("r", 100_000), json!({ "cost": { "usage": "ai_gateway", "max": 10_000 } }));
    let source = json!({ "metadata": { "filter": "io.envoy.ai_gateway", "total": "llm_total_token" } });
    let reserve = json!({ "input": 0, "output": 5 });
    let cost = json!({ "usage": source, "max": 20, "without_usage": 19, "reserve": reserve });
    let own = with(rule("own", 1_000), json!({ "cost": cost }));
    let options = EnvoyOptions { after: vec![parser], ..upstream.options() };
    let region = Region::start(1, options, &config(&[gateway, own])).await;
    assert_eq!(region.envoy().send(call("json", 4)).await.unwrap().status, 200);
    region.settles_at("r", "a", INPUT + 4).await;
    region.settles_at("own", "a", INPUT + 4).await;
    assert_eq!(region.envoy().send(call("json", 40)).await.unwrap().status, 200);
    region.settles_at("own", "a", INPUT + 4 + 20).await;
    assert_eq!(region.envoy().send(call("silent", 1)).await.unwrap().status, 200);
    region.settles_at("own", "a", INPUT + 4 + 20 + 19).await;
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_limits_tokens_requests_and_dollars() {
    let mut example = Example::read("llm-budgets");
    example.limit("tokens-a-minute", 10_000, &[]);
    example.limit("requests-a-minute", 3, &[]);
    example.rule("dollars-a-day")["window"] = long_window().into();
    example.rule("dollars-a-day")["limit"] = json!({ "usd": 0.01 });
    let upstream = Upstream::start(Protocol::Http1, answer).await;
    let Example { before, route_filters, config } = example;
    let options = EnvoyOptions { before, route_filters, ..upstream.options() };
    let region = Region::start(1, options, &config).await;
    let ask = async |user: &str, acts: &str, output| {
        let request = call(acts, output).header("x-user", user).header("x-team", "red");
        region.envoy().send(request).await.unwrap()
    };
    let first = ask("alice", "stream", 20).await;
    assert_eq!((first.status, first.header("x-ratelimit-limit-tokens")), (200, Some("10000")));
    region.settles_at("tokens-a-minute", "alice", INPUT + 20).await;
    // (7 × 2.5) + (4 × 1.25) + (20 × 10) micro-dollars, rounded up.
    region.settles_at("dollars-a-day", "red", 223).await;
    assert_eq!(ask("alice", "json", 20).await.status, 200);
    assert_eq!(ask("alice", "error", 0).await.status, 400);
    let denied = ask("alice", "stream", 20).await;
    assert_eq!((denied.status, denied.header("x-ratelimit-limit")), (429, Some("3")), "requests");
    assert_eq!(denied.json().unwrap()["error"]["code"], "rate_limit_exceeded");
    region.settles_at("tokens-a-minute", "alice", 2 * (INPUT + 20)).await;
    region.settles_at("dollars-a-day", "red", 446).await;

    assert_eq!(ask("bob", "stream", 900).await.status, 200);
    region.settles_at("dollars-a-day", "red", 446 + 9_023).await;
    assert_eq!(ask("carol", "stream", 1).await.status, 429, "the team's dollars are used up");
    assert_eq!(region.total("requests-a-minute", "carol").await, 0, "which charges nothing else");
    region.is_sound().await;
}
