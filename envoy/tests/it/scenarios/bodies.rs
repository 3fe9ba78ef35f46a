//! Limits by fields of the body, on Envoy's own parsers: the configurations of `examples/mcp-tools` and `examples/model-limits`, and each
//! way around them that clients may try.

use std::fmt::Write as _;
use std::path::Path;

use hyper::Method;
use serde_json::{Value, json};
use weir_envoy::http::{Request, Response};
use weir_envoy::{EnvoyOptions, validate_file, wait, yaml};

use super::common::{Region, SOON, config, long_window, rule, sum_of, with};

const JSON: &str = "application/json";
const ACCEPT: &str = "application/json, text/event-stream";

/// What an example's Envoy configuration has around the filter.
pub(super) struct Example {
    /// The filters before Weir.
    pub(super) before: Vec<Value>,
    pub(super) route_filters: Value,
    pub(super) config: Value,
}

impl Example {
    /// Reads an example, which Envoy accepts as it is.
    pub(super) fn read(name: &str) -> Example {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name).join("envoy.yaml");
        let text = std::fs::read_to_string(file).unwrap();
        let filter = weir_envoy::binaries::filter().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("envoy.yaml");
        let modules = filter.to_str().unwrap().strip_suffix(".wasm").unwrap();
        std::fs::write(&copy, text.replace("target/weir-filter", modules)).unwrap();
        validate_file(&copy).unwrap();
        let envoy: Value = yaml(&text).unwrap();
        let manager =
            &envoy["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"];
        let filters = manager["http_filters"].as_array().unwrap();
        let own = filters.iter().position(|filter| filter["name"] == "weir").unwrap();
        let config = &filters[own]["typed_config"]["config"]["configuration"]["value"];
        let route = &manager["route_config"]["virtual_hosts"][0]["routes"][0];
        Example {
            before: filters[..own].to_vec(),
            route_filters: route["typed_per_filter_config"].clone(),
            config: config.clone(),
        }
    }

    pub(super) fn rule(&mut self, name: &str) -> &mut Value {
        let rules = self.config["rules"].as_array_mut().unwrap();
        rules.iter_mut().find(|rule| rule["name"] == name).unwrap()
    }

    /// Lowers a rule's limits, and makes its window one that does not end during the test.
    pub(super) fn limit(&mut self, name: &str, limit: u64, overrides: &[u64]) {
        let rule = self.rule(name);
        (rule["limit"], rule["window"], rule["timeout"]) = (limit.into(), long_window().into(), "1s".into());
        let given = rule.get_mut("overrides").and_then(Value::as_array_mut);
        let given = given.map(Vec::as_mut_slice).unwrap_or_default();
        assert_eq!(given.len(), overrides.len(), "{name}");
        given.iter_mut().zip(overrides).for_each(|(one, limit)| one["limit"] = (*limit).into());
    }

    async fn start(self) -> Region {
        let Example { before, route_filters, config } = self;
        let options = EnvoyOptions { before, route_filters, ..EnvoyOptions::default() };
        Region::start(1, options, &config).await
    }
}

async fn send(region: &Region, request: Request) -> Response {
    region.envoy().send(request).await.unwrap()
}

/// A POST to an MCP server with this body.
fn mcp(key: &str, body: impl Into<String>) -> Request {
    let request = Request::post("/mcp", body.into()).header("x-api-key", key);
    request.header("content-type", JSON).header("accept", ACCEPT)
}

