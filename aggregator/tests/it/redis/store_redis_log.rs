//! Tests of sliding logs on a real Redis: the scripts compared with the log in memory step by step; damaged keys; clock
//! steps of the server; memory; a cluster.

use crate::support::redis::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use weir_aggregator::redis::{Store, StoreOptions};
use weir_core::model::exact::{ExactRequestId, MAX_LOG_LIMIT};
use weir_core::model::key::{Key, KeyParts};
use weir_core::region::log::{EntryId, Log, LogCharge, LogDecision, Micros, Outcome};
use weir_envoy::{RedisCluster, wait};

const NAME: &str = "weir:eu:{default/login/alice/60000/0/1}:log";
const MINUTE: u64 = 60_000_000;
const KEY_LUA: &str = include_str!("../../../src/redis/log_key.lua");
const CHARGE_LUA: &str = include_str!("../../../src/redis/log.lua");
const REFUND_LUA: &str = include_str!("../../../src/redis/log_refund.lua");

fn id(number: u64) -> EntryId {
    EntryId { request: ExactRequestId::of(9, number), place: 3 }
}

fn charge(number: u64, cost: u64, most: u64) -> LogCharge {
    LogCharge { key: key(b"alice"), id: id(number), cost, most }
}

/// A log with another window.
fn charge_in(duration_ms: u64, number: u64, cost: u64, most: u64) -> LogCharge {
    let (workspace, namespace, identifier) = (b"default", b"login", b"alice");
    let parts = KeyParts { workspace, namespace, identifier, duration_ms, epoch: 0, resolution: 1 };
    LogCharge { key: Key::new(&parts).unwrap(), ..charge(number, cost, most) }
}

async fn decide(store: &Store, charge: LogCharge) -> LogDecision {
    store.charge_logs(&[charge], AMPLE).await.pop().unwrap().unwrap()
}

async fn refund(store: &Store, charge: LogCharge) -> bool {
    store.refund_logs(&[charge], AMPLE).await.pop().unwrap().unwrap()
}

fn entry(number: u64, cost: u64) -> Vec<u8> {
    [&ExactRequestId::of(9, number).0[..], &[3], &cost.to_be_bytes()[5..]].concat()
}

/// The scripts with a clock that the test sets.
struct Steered {
    hand: redis::Connection,
    charge: redis::Script,
    refund: redis::Script,
}

impl Steered {
    fn new(hand: redis::Connection) -> Steered {
        let (real, steered) = ("redis.call('TIME')", "{ KEYS[2], KEYS[3] }");
        assert!(CHARGE_LUA.contains(real));
        let charge = redis::Script::new(&format!("{KEY_LUA}{}", CHARGE_LUA.replace(real, steered)));
        Steered { hand, charge, refund: redis::Script::new(&format!("{KEY_LUA}{REFUND_LUA}")) }
    }

    /// The script's numbers: status, server's time, log's time, sum, oldest, last to expire.
    fn charge(&mut self, now: u64, charge: &LogCharge, clock: &[u64]) -> [i64; 6] {
        let window_us = charge.key.parts().duration_ms * 1_000;
        let EntryId { request, place } = charge.id;
        let member = [&request.0[..], &[place], &charge.cost.to_be_bytes()[5..]].concat();
        let mut call = self.charge.key("steered");
        call.key(now / 1_000_000).key(now % 1_000_000);
        call.arg(member).arg(charge.cost).arg(charge.most).arg(window_us);
        if clock.is_empty() {
            call.arg("");
        }
        for number in clock {
            call.arg(number);
        }
        call.invoke::<Vec<i64>>(&mut self.hand).unwrap().try_into().unwrap()
    }

    fn decide(&mut self, now: u64, charge: &LogCharge) -> LogDecision {
        let window_us = charge.key.parts().duration_ms.cast_signed() * 1_000;
        let [status, _, at, used, oldest, last] = self.charge(now, charge, &[]);
        let wait = |entry: i64| (entry >= 0).then(|| u64::try_from(entry + window_us - at).unwrap());
        let denied = Outcome::Denied { retry_after_us: wait(last) };
        let outcome = if status == 1 { Outcome::Allowed } else { denied };
        let [at, used] = [at, used].map(|number| u64::try_from(number).unwrap());
        LogDecision { outcome, at: Micros(at), used, reset_us: wait(oldest).unwrap_or(0) }
    }

