//! Tests of exact logs on a real Redis: every window of a trace, floods, faults, and requests with several charges,
//! which pass as a whole or not at all. The same in memory.

use super::refund;
use crate::support::redis::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use weir_aggregator::redis::Store;
use weir_aggregator::region::exact::{Exact, RuleFacts, Unread};
use weir_core::model::exact::{
    Charge, ChargeResult, ExactKey, ExactRequestId, MAX_CHARGES, Verdict, all_allowed,
};
use weir_core::model::key::{Key, KeyParts};
use weir_core::replication::exact::refund::Withdrawal;
use weir_envoy::{Redis, wait};

const SHORT: Duration = Duration::from_millis(100);

fn key_of(name: &str, duration_ms: u64) -> Key {
    let (workspace, namespace, identifier) = (b"default", b"login", name.as_bytes());
    Key::new(&KeyParts { workspace, namespace, identifier, duration_ms, epoch: 0, resolution: 1 }).unwrap()
}

fn log(name: &str, duration_ms: u64, cost: u64, most: u64) -> Charge {
    Charge { key: ExactKey::Log(key_of(name, duration_ms)), most, cost }
}

/// A log of a minute.
fn minute(name: &str, cost: u64, most: u64) -> Charge {
    log(name, 60_000, cost, most)
}

fn ledger() -> Charge {
    Charge { key: ExactKey::Ledger { zone: 1, bucket: Box::from(*b"bucket") }, most: 0, cost: 1 }
}

fn request(number: u64) -> ExactRequestId {
    ExactRequestId::of(77, number)
}

/// The refund of a request without results, which is over.
fn unanswered(number: u64, charge: Charge) -> Withdrawal {
    Withdrawal { id: request(number), charges: vec![charge], results: Vec::new(), still_us: 0 }
}

async fn one(exact: &Exact, number: u64, charge: Charge) -> ChargeResult {
    exact.decide(request(number), &[charge], AMPLE).await[0]
}

fn verdicts(results: &[ChargeResult]) -> Vec<&'static str> {
    let word = |result: &ChargeResult| match result.verdict {
        Verdict::Allowed => "allowed",
        Verdict::Denied { .. } => "denied",
        Verdict::Untried => "untried",
        Verdict::Undecided => "undecided",
    };
    results.iter().map(word).collect()
}

/// The use of a limit, read by a charge of 0.
async fn used(exact: &Exact, charge: &Charge) -> u64 {
    assert!(charge.key.own().is_some(), "a log");
    let free = Charge { most: 1_000, cost: 0, ..charge.clone() };
    let result = exact.decide(request(u64::MAX), &[free], AMPLE).await[0];
    assert!(result.is_allowed(), "{result:?}");
    1_000 - result.remaining
}

async fn on_redis() -> (Redis, Exact) {
    let (redis, store) = started().await;
    (redis, Exact::new(Some(store), None))
}

/// The entries of a log: time and cost by request and place.
type Trace = BTreeMap<([u8; 16], u8), (u64, u64)>;

fn read_log(hand: &mut redis::Connection, name: &str, trace: &mut Trace) {
    let entries: Vec<(Vec<u8>, f64)> =
        redis::cmd("ZRANGE").arg(name).arg(&["0", "-1", "WITHSCORES"]).query(hand).unwrap();
    for (member, score) in entries.into_iter().filter(|(_, score)| *score >= 0.0) {
        let cost = member[17..].iter().fold(0, |cost, byte| cost * 256 + u64::from(*byte));
        trace.insert((member[..16].try_into().unwrap(), member[16]), (score as u64, cost));
    }
}

/// The highest sum in any window of the trace.
fn fullest_window(mut entries: Vec<(u64, u64)>, window_us: u64) -> u64 {
    entries.sort_unstable();
    let (mut first, mut sum, mut fullest) = (0, 0, 0);
    for &(at, cost) in &entries {
        sum += cost;
        while at - entries[first].0 >= window_us {
            sum -= entries[first].1;
            first += 1;
        }
        fullest = fullest.max(sum);
    }
    fullest
}

