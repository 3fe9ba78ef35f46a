//! A process that has just started: its requests wait for the first stream, since it has no counts of any key.

use super::harness::*;
use crate::limiter::{Decision, Outcome};
use crate::model::key::Key;
use std::vec::Vec;

/// Sends requests in one moment. Returns how many wait, and the outcomes of those that are decided `ms` later.
fn burst(world: &mut World, process: usize, key: &Key, ms: u64) -> (usize, Vec<Outcome>) {
    let sent: Vec<_> = (0..20).map(|_| world.request(process, 0, &[check(key, 10, 1)])).collect();
    let waiting = sent.iter().filter(|(_, outcome)| outcome.decision == Decision::Wait).count();
    world.run(ms);
    let decided = sent.iter().filter_map(|(id, outcome)| match outcome.decision {
        Decision::Wait => world.resolved.get(id).map(|(_, outcome)| outcome.clone()),
        _ => Some(outcome.clone()),
    });
    (waiting, decided.collect())
}

/// A region in which four of ten are used of `key`. It is not past half its limit, so it is not pushed.
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
        // If the first answer takes longer than the timeout, the requests are decided without it.
        let most = if latency == 20 { 10 } else { 6 };
        assert!(passed <= most, "{passed} passed with a latency of {latency} ms");
    }
}

#[test]
fn requests_do_not_wait_if_the_stream_cannot_be_opened() {
    let key = key("k", HOUR);
    let mut world = used(&key);
    world.down = true;
    let process = begin(&mut world);
    let (_, decided) = burst(&mut world, process, &key, 1);
    assert_eq!(decided.len(), 20, "the first tick has failed to open it");
    assert_eq!(burst(&mut world, process, &key, 0).0, 0);
}

#[test]
fn requests_wait_once_for_a_welcome_that_does_not_arrive() {
    let key = key("k", HOUR);
    let mut world = used(&key);
    world.paused = true;
    let process = begin(&mut world);
    let others = keys(3, HOUR);
    for key in &others {
        world.request(process, 0, &[check(key, 10, 1)]);
    }
    let (waiting, decided) = burst(&mut world, process, &key, 61);
    assert_eq!((waiting, decided.len()), (20, 20), "decided after their timeout and a tick");
    assert_eq!(burst(&mut world, process, &key, 0).0, 0);
    assert!(!world.processes[process].workers[0].as_ref().unwrap().limiter.is_connected());
    world.paused = false;
    world.run(300);
    assert!(world.processes[process].workers[0].as_ref().unwrap().limiter.is_connected());
}
