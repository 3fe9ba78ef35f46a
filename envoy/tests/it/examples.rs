//! The policies in `examples/`: `check-config` accepts each of them, a real Envoy loads it, and it behaves as
//! documented. The fragments of `envoy/README.md` and `filter/README.md` form a configuration that Envoy accepts.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use hyper::body::Incoming;
use serde_json::{Value, json};
use sqlx::{Connection, MySqlConnection};
use tokio::task::JoinSet;
use weir_core::rules::Config;
use weir_envoy::http::{self, Protocol, Request, Response};
use weir_envoy::load::{self, LoadPlan};
use weir_envoy::{
    Aggregator, AggregatorOptions, DatabaseServer, EchoUpstream, Envoy, EnvoyOptions, Filter, RateLimit,
    Redis, RedisOptions, Route, Weir, binaries, validate_file, wait, yaml,
};

use crate::scenarios::attributes::Issuer;
use crate::scenarios::common::run_aggregator;
use crate::scenarios::upstream::{self, Upstream};

/// What the environment variable of the examples holds.
const HASH_KEY: &str = "a-random-text-of-these-tests";
const SOON: Duration = Duration::from_secs(20);
/// Seconds of a window that a test may use; no test may run across the end of a window.
const ROOM_S: u64 = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn api_keys_have_plans() {
    let policy = Policy::start("api-keys.json").await;
    policy.begin_window(60).await;
    let call = async |key: &str, cost: &str| {
        policy.send(Request::get("/v1/orders").header("x-api-key", key).header("x-request-cost", cost)).await
    };

    let first = call("free_1", "50").await;
    assert_eq!((first.status, first.header("x-ratelimit-remaining")), (200, Some("10")));
    assert_eq!(call("free_1", "10").await.status, 200);
    let denied = call("free_1", "1").await;
    assert_eq!((denied.status, denied.header("x-ratelimit-limit")), (429, Some("60")));
    assert_eq!(denied.header("ratelimit-policy"), Some("\"api-keys\";q=60;w=60"));
    assert_eq!(denied.json().unwrap()["violated-policies"][0], "api-keys");
    assert_eq!(call("free_2", "1").await.status, 200, "another key is another budget");

    assert_eq!(call("pro_1", "1").await.header("x-ratelimit-limit"), Some("600"));
    assert_eq!(call("pro_acme", "1").await.header("x-ratelimit-limit"), Some("3000"));
    assert_eq!(call("pro_1", "not a number").await.header("x-ratelimit-remaining"), Some("549"), "the cap");

    for _ in 0..70 {
        let exempt = call("internal_ci", "50").await;
        assert_eq!((exempt.status, exempt.header("x-ratelimit-limit")), (200, None));
    }
    let elsewhere = policy.send(Request::get("/").header("x-api-key", "free_1")).await;
    assert_eq!(elsewhere.status, 200, "no rule is for this path");

    // The shadow rule let both requests of free_1 pass, although the first alone costs more than its limit.
    policy.decisions("api-keys-30", "shadow_denied", 1).await;
    policy.decisions("api-keys", "denied", 1).await;
    policy.decisions("api-keys", "exempt", 70).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logins_are_limited_by_user_and_by_address() {
    let mut policy = Policy::start("login-protection.json").await;
    policy.begin_window(900).await;
    let login = |path: &str, address: &str, user: &str| {
        Request::post(path, "").header("x-forwarded-for", address).header("x-login-user", user)
    };
    let attempt =
        async |path: &str, address: &str, user: &str| policy.send(login(path, address, user)).await.status;

    for path in ["/login", "//LOGIN;a=b", "/login/?next=home", "/%6cogin.", "/Login%20/"] {
        assert_eq!(attempt(path, "203.0.113.1", "alice").await, 200, "{path}");
    }
    assert_eq!(attempt("/login", "203.0.113.1", "alice").await, 429, "five for a user");
    for user in ["alice", "Alice", "ALICE"] {
        assert_eq!(attempt("/login", "203.0.113.2", user).await, 429, "from anywhere, as {user}");
    }
    for user in ["bob", "carol", "dave", "erin", "frank"] {
        assert_eq!(
            attempt("/login", "203.0.113.1", user).await,
            200,
            "what was denied is not charged: {user}"
        );
    }
    assert_eq!(attempt("/login", "203.0.113.1", "grace").await, 429, "ten for an address");
    assert_eq!(attempt("/login", "6.6.6.6, 203.0.113.1", "grace").await, 429, "whatever stands before it");
    assert_eq!(attempt("/login", "203.0.113.2", "grace").await, 200);

    let form = Request::get("/login").header("x-forwarded-for", "203.0.113.1");
    assert_eq!(policy.send(form).await.status, 200, "the form itself is free");
    assert_eq!(
        policy.send(Request::post("/login", "")).await.status,
        429,
        "a request without a user is denied"
    );
    let two = login("/login", "203.0.113.3", "ivan").header("x-login-user", "judy");
    assert_eq!(policy.send(two).await.status, 429, "a request with two users is denied");

    policy.aggregator.process().pause().await.unwrap();
    assert_eq!(
        policy.send(login("/login", "203.0.113.9", "heidi")).await.status,
        429,
        "the region does not respond"
    );
    policy.aggregator.process().resume().unwrap();
    policy.details("weir_undecided").await;
    policy.details("weir_missing_identifier").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_client_address_has_its_budget() {
    let policy = Policy::start("client-address.json").await;
    policy.begin_window(60).await;
    let status = async |path: &str, forwarded: &str| {
        policy.send(Request::get(path).header("x-forwarded-for", forwarded)).await.status
    };

    assert_eq!(policy.passed_of(700, |_| "203.0.113.7".to_owned()).await, 600);
    for same in ["203.0.113.7", "198.51.100.1, 203.0.113.7", "::ffff:203.0.113.7", "203.0.113.7:4711"] {
        assert_eq!(status("/", same).await, 429, "{same}");
    }
    for other in ["203.0.113.8", "203.0.113.7, 198.51.100.1", "unknown"] {
        assert_eq!(status("/", other).await, 200, "{other}");
    }
    assert_eq!(policy.send(Request::get("/")).await.status, 200, "the peer itself");

    assert_eq!(policy.passed_of(700, |n| format!("2001:db8:1:2:{n:x}::1")).await, 600, "one /64, one budget");
    assert_eq!(status("/", "2001:db8:1:2:ffff:ffff:ffff:ffff").await, 429);
    assert_eq!(status("/", "2001:db8:1:3::1").await, 200, "the /64 beside it");

    assert_eq!(status("/healthz", "203.0.113.7").await, 200, "health checks are not counted");
    assert_eq!(status("/healthz/../", "203.0.113.7").await, 429, "what only looks like one is");

    let path = "/v1/keys?workspace=shop&namespace=per-client&identifier=2001:db8:1:2::/64";
    let is_counted = async || {
        let explained = policy.aggregator.admin_get(path).await.unwrap().json().unwrap();
        explained["windows"][0]["limit"] == 600
    };
    wait::until("the region counts the /64", SOON, is_counted).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_are_claims_and_a_customer_keeps_its_count() {
    let issuer = Issuer::new();
    let policy = Policy::behind("plans.json", vec![issuer.filter()]).await;
    policy.begin_window(60).await;
    let call = async |path: &str, plan: &str| {
        let signed = issuer.request(&json!({ "org": "acme", "plan": plan }));
        policy.send(Request { headers: signed.headers, ..Request::get(path) }).await
    };
    let mut passing = 0;
    for _ in 0..70 {
        passing += u32::from(call("/v1/orders", "free").await.status == 200);
    }
    assert_eq!(passing, 60);
    assert_eq!(call("/v1/orders", "pro").await.status, 200, "more is left of the same count");
    let denied = call("/v1/orders", "other").await;
    assert_eq!((denied.status, denied.header("x-ratelimit-limit")), (429, Some("60")));
    assert_eq!(call("/docs/start", "free").await.status, 200, "an exception");
    for path in
        ["/docs/../v1/orders", "/docs/%2e%2e/v1/orders", "/docs/..%2fv1/orders", "/docs/..;/v1/orders"]
    {
        assert_eq!(call(path, "free").await.status, 429, "{path}");
    }
    assert_eq!(call("/v1/export", "free").await.header("x-ratelimit-limit"), Some("0"), "a rule of its own");
    for expected in [200; 10].into_iter().chain([429]) {
        assert_eq!(call("/V1/export/", "pro").await.status, expected);
    }
    assert_eq!(policy.send(Request::get("/v1/orders")).await.status, 401, "by Envoy's own filter");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn countries_of_the_cdn_have_their_limits() {
    let policy = Policy::start("countries.json").await;
    policy.begin_window(60).await;
    let status = async |path: &str, country: &str, forwarded: &str| {
        let request =
            Request::get(path).header("x-forwarded-for", forwarded).header("x-cdn-country", country);
        policy.send(request).await.status
    };
    let passing = async |country: &str, client: &str, tries: u32| {
        let mut passing = 0;
        for _ in 0..tries {
            passing += u32::from(status("/", country, &format!("{client}, 198.51.100.7")).await == 200);
        }
        passing
    };
    assert_eq!(passing("DE", "203.0.113.1", 31).await, 30);
    assert_eq!(passing("NL", "203.0.113.2", 11).await, 10);
    assert_eq!(passing("T1", "203.0.113.3", 3).await, 2);
    assert_eq!(
        passing("T1", "203.0.113.4", 3).await + passing("T1", "203.0.113.5", 3).await,
        3,
        "five in all"
    );
    for around in ["203.0.113.9", "198.51.100.7, 203.0.113.9", "198.51.101.7"] {
        assert_eq!(status("/", "DE", around).await, 403, "{around}");
        assert_eq!(status("/healthz", "DE", around).await, 403, "{around}");
    }
    assert_eq!(policy.send(Request::get("/healthz")).await.status, 200, "from the load balancer itself");
    assert_eq!(policy.send(Request::get("/healthz/../x")).await.status, 403, "what only looks like it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_charged_as_the_response_states() {
    let upstream = EchoUpstream::start(0).await.unwrap();
    let policy = Policy::routed("ai-tokens.json", Route::Upstream(upstream.port())).await;
    policy.begin_window(60).await;
    let call = async |key: &str, answer: &str| {
        let bearer = format!("Bearer {key}");
        policy
            .send(Request::get("/v1/chat").header("authorization", &bearer).header("x-echo-header", answer))
            .await
    };
    let text = read("examples/ai-tokens.json");
    let config = Config::parse_with(text.as_bytes(), &|_| Some(HASH_KEY.to_owned())).unwrap();
    let of = |identifier: &str| format!("/v1/keys?workspace=models&namespace=tokens&identifier={identifier}");
    let used = async |key: &str, tokens: u64| {
        let mut digest = Vec::new();
        config.hash_key.as_ref().unwrap().write(key.as_bytes(), &mut digest);
        let path = of(&String::from_utf8(digest).unwrap());
        let counted = async || {
            let keys = policy.aggregator.admin_get(&path).await.unwrap().json().unwrap();
            keys["windows"][0]["cells"][0]["regional_total"] == tokens
        };
        wait::until("the tokens are counted", SOON, counted).await.unwrap();
    };

    assert_eq!(call("alice", "x-tokens-used=1200").await.status, 200);
    used("alice", 1_200).await;
    assert_eq!(call("alice", "x-tokens-used=many").await.status, 200);
    used("alice", 21_200).await;
    assert_eq!(call("alice", "x-else=1").await.status, 200);
    used("alice", 21_700).await;
    for _ in 0..4 {
        assert_eq!(call("alice", "x-tokens-used=20000").await.status, 200);
    }
    used("alice", 101_700).await;
    let by_key = policy.aggregator.admin_get(&of("alice")).await.unwrap().json().unwrap();
    assert_eq!(by_key["windows"], json!([]), "the aggregator holds no API key: {by_key}");
    assert!(by_key["unknown"].is_string(), "{by_key}");
    let denied = call("alice", "x-tokens-used=1").await;
    assert_eq!((denied.status, denied.header("x-ratelimit-limit")), (429, Some("100000")));
    assert_eq!(call("team_red", "x-tokens-used=1").await.status, 200, "another key");
    assert_eq!(policy.send(Request::get("/v1/chat")).await.status, 429, "no key, no answer");
}

/// A login that answers with the status of `x-status`, and redirects to `x-location`.
fn login(request: &hyper::Request<Incoming>) -> io::Result<upstream::Response> {
    let header = |name| upstream::header(request, name);
    let mut response = upstream::whole(header("x-status").parse().map_err(io::Error::other)?, "ok\n");
    if !header("x-location").is_empty() {
        let location = header("x-location").parse().map_err(io::Error::other)?;
        response.headers_mut().insert("location", location);
    }
    Ok(response)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_wrong_passwords_count() {
    let upstream = Upstream::start(Protocol::Http1, login).await;
    let policy = Policy::routed("failed-logins.json", upstream.options().route).await;
    policy.begin_window(900).await;
    let attempt = |address: &str, user: &str, status: &str| {
        let request = Request::post("/login", "").header("x-forwarded-for", address);
        request.header("x-login-user", user).header("x-status", status)
    };
    let address = "203.0.113.1";
    for sent in ["200", "401", "500", "403", "200", "401", "503", "401", "403"] {
        let status = policy.send(attempt(address, "alice", sent)).await.status;
        assert_eq!(status, sent.parse::<u16>().unwrap());
    }
    assert_eq!(policy.send(attempt(address, "alice", "200")).await.status, 429, "five wrong ones");
    assert_eq!(policy.send(attempt("203.0.113.2", "ALICE", "200")).await.status, 429, "from anywhere");

    upstream.gate.send_replace(false);
    let before = upstream.arrived();
    let mut guesses = JoinSet::new();
    for number in 0..100 {
        let request = attempt(&format!("203.0.113.{number}"), "bob", "401");
        let address = policy.envoy.address();
        guesses.spawn(async move { http::send(address, request).await.unwrap().status });
    }
    for _ in 0..95 {
        assert_eq!(guesses.join_next().await.unwrap().unwrap(), 429);
    }
    let arrived = async || upstream.arrived() == before + 5;
    wait::until("five guesses reach the login", SOON, arrived).await.unwrap();
    upstream.gate.send_replace(true);
    assert_eq!(guesses.join_all().await, [401; 5]);

    let other = "198.51.100.7";
    for number in 0..20 {
        let request = attempt(other, &format!("user{number}"), "302").header("x-location", "/login?wrong");
        assert_eq!(policy.send(request).await.status, 302);
    }
    let banned = async || policy.send(attempt(other, "carol", "200")).await.status == 429;
    wait::until("the address is banned", SOON, banned).await.unwrap();
    policy.details("weir_banned").await;
    assert_eq!(policy.send(attempt(address, "carol", "200")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_of_addresses_come_before_rules() {
    let policy = Policy::start("addresses.json").await;
    policy.begin_window(3_600).await;
    let status =
        async |address: &str| policy.send(Request::get("/").header("x-forwarded-for", address)).await.status;
    for _ in 0..5 {
        assert_eq!((status("10.1.2.3").await, status("2001:db8:cafe::1").await), (200, 200));
        assert_eq!((status("10.66.2.3").await, status("203.0.113.7").await), (403, 403));
    }
    for expected in [200, 200, 200, 429] {
        assert_eq!(status("198.51.100.1").await, expected);
    }
    policy.decisions("per-client", "exempt", 10).await;
    policy.details("weir_denied_address").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_time_passwords_are_limited_exactly() {
    let mut redis = Redis::start(RedisOptions::default()).await.unwrap();
    let environment = vec![("WEIR_REDIS_URL".to_owned(), redis.url())];
    let policy = Policy::with("one-time-passwords.json", Route::Direct, environment).await;
    let attempt =
        async |path: &str, phone: &str| policy.send(Request::post(path, "").header("x-phone", phone)).await;

    // Guesses of one phone over several connections at once.
    let plan = LoadPlan::of(vec![policy.envoy.address()], 4, 40, |_| {
        (0, Request::post("/otp/verify", "").header("x-phone", "+15550100"))
    });
    let report = load::run(plan).await.unwrap();
    assert_eq!((report.count(200), report.count(429)), (5, 35), "{report:?}");
    for expected in [200, 200, 200, 429] {
        assert_eq!(attempt("/OTP//send/", "+15550100").await.status, expected, "codes have their own limit");
    }
    let denied = attempt("/otp/verify", "+15550100").await;
    let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    // All five guesses leave the window within the time that they took.
    assert!((1..=600).contains(&wait), "{denied:?}");
    assert_eq!(denied.header("x-ratelimit-limit"), Some("5"));
    assert_eq!(attempt("/otp/verify", "+15550101").await.status, 200, "another phone");
    assert_eq!(policy.send(Request::post("/otp/send", "")).await.status, 429, "no phone, no code");
    assert_eq!(policy.send(Request::get("/otp/verify")).await.status, 200, "the form itself is free");

    let keys = redis.command("KEYS *").await.unwrap();
    assert!(keys.contains("otp-verify") && !keys.contains("1555010"), "Redis holds no phone number: {keys}");
    redis.process().pause().await.unwrap();
    let undecided = attempt("/otp/verify", "+15550102").await;
    assert_eq!((undecided.status, undecided.header("x-ratelimit-undecided")), (429, Some("otp-verify")));
    redis.process().resume().unwrap();
    // The fourth code, and the request without a phone.
    policy.decisions("otp-send", "denied", 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payments_are_recorded_in_the_ledger() {
    let server = DatabaseServer::mariadb().await.unwrap();
    let mut connection = MySqlConnection::connect(&server.url("mysql")).await.unwrap();
    sqlx::raw_sql("CREATE DATABASE weir").execute(&mut connection).await.unwrap();
    let url = server.url("weir");
    run_aggregator(&url, &["migrate"]);
    // The commands of examples/README.md.
    let page = read("examples/README.md");
    let zones: Vec<_> =
        page.lines().filter_map(|line| line.strip_prefix("$ weir-aggregator zones ")).collect();
    assert_eq!(zones.len(), 2, "{zones:?}");
    for zone in zones {
        run_aggregator(&url, &["zones"].into_iter().chain(zone.split_whitespace()).collect::<Vec<_>>());
    }
    let environment = vec![("WEIR_DATABASE_URL".to_owned(), url)];
    let policy = Policy::with("payments.json", Route::Direct, environment).await;
    let pay = async |card: &str, account: &str, amount: &str| {
        let request = Request::post("/payments", "").header("x-card", card).header("x-account", account);
        policy.send(request.header("x-amount", amount)).await
    };
    let numbers = |response: &Response| -> Vec<u64> {
        let header = response.header("x-ratelimit-transaction").unwrap();
        header.split(',').map(|number| number.trim().parse().unwrap()).collect()
    };
    let recorded = async |number: u64| {
        let request = Request::get(&format!("/v1/ledger/{number}"));
        http::send(policy.aggregator.http_address(), request).await.unwrap().json().unwrap()
    };

    let first = pay("card-1", "acme", "1500").await;
    assert_eq!(first.status, 200, "{first:?}");
    let [of_card, of_account] = numbers(&first)[..] else { panic!("{first:?}") };
    let (of_card, of_account) = (recorded(of_card).await, recorded(of_account).await);
    let what =
        |it: &Value| (it["zone"].clone(), it["bucket"].clone(), it["outcome"].clone(), it["cost"].clone());
    assert_eq!(what(&of_card), (json!(1), json!("card-1"), json!("allowed"), json!(1)));
    assert_eq!(what(&of_account), (json!(2), json!("acme"), json!("allowed"), json!(1_500)));

    // 500 are left of the account's 2 000, so the card is not charged for this attempt.
    let denied = pay("card-1", "acme", "501").await;
    assert_eq!((denied.status, denied.header("x-ratelimit-limit")), (429, Some("2000")));
    for _ in 0..4 {
        assert_eq!(pay("card-1", "acme", "100").await.status, 200);
    }
    let denied = pay("card-1", "acme", "1").await;
    assert_eq!((denied.status, denied.header("x-ratelimit-limit")), (429, Some("5")), "five for a card");
    assert_eq!(pay("card-2", "acme", "100").await.status, 200, "another card of the account");
    assert_eq!(pay("card-2", "acme", "1").await.status, 429, "the account is used up");
    assert_eq!(pay("card-2", "other", "9999").await.status, 429, "at most 5 000, above the rate of 2 000");
    assert_eq!(policy.send(Request::post("/payments", "")).await.status, 429, "neither card nor account");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tutorial_begins_with_a_rule() {
    let page = read("examples/TUTORIAL.md");
    let (_, shown) = page.split_once("<<'END'\n").unwrap();
    let config = serde_json::from_str(shown.split_once("\nEND").unwrap().0).unwrap();
    let policy = Policy::of(config, Route::Direct, Vec::new()).await;
    policy.begin_window(60).await;
    assert!(
        page.contains("'http://127.0.0.1:10000/?n=[1-7]'") && page.contains("      5 200\n      2 429\n")
    );
    assert_eq!(policy.passed_as(7, "alice").await, 5);
    assert_eq!(policy.passed_as(2, "carol").await, 2);
    policy.decisions("per-key", "denied", 2).await;
}

#[tokio::test]
async fn the_rate_limit_services_files_are_accepted() {
    for name in ["rate-limit-service", "rate-limit-quota"] {
        let folder = repository().join("examples").join(name).canonicalize().unwrap();
        validate_file(&folder.join("envoy.yaml")).unwrap();
        let limits = folder.join("limits.yaml").into_os_string().into_string().unwrap();
        let arguments = vec!["--rls-config".to_owned(), limits];
        Aggregator::start(AggregatorOptions { arguments, ..AggregatorOptions::default() }).await.unwrap();
    }
}

/// Weir's side of `envoy/MOVING.md`: the page's own blocks are what runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moving_from_the_reference_service() {
    let page = read("envoy/MOVING.md");
    let (_, command) = page.split_once("$ weir-aggregator serve ").unwrap();
    let words = command.lines().next().unwrap().split_whitespace();
    let options = words.skip_while(|word| *word != "--rls-config").skip(2).map(str::to_owned);
    let rate_limits = vec![
        json!({ "actions": [{ "request_headers": { "header_name": "x-key", "descriptor_key": "api_key" } }] }),
        json!({ "actions": [{ "request_headers": { "header_name": "x-large", "descriptor_key": "service" } }] }),
        json!({ "actions": [{ "request_headers": { "header_name": "x-small", "descriptor_key": "service" } }] }),
    ];
    let moved = Moved::start(&after(&page, "## envoyproxy/ratelimit"), options.collect(), rate_limits).await;
    begin_window(&moved.envoy, 3_600).await;
    for left in ["2", "1", "0"] {
        let response = moved.get(&[("x-key", "a")]).await;
        assert_eq!((response.status, response.header("ratelimit-remaining")), (200, Some(left)));
    }
    assert_eq!(moved.get(&[("x-key", "a")]).await.status, 429);
    let partner = moved.get(&[("x-key", "partner-1")]).await;
    assert_eq!((partner.status, partner.header("ratelimit-limit")), (200, Some("5")));
    let services = [("x-large", "large"), ("x-small", "small")];
    for expected in [json!({ "large": "free", "small": "free" }), json!({ "small": "free" })] {
        let response = moved.get(&services).await;
        let shown: Value = serde_json::from_str(response.header("x-limit-metadata").unwrap()).unwrap();
        assert_eq!((response.status, &shown["pool"]), (200, &expected));
    }
    assert_eq!(moved.get(&services).await.status, 429);
    // The gateways' environment has variables that the program has.
    let help = Command::new(binaries::aggregator().unwrap()).args(["serve", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let is_name = |c: char| c.is_ascii_uppercase() || c == '_';
    let variables: Vec<&str> = page.split(|c| !is_name(c)).filter(|word| word.starts_with("WEIR_")).collect();
    assert!(variables.len() > 14, "{variables:?}");
    for variable in variables {
        assert!(help.contains(&format!("[env: {variable}")), "{variable} is no variable");
    }
    for option in page.split('`').filter(|code| code.starts_with("--") && !code.starts_with("--quota")) {
        assert!(help.contains(&format!("      {option}")), "{option} is no option");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moving_from_limitador() {
    let page = read("envoy/MOVING.md");
    let header =
        |name: &str, key: &str| json!({ "request_headers": { "header_name": name, "descriptor_key": key } });
    let rate_limits =
        vec![json!({ "actions": [header("x-method", "req.method"), header("x-user", "user_id")] })];
    let moved = Moved::start(&after(&page, "is in Weir, for Envoys"), Vec::new(), rate_limits).await;
    let of = |method: &'static str| [("x-method", method), ("x-user", "a")];
    begin_window(&moved.envoy, 60).await;
    for expected in [200, 200, 429] {
        assert_eq!(moved.get(&of("POST")).await.status, expected);
    }
    for _ in 0..6 {
        assert_eq!(moved.get(&of("GET")).await.status, 200);
    }
}

/// As many at once as nginx passes, and what both pass in the time of the window.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moving_from_nginx() {
    let page = read("envoy/MOVING.md");
    let mut config: Value = yaml(&after(&page, "## nginx")).unwrap();
    config["aggregator"] = json!({ "cluster": "weir_aggregator" });
    let rule = &mut config["rules"][0];
    assert_eq!(
        (&rule["limit"], &rule["window"]),
        (&json!(16), &json!("1600ms")),
        "10 a second, and a burst of 16"
    );
    // The same in a window that no busy machine leaves.
    rule["window"] = json!("160s");
    let policy = Policy::of(config, Route::Direct, Vec::new()).await;
    policy.begin_window(160).await;
    assert_eq!(policy.passed_as(20, "a").await, 16);
    policy.decisions("clients", "denied", 4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moving_from_kong() {
    let page = read("envoy/MOVING.md");
    let mut config: Value = yaml(&after(&page, "is two rules of Weir")).unwrap();
    config["aggregator"] = json!({ "cluster": "weir_aggregator" });
    let policy = Policy::of(config, Route::Direct, Vec::new()).await;
    policy.begin_window(60).await;
    let call = async |key: &str| policy.send(Request::get("/").header("x-api-key", key)).await.status;
    assert_eq!([call("a").await, call("a").await, call("a").await, call("a").await], [200, 200, 200, 429]);
    assert_eq!(call("b").await, 200);
    policy.decisions("per-minute", "denied", 1).await;
    policy.decisions("per-hour", "denied", 0).await;
}

/// The first block of YAML after this text.
fn after(page: &str, text: &str) -> String {
    let (_, rest) = page.split_once(text).unwrap();
    let (_, block) = rest.split_once("```yaml\n").unwrap();
    block.split_once("```").unwrap().0.to_owned()
}

/// Envoy's own filter, and an aggregator with limits that the other service had.
struct Moved {
    envoy: Envoy,
    _parts: (Aggregator, EchoUpstream, tempfile::TempDir),
}

impl Moved {
    async fn start(limits: &str, options: Vec<String>, rate_limits: Vec<Value>) -> Moved {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("limits.yaml"), limits).unwrap();
        let path = folder.path().to_str().unwrap().to_owned();
        let arguments = ["--rls-config".to_owned(), path].into_iter().chain(options).collect();
        let options = AggregatorOptions { arguments, ..AggregatorOptions::default() };
        let aggregator = Aggregator::start(options).await.unwrap();
        let upstream = EchoUpstream::start(0).await.unwrap();
        let service = RateLimit {
            domain: "shop".to_owned(),
            rate_limits,
            shows_metadata: true,
            failure_mode_deny: true,
            ..RateLimit::default()
        };
        let envoy = Envoy::start(EnvoyOptions {
            filter: Filter::RateLimit(service),
            route: Route::Upstream(upstream.port()),
            aggregator_ports: vec![aggregator.grpc_port()],
            ..EnvoyOptions::default()
        });
        Moved { envoy: envoy.await.unwrap(), _parts: (aggregator, upstream, folder) }
    }

    async fn get(&self, headers: &[(&str, &str)]) -> Response {
        let request =
            headers.iter().fold(Request::get("/"), |request, (name, value)| request.header(name, value));
        self.envoy.send(request).await.unwrap()
    }
}

#[test]
fn the_pages_fragments_make_an_envoy() {
    let pages = ["envoy/README.md", "filter/README.md"].map(read).concat();
    let fragments: Vec<&str> =
        pages.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let fragment = |field: &str, depth: usize| {
        let found = fragments.iter().find(|fragment| fragment.starts_with(field)).unwrap();
        found.lines().map(|line| format!("{}{line}\n", " ".repeat(depth))).collect::<String>()
    };
    let filter = binaries::filter().unwrap();
    let filters =
        fragment("http_filters:", 14).replace("/etc/envoy/weir-filter.wasm", filter.to_str().unwrap());
    let excepted = fragment("typed_per_filter_config:", 22);
    let format = fragment("weir_rule:", 22);
    let config = format!(
        r#"{stats}static_resources:
{clusters}  listeners:
    - address: {{ socket_address: {{ address: 127.0.0.1, port_value: 0 }} }}
      filter_chains:
        - filters:
          - name: http
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
              stat_prefix: ingress
              access_log:
                - name: stdout
                  typed_config:
                    "@type": type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog
                    log_format:
                     json_format:
{format}              route_config:
                virtual_hosts:
                  - name: all
                    domains: ["*"]
                    routes:
                    - match: {{ prefix: / }}
                      direct_response: {{ status: 200 }}
{excepted}{filters}                - name: router
                  typed_config:
                    "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
"#,
        stats = fragment("stats_config:", 0),
        clusters = fragment("clusters:", 2),
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("envoy.yaml");
    std::fs::write(&file, config).unwrap();
    check_config(&file);
    validate_file(&file).unwrap();
}

/// An Envoy with one of the policies, connected to an aggregator.
struct Policy {
    envoy: Envoy,
    aggregator: Aggregator,
}

impl Policy {
    async fn start(name: &str) -> Self {
        Self::routed(name, Route::Direct).await
    }

    async fn routed(name: &str, route: Route) -> Self {
        Self::with(name, route, Vec::new()).await
    }

    /// The aggregator has variables in its environment.
    async fn with(name: &str, route: Route, environment: Vec<(String, String)>) -> Self {
        let file = repository().join("examples").join(name);
        check_config(&file);
        let config = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        Self::of(config, route, environment).await
    }

    /// The configuration of an example, with these filters before Weir.
    async fn behind(name: &str, before: Vec<Value>) -> Self {
        let file = repository().join("examples").join(name);
        check_config(&file);
        let config = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        Self::started(config, EnvoyOptions { before, ..EnvoyOptions::default() }, Vec::new()).await
    }

    async fn of(config: Value, route: Route, environment: Vec<(String, String)>) -> Self {
        Self::started(config, EnvoyOptions { route, ..EnvoyOptions::default() }, environment).await
    }

    async fn started(mut config: Value, envoy: EnvoyOptions, environment: Vec<(String, String)>) -> Self {
        for rule in config["rules"].as_array_mut().unwrap() {
            // Long timeouts, because a busy machine delays responses. Those of windows may be no longer.
            rule["timeout"] = if rule["algorithm"].is_null() { "1s" } else { "5s" }.into();
        }
        let options = AggregatorOptions { environment, ..AggregatorOptions::default() };
        let aggregator = Aggregator::start(options).await.unwrap();
        let options = EnvoyOptions {
            filter: Filter::Weir(Weir::new(binaries::filter().unwrap(), config)),
            aggregator_ports: vec![aggregator.grpc_port()],
            access_log: true,
            environment: vec![("WEIR_HASH_KEY".into(), HASH_KEY.into())],
            ..envoy
        };
        let envoy = Envoy::start(options).await.unwrap();
        // One stream of the worker, and one of the main thread.
        for streams in ["wasmcustom.weir_streams_connected", "wasmcustom.weir_streams_settled"] {
            envoy.wait_stat(streams, SOON, |streams| streams == 2).await.unwrap();
        }
        Self { envoy, aggregator }
    }

    async fn send(&self, request: Request) -> Response {
        self.envoy.send(request).await.unwrap()
    }

    async fn begin_window(&self, window_s: u64) {
        begin_window(&self.envoy, window_s).await;
    }

    /// How many of `requests` requests pass, each from the address that `address` returns.
    async fn passed_of(&self, requests: u64, address: impl Fn(u64) -> String + Send + Sync + 'static) -> u64 {
        let target = vec![self.envoy.address()];
        let request = move |n| (0, Request::get("/").header("x-forwarded-for", address(n)));
        let report = load::run(LoadPlan::of(target, 4, requests, request)).await.unwrap();
        assert_eq!(report.count(200) + report.count(429), requests, "{report:?}");
        report.count(200)
    }

    /// How many of so many requests with an API key pass.
    async fn passed_as(&self, requests: u64, key: &'static str) -> u64 {
        let request = move |_| (0, Request::get("/").header("x-api-key", key));
        let report = load::run(LoadPlan::of(vec![self.envoy.address()], 4, requests, request)).await.unwrap();
        assert_eq!(report.count(200) + report.count(429), requests, "{report:?}");
        report.count(200)
    }

    /// Waits until the rule has this outcome `expected` times.
    async fn decisions(&self, rule: &str, outcome: &str, expected: u64) {
        let name = format!("wasmcustom.weir_decisions_total.rule.{rule}.outcome.{outcome}");
        self.envoy.wait_stat(&name, SOON, |count| count == expected).await.unwrap();
    }

    /// Waits until the access log contains these response code details, with or without a rule.
    async fn details(&self, expected: &str) {
        let is_it = |line: &Value| {
            line["details"].as_str().and_then(|details| details.split('[').next()) == Some(expected)
        };
        let shown = async || self.envoy.access_log().unwrap().iter().any(is_it);
        wait::until(expected, SOON, shown).await.unwrap();
    }
}

/// Waits until the current window of this length (which divides an hour) has room for a test, by Envoy's clock.
async fn begin_window(envoy: &Envoy, window_s: u64) {
    let has_room = async || {
        let date = envoy.admin_get("/ready").await.unwrap();
        // For example `Sat, 21 Nov 2026 03:48:45 GMT`.
        let time = date.header("date").unwrap().split(' ').nth(4).unwrap().to_owned();
        let parts: Vec<u64> = time.split(':').map(|part| part.parse().unwrap()).collect();
        (parts[1] * 60 + parts[2]) % window_s + ROOM_S < window_s
    };
    wait::until("a window with room", SOON, has_room).await.unwrap();
}

fn check_config(file: &Path) {
    run_aggregator("", &["check-config", file.to_str().unwrap()]);
}

fn read(name: &str) -> String {
    std::fs::read_to_string(repository().join(name)).unwrap()
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