    fn refund(&mut self, number: u64, cost: u64) -> bool {
        self.refund.key("steered").arg(entry(number, cost)).invoke(&mut self.hand).unwrap()
    }
}

#[tokio::test]
async fn the_script_and_the_log_in_memory_agree_at_each_step() {
    const STEPS: usize = 1_500;
    let redis = redis().await;
    let mut steered = Steered::new(hand(&redis));
    let (mut denied, mut stood) = (0, 0);
    for seed in 0..8 {
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let (mut log, mut now, mut costs) = (Log::new(MINUTE), 1_763_719_222_000_000_u64, BTreeMap::new());
        redis::cmd("DEL").arg("steered").exec(&mut steered.hand).unwrap();
        let (ones, mut reset) = (seed % 4 == 0, 0_u64);
        for step in 0..STEPS {
            match random.random_range(0..100) {
                0..3 => now -= random.random_range(0..2 * MINUTE),
                3..5 => now += 2 * MINUTE,
                5..20 => now += random.random_range(0..MINUTE / 4),
                // To the microsecond at which the oldest entry expires, or the one before.
                20..35 => now += std::mem::take(&mut reset).saturating_sub(step as u64 % 2),
                35..60 => now += random.random_range(0..MINUTE / 100),
                _ => {}
            }
            // Some requests are repeated with the same cost.
            let number = random.random_range(0..STEPS as u64 / 3);
            let highest = if ones { 1 } else { 9 };
            let cost = *costs.entry(number).or_insert_with(|| random.random_range(0..=highest));
            let most = if random.random_range(0..20) == 0 { random.random_range(0..60) } else { 40 };
            if random.random_range(0..8) == 0 {
                assert_eq!(steered.refund(number, cost), log.refund(id(number)), "step {step}");
                continue;
            }
            let charge = charge(number, cost, most);
            let expected = log.decide(Micros(now), charge.id, cost, most);
            assert_eq!(steered.decide(now, &charge), expected, "step {step}: {charge:?} at {now}");
            reset = expected.reset_us;
            denied += u64::from(expected.outcome != Outcome::Allowed);
            stood += u64::from(expected.at.0 != now);
        }
    }
    println!("{denied} denied, {stood} while the log's time was not the clock's");
    assert!(denied > 500 && stood > 500);
}

#[tokio::test]
async fn long_scans_are_bounded_and_deny_correctly() {
    let redis = redis().await;
    let mut steered = Steered::new(hand(&redis));
    let mut log = Log::new(MINUTE);
    let most = 20_000;
    for number in 0..3_000 {
        let charge = charge(number, 1 + number % 3, most);
        let now = 1_000_000_000 + number;
        assert_eq!(steered.decide(now, &charge), log.decide(Micros(now), charge.id, charge.cost, most));
    }
    for (cost, now) in [(most, 1_000_010_000), (15_000, 1_000_010_000), (1, 1_000_000_000 + MINUTE + 2_500)] {
        let charge = charge(9_999, cost, most);
        let expected = log.decide(Micros(now), charge.id, cost, most);
        assert_eq!(steered.decide(now, &charge), expected);
    }
    assert_eq!(log.len(), 500);
}

#[tokio::test]
async fn reported_steps_ahead_are_time_that_did_not_pass() {
    let redis = redis().await;
    let mut steered = Steered::new(hand(&redis));
    let begin = 1_000 * MINUTE;
    let status = |numbers: [i64; 6]| (numbers[0], numbers[2] - begin.cast_signed());
    assert_eq!(status(steered.charge(begin, &charge(1, 1, 2), &[])), (1, 0));
    let ahead = begin + 10 * MINUTE;
    let late = steered.charge(ahead, &charge(2, 1, 2), &[ahead - 1]);
    assert_eq!((late[0], late[1]), (-1, ahead.cast_signed()), "a late charge must do nothing");
    let step = |size| [ahead + MINUTE, begin - MINUTE, begin, size];
    let small = steered.charge(ahead, &charge(2, 1, 1), &step(9 * MINUTE + 5));
    assert_eq!(
        status(small),
        (0, MINUTE.cast_signed() - 5),
        "by the stepped clock alone, the entry would have expired"
    );
    let reported = step(10 * MINUTE - 1_000_000);
    assert_eq!(status(steered.charge(ahead, &charge(2, 1, 2), &reported)), (1, 1_000_000));
    // A caller without the step continues from there.
    let minute = MINUTE.cast_signed();
    assert_eq!(status(steered.charge(ahead + MINUTE - 1_000_001, &charge(3, 1, 2), &[])), (0, minute - 1));
    assert_eq!(status(steered.charge(ahead + MINUTE - 1_000_000, &charge(3, 1, 2), &[])), (1, minute));
    assert_eq!(status(steered.charge(ahead + MINUTE, &charge(4, 1, 2), &[])), (1, minute + 1_000_000));
}

