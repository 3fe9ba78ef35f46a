//! A table far too small for what comes: what leaves it, what never does, and what those who return know.

use super::harness::*;
use crate::limiter::table::{Entry, Geometry};
use crate::limiter::{Check, OVERFLOW_IDENTIFIER};
use crate::model::key::Key;
use crate::model::shared::{Place, Shared};
use crate::model::time::MonoMs;
use crate::model::window::Position;
use crate::model::wire;
use crate::region::{Region, RegionLimits};
use std::vec;
use std::vec::Vec;

const TINY: Geometry = Geometry { buckets: 4, keys_per_bucket: 2 };

fn table_bytes(world: &mut World) -> usize {
    let shared = &mut world.processes[0].shared.memory;
    let mut bytes = Vec::new();
    let places =
        (0..TINY.buckets).map(Place::Bucket).chain([Place::Overflow, Place::WorkerRegistry, Place::Meta]);
    places.map(|place| shared.load(place, &mut bytes).map_or(0, |_| bytes.len())).sum()
}

#[test]
fn a_key_that_was_evicted_does_not_start_afresh() {
    let mut world = World::with(1, 2, TINY, false);
    world.run(1_000);
    let keys = keys(40, HOUR);
    for round in 0..5 {
        for (at, key) in keys.iter().enumerate() {
            let passes = world.passes(0, at % 2, &[check(key, 3, 1)]);
            assert_eq!(passes, round < 3, "key {at} in round {round}");
            // Time to report, so that entries may leave.
            world.run(150);
        }
    }
    assert!(world.sum_of(|stats| stats.evictions) > 100);
    assert_eq!(world.sum_of(|stats| stats.overflows), 0);
    world.run(500);
    for key in &keys {
        let at = crate::model::window::Position::at(world.unix(), HOUR).sequence;
        assert_eq!(world.regional(key, at).0, 3);
    }
    assert!(table_bytes(&mut world) < 4 * 2 * 400 + 1_000, "{} bytes", table_bytes(&mut world));
}

#[test]
fn unreported_work_stays_and_newcomers_share_a_cell() {
    let mut world = World::with(1, 1, TINY, true);
    world.run(200);
    let keys = keys(100, HOUR);
    for key in &keys {
        world.passes(0, 0, &[check(key, 5, 1)]);
        world.run(60);
    }
    let kept =
        keys.iter().filter(|key| world.entry(0, key).is_some_and(|entry| entry.current.own == 1)).count();
    assert_eq!(kept, 8);
    assert_eq!(world.sum_of(|stats| stats.evictions), 0);
    assert!(world.sum_of(|stats| stats.overflows) >= 92);
    assert!(table_bytes(&mut world) < 4_000);
    // Once the region is there all of it is told, and those who come then find room.
    world.down = false;
    world.run(3_000);
    let overflow = key(core::str::from_utf8(OVERFLOW_IDENTIFIER).unwrap(), HOUR);
    let at = crate::model::window::Position::at(world.unix(), HOUR).sequence;
    let told: u64 = keys.iter().chain([&overflow]).map(|key| world.regional(key, at).0).sum();
    assert_eq!(told, 8 + 5, "eight keys, and five in the cell that the others share");
    assert!(world.passes(0, 0, &[check(&keys[99], 5, 1)]));
    assert!(world.entry(0, &keys[99]).is_some());
}

#[test]
fn what_was_acknowledged_of_a_key_says_nothing_of_the_cell_that_it_shares() {
    let mut world = World::with(1, 1, Geometry { buckets: 1, keys_per_bucket: 2 }, false);
    world.run(1_000);
    let known = key("known", HOUR);
    for _ in 0..20 {
        assert!(world.passes(0, 0, &[check(&known, 100, 1)]));
        world.run(60);
    }
    world.run(500);
    // Two that are not stored yet take its place.
    for stranger in keys(2, HOUR) {
        assert!(world.passes(0, 0, &[check(&stranger, 100, 1)]));
    }
    assert!(world.entry(0, &known).is_none());
    // Without a question, whose answer would tell the region as well.
    let mut shadow = check(&known, 100, 1);
    shadow.policy.shadow = true;
    assert!(world.passes(0, 0, &[shadow]));
    assert!(world.sum_of(|stats| stats.overflows) > 0);
    world.run(500);
    let at = crate::model::window::Position::at(world.unix(), HOUR).sequence;
    let overflow = key(core::str::from_utf8(OVERFLOW_IDENTIFIER).unwrap(), HOUR);
    assert_eq!((world.regional(&known, at).0, world.regional(&overflow, at).0), (20, 1));
}

