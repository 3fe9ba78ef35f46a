//! Exact limits: admitted requests and response headers, load on Redis, and requests that remain undecided.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use weir_envoy::http::{Request, Response};
use weir_envoy::load::{self, LoadPlan};
use weir_envoy::{
    Aggregator, AggregatorOptions, Envoy, EnvoyOptions, Filter, Redis, Reload, Weir, binaries, wait,
};

use super::common::{
    KEY, Region, SOON, came, config, connected, filter, get_as, idle, leave, rule, run_aggregator, sound,
    stats_of, sum_of, with,
};
use super::global::SharedDatabase;
use super::peers::{CONNECTIONS, Peers, Wiring};

/// The delay that a busy machine may add to a wait.
const SLACK: Duration = Duration::from_millis(1_000);

/// A log that denies on failure. Its timeout exceeds any delay of a busy machine.
fn log(name: &str, limit: u64) -> Value {
    let exact = json!({ "algorithm": "sliding_log", "timeout": "5s", "on_failure": "deny" });
    with(rule(name, limit), exact)
}

fn ledger(name: &str, zone: u32) -> Value {
    json!({ "name": name, "identifier": { "header": KEY }, "algorithm": "ledger", "zone": zone,
            "timeout": "5s", "on_failure": "deny" })
}

fn at(path: &str) -> Value {
    json!({ "match": { "path": { "prefix": path } } })
}

fn headers_on_allowed(rules: &[Value]) -> Value {
    with(config(rules), json!({ "responses": { "headers_on_allowed": true, "filter_state": true } }))
}

async fn timed(envoy: &Envoy, request: Request) -> (Response, Duration) {
    let started = Instant::now();
    let answer = envoy.send(request).await.unwrap();
    (answer, started.elapsed())
}

/// Sends one request for each case to a region that does not answer. `None` if this machine stalled: timeouts then fire
/// late and streams end early.
async fn all_wait(config: &Value, cases: &[(&str, u64, u16, &str)]) -> Option<Region> {
    let options = EnvoyOptions { access_log: true, ..EnvoyOptions::default() };
    let mut region = Region::start(1, options, config).await;
    region.aggregator.process().pause().await.unwrap();
    let mut in_time = true;
    for (path, timeout_ms, status, rule) in cases {
        let (answer, waited) = timed(region.envoy(), Request::get(path).header(KEY, "a")).await;
        println!("{path}: waited {waited:?}");
        assert_eq!(
            (answer.status, answer.header("x-ratelimit-undecided")),
            (*status, Some(*rule)),
            "{answer:?}"
        );
        assert_eq!(answer.header("x-ratelimit-limit"), None, "no count is shown: {answer:?}");
        assert_eq!(answer.header("retry-after"), (*status == 429).then_some("1"));
        let timeout = Duration::from_millis(*timeout_ms);
        in_time &= waited >= timeout && waited < timeout + SLACK;
    }
    in_time.then_some(region)
}

/// The stream is up but the region does not answer: each rule waits for its timeout and then applies `on_failure`.
/// Headers, metrics and access logs show that it is undecided.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn undecided_requests_follow_on_failure() {
    let open = with(with(log("open", 9), at("/open")), json!({ "timeout": "100ms" }));
    let open = with(open, json!({ "on_failure": "allow" }));
    let wary = with(with(log("wary", 9), at("/wary")), json!({ "timeout": "300ms" }));
    let config = headers_on_allowed(&[open, wary]);
    let cases = [("/open", 100, 200, "open"), ("/wary", 300, 429, "wary")];
    let mut attempts = 0;
    let mut region = loop {
        if let Some(region) = all_wait(&config, &cases).await {
            break region;
        }
        attempts += 1;
        assert!(attempts < 5, "never waited for exactly the timeout");
    };
    let written = async || region.envoy().access_log().unwrap().len() == 2;
    wait::until("the access log is written", SOON, written).await.unwrap();
    for (line, (_, _, status, rule)) in region.envoy().access_log().unwrap().iter().zip(cases) {
        assert_eq!((&line["status"], &line["rule"]), (&json!(status), &json!(rule)));
        assert_eq!(line["outcome"], "undecided");
        assert_eq!(line["details"] == format!("weir_undecided[{rule}]"), status == 429, "{line}");
    }
    region.counted(2).await;
    let timeouts = "wasmcustom.weir_exact_results_total.result.timeout";
    region.envoy().wait_stat(timeouts, SOON, |timeouts| timeouts == 2).await.unwrap();
    for (_, _, _, rule) in cases {
        let name = format!("wasmcustom.weir_decisions_total.rule.{rule}.outcome.undecided");
        region.envoy().wait_stat(&name, SOON, |undecided| undecided == 1).await.unwrap();
    }
    // After some time without a response, requests no longer wait for the region.
    let exact_unsent = async || {
        region.envoy().send(Request::get("/open").header(KEY, "a")).await.unwrap();
        sum_of(region.envoy(), "wasmcustom.weir_exact_unsent_total").await > 0
    };
    wait::until("no exact request is sent", SOON, exact_unsent).await.unwrap();
    region.aggregator.process().resume().unwrap();
    region.is_sound().await;
}

