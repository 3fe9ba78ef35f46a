//! When the region is asked, how often, and what happens if it does not answer.

use super::harness::*;
use crate::limiter::table::Geometry;
use crate::limiter::{Cause, Check, ConsultResult, Decision, FRESH_MS, Outcome, Policy, Reason};
use crate::model::key::Key;
use std::vec::Vec;

fn waits(outcome: (u64, Outcome)) -> bool {
    outcome.1.decision == Decision::Wait
}

fn trusting<'a>(key: &'a Key, limit: u64) -> Check<'a> {
    let policy = Policy { trust_first: true, timeout_ms: 50, ..Policy::default() };
    Check { policy, ..check(key, limit, 1) }
}

/// How long a request took and what came of it; 0 ms if it did not wait.
fn timed(world: &mut World, check: Check<'_>) -> (u64, Outcome) {
    let start = world.now;
    let outcome = world.decide(0, 0, &[check]);
    (world.now - start, outcome)
}

#[test]
fn a_cold_key_asks_once_and_brings_the_others_counts() {
    let mut world = World::connected(2, 1);
    let key = key("k", HOUR);
    for _ in 0..4 {
        assert!(world.passes(1, 0, &[check(&key, 100, 1)]));
    }
    world.run(200);
    world.consults = 0;
    let first: Vec<_> = (0..3).map(|_| world.request(0, 0, &[check(&key, 100, 1)])).collect();
    assert!(first.iter().all(|outcome| waits(*outcome)), "several requests on a cold key wait");
    world.run(10);
    assert_eq!(world.consults, 1, "for one question");
    assert!(first.iter().all(|(id, _)| allowed(&world.resolved[id].1)));
    let snapshot = world.entry(0, &key).unwrap().current;
    assert_eq!((snapshot.own, snapshot.region_others), (3, 4));
}

#[test]
fn a_question_says_how_long_the_first_of_its_askers_still_waits() {
    let mut world = World::connected(2, 1);
    world.paused = true;
    let (key, start) = (key("k", HOUR), world.now);
    // The first one's question goes out at once; the others wait for the next, which is asked when it has given up.
    for (timeout_ms, pause_ms) in [(20, 5), (60, 3), (200, 30)] {
        let policy = Policy { timeout_ms, ..Policy::default() };
        assert!(waits(world.request(0, 0, &[Check { policy, ..check(&key, 100, 1) }])));
        world.run(pause_ms);
    }
    let until: Vec<_> = world.asked.iter().map(|(at, query)| at + u64::from(query.timeout_ms)).collect();
    assert_eq!(until, [start + 20, start + 5 + 60]);
    assert!(world.asked[1].0 >= start + 20, "less than what its rule gave it is left");
}

#[test]
fn a_complete_snapshot_is_trusted_with_keys_below_half_their_limit() {
    let mut world = World::connected(2, 1);
    let (cool, hot) = (key("cool", HOUR), key("hot", HOUR));
    for _ in 0..8 {
        assert!(world.passes(1, 0, &[check(&hot, 10, 1)]));
    }
    world.run(200);
    assert!(!waits(world.request(0, 0, &[trusting(&cool, 10)])), "unknown to the snapshot");
    let passed = (0..20).filter(|_| world.passes(0, 0, &[trusting(&hot, 10)])).count();
    assert_eq!(passed, 2, "past half its limit, so it was pushed before it was asked for");
    let mut blind = World::alone(1, 1);
    assert!(!waits(blind.request(0, 0, &[trusting(&cool, 10)])), "nobody to ask");
}

#[test]
fn pushes_without_room_leave_a_note_that_makes_newcomers_ask() {
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
    let passed = (0..20).filter(|_| world.passes(0, 0, &[trusting(&hot, 10)])).count();
    assert_eq!(passed, 2);
}

#[test]
fn a_error_denies() {
    let mut world = World::connected(2, 1);
    let key = key("k", HOUR);
    for _ in 0..10 {
        assert!(world.passes(1, 0, &[check(&key, 10, 1)]));
    }
    world.run(100);
    let denial = denial(world.decide(0, 0, &[check(&key, 10, 1)]));
    assert_eq!((denial.cause, denial.budget.remaining), (Cause::Limit, 0));
    world.consults = 0;
    assert!(!waits(world.request(0, 0, &[check(&key, 10, 1)])), "and is remembered");
}

#[test]
fn a_timeout_is_decided_by_what_is_known_or_denied_by_the_rules_wish() {
    for (deny, passes) in [(false, true), (true, false)] {
        let mut world = World::connected(2, 1);
        world.paused = true;
        let key = key("k", HOUR);
        let policy = Policy { deny_on_failure: deny, timeout_ms: 50, ..Policy::default() };
        let (took, outcome) = timed(&mut world, Check { policy, ..check(&key, 10, 1) });
        assert_eq!(allowed(&outcome), passes);
        assert!((50..=60).contains(&took), "{took} ms");
        if !passes {
            assert_eq!(denial(outcome).cause, Cause::Undecided);
        }
    }
}

