//! A process that has just begun: its requests wait for the first stream, as it knows of no key what is used.

use super::harness::*;
use crate::limiter::{Decision, Outcome};
use crate::model::key::Key;
use std::vec::Vec;

/// Requests of one moment; the outcomes of those that are decided `ms` later.
fn burst(world: &mut World, process: usize, key: &Key, ms: u64) -> (usize, Vec<Outcome>) {
    let asked: Vec<_> = (0..20).map(|_| world.request(process, 0, &[check(key, 10, 1)])).collect();
    let waiting = asked.iter().filter(|(_, outcome)| outcome.decision == Decision::Wait).count();
    world.run(ms);
    let decided = asked.iter().filter_map(|(id, outcome)| match outcome.decision {
        Decision::Wait => world.resolved.get(id).map(|(_, outcome)| *outcome),
        _ => Some(*outcome),
    });
    (waiting, decided.collect())
}

/// A region in which four of ten are used of the key, which is not pushed to others.
fn used(key: &Key) -> World {
    let mut world = World::connected(1, 1);
    for _ in 0..4 {
        assert!(world.passes(0, 0, &[check(key, 10, 1)]));
    }
    world.run(300);
    world
}

fn begin(world: &mut World) -> usize {
    world.add_process(1, world.processes[0].meta.geometry)
}

#[test]
fn the_first_requests_of_a_process_wait_for_its_stream() {
    for latency in [0, 5, 20] {
        let key = key("k", HOUR);
        let mut world = used(&key);
        world.latency = (latency, latency);
        let process = begin(&mut world);
        let (waiting, decided) = burst(&mut world, process, &key, 300);
        let passed = decided.iter().filter(|outcome| allowed(outcome)).count();
        assert_eq!((waiting, decided.len()), (20, 20));
        // Where the first answer takes longer than a request waits, they are decided without it.
        let most = if latency == 20 { 10 } else { 6 };
        assert!(passed <= most, "{passed} passed, {latency} ms away");
    }
}

#[test]
fn a_stream_that_cannot_be_opened_holds_nothing_up() {
    let key = key("k", HOUR);
    let mut world = used(&key);
    world.down = true;
    let process = begin(&mut world);
    let (_, decided) = burst(&mut world, process, &key, 1);
    assert_eq!(decided.len(), 20, "the first tick has failed to open it");
    assert_eq!(burst(&mut world, process, &key, 0).0, 0);
}

#[test]
fn a_stream_that_is_not_welcomed_holds_requests_up_once() {
    let key = key("k", HOUR);
    let mut world = used(&key);
    world.paused = true;
    let process = begin(&mut world);
    let others = keys(3, HOUR);
    for key in &others {
        world.request(process, 0, &[check(key, 10, 1)]);
    }
    let (waiting, decided) = burst(&mut world, process, &key, 61);
    assert_eq!((waiting, decided.len()), (20, 20), "their timeout and a tick");
    assert_eq!(burst(&mut world, process, &key, 0).0, 0);
    assert!(!world.processes[process].workers[0].as_ref().unwrap().limiter.is_connected());
    world.paused = false;
    world.run(300);
    assert!(world.processes[process].workers[0].as_ref().unwrap().limiter.is_connected());
}
