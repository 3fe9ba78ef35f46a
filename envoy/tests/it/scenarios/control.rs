//! Live control on real Envoys of two regions: overrides, bans, credits and resets apply on all of them, and stay
//! in force while everything behind the Envoys is unavailable and after a VM died.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_envoy::http::{self, Request};
use weir_envoy::{Aggregator, Envoy, wait};

use super::common::{KEY, SOON, config, get_as, rule, vm_reloads, with};
use super::global::{GlobalRegion, LARGE, SMALL, SharedDatabase};

const LIMIT: u64 = 4;
/// Number of denials after which the rule bans.
const DENIALS: u64 = 200;

/// Two regions; the first has two Envoys and two aggregators that share a Redis.
struct World {
    database: SharedDatabase,
    regions: [GlobalRegion; 2],
}

impl World {
    async fn start() -> World {
        let database = SharedDatabase::mariadb().await;
        let ban = json!({ "threshold": DENIALS, "window": "1m", "duration": "10m", "max_duration": "24h" });
        let hammered =
            with(rule("hammered", 1), json!({ "match": { "path": { "prefix": "/hammer" } }, "ban": ban }));
        let config = with(config(&[rule("r", LIMIT), hammered]), json!({ "test_faults": true }));
        let a = GlobalRegion::start("a", LARGE, database.url(), &config).await;
        let b = GlobalRegion::start("b", SMALL, database.url(), &config).await;
        World { database, regions: [a, b] }
    }

    fn envoys(&self) -> impl Iterator<Item = &Envoy> {
        self.regions.iter().flat_map(|region| &region.envoys)
    }

    /// Puts an override through an aggregator of the first region.
    async fn put(&self, body: Value) {
        let mut request =
            Request::post("/v1/overrides", body.to_string()).header("content-type", "application/json");
        request.method = "PUT".parse().unwrap();
        let answer = http::send(self.aggregator().http_address(), request).await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    fn aggregator(&self) -> &Aggregator {
        &self.regions[0].aggregators[0]
    }

    /// Waits until every Envoy answers `client` with this status; returns how long that took in the first region and in
    /// both.
    async fn answer(&self, client: &str, expected: u16) -> (Duration, Duration) {
        let began = Instant::now();
        let mut took = [Duration::ZERO; 2];
        for (region, took) in self.regions.iter().zip(&mut took) {
            for envoy in &region.envoys {
                let what = format!("{client} gets {expected} in {}", region.name);
                wait::until(&what, SOON, async || status(envoy, client).await == expected).await.unwrap();
            }
            *took = began.elapsed();
        }
        (took[0], took[1])
    }
}

async fn status(envoy: &Envoy, client: &str) -> u16 {
    envoy.send(get_as(client)).await.unwrap().status
}

/// How many of the next requests pass.
async fn passing(envoy: &Envoy, client: &str, requests: u64) -> u64 {
    let mut passed = 0;
    for _ in 0..requests {
        passed += u64::from(status(envoy, client).await == 200);
    }
    passed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn live_control_applies_everywhere_and_stays() {
    let mut world = World::start().await;
    // A limit of 0 also denies clients without any use.
    world.put(json!({"namespace": "r", "identifier": "low", "limit": 0})).await;
    let (own, all) = world.answer("low", 429).await;
    eprintln!(
        "an override applies in its own region after {own:?}, in both after {all:?} (imports each 300 ms)"
    );
    world.put(json!({"namespace": "*", "identifier": "bad-*", "ban": true, "reason": "spam", "expires_in": "1h"})).await;
    let (own, all) = world.answer("bad-1", 429).await;
    eprintln!("a ban applies in its own region after {own:?}, in both after {all:?}");
    let denied = world.envoys().next().unwrap().send(get_as("bad-2")).await.unwrap();
    assert_eq!(denied.status, 429);

    // A client that was denied passes after an exemption or a credit.
    let envoys: Vec<&Envoy> = world.envoys().collect();
    for client in ["free", "more", "anew"] {
        let passed = passing(envoys[0], client, 2 * LIMIT).await;
        assert!((1..=LIMIT).contains(&passed), "{client}: {passed}");
        world.answer(client, 429).await;
    }
    world.put(json!({"namespace": "r", "identifier": "free", "exempt": true})).await;
    world.answer("free", 200).await;
    world.put(json!({"namespace": "r", "identifier": "more", "credit": 30, "expires_in": "1h"})).await;
    world.answer("more", 200).await;
    world.put(json!({"namespace": "r", "identifier": "anew", "reset": true})).await;
    let began = Instant::now();
    for envoy in &envoys {
        // A region that has the reset, and counts few requests since, allows requests again.
        wait::until("the reset applies", SOON, async || status(envoy, "anew").await == 200).await.unwrap();
    }
    eprintln!("a reset reached all Envoys after {:?}", began.elapsed());
    world.answer("anew", 429).await;

    // A rule in shadow denies no request, and denies again once the shadow ends.
    world.put(json!({"rule": "r", "shadow": true})).await;
    world.answer("low", 200).await;
    world.put(json!({"rule": "r", "shadow": false})).await;
    world.answer("low", 429).await;

    a_rules_ban_holds_everywhere(&world).await;
    keeps_it(&mut world).await;
}

/// A ban by a rule on one Envoy applies to all Envoys, through their aggregators.
async fn a_rules_ban_holds_everywhere(world: &World) {
    let hammer = || Request::get("/hammer").header(KEY, "mallory");
    let here = &world.regions[0].envoys[0];
    let hammers = async || assert!([200, 429].contains(&here.send(hammer()).await.unwrap().status));
    for _ in 0..=DENIALS {
        hammers().await;
    }
    let there = world.regions[1].aggregators[0].http_address();
    let listed_there = async || {
        // If a minute ended meanwhile, the violations of the previous one have less weight.
        hammers().await;
        let listed = http::send(there, Request::get("/v1/overrides?namespace=hammered")).await.unwrap();
        listed.text().contains("rule hammered")
    };
    wait::until("the other region has the ban", SOON, listed_there).await.unwrap();
    for envoy in world.envoys() {
        // A denial by the limit has headers about the limit; one by a ban has none.
        let banned = async || {
            let answer = envoy.send(hammer()).await.unwrap();
            answer.status == 429 && answer.header("x-ratelimit-limit").is_none()
        };
        wait::until("every Envoy denies", SOON, banned).await.unwrap();
    }
    let alike = Request::get("/hammer").header(KEY, "alice");
    assert_eq!(here.send(alike).await.unwrap().status, 200, "others are not concerned");
}

/// Everything behind the Envoys is unavailable and a VM dies; live control stays in force.
async fn keeps_it(world: &mut World) {
    for region in &mut world.regions {
        region.stop_redis();
        for aggregator in &mut region.aggregators {
            aggregator.process().kill().unwrap();
        }
    }
    world.database.server().process().kill().unwrap();
    let envoys: Vec<&Envoy> = world.envoys().collect();
    for envoy in &envoys {
        // The request that aborts its VM gets no response.
        drop(envoy.send(get_as("x").header("x-weir-fault", "panic")).await);
        let replaced = async || status(envoy, "free").await == 200 && vm_reloads(envoy).await > 0;
        wait::until("the VM is replaced and serves", SOON, replaced).await.unwrap();
        for (client, expected) in [("low", 429), ("bad-3", 429), ("free", 200), ("more", 200)] {
            assert_eq!(status(envoy, client).await, expected, "{client}");
        }
    }
}
