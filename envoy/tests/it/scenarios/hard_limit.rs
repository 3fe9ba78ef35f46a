//! `hard_limit: true`: no window of any placement holds more than the limit, by the times at which requests were sent
//! and answered.

use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::sleep;
use weir_envoy::http::{Connection, Request};
use weir_envoy::load::{self, LoadPlan};
use weir_envoy::{Envoy, EnvoyOptions};

use super::common::{Region, config, rule, unix_ms, with};

const LIMIT: usize = 60;
const WINDOW: Duration = Duration::from_secs(3);
/// Envoy's clock follows the aggregator's with a difference of some milliseconds, so a window may be this much shorter
/// by another clock.
const CLOCKS: Duration = Duration::from_millis(50);
const CONNECTIONS: usize = 4;

/// An admitted request, which was decided between these two times.
#[derive(Clone, Copy, Debug)]
struct Passed {
    sent: Instant,
    answered: Instant,
}

/// A rule for requests with the header `by`, with the fields of `more`.
fn rule_by(name: &str, by: &str, limit: u64, more: Value) -> Value {
    with(
        with(rule(name, limit), json!({ "identifier": { "header": by }, "on_missing_identifier": "skip" })),
        more,
    )
}

/// The number of requests that certainly passed within one window's length, in the fullest such window.
fn worst(passed: &[Passed]) -> usize {
    let within = |begin: Instant| {
        let end = begin + WINDOW - CLOCKS;
        passed.iter().filter(|one| one.sent >= begin && one.answered <= end).count()
    };
    passed.iter().map(|one| within(one.sent)).max().unwrap_or(0)
}

/// Sends `count` requests over several connections, with a pause after each; returns those that passed.
async fn send(envoy: &Envoy, request: &Request, count: usize, pause: Duration) -> Vec<Passed> {
    let mut senders = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let (address, request) = (envoy.address(), request.clone());
        senders.spawn(async move {
            let mut connection = Connection::open(address).await.unwrap();
            let mut passed = Vec::new();
            for _ in 0..count / CONNECTIONS {
                let sent = Instant::now();
                let status = connection.send(request.clone()).await.unwrap().status;
                let answered = Instant::now();
                match status {
                    200 => passed.push(Passed { sent, answered }),
                    429 => {}
                    other => panic!("status {other}"),
                }
                sleep(pause).await;
            }
            passed
        });
    }
    senders.join_all().await.into_iter().flatten().collect()
}

/// Sends the whole limit just before a window ends, then ten times as much as could pass, for more than two windows.
/// `None` if this machine was too slow for the first part.
async fn attack(envoy: &Envoy, by: &str, client: &str) -> Option<Vec<Passed>> {
    const BEFORE_MS: u64 = 500;
    let window_ms = u64::try_from(WINDOW.as_millis()).unwrap();
    let until_end = || window_ms - unix_ms() % window_ms;
    let early = (until_end() + window_ms - BEFORE_MS) % window_ms;
    sleep(Duration::from_millis(early)).await;
    let ends_in = until_end();
    let began = unix_ms();
    let request = Request::get("/").header(by, client);
    let mut passed = send(envoy, &request, LIMIT, Duration::ZERO).await;
    if unix_ms() >= began + ends_in {
        return None;
    }
    assert_eq!(passed.len(), LIMIT, "nothing was used before");
    let pause = Duration::from_millis(20);
    let more = usize::try_from(window_ms * 9 / 4 / 20).unwrap() * CONNECTIONS;
    passed.extend(send(envoy, &request, more, pause).await);
    Some(passed)
}

/// The fullest window among the attacks for which this machine was fast enough; stops at the first attack that reaches
/// `expected`.
async fn worst_of_attack(envoy: &Envoy, by: &str, expected: usize) -> usize {
    let mut found = None;
    for attempt in 0..10 {
        if let Some(passed) = attack(envoy, by, &format!("attacker-{attempt}")).await {
            found = found.max(Some(worst(&passed)));
        }
        if found.is_some_and(|found| found >= expected) {
            break;
        }
    }
    found.unwrap_or_else(|| panic!("{LIMIT} requests took half a second ten times"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attack_on_a_windows_end_meets_the_hard_limit() {
    let limit = u64::try_from(LIMIT).unwrap();
    let rules = [
        rule_by("usual", "x-usual", limit, json!({ "window": "3s" })),
        rule_by("hard_limit", "x-hard-limit", limit, json!({ "window": "3s", "hard_limit": true })),
    ];
    let options = EnvoyOptions { concurrency: 2, ..EnvoyOptions::default() };
    let region = Region::start(1, options, &config(&rules)).await;
    let usual = worst_of_attack(region.envoy(), "x-usual", LIMIT * 3 / 2).await;
    let hard_limit = worst_of_attack(region.envoy(), "x-hard-limit", 0).await;
    println!("worst true window of {LIMIT}: {usual} by the average, {hard_limit} with a hard limit");
    assert!(usual * 2 >= LIMIT * 3, "{usual}: the attack is none");
    assert!(hard_limit <= LIMIT, "{hard_limit} of {LIMIT}");
    region.is_sound().await;
}

/// The number of requests at `times` that a single limiter with a hard limit admits: a window covers up to eleven
/// tenths, and each tenth counts in full.
fn passed_by_one(times: &[u64], limit: u64, window_ms: u64) -> u64 {
    let mut passed: Vec<u64> = Vec::new();
    for time in times {
        let cell = time / (window_ms / 10);
        let within = passed.iter().rev().take_while(|passed| **passed + 10 >= cell).count() as u64;
        if within < limit {
            passed.push(cell);
        }
    }
    passed.len() as u64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steady_traffic_gets_nine_tenths_of_a_hard_limit() {
    const PER_SECOND: u64 = 50;
    const WINDOWS: u64 = 11;
    let rules =
        [rule_by("hard_limit", "x-hard-limit", PER_SECOND, json!({ "window": "1s", "hard_limit": true }))];
    let options = EnvoyOptions { concurrency: 2, ..EnvoyOptions::default() };
    let region = Region::start(1, options, &config(&rules)).await;
    let request = Request::get("/").header("x-hard-limit", "a");
    let sent = 2 * PER_SECOND * WINDOWS;
    let times = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&times);
    let plan = LoadPlan::of(vec![region.envoy().address()], CONNECTIONS, sent, move |_| {
        seen.lock().unwrap().push(unix_ms());
        (0, request.clone())
    });
    let report = load::run(plan.rate(2.0 * PER_SECOND as f64)).await.unwrap();
    let passed = report.count(200);
    // Nine tenths of the requests that this machine sent in time and that a single limiter admits.
    let exact = passed_by_one(&times.lock().unwrap(), PER_SECOND, 1_000);
    println!("twice a limit of {PER_SECOND}: {passed} passed of {exact}, {report:?}");
    assert!(passed * 10 >= exact * 9, "{passed} of {exact}: {report:?}");
    // At most this many windows can be full within the elapsed time.
    let windows = report.elapsed.as_secs() + 1;
    assert!(passed <= PER_SECOND * windows, "{passed} in {windows} windows");
    region.is_sound().await;
}