#[tokio::test]
async fn a_charge_is_an_entry_that_leaves_by_itself() {
    let (redis, store) = started().await;
    let mut hand = hand(&redis);
    let began = Instant::now();
    // What is left of a duration that began since then; clocks that count milliseconds may be off by one.
    let left_ms = |ms: u64| ms - began.elapsed().as_millis() as u64 - 1..=ms;
    let first = decide(&store, charge(1, 3, 5)).await;
    assert_eq!((first.outcome, first.used), (Outcome::Allowed, 3));
    assert!(left_ms(60_000).contains(&first.reset_us.div_ceil(1_000)), "{first:?}");
    let ttl: u64 = redis::cmd("PTTL").arg(NAME).query(&mut hand).unwrap();
    assert!(left_ms(70_000).contains(&ttl), "the key must expire ten seconds after the window: {ttl}");
    for _ in 0..3 {
        let again = decide(&store, charge(1, 3, 5)).await;
        assert_eq!((again.outcome, again.used), (Outcome::Allowed, 3), "a repeated charge must count once");
    }
    for (cost, outcome) in [(0, Outcome::Allowed), (6, Outcome::Denied { retry_after_us: None })] {
        assert_eq!(decide(&store, charge(2, cost, 5)).await.outcome, outcome);
    }
    let Outcome::Denied { retry_after_us: Some(wait) } = decide(&store, charge(2, 3, 5)).await.outcome else {
        panic!("3 and 3 are more than 5");
    };
    assert!(left_ms(60_000).contains(&wait.div_ceil(1_000)), "{wait}");
    assert_eq!(decide(&store, charge(3, 2, 5)).await.used, 5);
    assert!(refund(&store, charge(1, 3, 5)).await);
    assert!(!refund(&store, charge(1, 3, 5)).await, "a repeated refund must do nothing");
    assert_eq!(decide(&store, charge(4, 3, 5)).await.used, 5);
    assert!(refund(&store, charge(4, 3, 5)).await && refund(&store, charge(3, 2, 5)).await);
    let there: bool = redis::cmd("EXISTS").arg(NAME).query(&mut hand).unwrap();
    assert!(!there, "an empty log must not exist");
    assert!(!refund(&store, charge(3, 2, 5)).await);
    // A second is the shortest window. The log expires within it, and the key ten seconds later.
    assert_eq!(decide(&store, charge_in(1_000, 1, 1, 1)).await.outcome, Outcome::Allowed);
    let free = async || decide(&store, charge_in(1_000, 2, 1, 1)).await.outcome == Outcome::Allowed;
    wait::until("the entry has expired", AMPLE, free).await.unwrap();
}

