//! Clocks that are wrong, differ or step. The workers of a process use one clock, and counts age by the monotonic clock.

use super::super::{Check, Limiter, Policy};
use super::harness::*;
use crate::limiter::table::Geometry;
use crate::model::key::Key;
use crate::model::time::MonoMs;

const SECOND: u64 = 1_000;

/// Advances the time to the start of a window of `duration_ms`.
fn to_next_window(world: &mut World, duration_ms: u64) {
    let left = duration_ms - world.unix().0 % duration_ms;
    world.run(left);
}

/// How many of `requests`, sent to the workers in turn within a few milliseconds, pass.
fn passed(world: &mut World, workers: usize, requests: usize, key: &Key) -> usize {
    (0..requests).filter(|turn| world.passes(0, turn % workers, &[check(key, 10, 1)])).count()
}

fn limiter(world: &World, worker: usize) -> &Limiter {
    &world.processes[0].workers[worker].as_ref().unwrap().limiter
}

/// A process of two workers with an aggregator each. The clock of the second aggregator is off by `error_ms`.
fn two_aggregators(error_ms: i64) -> World {
    let mut world = World::with(1, 2, Geometry { buckets: 64, keys_per_bucket: 8 }, false);
    let other = world.add_aggregator();
    world.routes.insert((0, 1), other);
    world.clock_errors.insert(other, error_ms);
    world.run(2_000);
    world
}

#[test]
fn workers_share_one_limit_though_the_clocks_of_their_aggregators_differ() {
    for (duration_ms, error_ms) in [(SECOND, 3_500), (SECOND, -3_500), (MINUTE, 200_000), (MINUTE, -200_000)]
    {
        let mut world = two_aggregators(error_ms);
        let key = key("k", duration_ms);
        to_next_window(&mut world, duration_ms);
        let passed = passed(&mut world, 2, 300, &key);
        assert!(passed <= 10, "{passed} of 300 passed; windows of {duration_ms} ms, {error_ms} ms apart");
        let moments = [0, 1].map(|worker| limiter(&world, worker).moment(MonoMs(world.now)));
        assert_eq!(moments[0], moments[1]);
    }
}

/// The region states the time, so none begins twice. While a request waits, the worker ticks more often than it is pinged.
#[test]
fn a_step_of_the_machine_moves_no_time_while_the_region_is_reached() {
    for step_ms in [-3_600_000, -10, 10, 3_600_000] {
        let mut world = World::connected(1, 2);
        world.latency = (10, 10);
        let offset_ms =
            |world: &World, worker| limiter(world, worker).moment(MonoMs(world.now)).unix.0 - world.now;
        let before = offset_ms(&world, 0);
        world.unix_offset += step_ms;
        world.clock_errors.insert(0, -step_ms);
        for ms in 0..1_000 {
            if ms % 50 == 0 {
                world.request(0, ms % 2, &[check(&key(&std::format!("k{ms}"), MINUTE), 10, 1)]);
            }
            world.run(1);
            assert_eq!(
                [0, 1].map(|worker| offset_ms(&world, worker)),
                [before; 2],
                "{ms} ms after {step_ms} ms"
            );
        }
    }
}

#[test]
fn a_worker_without_a_stream_uses_the_clock_of_the_other_workers() {
    for error_ms in [200_000, -200_000] {
        let mut world = World::with(1, 2, Geometry { buckets: 64, keys_per_bucket: 8 }, false);
        world.routes.insert((0, 1), usize::MAX);
        world.clock_errors.insert(0, error_ms);
        world.run(2_000);
        let key = key("k", MINUTE);
        to_next_window(&mut world, MINUTE);
        let passed = passed(&mut world, 2, 300, &key);
        assert!(passed <= 10, "{passed} of 300 passed");
        assert_eq!(limiter(&world, 1).moment(MonoMs(world.now)).unix, world.unix_of(0));
    }
}

#[test]
fn a_closed_stream_does_not_change_the_clock() {
    for error_ms in [200_000i64, -200_000] {
        let mut world = World::connected(1, 2);
        world.clock_errors.insert(0, error_ms);
        world.run(1_000);
        let key = key("k", MINUTE);
        assert_eq!(passed(&mut world, 2, 20, &key), 10);
        world.down = true;
        let mut passed_later = 0;
        for _ in 0..20 {
            world.cut_all();
            world.run(500);
            let moved = limiter(&world, 1).moment(MonoMs(world.now)).unix.0.abs_diff(world.unix_of(0).0);
            assert!(moved <= 11, "{moved} ms within ten seconds");
            passed_later += passed(&mut world, 2, 10, &key);
        }
        assert!(passed_later <= 3, "{passed_later} passed within ten seconds of the outage");
        // Afterwards it approaches the machine's clock by a thousandth, in each worker alike.
        world.run(1_000_000);
        let moved = [0, 1].map(|worker| {
            limiter(&world, worker).moment(MonoMs(world.now)).unix.0.abs_diff(world.unix_of(0).0)
        });
        assert!(moved.iter().all(|moved| (900..1_050).contains(moved)), "{moved:?}");
        assert!(moved[0].abs_diff(moved[1]) <= 1, "{moved:?}");
    }
}

