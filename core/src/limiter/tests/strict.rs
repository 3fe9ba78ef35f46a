//! Strict mode: the region decides a key that was denied, if its limit is low enough for a query per request.

use super::harness::*;
use crate::limiter::{Decision, Reason, STRICT_PER_SECOND};
use crate::model::window::{Position, Used};
use std::collections::BTreeMap;

const WINDOW: u64 = 10_000;

fn strict_queries(world: &World) -> u64 {
    world.sum_of(|stats| stats.queries[Reason::Strict as usize])
}

fn slack_queries(world: &World) -> u64 {
    world.sum_of(|stats| stats.queries[Reason::Slack as usize])
}

/// `processes` of one region that have all denied `key` in the last quarter of a window.
fn denied_everywhere(processes: usize, key: &crate::model::key::Key, limit: u64) -> World {
    let mut world = World::connected(processes, 1);
    world.run(2 * WINDOW - WINDOW / 4 - world.unix().0 % WINDOW);
    for turn in 0..(limit as usize + 1) {
        world.decide(turn % processes, 0, &[check(key, limit, 1)]);
    }
    world.run(500);
    for process in 0..processes {
        assert!(!world.passes(process, 0, &[check(key, limit, 1)]), "process {process}");
        assert!(world.entry(process, key).unwrap().strict_until.0 > world.now);
    }
    world
}

#[test]
fn the_region_decides_a_denied_key_beyond_the_rollover() {
    let key = key("k", WINDOW);
    let mut world = denied_everywhere(3, &key, 100);
    world.run(WINDOW - world.unix().0 % WINDOW);
    let (before, slack, mut passed) = (strict_queries(&world), slack_queries(&world), 0);
    // Use from before the rollover leaves the window gradually.
    for turn in 0..200 {
        world.run(20);
        passed += u64::from(world.passes(turn % 3, 0, &[check(&key, 100, 1)]));
    }
    assert!(passed >= 30, "{passed} passed in 4 s of a window of 10 s");
    assert!(strict_queries(&world) - before >= passed, "the region decided each admission");
    assert_eq!(slack_queries(&world), slack);
}

#[test]
fn processes_in_strict_mode_admit_no_more_than_one_exact_limiter() {
    let key = key("k", WINDOW);
    let limit = 500;
    let mut world = denied_everywhere(5, &key, limit);
    world.latency = (1, 5);
    world.resolved.clear();
    let mut passed = BTreeMap::<u64, u64>::new();
    passed.insert(Position::at(world.unix(), WINDOW).sequence, limit);
    let mut waiting = BTreeMap::new();
    let mut worst = 0;
    for _ in 0..40_000 {
        if world.random.below(1_000) < 100 {
            let process = world.random.below(5) as usize;
            let sequence = Position::at(world.unix(), WINDOW).sequence;
            let (id, outcome) = world.request(process, 0, &[check(&key, limit, 1)]);
            match outcome.decision {
                Decision::Allow(_) => *passed.entry(sequence).or_default() += 1,
                Decision::Wait => drop(waiting.insert(id, sequence)),
                Decision::Deny(_) => {}
            }
        }
        world.run(1);
        for (id, (_, outcome)) in std::mem::take(&mut world.resolved) {
            let sequence = waiting.remove(&id).unwrap();
            *passed.entry(sequence).or_default() += u64::from(allowed(&outcome));
        }
        let at = Position::at(world.unix(), WINDOW);
        let count = |sequence| passed.get(&sequence).copied().unwrap_or(0);
        let used = Used::Average { current: count(at.sequence), previous: count(at.sequence - 1) };
        worst = worst.max(used.effective(&at).saturating_sub(limit));
    }
    let sum: u64 = passed.values().sum();
    assert!(sum >= 4 * limit, "{sum} passed");
    // Without strict mode it is 7 beyond the limit.
    assert_eq!(worst, 0, "beyond the limit; {sum} passed");
}

#[test]
fn a_limit_of_too_many_a_second_is_not_subject_to_strict_mode() {
    for (limit, strict) in [(STRICT_PER_SECOND * 10, true), (STRICT_PER_SECOND * 10 + 1, false)] {
        let key = key("k", WINDOW);
        let mut world = denied_everywhere(3, &key, limit);
        let before = strict_queries(&world);
        world.run(WINDOW / 2);
        for process in [0, 1, 2] {
            assert!(world.passes(process, 0, &[check(&key, limit, 1)]));
        }
        assert_eq!(strict_queries(&world) - before, if strict { 3 } else { 0 }, "limit {limit}");
    }
}

#[test]
fn a_process_alone_in_its_region_sends_no_queries_in_strict_mode() {
    let key = key("k", WINDOW);
    let mut world = denied_everywhere(1, &key, 10);
    let before = world.queries;
    for _ in 0..100 {
        world.run(200);
        world.decide(0, 0, &[check(&key, 10, 1)]);
    }
    assert_eq!(world.queries, before);
}

#[test]
fn beyond_its_ration_a_worker_spends_slack_in_strict_mode() {
    let many = keys(400, WINDOW);
    let mut world = World::connected(2, 1);
    world.run(2 * WINDOW - WINDOW / 4 - world.unix().0 % WINDOW);
    for key in &many {
        assert!(world.passes(0, 0, &[check(key, 400, 400)]));
        assert!(!world.passes(0, 0, &[check(key, 400, 1)]));
    }
    // A part of each limit is left again, so there is slack.
    world.run(WINDOW + WINDOW / 8 - world.unix().0 % WINDOW);
    let (before, begun) = (strict_queries(&world), world.now);
    for key in &many {
        assert!(world.passes(0, 0, &[check(key, 400, 1)]));
    }
    let sent = strict_queries(&world) - before;
    let ration = crate::limiter::connection::queries::STRICT_QUERIES_PER_SECOND;
    let most = ration + (world.now - begun) * ration / 1_000 + 1;
    assert!((ration..=most).contains(&sent), "{sent} queries of at most {most}");
}
