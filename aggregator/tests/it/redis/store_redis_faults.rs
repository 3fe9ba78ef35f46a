//! Tests of the regional store while its Redis is wiped, frozen, killed, refuses, or is replaced; and of connections
//! with a login and over TLS.

use crate::support::redis::*;
use std::time::Duration;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use weir_aggregator::redis::{Incarnation, Received, Store, StoreError, StoreOptions};
use weir_core::model::exact::ExactRequestId;
use weir_core::model::key::{Key, KeyParts};
use weir_core::model::time::UnixMs;
use weir_core::region::exchange::{LowerBound, Merge};
use weir_core::region::log::{EntryId, LogCharge};
use weir_envoy::{Redis, RedisOptions, ports, wait};

/// Shorter than any reconnection.
const SHORT: Duration = Duration::from_millis(100);

#[tokio::test]
async fn flushed_scripts_are_loaded_again() {
    let (redis, store) = started().await;
    let mut hand = hand(&redis);
    let cells: Vec<_> = (0..600).map(|number| merge(&numbered(number), &[(A, 1)])).collect();
    for _ in 0..3 {
        redis::cmd("SCRIPT").arg("FLUSH").exec(&mut hand).unwrap();
        assert!(store.merge(&cells, now(), AMPLE).await.iter().all(Result::is_ok));
        redis::cmd("SCRIPT").arg("FLUSH").exec(&mut hand).unwrap();
        store.incarnations(&LastRead::default(), AMPLE).await.unwrap();
    }
}

#[tokio::test]
async fn a_wipe_is_seen_though_the_connection_stays() {
    let (redis, store) = started().await;
    let other = open(&options(&redis.url())).await;
    let before = incarnation(&store).await;
    assert_eq!(id(&other).await, before.id, "all clients must read the same incarnation");
    assert_eq!(id(&store).await, before.id);
    merge_one(&store, merge(&key(b"alice"), &[(A, 5)])).await;
    let mut hand = hand(&redis);
    let all = async || clients(&mut hand).len() == 5;
    wait::until("both stores have their two connections", HEALED, all).await.unwrap();
    let connections = clients(&mut hand);
    redis::cmd("FLUSHALL").exec(&mut hand).unwrap();
    let after = incarnation(&other).await;
    assert_ne!(after.id, before.id);
    assert_eq!(id(&store).await, after.id, "the marker made by the other must be read");
    assert!(after.since >= before.since);
    assert_eq!(clients(&mut hand), connections);
    assert_eq!(merge_one(&store, merge(&key(b"alice"), &[(A, 2)])).await.current, [(A, 2)]);
    let ttl: i64 = redis::cmd("PTTL").arg("weir:eu:incarnation:{0}").query(&mut hand).unwrap();
    assert_eq!(ttl, -1, "a marker never expires");
    redis::cmd("SET").arg("weir:eu:incarnation:{0}").arg("by hand").exec(&mut hand).unwrap();
    assert_ne!(id(&store).await, after.id);
}

#[tokio::test]
async fn a_marker_that_was_set_back_is_renewed_once_though_others_have_read_it() {
    let (redis, store) = started().await;
    let other = open(&options(&redis.url())).await;
    let mut hand = hand(&redis);
    let (mut last, mut others) = (LastRead::default(), LastRead::default());
    let first = look(&store, &mut last).await[0];
    let first_of_other = look(&other, &mut others).await[0];
    for step in 1..=3 {
        let read = look(&store, &mut last).await[0];
        assert_eq!((read.id, read.looks), (first.id, first.looks + step));
    }
    let read = look(&other, &mut others).await[0];
    assert_eq!(read.looks, first_of_other.looks + 1, "reads of others must not count");
    // An older copy without the store's last read, followed by a read of the other client.
    redis::cmd("COPY").arg("weir:eu:incarnation:{0}").arg("weir:eu:copy:{0}").exec(&mut hand).unwrap();
    look(&store, &mut last).await;
    redis::cmd("RENAME").arg("weir:eu:copy:{0}").arg("weir:eu:incarnation:{0}").exec(&mut hand).unwrap();
    assert_eq!(look(&other, &mut others).await[0].id, first.id);
    let before = last.clone();
    let renewed = look(&store, &mut last).await[0];
    assert_ne!(renewed.id, first.id);
    let again = look(&other, &mut others).await[0];
    assert_eq!((again.id, again.looks), (renewed.id, 1));
    let repeated = look(&store, &mut before.clone()).await[0];
    assert_eq!(repeated.id, renewed.id, "an id that no longer exists must not be renewed");

    // A client that has not read for an hour is removed at the next first read of another.
    let long_ago = renewed.since.0 - 3_700_000;
    redis::cmd("HSET")
        .arg("weir:eu:incarnation:{0}")
        .arg("0")
        .arg(format!("7:{long_ago}"))
        .exec(&mut hand)
        .unwrap();
    let fields = |hand: &mut redis::Connection| -> u64 {
        redis::cmd("HLEN").arg("weir:eu:incarnation:{0}").query(hand).unwrap()
    };
    assert_eq!(fields(&mut hand), 5);
    let third = open(&options(&redis.url())).await;
    incarnation(&third).await;
    assert_eq!(fields(&mut hand), 6, "the marker has when the last of them has read");
}

