//! Responses to denied and allowed requests, and what operators see: headers, bodies, gRPC, access logs, metrics.

use serde_json::{Value, json};
use weir_core::rules::Config;
use weir_envoy::http::{Request, Response};
use weir_envoy::{Envoy, EnvoyOptions, wait};

use super::common::{KEY, Region, SOON, config, get_as, rule, threads, unix_ms, with};

async fn region(config: &serde_json::Value) -> Region {
    Region::start(1, EnvoyOptions { access_log: true, ..EnvoyOptions::default() }, config).await
}

fn number(answer: &Response, header: &str) -> u64 {
    answer.header(header).unwrap_or_else(|| panic!("no {header}: {answer:?}")).parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denial_states_when_to_retry() {
    let region = region(&config(&[rule("r", 1)])).await;
    let allowed = region.envoy().send(get_as("a")).await.unwrap();
    assert_eq!((allowed.status, allowed.header("x-ratelimit-limit")), (200, None), "only if configured");
    let denied = region.envoy().send(get_as("a")).await.unwrap();
    assert_eq!(denied.status, 429);
    assert!(number(&denied, "retry-after") >= 1);
    assert_eq!((number(&denied, "x-ratelimit-limit"), number(&denied, "x-ratelimit-remaining")), (1, 0));
    assert!(number(&denied, "x-ratelimit-reset") >= 1);
    assert_eq!(denied.header("content-type"), Some("text/plain"));
    assert_eq!(denied.header("x-envoy-ratelimited"), Some("true"), "Envoys in front do not retry it");
    assert_eq!(denied.text().trim_end(), "rate limit exceeded");
    assert!(denied.header("ratelimit").is_none(), "only if configured");
    region.is_sound().await;
}

/// As a library reads it that waits until a second of Unix time, on denied and allowed responses, from both modules.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_may_be_a_moment_and_headers_have_other_names() {
    /// Two of the longest windows of [`rule`].
    const LONGEST_WAIT_S: u64 = 62 * 86_400;
    for on_allowed in [false, true] {
        let names = json!({ "limit": "X-Rate-Limit", "reset": "x-rate-reset" });
        let responses = json!({ "reset": "unix_seconds", "names": names, "headers_on_allowed": on_allowed });
        let rules = config(&[rule("r", 1)]);
        let region = region(&with(rules, json!({ "responses": responses }))).await;
        let before_s = unix_ms() / 1_000;
        let allowed = region.envoy().send(get_as("a")).await.unwrap();
        let denied = region.envoy().send(get_as("a")).await.unwrap();
        assert_eq!((allowed.status, denied.status), (200, 429));
        for response in [&allowed, &denied].into_iter().skip(usize::from(!on_allowed)) {
            assert_eq!((number(response, "x-rate-limit"), number(response, "x-ratelimit-remaining")), (1, 0));
            let until_s = number(response, "x-rate-reset");
            let latest_s = unix_ms() / 1_000 + LONGEST_WAIT_S;
            assert!((before_s..=latest_s).contains(&until_s), "{until_s} after {before_s}: {response:?}");
            assert!(
                response.header("x-ratelimit-limit").is_none()
                    && response.header("x-ratelimit-reset").is_none()
            );
        }
        assert!(number(&denied, "retry-after") <= LONGEST_WAIT_S, "stays a number of seconds");
        assert_eq!(allowed.header("x-rate-limit").is_some(), on_allowed);
        region.is_sound().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_remaining_budget_is_reported_exactly() {
    let rule = with(rule("r", 20), json!({ "cost": { "request": { "header": "x-cost" }, "max": 10 } }));
    let region = region(&config(&[rule])).await;
    let send = async |cost: &str| region.envoy().send(get_as("a").header("x-cost", cost)).await.unwrap();
    assert_eq!((send("7").await.status, send("7").await.status), (200, 200));
    let denied = send("7").await;
    assert_eq!((denied.status, number(&denied, "x-ratelimit-remaining")), (429, 6), "{denied:?}");
    assert_eq!(send("6").await.status, 200, "what remains can be used");
    let denied = send("nonsense").await;
    assert_eq!((denied.status, number(&denied, "x-ratelimit-remaining")), (429, 0), "{denied:?}");
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_drafts_formats_and_allowed_responses() {
    let formats =
        json!({ "responses": { "ietf_headers": true, "problem_json": true, "headers_on_allowed": true } });
    let of_a_month = |rule| with(rule, json!({ "window": "31d" }));
    let rules = [of_a_month(rule("per-key", 2)), of_a_month(rule("wide", 100))];
    let region = region(&with(config(&rules), formats)).await;
    let allowed = region.envoy().send(get_as("a")).await.unwrap();
    assert_eq!(allowed.status, 200);
    let shown = (number(&allowed, "x-ratelimit-limit"), number(&allowed, "x-ratelimit-remaining"));
    assert_eq!(shown, (2, 1), "the rule with the smallest share left is shown: {allowed:?}");
    let policies = Some("\"per-key\";q=2;w=2678400, \"wide\";q=100;w=2678400");
    assert_eq!(allowed.header("ratelimit-policy"), policies);
    let limits = allowed.header("ratelimit").unwrap();
    assert!(limits.starts_with("\"per-key\";r=1;t=") && limits.contains(", \"wide\";r=99;t="), "{limits}");

    assert_eq!(region.envoy().send(get_as("a")).await.unwrap().status, 200);
    let denied = region.envoy().send(get_as("a")).await.unwrap();
    assert_eq!(denied.status, 429);
    let wait = number(&denied, "retry-after");
    assert_eq!(denied.header("ratelimit"), Some(format!("\"per-key\";r=0;t={wait}").as_str()));
    assert_eq!(denied.header("ratelimit-policy"), policies);
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    let problem = denied.json().unwrap();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!((&problem["status"], &problem["violated-policies"]), (&json!(429), &json!(["per-key"])));
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_has_its_own_response() {
    let body = r#"{"limit":{limit},"rule":"{rule}","retry_after":{retry_after}}"#;
    let own = json!({ "response": { "status": 503, "content_type": "application/json", "body": body } });
    let region = region(&config(&[with(rule("r", 1), own)])).await;
    assert_eq!(region.envoy().send(get_as("a")).await.unwrap().status, 200);
    let denied = region.envoy().send(get_as("a")).await.unwrap();
    assert_eq!((denied.status, denied.header("content-type")), (503, Some("application/json")), "{denied:?}");
    let wait = number(&denied, "retry-after");
    assert_eq!(denied.json().unwrap(), json!({ "limit": 1, "rule": "r", "retry_after": wait }));
    assert_eq!(number(&denied, "x-ratelimit-limit"), 1);
    assert_eq!(denied.header("x-envoy-ratelimited"), None, "on 429 only");
    let call =
        Request::post("/service/Method", "").header(KEY, "a").header("content-type", "application/grpc");
    let refused = region.envoy().send(call).await.unwrap();
    assert_eq!((refused.status, refused.header("grpc-status")), (200, Some("8")), "{refused:?}");
    assert_eq!(refused.header("grpc-message"), Some("rate limit exceeded"), "never JSON");
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hidden_limit_is_in_no_response() {
    let formats = json!({ "responses": { "ietf_headers": true, "headers_on_allowed": true } });
    let hidden = with(rule("secret", 2), json!({ "response": { "headers": "hidden" } }));
    let region = region(&with(config(&[hidden, rule("open", 9)]), formats)).await;
    for left in [8, 7] {
        let allowed = region.envoy().send(get_as("a")).await.unwrap();
        let shown = (number(&allowed, "x-ratelimit-limit"), number(&allowed, "x-ratelimit-remaining"));
        assert_eq!((allowed.status, shown), (200, (9, left)), "the hidden rule has less left: {allowed:?}");
    }
    let denied = region.envoy().send(get_as("a")).await.unwrap();
    assert_eq!((denied.status, denied.header("x-envoy-ratelimited")), (429, Some("true")), "{denied:?}");
    let is_of_limit =
        |name: &str| name.contains("ratelimit-") || name == "ratelimit" || name == "retry-after";
    assert!(!denied.headers.keys().any(|name| is_of_limit(name.as_str())), "{denied:?}");
    region.is_sound().await;
}

/// The identifiers of which half are in the share of rule `half`.
const KEYS: usize = 40;

/// Sends four requests for each of [`KEYS`] identifiers; returns how many identifiers are in the share that `config`
/// enforces. Those are denied after the first request, all others pass.
async fn enforced_for_half(region: &Region, config: &Value) -> usize {
    let share = Config::parse(config.to_string().as_bytes()).unwrap().rules[0].enforced;
    let mut members = 0;
    for key in (0..KEYS).map(|number| format!("user-{number}")) {
        let mut statuses = Vec::new();
        for _ in 0..4 {
            statuses.push(region.envoy().send(get_as(&key)).await.unwrap().status);
        }
        let enforced = share.has("default", "half", key.as_bytes());
        assert_eq!(statuses, if enforced { [200, 429, 429, 429] } else { [200; 4] }, "{key}");
        members += usize::from(enforced);
    }
    assert!((8..=32).contains(&members), "{members} of {KEYS}");
    members
}

/// Waits until a rule has this outcome so many times.
async fn decided(region: &Region, rule: &str, outcome: &str, count: usize) {
    let line = format!(r#"weir_decisions_total{{rule="{rule}",outcome="{outcome}"}} {count}"#);
    let shown = async || metrics(region.envoy()).await.contains(&in_order(&line));
    if wait::until(&line, SOON, shown).await.is_err() {
        panic!("{line} is not in {:#?}", metrics(region.envoy()).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_is_enforced_for_a_share_of_identifiers() {
    let half = with(rule("half", 1), json!({ "enforce_percent": 50 }));
    let log = json!({ "algorithm": "sliding_log", "namespace": "half", "on_failure": "allow", "enforce_percent": 50 });
    let config = config(&[half, with(rule("log", 3), log)]);
    let region = region(&config).await;
    let members = enforced_for_half(&region, &config).await;
    // Outside of the share a rule counts as in shadow mode, and denies nothing.
    decided(&region, "half", "denied", 3 * members).await;
    decided(&region, "half", "shadow_denied", 3 * (KEYS - members)).await;
    decided(&region, "log", "shadow_denied", KEYS - members).await;
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_identifiers_of_the_share_are_banned() {
    let ban = json!({ "threshold": 1, "window": "1m", "duration": "1h" });
    let config = config(&[with(rule("half", 1), json!({ "enforce_percent": 50, "ban": ban }))]);
    let region = region(&config).await;
    let members = enforced_for_half(&region, &config).await;
    decided(&region, "half", "denied", members).await;
    decided(&region, "half", "banned", 2 * members).await;
    decided(&region, "half", "shadow_denied", 3 * (KEYS - members)).await;
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpc_clients_receive_a_grpc_status() {
    let region = region(&config(&[rule("r", 1)])).await;
    let call =
        Request::post("/service/Method", "").header(KEY, "a").header("content-type", "application/grpc");
    assert_eq!(region.envoy().send(call.clone()).await.unwrap().status, 200);
    let refused = region.envoy().send(call).await.unwrap();
    // A gRPC error is in a header, with HTTP status 200.
    assert_eq!((refused.status, refused.header("grpc-status")), (200, Some("8")), "{refused:?}");
    assert!(number(&refused, "retry-after") >= 1);
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn access_logs_name_rule_and_outcome() {
    check_access_log(json!({}), ("-", "-")).await;
    let everywhere = json!({ "responses": { "filter_state": true } });
    check_access_log(everywhere, ("paid", "denied")).await;
}

/// Sends some requests, of which one is denied with this rule and this outcome in its filter state.
async fn check_access_log(responses: Value, (rule_of_denial, outcome_of_denial): (&str, &str)) {
    let shadow = with(rule("watched", 1), json!({ "shadow_mode": true }));
    let exempt = with(rule("paid", 2), json!({ "overrides": [{ "identifier": "vip", "exempt": true }] }));
    let region = region(&with(config(&[shadow, exempt]), responses)).await;
    for key in ["a", "a", "a", "vip"] {
        region.envoy().send(get_as(key)).await.unwrap();
    }
    let written = async || region.envoy().access_log().unwrap().len() == 4;
    wait::until("the access log is written", SOON, written).await.unwrap();
    let lines = region.envoy().access_log().unwrap();
    let logged = lines.iter().map(|line| {
        let text = |name: &str| line[name].as_str().unwrap_or("-").to_owned();
        (line["status"].as_u64().unwrap(), text("details"), text("rule"), text("outcome"))
    });
    let expected = [
        (200, "direct_response", "-", "-"),
        (200, "direct_response", "watched", "shadow_denied"),
        (429, "weir_limit_exceeded[paid]", rule_of_denial, outcome_of_denial),
        (200, "direct_response", "paid", "exempt"),
    ];
    let expected = expected.map(|(status, details, rule, outcome)| {
        (status, details.to_owned(), rule.to_owned(), outcome.to_owned())
    });
    assert_eq!(logged.collect::<Vec<_>>(), expected);
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_have_labels() {
    // Without the tags, dots in a rule's name would split the metric's name.
    let shadow = with(rule("v1.watched", 1), json!({ "shadow_mode": true }));
    let exempt = with(rule("paid", 2), json!({ "overrides": [{ "identifier": "vip", "exempt": true }] }));
    let region = region(&config(&[shadow, exempt])).await;
    for key in ["a", "a", "a", "vip"] {
        region.envoy().send(get_as(key)).await.unwrap();
    }
    // A shadow rule counts every request, including those that another rule denies, and never queries the region.
    let lines = [
        r#"weir_decisions_total{rule="v1.watched",outcome="allowed"} 2"#,
        r#"weir_decisions_total{rule="v1.watched",outcome="shadow_denied"} 2"#,
        r#"weir_decisions_total{rule="paid",outcome="allowed"} 2"#,
        r#"weir_decisions_total{rule="paid",outcome="denied"} 1"#,
        r#"weir_decisions_total{rule="paid",outcome="exempt"} 1"#,
        r#"weir_queries_total{reason="cold"} 1"#,
        r#"weir_query_results_total{result="granted"} 1"#,
        r#"weir_table_keys{} 3"#,
        &format!("weir_streams_connected{{}} {}", threads(1)),
        &format!("weir_streams_settled{{}} {}", threads(1)),
        r#"weir_ratelimit_strict_mode_activations_total{} 1"#,
    ];
    for line in lines {
        let shown = async || metrics(region.envoy()).await.contains(&in_order(line));
        if wait::until(line, SOON, shown).await.is_err() {
            panic!("{line} is not in {:#?}", metrics(region.envoy()).await);
        }
    }
    region.is_sound().await;
}

/// The metrics of Weir in Envoy's text format.
async fn metrics(envoy: &Envoy) -> Vec<String> {
    let text = envoy.admin_get("/stats/prometheus").await.unwrap().text();
    text.lines().filter(|line| line.starts_with("weir_")).map(in_order).collect()
}

/// Sorts the labels, because Envoy's order is arbitrary.
fn in_order(line: &str) -> String {
    let (name, rest) = line.split_once('{').unwrap();
    let (labels, value) = rest.split_once("} ").unwrap();
    let mut labels: Vec<_> = labels.split(',').collect();
    labels.sort_unstable();
    format!("{name}{{{}}} {value}", labels.join(","))
}
