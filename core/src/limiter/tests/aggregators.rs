//! Several aggregators behind one name, each of which may know less than the others, lose all or be of no use.

use super::harness::*;
use crate::key::Key;
use crate::window::Position;
use std::string::String;
use std::vec::Vec;

fn sequence(world: &World, key: &Key) -> u64 {
    Position::at(world.unix(), key.parts().cell_ms()).sequence
}

/// The views that were repeated: identifier, own, region_others and limit, each once.
fn repeated(world: &World) -> Vec<(String, u64, u64, u64)> {
    let told = world.views.iter().map(|(_, count)| {
        let key = Key::parse(&count.key).unwrap();
        let identifier = String::from_utf8(key.parts().identifier.to_vec()).unwrap();
        (identifier, count.own, count.region_others, count.limit)
    });
    let mut told: Vec<_> = told.collect();
    told.sort();
    told.dedup();
    told
}

#[test]
fn a_region_that_lost_all_is_told_what_the_others_had_used() {
    let mut world = World::connected(2, 2);
    let (shared, foreign, old) = (key("shared", HOUR), key("foreign", HOUR), key("old", MINUTE));
    assert!(world.passes(1, 0, &[check(&old, 10, 9)]));
    world.run(3 * MINUTE);
    assert!(world.passes(1, 0, &[check(&shared, 100, 7)]));
    assert!(world.passes(1, 0, &[check(&foreign, 10, 8)]));
    assert!(world.passes(0, 0, &[check(&shared, 100, 3)]));
    world.run(2_000);
    assert_eq!(repeated(&world), [], "a report alone repeats nothing");
    world.kill_process(1);
    world.restart_region();
    world.run(3_000);
    assert_eq!(repeated(&world), [("foreign".into(), 0, 8, u64::MAX), ("shared".into(), 3, 7, 100)]);
    let entry = world.entry(0, &foreign).unwrap();
    assert!(!entry.unstored && world.regional(&foreign, sequence(&world, &foreign)).0 == 0, "no component");
}

#[test]
fn a_peer_that_acknowledges_nothing_is_left_for_another() {
    let mut world = World::connected(1, 1);
    let other = world.add_aggregator();
    (world.ack_ms[0], world.latency) = (None, (1, 5));
    world.routes.insert((0, 0), other);
    let key = key("k", HOUR);
    for _ in 0..2 {
        assert!(
            world.passes(0, 0, &[check(&key, 10, 1)]),
            "the first one is granted, the second one reported"
        );
    }
    world.run(4_900);
    assert_eq!(world.sum_of(|stats| stats.unacknowledged), 0);
    world.run(1_000);
    assert_eq!(world.sum_of(|stats| stats.unacknowledged), 1);
    assert_eq!(world.known_to(other, &key, sequence(&world, &key)).0, 2, "the other one knows");
    world.run(30_000);
    assert_eq!(world.sum_of(|stats| stats.unacknowledged), 1);
}

#[test]
fn a_peer_that_takes_its_time_is_not_given_up() {
    let mut world = World::connected(1, 1);
    world.ack_ms[0] = Some(2_500);
    let keys = keys(2_000, HOUR);
    for turn in 0..20_000 {
        world.request(0, 0, &[check(&keys[turn % keys.len()], 1_000, 1)]);
        world.run(1);
    }
    world.run(5_000);
    assert_eq!(world.sum_of(|stats| stats.unacknowledged), 0);
    assert_eq!(world.sum_of(|stats| stats.report_queue), 0);
}

#[test]
fn a_peer_that_is_silent_or_a_worker_that_slept_is_no_reason() {
    let mut world = World::connected(1, 1);
    let key = key("k", HOUR);
    assert!(world.passes(0, 0, &[check(&key, 10, 1)]));
    world.paused = true;
    world.request(0, 0, &[check(&key, 10, 1)]);
    world.run(8_000);
    assert_eq!(world.sum_of(|stats| stats.unacknowledged), 0);
    world.paused = false;
    world.run(2_000);
    let slept = world.processes[0].workers[0].as_mut().unwrap();
    slept.next_tick += 8_000;
    world.request(0, 0, &[check(&key, 10, 1)]);
    world.run(10_000);
    assert_eq!(world.sum_of(|stats| stats.unacknowledged), 0);
}