#[tokio::test]
async fn a_client_that_was_away_for_an_hour_begins_no_incarnation_unless_the_marker_was_set_back() {
    let (redis, store) = started().await;
    let mut hand = hand(&redis);
    let mut last = LastRead::default();
    look(&store, &mut last).await;
    let before = look(&store, &mut last).await[0];
    let long_ago = before.read_at().0 - 3_700_000;
    let all: std::collections::BTreeMap<String, String> =
        redis::cmd("HGETALL").arg("weir:eu:incarnation:{0}").query(&mut hand).unwrap();
    for reader in all.keys().filter(|field| field.len() == 32) {
        let seen = format!("{}:{long_ago}", before.looks);
        redis::cmd("HSET").arg("weir:eu:incarnation:{0}").arg(reader).arg(seen).exec(&mut hand).unwrap();
    }
    let other = open(&options(&redis.url())).await;
    incarnation(&other).await;
    let copy = ["weir:eu:incarnation:{0}", "weir:eu:copy:{0}"];
    redis::cmd("COPY").arg(&copy).exec(&mut hand).unwrap();
    last.insert(Incarnation { since: UnixMs(long_ago), age_ms: 0, ..before });
    for step in 1..3 {
        let read = look(&store, &mut last).await[0];
        assert_eq!((read.id, read.looks), (before.id, before.looks + step));
    }
    // The data from before it returned lack what it has stored since.
    redis::cmd("RENAME").arg(copy[1]).arg(copy[0]).exec(&mut hand).unwrap();
    assert_ne!(look(&store, &mut last).await[0].id, before.id);
}

#[tokio::test]
async fn a_server_that_starts_again_empty_is_used_again() {
    let (mut redis, store) = started().await;
    let before = id(&store).await;
    merge_one(&store, merge(&key(b"alice"), &[(A, 5)])).await;
    redis.process().kill().unwrap();
    until_refused(&store, "unavailable").await;
    let began = Instant::now();
    for _ in 0..100 {
        assert_eq!(
            store.incarnations(&LastRead::default(), AMPLE).await.unwrap_err().reason(),
            "unavailable"
        );
    }
    assert!(began.elapsed() < AMPLE, "a call must not wait while the store is unavailable");
    redis.restart().await.unwrap();
    connected(&store).await;
    assert_ne!(id(&store).await, before);
    assert_eq!(merge_one(&store, merge(&key(b"alice"), &[(B, 1)])).await.current, [(B, 1)]);
}

#[tokio::test]
async fn a_store_may_be_opened_before_its_server() {
    let port = ports::free().unwrap();
    let store = Store::open(&options(&format!("redis://127.0.0.1:{port}"))).unwrap();
    assert_eq!(store.incarnations(&LastRead::default(), AMPLE).await.unwrap_err().reason(), "unavailable");
    assert_eq!(
        store.merge(&[merge(&key(b"a"), &[])], now(), AMPLE).await[0].as_ref().unwrap_err().reason(),
        "unavailable"
    );
    let _redis = Redis::start(RedisOptions { port, arguments: Vec::new() }).await.unwrap();
    connected(&store).await;
}

