//! Limits that change while a key is in use: what the region has of them, and what leases of the former limit may still spend.

use super::harness::*;
use crate::limiter::{Cause, Check};
use crate::model::key::{Key, KeyParts};
use crate::region::exchange::{Publication, Stored};
use crate::region::{CellState, Due, LiveLimit};
use std::vec;
use std::vec::Vec;

/// A process of two workers in one of three regions, after `used` requests under a limit of `limit` in an hour.
fn after_use(key: &Key, used: u64, limit: u64) -> World {
    let mut world = World::connected(1, 2);
    world.regions[0].set_regions(3);
    for turn in 0..used {
        assert!(world.passes(0, turn as usize % 2, &[check(key, limit, 1)]));
    }
    world.run(6_000);
    world
}

fn due(world: &mut World) -> Vec<(u64, u64)> {
    let now = world.unix();
    let rows: Vec<Publication> = world.regions[0].next_rows(Due::Now, 99, now);
    world.regions[0].published(&rows, now);
    rows.iter().map(|row| (row.count, row.limit)).collect()
}

/// The limit that the region shows for a key, and the lowest of its newest cell.
fn shown(world: &World, key: &Key) -> (Option<u64>, u64) {
    let parts = key.parts();
    let explained = world.regions[0].explain(parts.workspace, parts.namespace, parts.identifier);
    let lowest = |cells: &[CellState]| cells.last().unwrap().limit;
    (explained[0].usage(world.unix()).limit, lowest(&explained[0].cells))
}

#[test]
fn a_limit_below_use_is_passed_on_by_a_denial_and_makes_the_use_due() {
    for cost in [1, 101] {
        let key = key("k", HOUR);
        let mut world = after_use(&key, 150, 1_000);
        assert_eq!(due(&mut world), []);
        assert!(!world.passes(0, 0, &[check(&key, 100, cost)]));
        world.run(100);
        assert_eq!(shown(&world, &key), (Some(100), 100), "a cost of {cost}");
        assert_eq!(due(&mut world), [(150, 100)], "a cost of {cost}");
    }
}

#[test]
fn a_limit_of_nothing_is_passed_on() {
    let key = key("k", HOUR);
    let mut world = after_use(&key, 10, 1_000);
    assert!(!world.passes(0, 0, &[check(&key, 0, 1)]));
    world.run(100);
    assert_eq!((shown(&world, &key), due(&mut world)), ((Some(0), 0), vec![(10, 0)]));
}

#[test]
fn a_denial_under_the_limit_that_the_region_has_is_not_reported() {
    let key = key("k", HOUR);
    let mut world = after_use(&key, 150, 1_000);
    for round in 0..50 {
        for worker in [0, 1] {
            assert!(!world.passes(0, worker, &[check(&key, 100, 1)]));
        }
        if round == 2 {
            world.reported = 0;
        }
        world.run(200);
    }
    assert_eq!(world.reported, 0);
}

#[test]
fn two_limits_of_one_key_are_reported_seldom() {
    for hard_limit in [false, true] {
        let key = if hard_limit { hard_limit_key("k", HOUR) } else { key("k", HOUR) };
        let mut world = after_use(&key, 150, 1_000);
        let stores = world.processes[0].shared.stores;
        world.reported = 0;
        for turn in 0..1_000 {
            let limit = if turn % 2 == 0 { 100 } else { 120 };
            assert!(!world.passes(0, turn / 2 % 2, &[check(&key, limit, 1)]));
            world.run(10);
        }
        let stores = world.processes[0].shared.stores - stores;
        // In ten seconds, of which each may bring one change there and back. The others are the registry's.
        assert!(world.reported <= 25, "{} reports", world.reported);
        assert!(stores <= 1_300, "{stores} stores");
    }
}

/// Each request applies another limit than the one before. The older cells are reported once by each worker, and not with each request.
#[test]
fn two_limits_of_one_hard_limit_key_report_the_cell_that_is_charged() {
    let key = hard_limit_key("k", MINUTE);
    let mut world = World::connected(1, 2);
    for _ in 0..11 {
        assert!(world.passes(0, 0, &[check(&key, 1_000, 1)]));
        world.run(MINUTE / 10);
    }
    world.reported = 0;
    for turn in 0..100 {
        let limit = if turn % 2 == 0 { 900 } else { 1_000 };
        assert!(world.passes(0, turn / 2 % 2, &[check(&key, limit, 1)]));
        world.run(50);
    }
    assert!(world.reported <= 150, "{} counts of 100 requests", world.reported);
    world.run(100);
    let parts = key.parts();
    let explained = world.regions[0].explain(parts.workspace, parts.namespace, parts.identifier);
    let lowest: Vec<u64> = explained[0].cells.iter().rev().take(10).map(|cell| cell.limit).collect();
    assert_eq!(lowest, [900; 10]);
}

