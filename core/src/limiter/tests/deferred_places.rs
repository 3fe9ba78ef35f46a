//! A worker waits for a bounded number of responses: which request makes room for the next, and what it is charged.

use super::deferred::deferred_check;
use super::harness::*;
use crate::limiter::{Check, MAX_DEFERRED_REQUESTS, Policy};
use crate::model::key::Key;
use crate::model::window::MAX_COUNT;

const LONG_MS: u32 = 600_000;

/// The same check, whose response states at most `most` within `within_ms`.
fn capped(check: Check<'_>, most: u64, within_ms: u32) -> Check<'_> {
    let policy = Policy { settles_within_ms: within_ms, settles_at_most: most, ..check.policy };
    Check { policy, ..check }
}

/// Three quarters of all places.
const PLACES_OF_A_KEY: u64 = MAX_DEFERRED_REQUESTS as u64 / 4 * 3;

/// Many requests on one key, which may cost up to 200.
fn fill(world: &mut World, key: &Key, reserve: u64, requests: u64) {
    let check = capped(deferred_check(key, MAX_COUNT, reserve), 200, LONG_MS / 2);
    (0..requests).for_each(|_| assert!(world.begins(0, 0, check).is_some()));
}

#[test]
fn requests_of_one_key_leave_places_to_others() {
    let mut world = World::alone(1, 1);
    let (slow, other) = (key("slow", HOUR), key("other", HOUR));
    let first = world.begins(0, 0, capped(deferred_check(&slow, MAX_COUNT, 5), 200, LONG_MS)).unwrap();
    world.run(100);
    fill(&mut world, &slow, 5, PLACES_OF_A_KEY - 1);
    let all = PLACES_OF_A_KEY;
    assert_eq!((world.spent_and_reserved(&slow), world.sum_of(|stats| stats.unawaited)), ((0, 5 * all), 0));
    fill(&mut world, &slow, 5, 1);
    assert_eq!(
        world.spent_and_reserved(&slow),
        (200, 5 * all),
        "its oldest makes room, and is charged its maximum"
    );
    assert_eq!(world.sum_of(|stats| stats.unawaited), 1);
    assert!(!world.limiter(0, 0).is_deferred(first));
    world.settle((0, 0), first, 7);
    assert_eq!(world.spent_and_reserved(&slow), (200, 5 * all), "its response has no effect any more");
    let usual = capped(deferred_check(&other, MAX_COUNT, 5), 200, LONG_MS);
    let beyond = world.begins(0, 0, usual).unwrap();
    fill(&mut world, &slow, 5, 1_000);
    assert_eq!(world.spent_and_reserved(&slow).0, 200 * 1_001, "a flood makes room for itself");
    world.settle((0, 0), beyond, 150);
    assert_eq!(world.spent_and_reserved(&other), (150, 0), "others are charged their actual costs");
}

#[test]
fn of_many_keys_the_requests_that_cost_least_to_lose_make_room() {
    let mut world = World::alone(1, 1);
    let [paid, free] = ["paid", "free"].map(|name| key(name, HOUR));
    let oldest = world.begins(0, 0, capped(deferred_check(&paid, MAX_COUNT, 5), 200, LONG_MS)).unwrap();
    world.run(100);
    let mut of_free = deferred_check(&free, MAX_COUNT, 0);
    of_free.policy = Policy { estimates: true, settles_at_most: 200, ..of_free.policy };
    let without_body = world.begins(0, 0, of_free).unwrap();
    let mut flood = keys(40_000, HOUR).into_iter();
    let mut open = 2;
    let mut one = |world: &mut World| {
        let key = flood.next().unwrap();
        assert!(world.begins(0, 0, capped(deferred_check(&key, MAX_COUNT, 0), 200, LONG_MS)).is_some());
    };
    while open < MAX_DEFERRED_REQUESTS {
        one(&mut world);
        open += 1;
    }
    assert_eq!(world.sum_of(|stats| stats.unawaited), 0);
    one(&mut world);
    assert!(!world.limiter(0, 0).is_deferred(without_body), "one that can cost nothing makes room first");
    assert_eq!(world.spent_and_reserved(&free), (0, 0), "and is charged nothing");
    (0..1_000).for_each(|_| one(&mut world));
    assert_eq!(world.sum_of(|stats| stats.unawaited), 1_001);
    assert!(world.limiter(0, 0).is_deferred(oldest), "then those that have reserved nothing, however new");
    world.settle((0, 0), oldest, 3);
    assert_eq!(world.spent_and_reserved(&paid), (3, 0));
}

#[test]
fn requests_past_their_deadline_make_room_first() {
    let mut world = World::alone(1, 1);
    let key = key("a", HOUR);
    let of = |within_ms| capped(deferred_check(&key, MAX_COUNT, 5), 200, within_ms);
    let long = world.begins(0, 0, of(LONG_MS)).unwrap();
    for _ in 1..PLACES_OF_A_KEY {
        world.begins(0, 0, of(1_000)).unwrap();
    }
    world.run(2_000);
    let spent = 5 * (PLACES_OF_A_KEY - 1);
    assert_eq!(world.spent_and_reserved(&key), (spent, 5));
    // The deadline of the oldest request has not passed.
    world.begins(0, 0, of(1_000)).unwrap();
    assert_eq!(
        world.spent_and_reserved(&key),
        (spent + 195, 10),
        "the spent reserve counts towards its maximum"
    );
    assert!(world.limiter(0, 0).is_deferred(long));
    world.settle((0, 0), long, 1);
    assert_eq!(world.spent_and_reserved(&key), (spent + 195 + 1, 5));
}