/// The store's name leads to another server, and only one of its connections breaks. If the other one stayed, cells would be written to the
/// one server and found stored in the other.
#[tokio::test]
async fn all_connections_to_a_server_end_together() {
    let (former, present) = (redis().await, redis().await);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let name = listener.local_addr().unwrap();
    let target = watch::Sender::new(former.address());
    let leads_to = target.subscribe();
    let forwards = tokio::spawn(async move {
        let mut open = tokio::task::JoinSet::new();
        while let Ok((mut client, _)) = listener.accept().await {
            let address = *leads_to.borrow();
            let mut server = TcpStream::connect(address).await.unwrap();
            open.spawn(async move { copy_bidirectional(&mut client, &mut server).await });
        }
    });
    let store = open(&options(&format!("redis://{name}"))).await;
    let mut hand = hand(&former);
    let own = clients(&mut hand);
    assert_eq!(own.len(), 1 + 2, "two connections of the store, and the test's");
    target.send_replace(present.address());
    let me: u64 = redis::cmd("CLIENT").arg("ID").query(&mut hand).unwrap();
    let one = own.iter().find_map(|id| id.strip_prefix("id=").filter(|id| *id != me.to_string())).unwrap();
    redis::cmd("CLIENT").arg("KILL").arg("ID").arg(one).exec(&mut hand).unwrap();
    wait::until("no connection stays", HEALED, async || clients(&mut hand).len() == 1).await.unwrap();
    connected(&store).await;
    forwards.abort();
}

#[tokio::test]
async fn a_short_freeze_costs_a_timeout_and_nothing_else() {
    let (mut redis, store) = started().await;
    let cells: Vec<_> = (0..1_000).map(|number| merge(&numbered(number), &[(A, 1)])).collect();
    let mut hand = hand(&redis);
    for _ in 0..10 {
        let connections = clients(&mut hand);
        redis.process().pause().await.unwrap();
        let mut frozen = Vec::new();
        for cells in [&cells[..], &cells[..1]] {
            let results = timeout(AMPLE, store.merge(cells, now(), SHORT))
                .await
                .expect("a call must end at its deadline");
            frozen.extend(results.into_iter().map(|result| result.unwrap_err().reason()));
        }
        redis.process().resume().unwrap();
        let results = store.merge(&cells, now(), AMPLE).await;
        if clients(&mut hand) == connections {
            assert!(frozen.iter().all(|reason| *reason == "timeout"), "{frozen:?}");
            assert!(results.iter().all(Result::is_ok), "{results:?}");
            return;
        }
        // On a busy machine the freeze was not short, and the connection was dropped.
        connected(&store).await;
    }
    panic!("each freeze took more than 2 s");
}

/// Most exact requests that may be under way, and most other calls.
const MOST: usize = 512;

fn charge(workspace: &[u8], number: u64) -> LogCharge {
    let (namespace, identifier) = (b"n", b"i");
    let parts = KeyParts { workspace, namespace, identifier, duration_ms: 60_000, epoch: 0, resolution: 1 };
    let id = EntryId { request: ExactRequestId::of(9, number), place: 0 };
    LogCharge { key: Key::new(&parts).unwrap(), id, cost: 1, most: 100_000 }
}

/// A flood of calls that wait for Redis.
#[derive(Clone, Copy, Debug)]
enum Flood {
    /// Of many workspaces, which together take all places.
    ExactRequests,
    Queries,
}

/// Sends the flood, and waits until each call has a place or was refused.
async fn flood(store: &Store, flood: Flood) -> JoinSet<()> {
    let mut calls = JoinSet::new();
    for number in 0..4 * MOST as u64 {
        let store = store.clone();
        match flood {
            Flood::ExactRequests => {
                let charge = charge(&(number % 32).to_be_bytes(), number);
                calls.spawn(async move { drop(store.charge_logs(&[charge], AMPLE).await) });
            }
            Flood::Queries => {
                let query = proposing(&key(b"alice"), proposal(B, number, 10));
                calls.spawn(async move { drop(store.merge(&[query], now(), AMPLE).await) });
            }
        }
    }
    for _ in 0..10 * MOST {
        tokio::task::yield_now().await;
    }
    calls
}