#[test]
fn a_clock_step_ahead_frees_no_budget_early() {
    for step in [MINUTE as i64, 90_000, 2 * MINUTE as i64, 10 * MINUTE as i64, 1 << 50] {
        for workers in [1, 3] {
            let mut world = World::alone(1, workers);
            let key = key("k", MINUTE);
            to_next_window(&mut world, MINUTE);
            assert_eq!(passed(&mut world, workers, 20, &key), 10);
            world.unix_offset += step;
            for _ in 0..30 {
                let passed = passed(&mut world, workers, 3, &key);
                assert_eq!(passed, 0, "after a step of {step}");
                world.run(1_000);
            }
            world.run(3 * MINUTE);
            assert!(
                world.passes(0, 0, &[check(&key, 10, 1)]),
                "a request passes once the windows have ended"
            );
        }
    }
}

#[test]
fn costs_spent_from_a_lease_survive_a_clock_step() {
    for step in [-3_600_000i64, 3_600_000] {
        let mut world = World::alone(1, 1);
        let key = key("k", MINUTE);
        for _ in 0..300 {
            assert!(world.passes(0, 0, &[check(&key, 1_000_000, 1)]));
        }
        let entry = world.entry(0, &key).unwrap();
        assert!(entry.current.own < 300 && !entry.reservations.is_empty(), "a lease holds the rest");
        world.unix_offset += step;
        world.run(6_000);
        let entry = world.entry(0, &key).unwrap();
        let own: u64 = entry.cells().map(|(_, cell)| cell.own).sum();
        assert_eq!((own, entry.reservations.len()), (300, 0));
    }
}

#[test]
fn counts_renumbered_by_a_clock_step_are_reported_again() {
    for step in [3_600_000i64, -3_600_000] {
        let mut world = World::connected(1, 2);
        let key = key("k", MINUTE);
        assert_eq!(passed(&mut world, 2, 20, &key), 10);
        world.clock_errors.insert(0, step);
        world.run(1_500);
        let now = world.unix_of(0);
        let at = crate::model::window::Position::at(now, MINUTE);
        let reported: u64 = (at.sequence - 1..=at.sequence + 1).map(|s| world.regional(&key, s).0).sum();
        assert_eq!(reported, 10);
    }
}

/// A process of one connected worker, with a table that a few keys fill.
fn crowded() -> World {
    let mut world = World::with(1, 1, Geometry { buckets: 4, keys_per_bucket: 2 }, false);
    world.run(2_000);
    world
}

/// Sends a worker requests on many new keys, and time to report each.
fn flood(world: &mut World, worker: usize, keys: &[Key]) {
    for key in keys {
        world.decide(0, worker, &[check(key, 3, 1)]);
        world.run(20);
    }
}

#[test]
fn a_charge_before_the_first_tick_or_after_a_suspension_is_not_evicted() {
    for suspended in [false, true] {
        let mut world = crowded();
        let other = world.add_worker(0);
        if suspended {
            world.run(2_000);
        }
        // Its timer is late. Shadow rules charge without a query.
        let late = |world: &mut World, ms: u64| {
            world.processes[0].workers[other].as_mut().unwrap().next_tick = world.now + ms;
        };
        late(&mut world, 8_000);
        world.run(if suspended { 7_000 } else { 0 });
        late(&mut world, 1_000);
        let key = key("k", HOUR);
        let shadow =
            |key| Check { policy: Policy { shadow: true, ..Policy::default() }, ..check(key, 10, 1) };
        let Process { shared, workers, .. } = &mut world.processes[0];
        let limiter = &mut workers[other].as_mut().unwrap().limiter;
        limiter.decide(shared, 1_000_000, &[shadow(&key)], MonoMs(world.now));
        world.run(100);
        for flooder in keys(30, HOUR) {
            world.decide(0, 0, &[check(&flooder, 3, 1)]);
            world.run(20);
        }
        assert!(world.entry(0, &key).is_some(), "an unreported count was evicted; suspended: {suspended}");
    }
}

#[test]
fn an_eviction_under_a_clock_far_ahead_leaves_later_keys_their_baselines() {
    let mut world = crowded();
    world.clock_errors.insert(0, 400 * 24 * HOUR as i64);
    world.run(1_000);
    let many = keys(200, MINUTE);
    flood(&mut world, 0, &many[..100]);
    assert!(world.sum_of(|stats| stats.evictions) > 0);
    world.clock_errors.clear();
    world.run(5 * MINUTE);
    world.down = true;
    world.cut_all();
    world.run(200);
    let mut without_baseline = 0;
    for key in &many[100..104] {
        assert!(world.passes(0, 0, &[check(key, 3, 1)]));
        without_baseline += usize::from(world.entry(0, key).is_none_or(|entry| entry.is_without_baseline()));
    }
    assert_eq!(without_baseline, 0);
}