/// A call of a tool. The id is JSON, or nothing.
fn call(key: &str, id: &str, tool: &str) -> Request {
    let id = if id.is_empty() { String::new() } else { format!(r#""id":{id},"#) };
    mcp(
        key,
        format!(
            r#"{{"jsonrpc":"2.0",{id}"method":"tools/call","params":{{"name":"{tool}","arguments":{{}}}}}}"#
        ),
    )
}

/// A text as gzip has it, in one block that is stored.
fn gzip(text: &str) -> Vec<u8> {
    let shift = |crc: u32| if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
    let crc = !text.bytes().fold(!0_u32, |crc, byte| (0..8).fold(crc ^ u32::from(byte), |crc, _| shift(crc)));
    let length = u16::try_from(text.len()).unwrap();
    let header = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255, 1];
    let lengths = [length.to_le_bytes(), (!length).to_le_bytes()].concat();
    let end = [crc.to_le_bytes(), u32::from(length).to_le_bytes()].concat();
    [&header[..], &lengths, text.as_bytes(), &end].concat()
}

/// Whether a call reached the server.
fn passed(response: &Response) -> bool {
    response.status == 200 && response.text() == "ok\n"
}

/// The error of JSON-RPC that a response is.
fn error(response: &Response) -> Value {
    let json = response.json().unwrap_or_else(|error| panic!("{error}: {response:?}"));
    assert_eq!((&json["jsonrpc"], &json["error"]["code"]), (&json!("2.0"), &json!(-32_029)), "{json}");
    assert_eq!(json.as_object().unwrap().len(), 3, "{json}");
    json
}

fn tools() -> Example {
    let mut example = Example::read("mcp-tools");
    example.limit("tool-calls", 2, &[1, 3]);
    example.limit("other-calls", 3, &[]);
    example.limit("sessions", 1, &[]);
    example
}

/// Bodies of which each would be a call of `search` to some server, and none is for Envoy's parser.
fn disguised() -> Vec<(&'static str, Request)> {
    let plain = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"search"}}"#;
    let post = |kind: &str, accept: &str| {
        let request = Request::post("/mcp", plain).header("x-api-key", "a");
        request.header("content-type", kind).header("accept", accept)
    };
    vec![
        ("batch", mcp("a", format!("[{plain}]"))),
        ("two calls", mcp("a", format!("{plain}\n{plain}"))),
        ("another content type", post("text/plain", ACCEPT)),
        ("a content type in capitals", post("Application/JSON", ACCEPT)),
        ("no content type", Request::post("/mcp", plain).header("x-api-key", "a").header("accept", ACCEPT)),
        ("no events accepted", post(JSON, JSON)),
        (
            "nothing accepted",
            Request::post("/mcp", plain).header("x-api-key", "a").header("content-type", JSON),
        ),
        (
            "compressed",
            Request { body: gzip(plain).into(), ..mcp("a", "").header("content-encoding", "gzip") },
        ),
        ("a mark before it", mcp("a", format!("\u{feff}{plain}"))),
        ("another charset", post("application/json; charset=utf-7", ACCEPT)),
        ("capitals", mcp("a", plain.replace("method", "Method"))),
        ("another version", mcp("a", plain.replace("\"2.0\"", "\"1.0\""))),
    ]
}

/// A call of `search` of this content type.
fn post_in(kind: &str) -> Request {
    let plain = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"search"}}"#;
    let request = Request::post("/mcp", plain).header("x-api-key", "a");
    request.header("content-type", kind).header("accept", ACCEPT)
}

/// Calls with a field twice, of which servers take the first or the last.
fn ambiguous() -> Vec<Request> {
    [
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"search","name":"fetch"}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"search"},"params":{"name":"fetch"}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"search"},"method":"tools/list"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{}},"method":"tools/call"}"#,
    ]
    .map(|body| mcp("a", body))
    .into()
}