#[tokio::test]
async fn damage_is_repaired_or_refused_for_this_key_only() {
    let (redis, store) = started().await;
    let mut hand = hand(&redis);
    let mut run = |command: &[&[u8]]| {
        let mut command_line = redis::Cmd::new();
        for word in command {
            command_line.arg(*word);
        }
        command_line.exec(&mut hand).unwrap();
    };
    let name = NAME.as_bytes();
    run(&[b"SET", name, b"by hand"]);
    let other = LogCharge { key: key(b"bob"), ..charge(1, 1, 5) };
    let answers = store.charge_logs(&[charge(1, 1, 5), other], AMPLE).await;
    assert!(answers[0].as_ref().is_err_and(|error| error.is_of_the_cell()), "{answers:?}");
    assert_eq!(answers[1].as_ref().unwrap().used, 1);
    assert!(store.refund_logs(&[charge(1, 1, 5)], AMPLE).await[0].is_err());
    let now = store.incarnations(&LastRead::default(), AMPLE).await.unwrap().seen[0];
    let now = (now.since.0 + now.age_ms) * 1_000;
    let (one, two) = (entry(101, 1), entry(102, 2));
    let (early, soon, never) = ((now - 1_000_000).to_string(), (now - 500_000).to_string(), "1e300");
    let damages: [&[(&[u8], &str)]; 11] = [
        &[],                               // nothing at all
        &[(b"t", "-1")],                   // a sum of nothing
        &[(b"note", "5")],                 // no entry
        &[(b"note", "-5")],                // in front of the sum
        &[(b"t", "-3"), (b"note", never)], // after all entries
        &[(b"t", "-inf")],                 // not a number
        &[(b"t", "-3"), (b"r", "-7")],     // one of the two marks of a step
        &[(b"t", "-2.5"), (b"o", "-1"), (b"x", "-9")],
        &[(b"t", "5")],                  // on the wrong side
        &[(b"t", "0"), (&[0; 20], "1")], // an entry without cost
        &[(b"a", "-1"), (b"b", "-2"), (b"c", "-3"), (b"d", "-4"), (b"e", "-5"), (b"t", "-3")],
    ];
    for (number, damage) in (0..).zip(damages) {
        run(&[b"DEL", name]);
        run(&[b"ZADD", name, early.as_bytes(), &one, soon.as_bytes(), &two]);
        for (member, score) in damage {
            run(&[b"ZADD", name, score.as_bytes(), member]);
        }
        let result = decide(&store, charge(number, 1, 5)).await;
        assert_eq!((result.outcome, result.used), (Outcome::Allowed, 4), "{damage:?}");
        assert_eq!(decide(&store, charge(number, 1, 5)).await.used, 4, "{damage:?}");
        assert!(refund(&store, charge(102, 2, 5)).await, "{damage:?}");
        assert_eq!(decide(&store, charge(0, 0, 5)).await.used, 2, "{damage:?}");
    }
    // A sum that is too low is detected when an entry expires.
    run(&[b"DEL", name]);
    let old = (now - 2 * MINUTE).to_string();
    run(&[b"ZADD", name, b"-2", b"t", old.as_bytes(), &entry(103, 2), early.as_bytes(), &one]);
    run(&[b"ZADD", name, soon.as_bytes(), &two]);
    assert_eq!(decide(&store, charge(0, 0, 5)).await.used, 3);
    // More members than a log may have.
    run(&[b"EVAL", b"for i = 1, 200001 do redis.call('ZADD', KEYS[1], i, i) end", b"1", name]);
    run(&[b"ZREM", name, b"t"]);
    let refused = store.charge_logs(&[charge(1, 1, 5)], AMPLE).await.pop().unwrap().unwrap_err();
    assert!(refused.is_of_the_cell() && refused.to_string().contains("too many members"), "{refused}");
}

#[tokio::test]
async fn calls_survive_flushed_scripts_and_lost_data() {
    let (redis, store) = started().await;
    let mut hand = hand(&redis);
    for round in 0..3 {
        redis::cmd("SCRIPT").arg("FLUSH").exec(&mut hand).unwrap();
        assert_eq!(decide(&store, charge(round, 1, 100)).await.used, round + 1);
    }
    redis::cmd("FLUSHALL").exec(&mut hand).unwrap();
    redis::cmd("SCRIPT").arg("FLUSH").exec(&mut hand).unwrap();
    assert!(!refund(&store, charge(0, 1, 100)).await);
    assert_eq!(decide(&store, charge(0, 1, 100)).await.used, 1, "a log is stored only in Redis");
}

#[tokio::test]
async fn a_full_server_charges_nothing_and_denies_nothing() {
    let (redis, store) = started().await;
    let mut hand = hand(&redis);
    decide(&store, charge(1, 1, 100)).await;
    redis::cmd("CONFIG").arg(&["SET", "maxmemory", "1"]).exec(&mut hand).unwrap();
    let refused = store.charge_logs(&[charge(2, 1, 100)], AMPLE).await.pop().unwrap().unwrap_err();
    assert!(refused.to_string().contains("OOM"), "{refused}");
    redis::cmd("CONFIG").arg(&["SET", "maxmemory", "0"]).exec(&mut hand).unwrap();
    assert_eq!(decide(&store, charge(3, 0, 100)).await.used, 1);
}

