//! One process without a region: a limit of N passes exactly N, however many workers there are.

use super::harness::*;
use crate::limiter::{Cause, Decision};
use std::vec;
use std::vec::Vec;

/// Sends requests to the workers in turn until none passes any more. Returns the admitted cost.
fn exhaust(world: &mut World, limit: u64, costs: &[u64], every_ms: u64, patience: u64) -> u64 {
    let key = key("k", HOUR);
    let workers = world.processes[0].workers.len();
    let (mut passed, mut refused) = (0, 0);
    for turn in 0.. {
        let cost = costs[turn % costs.len()];
        let outcome = world.decide(0, turn % workers, &[check(&key, limit, cost)]);
        match outcome.decision {
            Decision::Allow(_) => {
                passed += cost;
                refused = 0;
            }
            Decision::Deny(denial) if denial.cause == Cause::Reserved => world.run(60),
            _ => refused += 1,
        }
        assert!(passed <= limit, "{passed} of {limit} passed after {turn} requests");
        if refused > patience {
            break;
        }
        if every_ms > 0 && (turn as u64).is_multiple_of(every_ms) {
            world.run(1);
        }
    }
    passed
}

#[test]
fn a_limit_of_n_passes_n() {
    for workers in [1, 2, 3, 8] {
        for limit in [5, 1_000, 100_000] {
            for costs in [&[1][..], &[7], &[7, 1, 3]] {
                // All requests in one moment; 40 requests a millisecond, so that leases are taken; one request a millisecond.
                for every_ms in [0, 40, 1] {
                    if limit == 100_000 && every_ms == 1 {
                        continue;
                    }
                    let mut world = World::alone(1, workers);
                    let patience = 3 * (workers * costs.len()) as u64;
                    let passed = exhaust(&mut world, limit, costs, every_ms, patience);
                    let least = limit - limit % costs.iter().min().unwrap();
                    assert_eq!(
                        passed, least,
                        "{workers} workers, limit {limit}, costs {costs:?}, {every_ms}"
                    );
                    if limit == 100_000 && every_ms == 40 && costs == [1] {
                        assert!(world.sum_of(|stats| stats.leases) > 0, "no leases were taken");
                    }
                }
            }
        }
    }
}

#[test]
fn costs_spent_from_leases_are_written_to_the_table() {
    let mut world = World::alone(1, 4);
    let key = key("k", HOUR);
    let passed = (0..40_000).filter(|turn| {
        if turn % 40 == 0 {
            world.run(1);
        }
        world.passes(0, turn % 4, &[check(&key, 1_000_000, 1)])
    });
    let passed = passed.count() as u64;
    assert_eq!(passed, 40_000);
    world.run(3_000);
    let entry = world.entry(0, &key).unwrap();
    assert_eq!((entry.current.own, entry.reservations), (40_000, Vec::new()));
}

#[test]
fn a_lease_needs_no_table_access_and_a_charge_one_load_and_one_store() {
    let mut world = World::alone(1, 1);
    let key = key("k", HOUR);
    for _ in 0..3_000 {
        world.passes(0, 0, &[check(&key, 1_000_000, 1)]);
    }
    let shared = &mut world.processes[0].shared;
    (shared.loads, shared.stores) = (0, 0);
    for _ in 0..100 {
        world.passes(0, 0, &[check(&key, 1_000_000, 1)]);
    }
    let shared = &world.processes[0].shared;
    assert_eq!((shared.loads, shared.stores), (0, 0), "leased");

    let few = super::harness::key("few", HOUR);
    let before = (shared.loads, shared.stores);
    for turn in 1..=10 {
        assert!(world.passes(0, 0, &[check(&few, 10, 1)]));
        let shared = &world.processes[0].shared;
        assert_eq!((shared.loads - before.0, shared.stores - before.1), (turn, turn), "charged");
    }
    // The first denial loads the bucket, the others come from the worker cache.
    for _ in 0..10 {
        assert_eq!(denial(world.decide(0, 0, &[check(&few, 10, 1)])).cause, Cause::Limit);
        let shared = &world.processes[0].shared;
        assert_eq!(shared.loads - before.0, 11);
    }
}

/// What clients are shown while workers spend leases.
#[test]
fn what_remains_falls_with_each_use_and_rises_for_no_worker() {
    let (limit, key) = (60_000, key("k", HOUR));
    for workers in [1, 2, 4] {
        let mut world = World::alone(1, workers);
        let remaining = |world: &mut World, worker| {
            let outcome = world.decide(0, worker, &[check(&key, limit, 1)]);
            let Decision::Allow(Some(budget)) = outcome.decision else { panic!("{outcome:?}") };
            budget.remaining
        };
        let (mut used, mut shown) = (0, vec![limit; workers]);
        for turn in 0..4_000 {
            let worker = turn % workers;
            let now = remaining(&mut world, worker);
            used += 1;
            assert!(now < shown[worker], "{now} after {} to worker {worker} of {workers}", shown[worker]);
            if workers == 1 {
                assert_eq!(now, limit - used, "what the lease holds is left");
            }
            shown[worker] = now;
        }
        assert!(world.sum_of(|stats| stats.leases) > 0, "no leases were taken");
        // All leases are returned, so each worker shows what is left to all.
        for worker in 0..workers {
            world.run(6_000);
            used += 1;
            assert_eq!(remaining(&mut world, worker), limit - used, "worker {worker} of {workers}");
        }
    }
}
