//! Tests of the regional store with a real Redis Cluster of three nodes: everything that a single server does, and the
//! cluster's own cases: a node that is wiped or dead, and slots that move.

use crate::support::redis::*;
use std::collections::BTreeSet;
use tokio::time::timeout;
use weir_aggregator::redis::{HOT_SHARDS, Incarnation, Received, Store, StoreOptions};
use weir_core::model::time::UnixMs;
use weir_core::region::exchange::{BASELINE, LowerBound, Merge};
use weir_envoy::{Redis, RedisCluster, RedisOptions, ports, wait};

const CELLS: usize = 1_000;

async fn started() -> (RedisCluster, Store) {
    let cluster = RedisCluster::start(3).await.unwrap();
    let options = StoreOptions { cluster: true, ..options(&cluster.url()) };
    let store = open(&options).await;
    (cluster, store)
}

#[tokio::test]
async fn everything_works_on_a_cluster() {
    let (mut cluster, store) = started().await;
    let cells: Vec<_> = (0..CELLS).map(|number| merge(&numbered(number), &[(A, 1), (C, 3)])).collect();
    for (merged, cell) in store.merge(&cells, now(), AMPLE).await.into_iter().zip(&cells) {
        assert_eq!(merged.unwrap().current, [(C, 3), (A, 1)], "{:?}", cell.key);
    }
    for node in cluster.nodes() {
        let size: usize = redis::cmd("DBSIZE").query(&mut hand(node)).unwrap();
        assert!(size > CELLS / 5, "the cells must be spread over the nodes: {size}");
        redis::cmd("SCRIPT").arg("FLUSH").exec(&mut hand(node)).unwrap();
    }
    assert!(
        store.merge(&cells, now(), AMPLE).await.iter().all(Result::is_ok),
        "scripts are loaded again on every node"
    );

    for (own, granted) in [(5, true), (6, false)] {
        let proposals: Vec<_> =
            (0..50).map(|number| proposing(&numbered(number), proposal(B, own, 9))).collect();
        for merged in store.merge(&proposals, now(), AMPLE).await {
            assert_eq!(merged.unwrap().granted, Some(granted));
        }
    }
    let lower_bounds: Vec<_> = (100..150)
        .map(|number| LowerBound { key: numbered(number), sequence: CELL, total: 10, expires: LATE })
        .collect();
    for merged in store.raise_to(&lower_bounds, now(), AMPLE).await {
        assert_eq!(merged.unwrap().current, [(BASELINE, 6), (C, 3), (A, 1)]);
    }
    let hot: Vec<_> = (0..200).map(|number| (numbered(number), CELL, LATE)).collect();
    store.note_hot(&hot, now(), AMPLE).await.unwrap();
    let mut found = BTreeSet::new();
    for shard in 0..HOT_SHARDS {
        found.extend(store.hot(shard, UnixMs(1), 1_000, AMPLE).await.unwrap());
    }
    assert_eq!(found, hot.into_iter().map(|(key, sequence, _)| (key, sequence)).collect());
    assert_eq!(store.nodes(&[A, B], member(1), &time(), AMPLE).await.unwrap().nodes, [A, B]);
}

#[tokio::test]
async fn messages_cross_the_cluster() {
    let (_cluster, store) = started().await;
    // Each listener may be on a separate node.
    let mut listeners: Vec<_> = (0..4).map(|_| store.subscribe()).collect();
    for listener in &mut listeners {
        assert_eq!(timeout(AMPLE, listener.recv()).await.unwrap(), Some(Received::Connected));
    }
    store.publish(b"all", AMPLE).await.unwrap();
    for listener in &mut listeners {
        assert_eq!(timeout(AMPLE, listener.recv()).await.unwrap(), Some(Received::Message(b"all".to_vec())));
    }
}