/// Calls that find a place wait for Redis.
#[tokio::test]
async fn floods_leave_room_to_the_calls_of_the_region() {
    let (mut redis, store) = started().await;
    let mut hand = hand(&redis);
    for kind in [Flood::ExactRequests, Flood::Queries] {
        let mut is_shown = false;
        for _ in 0..10 {
            let connections = clients(&mut hand);
            redis.process().pause().await.unwrap();
            let calls = flood(&store, kind).await;
            let alice = key(b"alice");
            let mut reasons = vec![];
            let look = store.incarnations(&LastRead::default(), SHORT).await;
            reasons.push(look.unwrap_err().reason());
            let merged = store.merge(&[merge(&alice, &[(A, 1)])], now(), SHORT).await.remove(0);
            reasons.push(merged.unwrap_err().reason());
            if matches!(kind, Flood::ExactRequests) {
                let query = proposing(&alice, proposal(B, 1, 10));
                reasons.push(store.merge(&[query], now(), SHORT).await.remove(0).unwrap_err().reason());
            }
            redis.process().resume().unwrap();
            calls.join_all().await;
            connected(&store).await;
            is_shown = clients(&mut hand) == connections;
            if is_shown {
                assert!(reasons.iter().all(|reason| *reason == "timeout"), "{kind:?}: {reasons:?}");
                break;
            }
            // On a busy machine the freeze was not short, and the connection was dropped.
        }
        assert!(is_shown, "each freeze took more than 2 s");
    }
}

/// Of the exact requests that may be under way, those of one workspace have three quarters.
#[tokio::test]
async fn slow_calls_of_one_workspace_leave_room_to_those_of_others() {
    let (mut redis, store) = started().await;
    let mut hand = hand(&redis);
    for _ in 0..10 {
        assert!(store.charge_logs(&[charge(b"quiet", 0)], AMPLE).await[0].is_ok());
        let connections = clients(&mut hand);
        redis.process().pause().await.unwrap();
        let mut flood = JoinSet::new();
        for number in 1..=2 * MOST as u64 {
            let (store, charge) = (store.clone(), charge(b"busy", number));
            flood.spawn(async move { store.charge_logs(&[charge], SHORT).await.remove(0) });
        }
        let flooded = flood.join_all().await;
        // All that were not refused still wait for Redis.
        let another = store.charge_logs(&[charge(b"quiet", 1)], SHORT).await.remove(0);
        redis.process().resume().unwrap();
        assert!(store.charge_logs(&[charge(b"quiet", 2)], AMPLE).await[0].is_ok());
        if clients(&mut hand) == connections {
            let refused = flooded.iter().filter(|result| **result == Err(StoreError::Busy)).count();
            assert_eq!((refused, another), (2 * MOST - MOST / 4 * 3, Err(StoreError::Timeout)));
            return;
        }
        // On a busy machine the freeze was not short, and the connection was dropped.
        connected(&store).await;
    }
    panic!("each freeze took more than 2 s");
}

#[tokio::test]
async fn a_long_freeze_and_its_end_are_detected() {
    let (mut redis, store) = started().await;
    let late = Store::open(&options(&redis.url())).unwrap();
    redis.process().pause().await.unwrap();
    // Abandoned calls are bounded: many calls fail with `unavailable` long before the freeze is noticed.
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..2_000 {
        let store = store.clone();
        calls.spawn(
            async move { store.incarnations(&LastRead::default(), SHORT).await.unwrap_err().reason() },
        );
    }
    let reasons = timeout(AMPLE, calls.join_all()).await.unwrap();
    assert!(reasons.contains(&"timeout") && reasons.contains(&"unavailable"));
    for store in [&store, &late] {
        until_refused(store, "unavailable").await;
    }
    redis.process().resume().unwrap();
    for store in [&store, &late] {
        connected(store).await;
        merge_one(store, merge(&key(b"alice"), &[(A, 1)])).await;
    }
}

