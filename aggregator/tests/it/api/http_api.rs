//! Tests of the HTTP API as applications use it: limits, tokens, kept-alive connections, and shutdown.

use crate::support::http::{Client, JSON, start_apis, token, write};
use crate::support::server::{HOUR_MS, Weir, start, start_with, until};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use weir_aggregator::api::ApiSettings;
use weir_aggregator::auth::{Entry, NewToken};
use weir_aggregator::server::{ServeError, Server, Settings};
use weir_core::model::wire::{FilterFrame, Report};

/// Method, path, headers, body; status and code of the answer.
type Case<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], &'a [u8], u16, &'a str);

/// More than a busy machine takes to decide. With less, an API may have to decide from its own counts.
const TIMEOUT: &str = "5s";

fn check(identifier: &str, limit: u64, cost: u64) -> Value {
    json!({"namespace": "api", "identifier": identifier, "limit": limit, "duration": "1h", "cost": cost})
}

/// A single check.
fn hourly(identifier: &str, limit: u64, cost: u64) -> Value {
    let mut request = check(identifier, limit, cost);
    request["timeout"] = TIMEOUT.into();
    request
}

fn success(body: &Value) -> bool {
    body["allowed"].as_bool().unwrap_or_else(|| panic!("{body}"))
}

/// Number of calls of this API with this result.
fn calls(weir: &Weir, result: &str) -> f64 {
    weir.metric(&format!("weir_aggregator_api_decisions_total{{api=\"http\",result=\"{result}\"}}"))
}

