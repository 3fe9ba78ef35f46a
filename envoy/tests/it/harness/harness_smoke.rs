//! The harness with real Envoys, without Weir; the other tests depend on it.

use std::cmp::Ordering;
use std::time::Duration;

use rustix::process::{Pid, test_kill_process};
use weir_envoy::http::Request;
use weir_envoy::load::{self, LoadPlan};
use weir_envoy::{Clock, EchoUpstream, Envoy, EnvoyOptions, Filter, Reload, Route, Weir};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_reaches_the_echo_and_returns() {
    let upstream = EchoUpstream::start(0).await.unwrap();
    let route = Route::Upstream(upstream.port());
    let envoy =
        Envoy::start(EnvoyOptions { route, access_log: true, ..EnvoyOptions::default() }).await.unwrap();

    let request = Request::post("/a/b?c=d", "body").header("x-api-key", "k").header("x-bytes", b"\xff\xfe");
    let answer = envoy.send(request).await.unwrap();
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let echo = answer.json().unwrap();
    assert_eq!((&echo["method"], &echo["path"]), (&"POST".into(), &"/a/b?c=d".into()));
    assert_eq!(echo["headers"]["x-api-key"], "k");

    assert_eq!(envoy.stat("http.ingress.downstream_rq_2xx").await.unwrap(), 1);
    assert!(envoy.memory().await.unwrap()["allocated"] > 1_000_000);
    assert!(envoy.config_dump().await.unwrap()["configs"].is_array());
    weir_envoy::wait::until("the access log is written", Duration::from_secs(10), async || {
        envoy.access_log().unwrap().len() == 1
    })
    .await
    .unwrap();
    assert_eq!(envoy.access_log().unwrap()[0]["status"], 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_is_counted_exactly() {
    let filter = Filter::Local { tokens: 100 };
    let mut envoy =
        Envoy::start(EnvoyOptions { filter, concurrency: 2, ..EnvoyOptions::default() }).await.unwrap();
    let cpu_before = envoy.process().cpu_time().unwrap();

    let report = load::run(LoadPlan::new(envoy.address(), 8, 5_000, ("x-api-key", "k"))).await.unwrap();
    assert_eq!((report.count(200), report.count(429), report.errors), (100, 4_900, 0), "{report:?}");
    assert!(report.latency(0.5) <= report.latency(0.99));
    println!("{:.0} requests a second, p99 {:?}", report.per_second(), report.latency(0.99));

    assert!(envoy.process().cpu_time().unwrap() > cpu_before);
    assert!(envoy.process().resident_bytes().unwrap() > 1_000_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_is_reloaded_or_refused() {
    let options = EnvoyOptions { reloadable: true, ..EnvoyOptions::default() };
    let mut envoy = Envoy::start(options).await.unwrap();
    assert_eq!(envoy.get("/", &[]).await.unwrap().status, 200);

    let nothing_passes = Filter::Local { tokens: 1 };
    assert_eq!(envoy.reload(nothing_passes).await.unwrap(), Reload::Accepted);
    // A worker may still use the previous listener when the main thread has accepted the new one.
    let limited = async || envoy.get("/", &[]).await.unwrap().status == 429;
    weir_envoy::wait::until("the new listener serves", Duration::from_secs(10), limited).await.unwrap();
    let report = load::run(LoadPlan::new(envoy.address(), 1, 10, ("x-api-key", "k"))).await.unwrap();
    assert_eq!(report.count(429), 10, "{report:?}");

    let missing = Filter::Weir(Weir::new("/nowhere.wasm".into(), serde_json::json!({})));
    assert_eq!(envoy.reload(missing).await.unwrap(), Reload::Rejected);
    assert_eq!(envoy.get("/", &[]).await.unwrap().status, 429, "the listener before stays in force");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_can_be_frozen_restarted_and_leaves_nothing() {
    let mut envoy = Envoy::start(EnvoyOptions::default()).await.unwrap();
    let first = envoy.process().pid();

    envoy.process().pause().await.unwrap();
    let waited = tokio::time::timeout(Duration::from_millis(300), envoy.get("/", &[])).await;
    assert!(waited.is_err(), "a frozen Envoy answered");
    envoy.process().resume().unwrap();
    assert_eq!(envoy.get("/", &[]).await.unwrap().status, 200);

    envoy.restart().await.unwrap();
    let second = envoy.process().pid();
    assert_eq!(envoy.get("/", &[]).await.unwrap().status, 200);
    assert!(envoy.process().terminate(Duration::from_secs(10)).await.unwrap().success());

    envoy.restart().await.unwrap();
    let third = envoy.process().pid();
    let folder = envoy.folder().to_owned();
    drop(envoy);
    for pid in [first, second, third] {
        assert!(!exists(pid), "process {pid} is still there");
    }
    assert!(!folder.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_envoy_that_cannot_start_returns_its_log() {
    let filter = Filter::Weir(Weir::new("/nowhere.wasm".into(), serde_json::json!({})));
    let options = EnvoyOptions { filter, ..EnvoyOptions::default() };
    let error = format!("{:#}", Envoy::validate(options.clone()).unwrap_err());
    assert!(error.contains("/nowhere.wasm"), "{error}");
    let Err(error) = Envoy::start(options).await else { panic!("it started") };
    assert!(format!("{error:#}").contains("/nowhere.wasm"), "{error:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_envoys_clock_can_be_moved() {
    let clock = Clock::new().unwrap();
    let environment = clock.environment().unwrap();
    let envoy = Envoy::start(EnvoyOptions { environment, ..EnvoyOptions::default() }).await.unwrap();
    let this_year = year_of(&envoy).await;
    for (offset_days, expected) in [(400, Ordering::Greater), (0, Ordering::Equal), (-400, Ordering::Less)] {
        clock.set(offset_days * 86_400);
        let moved = async || year_of(&envoy).await.cmp(&this_year) == expected;
        weir_envoy::wait::until("the clock moves", Duration::from_secs(10), moved).await.unwrap();
    }
}

#[tokio::test]
async fn a_load_on_a_dead_target_counts_errors() {
    let unreachable = weir_envoy::ports::local(weir_envoy::ports::free().unwrap());
    let report = load::run(LoadPlan::new(unreachable, 2, 10, ("x-api-key", "k"))).await.unwrap();
    assert_eq!((report.errors, report.statuses.len()), (10, 0));
    assert!(report.first_error.unwrap().contains("connecting to"));
}

/// From the `date` header of a response, for example `Sat, 21 Nov 2026 03:48:45 GMT`.
async fn year_of(envoy: &Envoy) -> u32 {
    let answer = envoy.get("/", &[]).await.unwrap();
    answer.header("date").unwrap().split(' ').nth(3).unwrap().parse().unwrap()
}

fn exists(pid: u32) -> bool {
    Pid::from_raw(pid.cast_signed()).is_some_and(|pid| test_kill_process(pid).is_ok())
}
