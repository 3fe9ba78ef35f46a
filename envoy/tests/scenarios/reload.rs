//! The configuration changes while Envoy serves: counts stay, and an invalid configuration changes nothing.

use serde_json::{Value, json};
use weir_envoy::load::{self, LoadPlan};
use weir_envoy::{Envoy, EnvoyOptions, Reload, wait};

use crate::common::{Region, SOON, config, filter, get_as, rule, with};

fn options() -> EnvoyOptions {
    EnvoyOptions { reloadable: true, concurrency: 2, ..EnvoyOptions::default() }
}

/// Sends requests of `key` until one is denied by `limit`; returns how many passed. Until then a worker may still use
/// the previous configuration.
async fn passed(envoy: &Envoy, key: &str, limit: &str) -> u64 {
    let mut passed = 0;
    let refused = async || {
        let answer = envoy.send(get_as(key)).await.unwrap();
        passed += u64::from(answer.status == 200);
        answer.status == 429 && answer.header("x-ratelimit-limit") == Some(limit)
    };
    wait::until("the limit is reached", SOON, refused).await.unwrap();
    passed
}

async fn reload(region: &mut Region, config: &Value) -> Reload {
    region.envoys[0].reload(filter(config)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_limit_keeps_the_count() {
    let mut region = Region::start(1, options(), &config(&[rule("r", 10)])).await;
    assert_eq!(passed(region.envoy(), "a", "10").await, 10);
    assert_eq!(reload(&mut region, &config(&[rule("r", 14)])).await, Reload::Accepted);
    assert_eq!(passed(region.envoy(), "a", "14").await, 4);
    assert_eq!(reload(&mut region, &config(&[rule("r", 5)])).await, Reload::Accepted);
    assert_eq!(passed(region.envoy(), "a", "5").await, 0);
    region.settles_at("r", "a", 14).await;
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_added_rule_leaves_the_others_counts() {
    let mut region = Region::start(1, options(), &config(&[rule("r", 10)])).await;
    for _ in 0..6 {
        assert_eq!(region.envoy().send(get_as("a")).await.unwrap().status, 200);
    }
    let both = config(&[with(rule("s", 100), json!({ "cost": 2 })), rule("r", 10)]);
    assert_eq!(reload(&mut region, &both).await, Reload::Accepted);
    assert_eq!(passed(region.envoy(), "a", "10").await, 4);
    region.settles_at("r", "a", 10).await;
    assert!(region.total("s", "a").await <= 8, "counted from its beginning on");
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_configuration_is_refused_and_the_old_one_stays() {
    let mut region = Region::start(1, options(), &config(&[rule("r", 3)])).await;
    let broken = config(&[with(rule("r", 3), json!({ "limit": -1, "cost": "much" }))]);
    assert_eq!(reload(&mut region, &broken).await, Reload::Rejected);
    let log = region.envoy().log().unwrap();
    for field in ["rules[0].limit", "rules[0].cost"] {
        assert!(log.contains(field), "{field} is not named: {log}");
    }
    assert_eq!(passed(region.envoy(), "a", "3").await, 3);
    assert_eq!(crate::common::vm_reloads(region.envoy()).await, 0);
}

/// Old and new workers share the table while one listener replaces the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_under_load_passes_no_more() {
    const LIMIT: u64 = 3_000;
    let mut region = Region::start(1, options(), &config(&[rule("r", LIMIT)])).await;
    let plan = LoadPlan::new(region.envoy().address(), 8, 2 * LIMIT, ("x-key", "a")).rate(2_000.0);
    let more = config(&[rule("r", LIMIT), rule("s", 1_000_000)]);
    let reloads = async {
        for config in [&more, &config(&[rule("r", LIMIT)]), &more] {
            assert_eq!(reload(&mut region, config).await, Reload::Accepted);
        }
    };
    let (report, ()) = tokio::join!(load::run(plan), reloads);
    let report = report.unwrap();
    println!("reloaded under load: {} of {LIMIT} passed, {report:?}", report.count(200));
    // A request is charged but gets no response if the old listener closes its connection.
    assert!((LIMIT - report.errors..=LIMIT).contains(&report.count(200)), "{report:?}");
    assert_eq!(report.count(200) + report.count(429) + report.errors, 2 * LIMIT, "{report:?}");
    region.settles_at("r", "a", LIMIT).await;
    region.is_sound().await;
}
