//! Each checker must report a violation that the test creates.

use crate::check::exact::{Keeper, Use};
use crate::check::rest::TableCell;
use crate::check::{CellId, Decision as DecidedBy};
use crate::measure::observe::NoObserver;
use crate::plan::keys::Shape;
use crate::plan::traffic::Arrival;
use crate::plan::{Answers, Exact, Network, Plan, Rule, Schedule, Topology};
use crate::world::World;
use weir_core::limiter::table::Entry;
use weir_core::limiter::{Budget, Cause, Decision, Denial, ExactDetails, Outcome, RuleSet};
use weir_core::model::exact::ExactRequestId;
use weir_core::model::key::Key;
use weir_core::model::time::UnixMs;
use weir_core::region::log::{EntryId, LogCharge};

fn plan(aggregators: usize) -> Plan {
    Plan {
        seed: 5,
        topology: Topology { aggregators, ..Topology::region(2) },
        rules: vec![Rule::new(40, 300_000)],
        traffic: Vec::new(),
        faults: Vec::new(),
        network: Network::default(),
        schedule: Schedule::default(),
        settle_ms: 3_000,
        traffic_ms: 4_000,
        calls: None,
        quiet_ms: 20_000,
    }
}

fn arrivals() -> impl Iterator<Item = Arrival> {
    (0..30u64).map(|n| Arrival {
        at_us: n * 100_000,
        region: 0,
        envoy: (n % 2) as u16,
        worker: (n / 2 % 2) as u16,
        identifier: 7,
        cost: 1,
        rules: 1,
    })
}

/// A world at rest in which 30 of 40 were used, half of it at each of two Envoys.
fn rested(plan: &Plan) -> World<'static> {
    let mut world = World::with_arrivals(plan, arrivals());
    world.run_until(24_000, &mut NoObserver);
    world
}

/// The checkers that report a violation in the final state.
fn violated(mut world: World<'_>) -> Vec<&'static str> {
    let figures = world.run(&mut NoObserver);
    let mut checkers: Vec<_> = figures.violations.iter().map(|violation| violation.checker).collect();
    checkers.dedup();
    checkers
}

fn with_entry(change: impl Fn(&mut Entry)) -> Vec<&'static str> {
    let plan = plan(1);
    let mut world = rested(&plan);
    assert!(world.change_table(0, 7, change), "the table has no such entry");
    violated(world)
}

#[test]
fn a_correct_world_has_no_violation() {
    for aggregators in [1, 2] {
        let plan = plan(aggregators);
        assert_eq!(violated(rested(&plan)), Vec::<&str>::new());
    }
}

#[test]
fn an_own_count_that_falls_is_reported() {
    assert_eq!(with_entry(|entry| entry.current.own -= 1).first(), Some(&"owner"));
}

#[test]
fn a_charge_without_an_admission_is_reported() {
    assert_eq!(with_entry(|entry| entry.current.own += 1).first(), Some(&"charge"));
}

#[test]
fn others_counts_above_the_true_use_are_reported() {
    assert_eq!(with_entry(|entry| entry.current.region_others += 1).first(), Some(&"truth"));
    assert_eq!(with_entry(|entry| entry.current.global_others += 1).first(), Some(&"truth"));
}

#[test]
fn an_envoy_without_all_use_at_rest_is_reported() {
    assert_eq!(with_entry(|entry| entry.current.region_others -= 1), ["rest"]);
}

/// Violations for a table that has evicted entries, and that holds `cell` of a cell of which it admitted 15.
fn evicting(identifier: u64, cell: TableCell, overflow: u64, checks: usize) -> usize {
    let plan = plan(1);
    let mut world = rested(&plan);
    let node = world.node_of(0);
    let check = world.check_mut();
    let number = check.truth.number(node).unwrap();
    let sequence = check.truth.since(0, 0).next().unwrap().sequence;
    check.truth.mark_incomplete(number);
    check.truth.overflows(0, sequence, number, overflow);
    for _ in 0..checks {
        let id = CellId { rule: 0, sequence, identifier };
        check.rests_in_table(id, node, Some(cell), (None, None), 24_000_000);
    }
    check.violations().len()
}

