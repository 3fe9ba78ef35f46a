//! The worker registry of processes with many workers, and of processes whose workers are replaced all the time.

use super::harness::*;
use crate::limiter::remote::registry::{Entry, WorkerRegistry};
use crate::limiter::table::Geometry;
use crate::model::shared::MemoryShared;
use crate::model::time::MonoMs;
use std::vec::Vec;

/// A connected worker that owes nothing; the first update after its stream was opened has a `gap`.
fn entry(worker: u64, gap: bool, resent: Option<u64>, now: MonoMs) -> Entry {
    Entry {
        worker,
        acked_through: Some(now),
        serves: true,
        connected: true,
        echo: now,
        last_seen: now,
        clock: None,
        origins: 1,
        complete: true,
        gap,
        resent,
        recall: Vec::new(),
        settled: true,
        report_queue: 0,
    }
}

/// 64 threads, whose VMs end without a last word at each of 100 updates.
#[test]
fn workers_that_ended_take_no_room_and_block_no_eviction() {
    const THREADS: u64 = 64;
    let mut shared = MemoryShared::default();
    let mut now = MonoMs(1_000_000);
    let mut registry = None;
    for update in 0..100 {
        now = now.after(10_000);
        for worker in update * THREADS..(update + 1) * THREADS {
            registry = WorkerRegistry::sync(&mut shared, &entry(worker, true, None, now), now);
        }
        let registry = registry.as_ref().unwrap();
        assert_eq!(registry.safe_before(now), MonoMs(0), "what the earlier ones owed may be missing");
        // The subscriber repeats all counts.
        let last = (update + 1) * THREADS - 1;
        let resent = Some(registry.gaps);
        let after = WorkerRegistry::sync(&mut shared, &entry(last, false, resent, now), now).unwrap();
        assert_eq!((after.len() as u64, after.safe_before(now)), (THREADS, now), "update {update}");
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
