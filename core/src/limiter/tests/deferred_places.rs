//! A worker waits for a bounded number of responses: who makes room for the next, and what that costs.

use super::deferred::deferred_check;
use super::harness::*;
use crate::limiter::{Check, MAX_DEFERRED_REQUESTS, Policy};
use crate::model::window::MAX_COUNT;

const LONG_MS: u32 = 600_000;

/// The same, of which the response says `most` at the most, within so long.
fn capped(check: Check<'_>, most: u64, within_ms: u32) -> Check<'_> {
    let policy = Policy { settles_within_ms: within_ms, settles_at_most: most, ..check.policy };
    Check { policy, ..check }
}

#[test]
fn slow_requests_that_fill_the_places_do_not_make_others_cost_their_reserve_alone() {
    let mut world = World::alone(1, 1);
    let (slow, other) = (key("slow", HOUR), key("other", HOUR));
    let hoard = capped(deferred_check(&slow, MAX_COUNT, 5), 200, LONG_MS);
    let first = world.begins(0, 0, hoard).unwrap();
    world.run(100);
    // Of the others each one's time ends before that of the oldest.
    let hoard = capped(hoard, 200, LONG_MS / 2);
    for _ in 1..MAX_DEFERRED_REQUESTS {
        world.begins(0, 0, hoard).unwrap();
    }
    let all = MAX_DEFERRED_REQUESTS as u64;
    assert_eq!((world.held(&slow), world.sum_of(|stats| stats.unawaited)), ((0, 5 * all), 0));
    let usual = capped(deferred_check(&other, MAX_COUNT, 5), 200, LONG_MS);
    let beyond = world.begins(0, 0, usual).unwrap();
    assert_eq!(world.held(&slow), (200, 5 * (all - 1)), "the oldest makes room, and costs its most");
    assert_eq!(world.sum_of(|stats| stats.unawaited), 1);
    assert!(!world.limiter(0, 0).is_deferred(first));
    world.settle((0, 0), first, 7);
    assert_eq!(world.held(&slow), (200, 5 * (all - 1)), "its response changes nothing any more");
    assert_eq!(world.held(&other), (0, 5));
    world.settle((0, 0), beyond, 150);
    assert_eq!(world.held(&other), (150, 0), "who comes beyond the places is told its cost");
    world.begins(0, 0, usual).unwrap();
    assert_eq!(world.sum_of(|stats| stats.unawaited), 1, "a place that is free is taken");
}

#[test]
fn those_whose_time_is_over_make_room_first() {
    let mut world = World::alone(1, 1);
    let (brief, long) = (key("brief", HOUR), key("long", HOUR));
    let patient = world.begins(0, 0, capped(deferred_check(&long, MAX_COUNT, 5), 200, LONG_MS)).unwrap();
    for _ in 1..MAX_DEFERRED_REQUESTS {
        world.begins(0, 0, capped(deferred_check(&brief, MAX_COUNT, 5), 200, 1_000)).unwrap();
    }
    world.run(2_000);
    let spent = 5 * (MAX_DEFERRED_REQUESTS as u64 - 1);
    assert_eq!(world.held(&brief), (spent, 0));
    // The oldest of all still has its time.
    world.begins(0, 0, capped(deferred_check(&brief, MAX_COUNT, 5), 200, 1_000)).unwrap();
    assert_eq!(world.held(&brief), (spent + 195, 5), "what was spent counts towards its most");
    assert!(world.limiter(0, 0).is_deferred(patient));
    world.settle((0, 0), patient, 1);
    assert_eq!(world.held(&long), (1, 0));
}