#[test]
fn use_that_neither_an_entry_nor_the_overflow_cell_holds_is_reported() {
    let cell = TableCell { own: 13, ..TableCell::default() };
    assert_eq!(evicting(7, cell, 0, 1), 1);
    assert_eq!(evicting(7, cell, 1, 1), 1);
    assert_eq!(evicting(7, cell, 3, 1), 0);
    assert_eq!(evicting(7, cell, 3, 2), 1, "the overflow cell accounts for no more than it holds");
}

#[test]
fn a_missing_baseline_is_reported_if_the_key_has_use() {
    let without_baseline = TableCell { without_baseline: true, ..TableCell::default() };
    assert_eq!(evicting(8, without_baseline, 0, 1), 0, "nothing was spent");
    assert_eq!(evicting(8, TableCell { own: 1, ..without_baseline }, 0, 1), 1);
    assert_eq!(
        evicting(7, without_baseline, 15, 1),
        0,
        "a push restored the key: the next request queries for its baseline"
    );
    assert_eq!(evicting(7, TableCell { own: 15, ..without_baseline }, 0, 1), 1);
}

#[test]
fn a_store_that_loses_a_component_is_reported() {
    let plan = plan(2);
    let mut world = rested(&plan);
    assert!(world.change_redis(0, |parts| {
        parts.pop_first();
    }));
    assert_eq!(violated(world), ["rest"]);
    let mut world = rested(&plan);
    assert!(world.change_redis(0, |parts| parts.values_mut().for_each(|own| *own += 1)));
    assert_eq!(violated(world).first(), Some(&"rest"));
}

#[test]
fn decisions_that_contradict_the_true_use_are_reported() {
    let plan = plan(1);
    let shapes = [Shape::new(0, plan.rules[0])];
    let budget = Budget { rule: 0, limit: 40, remaining: 1, reset_ms: 9 };
    let arrival = arrivals().next().unwrap();
    for (passes, others, expected) in [(10, 0, vec![]), (11, 0, vec!["limit"]), (0, 40, vec!["denial"])] {
        let mut world = rested(&plan);
        let node = world.node_of(0);
        // Near the end of the cell, independent of the clocks.
        let by = DecidedBy { node, unix: UnixMs(1_699_999_800_000 + 290_000), now_us: 9_000_000 };
        let admit = Decision::Allow(Some(budget));
        let deny = Decision::Deny(Denial { budget, retry_after_ms: Some(1), cause: Cause::Limit });
        // This Envoy has admitted 15.
        for _ in 0..if others > 0 { 0 } else { 15 + passes } {
            world.check_mut().decided(&by, &arrival, &Outcome::of(admit), &shapes);
        }
        if others > 0 {
            world.check_mut().decided(&by, &arrival, &Outcome::of(deny), &shapes);
        }
        let mut reported: Vec<_> =
            world.check_mut().violations().iter().map(|violation| violation.checker).collect();
        reported.dedup();
        assert_eq!(reported, expected, "{passes}");
    }
}

#[test]
fn long_waits_exceeded_bounds_and_second_decisions_are_reported() {
    let plan = plan(1);
    let mut world = rested(&plan);
    let check = world.check_mut();
    check.waited(0, 60_000, &[50], 9_000_000);
    check.held("things", 4, 4, 9_000_000);
    assert_eq!(check.violations(), []);
    check.waited(0, 70_000, &[50], 9_000_000);
    check.held("things", 5, 4, 9_000_000);
    check.resolved_twice(3, 9_000_000);
    let reported: Vec<_> = check.violations().iter().map(|violation| violation.checker).collect();
    assert_eq!(reported, ["wait", "bounds", "answers"]);
}

