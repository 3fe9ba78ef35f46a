//! Tests of several aggregators on one real Redis: what each sends to its peers and its filters, and what remains after
//! a loss.

use crate::support::server::{DEADLINE, Peer, Weir, clock, key, settings, start_with, used};
use std::process::Stdio;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};
use weir_aggregator::admin;
use weir_aggregator::redis::StoreOptions;
use weir_aggregator::server::{Server, Settings};
use weir_core::model::key::{Key, NodeId};
use weir_core::model::schedule::Schedule;
use weir_core::model::wire::{Answer, Count, Counters, FilterFrame, Ping, Query, Report, RuleCounters};
use weir_core::region::exchange::BASELINE;
use weir_envoy::{Proxy, Redis, RedisOptions, http, ports, wait};

const BREAKER: &str = "weir_aggregator_breaker_state{store=\"regional\"}";
const QUERIES: &str = "weir_ratelimit_origin_operations_total{op=\"query\"}";
const WIPES: &str = "weir_aggregator_store_wipes_total{store=\"regional\"}";
const EVICTS: &str = "weir_aggregator_store_evicts";
/// Longer than any test, in milliseconds.
const FOR_EVER: u32 = 3_600_000;

async fn redis() -> Redis {
    Redis::start(RedisOptions::default()).await.unwrap()
}

/// An aggregator on a Redis.
async fn on(url: &str, schedule: Schedule) -> Weir {
    let store = StoreOptions::parse(url, "test-region").unwrap();
    start_with(Settings { store: Some(store), schedule, ..settings() }).await
}

/// An aggregator that has found its Redis and read the whole hot index.
async fn ready(url: &str) -> Weir {
    ready_with(url, Schedule::for_tests()).await
}

async fn ready_with(url: &str, schedule: Schedule) -> Weir {
    let weir = on(url, schedule).await;
    crate::support::server::until("the hot index is read", || {
        weir.metric("weir_aggregator_snapshot_age_seconds{what=\"hot\"}") >= 0.0
    })
    .await;
    weir
}

