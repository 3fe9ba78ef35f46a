//! Workers without requests: they tick and ping rarely, and no promise rests on that.

use super::exact::log;
use super::harness::*;
use crate::limiter::{Decision, Outcome, Reason};
use crate::model::time::MonoMs;

/// Processes whose workers have been idle for a minute.
fn idle(processes: usize, workers: usize) -> World {
    let mut world = World::connected(processes, workers);
    world.idles = true;
    world.run(MINUTE);
    world
}

fn waits((_, outcome): &(u64, Outcome)) -> bool {
    outcome.decision == Decision::Wait
}

/// The pings in `ms`.
fn pings(world: &mut World, ms: u64) -> u64 {
    let before = world.pings;
    world.run(ms);
    world.pings - before
}

fn is_connected(world: &World, process: usize, worker: usize) -> bool {
    world.processes[process].workers[worker].as_ref().unwrap().limiter.is_connected()
}

#[test]
fn an_idle_worker_pings_once_a_second_and_ticks_four_times() {
    let mut world = idle(1, 3);
    let stores = world.processes[0].shared.stores;
    let pings = pings(&mut world, 10_000);
    assert!((29..=31).contains(&pings), "{pings} pings of three workers in 10 s");
    let stores = world.processes[0].shared.stores - stores;
    assert!(stores <= 3 * 41, "{stores} updates of the registry in 10 s");
    let gauges = world.gauges();
    assert_eq!((gauges.workers, gauges.streams_connected, gauges.subscribers), (3, 3, 1));
}

#[test]
fn a_worker_with_requests_pings_at_each_tick() {
    let mut world = idle(1, 1);
    let key = key("k", HOUR);
    let before = world.pings;
    for _ in 0..20 {
        world.decide(0, 0, &[check(&key, 1_000_000, 1)]);
        world.run(500);
    }
    let pings = world.pings - before;
    assert!(pings >= 190, "{pings} pings in 10 s");
}

#[test]
fn the_first_request_after_a_pause_queries_and_others_do_not() {
    for (workers, fresh_ms) in [(1, 60), (3, 400)] {
        let mut world = idle(2, workers);
        let key = key("k", HOUR);
        // Not the subscriber, if there are several.
        let is_other = |worker: &usize| {
            let limiter = &world.processes[0].workers[*worker].as_ref().unwrap().limiter;
            !limiter.connection.is_subscriber()
        };
        let serves = (0..workers).find(is_other).unwrap_or(0);
        world.decide(0, serves, &[check(&key, 1_000, 1)]);
        world.run(400);
        assert!(!waits(&world.request(0, serves, &[check(&key, 1_000, 1)])), "the region pushes the key");
        world.run(MINUTE);
        let (stale, queries) = (Reason::Stale as usize, world.queries);
        let first = world.request(0, serves, &[check(&key, 1_000, 1)]);
        assert!(waits(&first), "{workers} workers");
        let (waited_ms, outcome) = world.wait_for(first.0, first.1);
        assert!(allowed(&outcome) && waited_ms <= 3, "{waited_ms} ms");
        assert_eq!((world.queries - queries, world.sum_of(|stats| stats.queries[stale])), (1, 1));
        world.run(fresh_ms);
        assert!(!waits(&world.request(0, serves, &[check(&key, 1_000, 1)])), "{workers} workers");
    }
}

/// The pushes for an idle process are lost, as behind an aggregator that has forgotten it.
#[test]
fn the_first_request_after_a_pause_is_decided_by_what_others_have_used_meanwhile() {
    let mut world = idle(2, 2);
    let key = key("k", HOUR);
    assert!(world.passes(0, 1, &[check(&key, 10, 1)]));
    world.run(MINUTE);
    let node = world.processes[0].meta.node;
    world.subscribers.retain(|(_, of), _| *of != node);
    for _ in 0..9 {
        assert!(world.passes(1, 0, &[check(&key, 10, 1)]));
    }
    world.run(MINUTE);
    assert!(!world.passes(0, 1, &[check(&key, 10, 1)]), "the others have used the rest");
}

#[test]
fn an_idle_worker_sends_an_exact_request_at_once() {
    let mut world = idle(1, 1);
    let key = key("k", MINUTE);
    for turn in 0..5 {
        let (waited_ms, outcome) = world.decide_exact(&[], &[log(0, &key, 3, 1)]);
        assert_eq!(allowed(&outcome), turn < 3, "{outcome:?}");
        assert!(turn > 3 || waited_ms > 0, "turn {turn}");
        world.run(7_300);
    }
    assert_eq!(world.sum_of(|stats| stats.exact_unsent), 0);
}

#[test]
fn an_idle_node_counts_as_alive_and_a_dead_one_for_two_seconds() {
    let mut world = idle(2, 1);
    for _ in 0..200 {
        assert_eq!(world.regions[0].nodes.alive(MonoMs(world.now)), 2, "at {}", world.now);
        world.run(97);
    }
    world.kill_process(1);
    world.run(2_001);
    assert_eq!(world.regions[0].nodes.alive(MonoMs(world.now)), 1);
}

#[test]
fn a_worker_that_owes_something_is_not_idle() {
    let mut world = idle(1, 1);
    world.ack_ms[0] = None;
    let key = key("k", HOUR);
    world.decide(0, 0, &[check(&key, 1_000, 1)]);
    world.run(1_500);
    let unacknowledged = pings(&mut world, 2_000);
    assert!(unacknowledged >= 38, "{unacknowledged} pings in 2 s");
    world.ack_ms[0] = Some(0);
    world.run(5_000);
    assert_eq!(pings(&mut world, 10_000), 10);
}

#[test]
fn an_idle_worker_opens_its_stream_again_at_once() {
    for at in 0..5 {
        let mut world = idle(1, 2);
        world.run(at * 50);
        let worker = (at % 2) as usize;
        world.cut(0, worker);
        world.run(110);
        assert!(is_connected(&world, 0, worker), "after the usual pause of at most 50 ms and a tick");
    }
}

#[test]
fn a_process_receives_what_is_pushed_while_it_is_idle() {
    let mut world = idle(2, 2);
    let key = key("k", HOUR);
    for _ in 0..9 {
        assert!(world.passes(1, 0, &[check(&key, 10, 1)]));
    }
    world.run(100);
    let entry = world.entry(0, &key).expect("a key past half its limit is pushed to all");
    assert_eq!(entry.cells().map(|(_, cell)| cell.region_others).sum::<u64>(), 9);
}