#[tokio::test]
async fn a_server_that_never_answers_is_unavailable() {
    let unresponsive = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let store = Store::open(&options(&format!("redis://{}", unresponsive.local_addr().unwrap()))).unwrap();
    for _ in 0..10 {
        assert_eq!(
            timeout(AMPLE, store.incarnations(&LastRead::default(), SHORT))
                .await
                .unwrap()
                .unwrap_err()
                .reason(),
            "unavailable"
        );
    }
}

#[tokio::test]
async fn a_subscription_resumes_after_a_restart() {
    let (mut redis, store) = started().await;
    let mut subscription = store.subscribe();
    assert_eq!(timeout(AMPLE, subscription.recv()).await.unwrap(), Some(Received::Connected));
    redis.restart().await.unwrap();
    assert_eq!(timeout(HEALED, subscription.recv()).await.unwrap(), Some(Received::Connected));
    connected(&store).await;
    store.publish(b"again", AMPLE).await.unwrap();
    assert_eq!(
        timeout(AMPLE, subscription.recv()).await.unwrap(),
        Some(Received::Message(b"again".to_vec()))
    );
    redis.process().pause().await.unwrap();
    let paused = Instant::now();
    until_refused(&store, "unavailable").await;
    // The subscriber has its own connection and pings: one each 500 ms, which may take 2 s.
    sleep_until(paused + Duration::from_secs(4)).await;
    redis.process().resume().unwrap();
    assert_eq!(timeout(HEALED, subscription.recv()).await.unwrap(), Some(Received::Connected));
    drop(store);
    assert_eq!(
        timeout(HEALED, subscription.recv()).await.unwrap(),
        None,
        "the subscription must end with the store"
    );
}

#[tokio::test]
async fn connections_end_with_the_last_clone() {
    let (redis, store) = started().await;
    let clone = store.clone();
    let listener = store.subscribe();
    drop(store);
    connected(&clone).await;
    drop((clone, listener));
    let mut hand = hand(&redis);
    wait::until("only the test is connected", HEALED, async || clients(&mut hand).len() == 1).await.unwrap();
}

#[tokio::test]
async fn an_error_states_its_reason() {
    let (redis, store) = started().await;
    let mut hand = hand(&redis);
    let mut set = |command: &[&str]| redis::cmd(command[0]).arg(&command[1..]).exec(&mut hand).unwrap();
    merge_one(&store, merge(&key(b"alice"), &[(A, 1)])).await;
    for (count, break_it, mend_it, code) in [
        (2, ["CONFIG", "SET", "maxmemory", "1"], ["CONFIG", "SET", "maxmemory", "0"], "OOM"),
        (3, ["REPLICAOF", "127.0.0.1", "1", ""], ["REPLICAOF", "NO", "ONE", ""], "READONLY"),
    ] {
        let words = |command: [&'static str; 4]| {
            command.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>()
        };
        set(&words(break_it));
        let error = store
            .merge(&[merge(&key(b"alice"), &[(A, count)])], now(), AMPLE)
            .await
            .pop()
            .unwrap()
            .unwrap_err();
        assert_eq!(error.reason(), "refused");
        assert!(error.to_string().contains(code), "{error}");
        set(&words(mend_it));
        // If a primary became a replica, the store reconnects to the server that its name points to now.
        let works = async || {
            let again = merge(&key(b"alice"), &[(A, count)]);
            store.merge(&[again], now(), AMPLE).await.pop().is_some_and(|merged| merged.is_ok())
        };
        wait::until("the store works again", AMPLE, works).await.unwrap();
    }
}

