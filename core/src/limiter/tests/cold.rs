//! Queries for cold keys, of which a worker may send a ration.

use super::harness::*;
use crate::limiter::Stats;
use crate::limiter::table::Geometry;
use std::vec::Vec;

#[test]
fn beyond_its_ration_a_worker_sends_no_queries_for_cold_keys() {
    let mut world = World::with(2, 1, Geometry { buckets: 2_048, keys_per_bucket: 8 }, false);
    world.run(3_000);
    let used_up = key("used-up", HOUR);
    for _ in 0..10 {
        assert!(world.passes(0, 0, &[check(&used_up, 10, 1)]));
        world.run(100);
    }
    let cold = |stats: &Stats| stats.queries[0] + stats.queries[1];
    let (before, begun) = (world.sum_of(cold), world.now);
    let invented = keys(3_000, HOUR);
    let together: Vec<_> = invented.iter().map(|key| world.request(1, 0, &[check(key, 10, 1)])).collect();
    for (id, outcome) in together {
        assert!(allowed(&world.wait_for(id, outcome).1));
    }
    let sent = world.sum_of(cold) - before;
    let ration = crate::limiter::connection::queries::COLD_QUERIES_PER_SECOND;
    let most = ration + (world.now - begun) * ration / 1_000 + 1;
    assert!((ration..=most).contains(&sent) && most < 1_000, "{sent} queries of at most {most}");
    // The snapshot's counts apply, and costs spent without a query are reported.
    assert!(!world.passes(1, 0, &[check(&used_up, 10, 1)]));
    world.run(500);
    let at = crate::model::window::Position::at(world.unix(), HOUR).sequence;
    assert!(invented.iter().all(|key| world.regional(key, at).0 == 1));
}
