//! One Envoy with several workers: a limit of N passes exactly N.

use serde_json::json;
use weir_envoy::http::Request;
use weir_envoy::load::{self, LoadPlan, LoadReport};
use weir_envoy::{Envoy, EnvoyOptions, wait};

use super::common::{Region, SOON, config, get_as, rule, vm_reloads, with};

const WORKERS: u32 = 2;
const CONNECTIONS: usize = 8;

fn options() -> EnvoyOptions {
    EnvoyOptions { concurrency: WORKERS, ..EnvoyOptions::default() }
}

async fn hammer(envoy: &Envoy, requests: u64, request: Request) -> LoadReport {
    let plan = LoadPlan::of(vec![envoy.address()], CONNECTIONS, requests, move |_| (0, request.clone()));
    load::run(plan).await.unwrap()
}

/// Sends `requests` requests of one client; exactly `limit` pass, and the region counts each of them.
async fn check(limit: u64, requests: u64) {
    let region = Region::start(1, options(), &config(&[rule("r", limit)])).await;
    let report = hammer(region.envoy(), requests, get_as("a")).await;
    println!("limit {limit}: {} of {requests} passed, {report:?}", report.count(200));
    assert_eq!((report.count(200), report.errors), (limit, 0), "{report:?}");
    assert_eq!(report.count(429), requests - limit);
    region.settles_at("r", "a", limit).await;
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_5_pass() {
    check(5, 5_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_1_000_pass() {
    check(1_000, 20_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_100_000_pass() {
    check(100_000, 120_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_rules_at_once_pass_the_least_of_their_limits() {
    let limits = [("a", 1_000), ("b", 1_200), ("c", 5_000), ("d", 100_000)];
    let rules = limits.map(|(name, limit)| rule(name, limit));
    let region = Region::start(1, options(), &config(&rules)).await;
    let report = hammer(region.envoy(), 20_000, get_as("k")).await;
    println!("four rules: {} of 20000 passed, {report:?}", report.count(200));
    assert_eq!((report.count(200), report.count(429)), (1_000, 19_000), "{report:?}");
    for (name, _) in limits {
        // A request that one rule denies is charged to no rule.
        region.settles_at(name, "k", 1_000).await;
    }
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn costs_of_7_pass_as_often_as_they_fit() {
    let rule = with(rule("r", 1_000), json!({ "cost": 7 }));
    let region = Region::start(1, options(), &config(&[rule])).await;
    let report = hammer(region.envoy(), 20_000, get_as("a")).await;
    println!("costs of 7: {} of 20000 passed, {report:?}", report.count(200));
    assert_eq!((report.count(200), report.count(429)), (1_000 / 7, 20_000 - 1_000 / 7), "{report:?}");
    region.settles_at("r", "a", 1_000 / 7 * 7).await;
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vm_that_dies_gives_nothing_back() {
    const LIMIT: u64 = 1_000;
    const REQUESTS: u64 = 20_000;
    let config = with(config(&[rule("r", LIMIT)]), json!({ "test_faults": true }));
    let region = Region::start(1, options(), &config).await;
    let envoy = region.envoy();
    let plan = LoadPlan::of(vec![envoy.address()], CONNECTIONS, REQUESTS, |number| {
        // In the middle of the admitted requests.
        let dies = number == LIMIT / 2;
        (0, if dies { get_as("a").header("x-weir-fault", "panic") } else { get_as("a") })
    });
    let report = load::run(plan).await.unwrap();
    println!("a VM killed: {} of {REQUESTS} passed, {report:?}", report.count(200));
    assert!(report.count(200) <= LIMIT, "{report:?}");
    assert!(report.count(503) >= 1 && report.errors == 0, "{report:?}");
    assert!(vm_reloads(envoy).await >= 1);
    let served = async || envoy.send(get_as("b")).await.unwrap().status == 200;
    wait::until("the worker serves again", SOON, served).await.unwrap();
    // Budget reserved by the dead VM counts as spent: the region's count covers all that passed, and never exceeds the
    // limit.
    let passed = report.count(200);
    let counted = async || (passed..=LIMIT).contains(&region.total("r", "a").await);
    wait::until("the region counts the dead worker's use", SOON, counted).await.unwrap();
}