#[test]
fn three_timeouts_open_the_breaker_and_an_echo_closes_it() {
    let mut world = World::connected(2, 1);
    world.paused = true;
    let keys = keys(10, HOUR);
    let took: Vec<_> = keys.iter().take(6).map(|key| timed(&mut world, check(key, 10, 1)).0).collect();
    assert!(took[..3].iter().all(|ms| *ms >= 50) && took[3..] == [0, 0, 0], "{took:?}");
    world.run(500);
    world.paused = false;
    world.run(1_200);
    assert!(waits(world.request(0, 0, &[check(&keys[9], 10, 1)])), "asked again");
}

#[test]
fn a_broken_stream_resolves_at_once() {
    let mut world = World::connected(2, 1);
    world.paused = true;
    let keys = keys(2, HOUR);
    let (id, _) = world.request(0, 0, &[check(&keys[0], 10, 1)]);
    world.run(5);
    world.cut(0, 0);
    assert_eq!(world.resolved[&id].0, world.now);
    world.down = true;
    assert_eq!(timed(&mut world, check(&keys[1], 10, 1)).0, 0, "nobody to ask, nobody waits");
    let entry = world.entry(0, &keys[0]).unwrap();
    assert_eq!((entry.current.own, entry.reservations.len()), (1, 0));
}

#[test]
fn a_followed_key_is_not_asked_about_at_a_rollover() {
    let mut world = World::connected(2, 1);
    let key = key("k", MINUTE);
    assert!(world.passes(0, 0, &[check(&key, 1_000, 1)]));
    for _ in 0..20 {
        world.run(MINUTE / 3);
        assert!(!waits(world.request(0, 0, &[check(&key, 1_000, 1)])));
    }
    // The region has forgotten its follower two windows later.
    world.run(3 * MINUTE);
    assert!(waits(world.request(0, 0, &[check(&key, 1_000, 1)])));
}

#[test]
fn a_silent_subscription_makes_snapshots_stale() {
    let mut world = World::connected(2, 1);
    let key = key("k", HOUR);
    assert!(world.passes(0, 0, &[check(&key, 1_000, 1)]));
    world.paused = true;
    world.run(FRESH_MS + 100);
    assert!(waits(world.request(0, 0, &[check(&key, 1_000, 1)])));
    let stale = Reason::Stale as usize;
    assert_eq!(world.sum_of(|stats| stats.consults[stale]), 1);
}

#[test]
fn a_herd_is_answered_in_a_few_rounds_and_stays_within_the_limit() {
    for (processes, limit) in [(2, 10), (2, 1_000), (5, 100), (5, 1_000)] {
        let mut world = World::connected(processes, 2);
        world.latency = (2, 10);
        let key = key("k", HOUR);
        let (mut passed, mut asked) = (0, Vec::new());
        world.consults = 0;
        for turn in 0..20 * limit {
            let (process, worker) = (turn as usize % processes, world.random.below(2) as usize);
            let (id, outcome) = world.request(process, worker, &[check(&key, limit, 1)]);
            passed += u64::from(allowed(&outcome));
            asked.extend((outcome.decision == Decision::Wait).then_some(id));
            if turn.is_multiple_of(40) {
                world.run(1);
            }
        }
        world.run(200);
        passed += asked.iter().filter(|id| allowed(&world.resolved[id].1)).count() as u64;
        std::println!("{processes} processes, herd on {limit}: {passed} passed, {} consults", world.consults);
        assert!(passed >= limit * 99 / 100 - 1 && passed <= limit * 105 / 100 + 1, "{passed} of {limit}");
        assert!(world.consults < 60 * processes as u64, "{} consults", world.consults);
    }
}

#[test]
fn a_rule_that_rather_denies_does_so_while_nobody_can_be_asked() {
    for (deny, expected) in [(false, 10), (true, 0)] {
        let mut world = World::alone(1, 1);
        let key = key("k", HOUR);
        let policy = Policy { deny_on_failure: deny, timeout_ms: 50, ..Policy::default() };
        let outcomes: Vec<_> =
            (0..10).map(|_| world.decide(0, 0, &[Check { policy, ..check(&key, 10, 1) }])).collect();
        assert_eq!(outcomes.iter().filter(|outcome| allowed(outcome)).count(), expected);
        let undecided = |outcome: &Outcome| !allowed(outcome) && denial(*outcome).cause == Cause::Undecided;
        assert_eq!(outcomes.iter().filter(|outcome| undecided(outcome)).count(), 10 - expected);
    }
}

#[test]
fn a_busy_key_does_not_hide_that_nobody_answers() {
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
    // Three questions of 50 ms, and those who came before the breaker opened.
    assert!(waited < 60, "{waited} of 200 waited");
    assert!(world.sum_of(|stats| stats.results[ConsultResult::Timeout as usize]) >= 3);
}

#[test]
fn what_the_region_cannot_judge_is_decided_here_at_once() {
    let mut world = World::connected(2, 1);
    world.regions[0] =
        crate::region::Region::new(crate::region::RegionLimits { max_keys: 0, max_origins: 9 }, (1, 2));
    let key = key("k", HOUR);
    let (took, outcome) = timed(
        &mut world,
        Check { policy: Policy { timeout_ms: 50, ..Policy::default() }, ..check(&key, 10, 1) },
    );
    assert!(allowed(&outcome));
    assert!(took < 20, "{took} ms");
    assert_eq!(world.sum_of(|stats| stats.results[ConsultResult::Unjudged as usize]), 1);
}
