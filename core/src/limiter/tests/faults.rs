//! Faults: dead workers, wiped regions, repeated frames, clocks that step.

use super::harness::*;
use crate::limiter::table::Geometry;
use crate::limiter::{Cause, Decision, Gauges};
use crate::model::key::Key;
use crate::model::window::Position;

fn sequence(world: &World, key: &Key) -> u64 {
    Position::at(world.unix(), key.parts().cell_ms()).sequence
}

#[test]
fn a_dead_worker_frees_no_budget_and_its_counts_are_reported() {
    let mut world = World::connected(1, 3);
    let key = key("k", HOUR);
    let limit = 20_000;
    let mut passed = 0;
    for turn in 0..60_000usize {
        if turn == 9_000 {
            world.kill(0, 1);
        }
        let worker = if turn < 9_000 { turn % 3 } else { turn % 2 * 2 };
        match world.decide(0, worker, &[check(&key, limit, 1)]).decision {
            Decision::Allow(_) => passed += 1,
            Decision::Deny(denial) if denial.cause == Cause::Limit => break,
            _ => world.run(500),
        }
        if turn.is_multiple_of(50) {
            world.run(1);
        }
    }
    assert!(passed <= limit && passed >= limit - limit / 20, "{passed} passed");
    world.run(12_000);
    let entry = world.entry(0, &key).unwrap();
    assert_eq!((entry.current.own, entry.reservations.len()), (limit, 0), "its lease counts as spent");
    let at = sequence(&world, &key);
    assert_eq!(world.regional(&key, at).0, limit, "the region has all counts");
}

/// What was leased and spent is lost with a killed process, at most its leases; what was leased and not spent comes back.
#[test]
fn a_process_that_ends_while_leases_are_out_holds_nothing_back() {
    for is_killed in [true, false] {
        let mut world = World::connected(2, 2);
        let (key, limit) = (key("k", HOUR), 20_000);
        let mut passed = 0;
        for turn in 0..400 {
            passed += u64::from(world.passes(0, turn % 2, &[check(&key, limit, 1)]));
        }
        // All that is charged is reported meanwhile, and no lease is returned.
        world.run(200);
        let at = sequence(&world, &key);
        let entry = world.entry(0, &key).unwrap();
        let leased = entry.reserved_in(at);
        let spent = passed - entry.current.own;
        assert!(spent > 0 && spent < leased, "{spent} of {leased} are spent");
        match is_killed {
            true => world.kill_process(0),
            false => (0..2).for_each(|worker| world.end(0, worker)),
        }
        let counted = world.regional(&key, at).0;
        assert_eq!(counted, if is_killed { passed - spent } else { passed });
        let next = world.add_process(2, Geometry { buckets: 64, keys_per_bucket: 8 });
        world.run(2_000);
        let mut rest = 0;
        for turn in 0.. {
            match world.decide(next, turn % 2, &[check(&key, limit, 1)]).decision {
                Decision::Allow(_) => rest += 1,
                Decision::Deny(denial) if denial.cause == Cause::Limit => break,
                _ => world.run(50),
            }
        }
        assert_eq!(counted + rest, limit, "{leased} were leased");
    }
}

#[test]
fn the_subscriber_reports_the_counts_of_a_dead_worker() {
    let mut world = World::connected(1, 2);
    let key = key("k", HOUR);
    let killed = (0..2)
        .find(|worker| {
            !world.processes[0].workers[*worker].as_ref().unwrap().limiter.connection.is_subscriber()
        })
        .unwrap();
    assert!(world.passes(0, killed, &[check(&key, 10, 1)]));
    world.request(0, killed, &[check(&key, 10, 6)]);
    world.kill(0, killed);
    let at = sequence(&world, &key);
    // The other worker is under load, so that reports are always in flight.
    let other = super::harness::key("other", HOUR);
    for _ in 0..800 {
        world.request(0, 1 - killed, &[check(&other, 1_000_000, 1)]);
        world.run(10);
    }
    let own = world.entry(0, &key).unwrap().current.own;
    assert_eq!((own, world.regional(&key, at).0), (7, 7));
}

#[test]
fn a_wiped_region_receives_all_counts_again_and_counts_none_twice() {
    for (processes, workers, repeat) in [(1, 1, false), (2, 3, false), (2, 3, true), (3, 2, true)] {
        let mut world = World::connected(processes, workers);
        world.repeat_frames = repeat;
        world.latency = (0, 15);
        let keys = keys(20, HOUR);
        let mut passed = std::vec![0u64; keys.len()];
        let mut waiting = std::collections::BTreeMap::new();
        for turn in 0..6_000u64 {
            match turn {
                1_500 | 3_700 => world.restart_region(),
                2_500 => world.cut(0, 0),
                _ => {}
            }
            let at = world.random.below(keys.len() as u64) as usize;
            let process = world.random.below(processes as u64) as usize;
            let worker = world.random.below(workers as u64) as usize;
            let (id, outcome) = world.request(process, worker, &[check(&keys[at], 200, 1)]);
            passed[at] += u64::from(allowed(&outcome));
            if outcome.decision == Decision::Wait {
                waiting.insert(id, at);
            }
            world.run(turn % 2);
        }
        world.run(8_000);
        for (id, at) in waiting {
            passed[at] += u64::from(allowed(&world.resolved[&id].1));
        }
        for (key, passed) in keys.iter().zip(passed) {
            let at = sequence(&world, key);
            let own: u64 =
                (0..processes).map(|process| world.entry(process, key).map_or(0, |e| e.current.own)).sum();
            assert_eq!(own, passed, "own is the admitted cost");
            // Only unspent grants stay with the region.
            let regional = world.regional(key, at).0;
            assert!((passed..=passed + 4).contains(&regional), "{regional} in the region, {passed} passed");
            assert!(passed <= 210, "{passed} of 200");
        }
    }
}

