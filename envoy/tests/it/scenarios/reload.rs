//! The configuration changes while Envoy serves: counts stay, and an invalid configuration changes nothing.

use serde_json::{Value, json};
use weir_envoy::load::{self, LoadPlan};
use weir_envoy::{Aggregator, AggregatorOptions, Envoy, EnvoyOptions, Reload, bootstrap, http, ports, wait};

use super::common::{
    Region, SOON, config, connected, filter, get_as, rule, settled, sum_of, threads, vm_reloads, with,
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
    settled(region.envoy()).await;
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
    let expected = threads(options().concurrency.into()) as f64;
    let streams = async || metric(&region.aggregator, "weir_aggregator_streams").await == expected;
    wait::until("the aggregator has a stream of each thread", SOON, streams).await.unwrap();
    region.is_sound().await;
}

/// Envoy's default is 600. As a replaced listener drains, Envoy closes more and more of its connections,
/// but hardly any in the first minutes of a month.
const DRAIN_S: u32 = 30 * 86_400;

/// A region whose Envoy ends no replaced configuration, with a table of eight keys, after `updates` of its listener. Of each thread
/// there are one stream and one worker. Returns the growth of Envoy's resident memory during the updates.
async fn updated(workers: u32, updates: u64) -> (Region, u64) {
    let options = EnvoyOptions { concurrency: workers, drain_s: DRAIN_S, ..options() };
    let of = |limit| with(config(&[rule("r", limit)]), json!({ "table": { "max_keys": 8 } }));
    let mut region = Region::start(1, options, &of(3)).await;
    // Served by the first configuration for as long as it is open.
    let mut client = http::Connection::open(region.envoy().address()).await.unwrap();
    assert_eq!(client.send(get_as("old")).await.unwrap().status, 200);
    // The first update brings memory that later ones use again.
    assert_eq!(reload(&mut region, &of(4)).await, Reload::Accepted);
    let resident = |region: &mut Region| region.envoys[0].process().resident_bytes().unwrap();
    let before = resident(&mut region);
    for update in 0..updates {
        assert_eq!(reload(&mut region, &of(5 + update)).await, Reload::Accepted);
    }
    let grown = resident(&mut region).saturating_sub(before);
    println!("{updates} updates of {workers} workers: {} KiB", grown >> 10);
    let threads = threads(workers.into());
    for metric in ["weir_workers", "weir_streams_settled"] {
        let name = format!("wasmcustom.{metric}");
        region.envoy().wait_stat(&name, SOON, |count| count == threads).await.unwrap();
    }
    assert_eq!(metric(&region.aggregator, "weir_aggregator_streams").await, threads as f64);
    assert!(region.envoy().stat("listener_manager.total_filter_chains_draining").await.unwrap() > 0);
    for (passes, limit) in [(true, "3"), (true, "3"), (false, "3")] {
        let answer = client.send(get_as("old")).await.unwrap();
        let shown = answer.header("x-ratelimit-limit").unwrap_or(limit);
        assert_eq!((answer.status == 200, shown), (passes, limit), "{answer:?}");
    }
    assert_eq!(passed(region.envoy(), "new", &(4 + updates).to_string()).await, 4 + updates);
    region.settles_at("r", "old", 3).await;
    region.settles_at("r", "new", 4 + updates).await;
    (region, grown)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forty_updates_take_no_stream_and_little_memory() {
    let (region, grown) = updated(2, 40).await;
    assert!(grown < 20 << 20, "{grown} bytes");
    region.is_sound().await;
}

/// Each configuration of each worker once took an entry of the worker registry while it drained, of which there were 256.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_table_takes_new_keys_after_many_updates_of_many_workers() {
    let (region, _) = updated(8, 32).await;
    let mut keys = 0;
    let evicted = async || {
        keys += 1;
        region.envoy().send(get_as(&format!("key-{keys}"))).await.unwrap();
        sum_of(region.envoy(), "wasmcustom.weir_table_evictions_total").await >= 40
    };
    wait::until("new keys take the places of reported ones", SOON, evicted).await.unwrap();
    println!("{keys} keys for 40 evictions");
    region.is_sound().await;
}

/// Two listeners whose filters name the aggregator in different ways, as while its token is replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_of_another_aggregator_rests_while_it_is_idle() {
    let second =
        json!({ "aggregator": { "cluster": bootstrap::AGGREGATOR_CLUSTER, "authority": "another" } });
    let port = ports::free().unwrap();
    let aggregator = Aggregator::start(AggregatorOptions::default()).await.unwrap();
    let options = EnvoyOptions {
        filter: filter(&config(&[rule("r", 6)])),
        second: Some((port, filter(&with(config(&[rule("r", 6)]), second)))),
        aggregator_ports: vec![aggregator.grpc_port()],
        ..EnvoyOptions::default()
    };
    let region = Region { envoys: vec![Envoy::start(options).await.unwrap()], aggregator };
    let workers = async |expected: u64| {
        for metric in ["weir_workers", "weir_streams_settled"] {
            let name = format!("wasmcustom.{metric}");
            region.envoy().wait_stat(&name, SOON, |count| count == expected).await.unwrap();
        }
    };
    // The worker has both, and so has the main thread if it has any.
    workers(2 * threads(1)).await;
    workers(threads(1)).await;
    // The one that rests wakes with its first request, and decides by the counts of both.
    for (turn, address) in (0..8).zip([ports::local(port), region.envoy().address()].into_iter().cycle()) {
        let answer = http::send(address, get_as("a")).await.unwrap();
        assert_eq!((turn, answer.status), (turn, if turn < 6 { 200 } else { 429 }));
    }
    workers(threads(1) + 1).await;
    region.settles_at("r", "a", 6).await;
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
