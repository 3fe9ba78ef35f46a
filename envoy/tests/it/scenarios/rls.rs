//! Envoys without the filter: Envoy's own rate-limit filter queries the aggregator, whose limits come from files or an xDS
//! server, and shares a limit with Weir's filter.

use std::path::Path;

use serde_json::{Value, json};
use weir_envoy::http::Response;
use weir_envoy::load::{self, LoadPlan};
use weir_envoy::{
    Aggregator, AggregatorOptions, EchoUpstream, Envoy, EnvoyOptions, Filter, RateLimit, Route, XdsResource,
    XdsServer, http, wait,
};

use super::common::{
    KEY, SOON, config, connected, filter, get_as, settled, sound, total_in, unix_ms, unused_grants, with,
};

const DOMAIN: &str = "native";
const USER: &str = "x-user";
const SHADE: &str = "x-shade";
const CONNECTIONS: usize = 8;

/// A unit of time that does not end during the test, as the service and as the filter name it.
fn long_unit() -> (&'static str, &'static str) {
    const ROOM_MS: u64 = 5 * 60_000;
    let hour_ms = 3_600_000;
    let units = [("hour", "1h", hour_ms), ("day", "24h", 24 * hour_ms), ("week", "7d", 7 * 24 * hour_ms)];
    let lasts = |(_, _, ms): &&(&str, &str, u64)| ms - unix_ms() % ms > ROOM_MS;
    let (unit, window, _) = units.iter().find(lasts).unwrap_or(&("month", "30d", 0));
    (unit, window)
}

/// An aggregator with a limits file, whose folder is removed with this value, or with an xDS server.
struct Service {
    aggregator: Aggregator,
    upstream: EchoUpstream,
    _folder: tempfile::TempDir,
}

impl Service {
    async fn start(limits: &str, token: Option<&str>) -> Service {
        Service::start_with(limits, token, &[]).await
    }

    async fn start_with(limits: &str, token: Option<&str>, more: &[&str]) -> Service {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("limits.yaml");
        std::fs::write(&file, limits).unwrap();
        let more = more.iter().map(|argument| (*argument).to_owned());
        let arguments = ["--rls-config".to_owned(), path(&file)].into_iter().chain(more).collect();
        Service::start_program(arguments, token, folder).await
    }

    async fn of(server: &XdsServer) -> Service {
        let url = format!("http://127.0.0.1:{}", server.port());
        let arguments = ["--rls-xds-url", &url, "--rls-xds-node", "envoy-ratelimit"].map(str::to_owned);
        Service::start_program(arguments.into(), None, tempfile::tempdir().unwrap()).await
    }

    async fn start_program(
        arguments: Vec<String>,
        token: Option<&str>,
        folder: tempfile::TempDir,
    ) -> Service {
        let token = token.map(str::to_owned);
        let aggregator =
            Aggregator::start(AggregatorOptions { arguments, token, ..AggregatorOptions::default() });
        let upstream = EchoUpstream::start(0).await.unwrap();
        Service { aggregator: aggregator.await.unwrap(), upstream, _folder: folder }
    }

    /// An Envoy without Weir's filter.
    async fn envoy(&self, rate_limit: RateLimit) -> Envoy {
        let envoy = Envoy::start(EnvoyOptions {
            concurrency: 2,
            filter: Filter::RateLimit(RateLimit { domain: DOMAIN.to_owned(), ..rate_limit }),
            route: Route::Upstream(self.upstream.port()),
            aggregator_ports: vec![self.aggregator.grpc_port()],
            ..EnvoyOptions::default()
        });
        envoy.await.unwrap()
    }
}

fn path(path: &Path) -> String {
    path.to_str().expect("temporary files have plain names").to_owned()
}

async fn get(envoy: &Envoy, headers: &[(&str, &str)]) -> Response {
    let request =
        headers.iter().fold(http::Request::get("/"), |request, (name, value)| request.header(name, value));
    http::send(envoy.address(), request).await.unwrap()
}

