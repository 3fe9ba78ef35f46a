//! The configuration changes while Envoy serves: counts stay, and an invalid configuration changes nothing.

use serde_json::{Value, json};
use weir_envoy::load::{self, LoadPlan};
use weir_envoy::{Aggregator, AggregatorOptions, Envoy, EnvoyOptions, Reload, http, ports, wait};

use super::common::{
    Region, SOON, config, connected, filter, get_as, rule, settled, sum_of, vm_reloads, with,
};
use super::global::metric;

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
    assert_eq!(vm_reloads(region.envoy()).await, 0);
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

/// The listeners' filters have one name and one VM, and only their configurations differ.
async fn check_listeners_rules(more: Value) {
    let of = |name, limit| with(config(&[rule(name, limit)]), more.clone());
    let port = ports::free().unwrap();
    let aggregator = Aggregator::start(AggregatorOptions::default()).await.unwrap();
    let options = EnvoyOptions {
        filter: filter(&of("r", 6)),
        second: Some((port, filter(&of("s", 4)))),
        aggregator_ports: vec![aggregator.grpc_port()],
        ..EnvoyOptions::default()
    };
    let region = Region { envoys: vec![Envoy::start(options).await.unwrap()], aggregator };
    // The main thread and the worker each have both.
    let settled = region.envoy().wait_stat("wasmcustom.weir_streams_settled", SOON, |streams| streams == 4);
    settled.await.unwrap();
    for turn in 0..8 {
        let answer = region.envoy().send(get_as("a")).await.unwrap();
        assert_eq!((turn, answer.status), (turn, if turn < 6 { 200 } else { 429 }), "the first listener");
        let answer = http::send(ports::local(port), get_as("a")).await.unwrap();
        assert_eq!((turn, answer.status), (turn, if turn < 4 { 200 } else { 429 }), "the second listener");
    }
    region.settles_at("r", "a", 6).await;
    region.settles_at("s", "a", 4).await;
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listeners_of_one_vm_have_their_own_rules() {
    check_listeners_rules(json!({})).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listeners_of_one_vm_have_their_own_rules_with_responses() {
    check_listeners_rules(json!({ "responses": { "headers_on_allowed": true } })).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replaced_configuration_ends_its_streams() {
    let mut region = Region::start(1, options(), &config(&[rule("r", 3)])).await;
    for limit in [4, 5] {
        assert_eq!(reload(&mut region, &config(&[rule("r", limit)])).await, Reload::Accepted);
    }
    assert_eq!(passed(region.envoy(), "a", "5").await, 5);
    connected(region.envoy()).await;
    let streams = async || metric(&region.aggregator, "weir_aggregator_streams").await == 3.0;
    wait::until("the aggregator has a stream of each thread", SOON, streams).await.unwrap();
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_vm_leaves_the_gauges() {
    let faulty = with(config(&[rule("r", 1_000_000)]), json!({ "test_faults": true }));
    let region = Region::start(1, EnvoyOptions::default(), &faulty).await;
    let envoy = region.envoy();
    for failed in 1..=2 {
        assert_eq!(envoy.send(get_as("a").header("x-weir-fault", "panic")).await.unwrap().status, 503);
        let again = async || envoy.send(get_as("a")).await.unwrap().status == 200;
        wait::until("another VM serves", SOON, again).await.unwrap();
        wait::until("it is another VM", SOON, async || vm_reloads(envoy).await >= failed).await.unwrap();
        // The new worker is connected and has added itself to the gauges with its decisions.
        let streams = async || metric(&region.aggregator, "weir_aggregator_streams").await == 2.0;
        wait::until("the new worker is connected", SOON, streams).await.unwrap();
        let before = sum_of(envoy, "wasmcustom.weir_decisions_total").await;
        let reported = async || {
            envoy.send(get_as("a")).await.unwrap();
            sum_of(envoy, "wasmcustom.weir_decisions_total").await > before + 1
        };
        wait::until("the new worker reports its decisions", SOON, reported).await.unwrap();
    }
    connected(envoy).await;
    settled(envoy).await;
}