#[test]
fn a_restarted_process_does_not_start_from_zero() {
    let mut world = World::connected(1, 1);
    let key = key("k", HOUR);
    for _ in 0..8 {
        assert!(world.passes(0, 0, &[check(&key, 10, 1)]));
    }
    world.run(300);
    world.kill_process(0);
    let again = world.add_process(1, world.processes[0].meta.geometry);
    world.run(500);
    let passed = (0..20).filter(|_| world.passes(again, 0, &[check(&key, 10, 1)])).count();
    assert_eq!(passed, 2);
}

#[test]
fn the_previous_window_is_weighted() {
    let mut world = World::alone(1, 2);
    let key = key("k", MINUTE);
    let start = MINUTE - world.unix().0 % MINUTE;
    world.run(start);
    for _ in 0..10 {
        assert!(world.passes(0, 0, &[check(&key, 10, 1)]));
    }
    world.run(MINUTE);
    assert!(!world.passes(0, 1, &[check(&key, 10, 1)]), "at the rollover all of it counts");
    world.run(MINUTE / 2);
    let passed = (0..10).filter(|turn| world.passes(0, turn % 2, &[check(&key, 10, 1)])).count();
    assert_eq!(passed, 5, "half a window later half of it counts");
}

#[test]
fn a_lease_is_charged_to_the_cell_that_it_was_taken_in() {
    let mut world = World::alone(1, 2);
    let key = key("k", MINUTE);
    let limit = 1_000_000;
    let early = MINUTE - world.unix().0 % MINUTE - 20;
    world.run(early);
    for turn in 0..500 {
        assert!(world.passes(0, turn % 2, &[check(&key, limit, 1)]));
    }
    world.run(40);
    for turn in 0..300 {
        assert!(world.passes(0, turn % 2, &[check(&key, limit, 1)]));
    }
    world.run(3_000);
    let entry = world.entry(0, &key).unwrap();
    assert_eq!((entry.previous.own, entry.current.own, entry.reservations.len()), (500, 300, 0));
}

#[test]
fn no_clock_step_resets_a_limit() {
    for step in [-100i64, -60_000, -150_000, -3_600_000, -40_000_000_000, -i64::MAX / 2] {
        for workers in [1, 3] {
            let mut world = World::alone(1, workers);
            let key = key("k", MINUTE);
            for turn in 0..6 {
                assert!(world.passes(0, turn % workers, &[check(&key, 10, 1)]));
            }
            world.unix_offset = world.unix_offset.saturating_add(step);
            world.run(60);
            let passed =
                (0..20).filter(|turn| world.passes(0, turn % workers, &[check(&key, 10, 1)])).count();
            assert!(passed <= 4, "{passed} more passed after a step of {step}");
        }
    }
    let mut world = World::alone(1, 1);
    let key = key("k", MINUTE);
    for step in [MINUTE as i64, 10 * MINUTE as i64, 1 << 60, i64::MAX] {
        world.unix_offset = world.unix_offset.saturating_add(step);
        world.run(60);
        world.passes(0, 0, &[check(&key, 10, 1)]);
    }
}

#[test]
fn cells_beyond_the_capacity_of_the_outbox_are_reported() {
    const MANY: usize = 20_000;
    let mut world = World::with(1, 1, Geometry { buckets: 16_384, keys_per_bucket: 8 }, true);
    world.run(100);
    let keys = keys(MANY, HOUR);
    for (at, key) in keys.iter().enumerate() {
        world.decide(0, 0, &[check(key, 5, 1)]);
        if at % 1_000 == 0 {
            world.run(50);
        }
    }
    world.down = false;
    world.run(20_000);
    let at = crate::model::window::Position::at(world.unix(), HOUR).sequence;
    let missing = keys.iter().filter(|key| world.regional(key, at).0 != 1).count();
    assert_eq!(missing, 0);
    let limiter = &world.processes[0].workers[0].as_ref().unwrap().limiter;
    assert!(
        limiter.connection.resync.is_idle() && limiter.connection.registry.is_resent(),
        "the resync is complete, and all counts are acknowledged"
    );
}

#[test]
fn a_worker_that_ends_leaves_the_gauges_of_its_process() {
    let mut world = World::connected(1, 4);
    let of = |workers| Gauges {
        workers,
        streams_connected: workers,
        streams_settled: workers,
        subscribers: 1,
        report_queue: 0,
    };
    world.run(3_000);
    assert_eq!(world.gauges(), of(4));
    world.request(0, 1, &[check(&key("k", HOUR), 10, 1)]);
    world.kill(0, 1);
    world.run(8_000);
    assert_eq!(world.gauges(), of(3), "after it has died");
    world.end(0, 2);
    world.run(1_000);
    assert_eq!(world.gauges(), of(2), "after it has signed off");
    world.down = true;
    world.cut_all();
    world.run(1_000);
    assert_eq!(world.gauges(), Gauges { workers: 2, ..Gauges::default() }, "without a region");
}
