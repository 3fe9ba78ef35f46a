//! The worker registry of processes with many workers, and of processes whose workers are replaced all the time.

use super::harness::*;
use crate::limiter::table::Geometry;
use crate::limiter::{Gauges, REST_MS};
use crate::model::time::MonoMs;

#[test]
fn a_replaced_worker_gives_its_entry_back_once_it_owes_nothing() {
    let mut world = World::connected(1, 2);
    let key = key("k", HOUR);
    let rest = |world: &mut World| {
        let now = MonoMs(world.now);
        let Process { shared, workers, .. } = &mut world.processes[0];
        let worker = workers[0].as_mut().unwrap();
        let rests = worker.limiter.rest(shared, now);
        world.drive(0, 0);
        rests
    };
    world.run(REST_MS);
    assert!(world.passes(0, 0, &[check(&key, 100, 1)]));
    world.run(REST_MS - 1_000);
    assert!(!rest(&mut world), "it has decided a moment ago");
    world.ack_ms[0] = None;
    world.run(1_000);
    assert!(world.passes(0, 0, &[check(&key, 100, 1)]));
    world.run(4_500);
    assert_eq!(world.gauges().workers, 2);
    world.ack_ms[0] = Some(0);
    world.run(REST_MS);
    assert!(rest(&mut world));
    world.run(1_000);
    let Gauges { workers, streams_connected, report_queue, .. } = world.gauges();
    assert_eq!((workers, streams_connected, report_queue), (1, 1, 0));
    let now = MonoMs(world.now);
    let registry = &world.processes[0].workers[1].as_ref().unwrap().limiter.connection.registry;
    assert!(registry.safe_before(now) > MonoMs(0), "the other worker has repeated all counts");
    // Its next decision takes it all again.
    assert!(world.passes(0, 0, &[check(&key, 100, 1)]));
    world.run(3_000);
    let Gauges { workers, streams_settled, .. } = world.gauges();
    assert_eq!((workers, streams_settled), (2, 2));
    let at = crate::model::window::Position::at(world.unix(), HOUR).sequence;
    assert_eq!(world.regional(&key, at).0, 3);
}

/// Two listeners with different tokens have a worker each in one process. The older one looks replaced, and has a request now and then.
#[test]
fn a_worker_that_is_needed_again_rests_less_and_less() {
    for (pause_ms, most) in [(12_000, 1), (45_000, 3)] {
        let mut world = World::connected(1, 2);
        let key = key("k", HOUR);
        let (mut rested, mut evictable_s, seconds) = (0, 0, 600_u64);
        for second in 0..seconds {
            if (second * 1_000).is_multiple_of(pause_ms) {
                assert!(world.passes(0, 0, &[check(&key, 100_000, 1)]));
            }
            world.run(1_000);
            assert!(world.passes(0, 1, &[check(&key, 100_000, 1)]));
            let now = MonoMs(world.now);
            let Process { shared, workers, .. } = &mut world.processes[0];
            let worker = workers[0].as_mut().unwrap();
            let rests = worker.limiter.rest(shared, now);
            rested += usize::from(rests);
            world.drive(0, 0);
            let registry = &world.processes[0].workers[1].as_ref().unwrap().limiter.connection.registry;
            evictable_s += u64::from(registry.safe_before(now) > MonoMs(0));
        }
        assert!(rested <= most, "it rested {rested} times with a request every {pause_ms} ms");
        assert!(evictable_s > seconds * 9 / 10, "keys could be evicted in {evictable_s} of {seconds} s");
    }
}

#[test]
fn keys_are_evicted_however_many_workers_a_process_has() {
    let mut world = World::with(1, 300, Geometry { buckets: 1, keys_per_bucket: 4 }, false);
    world.run(2_000);
    let keys = keys(20, HOUR);
    for (at, key) in keys.iter().enumerate() {
        assert!(world.passes(0, at, &[check(key, 5, 1)]), "key {at}");
        world.run(150);
    }
    assert_eq!(world.sum_of(|stats| stats.overflows), 0);
    assert_eq!(world.gauges().workers, 300);
}
