//! Several aggregators behind one name. Each may hold fewer counts than the others, lose all of them, or not respond.

use super::harness::*;
use super::network::Frame;
use crate::limiter::table::Geometry;
use crate::limiter::{Decision, Limiter};
use crate::model::key::Key;
use crate::model::window::Position;
use std::string::String;
use std::vec::Vec;

fn sequence(world: &World, key: &Key) -> u64 {
    Position::at(world.unix(), key.parts().cell_ms()).sequence
}

/// The counts that were reported with a snapshot: identifier, own, region_others and limit, each once.
fn reported_with_snapshot(world: &World) -> Vec<(String, u64, u64, u64)> {
    let counts = world.snapshots.iter().map(|(_, count)| {
        let key = Key::parse(&count.key).unwrap();
        let identifier = String::from_utf8(key.parts().identifier.to_vec()).unwrap();
        (identifier, count.own, count.region_others, count.limit)
    });
    let mut counts: Vec<_> = counts.collect();
    counts.sort();
    counts.dedup();
    counts
}

#[test]
fn after_a_loss_the_region_receives_the_use_of_ended_nodes() {
    let mut world = World::connected(2, 2);
    let (shared, foreign, old) = (key("shared", HOUR), key("foreign", HOUR), key("old", MINUTE));
    assert!(world.passes(1, 0, &[check(&old, 10, 9)]));
    world.run(3 * MINUTE);
    assert!(world.passes(1, 0, &[check(&shared, 100, 7)]));
    assert!(world.passes(1, 0, &[check(&foreign, 10, 8)]));
    assert!(world.passes(0, 0, &[check(&shared, 100, 3)]));
    world.run(2_000);
    assert_eq!(reported_with_snapshot(&world), [], "a normal report carries no snapshot");
    world.kill_process(1);
    world.restart_region();
    world.run(3_000);
    assert_eq!(
        reported_with_snapshot(&world),
        [("foreign".into(), 0, 8, u64::MAX), ("shared".into(), 3, 7, 100)]
    );
    let entry = world.entry(0, &foreign).unwrap();
    assert!(
        !entry.unstored && world.regional(&foreign, sequence(&world, &foreign)).0 == 0,
        "no component of it"
    );
}

#[test]
fn a_worker_leaves_an_aggregator_that_acknowledges_nothing() {
    let mut world = World::connected(1, 1);
    let other = world.add_aggregator();
    (world.ack_ms[0], world.latency) = (None, (1, 5));
    world.routes.insert((0, 0), other);
    let key = key("k", HOUR);
    for _ in 0..2 {
        assert!(
            world.passes(0, 0, &[check(&key, 10, 1)]),
            "the first request is granted, the second one is reported"
        );
    }
    world.run(4_900);
    assert_eq!(world.sum_of(|stats| stats.unacknowledged), 0);
    world.run(1_000);
    assert_eq!(world.sum_of(|stats| stats.unacknowledged), 1);
    assert_eq!(
        world.components_at(other, &key, sequence(&world, &key)).0,
        2,
        "the other aggregator has the count"
    );
    world.run(30_000);
    assert_eq!(world.sum_of(|stats| stats.unacknowledged), 1);
}

