//! Violations that lead to a ban, counted by several workers and processes.

use super::harness::*;
use crate::limiter::table::Geometry;
use crate::limiter::{MAX_VIOLATORS, TICK_MS, Violation, Violator};
use crate::model::key::Key;
use crate::model::time::MonoMs;
use std::vec::Vec;

impl World {
    fn violation(&mut self, process: usize, worker: usize, key: &Key, most: u64) {
        let now = MonoMs(self.now);
        let Process { shared, workers, .. } = &mut self.processes[process];
        let violation = Violation { rule: (9, 3), key: key.as_bytes(), count: 1, most };
        let worker = workers[worker].as_mut().unwrap();
        worker.struck.extend(worker.limiter.violation(shared, &violation, now));
    }

    fn take_violators(&mut self, process: usize, worker: usize) -> Vec<Violator> {
        core::mem::take(&mut self.processes[process].workers[worker].as_mut().unwrap().struck)
    }
}

fn of(key: &Key) -> Vec<Violator> {
    Vec::from([Violator { rule: (9, 3), key: key.as_bytes().to_vec() }])
}

#[test]
fn workers_share_a_count_of_violations_and_write_it_on_their_ticks() {
    let mut world = World::alone(1, 2);
    let key = key("a", MINUTE);
    world.run(100);
    let stores = world.processes[0].shared.stores;
    for _ in 0..30 {
        world.violation(0, 0, &key, 50);
        world.violation(0, 1, &key, 50);
    }
    assert_eq!(world.processes[0].shared.stores, stores, "violations are stored on ticks only");
    world.run(2 * TICK_MS);
    let violators = [world.take_violators(0, 0), world.take_violators(0, 1)].concat();
    assert_eq!(violators, of(&key));
    assert_eq!(world.entry(0, &key).unwrap().current.own, 60);
}

#[test]
fn the_violation_that_reaches_the_threshold_leads_to_a_ban_at_once() {
    let mut world = World::alone(1, 1);
    let key = key("a", MINUTE);
    for _ in 0..49 {
        world.violation(0, 0, &key, 50);
    }
    assert_eq!(world.take_violators(0, 0), []);
    world.violation(0, 0, &key, 50);
    assert_eq!(world.take_violators(0, 0), of(&key));
    assert_eq!(world.take_violators(0, 0), [], "each violator is returned once");
}

#[test]
fn violations_outside_the_window_do_not_count() {
    let mut world = World::alone(1, 1);
    let key = key("a", 1_000);
    for _ in 0..40 {
        world.violation(0, 0, &key, 10);
        world.run(250);
        assert_eq!(world.take_violators(0, 0), [], "four in a second are fewer than ten");
    }
}

#[test]
fn processes_of_a_region_share_a_count_of_violations() {
    let mut world = World::connected(2, 1);
    let key = key("a", MINUTE);
    for turn in 0..8 {
        world.violation(turn % 2, 0, &key, 10);
        world.run(300);
    }
    assert_eq!((world.take_violators(0, 0), world.take_violators(1, 0)), (Vec::new(), Vec::new()));
    for _ in 0..2 {
        world.violation(0, 0, &key, 10);
    }
    world.run(2 * TICK_MS);
    assert_eq!(world.take_violators(0, 0), of(&key));
}

#[test]
fn a_flood_of_identifiers_is_bounded_and_bans_no_identifier_for_the_denials_of_others() {
    let mut world = World::with(1, 1, Geometry { buckets: 1, keys_per_bucket: 2 }, true);
    let keys = keys(MAX_VIOLATORS + 9, HOUR);
    for key in &keys {
        world.violation(0, 0, key, 3);
    }
    world.run(2 * TICK_MS);
    assert_eq!(world.take_violators(0, 0), []);
    assert!(world.sum_of(|stats| stats.overflows) >= MAX_VIOLATORS as u64 - 2);
}