/// The usual module does not receive responses, so it only adds headers to the responses that it writes itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_module_without_responses_still_denies_and_counts() {
    let open = with(log("open", 9), json!({ "timeout": "50ms", "on_failure": "allow" }));
    let mut region = Region::start(1, EnvoyOptions::default(), &config(&[open])).await;
    region.aggregator.process().pause().await.unwrap();
    let answer = region.envoy().send(get_as("a")).await.unwrap();
    assert_eq!((answer.status, answer.header("x-ratelimit-undecided")), (200, None));
    let counted = "wasmcustom.weir_decisions_total.rule.open.outcome.undecided";
    region.envoy().wait_stat(counted, SOON, |undecided| undecided == 1).await.unwrap();
    region.aggregator.process().resume().unwrap();
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_requests_are_answered_when_the_aggregator_dies() {
    let patient = with(log("r", 9), json!({ "timeout": "10s" }));
    let mut region = Region::start(1, EnvoyOptions::default(), &config(&[patient])).await;
    region.aggregator.process().pause().await.unwrap();
    let address = region.envoy().address();
    let waiting = tokio::spawn(async move {
        let started = Instant::now();
        let answer = weir_envoy::http::send(address, get_as("a")).await.unwrap();
        (answer, started.elapsed())
    });
    let requests = "wasmcustom.weir_exact_requests_total";
    region.envoy().wait_stat(requests, SOON, |requests| requests == 1).await.unwrap();
    region.aggregator.process().kill().unwrap();
    let (answer, waited) = waiting.await.unwrap();
    assert_eq!((answer.status, answer.header("x-ratelimit-undecided")), (429, Some("r")), "{answer:?}");
    assert!(waited < Duration::from_secs(9), "not by its timeout: {waited:?}");
    let broken = stats_of(region.envoy(), "wasmcustom.weir_exact_results_total.result.broken").await;
    println!("answered after {waited:?}, {broken:?}");
    let (answer, _) = timed(region.envoy(), get_as("a")).await;
    assert_eq!((answer.status, answer.header("x-ratelimit-undecided")), (429, Some("r")), "{answer:?}");
    region.is_sound().await;
}

/// Some waiting clients disconnect; the others are served, and no request hangs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_leave_while_they_wait_affect_no_other() {
    let open = with(log("open", 100), json!({ "timeout": "2s", "on_failure": "allow" }));
    let mut region = Region::start(1, EnvoyOptions::default(), &config(&[open])).await;
    region.aggregator.process().pause().await.unwrap();
    let address = region.envoy().address();
    let mut leaving = Vec::new();
    for _ in 0..4 {
        let mut connection = TcpStream::connect(address).await.unwrap();
        connection.write_all(b"GET / HTTP/1.1\r\nhost: h\r\nx-key: a\r\n\r\n").await.unwrap();
        leaving.push(connection);
    }
    let staying = LoadPlan::of(vec![address], 4, 4, |_| (0, get_as("a")));
    let departures = async {
        came(region.envoy(), 8).await;
        leave(region.envoy(), leaving).await;
    };
    let (report, ()) = tokio::join!(load::run(staying), departures);
    let report = report.unwrap();
    assert_eq!((report.count(200), report.errors), (4, 0), "{report:?}");
    idle(region.envoy()).await;
    region.aggregator.process().resume().unwrap();
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_needs_the_module_with_responses() {
    let options = EnvoyOptions { reloadable: true, ..EnvoyOptions::default() };
    let mut region = Region::start(1, options, &config(&[rule("r", 3)])).await;
    let ledger = config(&[rule("r", 3), ledger("cards", 7)]);
    let without_responses =
        Weir { config: ledger.clone(), ..Weir::new(binaries::filter().unwrap(), config(&[])) };
    assert_eq!(region.envoys[0].reload(Filter::Weir(without_responses)).await.unwrap(), Reload::Rejected);
    let log = region.envoy().log().unwrap();
    assert!(log.contains("rules[1].algorithm: responses carry a ledger's transaction"), "{log}");
    assert_eq!(region.envoys[0].reload(filter(&ledger)).await.unwrap(), Reload::Accepted);
}