#[tokio::test]
async fn a_login_is_used_and_never_shown() {
    const PASSWORD: &str = "hunter2:/@,%";
    const ENCODED: &str = "hunter2%3A%2F%40%2C%25";
    let rules = format!("--user weir on >{PASSWORD} ~weir:* &weir:* +@all --user default off");
    let arguments = rules.split(' ').map(str::to_owned).collect();
    let redis = Redis::start(RedisOptions { port: 0, arguments }).await.unwrap();
    let url = |login: &str| format!("redis://{login}{}", redis.address());
    let good = options(&url(&format!("weir:{ENCODED}@")));
    let store = open(&good).await;
    let mut subscription = store.subscribe();
    assert_eq!(timeout(AMPLE, subscription.recv()).await.unwrap(), Some(Received::Connected));
    merge_one(&store, merge(&key(b"alice"), &[(A, 1)])).await;
    store.nodes(&[A], member(1), &time(), AMPLE).await.unwrap();
    assert!(!format!("{good:?} {store:?}").contains("hunter2"));

    for login in
        [format!("weir:not{ENCODED}@"), format!("unknown:{ENCODED}@"), format!(":{ENCODED}@"), String::new()]
    {
        let store = Store::open(&options(&url(&login))).unwrap();
        let error = until_refused(&store, "refused").await;
        assert!(!error.contains("hunter2") && !error.contains("unknown"), "{error}");
    }
    let foreign = StoreOptions { prefix: "other".to_owned(), ..good };
    let store = Store::open(&foreign).unwrap();
    assert!(until_refused(&store, "refused").await.contains("NOPERM"));
}

/// Gives `redis` the address of a server that has ended, as a name or a virtual address moves at a failover.
async fn takes_over(redis: &Redis, from: &Redis) {
    let answer = redis.command(&format!("CONFIG SET port {}", from.port())).await.unwrap();
    assert!(answer.starts_with("+OK"), "{answer}");
}

/// The last read of the marker was replicated; a merge right after it was not. So the marker that the replica has
/// shows no loss by its id and its numbers.
#[tokio::test]
async fn a_promoted_replica_begins_an_incarnation() {
    let mut primary = redis().await;
    let replica = replica_of(&primary).await;
    let store = open(&options(&primary.url())).await;
    let mut last = LastRead::default();
    let before = look(&store, &mut last).await[0];
    assert_eq!(look(&store, &mut last).await[0].id, before.id);
    replicated(&primary).await;
    replica.command("REPLICAOF 127.0.0.1 1").await.unwrap();
    merge_one(&store, merge(&key(b"alice"), &[(A, 5)])).await;
    primary.process().kill().unwrap();
    replica.command("REPLICAOF NO ONE").await.unwrap();
    takes_over(&replica, &primary).await;
    // Another client, which starts only now, reads the marker first.
    open(&options(&primary.url())).await;
    connected_as(&store, &last).await;
    let after = look(&store, &mut last).await[0];
    assert_ne!(after.id, before.id);
    assert!(after.since > before.since);
    assert_eq!(merge_one(&store, merge(&key(b"alice"), &[])).await.current, [], "the count was lost");
    assert_eq!(look(&store, &mut last).await[0].id, after.id, "it is one loss");
    let _second = Redis::start(RedisOptions {
        port: 0,
        arguments: ["--replicaof", "127.0.0.1", &primary.port().to_string()].map(str::to_owned).to_vec(),
    })
    .await
    .unwrap();
    wait::until("a new replica is connected", HEALED, async || {
        let mut hand = hand(&primary);
        let info: String = redis::cmd("INFO").arg("replication").query(&mut hand).unwrap();
        info.contains("connected_slaves:1")
    })
    .await
    .unwrap();
    assert_eq!(look(&store, &mut last).await[0].id, after.id, "a replica that is added loses nothing");
}

/// The same process serves before and after, so only its promotion shows what it may lack.
#[tokio::test]
async fn a_primary_that_became_a_replica_and_is_promoted_again_begins_an_incarnation() {
    let first = redis().await;
    let second = replica_of(&first).await;
    let store = open(&options(&first.url())).await;
    let mut last = LastRead::default();
    let before = look(&store, &mut last).await[0];
    replicated(&first).await;
    second.command("REPLICAOF NO ONE").await.unwrap();
    merge_one(&store, merge(&key(b"alice"), &[(A, 5)])).await;
    first.command(&format!("REPLICAOF 127.0.0.1 {}", second.port())).await.unwrap();
    wait::until("the first server is a replica", HEALED, async || {
        first.command("INFO replication").await.is_ok_and(|info| info.contains("master_link_status:up"))
    })
    .await
    .unwrap();
    first.command("REPLICAOF NO ONE").await.unwrap();
    // Every client has to connect again.
    connected_as(&store, &last).await;
    let after = look(&store, &mut last).await[0];
    assert_ne!(after.id, before.id);
    assert_eq!(merge_one(&store, merge(&key(b"alice"), &[])).await.current, [], "the count was lost");
}

