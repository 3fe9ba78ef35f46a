//! Floods of invented identifiers: who is locked out, and what is forgotten.

use super::harness::*;
use crate::limiter::table::Geometry;
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
fn a_slow_flood_locks_no_newcomer_out() {
    let mut world = World::with(1, 1, SMALL, false);
    let limits = RegionLimits { max_keys: REGION_KEYS, ..RegionLimits::default() };
    world.regions[0] = Region::new(limits, (3, 4));
    world.run(2_000);
    let used_up: Vec<_> = (0..4).map(|at| key(&format!("used-up-{at}"), MONTH)).collect();
    for key in &used_up {
        for _ in 0..LIMIT {
            assert!(world.passes(0, 0, &[check(key, LIMIT, 1)]));
            world.run(100);
        }
    }
    let (mut locked_out, mut passed_again, mut newcomers) = (0, 0, 0);
    // An invented key each 2.5 s, for an hour.
    for invented in 0..1_440 {
        world.passes(0, 0, &[check(&key(&format!("invented-{invented}"), MONTH), LIMIT, 1)]);
        world.run(2_500);
        if invented % 4 == 0 {
            let again = &used_up[invented / 4 % used_up.len()];
            passed_again += u32::from(world.passes(0, 0, &[check(again, LIMIT, 1)]));
        }
        if invented % 36 == 0 {
            let newcomer = key(&format!("newcomer-{invented}"), MONTH);
            for _ in 0..LIMIT {
                newcomers += 1;
                locked_out += u32::from(!world.passes(0, 0, &[check(&newcomer, LIMIT, 1)]));
                world.run(100);
            }
            passed_again += u32::from(world.passes(0, 0, &[check(&newcomer, LIMIT, 1)]));
        }
        let unix = world.unix();
        world.regions[0].tick(unix);
        assert!(world.regions[0].stats(MonoMs(world.now)).keys <= REGION_KEYS);
    }
    assert_eq!((locked_out, passed_again), (0, 0), "of {newcomers} requests of newcomers");
    assert!(table_bytes(&mut world) < 16 * 200 + 64 * 200, "{} bytes", table_bytes(&mut world));
}