#[tokio::test]
async fn a_used_up_limit_returns_when_to_retry() {
    let weir = start(None).await;
    let mut client = Client::connect(&weir).await;
    for left in [2, 1, 0] {
        let answer = client.post("/v1/check", &hourly("alice", 3, 1)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let body = &answer.body;
        assert_eq!((&body["allowed"], &body["decided"]), (&json!(true), &json!(true)), "{body}");
        assert_eq!((&body["limit"], &body["remaining"]), (&json!(3), &json!(left)), "{body}");
        assert!(body.get("retry_after_ms").is_none() && body.get("transaction").is_none(), "{body}");
    }
    let asked = weir.server.services().now().0;
    let denied = client.post("/v1/check", &hourly("alice", 3, 1)).await;
    assert_eq!(denied.status, 200, "a denial is an answer");
    assert!(!success(&denied.body) && denied.body["decided"] == true, "{denied:?}");
    let now = weir.server.services().now().0;
    let (reset, wait) =
        (denied.body["reset"].as_u64().unwrap(), denied.body["retry_after_ms"].as_u64().unwrap());
    assert!(reset >= now - 60_000 && reset <= now + 2 * HOUR_MS, "{denied:?}");
    assert!((1..=2 * HOUR_MS).contains(&wait), "{denied:?}");
    assert!(reset >= asked + wait, "the same cost passes by the reset: {denied:?}");
    let never = client.post("/v1/check", &hourly("alice", 3, 4)).await;
    assert!(!success(&never.body) && never.body.get("retry_after_ms").is_none(), "{never:?}");
    assert!(
        success(&client.post("/v1/check", &hourly("alice", 3, 0)).await.body),
        "a cost of 0 must always pass"
    );
    assert!(success(&client.post("/v1/check", &hourly("bob", 3, 1)).await.body));
}

#[tokio::test]
async fn use_that_filters_reported_counts_here_too() {
    let weir = start(None).await;
    let mut filter = weir.join(1, false).await;
    let counts = vec![weir.count("alice", 7)];
    filter.send(FilterFrame { report: Some(Report { id: 1, counts }), ..FilterFrame::default() }).await;
    filter.next_with(|frame| frame.ack).await;
    let mut client = Client::connect(&weir).await;
    let passed = client.post("/v1/check", &hourly("alice", 8, 1)).await;
    assert!(success(&passed.body) && passed.body["remaining"] == 0, "{passed:?}");
    let listed = json!({
        "namespace": "api", "identifier": ["alice"], "limit": 8, "duration": 3_600_000, "timeout": TIMEOUT
    });
    let denied = client.post("/v1/check", &listed).await;
    assert!(!success(&denied.body), "a list of one part must be the same identifier");
}

#[tokio::test]
async fn several_limits_pass_together_or_not_at_all() {
    let weir = start(None).await;
    let mut client = Client::connect(&weir).await;
    let both = json!({"checks": [check("carol", 10, 4), check("dave", 5, 4)], "timeout": TIMEOUT});
    let first = client.post("/v1/check/batch", &both).await;
    assert!(success(&first.body) && first.body["decided"] == true, "{first:?}");
    let remaining: Vec<&Value> =
        first.body["checks"].as_array().unwrap().iter().map(|of| &of["remaining"]).collect();
    assert_eq!(remaining, [&json!(6), &json!(1)]);
    let second = client.post("/v1/check/batch", &both).await;
    assert!(!success(&second.body) && second.body["decided"] == true, "{second:?}");
    assert_eq!(
        (&second.body["checks"][1]["allowed"], &second.body["checks"][1]["decided"]),
        (&json!(false), &json!(true))
    );
    let carol = client.post("/v1/check", &hourly("carol", 10, 0)).await;
    assert_eq!(carol.body["remaining"], 6, "the check that would pass must not be charged");
}

#[tokio::test]
async fn an_undecided_check_is_marked_and_the_caller_chooses() {
    let weir = start(None).await;
    let mut client = Client::connect(&weir).await;
    // Without a database, no ledger can decide.
    let body = |on_failure: &str| json!({"identifier": "a", "algorithm": "ledger", "zone": 1, "on_failure": on_failure});
    for (on_failure, expected) in [("deny", false), ("allow", true)] {
        let answer = client.post("/v1/check", &body(on_failure)).await;
        assert_eq!((answer.status, success(&answer.body)), (200, expected), "{answer:?}");
        assert_eq!(answer.body["decided"], false, "{answer:?}");
    }
    let mixed = json!({"on_failure": "allow", "checks": [
        {"identifier": "a", "algorithm": "ledger", "zone": 1}, check("erin", 0, 1)]});
    let answer = client.post("/v1/check/batch", &mixed).await;
    assert!(
        !success(&answer.body) && answer.body["decided"] == true,
        "a denial must count as decided: {answer:?}"
    );
    assert_eq!(["allowed", "denied", "undecided"].map(|result| calls(&weir, result)), [0.0, 1.0, 2.0]);
}

#[tokio::test]
async fn tokens_are_bound_to_workspaces_and_zones() {
    let folder = tempfile::tempdir().unwrap();
    let (shop, first) = token("shop", "one", "[7]");
    let (other, second) = token("other", "two", "all");
    let path = write(folder.path(), "tokens.yaml", &format!("{first}{second}"));
    let weir = start_apis(ApiSettings { tokens_file: Some(path), ..ApiSettings::default() }).await;
    let mut client = Client::connect(&weir).await;
    let body = hourly("alice", 1, 1);
    let code = |body: &Value| body["error"]["code"].as_str().unwrap_or_default().to_owned();
    for (header, expected, challenge) in [
        (None, "token_missing", "Bearer"),
        (Some(format!("Basic {shop}")), "token_malformed", "Bearer error=\"invalid_request\""),
        (Some(format!("Bearer {shop} ")), "", ""),
        (Some(format!("Bearer {}", "x".repeat(600))), "token_malformed", "Bearer error=\"invalid_request\""),
        (Some("Bearer weir_unknown".to_owned()), "token_unknown", "Bearer error=\"invalid_token\""),
        (Some(format!("Bearer {}", shop.to_uppercase())), "token_unknown", "Bearer error=\"invalid_token\""),
    ] {
        let mut headers = vec![JSON];
        headers.extend(header.as_deref().map(|value| ("authorization", value)));
        let answer = client.send("POST", "/v1/check", &headers, body.to_string().as_bytes()).await;
        if expected.is_empty() {
            // Whitespace around a header's value is not part of it.
            assert_eq!(answer.status, 200, "{answer:?}");
            continue;
        }
        assert_eq!((answer.status, code(&answer.body).as_str()), (401, expected));
        assert_eq!(answer.headers["www-authenticate"], challenge);
        assert!(!answer.body.to_string().contains(&shop), "{answer:?}");
    }
    // The check that passed above used up workspace `one`; `two` has separate counts.
    assert!(!success(&client.post_as(&shop, "/v1/check", &body).await.body));
    assert!(success(&client.post_as(&other, "/v1/check", &body).await.body));
    // A DNS-rebinding page has no token, so host names need not be checked.
    let elsewhere = client.send("GET", "/v1/overrides", &[("host", "weir.example")], b"").await;
    assert_eq!((elsewhere.status, code(&elsewhere.body).as_str()), (401, "token_missing"));
    let named =
        |workspace: &str| json!({"workspace": workspace, "identifier": "b", "limit": 1, "duration": "1h"});
    assert_eq!(client.post_as(&shop, "/v1/check", &named("one")).await.status, 200);
    let answer = client.post_as(&shop, "/v1/check", &named("two")).await;
    assert_eq!((answer.status, code(&answer.body).as_str()), (403, "workspace_not_allowed"));
    let zone = |zone: u32| json!({"checks": [check("c", 1, 0), {"identifier": "a", "algorithm": "ledger", "zone": zone}]});
    let answer = client.post_as(&shop, "/v1/check/batch", &zone(8)).await;
    assert_eq!((answer.status, code(&answer.body).as_str()), (403, "zone_not_allowed"));
    assert_eq!(answer.body["error"]["field"], "checks[1].zone");
    assert_eq!(client.post_as(&shop, "/v1/check/batch", &zone(7)).await.status, 200);
    assert_eq!(client.post_as(&other, "/v1/check/batch", &zone(8)).await.status, 200);
}

#[tokio::test]
async fn tokens_are_bound_to_namespaces_and_costs() {
    let folder = tempfile::tempdir().unwrap();
    let [plain, named, any] =
        ["plain", "named", "any"].map(|name| NewToken::new(Entry::application(name, "default")).unwrap());
    let named_entry = format!("{}  namespaces: [\"ap*\", jobs]\n  max_cost: 5\n", named.entry);
    let entries = format!("{}{named_entry}{}  namespaces: all\n", plain.entry, any.entry);
    let path = write(folder.path(), "tokens.yaml", &entries);
    let weir = start_apis(ApiSettings { tokens_file: Some(path), ..ApiSettings::default() }).await;
    let mut client = Client::connect(&weir).await;
    let body = |namespace: &str, cost: u64| json!({"namespace": namespace, "identifier": "alice", "limit": 1_000, "duration": "1h", "cost": cost});
    let cases = [
        // At once after the start, when no filter has sent its rules.
        (&plain, "api", 1, "namespace_not_allowed"),
        (&plain, "free", 1, "namespace_not_allowed"),
        (&plain, "rls|edge|user|", 1, "namespace_not_allowed"),
        (&plain, "default", 1, "namespace_not_allowed"),
        (&named, "api", 5, ""),
        (&named, "api", 6, "cost_not_allowed"),
        (&named, "jobs", 1, ""),
        (&named, "jobs-2", 1, "namespace_not_allowed"),
        (&any, "api", 100, ""),
        (&any, "~api", 1, "invalid_request"),
    ];
    for (token, namespace, cost, expected) in cases {
        let answer = client.post_as(&token.token, "/v1/check", &body(namespace, cost)).await;
        let code = answer.body["error"]["code"].as_str().unwrap_or_default();
        assert_eq!((answer.status == 200, code), (expected.is_empty(), expected), "{namespace} {cost}");
    }
    let many = json!({"checks": [body("jobs", 1), body("other", 1)]});
    let answer = client.post_as(&named.token, "/v1/check/batch", &many).await;
    assert_eq!(answer.body["error"]["field"], "checks[1].namespace");
    // Checks of one limit and identifier add up; of another identifier or window they do not.
    let one = body("jobs", 3);
    let others = [("identifier", json!("bob")), ("duration", json!("1m"))].map(|(field, value)| {
        let mut other = one.clone();
        other[field] = value;
        other
    });
    let batch = |checks: &[Value]| json!({"checks": checks});
    let apart = batch(&[one.clone(), others[0].clone(), others[1].clone()]);
    assert_eq!(client.post_as(&named.token, "/v1/check/batch", &apart).await.status, 200);
    let answer = client.post_as(&named.token, "/v1/check/batch", &batch(&[one.clone(), one])).await;
    let error = &answer.body["error"];
    assert_eq!(
        (answer.status, &error["code"], &error["field"]),
        (403, &json!("cost_not_allowed"), &json!("checks[1].cost"))
    );
}

#[tokio::test]
async fn tokens_are_read_again_and_a_broken_file_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (old, first) = token("old", "default", "[]");
    let (new, second) = token("new", "default", "[]");
    let path = write(folder.path(), "tokens.yaml", &first);
    let weir = start_apis(ApiSettings { tokens_file: Some(path), ..ApiSettings::default() }).await;
    let mut client = Client::connect(&weir).await;
    let body = hourly("alice", 100, 1);
    let read = |result: &str| {
        weir.metric(&format!("weir_aggregator_files_read_total{{files=\"tokens\",result=\"{result}\"}}"))
    };
    let stale = || weir.metric("weir_aggregator_files_stale{files=\"tokens\"}");
    write(folder.path(), "tokens.yaml", "- {name: a}");
    until("the broken file is seen", || read("failed") == 1.0).await;
    assert_eq!((stale(), client.post_as(&old, "/v1/check", &body).await.status), (1.0, 200));
    write(folder.path(), "tokens.yaml", &second);
    until("the new file is read", || read("ok") == 1.0).await;
    assert_eq!((stale(), read("failed")), (0.0, 1.0));
    assert_eq!(client.post_as(&old, "/v1/check", &body).await.status, 401);
    assert_eq!(client.post_as(&new, "/v1/check", &body).await.status, 200);
}