/// A world of one rule with a log of 3, whose only aggregator has made these charges.
fn logged(charges: &[(u8, u64)]) -> (World<'static>, Vec<Shape>, Vec<Option<u64>>) {
    let mut plan = plan(1);
    plan.rules = vec![Rule { exact: Some(Exact::Log), ..Rule::new(3, 10_000) }];
    let shapes = vec![Shape::new(0, plan.rules[0])];
    let mut world = World::with_arrivals(&plan, std::iter::empty());
    let charge = |(name, at_us): &(u8, u64)| {
        let one =
            Use { keeper: Keeper::Aggregator(0), name: ExactRequestId([*name; 16]), at_us: *at_us, cost: 1 };
        world.check_mut().exact.charged(&shapes[0].key(7), one, 10_000_000)
    };
    let counts = charges.iter().map(charge).collect();
    (world, shapes, counts)
}

#[test]
fn the_use_of_a_window_of_a_log_is_counted() {
    let at = 1_000_000;
    let (mut world, shapes, counts) =
        logged(&[(1, at), (2, at), (2, at), (3, at + 9_999_999), (4, 11_000_001)]);
    assert_eq!(counts, [Some(1), Some(2), None, Some(3), Some(2)]);
    world.check_mut().exact.refunded(&shapes[0].key(7), ExactRequestId([4; 16]), 11_000_001);
    world.check_mut().exact.lost(Keeper::Aggregator(0), 11_000_001);
    let one =
        Use { keeper: Keeper::Aggregator(0), name: ExactRequestId([5; 16]), at_us: 12_000_000, cost: 2 };
    assert_eq!(world.check_mut().exact.charged(&shapes[0].key(7), one, 10_000_000), Some(2));
}

/// What the world's checkers report, at 40 s, of the request that was charged first, with changes by `act`.
fn reported(act: impl FnOnce(&mut crate::check::exact::Exact, &[u8], ExactRequestId)) -> usize {
    let (mut world, shapes, _) = logged(&[(1, 1_000_000)]);
    let (key, name) = (shapes[0].key(7), ExactRequestId([1; 16]));
    world.check_mut().exact.may_remain(&key, ExactRequestId([9; 16]), 1);
    act(&mut world.check_mut().exact, &key, name);
    world.check_mut().finish_exact(40_000_000);
    world.check_mut().violations().len()
}

#[test]
fn a_charge_that_remains_in_vain_is_reported() {
    assert_eq!(reported(|_, _, _| {}), 0, "it may have passed");
    assert_eq!(reported(|exact, key, name| exact.in_vain(key, name)), 1);
    let refunded = |exact: &mut crate::check::exact::Exact, key: &[u8], name| {
        exact.in_vain(key, name);
        exact.refunded(key, name, 2_000_000);
    };
    assert_eq!(reported(refunded), 0);
    let lost = |exact: &mut crate::check::exact::Exact, key: &[u8], name| {
        exact.in_vain(key, name);
        exact.may_remain(key, name, 1);
    };
    assert_eq!(reported(lost), 0, "no part could refund it");
}

#[test]
fn a_cached_denial_without_grounds_is_reported() {
    let second = 1_000_000;
    let denied = |refunded_us: Option<u64>, now_us| {
        let (mut world, shapes, _) = logged(&[(1, second), (2, second), (3, second)]);
        let bytes = shapes[0].key(7);
        if let Some(at_us) = refunded_us {
            world.check_mut().exact.refunded(&bytes, ExactRequestId([2; 16]), at_us);
        }
        let id = EntryId { request: ExactRequestId([4; 16]), place: 0 };
        let charge = LogCharge { key: Key::parse(&bytes).unwrap(), id, cost: 1, most: 3 };
        world.check_mut().denied_by_cache(Keeper::Aggregator(0), &charge, now_us);
        world.check_mut().violations().len()
    };
    assert_eq!((denied(None, 10 * second), denied(None, 11 * second)), (0, 1), "the window is over");
    assert_eq!((denied(Some(5 * second), 6 * second), denied(Some(5 * second), 6 * second + 1)), (0, 1));
}