fn number(answer: &Response, header: &str) -> u64 {
    answer.header(header).unwrap_or_else(|| panic!("no {header}: {answer:?}")).parse().unwrap()
}

/// Two Envoys and two aggregators together pass exactly the limit, at any concurrency.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_is_exact_over_envoys_and_aggregators() {
    const LIMIT: u64 = 100;
    for wiring in [Wiring::Crossed, Wiring::Apart] {
        let (peers, _redis) = Peers::start(wiring, &headers_on_allowed(&[log("r", LIMIT)])).await;
        let first = peers.envoys[0].send(get_as("a")).await.unwrap();
        assert_eq!((first.status, number(&first, "x-ratelimit-remaining")), (200, LIMIT - 1), "{first:?}");
        let addresses = peers.envoys.iter().map(Envoy::address).collect();
        let plan = LoadPlan::of(addresses, CONNECTIONS, 10 * LIMIT, |n| ((n % 2) as usize, get_as("a")));
        let report = load::run(plan).await.unwrap();
        println!("{wiring:?}: {report:?}");
        assert_eq!((report.count(200), report.count(429)), (LIMIT - 1, 9 * LIMIT + 1), "{report:?}");
        for envoy in &peers.envoys {
            let denied = envoy.send(get_as("a")).await.unwrap();
            assert_eq!((denied.status, denied.header("x-ratelimit-undecided")), (429, None), "{denied:?}");
            assert_eq!(
                (number(&denied, "x-ratelimit-limit"), number(&denied, "x-ratelimit-remaining")),
                (LIMIT, 0)
            );
            assert!(number(&denied, "retry-after") >= 1);
            assert_eq!(envoy.send(get_as("b")).await.unwrap().status, 200, "another client");
        }
        peers.are_sound().await;
    }
}

/// Workers cache the denials of a log: even a flood of requests causes few calls to Redis.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_flood_spares_redis() {
    const FLOOD: u64 = 20_000;
    let (peers, redis) = Peers::start(Wiring::Crossed, &config(&[log("r", 3)])).await;
    for _ in 0..4 {
        peers.envoys[0].send(get_as("a")).await.unwrap();
    }
    let before = scripts(&redis).await;
    let addresses = peers.envoys.iter().map(Envoy::address).collect();
    let plan = LoadPlan::of(addresses, CONNECTIONS, FLOOD, |n| ((n % 2) as usize, get_as("a")));
    let report = load::run(plan).await.unwrap();
    let during = scripts(&redis).await - before;
    let (mut requests, mut spared) = (0, 0);
    let counted = async || {
        (requests, spared) = (0, 0);
        for envoy in &peers.envoys {
            requests += sum_of(envoy, "wasmcustom.weir_exact_requests_total").await;
            spared += sum_of(envoy, "wasmcustom.weir_exact_cached_denials_total").await;
        }
        requests + spared == FLOOD + 4
    };
    wait::until("every request is counted", SOON, counted).await.unwrap();
    println!(
        "{FLOOD} denied: {requests} exact requests, {spared} spared, {during} scripts in Redis, {report:?}"
    );
    assert_eq!(report.count(429), FLOOD, "{report:?}");
    // Each worker may query once per connection before it has received the first denial, and repeats queries from time
    // to time.
    let seconds = report.elapsed.as_secs() + 1;
    let again = 4 * (seconds / 5 + 1);
    assert!(requests <= 4 + 4 * CONNECTIONS as u64 + again, "{requests} exact requests");
    // The aggregators poll Redis all the time.
    assert!(during < FLOOD / 50 + 40 * seconds, "{during} scripts");
    peers.are_sound().await;
}

