//! Tests with one region's name in two clusters: the aggregators of each find the others', and nothing else passes for that.

use crate::support::database::Store;
use crate::support::server::{DEADLINE, Weir, settings, start_with};
use std::time::Duration;
use weir_aggregator::admin::parts::parts;
use weir_aggregator::database::DatabaseOptions;
use weir_aggregator::redis::StoreOptions;
use weir_aggregator::server::Settings;
use weir_core::model::schedule::Schedule;
use weir_envoy::{Redis, RedisOptions, wait};

const FOREIGN: &str = "weir_ratelimit_global_foreign_writers";
const PACKETS: &str = "weir_ratelimit_origin_operations_total{op=\"exchange\"}";

async fn redis() -> Redis {
    Redis::start(RedisOptions::default()).await.unwrap()
}

/// An aggregator of the region on a Redis, under a prefix, and on a database.
async fn start(redis: &Redis, prefix: &str, database: &str) -> Weir {
    let store =
        StoreOptions { prefix: prefix.into(), ..StoreOptions::parse(&redis.url(), "test-region").unwrap() };
    let database = DatabaseOptions { url: database.into(), read_url: None, region: "test-region".into() };
    let schedule = Schedule::for_tests();
    start_with(Settings { store: Some(store), database: Some(database), schedule, ..settings() }).await
}

/// Waits until each has exchanged as many packets as one that writes for another Redis needs to be found, twice.
async fn packets(aggregators: &[&Weir]) {
    let schedule = Schedule::for_tests();
    let enough = (2 * 3 * schedule.heartbeat_ms / schedule.exchange_ms) as f64;
    for weir in aggregators {
        let until = weir.metric(PACKETS) + enough;
        wait::until("packets are exchanged", Duration::from_secs(60), async || weir.metric(PACKETS) >= until)
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_name_of_two_clusters_is_found_by_both() {
    let store = Store::sqlite();
    let (scene, other_scene) = (store.fresh().await, store.fresh().await);
    let (one, two) = (redis().await, redis().await);
    let clusters = [start(&one, "weir", &scene.url).await, start(&two, "weir", &scene.url).await];
    let prefixes =
        [start(&one, "weir-a", &other_scene.url).await, start(&one, "weir-b", &other_scene.url).await];
    for weir in clusters.iter().chain(&prefixes) {
        let found = wait::until("the other is found", DEADLINE, async || weir.metric(FOREIGN) == 1.0).await;
        let trouble = parts(weir.server.services()).database.unwrap().trouble;
        found.unwrap_or_else(|error| panic!("{error}: {trouble:?}"));
        assert!(trouble.is_some_and(|trouble| trouble.starts_with("region split")));
    }
    // The second cluster ends.
    let [stays, ends] = clusters;
    ends.server.stop().await;
    wait::until("the region is not split any more", DEADLINE, async || stays.metric(FOREIGN) == 0.0)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_a_lost_redis_nor_a_restart_is_taken_for_another_cluster() {
    let store = Store::sqlite();
    let scene = store.fresh().await;
    let mut redis = redis().await;
    let one = start(&redis, "weir", &scene.url).await;
    let two = start(&redis, "weir", &scene.url).await;
    packets(&[&one, &two]).await;
    assert_eq!([one.metric(FOREIGN), two.metric(FOREIGN)], [0.0, 0.0], "both are in one Redis");
    redis.command("FLUSHALL").await.unwrap();
    packets(&[&one, &two]).await;
    assert_eq!([one.metric(FOREIGN), two.metric(FOREIGN)], [0.0, 0.0], "after a loss");
    redis.restart().await.unwrap();
    two.server.stop().await;
    let three = start(&redis, "weir", &scene.url).await;
    packets(&[&one, &three]).await;
    assert_eq!([one.metric(FOREIGN), three.metric(FOREIGN)], [0.0, 0.0], "after restarts");
    redis.process().pause().await.unwrap();
    packets(&[&one, &three]).await;
    redis.process().resume().unwrap();
    packets(&[&one, &three]).await;
    assert_eq!([one.metric(FOREIGN), three.metric(FOREIGN)], [0.0, 0.0], "after a hang");
}
