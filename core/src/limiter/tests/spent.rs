//! Use that was decided elsewhere: it is charged beyond any limit, and others see it.

use super::harness::*;
use crate::limiter::{Cause, CellCount};
use crate::model::time::MonoMs;
use crate::model::window::MAX_LIMIT;

#[test]
fn spent_use_is_charged_beyond_the_limit_and_reported() {
    let mut world = World::connected(2, 1);
    let key = key("a", HOUR);
    assert!(world.passes(0, 0, &[check(&key, 10, 4)]));
    let spend = |world: &mut World, amount, expected| {
        let now = MonoMs(world.now);
        let Process { shared, workers, .. } = &mut world.processes[0];
        let limiter = &mut workers[0].as_mut().unwrap().limiter;
        assert!(limiter.charge_spent(shared, &check(&key, 10, amount), now));
        assert_eq!(world.spent_and_reserved(&key), (expected, 0));
    };
    spend(&mut world, 3, 7);
    spend(&mut world, 50, 57);
    spend(&mut world, 0, 57);
    assert_eq!(denial(world.decide(0, 0, &[check(&key, 10, 1)])).cause, Cause::Limit);
    world.run(500);
    assert_eq!(denial(world.decide(1, 0, &[check(&key, 10, 1)])).cause, Cause::Limit, "the other process");
    spend(&mut world, u64::MAX, MAX_LIMIT);
}

/// Both workers have seen 900 of 1 000. Whichever is first exceeds the limit, and the other is charged nothing.
#[test]
fn costs_are_charged_in_full_until_the_limit_is_exceeded() {
    let mut world = World::alone(1, 2);
    let key = key("a", HOUR);
    let charge = |world: &mut World, worker: usize, cost| {
        let now = MonoMs(world.now);
        let Process { shared, workers, .. } = &mut world.processes[0];
        let limiter = &mut workers[worker].as_mut().unwrap().limiter;
        limiter.charge_unless_exceeded(shared, &check(&key, 1_000, cost), now)
    };
    let charged = [0, 1, 0, 1, 0, 1, 0, 1].map(|worker| charge(&mut world, worker, 300));
    assert_eq!(charged.iter().filter(|one| **one == Some(true)).count(), 4);
    assert_eq!(world.spent_and_reserved(&key), (1_200, 0));
    assert_eq!(charge(&mut world, 0, 1), Some(false));
    assert_eq!(denial(world.decide(0, 1, &[check(&key, 1_000, 1)])).cause, Cause::Limit);
}

/// What a worker has spent of its lease is not in the table yet, and counts.
#[test]
fn a_spent_lease_counts_towards_the_limit_and_the_cell() {
    let mut world = World::alone(1, 1);
    let key = key("a", HOUR);
    for _ in 0..90 {
        assert!(world.passes(0, 0, &[check(&key, 1_000, 1)]));
    }
    let (spent, reserved) = world.spent_and_reserved(&key);
    assert!(spent < 90 && reserved > 0, "{spent} spent, {reserved} reserved");
    let now = MonoMs(world.now);
    let Process { shared, workers, .. } = &mut world.processes[0];
    let limiter = &mut workers[0].as_mut().unwrap().limiter;
    let CellCount { sequence, counted } = limiter.current_cell(shared, key.as_bytes(), HOUR, now);
    assert_eq!((sequence, counted), (START_UNIX / HOUR, 90));
    assert_eq!(limiter.charge_unless_exceeded(shared, &check(&key, 1_000, 911), now), Some(true));
    assert_eq!(limiter.charge_unless_exceeded(shared, &check(&key, 1_000, 1), now), Some(false));
    assert_eq!(world.spent_and_reserved(&key), (1_001, 0));
}