/// Number of scripts that a Redis has run.
async fn scripts(redis: &Redis) -> u64 {
    let info = redis.command("INFO commandstats").await.unwrap();
    let calls = info.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="));
    let scripts = calls.filter(|(name, _)| name.starts_with("eval") || name.starts_with("fcall"));
    scripts.map(|(_, rest)| rest.split(',').next().unwrap().parse::<u64>().unwrap()).sum()
}

/// A request denied by a window is not charged to the log, and a request denied by the log is not charged to the
/// window.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_and_logs_are_charged_together_or_not_at_all() {
    let both = with(with(rule("window", 4), at("/both")), json!({ "on_failure": "deny" }));
    let (peers, _redis) = Peers::start(Wiring::Crossed, &config(&[both, log("log", 10)])).await;
    let addresses: Vec<_> = peers.envoys.iter().map(Envoy::address).collect();
    let run = async |path: &'static str| {
        let plan = LoadPlan::of(addresses.clone(), CONNECTIONS, 200, move |n| {
            ((n % 2) as usize, Request::get(path).header(KEY, "a"))
        });
        load::run(plan).await.unwrap().count(200)
    };
    let passed = run("/both").await;
    assert!((1..=4).contains(&passed), "{passed} passed both");
    // Charges of requests that a window then denied are refunded.
    let mut more = 0;
    let used_up = async || {
        more += run("/log").await;
        passed + more == 10
    };
    wait::until("the log has passed what it can", SOON, used_up).await.unwrap();
    assert_eq!(run("/log").await, 0);
    peers.are_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shadow_log_is_counted_and_denies_nothing() {
    let shadow = with(log("watched", 3), json!({ "shadow_mode": true }));
    let (peers, _redis) = Peers::start(Wiring::Crossed, &config(&[shadow])).await;
    for _ in 0..8 {
        assert_eq!(peers.envoys[0].send(get_as("a")).await.unwrap().status, 200);
    }
    for (outcome, times) in [("allowed", 3), ("shadow_denied", 5)] {
        let name = format!("wasmcustom.weir_decisions_total.rule.watched.outcome.{outcome}");
        peers.envoys[0].wait_stat(&name, SOON, |count| count == times).await.unwrap();
    }
    peers.are_sound().await;
}

/// Every attempt is recorded, and its response has the transaction's number, whether it passes or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_returns_every_transaction() {
    let database = SharedDatabase::mariadb().await;
    run_aggregator(&database.url(), &["migrate"]);
    run_aggregator(&database.url(), &["zones", "set", "--zone", "7", "--rate", "5", "--window", "1h"]);
    let options = AggregatorOptions {
        environment: vec![("WEIR_DATABASE_URL".to_owned(), database.url())],
        ..AggregatorOptions::default()
    };
    let aggregator = Aggregator::start(options).await.unwrap();
    let envoy = Envoy::start(EnvoyOptions {
        filter: filter(&config(&[ledger("cards", 7)])),
        aggregator_ports: vec![aggregator.grpc_port()],
        ..EnvoyOptions::default()
    });
    let envoy = envoy.await.unwrap();
    connected(&envoy).await;
    let mut transactions = Vec::new();
    for attempt in 0..8 {
        let answer = envoy.send(get_as("alice")).await.unwrap();
        assert_eq!(answer.status, if attempt < 5 { 200 } else { 429 }, "{answer:?}");
        transactions.push(number(&answer, "x-ratelimit-transaction"));
        assert_eq!(answer.header("x-ratelimit-limit"), (attempt >= 5).then_some("5"), "{answer:?}");
        if attempt >= 5 {
            assert!((1..=3_600).contains(&number(&answer, "retry-after")));
        }
    }
    assert!(transactions.windows(2).all(|pair| pair[0] < pair[1]), "{transactions:?}");
    assert_eq!(envoy.send(get_as("bob")).await.unwrap().status, 200, "another bucket");
    sound(&envoy).await;
}