/// A Sentinel decides the failover itself.
#[tokio::test]
async fn a_failover_by_a_sentinel_begins_an_incarnation() {
    let mut primary = redis().await;
    let replica = replica_of(&primary).await;
    let mut sentinel = Sentinel::start(primary.port(), 1, "");
    sentinel.knows(&replica, 0, "").await;

    let store = open(&options(&primary.url())).await;
    let mut last = LastRead::default();
    let before = look(&store, &mut last).await[0];
    replicated(&primary).await;
    primary.process().kill().unwrap();
    let promoted =
        async || replica.command("INFO replication").await.is_ok_and(|info| info.contains("role:master"));
    sentinel.process.wait_for("the Sentinel promotes the replica", HEALED, promoted).await.unwrap();
    sentinel.process.kill().unwrap();
    takes_over(&replica, &primary).await;
    connected_as(&store, &last).await;
    let after = look(&store, &mut last).await[0];
    assert_ne!(after.id, before.id);
}

/// The privileges that `aggregator/README.md` lists for a Redis user.
fn documented_rights() -> String {
    let page = include_str!("../../../README.md");
    let from = page.find("~weir:*").expect("the page lists the privileges");
    page[from..].lines().next().expect("a line").to_owned()
}

#[tokio::test]
async fn the_documented_rights_suffice_and_allow_no_more() {
    const PASSWORD: &str = "secret";
    let rules =
        format!("--user weir on >{PASSWORD} {} --user admin on >{PASSWORD} ~* &* +@all", documented_rights());
    let arguments = rules.split_whitespace().map(str::to_owned).collect();
    let redis = Redis::start(RedisOptions { port: 0, arguments }).await.unwrap();
    let url = |user: &str| format!("redis://{user}:{PASSWORD}@{}", redis.address());
    let store = open(&options(&url("weir"))).await;

    let mut messages = store.subscribe();
    assert_eq!(timeout(AMPLE, messages.recv()).await.unwrap(), Some(Received::Connected));
    store.publish(b"change", AMPLE).await.unwrap();
    assert!(matches!(timeout(AMPLE, messages.recv()).await.unwrap(), Some(Received::Message(_))));
    let cell = key(b"alice");
    merge_one(&store, merge(&cell, &[(A, 1)])).await;
    assert_eq!(merge_one(&store, proposing(&cell, proposal(B, 1, 10))).await.granted, Some(true));
    let lower_bound = LowerBound { key: cell.clone(), sequence: CELL, total: 5, expires: LATE };
    store.raise_to(&[lower_bound], now(), AMPLE).await.pop().unwrap().unwrap();
    store.read(&[(cell.clone(), CELL)], AMPLE).await.pop().unwrap().unwrap();
    store.note_hot(&[(cell.clone(), CELL, LATE)], now(), AMPLE).await.unwrap();
    store.hot(0, UnixMs(1), 10, AMPLE).await.unwrap();
    store.nodes(&[A], member(1), &time(), AMPLE).await.unwrap();
    store.status(&[1; 16], b"well", AMPLE).await.unwrap();
    store.delete_status(&[1; 16], AMPLE).await.unwrap();
    let id = EntryId { request: ExactRequestId::of(9, 1), place: 0 };
    let charge = LogCharge { key: cell, id, cost: 1, most: 1 };
    store.charge_logs(std::slice::from_ref(&charge), AMPLE).await.pop().unwrap().unwrap();
    assert!(store.refund_logs(&[charge], AMPLE).await.pop().unwrap().unwrap());

    let connect = |user: &str| redis::Client::open(url(user)).unwrap().get_connection().unwrap();
    let log: Vec<redis::Value> = redis::cmd("ACL").arg("LOG").query(&mut connect("admin")).unwrap();
    assert!(log.is_empty(), "Redis denied commands, and the store hid the error: {log:?}");
    // Without the right to INFO, markers show no failover.
    assert!(incarnation(&store).await.server.is_some());
    redis::cmd("ACL").arg(&["SETUSER", "weir", "-info"]).exec(&mut connect("admin")).unwrap();
    assert_eq!(incarnation(&store).await.server, None);
    redis::cmd("ACL").arg(&["SETUSER", "weir", "+info"]).exec(&mut connect("admin")).unwrap();
    let mut hand = connect("weir");
    for refused in [
        "FLUSHALL",
        "FLUSHDB",
        "SCRIPT FLUSH",
        "FUNCTION FLUSH",
        "KEYS *",
        "SWAPDB 0 1",
        "CONFIG GET maxmemory",
        "CONFIG SET maxmemory 1",
        "ACL LIST",
        "CLIENT LIST",
        "CLIENT KILL TYPE normal",
        "REPLICAOF NO ONE",
        "SHUTDOWN NOSAVE",
        "EVAL return 0",
        "GET other",
        "PUBLISH other message",
    ] {
        let mut words = refused.split(' ');
        let mut command = redis::cmd(words.next().unwrap());
        words.for_each(|word| {
            command.arg(word);
        });
        let error = command.query::<redis::Value>(&mut hand).expect_err(refused).to_string();
        assert!(error.contains("NOPERM") || error.contains("permissions"), "{refused}: {error}");
    }
}