/// The status and the headers about the limit.
fn shown(response: &Response) -> (u16, Option<&str>, Option<&str>) {
    (response.status, response.header("x-ratelimit-limit"), response.header("x-ratelimit-remaining"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn envoys_own_filter_enforces_a_limit_and_sends_its_headers() {
    let (unit, _) = long_unit();
    let limits = format!(
        "
domain: {DOMAIN}
descriptors:
  - key: {USER}
    rate_limit: {{name: users, unit: {unit}, requests_per_unit: 3}}
  - key: {SHADE}
    shadow_mode: true
    rate_limit: {{unit: {unit}, requests_per_unit: 1}}
"
    );
    let service = Service::start(&limits, Some("a token")).await;
    let rate_limit = RateLimit {
        descriptors: vec![vec![USER], vec![SHADE]],
        token: Some("a token".to_owned()),
        failure_mode_deny: true,
        ..RateLimit::default()
    };
    let envoy = service.envoy(rate_limit.clone()).await;
    let tokenless = service.envoy(RateLimit { token: None, ..rate_limit }).await;
    let seconds = json!({ "hour": 3_600, "day": 86_400, "week": 604_800, "month": 2_592_000 })[unit].clone();
    for left in ["2", "1", "0"] {
        let response = get(&envoy, &[(USER, "a")]).await;
        let (status, limit, remaining) = shown(&response);
        assert_eq!((status, remaining), (200, Some(left)));
        let expected = format!("3, 3;w={seconds};name=\"users\"");
        assert_eq!(limit.map(|limit| limit.replace("; ", ";")), Some(expected));
        assert!(response.header("x-ratelimit-reset").unwrap().parse::<u64>().unwrap() > 0);
    }
    let refused = get(&envoy, &[(USER, "a")]).await;
    assert_eq!((refused.status, shown(&refused).2), (429, Some("0")));
    assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() > 0);
    assert_eq!(get(&envoy, &[(USER, "b")]).await.status, 200);
    assert_eq!(get(&envoy, &[]).await.status, 200, "a request without a limit passes");
    for _ in 0..3 {
        assert_eq!(get(&envoy, &[(SHADE, "s")]).await.status, 200, "shadow mode never refuses");
    }
    let metrics = service.aggregator.admin_get("/metrics").await.unwrap().text();
    assert!(
        metrics.contains("weir_aggregator_api_decisions_total{api=\"rls\",result=\"shadow_denied\"} 2\n")
    );
    assert_eq!(get(&tokenless, &[(USER, "c")]).await.status, 500, "a call without the token is refused");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_aggregator_envoy_applies_failure_mode_deny() {
    let (unit, _) = long_unit();
    let limits = format!(
        "domain: {DOMAIN}\ndescriptors: [{{key: {USER}, rate_limit: {{unit: {unit}, requests_per_unit: 1}}}}]"
    );
    let mut service = Service::start(&limits, None).await;
    let rate_limit = |failure_mode_deny| RateLimit {
        descriptors: vec![vec![USER]],
        failure_mode_deny,
        ..RateLimit::default()
    };
    let (open, closed) = (service.envoy(rate_limit(false)).await, service.envoy(rate_limit(true)).await);
    assert_eq!(get(&open, &[(USER, "a")]).await.status, 200);
    assert_eq!(get(&closed, &[(USER, "a")]).await.status, 429, "both count on one key");
    service.aggregator.process().kill().unwrap();
    assert_eq!(get(&open, &[(USER, "a")]).await.status, 200);
    assert_eq!(get(&closed, &[(USER, "a")]).await.status, 500);
    service.aggregator.restart().await.unwrap();
    let answers = async || get(&closed, &[(USER, "b")]).await.status != 500;
    wait::until("the aggregator is queried again", SOON, answers).await.unwrap();
}

/// With the same namespace, window and identifier, an Envoy with the filter and one without count the same key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_envoy_with_the_filter_and_one_without_share_a_limit() {
    const LIMIT: u64 = 2_000;
    let (unit, window) = long_unit();
    let limits = format!(
        "
domain: {DOMAIN}
descriptors:
  - key: {KEY}
    rate_limit: {{name: shared, unit: {unit}, requests_per_unit: {LIMIT}}}
"
    );
    let service = Service::start(&limits, None).await;
    let rate_limit =
        RateLimit { descriptors: vec![vec![KEY]], failure_mode_deny: true, ..RateLimit::default() };
    let native = service.envoy(rate_limit).await;
    let rule = json!({ "name": "shared", "identifier": { "header": KEY }, "limit": LIMIT, "window": window,
                       "timeout": "1s" });
    let weir = Envoy::start(EnvoyOptions {
        filter: filter(&config(&[with(rule, json!({ "namespace": "shared" }))])),
        aggregator_ports: vec![service.aggregator.grpc_port()],
        ..EnvoyOptions::default()
    });
    let weir = weir.await.unwrap();
    connected(&weir).await;
    settled(&weir).await;
    let plan = LoadPlan::of(vec![native.address(), weir.address()], CONNECTIONS, 3 * LIMIT, |number| {
        (usize::from(number % 2 == 1), get_as("a"))
    });
    let report = load::run(plan).await.unwrap();
    let passed = report.count(200);
    println!("limit {LIMIT}: {passed} passed, {report:?}");
    assert_eq!((passed + report.count(429), report.errors), (3 * LIMIT, 0), "{report:?}");
    assert!(passed <= LIMIT + LIMIT / 20, "{report:?}");
    let envoys = [weir];
    let counted = async || {
        let counted = passed.max(LIMIT)..=passed + unused_grants(&envoys, CONNECTIONS).await;
        counted.contains(&total_in(&service.aggregator, "shared", "a").await)
    };
    wait::until("the region counts what passed", SOON, counted).await.unwrap();
    let [weir] = envoys;
    sound(&weir).await;
}

/// As many statuses as requests.
async fn statuses<const N: usize>(envoy: &Envoy, headers: &[(&str, &str)]) -> [u16; N] {
    let mut statuses = [0; N];
    for status in &mut statuses {
        *status = get(envoy, headers).await.status;
    }
    statuses
}

/// An aggregator that follows an xDS server, as Envoy Gateway runs the reference service.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_of_an_xds_server_are_enforced_raised_and_refused() {
    let (unit, _) = long_unit();
    let users = |unit: &str, limit: u64| {
        let limit = json!({ "unit": unit, "requests_per_unit": limit });
        let route =
            json!({ "key": "route", "value": "all", "descriptors": [{ "key": USER, "rate_limit": limit }] });
        vec![XdsResource::rate_limits(&json!({ "domain": DOMAIN, "descriptors": [route] }))]
    };
    let server = XdsServer::start(None).await.unwrap();
    let service = Service::of(&server).await;
    let route = json!({ "generic_key": { "descriptor_key": "route", "descriptor_value": "all" } });
    let user = json!({ "request_headers": { "header_name": USER, "descriptor_key": USER } });
    let rate_limits = vec![json!({ "actions": [route, user] })];
    let rate_limit = RateLimit { rate_limits, failure_mode_deny: true, ..RateLimit::default() };
    let envoy = service.envoy(rate_limit).await;
    let a = [(USER, "a")];
    assert_eq!(
        get(&envoy, &a).await.status,
        500,
        "before the first limits, Envoy's failure_mode_deny decides"
    );
    let answered = |number: usize| {
        let server = &server;
        wait::until("the server is answered", SOON, async move || server.requests().len() >= number)
    };
    server.set("1", users(unit, 2));
    answered(2).await.unwrap();
    assert_eq!(statuses(&envoy, &a).await, [200, 200, 429]);
    server.set("2", users(unit, 4));
    answered(3).await.unwrap();
    assert_eq!(statuses(&envoy, &a).await, [200, 200, 429], "two of four are used");
    server.set("3", users("year", 1));
    answered(4).await.unwrap();
    assert_eq!(statuses(&envoy, &a).await, [200, 429], "another window has another count");
    server.set("4", users("century", 1));
    answered(5).await.unwrap();
    assert_eq!(statuses(&envoy, &a).await, [500], "Envoy's failure_mode_deny decides in place of that limit");
    server.set("5", users(unit, 4));
    answered(6).await.unwrap();
    server.set("6", users(unit, 4).into_iter().chain(users(unit, 4)).collect());
    answered(7).await.unwrap();
    let refused = server.requests().pop().unwrap();
    assert!(refused.error.is_some_and(|error| error.contains("domain")), "the reason is sent");
    assert_eq!((refused.node.as_str(), refused.version.as_str()), ("envoy-ratelimit", "5"));
    assert_eq!(statuses(&envoy, &a).await, [429], "the former limits stay in force");
    let metrics = service.aggregator.admin_get("/metrics").await.unwrap().text();
    assert!(metrics.contains("weir_aggregator_files_stale{files=\"rate_limits\"} 1\n"));
    assert!(metrics.contains("weir_aggregator_rls_xds_connected 1\n"));
    let parts = service.aggregator.admin_get("/v1/parts").await.unwrap().text();
    let parts: Value = serde_json::from_str(&parts).unwrap();
    let part = &parts["rate_limits"];
    assert_eq!(
        (&part["source"], &part["version"], &part["domains"]),
        (&json!("xds"), &json!("5"), &json!(1))
    );
}

/// A request passes while one pool has room, and Envoy shows which.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quotas_deny_together_and_envoy_shows_what_passes() {
    let (unit, _) = long_unit();
    let pool = |key: &str, limit: u64| {
        format!(
            "  - {{key: {key}, quota_mode: true, rate_limit: {{unit: {unit}, requests_per_unit: {limit}}}, metadata: {{room: {{{key}: 'yes'}}}}}}\n"
        )
    };
    let limits = format!("domain: {DOMAIN}\ndescriptors:\n{}{}", pool("x-one", 1), pool("x-two", 2));
    let arguments = ["--rls-dynamic-metadata", "--rls-exceeded-header", "x-ratelimit-exceeded"];
    let service = Service::start_with(&limits, None, &arguments).await;
    let rate_limit = RateLimit {
        descriptors: vec![vec!["x-one"], vec!["x-two"]],
        shows_metadata: true,
        failure_mode_deny: true,
        ..RateLimit::default()
    };
    let envoy = service.envoy(rate_limit).await;
    let both = [("x-one", "p"), ("x-two", "p")];
    for expected in [json!({ "x-one": "yes", "x-two": "yes" }), json!({ "x-two": "yes" })] {
        let response = get(&envoy, &both).await;
        assert_eq!(response.status, 200);
        let shown: Value = serde_json::from_str(response.header("x-limit-metadata").unwrap()).unwrap();
        assert_eq!(shown["room"], expected);
        // The upstream returns the request that it received.
        let exceeded = if expected.get("x-one").is_none() { json!("native.x-one") } else { Value::Null };
        assert_eq!(response.json().unwrap()["headers"]["x-ratelimit-exceeded"], exceeded);
    }
    assert_eq!(get(&envoy, &both).await.status, 429);
    assert_eq!(get(&envoy, &both[..1]).await.status, 429, "the only quota of the request");
}

