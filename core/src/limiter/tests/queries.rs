//! When a worker queries the region, how often, and what happens without an answer.

use super::harness::*;
use crate::limiter::table::Geometry;
use crate::limiter::{Cause, Check, Decision, FRESH_MS, Outcome, Policy, QueryResult, Reason};
use crate::model::key::{HashKey, Key};
use std::vec::Vec;

fn waits(outcome: &(u64, Outcome)) -> bool {
    outcome.1.decision == Decision::Wait
}

fn assuming_low<'a>(key: &'a Key, limit: u64) -> Check<'a> {
    let policy = Policy { trust_first: true, timeout_ms: 50, ..Policy::default() };
    Check { policy, ..check(key, limit, 1) }
}

/// How long a request took, and its outcome; 0 ms if it did not wait.
fn timed(world: &mut World, check: Check<'_>) -> (u64, Outcome) {
    let start = world.now;
    let outcome = world.decide(0, 0, &[check]);
    (world.now - start, outcome)
}

#[test]
fn requests_on_a_cold_key_share_one_query_which_returns_the_others_counts() {
    let mut world = World::connected(2, 1);
    let key = key("k", HOUR);
    for _ in 0..4 {
        assert!(world.passes(1, 0, &[check(&key, 100, 1)]));
    }
    world.run(200);
    world.queries = 0;
    let first: Vec<_> = (0..3).map(|_| world.request(0, 0, &[check(&key, 100, 1)])).collect();
    assert!(first.iter().all(waits), "several requests on a cold key wait");
    world.run(10);
    assert_eq!(world.queries, 1, "for one query");
    assert!(first.iter().all(|(id, _)| allowed(&world.resolved[id].1)));
    let snapshot = world.entry(0, &key).unwrap().current;
    assert_eq!((snapshot.own, snapshot.region_others), (3, 4));
}

#[test]
fn the_timeout_of_a_query_ends_at_the_earliest_deadline_of_its_requests() {
    let mut world = World::connected(2, 1);
    world.paused = true;
    let (key, start) = (key("k", HOUR), world.now);
    // The query of the first request is sent at once. The others wait for the next query, sent after the first timeout.
    for (timeout_ms, pause_ms) in [(20, 5), (60, 3), (200, 30)] {
        let policy = Policy { timeout_ms, ..Policy::default() };
        assert!(waits(&world.request(0, 0, &[Check { policy, ..check(&key, 100, 1) }])));
        world.run(pause_ms);
    }
    let until: Vec<_> =
        world.sent_queries.iter().map(|(at, query)| at + u64::from(query.timeout_ms)).collect();
    assert_eq!(until, [start + 20, start + 5 + 60]);
    assert!(world.sent_queries[1].0 >= start + 20, "a part of its timeout has passed");
}

#[test]
fn with_assume_low_a_key_missing_from_a_complete_snapshot_needs_no_query() {
    let mut world = World::connected(2, 1);
    let (cool, hot) = (key("cool", HOUR), key("hot", HOUR));
    for _ in 0..8 {
        assert!(world.passes(1, 0, &[check(&hot, 10, 1)]));
    }
    world.run(200);
    assert!(!waits(&world.request(0, 0, &[assuming_low(&cool, 10)])), "not in the snapshot");
    let passed = (0..20).filter(|_| world.passes(0, 0, &[assuming_low(&hot, 10)])).count();
    assert_eq!(passed, 2, "past half its limit, so it was pushed before the first request");
    let mut blind = World::alone(1, 1);
    assert!(!waits(&blind.request(0, 0, &[assuming_low(&cool, 10)])), "no aggregator is connected");
}

/// What was used under a higher limit is in no snapshot. The first request under the lower one shows it to the region.
#[test]
fn with_assume_low_a_lowered_limit_passes_one_request_of_a_key_until_the_next_push() {
    let mut world = World::connected(2, 1);
    let keys = keys(50, HOUR);
    for key in &keys {
        assert_eq!((0..200).filter(|_| world.passes(1, 0, &[check(key, 1_000, 1)])).count(), 200);
    }
    world.run(1_000);
    let mut passing = || {
        let passed = keys.iter().filter(|key| world.passes(0, 0, &[assuming_low(key, 100)])).count();
        world.run(200);
        passed
    };
    assert_eq!([passing(), passing(), passing()], [50, 0, 0]);
}