#[test]
fn a_worker_stays_with_a_slow_aggregator() {
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
fn a_paused_aggregator_or_a_suspended_worker_does_not_count_as_unacknowledged() {
    let mut world = World::connected(1, 1);
    let key = key("k", HOUR);
    assert!(world.passes(0, 0, &[check(&key, 10, 1)]));
    world.paused = true;
    world.request(0, 0, &[check(&key, 10, 1)]);
    world.run(8_000);
    assert_eq!(world.sum_of(|stats| stats.unacknowledged), 0);
    world.paused = false;
    world.run(2_000);
    let suspended = world.processes[0].workers[0].as_mut().unwrap();
    suspended.next_tick += 8_000;
    world.request(0, 0, &[check(&key, 10, 1)]);
    world.run(10_000);
    assert_eq!(world.sum_of(|stats| stats.unacknowledged), 0);
}

/// Processes of three workers each. The second worker of each process is connected to another aggregator than the rest.
fn split(processes: usize, geometry: Geometry) -> (World, usize) {
    let mut world = World::with(processes, 3, geometry, false);
    let other = world.add_aggregator();
    for process in 0..processes {
        world.routes.insert((process, 1), other);
    }
    world.run(1_000);
    for process in 0..processes {
        assert!(!limiter(&world, process, 1).connection.is_subscriber());
    }
    (world, other)
}

fn limiter(world: &World, process: usize, worker: usize) -> &Limiter {
    &world.processes[process].workers[worker].as_ref().unwrap().limiter
}

const SMALL: Geometry = Geometry { buckets: 64, keys_per_bucket: 8 };
const TINY: Geometry = Geometry { buckets: 4, keys_per_bucket: 2 };

#[test]
fn counts_that_only_a_lost_aggregator_acknowledged_are_reported_to_another() {
    let (mut world, other) = split(1, SMALL);
    let key = key("k", HOUR);
    for _ in 0..8 {
        assert!(world.passes(0, 1, &[check(&key, 10, 1)]));
    }
    world.run(1_000);
    let at = sequence(&world, &key);
    assert_eq!((world.components_at(0, &key, at).0, world.components_at(other, &key, at).0), (0, 8));
    world.lose_aggregator(other, 0);
    world.run(3_000);
    assert_eq!(world.regional(&key, at).0, 8, "all counts, acknowledged or not");
    assert!(limiter(&world, 0, 0).local.table.safe_before.0 > world.now - 1_000);
}

#[test]
fn no_key_is_evicted_while_a_worker_has_lost_its_aggregator() {
    let (mut world, other) = split(1, TINY);
    let used_up = keys(4, HOUR);
    for key in &used_up {
        for _ in 0..3 {
            assert!(world.passes(0, 1, &[check(key, 3, 1)]));
            world.run(150);
        }
    }
    let used_up: Vec<_> = used_up.into_iter().filter(|key| world.entry(0, key).is_some()).collect();
    assert!(used_up.len() >= 2);
    world.lose_aggregator(other, usize::MAX);
    world.run(200);
    let before = world.sum_of(|stats| stats.evictions);
    for flooder in keys(104, HOUR).iter().skip(4) {
        world.decide(0, 0, &[check(flooder, 3, 1)]);
        world.run(20);
    }
    assert_eq!(world.sum_of(|stats| stats.evictions), before);
    world.routes.clear();
    world.run(3_000);
    for key in &used_up {
        assert_eq!(world.regional(key, sequence(&world, key)).0, 3, "the other aggregator has the count");
    }
    for flooder in keys(204, HOUR).iter().skip(104) {
        world.decide(0, 0, &[check(flooder, 3, 1)]);
        world.run(100);
    }
    assert!(world.sum_of(|stats| stats.evictions) > before, "keys whose counts it has are evicted");
    for key in &used_up {
        assert!(!world.passes(0, 0, &[check(key, 3, 1)]), "the count restarted at zero");
    }
}

#[test]
fn no_count_is_lost_between_partitioned_aggregators() {
    for repeat in [false, true] {
        let (mut world, other) = split(2, SMALL);
        (world.repeat_frames, world.latency) = (repeat, (0, 15));
        let keys = keys(20, HOUR);
        let (mut passed, mut waiting) = (std::vec![[0; 2]; keys.len()], Vec::new());
        for turn in 0..6_000u64 {
            match turn {
                1_500 | 4_500 => world.lose_aggregator(other, 0),
                // The subscriber's aggregator is lost, and the other one takes over.
                3_000 => world.lose_aggregator(0, other),
                _ => {}
            }
            let at = world.random.below(keys.len() as u64) as usize;
            let (process, worker) = (world.random.below(2) as usize, world.random.below(3) as usize);
            let (id, outcome) = world.request(process, worker, &[check(&keys[at], 400, 1)]);
            passed[at][process] += u64::from(allowed(&outcome));
            waiting.extend((outcome.decision == Decision::Wait).then_some((id, at, process)));
            world.run(turn % 2);
        }
        world.run(8_000);
        for (id, at, process) in waiting {
            passed[at][process] += u64::from(allowed(&world.resolved[&id].1));
        }
        for (key, passed) in keys.iter().zip(passed) {
            let own = [0, 1].map(|process| world.entry(process, key).map_or(0, |entry| entry.current.own));
            assert_eq!(own, passed, "own is the admitted cost");
            let (sum, _) = world.regional(key, sequence(&world, key));
            let all: u64 = passed.iter().sum();
            assert!((all..=all + 8).contains(&sum), "the remaining aggregator holds {sum}, {all} passed");
        }
    }
}

#[test]
fn a_restart_seen_by_all_workers_causes_at_most_two_resyncs() {
    const KEYS: usize = 300;
    let mut world = World::with(1, 8, Geometry { buckets: 1_024, keys_per_bucket: 8 }, false);
    world.run(1_000);
    for key in &keys(KEYS, HOUR) {
        assert!(world.passes(0, 3, &[check(key, 10, 1)]));
    }
    world.run(1_000);
    let before = world.reported;
    world.restart_region();
    world.run(6_000);
    let reported = world.reported - before;
    assert!((KEYS..=2 * KEYS).contains(&reported), "{reported} counts for {KEYS} cells");
}

#[test]
fn the_number_of_processes_is_the_maximum_over_the_aggregators() {
    let mut world = World::with(2, 2, SMALL, false);
    let other = world.add_aggregator();
    world.routes.insert((0, 1), other);
    world.run(2_000);
    for worker in [0, 1] {
        assert_eq!(limiter(&world, 0, worker).connection.nodes(crate::model::time::MonoMs(world.now)), 2);
    }
}

#[test]
fn a_worker_that_shuts_down_leaves_the_registry_and_hands_over_its_duties() {
    let mut world = World::connected(1, 3);
    let first = (0..3).find(|worker| limiter(&world, 0, *worker).connection.is_subscriber()).unwrap();
    let key = key("k", HOUR);
    assert!(world.passes(0, first, &[check(&key, 10, 1)]));
    world.request(0, first, &[check(&key, 10, 4)]);
    world.end(0, first);
    world.run(2_000);
    let rest: Vec<_> = (0..3).filter(|worker| *worker != first).collect();
    assert_eq!(
        rest.iter().filter(|worker| limiter(&world, 0, **worker).connection.is_subscriber()).count(),
        1
    );
    assert_eq!(world.regional(&key, sequence(&world, &key)).0, 5);
    let safe = limiter(&world, 0, rest[0]).local.table.safe_before.0;
    assert!(safe > world.now - 500, "the registry does not wait for the ended worker to expire");
}

/// Removes the welcome frame for a worker from the network, if it is in flight.
fn take_welcome(world: &mut World, worker: usize) -> Option<(u64, Frame)> {
    let streams = &world.streams;
    let welcomes = |(stream, frame): &(u64, Frame)| match frame {
        Frame::Down(frame) => {
            frame.welcome.is_some() && streams.get(stream).is_some_and(|stream| stream.worker == worker)
        }
        Frame::Up(_) => false,
    };
    let at = *world.network.iter().find(|(_, sent)| welcomes(sent))?.0;
    world.network.remove(&at)
}

#[test]
fn the_subscriber_from_before_an_outage_does_not_keep_another_worker_from_subscribing() {
    let mut world = World::connected(1, 2);
    let node = world.processes[0].meta.node;
    let before = world.streams[&world.subscribers[&(0, node)]].worker;
    world.down = true;
    world.cut_all();
    world.run(1_000);
    world.down = false;
    world.latency = (3, 3);
    let (mut first, mut second) = (None, None);
    while first.is_none() || second.is_none() {
        world.run(1);
        first = first.or_else(|| take_welcome(&mut world, 1 - before));
        second = second.or_else(|| take_welcome(&mut world, before));
    }
    let arrives = |world: &mut World, frame: Option<(u64, Frame)>| {
        world.last_id += 1;
        world.network.insert((world.now + 1, world.last_id), frame.unwrap());
    };
    arrives(&mut world, first);
    while world.subscribers.is_empty() {
        world.run(1);
    }
    // The former subscriber is welcomed after that and before it reads the registry again.
    arrives(&mut world, second);
    world.run(1_000);
    assert_eq!(world.subscribers.len(), 1, "one worker subscribes for the process");
}