#[tokio::test]
async fn a_wipe_or_death_of_one_part_is_seen_and_leaves_the_others() {
    let (mut cluster, store) = started().await;
    let before = store.incarnations(&LastRead::default(), AMPLE).await.unwrap();
    assert_eq!((before.seen.len(), before.unseen), (64, 0));
    assert_eq!(store.incarnations(&LastRead::default(), AMPLE).await.unwrap().seen.len(), 64);
    redis::cmd("FLUSHALL").exec(&mut hand(&cluster.nodes()[1])).unwrap();
    let after = store.incarnations(&LastRead::default(), AMPLE).await.unwrap();
    let changed = before.seen.iter().zip(&after.seen).filter(|(before, after)| before.id != after.id).count();
    assert!((15..30).contains(&changed), "a third of the markers: {changed}");

    cluster.nodes()[2].process().kill().unwrap();
    let partly = async || {
        store
            .incarnations(&LastRead::default(), AMPLE)
            .await
            .is_ok_and(|incarnations| (15..30).contains(&incarnations.unseen))
    };
    wait::until("a third is unavailable", HEALED, partly).await.unwrap();
    let cells: Vec<_> = (0..CELLS).map(|number| merge(&numbered(number), &[(A, 1)])).collect();
    let failed = store.merge(&cells, now(), AMPLE).await.iter().filter(|result| result.is_err()).count();
    assert!((CELLS / 5..CELLS / 2).contains(&failed), "each cell must fail separately: {failed}");

    cluster.nodes()[2].restart().await.unwrap();
    connected(&store).await;
    wait::until("every cell can be written", HEALED, async || {
        store.merge(&cells, now(), AMPLE).await.iter().all(Result::is_ok)
    })
    .await
    .unwrap();
}

/// One shard of three fails over; the markers of the others stay.
#[tokio::test]
async fn a_failover_of_one_part_begins_an_incarnation_there() {
    let (mut cluster, store) = started().await;
    let mut last = LastRead::default();
    let before = look(&store, &mut last).await;
    let ask = |redis: &Redis, words: &[&str]| -> String {
        redis::cmd("CLUSTER").arg(words).query(&mut hand(redis)).unwrap()
    };
    let id = ask(&cluster.nodes()[1], &["MYID"]);
    let nodes = ask(&cluster.nodes()[1], &["NODES"]);
    let known = nodes.lines().find(|line| line.contains("myself")).expect("it lists itself");
    let bus_port = known.split(['@', ' ', ',']).nth(2).expect("a bus port").to_owned();
    let own_bus_port = ports::free().unwrap().to_string();
    let arguments = ["--cluster-enabled", "yes", "--cluster-port", &own_bus_port];
    let arguments = arguments.map(str::to_owned).to_vec();
    let replica = Redis::start(RedisOptions { port: 0, arguments }).await.unwrap();
    ask(&replica, &["MEET", "127.0.0.1", &cluster.nodes()[1].port().to_string(), &bus_port]);
    // It is refused until the replica has met the node.
    let told = async || redis::cmd("CLUSTER").arg("REPLICATE").arg(&id).exec(&mut hand(&replica)).is_ok();
    wait::until("the replica knows its primary", HEALED, told).await.unwrap();
    let follows = async || {
        let info: String = redis::cmd("INFO").arg("replication").query(&mut hand(&replica)).unwrap();
        info.contains("master_link_status:up")
    };
    wait::until("the replica is connected", HEALED, follows).await.unwrap();
    assert_eq!(ids(&look(&store, &mut last).await), ids(&before), "a replica that is added loses nothing");

    cluster.nodes()[1].process().kill().unwrap();
    ask(&replica, &["FAILOVER", "TAKEOVER"]);
    let all =
        async || store.incarnations(&last, AMPLE).await.is_ok_and(|incarnations| incarnations.unseen == 0);
    wait::until("every shard answers", HEALED, all).await.unwrap();
    let after = look(&store, &mut last).await;
    let changed = ids(&before).iter().zip(ids(&after)).filter(|(before, after)| *before != after).count();
    assert!((15..30).contains(&changed), "a third of the markers: {changed}");
    assert_eq!(ids(&look(&store, &mut last).await), ids(&after), "it is one loss");
}

fn ids(markers: &[Incarnation]) -> Vec<u128> {
    markers.iter().map(|marker| marker.id).collect()
}

/// For each node: its port, its id, and a connection.
fn hands(cluster: &mut RedisCluster) -> Vec<(u16, String, redis::Connection)> {
    let nodes = cluster.nodes().iter().map(|node| (node.port(), hand(node)));
    let with_id = |(port, mut hand)| {
        let id = redis::cmd("CLUSTER").arg("MYID").query(&mut hand).unwrap();
        (port, id, hand)
    };
    nodes.map(with_id).collect()
}