/// Envoy's `hits_addend` of a descriptor: tokens of a response count after it, and hits are given back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hits_come_after_the_response_and_are_given_back() {
    let (unit, _) = long_unit();
    let limits = format!(
        "domain: {DOMAIN}\ndescriptors: [{{key: {USER}, rate_limit: {{unit: {unit}, requests_per_unit: 10}}}}]"
    );
    let service = Service::start(&limits, None).await;
    let actions =
        |header: &str| json!([{ "request_headers": { "header_name": header, "descriptor_key": USER } }]);
    let rate_limits = vec![
        json!({ "actions": actions(USER), "hits_addend": { "number": 0 } }),
        json!({ "actions": actions(USER), "hits_addend": { "format": "%REQ(x-tokens)%" }, "apply_on_stream_done": true }),
        json!({ "actions": actions("x-refund"), "hits_addend": { "number": 6, "is_negative_hits": true } }),
    ];
    let rate_limit = RateLimit { rate_limits, failure_mode_deny: true, ..RateLimit::default() };
    let envoy = service.envoy(rate_limit).await;
    let of = |user: &'static str, tokens: &'static str| [(USER, user), ("x-tokens", tokens)];
    let left = async |user: &'static str| {
        let response = get(&envoy, &[(USER, user)]).await;
        (response.status, response.header("x-ratelimit-remaining").unwrap().to_owned())
    };
    let comes_to = async |user: &'static str, status: u16, remaining: &str| {
        let reached = async || left(user).await == (status, remaining.to_owned());
        wait::until("the tokens are counted", SOON, reached).await.unwrap();
    };
    assert_eq!(get(&envoy, &of("a", "7")).await.status, 200);
    comes_to("a", 200, "3").await;
    assert_eq!(get(&envoy, &of("a", "50")).await.status, 200, "the tokens are not known before the response");
    comes_to("a", 429, "0").await;
    assert_eq!(get(&envoy, &of("b", "9")).await.status, 200);
    comes_to("b", 200, "1").await;
    assert_eq!(get(&envoy, &[("x-refund", "b")]).await.status, 200);
    assert_eq!(left("b").await, (200, "7".to_owned()));
    assert_eq!(get(&envoy, &of("b", "4")).await.status, 200);
    comes_to("b", 200, "3").await;
}