/// Violations for one request with this decision, with or without a charge in the log.
fn exactly(decision: Decision, is_undecided: bool, deny: bool, charged: bool) -> usize {
    let charges: &[_] = if charged { &[(1, 1_000_000)] } else { &[] };
    let (mut world, mut shapes, _) = logged(charges);
    shapes[0] = Shape::new(0, Rule { deny_on_failure: deny, ..shapes[0].rule });
    let arrival = arrivals().next().unwrap();
    let undecided = if is_undecided { RuleSet::of(0) } else { RuleSet::default() };
    let exact = ExactDetails { undecided, ..ExactDetails::default() };
    let outcome = Outcome { exact, ..Outcome::of(decision) };
    world.check_mut().decided_exactly((0, 1_000_000), &arrival, &outcome, &shapes);
    world.check_mut().finish_exact(20_000_000);
    world.check_mut().violations().iter().filter(|violation| violation.checker == "exact").count()
}

#[test]
fn violations_of_exact_limits_are_reported() {
    let budget = Budget { rule: 0, limit: 3, remaining: 0, reset_ms: 9 };
    let admit = Decision::Allow(Some(budget));
    let deny = |cause| Decision::Deny(Denial { budget, retry_after_ms: Some(1), cause });
    assert_eq!(exactly(admit, false, false, true), 0);
    assert_eq!(exactly(admit, false, false, false), 1, "admitted without a charge");
    assert_eq!(exactly(admit, true, false, false), 0, "undecided, and the rule allows");
    assert_eq!(exactly(admit, true, true, true), 1, "undecided, and the rule denies");
    assert_eq!(exactly(deny(Cause::Undecided), true, true, false), 0);
    assert_eq!(exactly(deny(Cause::Undecided), true, false, false), 1, "undecided, and the rule allows");
    assert_eq!(exactly(deny(Cause::Undecided), true, true, true), 1, "denied and still charged");
    assert_eq!(exactly(deny(Cause::Limit), false, false, false), 1, "the log held nothing");
}

#[test]
fn a_region_must_count_of_an_ended_process_only_what_had_reached_it() {
    let plan = plan(1);
    let mut world = rested(&plan);
    let node = world.node_of(0);
    let check = world.check_mut();
    let number = check.truth.number(node).unwrap();
    let id = check.truth.since(0, 0).next().unwrap();
    assert_eq!(check.truth.least_in_region(id, 0), 30, "half of it by each of two");
    let (cell, at) = check.truth.share(id, number, 24_000_000).unwrap();
    cell.shares[at].at_end = 9;
    check.ends(node);
    assert_eq!(check.truth.least_in_region(id, 0), 15 + 9);
}

#[test]
fn use_beyond_a_budget_and_wrong_charges_of_answers_are_reported() {
    let answers = Answers { bytes_a_token: (100, 300), aborted_per_mille: 0 };
    let rule = Rule { reserve: 2, response_ms: 10, answers: Some(answers), ..Rule::new(40, 300_000) };
    let plan = Plan { rules: vec![rule], ..plan(1) };
    let shapes = [Shape::new(0, rule)];
    let arrival = |cost| Arrival { cost, ..arrivals().next().unwrap() };
    // Of 40 tokens 30 are used. Two Envoys may use a quarter of the limit and two reserves each without others' use.
    for (responses, cost, expected) in
        [(12, 2, vec![]), (13, 2, vec!["budget"]), (3, 200, vec![]), (60, 3, vec!["budget"])]
    {
        let mut world = rested(&plan);
        let by = DecidedBy {
            node: world.node_of(0),
            unix: UnixMs(1_699_999_800_000 + 290_000),
            now_us: 9_000_000,
        };
        for _ in 0..responses {
            world.check_mut().settled(&by, &arrival(cost), by.now_us, &shapes);
        }
        let mut reported: Vec<_> =
            world.check_mut().violations().iter().map(|violation| violation.checker).collect();
        reported.dedup();
        assert_eq!(reported, expected, "{responses} of {cost}");
    }
    for (left_after, cost, is_sound) in [
        (None, 5, true),
        (None, 4, false),
        (Some(1_900), 10, true),
        (Some(1_900), 9, false),
        (Some(1_900), 20, true),
        (Some(1_900), 21, false),
    ] {
        let mut world = rested(&plan);
        world.check_mut().answered(&arrival(5), (left_after, cost), 100, 9_000_000);
        assert_eq!(world.check_mut().violations().is_empty(), is_sound, "{left_after:?} {cost}");
    }
}