/// A call whose name is behind so many bytes.
fn padded(bytes: usize) -> Request {
    let padding = "x".repeat(bytes);
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"arguments":{{"q":"{padding}"}},"name":"search"}}}}"#
    );
    mcp("a", body)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_tool_has_its_limit_however_it_is_called() {
    let region = tools().start().await;
    for expected in [true, true, false] {
        assert_eq!(passed(&send(&region, call("a", "1", "search")).await), expected);
    }
    for (tool, expected) in
        [("fetch", true), ("run_sql", true), ("run_sql", false), ("fetch", true), ("fetch", false)]
    {
        assert_eq!(passed(&send(&region, call("a", "1", tool)).await), expected, "{tool}");
    }
    assert!(passed(&send(&region, call("b", "1", "search")).await), "another client");
    // The same tool in other words.
    let escaped = r#"{"jsonrpc":"2.0","id":1,"method":"tools\/call","params":{"n\u0061me":"s\u0065arch"}}"#;
    let reordered = r#"{"params":{"arguments":{"name":"fetch"},"name":"search"},"method":"tools/call","id":1,"jsonrpc":"2.0"}"#;
    for body in [escaped, reordered] {
        assert_eq!(error(&send(&region, mcp("a", body)).await)["error"]["data"]["limit"], 2, "{body}");
    }
    assert_eq!(error(&send(&region, padded(60_000)).await)["error"]["data"]["limit"], 2, "a large body");
    for (name, request) in disguised() {
        assert_eq!(send(&region, request).await.status, 400, "{name}");
    }
    for request in ambiguous() {
        assert_eq!(send(&region, request.clone()).await.status, 400, "{request:?}");
    }
    assert_eq!(send(&region, padded(100_000)).await.status, 413, "more than the parser reads");
    let followed = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"search"}}"#;
    let followed = format!("{followed}{}{followed}", " ".repeat(66_000));
    assert_eq!(send(&region, mcp("a", followed)).await.status, 413, "a call behind what the parser reads");
    let declared = post_in("application/json; charset=UTF-8");
    assert_eq!(error(&send(&region, declared).await)["error"]["data"]["limit"], 2, "in UTF-8");
    for (name, message) in [
        (r#"["search"]"#, "identifier missing"),
        (r#"{"a":"search"}"#, "identifier ambiguous"),
        ("null", "identifier missing"),
        (r#""""#, "identifier missing"),
    ] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":{name}}}}}"#);
        let error = error(&send(&region, mcp("a", body)).await);
        assert_eq!(error["error"]["message"], message, "{name}");
    }
    let nameless = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[{"name":"search"}]}"#;
    assert_eq!(error(&send(&region, mcp("a", nameless)).await)["error"]["message"], "identifier missing");
    region.settles_at("tool-calls", "a%7Csearch", 2).await;
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invented_tools_share_one_count() {
    let region = tools().start().await;
    let mut passing = 0;
    for number in 0..200 {
        let tool = match number % 4 {
            0 => format!("search-{number}"),
            1 => format!("SEARCH{number}"),
            2 => format!("search|{number}"),
            _ => format!("{number}\\u0000\\\\~"),
        };
        passing += usize::from(passed(&send(&region, call("a", "1", &tool)).await));
    }
    assert_eq!(passing, 3);
    region.settles_at("tool-calls", "a%7C%5C~", 3).await;
    let counted =
        async || sum_of(region.envoy(), "wasmcustom.weir_unlisted_values_total.rule.tool-calls").await == 200;
    wait::until("each value that is not listed is counted", SOON, counted).await.unwrap();
    assert!(passed(&send(&region, call("a", "1", "search")).await), "listed tools have their own");
    let keys = region.aggregator.admin_get("/v1/top").await.unwrap().text();
    assert!(!keys.contains("search-0"), "{keys}");
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_are_not_read_are_denied_where_the_parser_passes_them() {
    let mut example = tools();
    // Without the filter that refuses bodies beyond what the parser reads.
    example.before.remove(0);
    example.before[0]["typed_config"]["traffic_mode"] = "PASS_THROUGH".into();
    let region = example.start().await;
    for (name, request) in disguised() {
        let response = send(&region, request).await;
        match name {
            // The parser reads the first call and passes both, which is why the example has it refuse such bodies.
            "two calls" => assert!(passed(&response), "{response:?}"),
            _ => assert_eq!(response.status, 400, "{name}: {response:?}"),
        }
    }
    for _ in 0..3 {
        let response = send(&region, padded(100_000)).await;
        assert_eq!(error(&response)["error"]["message"], "identifier missing");
    }
    let put = Request { method: Method::PUT, ..mcp("a", "{}") };
    assert_eq!(send(&region, put).await.status, 400, "another method");
    assert!(passed(&send(&region, call("a", "1", "search")).await));
    assert!(!passed(&send(&region, call("a", "1", "search")).await), "the first of two calls was counted");
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_calls_and_sessions_have_limits_of_their_own() {
    let region = tools().start().await;
    let list = |id: u32| mcp("a", format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/list"}}"#));
    for id in 0..3 {
        assert!(passed(&send(&region, list(id)).await));
    }
    assert_eq!(error(&send(&region, list(3)).await)["id"], 3);
    let stream = || Request::get("/mcp").header("accept", "text/event-stream").header("x-api-key", "a");
    assert!(passed(&send(&region, stream()).await));
    assert_eq!(send(&region, stream()).await.status, 429);
    assert!(passed(&send(&region, call("a", "1", "search")).await));
    let mut anonymous = mcp("a", r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#);
    anonymous.headers.retain(|(name, _)| name != "x-api-key");
    assert_eq!(error(&send(&region, anonymous).await)["error"]["message"], "identifier missing");
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_call_gets_an_error_with_its_id() {
    let mut example = tools();
    example.limit("tool-calls", 0, &[0, 0]);
    let region = example.start().await;
    let long = format!("\"{}\"", "i".repeat(10_240));
    for (id, status, expected) in [
        ("1", 200, json!(1)),
        ("0", 200, json!(0)),
        ("-7", 200, json!(-7)),
        (r#""a\"b""#, 200, json!("a\"b")),
        (r#""a\n\u0001é\\""#, 200, json!("a\n\u{1}é\\")),
        (r#""},\"error\":{""#, 200, json!("},\"error\":{")),
        ("9007199254740991", 200, json!(9_007_199_254_740_991_u64)),
        ("9007199254740992", 429, json!(null)),
        // A number whose bytes are a text, and that text.
        ("5460610219467361", 200, json!(5_460_610_219_467_361_u64)),
        (r#""abcdef3C""#, 200, json!("abcdef3C")),
        ("9007199254740994", 429, json!(null)),
        ("1.5", 429, json!(null)),
        ("null", 429, json!(null)),
        ("true", 429, json!(null)),
        (r#"{"a":1}"#, 429, json!(null)),
        ("[1]", 429, json!(null)),
        (long.as_str(), 429, json!(null)),
        // A notification: nothing waits for a response.
        ("", 429, json!(null)),
    ] {
        let response = send(&region, call("a", id, "search")).await;
        let shown: String = id.chars().take(40).collect();
        assert_eq!((response.status, &error(&response)["id"]), (status, &expected), "{shown}");
        assert_eq!(response.header("content-type"), Some(JSON));
        assert_eq!(response.header("x-envoy-ratelimited").is_some(), status == 429, "{shown}");
        assert!(response.text().len() < 512);
    }
    region.is_sound().await;
}

/// The id is read when the response is made, also after a request has waited for the aggregator.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_waited_gets_its_id_and_the_form_that_it_accepts() {
    let ids = json!({ "name": "envoy.filters.http.json_to_metadata", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.json_to_metadata.v3.JsonToMetadata",
        "request_rules": { "rules": [{
            "selectors": [{ "key": "id" }], "on_present": { "metadata_namespace": "acme.rpc", "key": "id" },
        }]},
    }});
    let log = json!({
        "algorithm": "sliding_log", "identifier": { "constant": "all" }, "timeout": "10s",
        "response": { "format": "json_rpc", "id": { "filter": "acme.rpc", "key": "id" } },
    });
    let options = EnvoyOptions { before: vec![ids], ..EnvoyOptions::default() };
    let region = Region::start(1, options, &config(&[with(rule("log", 1), log)])).await;
    let of = |id: &str, accept: &str| {
        let request = Request::post("/rpc", format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#));
        request.header("content-type", JSON).header("accept", accept)
    };
    assert!(passed(&send(&region, of("1", JSON)).await));
    for (id, accept, expected) in
        [("2", JSON, json!(2)), (r#""three""#, "*/*", json!("three")), ("4", "text/html", json!(4))]
    {
        let response = send(&region, of(id, accept)).await;
        assert_eq!((response.status, &error(&response)["id"]), (200, &expected));
        assert!(response.header("retry-after").is_some());
    }
    let response = send(&region, of(r#""a\nb""#, "text/event-stream")).await;
    assert_eq!((response.status, response.header("content-type")), (200, Some("text/event-stream")));
    let text = response.text();
    let data =
        text.strip_prefix("event: message\ndata: ").and_then(|rest| rest.strip_suffix("\n\n")).unwrap();
    let event: Value = serde_json::from_str(data).unwrap();
    assert_eq!((&event["id"], &event["error"]["code"]), (&json!("a\nb"), &json!(-32_029)));
    region.is_sound().await;
}

fn chat(key: &str, body: impl Into<String>) -> Request {
    let request = Request::post("/v1/chat/completions", body.into()).header("x-api-key", key);
    request.header("content-type", JSON)
}

fn models() -> Example {
    let mut example = Example::read("model-limits");
    example.limit("models", 4, &[2, 3]);
    example.limit("prompt-tokens", 10_000, &[]);
    example
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_model_has_its_limit_however_it_is_named() {
    let region = models().start().await;
    let of = |model: &str| chat("a", format!(r#"{{"model":{model},"messages":[]}}"#));
    for (model, expected) in [
        (r#""gpt-4o""#, 200),
        (r#""gpt\u002d4o""#, 200),
        (r#""gpt-4o""#, 429),
        (r#"" gpt-4o ""#, 429),
        (r#""gpt-4o-mini""#, 200),
        // No model that is listed.
        (r#""gpt-4o\u0000""#, 200),
        (r#""GPT-4o""#, 200),
        ("7", 200),
        (r#""gpt-4o|""#, 429),
        (r#""\\~""#, 429),
        // No model at all.
        ("null", 429),
        (r#""""#, 429),
        (r#"["gpt-4o"]"#, 429),
        (r#"{"a":"gpt-4o"}"#, 429),
    ] {
        assert_eq!(send(&region, of(model)).await.status, expected, "{model}");
    }
    for number in 0..50 {
        assert_eq!(send(&region, of(&format!("\"gpt-4o-{number}\""))).await.status, 429, "{number}");
    }
    let plain = r#"{"model":"gpt-4o-mini","messages":[]}"#;
    let post = |kind: &str| {
        Request::post("/v1/chat/completions", plain).header("x-api-key", "a").header("content-type", kind)
    };
    for (name, request, expected) in [
        ("a field twice", chat("a", r#"{"model":"gpt-4o","model":"gpt-4o-mini","messages":[]}"#), 400),
        ("no JSON", chat("a", "model=gpt-4o-mini"), 400),
        ("two bodies", chat("a", format!("{plain} {plain}")), 400),
        ("a list", chat("a", format!("[{plain}]")), 429),
        (
            "compressed",
            Request { body: gzip(plain).into(), ..chat("a", "").header("content-encoding", "gzip") },
            400,
        ),
        ("another content type", post("text/plain"), 429),
        ("a content type in capitals", post("Application/JSON"), 429),
        ("without a model", chat("a", r#"{"messages":[]}"#), 429),
        ("no body", Request::post("/v1/chat/completions", "").header("x-api-key", "a"), 429),
        ("no key", chat("", plain), 429),
    ] {
        assert_eq!(send(&region, request).await.status, expected, "{name}");
    }
    assert_eq!(send(&region, Request::get("/v1/models")).await.status, 200, "nothing is used");
    region.settles_at("models", "a%7Cgpt-4o", 2).await;
    region.settles_at("models", "a%7C%5C~", 3).await;
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_costs_the_tokens_that_envoy_estimates() {
    let region = models().start().await;
    let of = |bytes: usize| {
        let mut body = r#"{"model":"gpt-4o-mini","messages":[{"role":"user","content":""#.to_owned();
        let padding = bytes - body.len() - 4;
        write!(body, "{}\"}}]}}", "x".repeat(padding)).unwrap();
        assert_eq!(body.len(), bytes);
        chat("a", body)
    };
    assert_eq!(send(&region, of(16_000)).await.status, 200);
    region.settles_at("prompt-tokens", "a", 4_000).await;
    assert_eq!(send(&region, of(24_400)).await.status, 429, "6 100 tokens, and 6 000 are left");
    assert_eq!(send(&region, of(24_000)).await.status, 200);
    region.settles_at("prompt-tokens", "a", 10_000).await;
    assert_eq!(send(&region, of(100)).await.status, 429);
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn typed_metadata_matches_and_identifies() {
    let mut example = models();
    let model = json!({ "metadata": { "typed": "envoy.ai.request_info", "key": "model" } });
    let large =
        json!({ "typed": "envoy.ai.request_info", "key": "estimated_input_tokens", "regex": "[0-9]{3,}" });
    let deny = json!({ "window": long_window(), "on_missing_identifier": "deny" });
    let rules = [
        with(with(rule("typed", 1), json!({ "identifier": model })), deny),
        with(
            rule("large", 0),
            json!({ "match": { "metadata": [large] }, "identifier": { "constant": "all" } }),
        ),
    ];
    example.config = config(&rules);
    let region = example.start().await;
    let of = |model: &str, more: &str| {
        chat("a", format!(r#"{{"model":"{model}","messages":[],"user":"{more}"}}"#))
    };
    for (model, more, expected) in [
        ("gpt-4o", "", 200),
        ("gpt-4o", "", 429),
        ("o3", "", 200),
        // Eight bytes, as an integer has.
        ("gpt-4o-x", "", 200),
        ("gpt-4o-x", "", 429),
        ("gpt-4.1", &"x".repeat(500), 429),
        ("gpt-4.1", "", 200),
    ] {
        assert_eq!(send(&region, of(model, more)).await.status, expected, "{model} {}", more.len());
    }
    region.settles_at("typed", "gpt-4o-x", 1).await;
    region.is_sound().await;
}