/// A Redis with data that takes long to load answers nothing meanwhile. Without its counts, every limit would be there once more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_aggregator_that_starts_beside_a_redis_that_loads_its_data_serves_with_its_counts() {
    /// Keys that each delay the load by three milliseconds, until the test lets it go on.
    const FILLER: usize = 20_000;
    /// Calls that fail, with a pause of 50 ms after each: more than the time of one call, in which an unavailable store has to answer.
    const CALLS: u64 = 80;
    let mut redis = redis().await;
    let weir = ready(&redis.url()).await;
    let mut filter = weir.join(1, false).await;
    report(&weir, &mut filter, 1, "used-up", 1_000).await;
    drop(filter);
    weir.server.stop().await;
    let mut hand = redis::Client::open(redis.url()).unwrap().get_connection().unwrap();
    let mut pipeline = redis::pipe();
    for number in 0..FILLER {
        pipeline.set(format!("filler:{number}"), [b'x'; 128].as_slice()).ignore();
    }
    pipeline.exec(&mut hand).unwrap();
    // Redis answers between two kilobytes of its file.
    redis::cmd("CONFIG").arg("SET").arg("rdbcompression").arg("no").exec(&mut hand).unwrap();
    redis::cmd("SAVE").exec(&mut hand).unwrap();
    redis
        .restart_with(&["--key-load-delay", "3000", "--loading-process-events-interval-bytes", "1024"])
        .unwrap();
    let loads =
        async || redis.command("GET filler:0").await.is_ok_and(|answer| answer.starts_with("-LOADING"));
    wait::until("Redis loads its data", DEADLINE, loads).await.unwrap();

    let admin = ports::local(ports::free().unwrap());
    let store = Some(StoreOptions::parse(&redis.url(), "test-region").unwrap());
    let schedule = Schedule::for_tests();
    let starts = start_with(Settings { store, schedule, admin_listen: admin.to_string(), ..settings() });
    let observes = async {
        let mut calls = 0;
        while calls < CALLS {
            let get = async |page| http::send(admin, http::Request::get(page)).await.ok();
            if let Some(ready) = get("/readyz").await {
                assert_eq!(
                    (ready.status, ready.text().as_str()),
                    (503, "starting: Redis does not answer yet\n")
                );
            }
            let metrics = get("/metrics").await.map(|metrics| metrics.text()).unwrap_or_default();
            let failed = "weir_ratelimit_origin_errors_total{op=\"heartbeat\"";
            let lines = metrics.lines().filter(|line| line.starts_with(failed));
            calls = lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        redis.command("CONFIG SET key-load-delay 0").await.unwrap();
    };
    let (weir, ()) = tokio::join!(starts, observes);
    // The first query of the first stream is about a key of which this process has no count.
    let mut other = weir.join(2, false).await;
    let answers = other.answers(vec![weir.query(1, "used-up", 0, 1, 1_000)]).await;
    assert!(!answers[0].granted, "Redis has its count");
    assert_eq!(used(&weir, "used-up"), 1_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_evicts_keys_is_named() {
    let redis = redis().await;
    let sound = ready(&redis.url()).await;
    assert_eq!(sound.metric(EVICTS), 0.0);
    redis.command("CONFIG SET maxmemory-policy allkeys-lru").await.unwrap();
    redis.command("CONFIG SET maxmemory 1gb").await.unwrap();
    let weir = ready(&redis.url()).await;
    crate::support::server::until("the policy is read", || weir.metric(EVICTS) == 1.0).await;
    let trouble = admin::parts::parts(weir.server.services()).redis.unwrap().trouble;
    assert_eq!(trouble.as_deref(), Some("evicts keys (allkeys-lru)"));
}

/// Any aggregator reports on the whole region: the decisions of the rules at each aggregator, and the state of both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_aggregator_shows_all_rules_and_aggregators() {
    let redis = redis().await;
    let (one, two) = (ready(&redis.url()).await, ready(&redis.url()).await);
    let (first, second) = (one.join(1, false).await, two.join(2, false).await);
    for allowed in [0, 7] {
        for peer in [&first, &second] {
            let rule = RuleCounters { name: "r".into(), allowed, ..RuleCounters::default() };
            let counters = Counters { rules: vec![rule], workspace: "w".into() };
            peer.send(FilterFrame { counters: Some(counters), ..FilterFrame::default() }).await;
        }
    }
    let all = admin::query::RulesQuery::parse("").unwrap();
    for weir in [&one, &two] {
        wait::until("the other's status is received", DEADLINE, async || {
            let rules = admin::rules::rules(weir.server.services(), &all).await;
            rules.aggregators == 2 && rules.rules.first().is_some_and(|rule| rule.rule.decided.allowed == 14)
        })
        .await
        .unwrap();
        let parts = admin::parts::parts(weir.server.services());
        assert_eq!((parts.peers.len(), parts.peers[0].silent, parts.peers[0].status.streams), (1, false, 1));
        assert_eq!(parts.envoys.len(), 1);
        let redis = parts.redis.unwrap();
        assert!(
            redis.usable && redis.calls.iter().any(|call| call.operation == "read_markers" && call.calls > 0)
        );
    }
}

/// The components of an identifier in an aggregator's memory, in order of nodes.
fn held(weir: &Weir, identifier: &str) -> Vec<(NodeId, u64)> {
    let explained = weir.server.services().explain(b"default", b"api", identifier.as_bytes());
    let cells = explained.iter().flat_map(|key| &key.cells).filter(|cell| cell.sequence == weir.sequence());
    cells.flat_map(|cell| &cell.components).map(|component| (component.node, component.own)).collect()
}

fn node_or_baseline(number: u8) -> NodeId {
    if number == 0 { BASELINE } else { crate::support::server::node(number) }
}

async fn holds(weir: &Weir, identifier: &str, expected: &[(u8, u64)]) {
    let mut expected: Vec<_> = expected.iter().map(|(node, own)| (node_or_baseline(*node), *own)).collect();
    expected.sort_unstable();
    let what = format!("{identifier} is {expected:?}");
    let held = wait::until(&what, DEADLINE, async || self::held(weir, identifier) == expected).await;
    held.unwrap_or_else(|error| panic!("{error}: {:?}", self::held(weir, identifier)));
}

/// The components of an identifier in Redis in the current hour.
async fn stored(url: &str, weir: &Weir, identifier: &str) -> Vec<(NodeId, u64)> {
    let store =
        weir_aggregator::redis::Store::open(&StoreOptions::parse(url, "test-region").unwrap()).unwrap();
    let cell = [(Key::parse(&key(identifier)).unwrap(), weir.sequence())];
    let read = async || store.read(&cell, DEADLINE).await.remove(0).ok();
    let read = wait::until_some("the cell is read", DEADLINE, async || Ok(read().await));
    read.await.unwrap().current
}

async fn acknowledged(peer: &mut Peer, id: u64) {
    let ack = peer.next_with(|frame| frame.ack).await;
    assert_eq!((ack.report_id, ack.refused.len()), (id, 0));
}

async fn report(weir: &Weir, peer: &mut Peer, id: u64, identifier: &str, own: u64) {
    peer.send(weir.report(id, identifier, own)).await;
    acknowledged(peer, id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_reports_are_in_redis_and_at_all_aggregators() {
    let redis = redis().await;
    let (one, other) = (ready(&redis.url()).await, ready(&redis.url()).await);
    let mut writer = one.join(1, false).await;
    let mut reader = other.join(2, true).await;
    report(&other, &mut reader, 1, "alice", 1).await;
    report(&one, &mut writer, 1, "alice", 5).await;
    let mut both = [(crate::support::server::node(1), 5), (crate::support::server::node(2), 1)];
    both.sort_unstable();
    assert_eq!(stored(&redis.url(), &one, "alice").await, both, "acknowledged");
    let snapshot = reader.pushed("alice", |snapshot| snapshot.region_others == 5).await;
    assert_eq!(snapshot.own, 1);
    holds(&one, "alice", &[(1, 5), (2, 1)]).await;
    holds(&other, "alice", &[(1, 5), (2, 1)]).await;
    // Cells past half their limit are also sent to aggregators that never used them.
    report(&one, &mut writer, 2, "bob", 600).await;
    reader.pushed("bob", |snapshot| snapshot.region_others == 600).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_of_all_aggregators_together_never_exceed_the_limit() {
    const LIMIT: u64 = 100;
    let redis = redis().await;
    let weirs = [ready(&redis.url()).await, ready(&redis.url()).await, ready(&redis.url()).await];
    let mut tasks = tokio::task::JoinSet::new();
    for (place, weir) in (0u8..).zip(&weirs) {
        for node in 0..3 {
            let mut peer = weir.join(1 + 3 * place + node, false).await;
            let query = weir.query(1, "alice", 0, 1, LIMIT);
            tasks.spawn(async move {
                let mut own = 0;
                for id in 0..LIMIT {
                    let query = Query { id, own, timeout_ms: 5_000, ..query.clone() };
                    let answer: Answer = peer.answers(vec![query]).await.remove(0);
                    own += u64::from(answer.granted);
                }
                (peer, own)
            });
        }
    }
    let granted: Vec<_> = tasks.join_all().await;
    let spent: Vec<u64> = granted.iter().map(|(_, own)| *own).collect();
    println!("granted {spent:?}");
    assert_eq!(spent.iter().sum::<u64>(), LIMIT);
    for weir in &weirs {
        let all = async || used(weir, "alice") == LIMIT;
        wait::until("all have the counts", DEADLINE, all).await.unwrap();
    }
    assert_eq!(weirs[0].metric("weir_ratelimit_origin_errors_total{op=\"query\",reason=\"timeout\"}"), 0.0);
}

/// After a wipe, the use of dead Envoys, even those of a dead aggregator, is written again by the aggregators that have
/// it.
#[tokio::test(flavor = "multi_thread")]
async fn a_wiped_redis_holds_everything_again_after_one_round() {
    let redis = redis().await;
    let (one, other) = (ready(&redis.url()).await, ready(&redis.url()).await);
    let mut dead = one.join(1, false).await;
    report(&one, &mut dead, 1, "alice", 700).await;
    drop(dead);
    let mut far = other.join(2, false).await;
    report(&other, &mut far, 1, "alice", 100).await;
    report(&other, &mut far, 2, "bob", 900).await;
    let mut near = one.join(3, false).await;
    report(&one, &mut near, 1, "alice", 7).await;
    holds(&one, "alice", &[(1, 700), (2, 100), (3, 7)]).await;
    holds(&one, "bob", &[(2, 900)]).await;
    // The second aggregator and its Envoys end for good; the first has only received their counts.
    drop(far);
    other.server.stop().await;
    for round in 1..=3 {
        let before = stored(&redis.url(), &one, "alice").await;
        assert_eq!(before.len(), 3);
        assert!(redis.command("FLUSHALL").await.unwrap().starts_with("+OK"));
        crate::support::server::until("the wipe is noticed", || one.metric(WIPES) == f64::from(round)).await;
        // The next round of replays writes everything.
        one.server.services().stored().await;
        assert_eq!(stored(&redis.url(), &one, "alice").await, before, "round {round}");
        assert_eq!(
            stored(&redis.url(), &one, "bob").await,
            [(crate::support::server::node(2), 900)],
            "round {round}"
        );
    }
    let third = ready(&redis.url()).await;
    holds(&third, "alice", &[(1, 700), (2, 100), (3, 7)]).await;
    holds(&third, "bob", &[(2, 900)]).await;
    assert!(held(&one, "alice").iter().all(|(node, _)| *node != BASELINE), "no baseline may be added");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_cell_keeps_no_other_from_redis() {
    const LOOKS: &str = "weir_ratelimit_origin_operations_total{op=\"read_markers\"}";
    let redis = redis().await;
    let weir = ready(&redis.url()).await;
    let damaged = format!("weir:test-region:{{default/api/mallory/3600000/0/1}}:{}", weir.sequence());
    assert!(redis.command(&format!("SET {damaged} x")).await.unwrap().starts_with("+OK"));
    let mut peer = weir.join(1, false).await;
    let looks = weir.metric(LOOKS);
    let mut own = 0;
    while weir.metric(LOOKS) < looks + 12.0 {
        own += 1;
        report(&weir, &mut peer, 2 * own, "mallory", own).await;
        report(&weir, &mut peer, 2 * own + 1, "alice", own).await;
        let answers = peer.answers(vec![weir.query(own, "mallory", own, 1, 1_000_000)]).await;
        assert!(answers[0].granted, "memory answers");
        assert_eq!(weir.metric(BREAKER), 0.0, "the store works");
    }
    assert_eq!(stored(&redis.url(), &weir, "alice").await, [(crate::support::server::node(1), own)]);
    assert!(redis.command(&format!("DEL {damaged}")).await.unwrap().starts_with(":1"));
    let mended = async || !stored(&redis.url(), &weir, "mallory").await.is_empty();
    wait::until("the cell is written again", DEADLINE, mended).await.unwrap();
}

/// The copy has the same marker; its lower read counter shows that it is older.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_restarted_from_an_old_copy_is_brought_up_to_date() {
    const LOOKS: &str = "weir_ratelimit_origin_operations_total{op=\"read_markers\"}";
    let mut redis = redis().await;
    let weir = ready(&redis.url()).await;
    let mut peer = weir.join(1, false).await;
    report(&weir, &mut peer, 1, "alice", 600).await;
    assert!(redis.command("SAVE").await.unwrap().starts_with("+OK"));
    report(&weir, &mut peer, 2, "alice", 900).await;
    let looks = weir.metric(LOOKS);
    crate::support::server::until("the marker is read", || weir.metric(LOOKS) > looks + 1.0).await;
    assert_eq!(
        (stored(&redis.url(), &weir, "alice").await, weir.metric(WIPES)),
        (vec![(crate::support::server::node(1), 900)], 0.0)
    );
    redis.restart().await.unwrap();
    let whole =
        async || stored(&redis.url(), &weir, "alice").await == [(crate::support::server::node(1), 900)];
    wait::until("all counts are in Redis again", DEADLINE, whole).await.unwrap();
    assert_eq!(weir.metric(WIPES), 1.0);
}

/// The replica has the last look at the marker, and not the count that was acknowledged after it.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_promoted_replica_lacks_is_written_again() {
    const LOOKS: &str = "weir_ratelimit_origin_operations_total{op=\"read_markers\"}";
    let mut primary = redis().await;
    let arguments = ["--replicaof", "127.0.0.1", &primary.port().to_string()].map(str::to_owned).to_vec();
    let replica = Redis::start(RedisOptions { port: 0, arguments }).await.unwrap();
    let is_connected = async || {
        replica.command("INFO replication").await.is_ok_and(|info| info.contains("master_link_status:up"))
    };
    wait::until("the replica is connected", DEADLINE, is_connected).await.unwrap();
    // Between two looks there is time for all that follows the first.
    let schedule = Schedule { marker_ms: 3_000, ..Schedule::for_tests() };
    let weir = ready_with(&primary.url(), schedule).await;
    let mut peer = weir.join(1, false).await;
    report(&weir, &mut peer, 1, "alice", 600).await;
    let looks = weir.metric(LOOKS);
    crate::support::server::until("the marker is read", || weir.metric(LOOKS) > looks).await;
    let is_equal = async || primary.command("WAIT 1 1000").await.is_ok_and(|answer| answer.starts_with(":1"));
    wait::until("the replica has everything", DEADLINE, is_equal).await.unwrap();
    replica.command("REPLICAOF 127.0.0.1 1").await.unwrap();
    report(&weir, &mut peer, 2, "alice", 900).await;
    assert_eq!(stored(&primary.url(), &weir, "alice").await, [(crate::support::server::node(1), 900)]);
    primary.process().kill().unwrap();
    replica.command("REPLICAOF NO ONE").await.unwrap();
    let moved = replica.command(&format!("CONFIG SET port {}", primary.port())).await.unwrap();
    assert!(moved.starts_with("+OK"), "{moved}");
    let whole =
        async || stored(&primary.url(), &weir, "alice").await == [(crate::support::server::node(1), 900)];
    wait::until("all counts are in Redis again", DEADLINE, whole).await.unwrap();
    assert_eq!(weir.metric(WIPES), 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_memory_answers_at_once_and_nothing_is_lost() {
    let mut redis = redis().await;
    // A write that waited for the dead store would wait longer than the test.
    let schedule = Schedule { replay_timeout_ms: FOR_EVER.into(), ..Schedule::for_tests() };
    let weir = ready_with(&redis.url(), schedule).await;
    let mut peer = weir.join(1, false).await;
    report(&weir, &mut peer, 1, "alice", 1).await;
    redis.process().kill().unwrap();
    // A refused connection fails at once, so no call waits for a timeout.
    report(&weir, &mut peer, 2, "alice", 2).await;
    crate::support::server::until("the breaker opens", || weir.metric(BREAKER) > 0.0).await;
    let mut states = std::collections::BTreeSet::new();
    let deadline = Instant::now() + DEADLINE;
    let mut own = 2;
    // 2 is open, 1 half open; each lasts only until the next probe.
    while states.len() < 2 {
        assert!(Instant::now() < deadline, "the breaker was {states:?}");
        let query = Query { timeout_ms: FOR_EVER, ..weir.query(own, "alice", own, 1, 1_000_000) };
        assert!(peer.answers(vec![query]).await.remove(0).granted, "{own}");
        own += 1;
        states.insert(weir.metric(BREAKER) as u8);
    }
    println!("the breaker was {states:?}");
    assert_eq!(states.into_iter().collect::<Vec<_>>(), [1, 2], "half open, open");
    redis.restart().await.unwrap();
    crate::support::server::until("the breaker closes", || weir.metric(BREAKER) == 0.0).await;
    let stored_all =
        async || stored(&redis.url(), &weir, "alice").await == [(crate::support::server::node(1), own)];
    wait::until("Redis has the counts", DEADLINE, stored_all).await.unwrap();
    let before = weir.metric(QUERIES);
    assert!(peer.answers(vec![weir.query(1, "alice", own, 1, 1_000_000)]).await.remove(0).granted);
    assert_eq!(weir.metric(QUERIES), before + 1.0, "Redis must be queried again");
}

/// Redis answers nothing for longer than any timeout: every report is still acknowledged, in order, and no query waits for a call
/// of the store, which another aggregator lets take an hour.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_hangs_delays_no_query_for_long() {
    const MANY: u64 = 1_000;
    let mut redis = redis().await;
    let weir = ready(&redis.url()).await;
    let hour = u64::from(FOR_EVER);
    let schedule = Schedule { replay_timeout_ms: hour, marker_timeout_ms: hour, ..Schedule::for_tests() };
    let patient = ready_with(&redis.url(), schedule).await;
    let mut reporter = weir.join(1, false).await;
    let mut sender = patient.join(2, false).await;
    report(&weir, &mut reporter, 1, "alice", 1).await;
    redis.process().pause().await.unwrap();
    // A filter has at most this many reports in flight.
    let reports: Vec<_> = (2..=17).map(|id| weir.report(id, "alice", id)).collect();
    let reporting = tokio::spawn(async move {
        for report in reports {
            reporter.send(report).await;
        }
        for id in 2..=17 {
            acknowledged(&mut reporter, id).await;
        }
        reporter
    });
    // The queries sent to the store before its breaker opened.
    let before = patient.metric(QUERIES);
    for own in 0..MANY {
        let query = Query { timeout_ms: 50, ..patient.query(own, "bob", own, 1, 100_000) };
        assert!(sender.answers(vec![query]).await.remove(0).granted);
    }
    let queries = patient.metric(QUERIES) - before;
    println!("{queries} of {MANY} queries were sent to the store");
    let window = Schedule::for_tests().store_breaker.window;
    assert!(queries <= f64::from(window), "an open breaker must not delay queries: {queries}");
    let _reporter = reporting.await.unwrap();
    redis.process().resume().unwrap();
    for weir in [&weir, &patient] {
        crate::support::server::until("the breaker closes", || weir.metric(BREAKER) == 0.0).await;
    }
    let stored_all = async || {
        stored(&redis.url(), &weir, "alice").await == [(crate::support::server::node(1), 17)]
            && stored(&redis.url(), &weir, "bob").await == [(crate::support::server::node(2), MANY)]
    };
    wait::until("Redis has the counts", DEADLINE, stored_all).await.unwrap();
}

/// Redis, both aggregators and one of two Envoys are lost. Only the counts that the other Envoy received are left.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_region_is_rebuilt_from_the_counts_of_a_live_filter() {
    let redis = redis().await;
    // A store that was emptied just now.
    let (one, other) = (ready(&redis.url()).await, ready(&redis.url()).await);
    let mut survivor = one.join(1, true).await;
    let snapshot = |own, region_others| Count { own, region_others, ..one.count("alice", 0) };
    let resend = Report { id: 1, counts: vec![snapshot(100, 400)] };
    survivor.send(FilterFrame { report: Some(resend), ..FilterFrame::default() }).await;
    acknowledged(&mut survivor, 1).await;
    // The limit does not restart from zero, although the nodes of the use are unknown.
    let mut new = one.join(9, false).await;
    let answers =
        new.answers(vec![one.query(1, "alice", 0, 501, 1_000), one.query(2, "alice", 0, 10, 1_000)]);
    assert_eq!(answers.await.iter().map(|answer| answer.granted).collect::<Vec<_>>(), [false, true]);
    // After the recovery grace period, all aggregators and Redis have the baseline.
    let expected =
        |weir: &Weir| held(weir, "alice").iter().any(|(node, own)| *node == BASELINE && *own >= 390);
    crate::support::server::until("the baseline is set", || expected(&one)).await;
    let whole = used(&one, "alice");
    println!("rebuilt: {:?}", held(&one, "alice"));
    assert!((500..=510).contains(&whole), "{whole}");
    report(&one, &mut new, 1, "alice", 60).await;
    let grown = used(&one, "alice");
    assert_eq!(grown, whole + 50, "new use must add to the baseline");
    let received = async || used(&other, "alice") == grown;
    wait::until("the other aggregator has the counts", DEADLINE, received).await.unwrap();
    let third = ready(&redis.url()).await;
    assert_eq!(used(&third, "alice"), grown);
}

/// Counts of a filter that reconnects after the recovery grace period are accepted too, with and without a store.
#[tokio::test(flavor = "multi_thread")]
async fn counts_after_the_grace_period_also_count() {
    let redis = redis().await;
    let schedule = Schedule { grace_period_ms: 1_000, ..Schedule::for_tests() };
    let weirs =
        [ready_with(&redis.url(), schedule).await, start_with(Settings { schedule, ..settings() }).await];
    for weir in &weirs {
        // At the end of the grace period, what a node has of others becomes the baseline.
        let mut other = weir.join(9, false).await;
        let count = Count { own: 1, region_others: 7, ..weir.count("probe", 0) };
        let report = Report { id: 1, counts: vec![count] };
        other.send(FilterFrame { report: Some(report), ..FilterFrame::default() }).await;
        acknowledged(&mut other, 1).await;
        holds(weir, "probe", &[(0, 7), (9, 1)]).await;
    }
    for weir in &weirs {
        let mut survivor = weir.join(1, true).await;
        let count = Count { own: 100, region_others: 400, ..weir.count("alice", 0) };
        let report = Report { id: 1, counts: vec![count] };
        survivor.send(FilterFrame { report: Some(report), ..FilterFrame::default() }).await;
        acknowledged(&mut survivor, 1).await;
    }
    for weir in &weirs {
        holds(weir, "alice", &[(0, 400), (1, 100)]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_complete_only_after_all_that_is_hot_was_read() {
    let redis = redis().await;
    let one = ready(&redis.url()).await;
    let mut writer = one.join(1, false).await;
    for name in ["alice", "bob", "carol"] {
        report(&one, &mut writer, 1, name, 1_000).await;
    }
    // The cells are added to Redis' hot index shortly after the acknowledgement.
    let third = ready(&redis.url()).await;
    let named = async || ["alice", "bob", "carol"].iter().all(|name| used(&third, name) == 1_000);
    wait::until("all are in the index", DEADLINE, named).await.unwrap();

    let proxy = Proxy::start(redis.address()).await.unwrap();
    proxy.black_hole().await.unwrap();
    let late = on(&format!("redis://{}", proxy.address()), Schedule::for_tests()).await;
    let mut subscriber = late.join(2, true).await;
    for ping in 1..20 {
        let frame = FilterFrame { ping: Some(Ping { sent_ms: ping }), ..FilterFrame::default() };
        subscriber.send(frame).await;
        let frame = subscriber.next().await.unwrap().unwrap();
        assert!(frame.push.is_none_or(|push| !push.complete), "the snapshot cannot be complete yet");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    proxy.forward().await.unwrap();
    let mut received = std::collections::BTreeSet::new();
    loop {
        let push = subscriber.next_with(|frame| frame.push).await;
        received.extend(
            push.snapshots
                .into_iter()
                .filter(|snapshot| snapshot.region_others == 1_000)
                .map(|snapshot| snapshot.key),
        );
        if push.complete {
            break;
        }
    }
    let all: std::collections::BTreeSet<_> = ["alice", "bob", "carol"].map(key).into_iter().collect();
    assert_eq!(received, all);
}

async fn time_ms(weir: &Weir) -> u64 {
    let mut peer = weir.join(7, false).await;
    peer.send(FilterFrame { ping: Some(Ping { sent_ms: 1 }), ..FilterFrame::default() }).await;
    peer.next_with(|frame| frame.pong).await.unix_ms
}

/// Neither a step of a machine's clock, nor machines that disagree, nor a restart move the time that numbers cells.
#[tokio::test(flavor = "multi_thread")]
async fn a_region_has_one_time_whatever_the_clocks_of_its_machines_show() {
    const HOUR: i64 = 3_600_000;
    let redis = redis().await;
    let began = Instant::now();
    let one = ready(&redis.url()).await;
    let start_ms = time_ms(&one).await;
    let is_right = async |weir: &Weir, what: &str| {
        let elapsed_ms = u64::try_from(began.elapsed().as_millis()).unwrap();
        let off_ms = time_ms(weir).await.abs_diff(start_ms + elapsed_ms);
        assert!(off_ms < 20_000, "{what}: off by {off_ms} ms");
    };
    one.clock.0.fetch_add(HOUR, Relaxed);
    is_right(&one, "a step").await;
    let clock = clock();
    clock.0.fetch_sub(2 * HOUR, Relaxed);
    let store = Some(StoreOptions::parse(&redis.url(), "test-region").unwrap());
    let settings = || Settings { store: store.clone(), schedule: Schedule::for_tests(), ..settings() };
    let other =
        Weir { server: Server::start(settings(), clock.clone()).await.unwrap(), clock: clock.clone() };
    is_right(&other, "another machine").await;
    one.server.stop().await;
    other.server.stop().await;
    let again = Weir { server: Server::start(settings(), clock.clone()).await.unwrap(), clock };
    is_right(&again, "after all have ended").await;
}

async fn live_nodes(peer: &mut Peer) -> u32 {
    peer.send(FilterFrame { ping: Some(Ping { sent_ms: 1 }), ..FilterFrame::default() }).await;
    peer.next_with(|frame| frame.pong).await.live_nodes
}

#[tokio::test(flavor = "multi_thread")]
async fn live_envoys_are_counted_once_wherever_they_are_connected() {
    let redis = redis().await;
    let (one, other) = (ready(&redis.url()).await, ready(&redis.url()).await);
    let mut first = one.join(1, false).await;
    let split = other.join(1, false).await;
    let second = other.join(2, false).await;
    until_live_envoys(&mut first, 2).await;
    // A worker's stream ends, while the Envoy continues.
    drop(split);
    drop(second);
    until_live_envoys(&mut first, 1).await;
    let again = other.join(2, false).await;
    until_live_envoys(&mut first, 2).await;
    // If an aggregator dies, its Envoys are not alive until they reconnect elsewhere.
    drop(again);
    drop(other);
    until_live_envoys(&mut first, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_aggregators_receive_a_new_envoy_at_once() {
    let redis = redis().await;
    // Not by the next interval.
    let schedule = Schedule { heartbeat_ms: FOR_EVER.into(), ..Schedule::for_tests() };
    let (one, other) = (ready_with(&redis.url(), schedule).await, ready_with(&redis.url(), schedule).await);
    let subscribed = || one.server.services().state(|state, _| state.receives_broadcasts());
    crate::support::server::until("the first is subscribed", subscribed).await;
    let mut first = one.join(1, false).await;
    until_live_envoys(&mut first, 1).await;
    let _second = other.join(2, false).await;
    until_live_envoys(&mut first, 2).await;
}

/// Waits until the Envoy receives this number of live nodes.
async fn until_live_envoys(peer: &mut Peer, envoys: u32) {
    let received = async || live_nodes(peer).await == envoys;
    wait::until("as many as there are", DEADLINE, received).await.unwrap();
}

/// An Envoy's workers are connected to different aggregators; their reports of the same component count once.
#[tokio::test(flavor = "multi_thread")]
async fn an_envoy_that_is_split_over_aggregators_counts_once() {
    let redis = redis().await;
    let (one, other) = (ready(&redis.url()).await, ready(&redis.url()).await);
    let (mut here, mut there) = (one.join(1, true).await, other.join(1, false).await);
    let mut second = other.join(2, false).await;
    for own in 1..=50 {
        let (weir, peer) = if own % 2 == 0 { (&one, &mut here) } else { (&other, &mut there) };
        report(weir, peer, own, "alice", own).await;
    }
    report(&other, &mut second, 1, "alice", 3).await;
    here.pushed("alice", |snapshot| snapshot.region_others == 3).await;
    holds(&one, "alice", &[(1, 50), (2, 3)]).await;
    holds(&other, "alice", &[(1, 50), (2, 3)]).await;
    // A process that evicted the cell receives the baseline, which both aggregators have.
    let without_baseline = Count { without_baseline: true, ..other.count("alice", 0) };
    let report = Report { id: 60, counts: vec![without_baseline] };
    there.send(FilterFrame { report: Some(report), ..FilterFrame::default() }).await;
    let ack = there.next_with(|frame| frame.ack).await;
    assert_eq!(ack.baselines.iter().map(|baseline| baseline.own).collect::<Vec<_>>(), [50]);
}

/// The last counts of an Envoy and of its aggregator are in Redis after both ended.
#[tokio::test(flavor = "multi_thread")]
async fn an_aggregator_that_shuts_down_leaves_no_status_behind() {
    let redis = redis().await;
    let (one, other) = (ready(&redis.url()).await, ready(&redis.url()).await);
    let peer = one.join(1, false).await;
    for own in 1..=20 {
        peer.send(one.report(own, "alice", own)).await;
    }
    let reported = || held(&one, "alice") == [(crate::support::server::node(1), 20)];
    crate::support::server::until("all counts are received", reported).await;
    peer.send(one.report(21, "alice", 900)).await;
    crate::support::server::until("the last counts are received", || used(&one, "alice") == 900).await;
    drop(peer);
    let peers = || other.server.services().status.peers.all().len();
    crate::support::server::until("the other has its status", || peers() == 1).await;
    one.server.stop().await;
    // An aggregator that shut down is not reported as silent.
    crate::support::server::until("the other no longer has its status", || peers() == 0).await;
    assert_eq!(stored(&redis.url(), &other, "alice").await, [(crate::support::server::node(1), 900)]);
    holds(&other, "alice", &[(1, 900)]).await;
}

/// A denied query's counts of earlier use are also broadcast.
#[tokio::test(flavor = "multi_thread")]
async fn counts_of_a_denied_query_are_broadcast() {
    let redis = redis().await;
    let (one, other) = (ready(&redis.url()).await, ready(&redis.url()).await);
    let mut reader = other.join(2, true).await;
    report(&other, &mut reader, 1, "alice", 400).await;
    let mut sender = one.join(1, false).await;
    let query = Query { timeout_ms: 5_000, ..one.query(1, "alice", 300, 400, 1_000) };
    let answer = sender.answers(vec![query]).await.remove(0);
    assert!(!answer.granted, "Redis has counts that this aggregator has not received");
    assert_eq!(answer.current.map(|snapshot| (snapshot.own, snapshot.region_others)), Some((300, 400)));
    reader.pushed("alice", |snapshot| snapshot.region_others == 300).await;
}

/// A second wipe within the recovery grace period: counts beyond the live components are not added twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_loss_amid_the_grace_period_counts_nothing_twice() {
    let redis = redis().await;
    let (one, other) = (ready(&redis.url()).await, ready(&redis.url()).await);
    let (mut first, mut second) = (one.join(1, true).await, other.join(2, true).await);
    report(&other, &mut second, 1, "alice", 300).await;
    for round in 0..3 {
        redis.command("FLUSHALL").await.unwrap();
        let count = Count { own: 200, region_others: 400, ..one.count("alice", 0) };
        let repeated = Report { id: round, counts: vec![count] };
        first.send(FilterFrame { report: Some(repeated), ..FilterFrame::default() }).await;
        acknowledged(&mut first, round).await;
        let noticed = || one.metric(WIPES) > round as f64 && other.metric(WIPES) > round as f64;
        crate::support::server::until("both have noticed the loss", noticed).await;
    }
    for weir in [&one, &other] {
        holds(weir, "alice", &[(0, 100), (1, 200), (2, 300)]).await;
    }
}

/// Two memories would enforce two limits. The lease in the database names the aggregator that serves.
#[tokio::test(flavor = "multi_thread")]
async fn without_redis_a_second_aggregator_of_a_region_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("weir.db").display());
    let serve = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir-aggregator"));
        let variables = std::env::vars_os().filter(|(name, _)| !name.to_string_lossy().starts_with("WEIR_"));
        command.args(["serve", "--region", "eu", "--grpc-listen", "127.0.0.1:0", "--migrate"]);
        command
            .args(["--admin-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"])
            .env_clear()
            .envs(variables);
        command.env("WEIR_DATABASE_URL", &url).stdin(Stdio::null()).stderr(Stdio::piped());
        command.kill_on_drop(true);
        command.spawn().unwrap()
    };
    let mut first = serve();
    let _log = serves(&mut first).await;
    let started = Instant::now();
    let second = serve().wait_with_output();
    let second = tokio::time::timeout(2 * DEADLINE, second).await.unwrap().unwrap();
    let stderr = String::from_utf8_lossy(&second.stderr).into_owned();
    println!("refused after {:?}: {stderr}", started.elapsed());
    assert_eq!(second.status.code(), Some(1), "{stderr}");
    for part in ["another aggregator serves region \"eu\"", "--redis-url", "WEIR_REDIS_URL"] {
        assert!(stderr.contains(part), "{stderr}");
    }
    // After a crash, the next aggregator waits until the lease expires.
    first.kill().await.unwrap();
    let started = Instant::now();
    let mut third = serve();
    let _log = serves(&mut third).await;
    println!("the successor of a killed one serves after {:?}", started.elapsed());
}

/// Waits until the program serves. The rest of its log must be read, because the program would end without a reader.
async fn serves(child: &mut Child) -> Lines<BufReader<ChildStderr>> {
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let line = async {
        while !lines.next_line().await.unwrap().expect("a line").contains("weir-aggregator serves") {}
    };
    tokio::time::timeout(DEADLINE, line).await.unwrap();
    lines
}