/// The map of slots stays as it was, so each of the markers that have moved redirects.
#[tokio::test]
async fn a_pipeline_is_sent_twice_at_most_however_many_markers_have_moved() {
    const MERGES: u64 = 100;
    let (mut cluster, store) = started().await;
    look(&store, &mut LastRead::default()).await;
    let mut hands = hands(&mut cluster);
    let slot_of = |hand: &mut redis::Connection, name: &str| -> u64 {
        redis::cmd("CLUSTER").arg("KEYSLOT").arg(name).query(hand).unwrap()
    };
    let markers = |hand: &mut redis::Connection| -> Vec<String> {
        redis::cmd("KEYS").arg("weir:eu:incarnation:*").query(hand).unwrap()
    };
    for (_, _, hand) in &mut hands {
        redis::cmd("ACL").arg(&["SETUSER", "default", "-cluster|slots"]).exec(hand).unwrap();
    }
    merge_one(&store, merge(&numbered(0), &[(A, 1)])).await;
    let holds = |(_, _, hand): &mut (u16, String, redis::Connection)| {
        !redis::cmd("KEYS").arg("weir:eu:{default*").query::<Vec<String>>(hand).unwrap().is_empty()
    };
    let owner = hands.iter_mut().position(holds).unwrap();
    hands.swap(0, owner);
    let (to_port, to_id, from_id) = (hands[1].0, hands[1].1.clone(), hands[0].1.clone());
    let moved = markers(&mut hands[0].2).split_off(1);
    assert!(moved.len() > 10, "a third of the markers: {}", moved.len());
    for name in &moved {
        let slot = slot_of(&mut hands[0].2, name).to_string();
        let mut set_slot = |at: usize, state: &str, id: &str| {
            redis::cmd("CLUSTER").arg(&["SETSLOT", &slot, state, id]).exec(&mut hands[at].2).unwrap();
        };
        set_slot(1, "IMPORTING", &from_id);
        set_slot(0, "MIGRATING", &to_id);
        let from = &mut hands[0].2;
        redis::cmd("MIGRATE").arg("127.0.0.1").arg(to_port).arg(name).arg(0).arg(5_000).exec(from).unwrap();
        for at in [1, 0, 2] {
            let node = ["SETSLOT", &slot, "NODE", &to_id];
            redis::cmd("CLUSTER").arg(&node).exec(&mut hands[at].2).unwrap();
        }
    }
    let executed = |hand: &mut redis::Connection| -> u64 {
        let stats: String = redis::cmd("INFO").arg("commandstats").query(hand).unwrap();
        let calls = stats.split("cmdstat_evalsha:calls=").nth(1);
        calls.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
    };
    let before = executed(&mut hands[0].2);
    let cells: Vec<_> =
        (0..MERGES).map(|back| Merge { sequence: CELL - back, ..merge(&numbered(0), &[(A, 2)]) }).collect();
    assert!(store.merge(&cells, now(), AMPLE).await.iter().all(Result::is_ok));
    let sent = executed(&mut hands[0].2) - before;
    assert!((MERGES..=2 * MERGES + 10).contains(&sent), "{sent} scripts for {MERGES} cells");
}

#[tokio::test]
async fn a_moving_slot_is_followed() {
    let (mut cluster, store) = started().await;
    let name = "weir:eu:{default/login/user-0/60000/0/1}:29000000";
    let mut hands = hands(&mut cluster);
    let slot: u64 = redis::cmd("CLUSTER").arg("KEYSLOT").arg(name).query(&mut hands[0].2).unwrap();
    merge_one(&store, merge(&numbered(0), &[(A, 5)])).await;
    let owner = hands.iter_mut().position(|(_, _, hand)| {
        let mut count = redis::cmd("CLUSTER");
        count.arg("COUNTKEYSINSLOT").arg(slot).query::<u64>(hand).unwrap() > 0
    });
    hands.swap(0, owner.unwrap());
    let [(_, from_id, from), (to_port, to_id, to), (_, _, third)] = &mut hands[..] else { unreachable!() };
    let set_slot = |hand: &mut redis::Connection, state: &str, id: &str| {
        redis::cmd("CLUSTER").arg("SETSLOT").arg(slot).arg(state).arg(id).exec(hand).unwrap();
    };
    set_slot(to, "IMPORTING", from_id);
    set_slot(from, "MIGRATING", to_id);
    redis::cmd("MIGRATE").arg("127.0.0.1").arg(*to_port).arg(name).arg(0).arg(5_000).exec(from).unwrap();
    // The old owner redirects (ASK) and still owns the slot.
    assert_eq!(merge_one(&store, merge(&numbered(0), &[(B, 1)])).await.current, [(A, 5), (B, 1)]);
    for hand in [&mut *to, from, third] {
        set_slot(hand, "NODE", to_id);
    }
    // The old owner no longer owns the slot (MOVED), whether or not the map has been read again.
    for count in 2..50 {
        let merged = merge_one(&store, proposing(&numbered(0), proposal(B, count, 1_000))).await;
        assert_eq!(merged.current, [(A, 5), (B, count)]);
    }
}
