//! Requests that wait for their region: one query for each key, no longer than the rule's timeout, and without harm if
//! clients leave.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use weir_envoy::http::{Request, Response};
use weir_envoy::load::{self, LoadPlan};
use weir_envoy::{Envoy, EnvoyOptions, wait};

use super::common::{Region, SOON, came, config, get_as, idle, leave, rule, with};

/// The delay that a busy machine may add to a wait.
const SLACK: Duration = Duration::from_millis(500);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cold_key_is_queried_once() {
    let region = Region::start(2, EnvoyOptions::default(), &config(&[rule("r", 30)])).await;
    assert_eq!(region.envoys[0].send(get_as("a")).await.unwrap().status, 200);
    let others = LoadPlan::of(vec![region.envoys[1].address()], 16, 16, |_| (0, get_as("a")));
    assert_eq!(load::run(others).await.unwrap().count(200), 16);
    region.counted(17).await;
    for envoy in &region.envoys {
        envoy.wait_stat("wasmcustom.weir_queries_total.reason.cold", SOON, |cold| cold == 1).await.unwrap();
    }
    region.settles_at("r", "a", 17).await;
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_rule_waits_for_its_timeout() {
    let path = |prefix: &str| json!({ "match": { "path": { "prefix": prefix } } });
    // The cost is the whole limit: the amount reserved for a query must not deny its own request after a timeout.
    let short = with(with(rule("short", 1), path("/short")), json!({ "timeout": "50ms" }));
    let long = with(with(rule("long", 1), path("/long")), json!({ "timeout": "300ms" }));
    let config = config(&[short, long]);
    let mut attempts = 0;
    let mut region = loop {
        let mut region = Region::start(1, EnvoyOptions::default(), &config).await;
        region.aggregator.process().pause().await.unwrap();
        let mut in_time = true;
        for (path, timeout) in [("/short", 50), ("/long", 300)] {
            let timeout = Duration::from_millis(timeout);
            let (answer, waited) = timed(region.envoy(), Request::get(path).header("x-key", "a")).await;
            println!("{path}: waited {waited:?}");
            assert_eq!(answer.status, 200, "decided by the own counts");
            in_time &= waited >= timeout && waited < timeout + SLACK;
        }
        if in_time {
            break region;
        }
        // A machine that stalled lets timeouts fire late and streams end early.
        attempts += 1;
        assert!(attempts < 5, "never waited for exactly the timeout");
    };
    region.aggregator.process().resume().unwrap();
    region.settles_at("long", "a", 1).await;
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_may_deny_after_a_timeout() {
    let wary = with(rule("r", 9), json!({ "on_failure": "deny" }));
    let options = EnvoyOptions { access_log: true, ..EnvoyOptions::default() };
    let mut region = Region::start(1, options, &config(&[wary])).await;
    region.aggregator.process().pause().await.unwrap();
    let answer = region.envoy().send(get_as("a")).await.unwrap();
    assert_eq!((answer.status, answer.header("x-ratelimit-remaining")), (429, Some("9")), "{answer:?}");
    let written = async || !region.envoy().access_log().unwrap().is_empty();
    wait::until("the access log is written", SOON, written).await.unwrap();
    assert_eq!(region.envoy().access_log().unwrap()[0]["details"], "weir_undecided[r]");
    region.aggregator.process().resume().unwrap();
    let passes = async || region.envoy().send(get_as("a")).await.unwrap().status == 200;
    wait::until("the region answers again", SOON, passes).await.unwrap();
    region.settles_at("r", "a", 1).await;
    region.is_sound().await;
}

/// Some waiting clients disconnect, including the one whose request caused the query; the others are served.
async fn check_departures(resume: bool) {
    let mut region = Region::start(1, EnvoyOptions::default(), &config(&[rule("r", 100)])).await;
    region.aggregator.process().pause().await.unwrap();
    let address = region.envoy().address();
    let mut leaving = Vec::new();
    for _ in 0..4 {
        let mut connection = TcpStream::connect(address).await.unwrap();
        connection.write_all(b"GET / HTTP/1.1\r\nhost: h\r\nx-key: a\r\n\r\n").await.unwrap();
        leaving.push(connection);
        came(region.envoy(), leaving.len() as u64).await;
    }
    let staying = LoadPlan::of(vec![address], 4, 4, |_| (0, get_as("a")));
    let departures = async {
        came(region.envoy(), 8).await;
        leave(region.envoy(), leaving).await;
        if resume {
            region.aggregator.process().resume().unwrap();
        }
    };
    let (report, ()) = tokio::join!(load::run(staying), departures);
    let report = report.unwrap();
    println!("others left, resumed {resume}: {report:?}");
    assert_eq!((report.count(200), report.errors), (4, 0), "{report:?}");
    idle(region.envoy()).await;
    region.aggregator.process().resume().unwrap();
    // The clients that left were admitted before Envoy noticed, so they are charged; no client is charged twice.
    region.settles_at("r", "a", 8).await;
    assert_eq!(region.envoy().send(get_as("a")).await.unwrap().status, 200);
    region.settles_at("r", "a", 9).await;
    region.envoy().wait_stat("wasmcustom.weir_report_queue", SOON, |queue| queue == 0).await.unwrap();
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_leave_before_the_response_affect_no_other() {
    check_departures(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_leave_before_the_timeout_affect_no_other() {
    check_departures(false).await;
}

async fn timed(envoy: &Envoy, request: Request) -> (Response, Duration) {
    let started = Instant::now();
    let answer = envoy.send(request).await.unwrap();
    (answer, started.elapsed())
}