/// A process whose full bucket had evicted a key, and that has spent on it again while the region was silent. Then the region
/// acknowledges that, with the bases of the newest `baselines` cells. Returns what the entry was before.
fn spent_without_baseline(known: &Key, baselines: u64) -> (World, Entry) {
    let mut world = World::with(1, 1, Geometry { buckets: 1, keys_per_bucket: 2 }, false);
    world.run(1_000);
    assert!(world.passes(0, 0, &[check(known, 100, 1)]));
    world.run(500);
    for stranger in keys(2, HOUR) {
        assert!(world.passes(0, 0, &[check(&stranger, 100, 1)]));
        world.run(500);
    }
    assert!(world.entry(0, known).is_none());
    world.paused = true;
    assert!(world.passes(0, 0, &[exact_unsent(known)]));
    let entry = world.entry(0, known).unwrap();
    assert!(entry.without_baseline_cells() > 1);
    world.run(300);
    let reports = world.held_up.iter().filter_map(|(_, frame)| frame.report.as_ref());
    let is_of = |report: &&wire::Report| report.counts.iter().any(|count| count.key == known.as_bytes());
    let report_id = reports.rev().find(is_of).unwrap().id;
    let baseline = |back| wire::Snapshot {
        key: known.as_bytes().to_vec(),
        sequence: entry.sequence - back,
        own: u64::from(back == 0),
        ..Default::default()
    };
    let ack = wire::Ack { report_id, baselines: (0..baselines).map(baseline).collect(), refused: vec![] };
    let frame = wire::RegionFrame { ack: Some(ack), ..Default::default() };
    let now = MonoMs(world.now);
    let Process { shared, workers, .. } = &mut world.processes[0];
    workers[0].as_mut().unwrap().limiter.on_frame(shared, &frame, now);
    (world, entry)
}

/// A check that waits for no answer.
fn exact_unsent(key: &Key) -> Check<'_> {
    let mut shadow = check(key, 100, 1);
    shadow.policy.shadow = true;
    shadow
}

#[test]
fn a_count_whose_baseline_comes_before_those_of_its_window_is_reported() {
    let known = hard_limit_key("known", HOUR);
    let (mut world, entry) = spent_without_baseline(&known, 1);
    let later = MonoMs(world.now).after(1_000);
    let Process { shared, workers, .. } = &mut world.processes[0];
    let frames = workers[0].as_mut().unwrap().limiter.take_frames(shared, later);
    let counts = frames.iter().filter_map(|frame| frame.report.as_ref()).flat_map(|report| &report.counts);
    let counts: Vec<_> =
        counts.filter(|count| count.key == known.as_bytes() && !count.without_baseline).collect();
    assert_eq!(
        counts.iter().map(|count| (count.sequence, count.own)).collect::<Vec<_>>(),
        [(entry.sequence, 2)]
    );
}

#[test]
fn a_count_that_was_spent_without_its_baseline_stays_until_the_region_has_it() {
    let known = key("known", HOUR);
    let (mut world, entry) = spent_without_baseline(&known, 2);
    // The report is on its way while others want the room.
    world.run(200);
    for stranger in keys(6, HOUR).iter().skip(2) {
        world.request(0, 0, &[exact_unsent(stranger)]);
        world.run(20);
    }
    let own = |world: &mut World| world.entry(0, &known).and_then(|now| Some(now.cell(entry.sequence)?.own));
    assert_eq!(own(&mut world), Some(2));
    world.paused = false;
    world.run(1_000);
    assert_eq!(world.regional(&known, entry.sequence).0, 2);
}