#[tokio::test]
async fn an_api_without_authentication_does_not_open() {
    let refused = async |api: ApiSettings| {
        let started = Server::start(
            Settings { api, ..crate::support::server::settings() },
            std::sync::Arc::new(crate::support::server::ShiftedClock::default()),
        );
        match started.await {
            Ok(_) => panic!("the server must not start"),
            Err(error @ ServeError::Authentication(_)) => error.to_string(),
            Err(other) => panic!("{other}"),
        }
    };
    let open = ApiSettings { http_listen: Some("0.0.0.0:0".into()), ..ApiSettings::default() };
    let error = refused(open.clone()).await;
    assert!(error.contains("--tokens-file") && error.contains("--http-listen"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let with = |tokens_file: PathBuf| ApiSettings { tokens_file: Some(tokens_file), ..open.clone() };
    let (_, entry) = token("a", "default", "all");
    for (text, part) in [
        ("", "expected a YAML list"),
        ("- {name: a, sha256: b, workspace: c}", "entry 1: sha256"),
        (
            &entry.replace("zones: all", "zones: some"),
            "entry 1: zones: invalid value: string \"some\", expected a list, or \"all\"",
        ),
        (&entry.replace("zones: all", "zone: 1"), "zone"),
        (&entry.replace("name: a", "name: \"\""), "entry 1: the name"),
        (&format!("{entry}{entry}"), "entry 2 (\"a\")"),
        (&format!("{entry}{}", entry.replace("name: a", "name: b")), "the same sha256"),
        ("- {name: a, workspace: b}", "entry 1: expected either sha256"),
        ("- {name: a, san: b, sha256: c, workspace: d}", "entry 1: expected either sha256"),
        ("- {name: a, san: b}", "entry 1: expected either workspace"),
        ("- {name: a, san: b, workspace: c, workspaces: [d]}", "entry 1: expected either workspace"),
        ("- {name: a, san: b, workspaces: []}", "entry 1: workspaces"),
        ("- {name: a, san: b, workspaces: all, max_cost: 1}", "entry 1: control, namespaces and max_cost"),
        ("- {name: a, san: b, workspace: c}\n- {name: d, san: B, workspaces: all}", "the same san"),
        ("- {name: a, san: b, workspace: c, namespaces: [\"~c\"]}", "entry 1: namespaces lists a name"),
        (&"[".repeat(100_000), "expected a YAML list"),
        (&"- {name: a, sha256: b, workspace: c}\n".repeat(10_001), "10001 entries"),
    ] {
        let error = refused(with(write(folder.path(), "tokens.yaml", text))).await;
        assert!(error.contains(part) && error.contains("WEIR_TOKENS_FILE"), "{error}");
    }
    let error = refused(with(folder.path().join("none.yaml"))).await;
    assert!(error.contains("none.yaml") && error.contains("--tokens-file"), "{error}");
    let weir = start_with(Settings {
        api: with(write(folder.path(), "tokens.yaml", &entry)),
        ..crate::support::server::settings()
    });
    assert!(weir.await.server.http_address().unwrap().ip().is_unspecified());
}

#[tokio::test]
async fn errors_state_their_cause() {
    let weir = start(None).await;
    let mut client = Client::connect(&weir).await;
    let sound = hourly("a", 1, 1).to_string();
    let sound = sound.as_bytes();
    let text = ("content-type", "text/plain");
    let long = vec![b' '; 64 * 1024 + 1];
    let cases: [Case<'_>; 15] = [
        ("POST", "/v1/check", &[], sound, 415, "unsupported_media_type"),
        ("POST", "/v1/check", &[text], sound, 415, "unsupported_media_type"),
        ("POST", "/v1/check", &[JSON, ("content-encoding", "gzip")], sound, 415, "unsupported_media_type"),
        ("POST", "/v1/check", &[("content-type", "Application/JSON; charset=utf-8")], sound, 200, ""),
        ("POST", "/v1/check", &[JSON], b"{", 400, "invalid_json"),
        ("POST", "/v1/check", &[JSON], b"", 400, "invalid_json"),
        ("POST", "/v1/check", &[JSON], b"{}", 400, "invalid_request"),
        ("POST", "/v1/check/batch", &[JSON], sound, 400, "invalid_request"),
        ("POST", "/v1/check", &[JSON], &long, 413, "too_large"),
        ("POST", "/v1/check/batch", &[JSON], &long, 400, "invalid_json"),
        ("GET", "/v1/check", &[], b"", 405, "method_not_allowed"),
        ("HEAD", "/openapi.json", &[], b"", 200, ""),
        ("DELETE", "/v1/ledger/1", &[], b"", 405, "method_not_allowed"),
        ("POST", "/v2/limit", &[JSON], sound, 404, "not_found"),
        ("GET", "/v1/ledger/1/2", &[], b"", 404, "not_found"),
    ];
    for (method, path, headers, body, status, code) in cases {
        let answer = client.send(method, path, headers, body).await;
        let found = answer.body["error"]["code"].as_str().unwrap_or_default();
        assert_eq!((answer.status, found), (status, code), "{method} {path} {answer:?}");
        if status == 405 {
            let allowed = if path == "/v1/check" { "POST" } else { "GET,HEAD" };
            assert_eq!(answer.headers["allow"], allowed);
        }
        if status != 200 && method != "HEAD" {
            assert!(!answer.body["error"]["message"].as_str().unwrap().is_empty());
        }
    }
    let requests = |route: &str, class: &str| {
        weir.metric(&format!("weir_aggregator_http_requests_total{{route=\"{route}\",code=\"{class}\"}}"))
    };
    assert_eq!((requests("check", "2xx"), requests("unknown", "4xx")), (1.0, 2.0));
    assert_eq!((calls(&weir, "allowed"), calls(&weir, "refused")), (1.0, 10.0));
}

/// The program's log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn kept_connections_end_after_their_answer_when_the_program_drains() {
    let weir = start(None).await;
    let mut busy = Client::connect(&weir).await;
    let idle = Client::connect(&weir).await;
    assert_eq!(busy.post("/v1/check", &hourly("a", 9, 1)).await.status, 200);
    until("both are counted", || weir.metric("weir_aggregator_connections{api=\"http\"}") == 2.0).await;
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_writer({
        let log = log.clone();
        move || log.clone()
    });
    // The subscriber is set for this thread, which runs the whole test.
    let listening = tracing::subscriber::set_default(subscriber.finish());
    weir.server.stop().await;
    drop(listening);
    let logged = log.text();
    assert!(logged.contains("weir-aggregator ends"), "{logged}");
    assert!(
        !logged.contains("closing connections that did not end in time"),
        "no connection may have been cut: {logged}"
    );
    until("both connections are closed", || busy.is_over() && idle.is_over()).await;
}
