//! Rules and requests: matching, identifiers, overrides and exemptions.

use serde_json::{Value, json};
use weir_envoy::http::Request;
use weir_envoy::{EnvoyOptions, wait};

use super::common::{Region, SOON, config, get_as, rule, sum_of, with};
use super::window::page;

/// Sends the requests one after the other and compares the statuses.
async fn check(rules: &[Value], requests: &[(Request, u16)]) {
    let region = Region::start(1, EnvoyOptions::default(), &config(rules)).await;
    for (at, (request, expected)) in requests.iter().enumerate() {
        let answer = region.envoy().send(request.clone()).await.unwrap();
        assert_eq!(answer.status, *expected, "request {at}: {request:?}");
    }
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overrides_and_exemptions() {
    let overrides = json!({ "overrides": [
        { "identifier": "partner-*", "limit": 2 },
        { "identifier": "partner-7", "limit": 0 },
        { "identifier": "*-internal", "exempt": true },
    ]});
    let of = get_as;
    check(
        &[with(rule("r", 1), overrides)],
        &[
            (of("a"), 200),
            (of("a"), 429),
            (of("partner-1"), 200),
            (of("partner-1"), 200),
            (of("partner-1"), 429),
            (of("partner-7"), 429),
            (of("x-internal"), 200),
            (of("x-internal"), 200),
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shadow_rule_never_denies() {
    let shadow = with(rule("r", 1), json!({ "shadow_mode": true }));
    check(&[shadow, rule("s", 3)], &[200, 200, 200, 429].map(|status| (get_as("a"), status))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_without_an_identifier() {
    let rules = ["shared", "skip", "deny"].map(|missing| {
        let path = json!({ "path": { "prefix": format!("/{missing}") } });
        with(rule(missing, 1), json!({ "on_missing_identifier": missing, "match": path }))
    });
    let to = |path: &str| Request::get(path);
    let empty = Request::get("/shared").header("x-key", "");
    check(
        &rules,
        &[
            (to("/shared"), 200),
            (empty, 429),
            (to("/shared"), 429),
            (to("/skip"), 200),
            (to("/skip"), 200),
            (to("/deny"), 429),
            (to("/else"), 200),
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_are_for_the_requests_that_they_match() {
    let matching = json!({ "match": {
        "path": { "exact": "/login" },
        "methods": ["POST"],
        "host": ["*.example.com"],
        "headers": [{ "name": "x-health-check", "present": true, "invert": true }],
    }});
    let post = |path: &str| Request::post(path, "").header("x-key", "a").header("host", "api.example.com");
    check(
        &[with(rule("r", 1), matching)],
        &[
            (post("/login?next=/"), 200),
            (post("/login"), 429),
            (post("//x/../log%69n"), 429),
            (post("/login/"), 200),
            (post("/login").header("x-health-check", "1"), 200),
            (get_as("a"), 200),
            (Request::post("/login", "").header("x-key", "a"), 200),
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_are_distinguished_by_address() {
    let by_address = json!({ "identifier": { "client_address": { "trusted_hops": 1 } } });
    let from = |hops: &str| Request::get("/").header("x-forwarded-for", hops);
    check(
        &[with(rule("r", 1), by_address)],
        &[
            (from("203.0.113.1"), 200),
            (from("203.0.113.1"), 429),
            (from("198.51.100.9, 203.0.113.1"), 429),
            (from("203.0.113.2"), 200),
            // Addresses in the same /64 are one client.
            (from("2001:db8::1"), 200),
            (from("2001:db8::ffff"), 429),
            (from("2001:db8:0:1::1"), 200),
            // No proxy address, or an invalid one: the peer's own address.
            (Request::get("/"), 200),
            (from("nonsense"), 429),
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn identifiers_of_several_parts() {
    let parts = json!({ "identifier": [
        { "cookie": "session" }, { "query": "user" }, { "path_segment": 1 }, { "host": true },
    ]});
    let to =
        |path: &str, cookie: &str| Request::get(path).header("cookie", cookie).header("host", "Example.com");
    check(
        &[with(rule("r", 1), parts)],
        &[
            (to("/a?user=u", "session=1"), 200),
            (to("/a/b?x&user=%75", "other=2; session=1"), 429),
            (to("/b?user=u", "session=1"), 200),
            (to("/a?user=v", "session=1"), 200),
            (to("/a?user=u", "session=2"), 200),
            (to("/a?user=u", "session=1").header("x", "y"), 429),
        ],
    )
    .await;
}

/// Requests that an exception names pass, and no other that some upstream reads so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_spelling_of_a_path_or_a_query_is_an_exception() {
    let closed = |name: &str, conditions: Value| {
        with(rule(name, 0), json!({ "identifier": { "constant": "all" }, "match": conditions }))
    };
    let but_assets = json!({
        "host": "assets.test", "except": [{ "path": { "segments": "/assets/**" }, "methods": "GET" }],
    });
    let by_query = json!({ "host": "query.test", "query": [{ "name": "format", "exact": "json" }] });
    let but_query =
        json!({ "host": "others.test", "query": [{ "name": "format", "exact": "json", "invert": true }] });
    let own = json!({ "host": "network.test", "client_network": { "in": ["127.0.0.0/8"] } });
    let others = json!({ "host": "elsewhere.test", "client_network": { "not_in": ["127.0.0.0/8"] } });
    let rules = [
        closed("assets", but_assets),
        closed("query", by_query),
        closed("others", but_query),
        closed("network", own),
        closed("elsewhere", others),
    ];
    let region = Region::start(1, EnvoyOptions::default(), &config(&rules)).await;
    let send = async |host: &str, path: &str| {
        let request = Request::get(path).header("host", host);
        region.envoy().send(request).await.unwrap().status
    };
    for path in ["/assets/a.css", "/assets/a/b?x=/../c", "/%61ssets/a", "/assets"] {
        assert_eq!(send("assets.test", path).await, 200, "{path}");
    }
    for path in [
        "/assets/../api",
        "/assets/%2e%2e/api",
        "/assets/..;/api",
        "/assets/..%2fapi",
        "/assets%2f..%2fapi",
        "/assets/..%5capi",
        "/assets/%252e%252e/api",
        "/assets;/../api",
        "//host/assets/a",
        "/assets./a",
        "/api?/assets/",
        "/api",
    ] {
        assert_eq!(send("assets.test", path).await, 429, "{path}");
    }
    for (query, by_value, but_value) in [
        ("format=json", 429, 200),
        ("a=b&%66ormat=js%6fn", 429, 200),
        ("format=xml", 200, 429),
        ("", 200, 429),
        // Some upstreams read it so, and others do not.
        ("format=json&format=xml", 429, 429),
        ("Format=json", 429, 429),
        ("format[]=json", 429, 429),
        ("a=b;format=json", 429, 429),
    ] {
        let path = format!("/?{query}");
        let found = (send("query.test", &path).await, send("others.test", &path).await);
        assert_eq!(found, (by_value, but_value), "{query}");
    }
    assert_eq!((send("network.test", "/").await, send("elsewhere.test", "/").await), (429, 200));
    region.is_sound().await;
}

/// Of a group the rule with the most specific path limits a request, and both do where only some upstreams read that path.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_most_specific_path_of_a_group_limits() {
    let grouped = |name: &str, limit: u64, path: Value| {
        with(rule(name, limit), json!({ "path_group": "api", "match": { "path": path } }))
    };
    let rules = [
        grouped("all", 1, json!({ "prefix": "/" })),
        grouped("search", 3, json!({ "segments": "/v1/search" })),
        with(rule("paths", 2), json!({ "identifier": { "path": true }, "match": { "host": "paths.test" } })),
    ];
    let region = Region::start(1, EnvoyOptions::default(), &config(&rules)).await;
    let send =
        async |path: &str| region.envoy().send(Request::get(path).header("x-key", "a")).await.unwrap().status;
    for (path, expected) in [
        ("/v1/search?q=a", 200),
        ("/v1/search/", 200),
        ("/v1/other", 200),
        ("/v1/other", 429),
        ("/v1/search;a", 429),
        ("/v1/search", 200),
        ("/v1/search", 429),
    ] {
        assert_eq!(send(path).await, expected, "{path}");
    }
    let of_path = async |path: &str| {
        let request = Request::get(path).header("host", "paths.test").header("x-key", path);
        region.envoy().send(request).await.unwrap().status
    };
    for (path, expected) in [("/a/b?c", 200), ("/a//b/", 200), ("/a/%62", 429), ("/a/c", 200)] {
        assert_eq!(of_path(path).await, expected, "{path}");
    }
    region.is_sound().await;
}

/// A path that upstreams read so differently that it may be meant for any of the rules.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_that_meets_too_many_rules_is_refused() {
    let matching = |at: usize| {
        with(
            rule(&format!("r{at}"), 1),
            json!({ "match": { "path": { "prefix": format!("/api/part{at}/") } } }),
        )
    };
    let rules: Vec<Value> = (0..33).map(matching).collect();
    let options = EnvoyOptions { access_log: true, ..EnvoyOptions::default() };
    let region = Region::start(1, options, &config(&rules)).await;
    let send = async |path: &str| {
        let answer = region.envoy().send(Request::get(path).header("x-key", "a")).await.unwrap();
        (answer.status, answer.text())
    };
    for _ in 0..2 {
        assert_eq!(send("/api//x/..;/y").await, (400, "path ambiguous".to_owned()));
    }
    assert_eq!(send("/api/part0/x").await.0, 200, "it has taken nothing");
    assert_eq!(send("/api/part0/x;y").await.0, 429, "a few readings are counted");
    let counted = async || sum_of(region.envoy(), "wasmcustom.weir_paths_denied_total").await == 2;
    wait::until("both are counted", SOON, counted).await.unwrap();
    let is_denial = |line: &Value| line["details"] == "weir_ambiguous_path";
    let lines =
        async || region.envoy().access_log().unwrap().iter().filter(|line| is_denial(line)).count() == 2;
    wait::until("access logs show them", SOON, lines).await.unwrap();
    region.is_sound().await;
}

/// The same path, where one of the rules that it may be meant for is in shadow mode.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_that_meets_too_many_rules_only_with_one_on_trial_passes() {
    let matching = |at: usize| {
        let path = json!({ "path": { "prefix": format!("/api/part{at}/") } });
        with(rule(&format!("r{at}"), 1), json!({ "match": path, "shadow_mode": at == 0 }))
    };
    let rules: Vec<Value> = (0..33).map(matching).collect();
    let region = Region::start(1, EnvoyOptions::default(), &config(&rules)).await;
    let send = async |path: &str| {
        let answer = region.envoy().send(Request::get(path).header("x-key", "a")).await.unwrap();
        (answer.status, answer.text())
    };
    assert_eq!(send("/api//x/..;/y").await.0, 200);
    let (status, text) = send("/api/part1/x").await;
    assert_eq!(status, 429, "it was counted: {text}");
    let counts = async || {
        let of = async |name: &str| sum_of(region.envoy(), &format!("wasmcustom.{name}")).await;
        (of("weir_paths_shadow_denied_total").await, of("weir_paths_denied_total").await) == (1, 0)
    };
    wait::until("it is counted", SOON, counts).await.unwrap();
    region.is_sound().await;
}

/// Rules of a thousand paths: each limits its own, also those whose numbers are far beyond a machine word's bits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_rules() {
    let matching = |at: usize| {
        let name = format!("part-{at}");
        let path = json!({ "path": { "prefix": format!("/api/part{at}/") } });
        with(rule(&name, 1), json!({ "match": path, "shadow_mode": at == 1_000 }))
    };
    let mut rules: Vec<Value> = (0..1_023).map(matching).collect();
    rules.push(with(
        rule("all", 6),
        json!({ "identifier": { "constant": "all" }, "on_missing_identifier": "shared" }),
    ));
    let region = Region::start(1, EnvoyOptions::default(), &config(&rules)).await;
    for (at, (part, expected)) in [
        (0, 200),
        (0, 429),
        (1_022, 200),
        (1_022, 429),
        (1_000, 200),
        (1_000, 200),
        (1_022, 429),
        (7, 200),
        (8, 200),
        (9, 429),
    ]
    .into_iter()
    .enumerate()
    {
        let request = Request::get(&format!("/api/part{part}/x")).header("x-key", "a");
        let answer = region.envoy().send(request).await.unwrap();
        assert_eq!(answer.status, expected, "request {at}");
    }
    let decided = async || {
        let of = |rule: &str, outcome: &str| {
            format!("wasmcustom.weir_decisions_total.rule.{rule}.outcome.{outcome}")
        };
        let shadow = sum_of(region.envoy(), &of("part-1000", "shadow_denied")).await;
        (shadow, sum_of(region.envoy(), &of("part-1022", "denied")).await) == (1, 2)
    };
    wait::until("the last rules are counted", SOON, decided).await.unwrap();
    // They arrive in several reports.
    let listed =
        async || page(&region.aggregator, "/v1/rules").await["rules"].as_array().unwrap().len() == 1_024;
    wait::until("the aggregator lists all rules", SOON, listed).await.unwrap();
    region.is_sound().await;
}