#[test]
fn a_flood_leaves_the_limits_of_known_keys_intact() {
    let mut world = World::with(1, 1, TINY, false);
    world.run(1_000);
    let known = key("known", HOUR);
    let mut passed = 0;
    for round in 0..600 {
        passed += u64::from(world.passes(0, 0, &[check(&known, 100, 1)]));
        let stranger = key(&std::format!("stranger-{round}"), HOUR);
        world.passes(0, 0, &[check(&stranger, 100, 1)]);
        world.run(30);
    }
    assert_eq!(passed, 100);
}

#[test]
fn nothing_leaves_while_the_region_that_acknowledged_it_may_be_dead() {
    let mut world = World::with(1, 1, TINY, false);
    world.run(1_000);
    let known = keys(4, HOUR);
    for key in &known {
        for _ in 0..3 {
            assert!(world.passes(0, 0, &[check(key, 3, 1)]));
            world.run(150);
        }
    }
    // Those that three of one bucket have not pushed out already.
    let known: Vec<_> = known.into_iter().filter(|key| world.entry(0, key).is_some()).collect();
    assert!(known.len() >= 2);
    let before = world.sum_of(|stats| stats.evictions);
    world.down = true;
    world.restart_region();
    world.run(200);
    for flooder in keys(104, HOUR).iter().skip(4) {
        world.decide(0, 0, &[check(flooder, 3, 1)]);
        world.run(20);
    }
    assert_eq!(world.sum_of(|stats| stats.evictions), before);
    for key in &known {
        assert!(!world.passes(0, 0, &[check(key, 3, 1)]), "started afresh");
    }
    world.down = false;
    world.run(3_000);
    for key in &known {
        let at = crate::model::window::Position::at(world.unix(), HOUR).sequence;
        assert_eq!(world.regional(key, at).0, 3, "the new region knows");
    }
}

#[test]
fn what_the_region_has_refused_is_offered_again_until_it_has_room() {
    let mut world = World::connected(1, 2);
    world.regions[0] = Region::new(RegionLimits { max_keys: 1, ..RegionLimits::default() }, (3, 4));
    let (short, long) = (key("short", MINUTE), key("long", HOUR));
    assert!(world.passes(0, 0, &[check(&short, 100, 60)]));
    world.run(100);
    assert!(world.passes(0, 0, &[check(&long, 100, 7)]));
    world.run(100);
    let at = Position::at(world.unix(), HOUR).sequence;
    assert_eq!((world.regional(&long, at).0, world.entry(0, &long).unwrap().unstored), (0, true));
    world.reported = 0;
    world.run(60_000);
    assert!((5..=13).contains(&world.reported), "{} offered in a minute", world.reported);
    // The other key is forgotten after its windows.
    world.run(65_000);
    assert_eq!((world.regional(&long, at).0, world.entry(0, &long).unwrap().unstored), (7, false));
    world.reported = 0;
    world.run(60_000);
    assert_eq!(world.reported, 0, "nothing is left to offer");
}

#[test]
fn many_refused_counts_are_offered_in_parts() {
    let geometry = Geometry { buckets: 2_048, keys_per_bucket: 8 };
    let mut world = World::with(1, 1, geometry, false);
    world.run(2_000);
    world.regions[0] = Region::new(RegionLimits { max_keys: 0, ..RegionLimits::default() }, (3, 4));
    let keys = keys(6_000, HOUR);
    for some in keys.chunks(100) {
        for key in some {
            world.request(0, 0, &[check(key, 100, 1)]);
        }
        world.run(100);
    }
    world.run(20_000);
    world.reported = 0;
    world.run(20_000);
    assert!(world.reported <= 5 * 4_200, "{} offered in 20 s", world.reported);
    world.regions[0] = new_region();
    world.run(30_000);
    let at = Position::at(world.unix(), HOUR).sequence;
    let (mut held, mut missing) = (0, 0);
    for key in &keys {
        let is_held = world.entry(0, key).is_some();
        held += u64::from(is_held);
        missing += usize::from(is_held && world.regional(key, at).0 != 1);
    }
    // Where a bucket was full of refused counts, one of low use left for a newcomer.
    let left = keys.len() as u64 - held;
    assert_eq!((missing, world.sum_of(|stats| stats.overflows)), (0, 0));
    assert_eq!(world.sum_of(|stats| stats.evictions), left);
}