#[tokio::test]
async fn tls_with_an_authority_of_one_s_own() {
    let folder = tempfile::tempdir().unwrap();
    make_certificates(folder.path());
    let (redis, tls_port) = redis_with_tls(folder.path()).await;
    let url = format!("rediss://127.0.0.1:{tls_port}");
    let trusting = StoreOptions { ca_file: Some(folder.path().join("ca.pem")), ..options(&url) };
    let store = open(&trusting).await;
    let mut subscription = store.subscribe();
    assert_eq!(timeout(AMPLE, subscription.recv()).await.unwrap(), Some(Received::Connected));
    merge_one(&store, Merge { limit: 7, ..merge(&key(b"alice"), &[(A, 1)]) }).await;
    let others_ca = StoreOptions { ca_file: Some(folder.path().join("other.pem")), ..options(&url) };
    for untrusting in [others_ca, options(&url)] {
        let refusals = refused_handshakes(&redis);
        let store = Store::open(&untrusting).unwrap();
        wait::until("a handshake was tried", HEALED, async || refused_handshakes(&redis) > refusals)
            .await
            .unwrap();
        assert_eq!(
            store.incarnations(&LastRead::default(), AMPLE).await.unwrap_err().reason(),
            "unavailable"
        );
    }
    let to_the_plain_port = Store::open(&options(&format!("rediss://{}", redis.address()))).unwrap();
    assert!(to_the_plain_port.incarnations(&LastRead::default(), AMPLE).await.is_err());
}

fn refused_handshakes(redis: &Redis) -> usize {
    let log = std::fs::read_to_string(redis.folder().join("redis.log")).unwrap();
    log.matches("Error accepting a client connection").count()
}

/// Waits until the markers can be read by a client that has read `last`.
async fn connected_as(store: &Store, last: &LastRead) {
    let up =
        async || store.incarnations(last, AMPLE).await.is_ok_and(|incarnations| incarnations.unseen == 0);
    wait::until("the store is connected", HEALED, up).await.unwrap();
}

async fn incarnation(store: &Store) -> Incarnation {
    let incarnations = store.incarnations(&LastRead::default(), AMPLE).await.unwrap();
    assert_eq!((incarnations.seen.len(), incarnations.unseen), (1, 0));
    incarnations.seen[0]
}

async fn id(store: &Store) -> u128 {
    incarnation(store).await.id
}

/// Waits until calls fail with `reason`, and returns the error's text.
async fn until_refused(store: &Store, reason: &str) -> String {
    let what = format!("calls fail: {reason}");
    wait::until_some(&what, HEALED, async || {
        let error = store
            .incarnations(&LastRead::default(), SHORT)
            .await
            .err()
            .filter(|error| error.reason() == reason);
        Ok(error.map(|error| format!("{error} {error:?}")))
    })
    .await
    .unwrap()
}

/// The ids of all connections of the server.
fn clients(hand: &mut redis::Connection) -> Vec<String> {
    let list: String = redis::cmd("CLIENT").arg("LIST").query(hand).unwrap();
    list.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}
