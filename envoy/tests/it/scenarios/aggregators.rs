//! Several aggregators behind one cluster without a shared store, as while their Redis is unavailable. The counts of
//! one are lost with it unless the Envoys resend them to another.

use std::time::Duration;

use weir_envoy::load::{self, LoadPlan};
use weir_envoy::{Aggregator, AggregatorOptions, Envoy, EnvoyOptions, Proxy, bootstrap, ports, wait};

use super::common::{KEY, SOON, STALL, config, connected, filter, get_as, rule, sound, total_in};

const LIMIT: u64 = 200;
const WORKERS: u32 = 3;

/// Two aggregators, and an Envoy with streams to both.
async fn split() -> ([Aggregator; 2], Envoy) {
    let one = Aggregator::start(AggregatorOptions::default()).await.unwrap();
    let other = Aggregator::start(AggregatorOptions::default()).await.unwrap();
    let options = EnvoyOptions {
        filter: filter(&config(&[rule("r", LIMIT)])),
        concurrency: WORKERS,
        aggregator_ports: vec![one.grpc_port(), other.grpc_port()],
        ..EnvoyOptions::default()
    };
    let envoy = Envoy::start(options).await.unwrap();
    connected(&envoy).await;
    ([one, other], envoy)
}

/// Sends `requests` requests of one client; returns how many pass.
async fn passing(envoy: &Envoy, requests: u64) -> u64 {
    let plan = LoadPlan::new(envoy.address(), 8, requests, (KEY, "a"));
    let report = load::run(plan.rate(400.0)).await.unwrap();
    assert_eq!(report.count(200) + report.count(429), requests, "{report:?}");
    // With few requests one delay affects a large share of them, so only the median has a tight bound.
    assert!(report.latency(0.5) < Duration::from_millis(500), "{report:?}");
    assert!(report.latency(1.0) < STALL, "{report:?}");
    report.count(200)
}

async fn settles_at(aggregator: &Aggregator, expected: u64) {
    let settled = async || total_in(aggregator, "r", "a").await == expected;
    if wait::until("it has all counts", SOON, settled).await.is_err() {
        panic!("it counts {}, not {expected}", total_in(aggregator, "r", "a").await);
    }
}

/// If either aggregator ends for good, the other receives all counts that it had acknowledged.
async fn check_death(victim: usize) {
    let ([one, other], envoy) = split().await;
    let (mut dead, left) = if victim == 0 { (one, other) } else { (other, one) };
    assert_eq!(passing(&envoy, 120).await, 120);
    dead.process().kill().unwrap();
    connected(&envoy).await;
    settles_at(&left, 120).await;
    assert_eq!(passing(&envoy, 300).await, LIMIT - 120);
    settles_at(&left, LIMIT).await;
    sound(&envoy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_of_two_aggregators_dies() {
    check_death(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_second_of_two_aggregators_dies() {
    check_death(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_aggregator_that_was_never_there_is_left_out() {
    let aggregator = Aggregator::start(AggregatorOptions::default()).await.unwrap();
    let options = EnvoyOptions {
        filter: filter(&config(&[rule("r", LIMIT)])),
        concurrency: WORKERS,
        aggregator_ports: vec![ports::free().unwrap(), aggregator.grpc_port()],
        ..EnvoyOptions::default()
    };
    let envoy = Envoy::start(options).await.unwrap();
    connected(&envoy).await;
    assert_eq!(passing(&envoy, 300).await, LIMIT);
    settles_at(&aggregator, LIMIT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_aggregator_behind_a_network_that_fails() {
    let aggregator = Aggregator::start(AggregatorOptions::default()).await.unwrap();
    let proxy = Proxy::start(ports::local(aggregator.grpc_port())).await.unwrap();
    let options = EnvoyOptions {
        filter: filter(&config(&[rule("r", LIMIT)])),
        aggregator_ports: vec![proxy.port()],
        ..EnvoyOptions::default()
    };
    let envoy = Envoy::start(options).await.unwrap();
    connected(&envoy).await;
    let streams = "wasmcustom.weir_streams_connected";
    let mut passed = passing(&envoy, 20).await;
    proxy.black_hole().await.unwrap();
    // Keepalive closes connections that transfer nothing.
    envoy.wait_stat(streams, SOON, |streams| streams == 0).await.unwrap();
    passed += passing(&envoy, 20).await;
    proxy.forward().await.unwrap();
    connected(&envoy).await;
    proxy.refuse().await.unwrap();
    proxy.cut();
    let refused = format!("cluster.{}.upstream_cx_connect_fail", bootstrap::AGGREGATOR_CLUSTER);
    envoy.wait_stat(&refused, SOON, |refused| refused > 0).await.unwrap();
    passed += passing(&envoy, 20).await;
    proxy.forward().await.unwrap();
    connected(&envoy).await;
    assert_eq!(passed, 60);
    settles_at(&aggregator, passed).await;
    assert_eq!(envoy.send(get_as("a")).await.unwrap().status, 200);
    sound(&envoy).await;
}
