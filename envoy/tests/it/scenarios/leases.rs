//! An Envoy is killed while it holds a lease: what it had spent of it is lost at most, and what it had not spent is there for others.

use serde_json::json;
use weir_envoy::load::{self, LoadPlan};
use weir_envoy::{EnvoyOptions, wait};

use super::common::{Region, SOON, config, connected, get_as, rule, unanswered, with};

const LIMIT: u64 = 100_000;
const COST: u64 = 10;
/// A lease is at most this part of what is left.
const LEASE_PART: u64 = 64;
/// Requests of each step.
const STEP: u64 = 200;

/// Sends requests of one client to one Envoy, one after the other; returns what passed, as cost.
async fn spend(region: &Region, envoy: usize, key: &str, requests: u64) -> u64 {
    let (address, request) = (region.envoys[envoy].address(), get_as(key));
    let plan = LoadPlan::of(vec![address], 1, requests, move |_| (0, request.clone()));
    let report = load::run(plan).await.unwrap();
    assert_eq!(report.count(200) + report.count(429), requests, "{report:?}");
    report.count(200) * COST
}

/// Streams that the aggregator has open.
async fn streams(region: &Region) -> u64 {
    let text = region.aggregator.admin_get("/metrics").await.unwrap().text();
    let value = text.lines().find_map(|line| line.strip_prefix("weir_aggregator_streams "));
    value.expect("the metric").parse().unwrap()
}

/// Spends on an Envoy until its worker holds a lease of which something is spent, and kills the Envoy in that state. Returns the client,
/// what it spent, and what of it the region had counted before the lease.
async fn killed_with_a_lease(region: &mut Region) -> (String, u64, u64) {
    let of_one = streams(region).await / 2;
    for attempt in 0.. {
        let key = format!("k{attempt}");
        let before = spend(region, 0, &key, STEP).await;
        region.settles_at("r", &key, before).await;
        let spent = before + spend(region, 0, &key, STEP).await;
        assert_eq!(spent, 2 * STEP * COST, "all passes");
        // Whatever the worker still holds, it keeps.
        region.envoys[0].process().pause().await.unwrap();
        if region.total("r", &key).await < spent {
            region.envoys[0].process().kill().unwrap();
            let left = async || streams(region).await == of_one;
            wait::until("the aggregator has read all that was sent", SOON, left).await.unwrap();
            if region.total("r", &key).await < spent {
                return (key, spent, before);
            }
            region.envoys[0].restart().await.unwrap();
        } else {
            region.envoys[0].process().resume().unwrap();
        }
        connected(&region.envoys[0]).await;
    }
    unreachable!("an attempt follows each")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_envoy_killed_with_a_lease_loses_what_was_spent_of_it_and_holds_nothing_back() {
    let rule = with(rule("r", LIMIT), json!({ "cost": COST }));
    let options = EnvoyOptions { concurrency: 1, ..EnvoyOptions::default() };
    let mut region = Region::start(2, options, &config(&[rule])).await;
    let (key, spent, settled) = killed_with_a_lease(&mut region).await;
    let counted = region.total("r", &key).await;
    let lost = spent - counted;
    // What had been returned and reported stays. Lost is the lease, and what was charged in the last moment.
    assert!(counted >= settled, "{counted} of {spent} are counted, {settled} were before");
    assert!((1..=LIMIT / LEASE_PART + STEP * COST).contains(&lost), "{lost} are lost");

    // The other Envoy may spend all that is not counted, also what the lease had reserved.
    let left = LIMIT - counted;
    let others = spend(&region, 1, &key, left / COST + STEP).await;
    let unused = (1 + unanswered(&region.envoys[1..]).await) * COST;
    println!("{spent} spent, {counted} counted, {lost} lost; the other Envoy spent {others} of {left} left");
    assert!(others <= left && others + unused >= left, "{others} of {left} passed");
    region.settles_at("r", &key, counted + others).await;

    // The one that was killed returns without a count or a lease of its own, and takes the region's.
    region.envoys[0].restart().await.unwrap();
    connected(&region.envoys[0]).await;
    assert_eq!(spend(&region, 0, &key, STEP).await, 0, "all is used up");
    region.settles_at("r", &key, counted + others).await;
    region.is_sound().await;
}