/// A client's allowed charges that were not refunded.
type Passed = Vec<(usize, ([u8; 16], u8), u64)>;

async fn hammer(exact: Arc<Exact>, client: u64, over: Arc<AtomicBool>, keys: usize, most: u64) -> Passed {
    let mut random = StdRng::seed_from_u64(client);
    let mut passed = Vec::new();
    let mut number = 0;
    while !over.load(Relaxed) {
        number += 1;
        let id = ExactRequestId::of(client, number);
        let first = random.random_range(0..keys);
        let mut charges = vec![(first, random.random_range(1..=3))];
        if random.random_range(0..4) == 0 {
            charges.push(((first + 1) % keys, 1));
        }
        let question: Vec<_> =
            charges.iter().map(|(key, cost)| log(&format!("hot-{key}"), 1_000, *cost, most)).collect();
        let results = exact.decide(id, &question, Duration::from_millis(200)).await;
        if all_allowed(&results) {
            if random.random_range(0..10) == 0 {
                exact.refund_later(&Withdrawal { id, charges: question, results, still_us: 0 });
                continue;
            }
            for (place, (key, cost)) in (0..).zip(charges) {
                passed.push((key, (id.0, place), cost));
            }
        } else {
            tokio::task::yield_now().await;
        }
    }
    passed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_window_of_the_trace_holds_more_than_the_limit() {
    const KEYS: usize = 3;
    const MOST: u64 = 60;
    const WINDOW_US: u64 = 1_000_000;
    const SECONDS: u64 = 6;
    let redis = redis().await;
    let over = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for engine in 0..3 {
        let exact = Arc::new(Exact::new(Some(open(&options(&redis.url())).await), None));
        for client in 0..4 {
            clients.spawn(hammer(exact.clone(), 100 + engine * 4 + client, over.clone(), KEYS, MOST));
        }
    }
    let mut hand = hand(&redis);
    let mut traces = vec![Trace::new(); KEYS];
    let began = Instant::now();
    let mut round = 0;
    // A busy machine needs longer to use as much.
    let is_used = |trace: &Trace| trace.values().map(|(_, cost)| cost).sum::<u64>() >= MOST * (SECONDS - 2);
    let least = |traces: &[Trace]| if traces.iter().all(is_used) { SECONDS } else { 5 * SECONDS };
    while began.elapsed() < Duration::from_secs(least(&traces)) {
        sleep(Duration::from_millis(50)).await;
        for (key, trace) in traces.iter_mut().enumerate() {
            read_log(&mut hand, &format!("weir:eu:{{default/login/hot-{key}/1000/0/1}}:log"), trace);
        }
        round += 1;
        if round % 30 == 0 {
            redis::cmd("CLIENT").arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]).exec(&mut hand).unwrap();
        }
    }
    over.store(true, Relaxed);
    let mut passed: Vec<Vec<(u64, u64)>> = vec![Vec::new(); KEYS];
    for (key, id, cost) in clients.join_all().await.into_iter().flatten() {
        // The last entries were not read completely.
        if let Some(&(at, charged)) = traces[key].get(&id) {
            assert_eq!(charged, cost);
            passed[key].push((at, cost));
        }
    }
    for (key, entries) in passed.into_iter().enumerate() {
        let (count, sum) = (entries.len(), entries.iter().map(|(_, cost)| cost).sum::<u64>());
        let fullest = fullest_window(entries, WINDOW_US);
        println!("key {key}: {count} charges of {sum}; the fullest window held {fullest} of {MOST}");
        assert!(fullest <= MOST);
        assert!(fullest >= MOST - 1 && sum >= MOST * (SECONDS - 3), "saturated");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_saturated_log_allows_exactly_its_limit() {
    let redis = redis().await;
    let mut tasks = JoinSet::new();
    for engine in 0..4_u64 {
        let exact = Arc::new(Exact::new(Some(open(&options(&redis.url())).await), None));
        for client in 0..8 {
            let exact = exact.clone();
            tasks.spawn(async move {
                let mut allowed = 0;
                for number in 0..50 {
                    let id = ExactRequestId::of(engine * 8 + client, number);
                    let results = exact.decide(id, &[minute("alice", 1, 500)], AMPLE).await;
                    allowed += u64::from(all_allowed(&results));
                }
                allowed
            });
        }
    }
    assert_eq!(tasks.join_all().await.into_iter().sum::<u64>(), 500, "of 1600");
}

#[tokio::test]
async fn denied_requests_reach_no_store() {
    let (redis, exact) = on_redis().await;
    let mut hand = hand(&redis);
    for number in 0..5 {
        assert!(one(&exact, number, minute("alice", 1, 5)).await.is_allowed());
    }
    let before = calls(&mut hand);
    let began = Instant::now();
    for number in 0..10_000 {
        let result = one(&exact, 10 + number, minute("alice", 1 + number % 3, 5)).await;
        let Verdict::Denied { retry_after_ms: Some(wait) } = result.verdict else { panic!("{result:?}") };
        assert!(wait <= 60_000 && result.remaining == 0 && result.limit == 5);
    }
    let (calls_made, took) = (calls(&mut hand) - before, began.elapsed());
    println!("10000 denials in {took:?} with {calls_made} calls of the store");
    assert!(calls_made <= 2 + took.as_secs(), "one a second");
    // A refund of this aggregator takes effect at once.
    let charges = [minute("alice", 1, 5)];
    refund(&exact, request(3), &charges, &[], 1).await;
    assert!(one(&exact, 20_000, minute("alice", 1, 5)).await.is_allowed());
}

/// Number of script calls and of commands sent by hand.
fn calls(hand: &mut redis::Connection) -> u64 {
    let stats: String = redis::cmd("INFO").arg("commandstats").query(hand).unwrap();
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")).unwrap();
    line.split(',').next().unwrap().parse().unwrap()
}

/// The result of a request with several charges, for logs in Redis and in memory.
async fn all_or_nothing(exact: &Exact) {
    let full = minute("full", 1, 1);
    assert!(one(exact, 1, full.clone()).await.is_allowed());
    let results = exact.decide(request(2), &[minute("free", 2, 9), full.clone(), ledger()], AMPLE).await;
    assert_eq!(verdicts(&results), ["untried", "denied", "untried"]);
    assert_eq!((results[0].limit, results[1].remaining), (9, 0));
    assert_eq!(used(exact, &minute("free", 0, 0)).await, 0, "the charge must be refunded");

    let results = exact.decide(request(3), &[minute("free", 2, 9), ledger()], AMPLE).await;
    assert_eq!(
        verdicts(&results),
        ["allowed", "undecided"],
        "without a ledger, the log must still be enforced"
    );
    assert_eq!(used(exact, &minute("free", 0, 0)).await, 2);
    refund(exact, request(3), &[minute("free", 2, 9), ledger()], &results, 1).await;
    assert_eq!(used(exact, &minute("free", 0, 0)).await, 0, "the refund must take effect");

    let twice = [minute("twice", 2, 9), minute("twice", 3, 6)];
    let results = exact.decide(request(4), &twice, AMPLE).await;
    assert_eq!(verdicts(&results), ["allowed", "allowed"]);
    assert!(results.iter().all(|result| (result.limit, result.remaining) == (6, 1)), "{results:?}");
    assert_eq!(
        exact.decide(request(4), &twice, AMPLE).await[0].remaining,
        1,
        "a repeated request must be charged once"
    );
    let results = exact.decide(request(5), &twice, AMPLE).await;
    assert_eq!(verdicts(&results), ["denied", "denied"]);
    refund(exact, request(4), &twice, &[], 1).await;
    refund(exact, request(4), &twice, &results, 0).await;
    assert_eq!(used(exact, &twice[0]).await, 0);

    let never = one(exact, 6, minute("free", 7, 6)).await;
    assert_eq!(never.verdict, Verdict::Denied { retry_after_ms: None });
    let many = vec![minute("many", 1, 1_000); MAX_CHARGES + 1];
    assert!(verdicts(&exact.decide(request(7), &many, AMPLE).await).iter().all(|word| *word == "undecided"));
    let many: Vec<_> = (0..MAX_CHARGES).map(|number| minute(&format!("many-{number}"), 1, 1)).collect();
    assert!(all_allowed(&exact.decide(request(8), &many, AMPLE).await));
    let results = exact.decide(request(9), &many, AMPLE).await;
    assert!(results.iter().all(|result| !result.is_allowed()));
    assert!(exact.decide(request(10), &[], AMPLE).await.is_empty());
}

#[tokio::test]
async fn all_charges_of_an_exact_request_pass_or_none() {
    let (_redis, exact) = on_redis().await;
    all_or_nothing(&exact).await;
}

#[tokio::test]
async fn without_redis_the_same_is_kept_in_memory() {
    let exact = Exact::new(None, None);
    all_or_nothing(&exact).await;
    assert!(one(&exact, 100, log("short", 1_000, 1, 1)).await.is_allowed());
    let denied = one(&exact, 101, log("short", 1_000, 1, 1)).await;
    assert!(matches!(denied.verdict, Verdict::Denied { retry_after_ms: Some(1..=1_000) }), "{denied:?}");
    let leaves = async || one(&exact, 102, log("short", 1_000, 1, 1)).await.is_allowed();
    wait::until("the entry has expired", AMPLE, leaves).await.unwrap();
    exact.refund_later(&unanswered(102, log("short", 1_000, 1, 1)));
    let taken_back = async || used(&exact, &log("short", 1_000, 0, 0)).await == 0;
    wait::until("the charge is refunded", AMPLE, taken_back).await.unwrap();
}

#[tokio::test]
async fn whatever_redis_does_every_call_ends_in_time() {
    let nowhere = Store::open(&options(&format!("redis://127.0.0.1:{}", weir_envoy::ports::free().unwrap())));
    let nowhere = Exact::new(Some(nowhere.unwrap()), None);
    undecided_in_time(&nowhere).await;

    let (mut redis, exact) = on_redis().await;
    assert!(one(&exact, 1, minute("alice", 1, 5)).await.is_allowed());
    redis.process().pause().await.unwrap();
    undecided_in_time(&exact).await;
    redis.process().resume().unwrap();
    back(&exact).await;
    assert_eq!(used(&exact, &minute("alice", 0, 0)).await, 1, "a late charge must not be made");

    redis.process().kill().unwrap();
    undecided_in_time(&exact).await;
    redis.restart().await.unwrap();
    back(&exact).await;
    assert_eq!(used(&exact, &minute("alice", 0, 0)).await, 0, "a log is stored only in Redis");

    assert!(one(&exact, 2, minute("alice", 1, 5)).await.is_allowed());
    redis::cmd("FLUSHALL").exec(&mut hand(&redis)).unwrap();
    assert_eq!(used(&exact, &minute("alice", 0, 0)).await, 0);
}

#[tokio::test]
async fn logs_are_shown_as_redis_has_them_or_as_of_their_last_decision() {
    let (mut redis, exact) = on_redis().await;
    for number in 0..3 {
        assert_eq!(one(&exact, number, minute("alice", 1, 2)).await.is_allowed(), number < 2);
    }
    // Another aggregator of the region refunds one.
    let other = Exact::new(Some(Store::open(&options(&redis.url())).unwrap()), None);
    assert!(one(&other, 0, minute("alice", 1, 2)).await.is_allowed(), "the same charge again");
    other.refund_later(&unanswered(0, minute("alice", 1, 2)));
    let refunded = async || used(&other, &minute("alice", 0, 0)).await == 1;
    wait::until("the charge is refunded", AMPLE, refunded).await.unwrap();
    let shown = exact.nearest(b"ALI", |_| RuleFacts::default()).await;
    let [alice] = &shown.keys[..] else { panic!("{shown:?}") };
    assert_eq!(
        (alice.usage.used, alice.usage.limit, alice.usage.wait_ms),
        (1, Some(2), Some(0)),
        "{alice:?}"
    );
    assert_eq!((alice.denied, alice.window_ms, alice.age_ms), (1, 60_000, 0));
    let looked = exact.look(&alice.key, 9, AMPLE).await.unwrap().unwrap();
    assert_eq!((looked.usage.used, looked.usage.limit), (1, Some(9)));
    assert_eq!(used(&other, &minute("alice", 0, 0)).await, 1, "looking charges nothing");

    redis.process().pause().await.unwrap();
    let began = Instant::now();
    let shown = exact.nearest(b"", |_| RuleFacts::default()).await;
    assert_eq!(
        (shown.keys[0].usage.used, shown.keys[0].denied),
        (2, 1),
        "as of its last decision: {shown:?}"
    );
    assert_eq!(exact.look(&shown.keys[0].key, 2, SHORT).await, Err(Unread::Log));
    assert!(began.elapsed() < AMPLE, "{:?}", began.elapsed());
    redis.process().resume().unwrap();
}

/// Sends requests while Redis does not answer, long enough for the breaker to open.
async fn undecided_in_time(exact: &Exact) {
    for number in 0..20 {
        let charges = [minute("alice", 1, 5), minute("bob", 1, 5)];
        let deciding = exact.decide(request(1_000 + number), &charges, SHORT);
        let results =
            timeout(SHORT + Duration::from_secs(1), deciding).await.expect("a result within the deadline");
        assert_eq!(verdicts(&results), ["undecided", "undecided"]);
    }
    let began = Instant::now();
    for number in 0..100 {
        let results = exact.decide(request(2_000 + number), &[minute("alice", 1, 5)], AMPLE).await;
        assert_eq!(verdicts(&results), ["undecided"]);
    }
    assert!(began.elapsed() < AMPLE, "an open breaker must answer at once");
}

async fn back(exact: &Exact) {
    let decides =
        async || exact.decide(request(3_000), &[minute("probe", 0, 5)], SHORT).await[0].is_allowed();
    wait::until("requests are decided again", HEALED, decides).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charges_of_denied_requests_are_refunded() {
    let redis = redis().await;
    let mut hand = hand(&redis);
    let exact = Arc::new(Exact::new(Some(open(&options(&redis.url())).await), None));
    let (mut requested, mut allowed) = (0, 0);
    for round in 0..8 {
        back(&exact).await;
        let mut tasks = JoinSet::new();
        for client in 0..8 {
            let exact = exact.clone();
            tasks.spawn(async move {
                let mut results = Vec::new();
                for number in 0..20 {
                    let id = ExactRequestId::of(round * 8 + client, number);
                    let within = Duration::from_millis(20);
                    results
                        .push(exact.decide(id, &[minute("alice", 1, 5_000)], within).await[0].is_allowed());
                }
                results
            });
        }
        sleep(Duration::from_millis(round)).await;
        redis::cmd("CLIENT").arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]).exec(&mut hand).unwrap();
        for result in tasks.join_all().await.into_iter().flatten() {
            requested += 1;
            allowed += u64::from(result);
        }
    }
    println!("{allowed} of {requested} were allowed while connections broke");
    assert!((1..requested).contains(&allowed));
    let settled = async || used_by_hand(&mut hand) == allowed;
    wait::until("only what was allowed counts", HEALED, settled).await.unwrap();
}

fn used_by_hand(hand: &mut redis::Connection) -> u64 {
    let mut trace = Trace::new();
    read_log(hand, "weir:eu:{default/login/alice/60000/0/1}:log", &mut trace);
    trace.values().map(|(_, cost)| cost).sum()
}
