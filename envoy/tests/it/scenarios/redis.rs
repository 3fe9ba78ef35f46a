//! Several aggregators that share one Redis form one region: they enforce a limit together, each has all counts, and an
//! Envoy receives the others' use from any aggregator.

use serde_json::json;
use weir_envoy::load::{self, LoadPlan};
use weir_envoy::{Envoy, wait};

use super::common::{SOON, config, connected, get_as, rule, settled, sum_of, total_in, unused_grants, with};
use super::peers::{
    CONNECTIONS, PER_SECOND, Peers, Wiring, assert_served, compared, limits, load_while, metric,
};

/// The Envoy of a request: pseudo-random, and the same in every run.
fn side(number: u64) -> usize {
    usize::from((number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63 == 1)
}

/// Both Envoys together admit as many requests as one exact limiter, within 5 %, and both aggregators count them.
async fn check_share(wiring: Wiring, limit: u64) {
    let (peers, _redis) = Peers::start(wiring, &config(&[rule("r", limit)])).await;
    for envoy in &peers.envoys {
        settled(envoy).await;
    }
    let addresses = peers.envoys.iter().map(Envoy::address).collect();
    let before = peers.metric(QUERIES_OF_STORE).await;
    let plan = LoadPlan::of(addresses, CONNECTIONS, 2 * limit, |number| (side(number), get_as("a")));
    let report = load::run(plan).await.unwrap();
    let passed = report.count(200);
    let calls = peers.metric(QUERIES_OF_STORE).await - before;
    let queries = peers.queries().await;
    println!("{wiring:?}, {limit}: {passed} passed, {queries} queries, {calls} calls of Redis, {report:?}");
    assert_eq!(passed + report.count(429), 2 * limit, "{report:?}");
    let margin = (limit / 20).max(1);
    assert!(passed <= limit + margin, "{passed} passed of {limit}");
    assert!(calls > 0.0, "Redis must be queried");
    let mut totals = [0, 0];
    let same = async || {
        for (total, aggregator) in totals.iter_mut().zip(&peers.aggregators) {
            *total = total_in(aggregator, "r", "a").await;
        }
        let counted = passed..=passed + unused_grants(&peers.envoys, CONNECTIONS).await;
        counted.contains(&totals[0]) && totals[0] == totals[1]
    };
    let same = wait::until("both count what passed", SOON, same).await;
    println!("{wiring:?}, {limit}: aggregators count {totals:?}");
    same.unwrap_or_else(|error| panic!("{error}: {passed} passed, aggregators count {totals:?}"));
    // Unused grants stay counted.
    assert!(totals[0] + margin >= limit, "{passed} passed of {limit}, {} are counted", totals[0]);
    peers.are_sound().await;
}

const QUERIES_OF_STORE: &str = "weir_ratelimit_origin_operations_total{op=\"query\"}";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_aggregators_share_20() {
    check_share(Wiring::Crossed, 20).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_aggregators_share_200() {
    check_share(Wiring::Crossed, 200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_aggregators_share_2_000() {
    check_share(Wiring::Crossed, 2_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_aggregators_share_200_of_envoys_that_only_redis_joins() {
    check_share(Wiring::Apart, 200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_aggregators_share_2_000_of_envoys_that_only_redis_joins() {
    check_share(Wiring::Apart, 2_000).await;
}

/// An Envoy that never used a key receives that the key is used up, and denies without a query.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_envoy_receives_counts_through_another_aggregator() {
    const LIMIT: u64 = 50;
    let (peers, _redis) = Peers::start(Wiring::Apart, &config(&[rule("r", LIMIT)])).await;
    let [writer, reader] = &peers.envoys[..] else { panic!("two Envoys") };
    let load = LoadPlan::of(vec![writer.address()], CONNECTIONS, LIMIT, |_| (0, get_as("a")));
    assert_eq!(load::run(load).await.unwrap().count(200), LIMIT);
    let received = async || total_in(&peers.aggregators[1], "r", "a").await == LIMIT;
    wait::until("the other aggregator has the count", SOON, received).await.unwrap();
    // It is the only subscriber there: it has merged all when it counts as many cells as were sent.
    let merged = async || {
        let waiting = metric(&peers.aggregators[1], "weir_aggregator_push_queue").await;
        let sent = metric(&peers.aggregators[1], "weir_aggregator_pushed_cells_total").await;
        let cells = reader.stat("wasmcustom.weir_snapshots_total").await.unwrap();
        waiting == 0.0 && cells > 0 && cells as f64 >= sent
    };
    wait::until("the other Envoy has the count", SOON, merged).await.unwrap();
    assert_eq!(reader.send(get_as("a")).await.unwrap().status, 429, "it received the count");
    // Its statistics are sent in batches, queries no later than decisions.
    let counted = async || sum_of(reader, "wasmcustom.weir_decisions_total").await == 1;
    wait::until("the decision is counted", SOON, counted).await.unwrap();
    assert_eq!(sum_of(reader, "wasmcustom.weir_queries_total").await, 0, "without a query");
}

/// A rule with `assume_low` relies on a complete snapshot: it does not admit a key that is used up in the region.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_envoy_that_starts_late_and_assumes_low_denies_what_is_used_up() {
    const LIMIT: u64 = 50;
    let assuming_low = with(rule("r", LIMIT), json!({ "unknown_key": "assume_low" }));
    let (mut peers, _redis) = Peers::start(Wiring::Apart, &config(&[assuming_low])).await;
    let load = LoadPlan::of(vec![peers.envoys[0].address()], CONNECTIONS, 2 * LIMIT, |_| (0, get_as("a")));
    assert_eq!(load::run(load).await.unwrap().count(200), LIMIT);
    // The aggregator of the late Envoy restarts too, so it has to read the counts from Redis.
    peers.aggregators[1].process().kill().unwrap();
    peers.aggregators[1].restart().await.unwrap();
    peers.envoys[1].restart().await.unwrap();
    connected(&peers.envoys[1]).await;
    assert_eq!(peers.envoys[1].send(get_as("a")).await.unwrap().status, 429);
    assert_eq!(peers.envoys[1].send(get_as("b")).await.unwrap().status, 200);
    peers.are_sound().await;
}

/// Requests wait for a slow Redis no longer than their timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_redis_is_not_waited_for() {
    const SECONDS: u64 = 6;
    let (peers, redis) = Peers::start(Wiring::Apart, &limits()).await;
    let load = peers.load(SECONDS);
    let sent = load.progress();
    let fault = async {
        // Repeatedly delays all of its clients for longer than a request's timeout.
        for _ in 0..20 {
            redis.command("CLIENT PAUSE 150 ALL").await.unwrap();
            sent.sends(PER_SECOND / 10).await;
        }
    };
    let report = load_while(load, fault).await;
    let passed = compared(&report, SECONDS);
    println!("slow: {passed:?} passed, {report:?}");
    assert_served(&report, SECONDS);
    let (took, _) = peers.agree(&passed).await;
    println!("slow: agreed {took:?} after the load");
    peers.all_deny().await;
    peers.are_sound().await;
}