#[test]
fn after_a_push_without_room_new_keys_of_the_bucket_need_a_query() {
    let geometry = Geometry { buckets: 1, keys_per_bucket: 2 };
    let mut world = World::with(2, 1, geometry, false);
    world.run(1_000);
    let (used, hot) = (keys(2, HOUR), key("hot", HOUR));
    for key in &used {
        assert!(world.passes(0, 0, &[check(key, 10, 1)]));
    }
    world.run(200);
    for _ in 0..8 {
        assert!(world.passes(1, 0, &[check(&hot, 10, 1)]));
    }
    world.run(200);
    assert!(world.entry(0, &hot).is_none() && world.entry(0, &used[0]).is_some());
    let passed = (0..20).filter(|_| world.passes(0, 0, &[assuming_low(&hot, 10)])).count();
    assert_eq!(passed, 2);
}

#[test]
fn a_denial_by_the_region_is_final_and_cached() {
    let mut world = World::connected(2, 1);
    let key = key("k", HOUR);
    for _ in 0..10 {
        assert!(world.passes(1, 0, &[check(&key, 10, 1)]));
    }
    world.run(100);
    let denial = denial(world.decide(0, 0, &[check(&key, 10, 1)]));
    assert_eq!((denial.cause, denial.budget.remaining), (Cause::Limit, 0));
    world.queries = 0;
    assert!(!waits(&world.request(0, 0, &[check(&key, 10, 1)])), "the denial is cached");
}

#[test]
fn after_a_timeout_the_local_counts_decide_or_on_failure_denies() {
    for (deny, passes) in [(false, true), (true, false)] {
        let mut world = World::connected(2, 1);
        world.paused = true;
        let key = key("k", HOUR);
        let policy = Policy { deny_on_failure: deny, timeout_ms: 50, ..Policy::default() };
        let (took, outcome) = timed(&mut world, Check { policy, ..check(&key, 10, 1) });
        assert_eq!(allowed(&outcome), passes);
        assert!((50..=60).contains(&took), "{took} ms");
        if !passes {
            assert_eq!(denial(&outcome).cause, Cause::Undecided);
        }
    }
}

#[test]
fn three_timeouts_open_the_circuit_breaker_and_a_pong_closes_it() {
    let mut world = World::connected(2, 1);
    world.paused = true;
    let keys = keys(10, HOUR);
    let took: Vec<_> = keys.iter().take(6).map(|key| timed(&mut world, check(key, 10, 1)).0).collect();
    assert!(took[..3].iter().all(|ms| *ms >= 50) && took[3..] == [0, 0, 0], "{took:?}");
    world.run(500);
    world.paused = false;
    world.run(1_200);
    assert!(waits(&world.request(0, 0, &[check(&keys[9], 10, 1)])), "queries are sent again");
}

#[test]
fn a_closed_stream_resolves_waiting_requests_at_once() {
    let mut world = World::connected(2, 1);
    world.paused = true;
    let keys = keys(2, HOUR);
    let (id, _) = world.request(0, 0, &[check(&keys[0], 10, 1)]);
    world.run(5);
    world.cut(0, 0);
    assert_eq!(world.resolved[&id].0, world.now);
    world.down = true;
    assert_eq!(timed(&mut world, check(&keys[1], 10, 1)).0, 0, "no request waits without a stream");
    let entry = world.entry(0, &keys[0]).unwrap();
    assert_eq!((entry.current.own, entry.reservations.len()), (1, 0));
}

#[test]
fn a_followed_key_needs_no_query_at_a_rollover() {
    let mut world = World::connected(2, 1);
    let key = key("k", MINUTE);
    assert!(world.passes(0, 0, &[check(&key, 1_000, 1)]));
    for _ in 0..20 {
        world.run(MINUTE / 3);
        assert!(!waits(&world.request(0, 0, &[check(&key, 1_000, 1)])));
    }
    // The region has dropped the key and its followers two windows later.
    world.run(3 * MINUTE);
    assert!(waits(&world.request(0, 0, &[check(&key, 1_000, 1)])));
}

#[test]
fn a_silent_subscription_makes_snapshots_stale() {
    let mut world = World::connected(2, 1);
    let key = key("k", HOUR);
    assert!(world.passes(0, 0, &[check(&key, 1_000, 1)]));
    world.paused = true;
    world.run(FRESH_MS + 100);
    assert!(waits(&world.request(0, 0, &[check(&key, 1_000, 1)])));
    let stale = Reason::Stale as usize;
    assert_eq!(world.sum_of(|stats| stats.queries[stale]), 1);
}