#[tokio::test]
async fn memory_is_bounded_by_the_limit() {
    let (redis, store) = started().await;
    let mut hand = hand(&redis);
    let mut charged = 0;
    // Longer than the test.
    let charge = |number, most| charge_in(3_600_000, number, 1, most);
    let name = NAME.replace("60000", "3600000");
    for most in [100, 10_000, MAX_LOG_LIMIT] {
        while charged < most {
            let next = (charged + 5_000).min(most);
            let charges: Vec<_> = (charged..next).map(|number| charge(number, most)).collect();
            let all = store.charge_logs(&charges, AMPLE).await;
            assert!(all.iter().all(|decided| decided.as_ref().unwrap().outcome == Outcome::Allowed));
            charged = next;
        }
        let more = decide(&store, charge(charged + 1, most)).await;
        assert!(matches!(more.outcome, Outcome::Denied { .. }));
        let members: u64 = redis::cmd("ZCARD").arg(&name).query(&mut hand).unwrap();
        let bytes: u64 =
            redis::cmd("MEMORY").arg(&["USAGE", &name, "SAMPLES", "0"]).query(&mut hand).unwrap();
        println!("{most} entries: {bytes} bytes, {:.1} each", bytes as f64 / most as f64);
        assert_eq!(members, most + 1);
        assert!(bytes < most * 130 + 1_000);
    }
}

#[tokio::test]
async fn logs_of_a_cluster_are_in_the_slots_of_their_keys() {
    let cluster = RedisCluster::start(3).await.unwrap();
    let options = StoreOptions { cluster: true, ..options(&cluster.url()) };
    let store = open(&options).await;
    let charges = |first: u64| -> Vec<_> {
        let each = (0..300).map(|number| LogCharge { key: numbered(number), ..charge(first, 1, 2) });
        each.collect()
    };
    for (first, used) in [(1, 1), (1, 1), (2, 2)] {
        for decided in store.charge_logs(&charges(first), AMPLE).await {
            let decided = decided.unwrap();
            assert_eq!((decided.outcome, decided.used), (Outcome::Allowed, used));
        }
    }
    for decided in store.charge_logs(&charges(3), AMPLE).await {
        assert!(matches!(decided.unwrap().outcome, Outcome::Denied { retry_after_us: Some(1..) }));
    }
    assert!(store.refund_logs(&charges(1), AMPLE).await.into_iter().all(|refunded| refunded.unwrap()));
}

/// The number allowed between two times, charged one by one until the first denial.
async fn fill(store: &Store, numbers: &mut std::ops::RangeFrom<u64>, window_ms: u64, most: u64) -> u64 {
    let mut allowed = 0;
    while decide(store, charge_in(window_ms, numbers.next().unwrap(), 1, most)).await.outcome
        == Outcome::Allowed
    {
        allowed += 1;
    }
    allowed
}

#[tokio::test]
async fn a_clock_that_is_set_lets_nothing_leave_early() {
    const WINDOW_MS: u64 = 4_000;
    const MOST: u64 = 20;
    let server = Clocked::start().await;
    let store = open(&options(&server.url)).await;
    let mut numbers = 0..;
    let began = Instant::now();
    assert_eq!(fill(&store, &mut numbers, WINDOW_MS, MOST).await, MOST);
    for offset in [-3_600, 0, 5, -60, -55, 8, -55] {
        server.clock.set(offset);
        assert_eq!(fill(&store, &mut numbers, WINDOW_MS, MOST).await, 0, "the clock is {offset} s off");
        // A key that was not charged since.
        let again = decide(&store, charge_in(WINDOW_MS, numbers.next().unwrap(), 0, MOST)).await;
        assert!(again.used == 0 || again.used == MOST, "all or none has left: {again:?}");
    }
    let mut passed = 0;
    wait::until("all entries have expired", AMPLE, async || {
        passed += fill(&store, &mut numbers, WINDOW_MS, MOST).await;
        passed >= MOST
    })
    .await
    .unwrap();
    assert_eq!(passed, MOST);
    let (waited, window) = (began.elapsed(), Duration::from_millis(WINDOW_MS));
    println!("the entries expired after {waited:?}, with a window of {window:?}");
    assert!(waited >= window, "no entry may expire early");
    // Keys that Redis itself expires by its clock have expired.
    server.clock.set(3_600);
    assert_eq!(fill(&store, &mut numbers, WINDOW_MS, MOST).await, MOST);
}
