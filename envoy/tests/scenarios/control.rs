//! Live control on real Envoys of two regions: what an operator says bites on every one of them, reset and credit too, and is kept
//! while everything behind the Envoys is away and after a VM died.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_envoy::http::{self, Request};
use weir_envoy::{Aggregator, Envoy, wait};

use crate::common::{KEY, SOON, config, get_as, rule, vm_reloads, with};
use crate::globe::{Country, Globe, LARGE, SMALL};

const LIMIT: u64 = 4;
/// Who is denied so often is banned by the rule itself.
const DENIALS: u64 = 200;

/// Two regions, the first with two Envoys and two aggregators that meet in Redis.
struct World {
    globe: Globe,
    regions: [Country; 2],
}

impl World {
    async fn start() -> World {
        let globe = Globe::mariadb().await;
        let ban = json!({ "threshold": DENIALS, "window": "1m", "duration": "10m", "max_duration": "24h" });
        let hammered =
            with(rule("hammered", 1), json!({ "match": { "path": { "prefix": "/hammer" } }, "ban": ban }));
        let config = with(config(&[rule("r", LIMIT), hammered]), json!({ "test_faults": true }));
        let a = Country::start("a", LARGE, globe.url(), &config).await;
        let b = Country::start("b", SMALL, globe.url(), &config).await;
        World { globe, regions: [a, b] }
    }

    fn envoys(&self) -> impl Iterator<Item = &Envoy> {
        self.regions.iter().flat_map(|region| &region.envoys)
    }

    /// Says something through an aggregator of the first region.
    async fn say(&self, body: Value) {
        let mut request =
            Request::post("/v1/overrides", body.to_string()).header("content-type", "application/json");
        request.method = "PUT".parse().unwrap();
        let answer = http::send(self.aggregator().http_address(), request).await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    fn aggregator(&self) -> &Aggregator {
        &self.regions[0].aggregators[0]
    }

    /// Waits until every Envoy answers `client` so; how long that took in the own region, and in all.
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
async fn what_an_operator_says_bites_everywhere_and_stays() {
    let mut world = World::start().await;
    // A limit of nothing denies whoever had not used anything.
    world.say(json!({"namespace": "r", "identifier": "low", "limit": 0})).await;
    let (own, all) = world.answer("low", 429).await;
    eprintln!(
        "an override bites in the own region after {own:?}, in both after {all:?} (imports each 300 ms)"
    );
    world.say(json!({"namespace": "*", "identifier": "bad-*", "ban": true, "reason": "spam", "expires_in": "1h"})).await;
    let (own, all) = world.answer("bad-1", 429).await;
    eprintln!("a ban bites in the own region after {own:?}, in both after {all:?}");
    let denied = world.envoys().next().unwrap().send(get_as("bad-2")).await.unwrap();
    assert_eq!(denied.status, 429);

    // Whoever is exempt, or has a credit, passes where he had been denied.
    let envoys: Vec<&Envoy> = world.envoys().collect();
    for client in ["free", "more", "anew"] {
        let passed = passing(envoys[0], client, 2 * LIMIT).await;
        assert!((1..=LIMIT).contains(&passed), "{client}: {passed}");
        world.answer(client, 429).await;
    }
    world.say(json!({"namespace": "r", "identifier": "free", "exempt": true})).await;
    world.answer("free", 200).await;
    world.say(json!({"namespace": "r", "identifier": "more", "credit": 30, "expires_in": "1h"})).await;
    world.answer("more", 200).await;
    world.say(json!({"namespace": "r", "identifier": "anew", "reset": true})).await;
    let began = Instant::now();
    for envoy in &envoys {
        // In a region that has heard of the reset, and of few that passed since, somebody passes again.
        wait::until("the reset is there", SOON, async || status(envoy, "anew").await == 200).await.unwrap();
    }
    eprintln!("a reset reached all Envoys after {:?}", began.elapsed());
    world.answer("anew", 429).await;

    // A rule in shadow denies nobody, and denies again.
    world.say(json!({"rule": "r", "shadow": true})).await;
    world.answer("low", 200).await;
    world.say(json!({"rule": "r", "shadow": false})).await;
    world.answer("low", 429).await;

    a_rules_ban_holds_everywhere(&world).await;
    keeps_it(&mut world).await;
}

/// What a rule bans in one Envoy its aggregator makes everybody's.
async fn a_rules_ban_holds_everywhere(world: &World) {
    let hammer = || Request::get("/hammer").header(KEY, "mallory");
    let here = &world.regions[0].envoys[0];
    let hammers = async || assert!([200, 429].contains(&here.send(hammer()).await.unwrap().status));
    for _ in 0..=DENIALS {
        hammers().await;
    }
    let there = world.regions[1].aggregators[0].http_address();
    let heard = async || {
        // Where a minute ended meanwhile, those of the one before count for less.
        hammers().await;
        let listed = http::send(there, Request::get("/v1/overrides?namespace=hammered")).await.unwrap();
        listed.text().contains("rule hammered")
    };
    wait::until("the other region hears of the ban", SOON, heard).await.unwrap();
    for envoy in world.envoys() {
        // A denial by the limit tells what the limit is.
        let banned = async || {
            let answer = envoy.send(hammer()).await.unwrap();
            answer.status == 429 && answer.header("x-ratelimit-limit").is_none()
        };
        wait::until("every Envoy denies", SOON, banned).await.unwrap();
    }
    let alike = Request::get("/hammer").header(KEY, "alice");
    assert_eq!(here.send(alike).await.unwrap().status, 200, "others are not concerned");
}

/// Everything behind the Envoys is gone, and a VM dies: nothing that was said is forgotten.
async fn keeps_it(world: &mut World) {
    for region in &mut world.regions {
        region.stop_redis();
        for aggregator in &mut region.aggregators {
            aggregator.process().kill().unwrap();
        }
    }
    world.globe.server().process().kill().unwrap();
    let envoys: Vec<&Envoy> = world.envoys().collect();
    for envoy in &envoys {
        // The request that kills its VM is lost.
        drop(envoy.send(get_as("x").header("x-weir-fault", "panic")).await);
        let replaced = async || status(envoy, "free").await == 200 && vm_reloads(envoy).await > 0;
        wait::until("the VM is replaced and serves", SOON, replaced).await.unwrap();
        for (client, expected) in [("low", 429), ("bad-3", 429), ("free", 200), ("more", 200)] {
            assert_eq!(status(envoy, client).await, expected, "{client}");
        }
    }
}
