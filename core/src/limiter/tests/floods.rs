//! Floods of invented identifiers: which keys are denied, and which are evicted.

use super::harness::*;
use crate::limiter::table::Geometry;
use crate::model::key::HashKey;
use crate::model::shared::{Place, Shared};
use crate::model::time::MonoMs;
use crate::region::{Region, RegionLimits};
use std::format;
use std::vec::Vec;

const MONTH: u64 = 31 * 24 * HOUR;
const SMALL: Geometry = Geometry { buckets: 4, keys_per_bucket: 4 };
const REGION_KEYS: usize = 96;
const LIMIT: u64 = 3;

fn table_bytes(world: &mut World) -> usize {
    let shared = &mut world.processes[0].shared.memory;
    let mut bytes = Vec::new();
    let places = (0..SMALL.buckets).map(Place::Bucket).chain([Place::Overflow]);
    places.map(|place| shared.load(place, &mut bytes).map_or(0, |_| bytes.len())).sum()
}

#[test]
fn a_slow_flood_causes_no_denials_of_new_keys() {
    let mut world = World::with(1, 1, SMALL, false);
    let limits = RegionLimits { max_keys: REGION_KEYS, ..RegionLimits::default() };
    world.regions[0] = Region::new(limits, HashKey(3, 4));
    world.run(2_000);
    let used_up: Vec<_> = (0..4).map(|at| key(&format!("used-up-{at}"), MONTH)).collect();
    for key in &used_up {
        for _ in 0..LIMIT {
            assert!(world.passes(0, 0, &[check(key, LIMIT, 1)]));
            world.run(100);
        }
    }
    let (mut denied, mut passed_again, mut new_requests) = (0, 0, 0);
    // An invented key each 2.5 s, for an hour.
    for invented in 0..1_440 {
        world.passes(0, 0, &[check(&key(&format!("invented-{invented}"), MONTH), LIMIT, 1)]);
        world.run(2_500);
        if invented % 4 == 0 {
            let again = &used_up[invented / 4 % used_up.len()];
            passed_again += u32::from(world.passes(0, 0, &[check(again, LIMIT, 1)]));
        }
        if invented % 36 == 0 {
            let new_key = key(&format!("new-{invented}"), MONTH);
            for _ in 0..LIMIT {
                new_requests += 1;
                denied += u32::from(!world.passes(0, 0, &[check(&new_key, LIMIT, 1)]));
                world.run(100);
            }
            passed_again += u32::from(world.passes(0, 0, &[check(&new_key, LIMIT, 1)]));
        }
        let unix = world.unix();
        world.regions[0].tick(unix);
        assert!(world.regions[0].stats(MonoMs(world.now)).keys <= REGION_KEYS);
    }
    assert_eq!((denied, passed_again), (0, 0), "of {new_requests} requests on new keys");
    assert!(table_bytes(&mut world) < 16 * 200 + 64 * 200, "{} bytes", table_bytes(&mut world));
}