#[test]
fn a_cached_denial_under_another_limit_passes_the_limit_on() {
    let key = key("k", HOUR);
    let mut world = after_use(&key, 150, 150);
    for limit in [150, 100, 120] {
        assert!(!world.passes(0, 0, &[check(&key, limit, 1)]));
        world.run(1_100);
        assert!(!world.passes(0, 0, &[check(&key, limit, 1)]));
        world.run(100);
        assert_eq!(shown(&world, &key).0, Some(limit));
    }
    assert_eq!(shown(&world, &key).1, 100, "the lowest limit stays");
}

#[test]
fn a_raised_limit_is_shown_with_the_next_admission() {
    let key = key("k", HOUR);
    let mut world = after_use(&key, 150, 1_000);
    assert!(!world.passes(0, 0, &[check(&key, 50, 1)]));
    world.run(100);
    assert!(world.passes(0, 1, &[check(&key, 1_000, 1)]));
    world.run(100);
    assert_eq!(shown(&world, &key), (Some(1_000), 50));
}

/// The worker has a lease under the former limit, which covers the requests.
#[test]
fn a_raised_limit_is_shown_though_a_lease_could_serve_its_requests() {
    let key = key("k", HOUR);
    let mut world = after_use(&key, 3, 1_000_000);
    for limit in [1_000_000, 1_000_000, 2_000_000] {
        let has_lease = !world.entry(0, &key).unwrap().reservations.is_empty();
        assert!(has_lease || limit == 1_000_000);
        assert!(world.passes(0, 0, &[check(&key, limit, 1)]));
        world.run(1);
    }
    world.run(100);
    assert_eq!(shown(&world, &key).0, Some(2_000_000));
}

/// The region receives a query that had waited in front of it after the limit has risen.
#[test]
fn a_query_that_was_delayed_does_not_bring_an_old_limit_back() {
    let key = key("k", HOUR);
    let mut world = World::connected(1, 1);
    world.paused = true;
    for limit in [100, 200] {
        assert!(world.passes(0, 0, &[check(&key, limit, 1)]), "after its timeout");
    }
    assert_eq!(world.sent_queries.len(), 2);
    world.paused = false;
    world.run(200);
    assert_eq!(shown(&world, &key), (Some(200), 100));
}

/// A process without requests since the change sends its counts again, with the limit that it applied then.
#[test]
fn counts_that_are_sent_again_do_not_bring_an_old_limit_back() {
    let key = key("k", HOUR);
    let mut world = World::connected(2, 1);
    for process in [0, 1] {
        assert!(world.passes(process, 0, &[check(&key, 1_000, 60)]));
        world.run(2_000);
    }
    assert!(!world.passes(1, 0, &[check(&key, 100, 1)]));
    world.run(100);
    assert_eq!(shown(&world, &key), (Some(100), 100));
    world.cut(0, 0);
    world.run(3_000);
    assert_eq!(shown(&world, &key), (Some(100), 100));
    world.restart_region();
    world.run(5_000);
    assert_eq!(shown(&world, &key), (Some(100), 100));
}

/// Worker 0 holds a lease under 100 000 when worker 1 brings the use beyond that under a higher limit.
#[test]
fn a_lease_is_not_spent_once_its_limit_is_exceeded_under_a_higher_one() {
    let key = key("k", HOUR);
    let mut world = World::alone(1, 2);
    for _ in 0..3_000 {
        assert!(world.passes(0, 0, &[check(&key, 100_000, 1)]));
    }
    assert!(!world.entry(0, &key).unwrap().reservations.is_empty(), "a lease is out");
    assert!(world.passes(0, 1, &[check(&key, 1_000_000, 200_000)]));
    world.run(150);
    let mut passed = 0;
    for _ in 0..3_000 {
        passed += u64::from(world.passes(0, 0, &[check(&key, 100_000, 1)]));
    }
    assert_eq!(passed, 0);
    let last = world.decide(0, 0, &[check(&key, 100_000, 1)]);
    assert_eq!(denial(last).cause, Cause::Limit);
}

/// A worker raises the limits of more keys in one tick than a recall lists.
#[test]
fn raised_limits_return_the_leases_of_their_keys_alone() {
    let keys: Vec<Key> = (0..60).map(|number| key(&std::format!("k{number}"), HOUR)).collect();
    let mut world = World::alone(1, 2);
    for _ in 0..10 {
        for key in &keys {
            assert!(world.passes(0, 0, &[check(key, 100_000, 1)]));
        }
        // The worker's cache grows at ticks.
        world.run(60);
    }
    let leased = |world: &mut World| -> Vec<bool> {
        keys.iter().map(|key| !world.entry(0, key).unwrap().reservations.is_empty()).collect()
    };
    assert_eq!(leased(&mut world), [true; 60]);
    for key in &keys[..40] {
        assert!(world.passes(0, 1, &[check(key, 1_000_000, 1)]));
    }
    world.run(400);
    assert_eq!(leased(&mut world), [[false; 40].as_slice(), &[true; 20]].concat());
}

