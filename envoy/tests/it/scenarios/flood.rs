//! An endless flood of random identifiers: memory stays bounded, and a client that has used up its limit gets no new
//! budget.

use serde_json::{Value, json};
use weir_envoy::load::{self, LoadPlan};
use weir_envoy::{EnvoyOptions, wait};

use super::common::{Region, SOON, config, get_as, rule, stats_of, with};

const CLIENTS: u64 = 20;
const LIMIT: u64 = 3;
/// Keys that fit the table.
const TABLE_KEYS: u64 = 1_024 * 8;
/// Keys of the overflow cells.
const OVERFLOW_KEYS: u64 = 64;
const GROWTH: u64 = 32 * 1024 * 1024;
/// This many keys fit the table at once, however they are distributed over the buckets.
const CHUNK: u64 = 3_000;
const REQUESTS: &str = "http.ingress.downstream_rq_total";
const DECISIONS: &str = "wasmcustom.weir_decisions_total";

fn limits() -> Value {
    let rule = with(rule("r", LIMIT), json!({ "unknown_key": "assume_low" }));
    with(config(&[rule]), json!({ "table": { "max_keys": 8_192 } }))
}

/// Sends each request as another client; returns how many were denied.
async fn flood(region: &Region, requests: u64, salt: u64) -> u64 {
    let address = region.envoy().address();
    let plan = LoadPlan::of(vec![address], 8, requests, move |number| {
        let random = (number ^ salt << 40).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (0, get_as(&format!("flood-{random:016x}")))
    });
    let report = load::run(plan).await.unwrap();
    println!("flood: {report:?}");
    assert_eq!(report.count(200) + report.count(429), requests, "{report:?}");
    report.count(429)
}

/// The same, no faster than the region acknowledges: a key whose use is not acknowledged is not evicted.
async fn acknowledged_flood(region: &Region, requests: u64, salt: u64) -> u64 {
    let mut refused = 0;
    for chunk in 0..requests / CHUNK {
        refused += flood(region, CHUNK, salt << 8 | chunk).await;
        all_sent(region).await;
    }
    refused
}

/// Waits until the region has acknowledged everything. Workers add to the metrics in batches.
async fn all_sent(region: &Region) {
    let requests = region.envoy().stat(REQUESTS).await.unwrap();
    let acknowledged = async || {
        let stats = region.envoy().stats().await.unwrap();
        let decisions: u64 =
            stats.iter().filter(|(name, _)| name.starts_with(DECISIONS)).map(|(_, count)| count).sum();
        decisions >= requests && stats["wasmcustom.weir_report_queue"] == 0
    };
    wait::until("everything is acknowledged", SOON, acknowledged).await.unwrap();
}

async fn use_up(region: &Region) {
    for client in 0..CLIENTS {
        for _ in 0..LIMIT {
            assert_eq!(region.envoy().send(get_as(&format!("client-{client}"))).await.unwrap().status, 200);
        }
    }
    region.settles_at("r", &format!("client-{}", CLIENTS - 1), LIMIT).await;
}

/// Clients that pass although their limits are used up.
async fn fresh(region: &Region) -> u64 {
    let mut fresh = 0;
    for client in 0..CLIENTS {
        fresh +=
            u64::from(region.envoy().send(get_as(&format!("client-{client}"))).await.unwrap().status == 200);
    }
    fresh
}

async fn assert_bounded(region: &mut Region, before: u64) {
    let after = region.envoys[0].process().resident_bytes().unwrap();
    let figures = stats_of(region.envoy(), "wasmcustom.weir_table_").await;
    println!("resident {before} to {after}, {figures:?}");
    assert!(after.saturating_sub(before) < GROWTH, "{before} to {after}");
    let keys = region.envoy().stat("wasmcustom.weir_table_keys").await.unwrap();
    assert!(keys <= TABLE_KEYS + OVERFLOW_KEYS, "{keys} in the table");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_identifiers_resets_no_limit() {
    let options = EnvoyOptions { concurrency: 2, ..EnvoyOptions::default() };
    let mut region = Region::start(1, options, &limits()).await;
    use_up(&region).await;
    // Memory does not grow once the table is full.
    let mut refused = acknowledged_flood(&region, 15_000, 1).await;
    let before = region.envoys[0].process().resident_bytes().unwrap();
    refused += acknowledged_flood(&region, 60_000, 2).await;
    // Each refused client shares an overflow cell: its bucket was full of keys that the region had not acknowledged yet.
    let overflows = region.envoy().stat("wasmcustom.weir_table_overflows_total").await.unwrap();
    assert!(refused <= overflows, "{refused} were refused, {overflows} shared an overflow cell");
    assert_eq!(fresh(&region).await, 0, "clients got fresh limits");
    assert_bounded(&mut region, before).await;
    assert!(region.envoy().stat("wasmcustom.weir_table_evictions_total").await.unwrap() > 0);
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_without_an_aggregator_is_bounded() {
    let mut region = Region::start(1, EnvoyOptions::default(), &limits()).await;
    use_up(&region).await;
    region.aggregator.process().kill().unwrap();
    flood(&region, 10_000, 1).await;
    let before = region.envoys[0].process().resident_bytes().unwrap();
    flood(&region, 20_000, 2).await;
    assert_bounded(&mut region, before).await;
    assert_eq!(fresh(&region).await, 0, "clients got fresh limits");
    region.aggregator.restart().await.unwrap();
    super::common::connected(region.envoy()).await;
    let answers = region.envoy().send(get_as("another")).await.unwrap();
    assert!([200, 429].contains(&answers.status), "{answers:?}");
    region.is_sound().await;
}
