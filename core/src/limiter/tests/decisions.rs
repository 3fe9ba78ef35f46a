//! Decisions of one process: several rules, shadow rules, extreme costs and limits, and the fields of a denial.

use super::harness::*;
use crate::limiter::RuleSet;
use crate::limiter::{Budget, Cause, Check, Decision, Outcome, Policy, Visibility};
use crate::model::key::Key;
use crate::model::window::MAX_LIMIT;
use std::vec;
use std::vec::Vec;

fn own(world: &mut World, key: &Key) -> u64 {
    world.entry(0, key).map_or(0, |entry| entry.current.own)
}

fn shadow(check: Check<'_>, rule: u16) -> Check<'_> {
    Check { rule, policy: Policy { shadow: true, ..check.policy }, ..check }
}

#[test]
fn four_rules_pass_the_smallest_limit_and_charge_all_or_none() {
    for workers in [1, 4] {
        for every in [1, 20, 1_000] {
            let mut world = World::alone(1, workers);
            let keys = keys(4, HOUR);
            let limits = [4_000, 1_500, 9_000, 2_000];
            let (mut passed, mut reserved, mut refused) = (0, 0, 0);
            for turn in 0..20_000 {
                let checks: Vec<_> =
                    keys.iter().zip(limits).map(|(key, limit)| check(key, limit, 1)).collect();
                match world.decide(0, turn % workers, &checks).decision {
                    Decision::Allow(_) => passed += 1,
                    Decision::Deny(denial) if denial.cause == Cause::Reserved => {
                        reserved += 1;
                        world.run(60);
                    }
                    _ => refused += 1,
                }
                if turn.is_multiple_of(every) {
                    world.run(1);
                }
                if refused > 100 {
                    break;
                }
            }
            assert_eq!(passed, 1_500, "{workers} workers, {reserved} met reservations");
            world.run(5_000);
            for key in &keys {
                let entry = world.entry(0, key).unwrap();
                assert_eq!((entry.current.own, entry.reservations.len()), (1_500, 0));
            }
        }
    }
}

#[test]
fn a_hundred_checks_pass_together_or_not_at_all() {
    let mut world = World::alone(1, 1);
    let keys = keys(100, HOUR);
    // One of the last checks denies the third round.
    let checks: Vec<_> =
        keys.iter().enumerate().map(|(at, key)| check(key, if at == 97 { 2 } else { 10 }, 1)).collect();
    for expected in [true, true, false, false] {
        let decision = world.decide(0, 0, &checks).decision;
        assert_eq!(matches!(decision, Decision::Allow(_)), expected, "{decision:?}");
    }
    world.run(5_000);
    for key in &keys {
        assert_eq!(own(&mut world, key), 2);
    }
}

#[test]
fn a_hidden_limit_is_not_the_budget_that_is_shown() {
    let mut world = World::alone(1, 1);
    let keys = keys(2, HOUR);
    let hidden = |check: Check<'_>| Policy { visibility: Visibility::Hidden, ..check.policy };
    let tight = check(&keys[0], 3, 1);
    let checks = [Check { policy: hidden(tight), ..tight }, Check { rule: 1, ..check(&keys[1], 100, 1) }];
    for left in [99, 98, 97] {
        let Decision::Allow(Some(budget)) = world.decide(0, 0, &checks).decision else { panic!("allowed") };
        assert_eq!((budget.rule, budget.remaining), (1, left));
    }
    let Decision::Deny(denial) = world.decide(0, 0, &checks).decision else { panic!("denied") };
    assert_eq!(denial.budget.rule, 0);
}

#[test]
fn the_budget_with_the_smallest_share_left_is_shown() {
    let mut world = World::alone(1, 1);
    let keys = keys(2, HOUR);
    let both = |tokens| [check(&keys[0], 600, 1), Check { rule: 1, ..check(&keys[1], 100_000, tokens) }];
    let shown = |world: &mut World, tokens| {
        let budget = budget(world.decide(0, 0, &both(tokens)));
        (budget.rule, budget.limit, budget.remaining)
    };
    assert_eq!(shown(&mut world, 10), (0, 600, 599));
    // 598 requests are fewer than 9 990 tokens, but a tenth of the tokens is left.
    assert_eq!(shown(&mut world, 90_000), (1, 100_000, 9_990));
    assert_eq!(shown(&mut world, 9_990), (1, 100_000, 0));
}

#[test]
fn shares_are_compared_without_overflow() {
    let left = |limit, remaining| Budget { rule: 0, limit, remaining, reset_ms: 0 };
    for (first, second) in [
        (left(100_000, 9_000), left(600, 599)),
        (left(MAX_LIMIT, 1), left(MAX_LIMIT, 2)),
        (left(u64::MAX, u64::MAX - 1), left(1, 1)),
        (left(0, 0), left(5, 5)),
        (left(10, 5), left(100, 50)),
    ] {
        assert!(first.ends_before(&second) && !second.ends_before(&first), "{first:?} {second:?}");
        assert!(!first.ends_before(&first));
    }
}

#[test]
fn listed_budgets_are_of_all_rules_that_clients_see_and_bounded() {
    let mut world = World::alone(1, 1);
    let keys = keys(40, HOUR);
    let with = |at: usize, visibility| {
        // The later a rule, the smaller the share that is left.
        let check = check(&keys[at], 1_000 - at as u64, 10);
        Check { rule: at as u16, policy: Policy { visibility, ..check.policy }, ..check }
    };
    let listed = |world: &mut World, checks: &[Check<'_>]| -> Vec<u16> {
        let outcome = world.decide(0, 0, checks);
        let mut rules: Vec<u16> = outcome.budgets.iter().map(|budget| budget.rule).collect();
        rules.sort_unstable();
        assert!(rules.is_empty() || rules.contains(&budget(&outcome).rule));
        rules
    };
    let three = |visibility| [with(0, visibility), with(1, Visibility::Hidden), with(2, visibility)];
    assert_eq!(listed(&mut world, &three(Visibility::Listed)), [0, 2]);
    assert_eq!(
        listed(&mut world, &three(Visibility::Shown)),
        [0; 0],
        "nothing is collected unless it is shown"
    );
    assert_eq!(
        listed(&mut world, &[with(0, Visibility::Listed)]),
        [0; 0],
        "the decision has the only budget"
    );
    let all: Vec<_> = (3..40).map(|at| with(at, Visibility::Listed)).collect();
    assert_eq!(listed(&mut world, &all), [32, 33, 34, 35, 36, 37, 38, 39]);
    let reversed: Vec<_> = all.into_iter().rev().collect();
    assert_eq!(listed(&mut world, &reversed), [32, 33, 34, 35, 36, 37, 38, 39]);
}

#[test]
fn rules_of_one_cell_coalesce_into_the_largest_cost_and_the_lowest_limit() {
    let mut world = World::alone(1, 1);
    let key = key("k", HOUR);
    let both = [check(&key, 10, 1), Check { rule: 1, ..check(&key, 8, 3) }];
    for left in [5, 2] {
        let budget = budget(world.decide(0, 0, &both));
        assert_eq!((budget.rule, budget.limit, budget.remaining), (1, 8, left));
    }
    let denial = denial(world.decide(0, 0, &both));
    assert_eq!((denial.budget.rule, denial.budget.remaining, own(&mut world, &key)), (1, 2, 6));
    assert!(world.passes(0, 0, &[check(&key, 10, 4)]), "the limit is not a part of the key");
}

#[test]
fn shadow_rules_never_deny_and_charge_only_admitted_requests() {
    let mut world = World::alone(1, 1);
    let keys = keys(2, HOUR);
    let both = |cost| [check(&keys[0], 5, cost), shadow(check(&keys[1], 3, cost), 900)];
    let outcomes: Vec<_> = (0..7)
        .map(|_| {
            let outcome = world.decide(0, 0, &both(1));
            (allowed(&outcome), outcome.shadow_denied.contains(900))
        })
        .collect();
    let expected = [
        (true, false),
        (true, false),
        (true, false),
        (true, true),
        (true, true),
        (false, true),
        (false, true),
    ];
    assert_eq!(outcomes, expected);
    assert_eq!((own(&mut world, &keys[0]), own(&mut world, &keys[1])), (5, 3));
    let alone = world.decide(0, 0, &[shadow(check(&keys[1], 3, 9), 2)]);
    assert_eq!(
        alone,
        Outcome { shadow_denied: RuleSet::of(2), ..Outcome::of(Decision::Allow(None)) },
        "cost above its limit"
    );
}

#[test]
fn a_shadow_rule_on_an_enforced_cell_charges_nothing_twice() {
    let mut world = World::alone(1, 1);
    let key = key("k", HOUR);
    let checks = [check(&key, 10, 1), shadow(check(&key, 4, 1), 1), shadow(check(&key, 6, 1), 2)];
    let denied: Vec<usize> =
        (0..8).map(|_| world.decide(0, 0, &checks).shadow_denied.iter().count()).collect();
    // Each shadow rule decides as if it alone enforced its limit.
    assert_eq!((denied, own(&mut world, &key)), (vec![0, 0, 0, 0, 1, 1, 2, 2], 8));
}

#[test]
fn extreme_costs_and_limits() {
    const MAX: u64 = u64::MAX;
    // (used before, limit, cost) → (passes, cause, remaining, whether there is a retry_after)
    let cases = [
        ((0, 5, 0), (true, None, 5, true)),
        ((5, 5, 0), (true, None, 0, true)), // cost 0 passes at exactly the limit
        ((5, 5, 1), (false, Some(Cause::Limit), 0, true)),
        ((2, 5, 6), (false, Some(Cause::Cost), 3, false)),
        ((4, 10, 7), (false, Some(Cause::Limit), 6, true)),
        ((0, 0, 0), (true, None, 0, true)),
        ((0, 0, 1), (false, Some(Cause::Cost), 0, false)),
        ((3, MAX, 1), (true, None, MAX_LIMIT - 4, true)),
        ((3, MAX, MAX), (false, Some(Cause::Cost), MAX_LIMIT - 3, false)),
        ((0, MAX, MAX_LIMIT), (true, None, 0, true)),
        ((0, MAX, MAX_LIMIT + 1), (false, Some(Cause::Cost), MAX_LIMIT, false)),
    ];
    for ((before, limit, cost), (passes, cause, remaining, retry)) in cases {
        let mut world = World::alone(1, 1);
        let key = key("k", HOUR);
        if before > 0 {
            assert!(world.passes(0, 0, &[check(&key, 100, before)]));
        }
        let outcome = world.decide(0, 0, &[check(&key, limit, cost)]);
        let context = (before, limit, cost);
        assert_eq!(allowed(&outcome), passes, "{context:?}");
        let charged = if passes { cost } else { 0 };
        assert_eq!(own(&mut world, &key), before + charged, "{context:?}");
        if passes {
            assert_eq!(budget(&outcome).remaining, remaining, "{context:?}");
        } else {
            let denial = denial(&outcome);
            assert_eq!(Some(denial.cause), cause, "{context:?}");
            assert_eq!(denial.budget.remaining, remaining, "{context:?}");
            assert_eq!(denial.retry_after_ms.is_some(), retry, "{context:?}");
        }
        if cause == Some(Cause::Cost) && before > 0 {
            assert_eq!(world.entry(0, &key).unwrap().strict_until.0, 0, "no strict mode for {context:?}");
        }
    }
}

/// At the beginning of a cell, when the region accepts least.
#[test]
fn the_region_counts_whatever_is_admitted() {
    for costs in [[MAX_LIMIT, 1], [MAX_LIMIT - 1, 1], [crate::model::window::MAX_COUNT, 1]] {
        let mut world = World::connected(1, 1);
        let key = key("k", HOUR);
        world.now += HOUR - world.unix().0 % HOUR;
        let passed = costs.map(|cost| world.passes(0, 0, &[check(&key, u64::MAX, cost)]));
        let admitted: u64 =
            costs.iter().zip(passed).filter(|(_, passed)| *passed).map(|(cost, _)| cost).sum();
        world.run(1_000);
        assert!(admitted > 0);
        assert_eq!(world.regional(&key, world.unix().0 / HOUR).0, admitted, "{costs:?}: {passed:?}");
    }
}

#[test]
fn a_denied_request_passes_at_retry_after_and_not_before() {
    for (spent, cost, later_ms) in
        [(10, 1, 0), (10, 7, 0), (4, 7, 0), (10, 1, 30_000), (10, 10, 59_999), (7, 4, 61_000)]
    {
        // The request is repeated 1 ms before that time and at it, by the worker that cached the denial and by another.
        for worker in [0, 1] {
            let mut world = World::alone(1, 2);
            let key = key("k", MINUTE);
            let start = MINUTE - world.unix().0 % MINUTE;
            world.run(start);
            assert!(world.passes(0, 0, &[check(&key, 10, spent)]));
            world.run(later_ms);
            let checks = [check(&key, 10, cost)];
            let outcome = world.decide(0, 0, &checks);
            let context = (spent, cost, later_ms, worker);
            if allowed(&outcome) {
                assert!(later_ms > MINUTE, "{context:?}");
                continue;
            }
            let wait = denial(&outcome).retry_after_ms.unwrap();
            world.run(wait - 1);
            let again = denial(world.decide(0, worker, &checks));
            assert_eq!(again.retry_after_ms, Some(1), "{context:?}");
            world.run(1);
            assert!(world.passes(0, worker, &checks), "{context:?}");
        }
    }
}

#[test]
fn a_cached_denial_loads_nothing_and_other_checks_get_their_own_outcomes() {
    let mut world = World::alone(1, 1);
    let key = key("k", MINUTE);
    let start = MINUTE - world.unix().0 % MINUTE;
    world.run(start);
    assert!(world.passes(0, 0, &[check(&key, 10, 8)]));
    let first = denial(world.decide(0, 0, &[check(&key, 10, 3)]));
    world.processes[0].shared.loads = 0;
    assert_eq!(denial(world.decide(0, 0, &[check(&key, 10, 3)])), first);
    let larger = denial(world.decide(0, 0, &[check(&key, 10, 9)]));
    assert!(larger.retry_after_ms > first.retry_after_ms);
    assert_eq!(world.processes[0].shared.loads, 0, "all from the cached denial");
    for _ in 0..3 {
        let lower = denial(world.decide(0, 0, &[check(&key, 9, 3)]));
        assert_eq!((lower.budget.remaining, lower.budget.limit), (1, 9));
        assert_eq!(denial(world.decide(0, 0, &[check(&key, 10, 3)])), first);
        assert_eq!(world.processes[0].shared.loads, 1, "a lower limit is written to the table once");
    }
    world.processes[0].shared.loads = 0;
    world.processes[0].workers[0].as_mut().unwrap().limiter.local.clock_steps = 2;
    denial(world.decide(0, 0, &[check(&key, 10, 3)]));
    assert_eq!(world.processes[0].shared.loads, 1, "after a step of the clock the table is read again");
    assert!(world.passes(0, 0, &[check(&key, 10, 1)]), "a smaller cost");
    assert!(world.passes(0, 0, &[check(&key, 12, 3)]), "a higher limit");
    // A later denial reports what remains then, not what remained at the time of the first denial.
    denial(world.decide(0, 0, &[check(&key, 12, 12)]));
    world.run(90_000);
    assert_eq!(denial(world.decide(0, 0, &[check(&key, 12, 12)])).budget.remaining, 6);
}

#[test]
fn strict_mode_begins_once_for_many_denials() {
    let mut world = World::alone(1, 2);
    let (key, other) = (key("k", MINUTE), super::harness::key("other", MINUTE));
    let strict = |world: &World| world.sum_of(|stats| stats.strict);
    assert!(!world.passes(0, 0, &[check(&key, 10, 11)]));
    assert_eq!(strict(&world), 0, "a cost above the limit");
    assert!(world.passes(0, 0, &[check(&key, 10, 10)]));
    for turn in 0..100 {
        assert!(!world.passes(0, turn % 2, &[check(&key, 10, 1 + turn as u64 % 3)]));
        world.run(100);
    }
    assert_eq!(strict(&world), 1);
    assert!(world.passes(0, 0, &[check(&other, 10, 1)]));
    assert!(!world.passes(0, 0, &[check(&other, 10, 10)]));
    assert_eq!(strict(&world), 2, "each key has its own strict mode");
    world.run(10 * MINUTE);
    assert!(world.passes(0, 0, &[check(&key, 10, 10)]));
    assert!(!world.passes(0, 0, &[check(&key, 10, 1)]));
    assert_eq!(strict(&world), 3, "strict mode had ended in between");
}

#[test]
fn a_lease_under_a_high_limit_admits_nothing_under_a_lower_one() {
    let mut world = World::alone(1, 1);
    let key = key("k", HOUR);
    for _ in 0..5_000 {
        assert!(world.passes(0, 0, &[check(&key, 100_000, 1)]));
    }
    assert!(!world.passes(0, 0, &[check(&key, 100, 1)]), "5 000 are used");
    assert!(world.passes(0, 0, &[check(&key, 200_000, 1)]));
}

#[test]
fn a_cached_denial_hides_no_longer_one_of_another_rule() {
    let mut world = World::alone(1, 2);
    let (short, long) = (key("short", MINUTE), key("long", HOUR));
    world.run(MINUTE - world.unix().0 % MINUTE);
    let checks = [check(&short, 10, 1), Check { rule: 1, ..check(&long, 10, 1) }];
    assert!(world.passes(0, 0, &[check(&short, 10, 10)]) && !world.passes(0, 0, &checks[..1]));
    assert!(world.passes(0, 1, &[check(&long, 10, 10)]));
    let of_long = denial(world.decide(0, 1, &checks[1..]));
    assert!(of_long.retry_after_ms.unwrap() > 2 * MINUTE);
    assert_eq!(denial(world.decide(0, 0, &checks)).retry_after_ms, of_long.retry_after_ms);
    world.processes[0].shared.loads = 0;
    assert_eq!(denial(world.decide(0, 0, &checks)).retry_after_ms, of_long.retry_after_ms);
    assert_eq!(world.processes[0].shared.loads, 0, "both are cached now");
    let unused = key("unused", HOUR);
    let checks = [check(&short, 10, 1), Check { rule: 1, ..check(&unused, 10, 1) }];
    for loads in [1, 1] {
        assert_eq!(denial(world.decide(0, 0, &checks)).budget.rule, 0);
        assert_eq!(world.processes[0].shared.loads, loads, "that a rule does not deny is cached too");
    }
}

#[test]
fn a_cached_denial_counts_within_a_second_what_other_workers_admit() {
    let mut world = World::alone(1, 2);
    let key = key("k", MINUTE);
    world.run(MINUTE - world.unix().0 % MINUTE);
    assert!(world.passes(0, 0, &[check(&key, 100, 90)]));
    assert_eq!(denial(world.decide(0, 0, &[check(&key, 100, 20)])).budget.remaining, 10);
    assert!(world.passes(0, 1, &[check(&key, 100, 10)]));
    world.run(1_000);
    let seen = denial(world.decide(0, 0, &[check(&key, 100, 20)]));
    let other = denial(world.decide(0, 1, &[check(&key, 100, 20)]));
    assert_eq!((seen.retry_after_ms, seen.budget.remaining), (other.retry_after_ms, 0));
}
