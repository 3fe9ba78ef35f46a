//! A worker waits for a bounded number of responses: which request makes room for the next, and what it is charged.

use super::deferred::deferred_check;
use super::harness::*;
use crate::limiter::{Check, MAX_DEFERRED_REQUESTS, Policy};
use crate::model::window::MAX_COUNT;

const LONG_MS: u32 = 600_000;

/// The same check, whose response states at most `most` within `within_ms`.
fn capped(check: Check<'_>, most: u64, within_ms: u32) -> Check<'_> {
    let policy = Policy { settles_within_ms: within_ms, settles_at_most: most, ..check.policy };
    Check { policy, ..check }
}

#[test]
fn slow_requests_that_fill_the_places_leave_others_their_actual_costs() {
    let mut world = World::alone(1, 1);
    let (slow, other) = (key("slow", HOUR), key("other", HOUR));
    let slow_check = capped(deferred_check(&slow, MAX_COUNT, 5), 200, LONG_MS);
    let first = world.begins(0, 0, slow_check).unwrap();
    world.run(100);
    // The deadline of each other request is before that of the oldest.
    let slow_check = capped(slow_check, 200, LONG_MS / 2);
    for _ in 1..MAX_DEFERRED_REQUESTS {
        world.begins(0, 0, slow_check).unwrap();
    }
    let all = MAX_DEFERRED_REQUESTS as u64;
    assert_eq!((world.spent_and_reserved(&slow), world.sum_of(|stats| stats.unawaited)), ((0, 5 * all), 0));
    let usual = capped(deferred_check(&other, MAX_COUNT, 5), 200, LONG_MS);
    let beyond = world.begins(0, 0, usual).unwrap();
    assert_eq!(
        world.spent_and_reserved(&slow),
        (200, 5 * (all - 1)),
        "the oldest makes room, and is charged its maximum"
    );
    assert_eq!(world.sum_of(|stats| stats.unawaited), 1);
    assert!(!world.limiter(0, 0).is_deferred(first));
    world.settle((0, 0), first, 7);
    assert_eq!(world.spent_and_reserved(&slow), (200, 5 * (all - 1)), "its response has no effect any more");
    assert_eq!(world.spent_and_reserved(&other), (0, 5));
    world.settle((0, 0), beyond, 150);
    assert_eq!(
        world.spent_and_reserved(&other),
        (150, 0),
        "a request beyond the places is charged its actual cost"
    );
    world.begins(0, 0, usual).unwrap();
    assert_eq!(world.sum_of(|stats| stats.unawaited), 1, "a free place is used");
}

#[test]
fn requests_past_their_deadline_make_room_first() {
    let mut world = World::alone(1, 1);
    let (brief, long) = (key("brief", HOUR), key("long", HOUR));
    let long_request = world.begins(0, 0, capped(deferred_check(&long, MAX_COUNT, 5), 200, LONG_MS)).unwrap();
    for _ in 1..MAX_DEFERRED_REQUESTS {
        world.begins(0, 0, capped(deferred_check(&brief, MAX_COUNT, 5), 200, 1_000)).unwrap();
    }
    world.run(2_000);
    let spent = 5 * (MAX_DEFERRED_REQUESTS as u64 - 1);
    assert_eq!(world.spent_and_reserved(&brief), (spent, 0));
    // The deadline of the oldest request has not passed.
    world.begins(0, 0, capped(deferred_check(&brief, MAX_COUNT, 5), 200, 1_000)).unwrap();
    assert_eq!(
        world.spent_and_reserved(&brief),
        (spent + 195, 5),
        "the spent reserve counts towards its maximum"
    );
    assert!(world.limiter(0, 0).is_deferred(long_request));
    world.settle((0, 0), long_request, 1);
    assert_eq!(world.spent_and_reserved(&long), (1, 0));
}
