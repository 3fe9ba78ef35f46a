//! A table far too small for its traffic: which keys are evicted, which never are, and the counts of keys that return.

use super::harness::*;
use super::network::Frame;
use crate::limiter::table::{Entry, Geometry, MAX_DIVERTED};
use crate::limiter::{Cause, Check, Decision, OVERFLOW_IDENTIFIER, Output, Policy};
use crate::model::key::{HashKey, Key};
use crate::model::shared::{MemoryShared, Place, Shared};
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
fn an_evicted_key_does_not_restart_at_zero() {
    let mut world = World::with(1, 2, TINY, false);
    world.run(1_000);
    let keys = keys(40, HOUR);
    for round in 0..5 {
        for (at, key) in keys.iter().enumerate() {
            let passes = world.passes(0, at % 2, &[check(key, 3, 1)]);
            assert_eq!(passes, round < 3, "key {at} in round {round}");
            // Time to report, so that entries may be evicted.
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
fn unreported_counts_are_not_evicted_and_new_keys_share_the_overflow_cell() {
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
    // Once the region is connected all counts are reported, and new keys find room.
    world.down = false;
    world.run(3_000);
    let overflow = key(core::str::from_utf8(OVERFLOW_IDENTIFIER).unwrap(), HOUR);
    let at = crate::model::window::Position::at(world.unix(), HOUR).sequence;
    let reported: u64 = keys.iter().chain([&overflow]).map(|key| world.regional(key, at).0).sum();
    assert_eq!(reported, 8 + 5, "eight keys, and five in the overflow cell that the others share");
    assert!(world.passes(0, 0, &[check(&keys[99], 5, 1)]));
    assert!(world.entry(0, &keys[99]).is_some());
}

#[test]
fn acknowledgements_of_a_key_do_not_apply_to_the_overflow_cell() {
    let mut world = World::with(1, 1, Geometry { buckets: 1, keys_per_bucket: 2 }, false);
    world.run(1_000);
    let known = key("known", HOUR);
    for _ in 0..20 {
        assert!(world.passes(0, 0, &[check(&known, 100, 1)]));
        world.run(60);
    }
    world.run(500);
    // Two keys whose counts are not acknowledged yet take its place.
    for new_key in keys(2, HOUR) {
        assert!(world.passes(0, 0, &[check(&new_key, 100, 1)]));
    }
    assert!(world.entry(0, &known).is_none());
    // A query would report the count too, so the check is one of a shadow rule.
    let mut shadow = check(&known, 100, 1);
    shadow.policy.shadow = true;
    assert!(world.passes(0, 0, &[shadow]));
    assert!(world.sum_of(|stats| stats.overflows) > 0);
    world.run(500);
    let at = crate::model::window::Position::at(world.unix(), HOUR).sequence;
    let overflow = key(core::str::from_utf8(OVERFLOW_IDENTIFIER).unwrap(), HOUR);
    assert_eq!((world.regional(&known, at).0, world.regional(&overflow, at).0), (20, 1));
}

/// A process that has evicted a key from a full bucket, and has charged it again while the region was paused. Then the region
/// acknowledges that count, with the baselines of the newest `baselines` cells. Returns the entry before the acknowledgement.
fn spent_without_baseline(known: &Key, baselines: u64) -> (World, Entry) {
    let mut world = World::with(1, 1, Geometry { buckets: 1, keys_per_bucket: 2 }, false);
    world.run(1_000);
    assert!(world.passes(0, 0, &[check(known, 100, 1)]));
    world.run(500);
    for new_key in keys(2, HOUR) {
        assert!(world.passes(0, 0, &[check(&new_key, 100, 1)]));
        world.run(500);
    }
    assert!(world.entry(0, known).is_none());
    world.paused = true;
    assert!(world.passes(0, 0, &[without_query(known)]));
    let entry = world.entry(0, known).unwrap();
    assert!(entry.without_baseline_cells() > 1);
    world.run(300);
    let reports = world.delayed_frames.iter().filter_map(|(_, frame)| frame.report.as_ref());
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

/// A check that sends no query.
fn without_query(key: &Key) -> Check<'_> {
    let mut shadow = check(key, 100, 1);
    shadow.policy.shadow = true;
    shadow
}

#[test]
fn a_count_is_reported_once_its_own_baseline_has_arrived() {
    let known = hard_limit_key("known", HOUR);
    let (mut world, entry) = spent_without_baseline(&known, 1);
    let later = MonoMs(world.now).after(1_000);
    let Process { shared, workers, .. } = &mut world.processes[0];
    let outputs = outputs(&mut workers[0].as_mut().unwrap().limiter, shared, later);
    let report = |output| match output {
        Output::Send(frame) => frame.report,
        _ => None,
    };
    let counts = outputs.into_iter().filter_map(report).flat_map(|report| report.counts);
    let counts: Vec<_> =
        counts.filter(|count| count.key == known.as_bytes() && !count.without_baseline).collect();
    assert_eq!(
        counts.iter().map(|count| (count.sequence, count.own)).collect::<Vec<_>>(),
        [(entry.sequence, 2)]
    );
}

#[test]
fn a_count_charged_without_a_baseline_is_not_evicted_until_the_region_stores_it() {
    let known = key("known", HOUR);
    let (mut world, entry) = spent_without_baseline(&known, 2);
    // The report is in flight while other keys need the room.
    world.run(200);
    for new_key in keys(6, HOUR).iter().skip(2) {
        world.request(0, 0, &[without_query(new_key)]);
        world.run(20);
    }
    let own = |world: &mut World| world.entry(0, &known).and_then(|now| Some(now.cell(entry.sequence)?.own));
    assert_eq!(own(&mut world), Some(2));
    world.paused = false;
    world.run(1_000);
    assert_eq!(world.regional(&known, entry.sequence).0, 2);
}

#[test]
fn a_flood_leaves_the_limits_of_other_keys_intact() {
    let mut world = World::with(1, 1, TINY, false);
    world.run(1_000);
    let known = key("known", HOUR);
    let mut passed = 0;
    for round in 0..600 {
        passed += u64::from(world.passes(0, 0, &[check(&known, 100, 1)]));
        let new_key = key(&std::format!("new-{round}"), HOUR);
        world.passes(0, 0, &[check(&new_key, 100, 1)]);
        world.run(30);
    }
    assert_eq!(passed, 100);
}

#[test]
fn no_key_is_evicted_while_the_region_that_acknowledged_it_may_be_lost() {
    let mut world = World::with(1, 1, TINY, false);
    world.run(1_000);
    let known = keys(4, HOUR);
    for key in &known {
        for _ in 0..3 {
            assert!(world.passes(0, 0, &[check(key, 3, 1)]));
            world.run(150);
        }
    }
    // Those that other keys of their bucket have not evicted yet.
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
        assert!(!world.passes(0, 0, &[check(key, 3, 1)]), "the count restarted at zero");
    }
    world.down = false;
    world.run(3_000);
    for key in &known {
        let at = crate::model::window::Position::at(world.unix(), HOUR).sequence;
        assert_eq!(world.regional(key, at).0, 3, "the new region has the count");
    }
}

#[test]
fn refused_counts_are_reported_again_until_the_region_has_room() {
    let mut world = World::connected(1, 2);
    world.regions[0] = Region::new(RegionLimits { max_keys: 1, ..RegionLimits::default() }, HashKey(3, 4));
    let (short, long) = (key("short", MINUTE), key("long", HOUR));
    assert!(world.passes(0, 0, &[check(&short, 100, 60)]));
    world.run(100);
    assert!(world.passes(0, 0, &[check(&long, 100, 7)]));
    world.run(100);
    let at = Position::at(world.unix(), HOUR).sequence;
    assert_eq!((world.regional(&long, at).0, world.entry(0, &long).unwrap().unstored), (0, true));
    world.reported = 0;
    world.run(60_000);
    assert!((5..=13).contains(&world.reported), "{} reported in a minute", world.reported);
    // The region drops the other key after its windows.
    world.run(65_000);
    assert_eq!((world.regional(&long, at).0, world.entry(0, &long).unwrap().unstored), (7, false));
    world.reported = 0;
    world.run(60_000);
    assert_eq!(world.reported, 0, "no count is left to report");
}

#[test]
fn many_refused_counts_are_reported_again_in_steps() {
    let geometry = Geometry { buckets: 2_048, keys_per_bucket: 8 };
    let mut world = World::with(1, 1, geometry, false);
    world.run(2_000);
    world.regions[0] = Region::new(RegionLimits { max_keys: 0, ..RegionLimits::default() }, HashKey(3, 4));
    let keys = keys(6_000, HOUR);
    for chunk in keys.chunks(100) {
        for key in chunk {
            world.request(0, 0, &[check(key, 100, 1)]);
        }
        world.run(100);
    }
    world.run(20_000);
    world.reported = 0;
    world.run(20_000);
    assert!(world.reported <= 5 * 4_200, "{} reported in 20 s", world.reported);
    world.regions[0] = new_region();
    world.run(30_000);
    let at = Position::at(world.unix(), HOUR).sequence;
    let (mut in_table, mut missing) = (0, 0);
    for key in &keys {
        let is_in_table = world.entry(0, key).is_some();
        in_table += u64::from(is_in_table);
        missing += usize::from(is_in_table && world.regional(key, at).0 != 1);
    }
    // In buckets full of refused counts, a little-used one was evicted for a new key.
    let evicted = keys.len() as u64 - in_table;
    assert_eq!((missing, world.sum_of(|stats| stats.overflows)), (0, 0));
    assert_eq!(world.sum_of(|stats| stats.evictions), evicted);
}

/// How many requests pass under a limit of 10.
fn exhaust(world: &mut World, key: &Key) -> usize {
    (0..20).filter(|_| world.passes(0, 0, &[check(key, 10, 1)])).count()
}

/// A process whose only bucket is full of keys that leave after some seconds, without a region.
fn full_for_seconds() -> World {
    let mut world = World::with(1, 1, Geometry { buckets: 1, keys_per_bucket: 3 }, true);
    world.run(MINUTE - world.unix().0 % MINUTE);
    for key in &keys(3, 1_000) {
        assert!(world.passes(0, 0, &[check(key, 10, 1)]));
    }
    world
}

#[test]
fn a_key_that_leaves_the_overflow_cell_keeps_what_it_used_there() {
    for used in [4, 10] {
        let mut world = full_for_seconds();
        let (late, other) = (key("late", MINUTE), key("other", MINUTE));
        for _ in 0..used {
            assert!(world.passes(0, 0, &[check(&late, 10, 1)]));
        }
        assert_eq!(world.entry(0, &late), None, "in the overflow cell");
        // No window counts the three keys any more, so there are places.
        world.run(5_000);
        assert_eq!(exhaust(&mut world, &late), 10 - used);
        assert_eq!(world.entry(0, &late).unwrap().current.own, 10);
        assert_eq!(exhaust(&mut world, &other), 10, "a key that was never in the overflow cell");
        // The region receives as the key's what the key has used, and as the overflow cell's what was used there.
        world.down = false;
        world.run(3_000);
        let at = Position::at(world.unix(), MINUTE).sequence;
        let overflow = key(core::str::from_utf8(OVERFLOW_IDENTIFIER).unwrap(), MINUTE);
        let reported = [&late, &other, &overflow].map(|key| world.regional(key, at).0);
        assert_eq!(reported, [10, 10, used as u64]);
        world.run(2 * MINUTE);
        assert_eq!(exhaust(&mut world, &late), 10, "no window counts the overflow cell");
    }
}

#[test]
fn use_in_the_overflow_cell_ages_like_other_use() {
    for hard in [false, true] {
        let mut world = full_for_seconds();
        let late = if hard { hard_limit_key("late", MINUTE) } else { key("late", MINUTE) };
        world.run(MINUTE - world.unix().0 % MINUTE - 1_000);
        // No place is free: the busy keys are used again.
        for key in &keys(3, 1_000) {
            world.passes(0, 0, &[check(key, 10, 1)]);
        }
        assert_eq!((exhaust(&mut world, &late), world.entry(0, &late)), (10, None));
        // Half a window into the next cell an average counts half of it, and a hard limit all.
        world.run(31_000);
        assert_eq!(exhaust(&mut world, &late), if hard { 0 } else { 5 });
        assert!(world.entry(0, &late).is_some());
    }
}

#[test]
fn a_key_that_is_evicted_and_diverted_keeps_both_uses() {
    let mut world = World::with(1, 1, Geometry { buckets: 1, keys_per_bucket: 2 }, false);
    world.run(1_000);
    let known = key("known", HOUR);
    for _ in 0..3 {
        assert!(world.passes(0, 0, &[check(&known, 10, 1)]));
    }
    world.run(500);
    // Two keys whose counts are not acknowledged yet take its place.
    for new_key in keys(2, HOUR) {
        assert!(world.passes(0, 0, &[check(&new_key, 10, 1)]));
    }
    assert_eq!(world.entry(0, &known), None);
    let mut shadow = check(&known, 10, 4);
    shadow.policy.shadow = true;
    assert!(world.passes(0, 0, &[shadow]));
    assert!(world.sum_of(|stats| stats.overflows) > 0);
    world.run(500);
    assert_eq!(exhaust(&mut world, &known), 10 - 3 - 4);
    world.run(500);
    let at = Position::at(world.unix(), HOUR).sequence;
    assert_eq!(world.regional(&known, at).0, 10);
}

#[test]
fn many_diverted_keys_keep_no_less_than_they_used() {
    let mut world = full_for_seconds();
    let many = keys(3 * MAX_DIVERTED, HOUR);
    for (at, key) in many.iter().enumerate() {
        // The first ones use more, so that they keep records of their own.
        let cost = if at < 4 { 5 } else { 1 };
        assert!(world.passes(0, 0, &[check(key, 1_000, cost)]));
    }
    world.run(5_000);
    // Three places, one after the other: of all, those with a record of their own begin with their use alone.
    let spent = |world: &mut World, key: &Key| {
        world.passes(0, 0, &[check(key, 1_000, 0)]);
        let entry = world.entry(0, key)?;
        Some((entry.current.own, entry.current.used()))
    };
    assert_eq!(spent(&mut world, &many[0]), Some((5, 5)));
    assert_eq!(spent(&mut world, &many[3]), Some((5, 5)));
    let (own, used) = spent(&mut world, &many[10]).unwrap();
    let rest = 3 * MAX_DIVERTED as u64 - MAX_DIVERTED as u64 + 1;
    assert_eq!((own, used), (0, rest), "one of those that no record tells apart");
}

#[test]
fn a_diverted_key_with_a_newer_record_keeps_what_it_used_before() {
    let mut world = full_for_seconds();
    let many = keys(3 * MAX_DIVERTED, HOUR);
    let (late, other) = (&many[0], &many[1]);
    assert!(world.passes(0, 0, &[check(late, 1_000, 2)]));
    // More keys with more use than there are records: the smallest become one.
    for key in &many[1..] {
        assert!(world.passes(0, 0, &[check(key, 1_000, 3)]));
    }
    assert!(world.passes(0, 0, &[check(late, 1_000, 7)]), "it gets another record");
    world.run(5_000);
    for (key, own, before) in [(late, 7, 2), (other, 0, 3)] {
        world.passes(0, 0, &[check(key, 1_000, 0)]);
        let entry = world.entry(0, key).unwrap();
        assert_eq!(entry.current.own, own, "what its record has");
        let (used, sum) = (entry.current.used(), 9 + 3 * (many.len() as u64 - 1));
        assert!((own + before..=sum).contains(&used), "{used} of {own} and {before}");
    }
}

/// A rule denies, and the key of another has no place in the table: the overflow cell would deny the request for longer.
#[test]
fn the_wait_of_a_key_without_a_place_is_that_of_the_overflow_cell() {
    let mut world = World::with(1, 1, Geometry { buckets: 1, keys_per_bucket: 1 }, true);
    world.run(50);
    let (placed, other, new) = (key("placed", MINUTE), key("other", HOUR), key("new", HOUR));
    assert!(world.passes(0, 0, &[check(&placed, 1, 1)]));
    assert!(world.passes(0, 0, &[check(&other, 10, 10)]));
    let alone = denial(world.decide(0, 0, &[check(&new, 10, 1)]));
    let both = denial(world.decide(0, 0, &[check(&placed, 1, 1), check(&new, 10, 1)]));
    assert!(alone.retry_after_ms > Some(HOUR / 2));
    assert_eq!(both.retry_after_ms, alone.retry_after_ms);
}

#[test]
fn a_grant_is_spent_once_though_another_worker_needs_its_place_at_that_moment() {
    let mut world = World::with(2, 2, Geometry { buckets: 1, keys_per_bucket: 1 }, false);
    world.run(2_000);
    let (granted, other) = (key("granted", HOUR), key("other", HOUR));
    for _ in 0..2 {
        assert!(world.passes(0, 0, &[check(&granted, 10, 1)]));
        world.run(500);
    }
    let (id, outcome) = world.request(0, 0, &[check(&granted, 10, 4)]);
    assert_eq!(outcome.decision, Decision::Wait);
    world.answer_to_query();
    let mut another = world.processes[0].workers[1].take().unwrap().limiter;
    let now = MonoMs(world.now + 1);
    let interrupt = move |shared: &mut MemoryShared| {
        assert!(allowed(&another.decide(shared, 1, &[without_query(&other)], now)));
    };
    world.processes[0].shared.interrupt = Some(std::boxed::Box::new(interrupt));
    assert!(allowed(&world.wait_for(id, outcome).1));
    assert!(world.processes[0].shared.interrupt.is_none());
    assert_eq!(world.entry(0, &granted).unwrap().current.own, 6);
    assert_eq!(world.regional(&granted, Position::at(world.unix(), HOUR).sequence), (6, vec![6]));
}

impl World {
    /// Waits until an answer is on its way; returns its place in the network.
    fn answer_to_query(&mut self) -> (u64, u64) {
        let is_answer = |frame: &Frame| matches!(frame, Frame::Down(frame) if !frame.answers.is_empty());
        loop {
            let answer = self.network.iter().find(|(_, (_, frame))| is_answer(frame));
            if let Some((at, _)) = answer {
                return *at;
            }
            self.run(1);
        }
    }
}

/// A push overtakes an answer on the stream of another worker, while the bucket is full of keys in use.
#[test]
fn what_is_pushed_while_a_query_is_under_way_is_not_lost() {
    let mut world = World::with(1, 2, Geometry { buckets: 1, keys_per_bucket: 1 }, false);
    world.add_process(1, Geometry { buckets: 64, keys_per_bucket: 8 });
    world.run(2_000);
    let (known, other) = (key("known", HOUR), key("other", HOUR));
    for key in [&known, &other] {
        assert!(world.passes(0, 0, &[check(key, 100, 1)]));
        world.run(500);
    }
    assert!(world.passes(1, 0, &[check(&known, 100, 3)]));
    world.run(500);
    assert_eq!(world.entry(0, &known), None);
    let subscriber = world.subscribers[&(0, world.processes[0].meta.node)];
    let worker = 1 - world.streams[&subscriber].worker;
    let (id, outcome) = world.request(0, worker, &[check(&known, 100, 1)]);
    assert_eq!(outcome.decision, Decision::Wait);
    let answer = world.answer_to_query();
    let late = world.network.remove(&answer).unwrap();
    world.network.insert((answer.0 + 30, answer.1), late);
    assert!(world.passes(1, 0, &[check(&known, 100, 20)]));
    assert!(allowed(&world.wait_for(id, outcome).1));
    assert_eq!(world.entry(0, &known).unwrap().current.region_others, 23);
}

#[test]
fn a_request_that_was_decided_long_ago_holds_no_place() {
    let mut world = World::with(2, 1, Geometry { buckets: 1, keys_per_bucket: 2 }, false);
    world.run(2_000);
    let keys = keys(4, HOUR);
    for pair in keys.chunks(2) {
        assert!(world.passes(0, 0, &[check(&pair[0], 10, 5), check(&pair[1], 10, 5)]));
        world.run(2_000);
    }
    assert!(world.entry(0, &keys[0]).is_none() && world.entry(0, &keys[3]).is_some());
    assert_eq!(world.sum_of(|stats| stats.overflows), 0);
}

#[test]
fn a_grant_that_waits_for_the_answer_of_another_rule_is_spent_once() {
    let mut world = World::with(2, 1, Geometry { buckets: 1, keys_per_bucket: 3 }, false);
    world.run(2_000);
    let (granted, often, evicted) = (key("granted", HOUR), key("often", HOUR), key("evicted", HOUR));
    let (seldom, new) = (key("seldom", HOUR), key("new", HOUR));
    for (key, times) in [(&evicted, 1), (&granted, 4), (&often, 8), (&seldom, 1)] {
        for _ in 0..times {
            assert!(world.passes(0, 0, &[check(key, 20, 1)]));
            world.run(500);
        }
    }
    assert!(world.entry(0, &granted).is_some() && world.entry(0, &evicted).is_none());
    let slow = |key, cost| {
        let usual = check(key, 20, cost);
        Check { policy: Policy { timeout_ms: 500, ..usual.policy }, ..usual }
    };
    let (id, outcome) = world.request(0, 0, &[slow(&evicted, 1), slow(&granted, 4)]);
    assert_eq!(outcome.decision, Decision::Wait);
    world.delay_first_answer(300);
    world.run(200);
    // A key that needs a place takes one of a key that is used more often than the one with the grant.
    assert!(world.passes(0, 0, &[check(&new, 20, 1)]));
    assert!(world.entry(0, &granted).is_some() && world.entry(0, &often).is_none());
    assert!(allowed(&world.wait_for(id, outcome).1));
    world.run(500);
    assert!(world.passes(0, 0, &[check(&granted, 20, 1)]));
    world.run(500);
    assert_eq!(world.regional(&granted, Position::at(world.unix(), HOUR).sequence), (9, vec![9]));
    assert_eq!(world.entry(0, &granted).unwrap().current.own, 9);
}

/// A grant about one rule, after which the local counts decide, comes with the counts of each other rule that needs them.
#[test]
fn a_rule_whose_counts_left_the_table_is_not_decided_without_them() {
    let mut world = World::with(2, 1, Geometry { buckets: 1, keys_per_bucket: 2 }, false);
    world.run(2_000);
    let (granted, evicted, other) = (key("granted", HOUR), key("evicted", HOUR), key("other", HOUR));
    for _ in 0..10 {
        assert!(world.passes(0, 0, &[check(&evicted, 10, 1)]));
        world.run(100);
    }
    world.run(500);
    for _ in 0..12 {
        for key in [&other, &granted] {
            assert!(world.passes(0, 0, &[check(key, 20, 1)]));
            world.run(100);
        }
    }
    assert!(world.entry(0, &evicted).is_none() && world.entry(0, &granted).is_some());
    let denied =
        denial(world.decide(0, 0, &[check(&granted, 20, 6), Check { rule: 1, ..check(&evicted, 10, 1) }]));
    assert_eq!((denied.budget.rule, denied.cause), (1, Cause::Limit));
}

#[test]
fn a_rule_whose_counts_were_never_received_is_not_decided_without_them() {
    let mut world = World::connected(2, 1);
    let (granted, new) = (key("granted", HOUR), key("new", HOUR));
    assert!(world.passes(1, 0, &[check(&new, 10, 5)]));
    assert!(world.passes(0, 0, &[check(&granted, 20, 1)]));
    world.run(500);
    assert_eq!(world.entry(0, &new), None);
    let denied =
        denial(world.decide(0, 0, &[check(&granted, 20, 10), Check { rule: 1, ..check(&new, 10, 6) }]));
    assert_eq!((denied.budget.rule, denied.cause), (1, Cause::Limit));
}

#[test]
fn a_pushed_key_without_a_place_is_counted() {
    let mut world = World::with(1, 1, Geometry { buckets: 1, keys_per_bucket: 1 }, false);
    world.add_process(1, Geometry { buckets: 64, keys_per_bucket: 8 });
    world.run(2_000);
    let (used, pushed) = (key("used", HOUR), key("pushed", HOUR));
    assert!(world.passes(0, 0, &[check(&used, 10, 1)]));
    world.run(500);
    assert_eq!(world.sum_of(|stats| stats.unplaced), 0);
    assert!(world.passes(1, 0, &[check(&pushed, 10, 9)]));
    world.run(500);
    assert_eq!(world.entry(0, &pushed), None);
    assert_eq!(world.sum_of(|stats| stats.unplaced), 1);
}

impl World {
    /// Waits until the answers to two queries are on their way, and delays the one to the query that was sent first.
    fn delay_first_answer(&mut self, ms: u64) {
        let place = self.answer_to_query();
        let (stream, frame) = self.network.remove(&place).unwrap();
        let Frame::Down(frame) = frame else { panic!("an answer is sent down") };
        let [first, second] = <[_; 2]>::try_from(frame.answers).unwrap();
        assert!(first.id < second.id);
        let of = |answer| Frame::Down(wire::RegionFrame { answers: vec![answer], ..Default::default() });
        self.network.insert(place, (stream, of(second)));
        self.network.insert((place.0 + ms, place.1), (stream, of(first)));
    }
}
