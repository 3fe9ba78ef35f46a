//! Regions at a distance from their database, on the real schedule: a key that is used up in one region is denied in the others,
//! and little passes that no region alone would notice. How long it takes is measured by `just bench-aggregator --only delay`.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use weir_envoy::http::{Connection, Request};
use weir_envoy::{Proxy, ports, wait};

use super::common::{KEY, SOON, config, get_as, rule, run_aggregator, with};
use super::global::{GlobalRegion, SMALL, SharedDatabase, metric};

/// From a region to the database.
const ONE_WAY: Duration = Duration::from_millis(50);

/// A database, and the way to it.
struct Distant {
    _database: SharedDatabase,
    _proxy: Proxy,
    url: String,
}

impl Distant {
    async fn start() -> Distant {
        let mut database = SharedDatabase::mariadb().await;
        // Over the distance this alone is more than a hundred statements in a row.
        run_aggregator(&database.url(), &["migrate"]);
        let port = database.server().port();
        let proxy = Proxy::start_distant(ports::local(port), ONE_WAY).await.unwrap();
        let url = database.url().replace(&format!(":{port}/"), &format!(":{}/", proxy.port()));
        Distant { _database: database, _proxy: proxy, url }
    }

    async fn region(&self, name: &'static str, config: &serde_json::Value) -> GlobalRegion {
        GlobalRegion::start_with(name, SMALL, self.url.clone(), config, &[]).await
    }
}

/// Uses up a key in the first region; afterwards each of the others denies it. Requests there are few.
async fn trial(first: &GlobalRegion, others: &[GlobalRegion], key: &str, limit: u64) {
    for _ in 0..limit {
        let answer = first.envoys[0].send(get_as(key)).await.unwrap();
        assert!([200, 429].contains(&answer.status));
    }
    for region in others {
        let mut polls = interval(Duration::from_millis(25));
        polls.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut passed = 0;
        loop {
            polls.tick().await;
            if region.envoys[0].send(get_as(key)).await.unwrap().status == 429 {
                break;
            }
            passed += 1;
            assert!(
                passed < limit * 9 / 10,
                "{key} is used in {} as if it were unused elsewhere",
                region.name
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_used_up_in_one_region_is_denied_in_the_others() {
    const LIMIT: u64 = 200;
    const TRIALS: usize = 16;
    let database = Distant::start().await;
    let config = config(&[rule("r", LIMIT)]);
    let first = database.region("a", &config).await;
    let others = [database.region("b", &config).await, database.region("c", &config).await];
    join_all((0..TRIALS).map(|number| {
        let (first, others) = (&first, &others);
        async move { trial(first, others, &format!("key-{number}"), LIMIT).await }
    }))
    .await;
}

/// Ten regions, each just below half the limit, within half a window: without an exchange, 490 of 100 would pass.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn use_that_is_spread_over_ten_regions_is_found() {
    const LIMIT: u64 = 100;
    const EACH: u64 = 49;
    const NAMES: [&str; 10] = ["r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7", "r8", "r9"];
    let database = Distant::start().await;
    let config = config(&[rule("r", LIMIT)]);
    let mut regions = Vec::new();
    for name in NAMES {
        regions.push(database.region(name, &config).await);
    }
    // All regions have found each other.
    for region in &regions {
        let found = async || metric(&region.aggregators[0], "weir_ratelimit_global_regions").await == 10.0;
        wait::until("ten regions", SOON, found).await.unwrap();
    }
    let mut clients = JoinSet::new();
    for region in &regions {
        let address = region.envoys[0].address();
        clients.spawn(async move {
            let mut connection = Connection::open(address).await.unwrap();
            let mut requests = interval(Duration::from_millis(30_000 / EACH));
            let mut passed = 0;
            for _ in 0..EACH {
                requests.tick().await;
                let answer = connection.send(Request::get("/").header(KEY, "spread")).await.unwrap();
                passed += u64::from(answer.status == 200);
            }
            passed
        });
    }
    let passed: u64 = clients.join_all().await.iter().sum();
    println!("{passed} of {} requests passed a limit of {LIMIT}", EACH * NAMES.len() as u64);
    assert!(passed >= LIMIT, "{passed} passed");
    assert!(passed <= LIMIT + LIMIT / 10, "{passed} passed a limit of {LIMIT}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_of_ten_seconds_are_shared() {
    const LIMIT: u64 = 400;
    let database = Distant::start().await;
    let config = config(&[with(rule("r", LIMIT), json!({ "window": "10s" }))]);
    let first = database.region("a", &config).await;
    let others = [database.region("b", &config).await];
    trial(&first, &others, "x", LIMIT).await;
}