#[test]
fn a_burst_needs_few_queries_and_stays_within_the_limit() {
    for (processes, limit) in [(2, 10), (2, 1_000), (5, 100), (5, 1_000)] {
        let mut world = World::connected(processes, 2);
        world.latency = (2, 10);
        let key = key("k", HOUR);
        let (mut passed, mut waiting) = (0, Vec::new());
        world.queries = 0;
        for turn in 0..20 * limit {
            let (process, worker) = (turn as usize % processes, world.random.below(2) as usize);
            let (id, outcome) = world.request(process, worker, &[check(&key, limit, 1)]);
            passed += u64::from(allowed(&outcome));
            waiting.extend((outcome.decision == Decision::Wait).then_some(id));
            if turn.is_multiple_of(40) {
                world.run(1);
            }
        }
        world.run(200);
        passed += waiting.iter().filter(|id| allowed(&world.resolved[id].1)).count() as u64;
        std::println!("{processes} processes, burst on {limit}: {passed} passed, {} queries", world.queries);
        assert!(passed >= limit * 99 / 100 - 1 && passed <= limit * 105 / 100 + 1, "{passed} of {limit}");
        assert!(world.queries < 60 * processes as u64, "{} queries", world.queries);
    }
}

#[test]
fn on_failure_deny_denies_while_no_aggregator_is_connected() {
    for (deny, expected) in [(false, 10), (true, 0)] {
        let mut world = World::alone(1, 1);
        let key = key("k", HOUR);
        let policy = Policy { deny_on_failure: deny, timeout_ms: 50, ..Policy::default() };
        let outcomes: Vec<_> =
            (0..10).map(|_| world.decide(0, 0, &[Check { policy, ..check(&key, 10, 1) }])).collect();
        assert_eq!(outcomes.iter().filter(|outcome| allowed(outcome)).count(), expected);
        let undecided = |outcome: &Outcome| !allowed(outcome) && denial(outcome).cause == Cause::Undecided;
        assert_eq!(outcomes.iter().filter(|outcome| undecided(outcome)).count(), 10 - expected);
    }
}

#[test]
fn a_busy_key_does_not_keep_the_circuit_breaker_from_opening() {
    let mut world = World::connected(2, 1);
    world.paused = true;
    let key = key("k", HOUR);
    let policy = Policy { timeout_ms: 50, ..Policy::default() };
    let mut waited = 0;
    for _ in 0..200 {
        let (_, outcome) = world.request(0, 0, &[Check { policy, ..check(&key, 1_000, 1) }]);
        waited += usize::from(outcome.decision == Decision::Wait);
        world.run(5);
    }
    // Requests of three queries of 50 ms each, and those before the circuit breaker opened.
    assert!(waited < 60, "{waited} of 200 waited");
    assert!(world.sum_of(|stats| stats.results[QueryResult::Timeout as usize]) >= 3);
}

#[test]
fn a_query_that_the_region_cannot_decide_is_decided_locally_at_once() {
    let mut world = World::connected(2, 1);
    world.regions[0] =
        crate::region::Region::new(crate::region::RegionLimits { max_keys: 0, max_nodes: 9 }, HashKey(1, 2));
    let key = key("k", HOUR);
    let (took, outcome) = timed(
        &mut world,
        Check { policy: Policy { timeout_ms: 50, ..Policy::default() }, ..check(&key, 10, 1) },
    );
    assert!(allowed(&outcome));
    assert!(took < 20, "{took} ms");
    assert_eq!(world.sum_of(|stats| stats.results[QueryResult::Unjudged as usize]), 1);
}

#[test]
fn a_query_states_no_leases_of_other_workers() {
    let mut world = World::connected(2, 3);
    let (key, limit) = (key("k", HOUR), 100_000);
    for turn in 0..400 {
        assert!(world.passes(0, turn % 2, &[check(&key, limit, 1)]));
    }
    let leases: u64 = world.entry(0, &key).unwrap().reservations.iter().map(|held| held.amount).sum();
    assert!(leases > 100, "{leases} are leased");
    assert!(world.passes(0, 2, &[check(&key, limit, 20_000)]), "beyond the slack");
    let costs: Vec<_> = world.sent_queries.iter().map(|(_, query)| query.cost).collect();
    assert_eq!(costs.last(), Some(&20_000), "{costs:?}");
}

#[test]
fn what_was_granted_and_not_spent_covers_later_costs() {
    let mut world = World::connected(2, 1);
    let (key, limit, reserve) = (key("k", HOUR), 10_000, 3_000);
    let request = world.begins(0, 0, super::deferred::deferred_check(&key, limit, reserve)).unwrap();
    world.settle((0, 0), request, 1);
    world.run(200);
    world.queries = 0;
    assert!(!waits(&world.request(0, 0, &[check(&key, limit, 2_500)])), "2 999 are granted and not spent");
    assert!(waits(&world.request(0, 0, &[check(&key, limit, 2_500)])), "499 of it are left");
}