/// Two rules of one key with different limits: neither takes a lease, as the other's requests exceed its limit.
#[test]
fn a_key_of_two_limits_has_no_lease_of_the_lower_one() {
    let key = key("k", HOUR);
    let mut world = World::alone(1, 2);
    let (mut low, mut high) = (0, 0);
    for turn in 0..40_000 {
        let used = low + high;
        if world.passes(0, 0, &[check(&key, 20_000, 1)]) {
            assert!(used < 20_000, "{used} were used");
            low += 1;
        }
        high += u64::from(world.passes(0, 1, &[check(&key, 1_000_000, 1)]));
        if turn % 40 == 0 {
            world.run(1);
        }
    }
    assert!(low > 5_000, "{low}");
}

const EU: usize = 0;
const US: usize = 1;
const AP: usize = 2;

/// Three regions, each with a process of two workers, that exchange what is due at once.
struct Regions([World; 3]);

impl Regions {
    fn new() -> Regions {
        let region = || {
            let mut world = World::connected(1, 2);
            world.regions[0].set_regions(3);
            world
        };
        Regions([region(), region(), region()])
    }

    fn run(&mut self, ms: u64) {
        self.0.iter_mut().for_each(|world| world.run(ms));
    }

    fn exchange(&mut self) {
        for from in 0..3 {
            let now = self.0[from].unix();
            let rows = self.0[from].regions[0].next_rows(Due::Now, 99, now);
            self.0[from].regions[0].published(&rows, now);
            for to in (0..3).filter(|to| *to != from) {
                let region = &mut self.0[to].regions[0];
                let other = region.other_region(&[b'a' + from as u8]).unwrap();
                for Publication { key, sequence, count, limit, .. } in rows.iter().cloned() {
                    region.import(other, &Stored { key, sequence, count, limit }, now).unwrap();
                }
            }
        }
        self.run(100);
    }

    /// How many of `requests` pass in a region at this moment.
    fn burst(&mut self, region: usize, key: &Key, limit: u64, requests: usize) -> usize {
        (0..requests).filter(|turn| self.0[region].passes(0, turn % 2, &[check(key, limit, 1)])).count()
    }
}

#[test]
fn a_limit_below_the_use_of_one_region_passes_nothing_in_the_others() {
    let (key, mut regions) = (key("k", HOUR), Regions::new());
    assert_eq!(regions.burst(EU, &key, 1_000, 160), 160);
    regions.run(6_000);
    regions.exchange();
    assert_eq!(regions.burst(EU, &key, 100, 1), 0);
    regions.run(100);
    regions.exchange();
    let passed = (regions.burst(US, &key, 100, 150), regions.burst(AP, &key, 100, 150));
    assert_eq!(passed, (0, 0));
    regions.run(100);
    let shown: Vec<_> = regions.0.iter().map(|world| shown(world, &key).0).collect();
    assert_eq!(shown, [Some(100), Some(100), Some(100)]);
}

/// No request shows the lower limit to the region with the use. Another region's publication does, once its own use may be a part of an
/// excess: at a sixth of the limit.
#[test]
fn a_region_without_requests_publishes_its_use_for_a_lower_limit_elsewhere() {
    let (key, mut regions) = (key("k", HOUR), Regions::new());
    assert_eq!(regions.burst(EU, &key, 1_000, 160), 160);
    regions.run(6_000);
    regions.exchange();
    let mut passed = 0;
    for _ in 0..200 {
        for region in [US, AP] {
            passed += regions.burst(region, &key, 100, 1);
        }
        regions.exchange();
    }
    assert!(passed <= 2 * (17 + 2), "{passed}");
}

#[test]
fn the_region_has_the_configured_limit_of_a_key_that_begins_under_live_control() {
    for (live, configured) in [(2_000, 1_000), (100, 1_000)] {
        for restarts in [false, true] {
            let key = key("k", HOUR);
            let mut world = World::connected(1, 2);
            let controlled = Check { configured: Some(configured), ..check(&key, live, 1) };
            assert!(world.passes(0, 0, &[controlled]));
            world.run(200);
            if restarts {
                world.restart_region();
                world.run(3_000);
            }
            let mut known = Vec::new();
            let lifted = |_: &KeyParts<'_>, configured| {
                known.push(configured);
                Some(LiveLimit::Unset)
            };
            let now = world.unix();
            world.regions[0].control_some(0, lifted, now);
            assert_eq!(known, [Some(configured)], "{live}, restarts: {restarts}");
            assert_eq!(shown(&world, &key).0, Some(configured), "{live}, restarts: {restarts}");
        }
    }
}

#[test]
fn a_configured_limit_that_changes_under_live_control_is_reported() {
    // Under the higher limit the worker has a lease when the configured one changes.
    for (live, pause_ms) in [(2_000, 6_000), (2_000_000, 10)] {
        let key = key("k", HOUR);
        let mut world = World::connected(1, 1);
        for configured in [1_000, 1_000, 1_000, 500] {
            let controlled = Check { configured: Some(configured), ..check(&key, live, 1) };
            assert!(world.passes(0, 0, &[controlled]));
            world.run(pause_ms);
        }
        world.run(200);
        let now = world.unix();
        world.regions[0].control_some(0, |_, _| Some(LiveLimit::Unset), now);
        assert_eq!(shown(&world, &key), (Some(500), 500), "under {live}");
    }
}
