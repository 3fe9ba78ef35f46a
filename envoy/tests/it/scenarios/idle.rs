//! Envoys without requests: they ping their aggregator once a second, and their first requests are decided by fresh counts.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use weir_envoy::{EnvoyOptions, wait};

use super::common::{Region, SOON, config, get_as, rule, sum_of, threads};

const LIMIT: u64 = 10;
const WORKERS: u64 = 2;
/// The time in which pings are counted: one of a stream in each second.
const LOOK: Duration = Duration::from_secs(4);

/// Frames that the aggregator has received.
async fn frames(region: &Region) -> u64 {
    let text = region.aggregator.admin_get("/metrics").await.unwrap().text();
    let value = text.lines().find_map(|line| line.strip_prefix("weir_aggregator_frame_seconds_count "));
    value.expect("the metric").parse().unwrap()
}

/// Waits until all streams of the region are idle. Returns the frames of a stream in a second.
async fn rests(region: &Region) -> f64 {
    let streams = (region.envoys.len() as u64 * threads(WORKERS)) as f64;
    let mut rate = f64::MAX;
    let is_idle = async || {
        let (began, before) = (Instant::now(), frames(region).await);
        sleep(LOOK).await;
        let grown = frames(region).await - before;
        rate = grown as f64 / began.elapsed().as_secs_f64() / streams;
        rate < 2.0
    };
    wait::until("the Envoys are idle", 3 * SOON, is_idle).await.unwrap();
    rate
}

/// Sends requests until one is denied; returns how many passed.
async fn use_up(region: &Region, envoy: usize, most: u64) -> u64 {
    for passed in 0..most {
        let response = region.envoys[envoy].send(get_as("a")).await.unwrap();
        if response.status != 200 {
            assert_eq!(response.status, 429);
            return passed;
        }
    }
    most
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_envoy_pings_once_a_second_and_decides_its_first_request_by_fresh_counts() {
    let options = EnvoyOptions { concurrency: WORKERS as u32, ..EnvoyOptions::default() };
    let region = Region::start(2, options, &config(&[rule("r", LIMIT)])).await;
    assert_eq!(use_up(&region, 0, 2).await, 2);
    region.settles_at("r", "a", 2).await;

    let rate = rests(&region).await;
    println!("{rate:.2} frames a second of an idle stream");
    // They stay connected, and count as alive.
    let text = region.aggregator.admin_get("/metrics").await.unwrap().text();
    assert!(text.contains("\nweir_aggregator_live_nodes 2\n"), "{text}");

    // The other Envoy uses more meanwhile; the first one is idle still.
    assert_eq!(use_up(&region, 1, 3).await, 3);
    region.settles_at("r", "a", 5).await;
    rests(&region).await;
    let queries = sum_of(&region.envoys[0], "wasmcustom.weir_queries_total").await;
    assert_eq!(use_up(&region, 0, 2 * LIMIT).await, LIMIT - 5, "what is left of the region's limit");
    let queried = async || sum_of(&region.envoys[0], "wasmcustom.weir_queries_total").await > queries;
    wait::until("the first request has queried", SOON, queried).await.unwrap();
    region.settles_at("r", "a", LIMIT).await;
    region.is_sound().await;
}
