//! Exact requests: what is sent, how the results are applied, and what happens without a response.

use super::harness::*;
use crate::limiter::*;
use crate::model::exact::Algorithm;
use crate::model::key::Key;
use std::vec;
use std::vec::Vec;

/// A check of a log by rule `rule`, with a timeout of 100 ms.
pub(super) fn log(rule: u16, key: &Key, most: u64, cost: u64) -> Check<'_> {
    let policy = Policy { timeout_ms: 100, ..Policy::default() };
    Check {
        rule,
        algorithm: Algorithm::Log,
        key: key.as_bytes(),
        cell_ms: 0,
        limit: most,
        configured: None,
        cost,
        policy,
    }
}

fn ledger(rule: u16, zone: u32, cost: u64) -> Check<'static> {
    let policy = Policy { timeout_ms: 100, ..Policy::default() };
    Check {
        rule,
        algorithm: Algorithm::Ledger { zone },
        key: b"alice",
        cell_ms: 0,
        limit: 0,
        configured: None,
        cost,
        policy,
    }
}

fn denying(check: Check<'_>) -> Check<'_> {
    Check { policy: Policy { deny_on_failure: true, ..check.policy }, ..check }
}

fn shadow(check: Check<'_>) -> Check<'_> {
    Check { policy: Policy { shadow: true, ..check.policy }, ..check }
}

/// One process of one worker; zone 7 allows 2 a minute.
fn world() -> World {
    let mut world = World::connected(1, 1);
    world.exact_store.zones.insert(7, (2, MINUTE));
    world
}

fn stats(world: &World) -> Stats {
    world.processes[0].workers[0].as_ref().unwrap().limiter.stats(MonoMs(world.now))
}

fn results(world: &World) -> [u64; 5] {
    stats(world).exact_results
}

#[test]
fn a_log_admits_exactly_its_limit_and_reports_the_remaining_budget() {
    let mut world = world();
    let key = key("k", MINUTE);
    for left in [2, 1, 0] {
        let (took, outcome) = world.decide_exact(&[], &[log(5, &key, 3, 1)]);
        let shown = budget(&outcome);
        assert_eq!((shown.rule, shown.limit, shown.remaining), (5, 3, left));
        assert_eq!((outcome.exact.window_ms(5), outcome.exact.undecided), (Some(MINUTE), RuleSet::default()));
        assert!((1..20).contains(&took), "{took} ms");
    }
    let denied = denial(world.decide_exact(&[], &[log(5, &key, 3, 1)]).1);
    assert_eq!((denied.cause, denied.budget.remaining), (Cause::Limit, 0));
    assert!((59_900..=60_000).contains(&denied.retry_after_ms.unwrap()), "{denied:?}");
    assert_eq!(results(&world), [3, 1, 0, 0, 0]);
}

#[test]
fn a_denial_by_a_log_is_cached_until_its_retry_time_and_no_longer() {
    let mut world = world();
    let key = key("k", MINUTE);
    let first = world.now;
    for _ in 0..3 {
        assert!(allowed(&world.decide_exact(&[], &[log(5, &key, 3, 1)]).1));
        world.run(1_000);
    }
    let (_, denied) = world.decide_exact(&[], &[log(5, &key, 3, 1)]);
    let exact_requests = world.exact_store.exact_requests.len();
    let earliest = first + 1 + MINUTE;
    for _ in 0..1_000 {
        let again = denial(world.decide_exact(&[], &[log(5, &key, 3, 1)]).1);
        let retry_at = world.now + again.retry_after_ms.unwrap();
        assert_eq!((again.cause, again.budget.remaining), (Cause::Limit, 0));
        assert!((earliest - 2..=earliest + 2).contains(&retry_at), "{retry_at} is not {earliest}");
        world.run(50);
    }
    // In these 50 seconds one exact request is sent every 5 s.
    let again = world.exact_store.exact_requests.len() - exact_requests;
    assert!(!allowed(&denied) && (8..=10).contains(&again), "{again} exact requests");
    assert_eq!(stats(&world).spared, 1_000 - again as u64);
    let exact_requests = exact_requests + again;
    // A higher limit, a smaller cost and another key may pass, so they need exact requests.
    for check in [log(5, &key, 3, 0), log(5, &key, 4, 1), log(5, &super::harness::key("l", MINUTE), 3, 1)] {
        assert!(allowed(&world.decide_exact(&[], &[check]).1));
    }
    assert_eq!(world.exact_store.exact_requests.len(), exact_requests + 3);
    // The first use leaves the window; the later ones do not.
    world.run(earliest - world.now - 3);
    assert_eq!(world.decide_exact(&[], &[log(5, &key, 4, 1)]).0, 2, "an exact request a moment before");
    world.run(1);
    assert!(allowed(&world.decide_exact(&[], &[log(5, &key, 4, 1)]).1));
}

#[test]
fn a_cached_denial_ends_soon_if_the_charge_that_caused_it_is_refunded() {
    let mut world = world();
    let (window, exact) = (key("w", HOUR), key("k", HOUR));
    world.exact_store.delay_ms = (10, 10);
    assert!(allowed(&world.decide(0, 0, &[check(&window, 2, 1)])), "warm");
    let (id, waiting) = world.request_exact(0, 0, &[check(&window, 2, 1)], &[log(1, &exact, 1, 1)]);
    assert!(world.passes(0, 0, &[check(&window, 2, 1)]));
    // Denied for an hour because of a charge that is refunded a moment later.
    assert!(!allowed(&world.decide_exact(&[], &[log(1, &exact, 1, 1)]).1));
    assert!(!allowed(&world.wait_for(id, waiting).1));
    world.run(100);
    assert_eq!(world.charged(exact.as_bytes()), 0);
    let start = world.now;
    while !allowed(&world.decide_exact(&[], &[log(1, &exact, 1, 1)]).1) {
        world.run(100);
        assert!(world.now < start + 6_000, "the denial does not end");
    }
    // That request used up the limit, so the next denial is right.
    assert!(!allowed(&world.decide_exact(&[], &[log(1, &exact, 1, 1)]).1));
}

#[test]
fn every_attempt_at_a_ledger_is_recorded() {
    let mut world = world();
    let mut numbers = Vec::new();
    for attempt in 0..5 {
        let (_, outcome) = world.decide_exact(&[], &[ledger(3, 7, 1)]);
        assert_eq!(allowed(&outcome), attempt < 2);
        numbers.extend(outcome.exact.transactions.iter());
        assert_eq!((outcome.exact.window_ms(3), outcome.exact.window_ms(4)), (Some(MINUTE), None));
    }
    assert_eq!(numbers, [1, 2, 3, 4, 5]);
    assert_eq!((world.exact_store.exact_requests.len(), stats(&world).spared), (5, 0));
}

#[test]
fn a_cost_above_the_limit_of_a_log_is_denied_without_an_exact_request() {
    let mut world = world();
    let key = key("k", MINUTE);
    let (took, outcome) = world.decide_exact(&[], &[log(0, &key, 3, 4), ledger(1, 7, 1)]);
    let denied = denial(&outcome);
    assert_eq!((took, denied.cause, denied.retry_after_ms), (0, Cause::Cost, None));
    assert_eq!((world.exact_store.exact_requests.len(), world.exact_store.transactions), (0, 0));
}

#[test]
fn a_denial_by_a_window_saves_the_exact_request() {
    let mut world = world();
    let (window, exact) = (key("w", HOUR), key("k", HOUR));
    assert!(allowed(&world.decide_exact(&[check(&window, 1, 1)], &[log(1, &exact, 9, 1)]).1));
    let (took, outcome) = world.decide_exact(&[check(&window, 1, 1)], &[log(1, &exact, 9, 1)]);
    assert_eq!((took, denial(&outcome).budget.rule), (0, 0));
    assert_eq!((world.exact_store.exact_requests.len(), world.charged(exact.as_bytes())), (1, 1));
}

#[test]
fn a_denied_log_charges_no_window_and_a_denied_ledger_no_log() {
    let mut world = world();
    let (window, exact) = (key("w", HOUR), key("k", HOUR));
    for _ in 0..2 {
        assert!(allowed(&world.decide_exact(&[], &[ledger(2, 7, 1)]).1));
    }
    let all = [log(1, &exact, 9, 1), ledger(2, 7, 1)];
    let (_, outcome) = world.decide_exact(&[check(&window, 9, 1)], &all);
    assert_eq!(denial(&outcome).budget.rule, 2);
    assert_eq!(
        outcome.exact.transactions.iter().collect::<Vec<_>>(),
        [3],
        "the denied attempt is recorded too"
    );
    assert_eq!(outcome.exact.undecided, RuleSet::default(), "the log is untried, not undecided");
    assert!(world.entry(0, &window).is_none() && world.charged(exact.as_bytes()) == 0);
}

#[test]
fn hidden_rules_have_neither_budget_nor_transaction() {
    let mut world = world();
    let exact = key("k", HOUR);
    let hidden = |check: Check<'static>| Check {
        policy: Policy { visibility: Visibility::Hidden, ..check.policy },
        ..check
    };
    let (_, outcome) = world.decide_exact(&[], &[log(1, &exact, 9, 1), hidden(ledger(2, 7, 1))]);
    let Decision::Allow(Some(budget)) = outcome.decision else { panic!("{outcome:?}") };
    assert_eq!((budget.rule, outcome.exact.transactions.iter().count()), (1, 0));
    let (_, outcome) = world.decide_exact(&[], &[hidden(ledger(2, 7, 1))]);
    assert_eq!(outcome.decision, Decision::Allow(None));
}

#[test]
fn exact_rules_are_listed_beside_windows() {
    let mut world = world();
    let [window, exact] = [key("w", HOUR), key("k", HOUR)];
    fn listed(check: Check<'_>) -> Check<'_> {
        Check { policy: Policy { visibility: Visibility::Listed, ..check.policy }, ..check }
    }
    let exact = [listed(log(1, &exact, 9, 1)), listed(ledger(2, 7, 1))];
    let check_of_window = listed(check(&window, 100, 1));
    for (windows, expected) in
        [(vec![], vec![(1, 8), (2, 1)]), (vec![check_of_window], vec![(0, 99), (1, 7), (2, 0)])]
    {
        let (_, outcome) = world.decide_exact(&windows, &exact);
        let mut found: Vec<_> = outcome.budgets.iter().map(|left| (left.rule, left.remaining)).collect();
        found.sort_unstable();
        assert_eq!(found, expected);
        assert_eq!(budget(&outcome).rule, 2);
    }
    // A hidden window is not the budget of a request with an exact rule either.
    let hidden = Check {
        policy: Policy { visibility: Visibility::Hidden, ..check_of_window.policy },
        limit: 3,
        ..check_of_window
    };
    let (_, outcome) = world.decide_exact(&[hidden], &exact[..1]);
    assert_eq!((budget(&outcome).rule, outcome.budgets.len()), (1, 1));
}

/// A request whose window has room when it is sent, and is used up while the exact response is in flight.
fn overtaken(world: &mut World, exact: &[Check<'_>], window: &Key) -> Outcome {
    assert!(allowed(&world.decide(0, 0, &[check(window, 2, 1)])), "warm");
    let (id, waiting) = world.request_exact(0, 0, &[check(window, 2, 1)], exact);
    assert_eq!(waiting.decision, Decision::Wait);
    assert!(world.passes(0, 0, &[check(window, 2, 1)]));
    world.wait_for(id, waiting).1
}

#[test]
fn charges_are_refunded_if_a_window_denies_afterwards() {
    let mut world = world();
    let (window, exact) = (key("w", HOUR), key("k", HOUR));
    let outcome = overtaken(&mut world, &[log(1, &exact, 9, 1), ledger(2, 7, 1)], &window);
    assert_eq!(denial(&outcome).budget.rule, 0);
    assert_eq!(outcome.exact.transactions.iter().count(), 1);
    assert_eq!(world.charged(exact.as_bytes()), 1, "the refund is in flight");
    world.run(50);
    assert_eq!((world.charged(exact.as_bytes()), world.exact_store.recorded(7, b"alice")), (0, 0));
    assert_eq!(stats(&world).refunds, 1);
}

#[test]
fn a_refund_survives_the_end_of_its_stream() {
    let mut world = world();
    let (window, exact) = (key("w", HOUR), key("k", HOUR));
    world.latency = (5, 5);
    overtaken(&mut world, &[log(1, &exact, 9, 1)], &window);
    world.cut(0, 0);
    assert_eq!(world.charged(exact.as_bytes()), 1, "the refund was lost with the stream");
    world.run(3_000);
    assert_eq!(world.charged(exact.as_bytes()), 0, "the refund was sent again");
    world.exact_store.refunded.clear();
    world.cut(0, 0);
    world.run(3_000);
    assert!(world.exact_store.refunded.is_empty(), "an acknowledged refund is not sent again");
}

#[test]
fn after_a_timeout_on_failure_decides() {
    for (deny, passes) in [(false, true), (true, false)] {
        let mut world = world();
        let (window, exact) = (key("w", HOUR), key("k", HOUR));
        world.exact_store.delay_ms = (300, 300);
        let check_of_log = log(1, &exact, 9, 1);
        let check_of_log = if deny { denying(check_of_log) } else { check_of_log };
        assert!(allowed(&world.decide(0, 0, &[check(&window, 9, 1)])), "warm");
        let (took, outcome) = world.decide_exact(&[check(&window, 9, 1)], &[check_of_log]);
        assert!((100..=112).contains(&took), "{took} ms");
        assert_eq!((allowed(&outcome), outcome.exact.undecided.clone()), (passes, RuleSet::of(1)));
        if deny {
            let denied = denial(&outcome);
            assert_eq!((denied.cause, denied.budget.rule), (Cause::Undecided, 1));
        }
        assert_eq!(results(&world), [0, 0, 0, 1, 0]);
        // If the request passed, a late charge stays. Otherwise it is refunded.
        world.run(400);
        assert_eq!(world.charged(exact.as_bytes()), u64::from(passes));
        assert_eq!(stats(&world).refunds, u64::from(deny));
        let own = world.entry(0, &window).unwrap().current.own;
        assert_eq!(own, 1 + u64::from(passes));
    }
}

#[test]
fn a_late_denial_is_cached() {
    let mut world = world();
    let key = key("k", HOUR);
    assert!(allowed(&world.decide_exact(&[], &[log(1, &key, 1, 1)]).1));
    world.exact_store.delay_ms = (200, 200);
    assert!(allowed(&world.decide_exact(&[], &[denying(ledger(1, 7, 1)), log(2, &key, 2, 1)][1..]).1));
    let (_, outcome) = world.decide_exact(&[], &[denying(log(1, &key, 2, 1))]);
    assert_eq!(denial(&outcome).cause, Cause::Undecided);
    world.run(300);
    let (took, outcome) = world.decide_exact(&[], &[denying(log(1, &key, 2, 1))]);
    assert_eq!((took, denial(&outcome).cause), (0, Cause::Limit));
}

#[test]
fn an_exact_request_without_response_is_refunded() {
    let mut world = world();
    let key = key("k", HOUR);
    world.exact_store.loses_one_in = 1;
    assert!(!allowed(&world.decide_exact(&[], &[denying(log(1, &key, 9, 1))]).1));
    assert_eq!(world.charged(key.as_bytes()), 1);
    world.run(connection::exact_requests::LATE_MS + 200);
    assert_eq!(world.charged(key.as_bytes()), 0);
}

#[test]
fn on_failure_applies_to_each_undecided_rule() {
    let mut world = world();
    let (one, other) = (key("a", HOUR), key("b", HOUR));
    world.exact_store.unavailable = true;
    let (took, outcome) = world.decide_exact(&[], &[log(1, &one, 9, 1), log(4, &other, 9, 1)]);
    assert!(allowed(&outcome) && took < 20, "{took} ms");
    assert_eq!(outcome.exact.undecided, RuleSet::from_iter([1, 4]));
    assert_eq!(outcome.decision, Decision::Allow(None));
    let (_, outcome) = world.decide_exact(&[], &[log(1, &one, 9, 1), denying(log(4, &other, 9, 1))]);
    assert_eq!((denial(&outcome).budget.rule, denial(&outcome).cause), (4, Cause::Undecided));
    assert_eq!(results(&world), [0, 0, 2, 0, 0]);
    assert!(denial(&outcome).retry_after_ms.is_some());
    world.exact_store.unavailable = false;
    assert!(
        allowed(&world.decide_exact(&[], &[denying(log(4, &other, 9, 1))]).1),
        "an undecided result is not cached"
    );
}

#[test]
fn no_request_waits_without_a_working_stream() {
    let key = key("k", HOUR);
    let mut alone = World::alone(1, 1);
    for (check, passes) in [(log(1, &key, 9, 1), true), (denying(log(1, &key, 9, 1)), false)] {
        let (took, outcome) = alone.decide_exact(&[], &[check]);
        assert_eq!((took, allowed(&outcome), outcome.exact.undecided), (0, passes, RuleSet::of(1)));
    }
    // A stream that is open but delivers nothing.
    let mut frozen = world();
    frozen.paused = true;
    let took: Vec<u64> = (0..40)
        .map(|_| {
            let (took, _) = frozen.decide_exact(&[], &[log(1, &key, 9, 1)]);
            frozen.run(50);
            took
        })
        .collect();
    assert!(took[0] >= 100 && took[20..].iter().all(|took| *took == 0), "{took:?}");
    assert!(stats(&frozen).exact_unsent > 15, "{:?}", stats(&frozen));
    frozen.paused = false;
    frozen.run(2_500);
    assert!(frozen.decide_exact(&[], &[log(1, &key, 99, 1)]).1.exact.undecided.is_empty(), "decided again");
}

#[test]
fn timeouts_of_exact_requests_do_not_stop_queries() {
    let mut world = World::connected(2, 1);
    let (exact, windows) = (key("k", HOUR), keys(2, HOUR));
    world.exact_store.loses_one_in = 1;
    for _ in 0..5 {
        assert!(world.decide_exact(&[], &[log(1, &exact, 9, 1)]).0 >= 100);
    }
    let (_, outcome) = world.request(0, 0, &[check(&windows[0], 10, 1)]);
    assert_eq!(outcome.decision, Decision::Wait, "queries are still sent");
    // A circuit breaker opened by queries applies to exact requests too.
    world.paused = true;
    for _ in 0..3 {
        world.decide(0, 0, &[check(&windows[1], 10, 1)]);
    }
    assert_eq!(world.decide_exact(&[], &[log(1, &exact, 9, 1)]).0, 0);
}

#[test]
fn a_closed_stream_resolves_waiting_requests_at_once() {
    for (deny, passes) in [(false, true), (true, false)] {
        let mut world = world();
        let key = key("k", HOUR);
        world.exact_store.delay_ms = (60, 60);
        let check = if deny { denying(log(1, &key, 9, 1)) } else { log(1, &key, 9, 1) };
        let (id, _) = world.request_exact(0, 0, &[], &[check]);
        world.run(10);
        world.cut(0, 0);
        let (at, outcome) = world.resolved[&id].clone();
        assert_eq!((at, allowed(&outcome), outcome.exact.undecided), (world.now, passes, RuleSet::of(1)));
        assert_eq!(results(&world), [0, 0, 0, 0, 1]);
        // Its result is lost, so a denied request is refunded on the next stream.
        world.run(3_000);
        assert_eq!(world.charged(key.as_bytes()), u64::from(passes));
    }
}

#[test]
fn a_request_may_wait_for_its_windows_after_its_logs() {
    for passes in [true, false] {
        let mut world = World::connected(2, 1);
        let (window, exact) = (key("w", HOUR), key("k", HOUR));
        if !passes {
            // Used up by the other process and known to the region only.
            assert!(world.passes(1, 0, &[check(&window, 9, 1)]));
            world.run(100);
            world.exact_store.delay_ms = (20, 20);
        }
        let cold = Check { policy: Policy { timeout_ms: 80, ..Policy::default() }, ..check(&window, 9, 9) };
        world.queries = 0;
        let (_, outcome) = world.decide_exact(&[cold], &[log(1, &exact, 9, 1)]);
        assert_eq!(allowed(&outcome), passes);
        assert_eq!((world.queries > 0, world.exact_store.exact_requests.len()), (true, 1));
        world.run(100);
        assert_eq!(world.charged(exact.as_bytes()), u64::from(passes));
        assert!(world.processes[0].workers[0].as_ref().unwrap().limiter.is_quiet());
    }
}

#[test]
fn a_response_that_arrives_during_the_query_of_a_window_is_refunded_if_the_window_denies() {
    let mut world = World::connected(2, 1);
    let (window, exact) = (key("w", HOUR), key("k", HOUR));
    assert!(world.passes(1, 0, &[check(&window, 9, 1)]));
    world.run(100);
    // The exact response takes more than 100 ms, its timeout is 100 ms, and the query takes 40 ms.
    world.latency = (20, 20);
    world.exact_store.delay_ms = (80, 80);
    let slow = Check { policy: Policy { timeout_ms: 500, ..Policy::default() }, ..check(&window, 9, 9) };
    let (took, outcome) = world.decide_exact(&[slow], &[log(1, &exact, 9, 1)]);
    assert_eq!(
        (denial(&outcome).budget.rule, outcome.exact.undecided),
        (0, RuleSet::of(1)),
        "after {took} ms"
    );
    world.run(200);
    assert_eq!(world.charged(exact.as_bytes()), 0);
}

#[test]
fn rules_of_one_limit_are_charged_once() {
    let mut world = world();
    let key = key("k", HOUR);
    let checks = [log(1, &key, 9, 2), log(2, &key, 5, 1), ledger(3, 7, 1), ledger(4, 7, 1)];
    let (_, outcome) = world.decide_exact(&[], &checks);
    assert_eq!((world.charged(key.as_bytes()), world.exact_store.recorded(7, b"alice")), (2, 1));
    assert_eq!(budget(&outcome).remaining, 1, "the budget of the ledger");
    let request = &world.exact_store.exact_requests[0].1;
    assert_eq!((request.charges.len(), request.charges[0].log.as_ref().unwrap().most), (2, 5));
    world.exact_store.unavailable = true;
    assert_eq!(
        world.decide_exact(&[], &checks).1.exact.undecided,
        (1..5).collect(),
        "all four rules are undecided"
    );
}

#[test]
fn exact_shadow_rules_never_delay_or_deny_a_request() {
    let mut world = world();
    let (exact, window) = (key("k", HOUR), key("w", HOUR));
    let shadows = [shadow(log(1, &exact, 1, 1)), shadow(ledger(2, 7, 1))];
    for _ in 0..3 {
        let (took, outcome) = world.decide_exact(&[check(&window, 3, 1)], &shadows);
        assert!(took <= 5 && allowed(&outcome), "{outcome:?}");
        world.run(100);
    }
    let outcomes_of = |rule| {
        let of = |(one, outcome): &(u16, ShadowOutcome)| (*one == rule).then_some(*outcome);
        world.shadow.iter().filter_map(of).collect::<Vec<_>>()
    };
    assert_eq!(outcomes_of(1), [ShadowOutcome::Allowed, ShadowOutcome::Denied, ShadowOutcome::Denied]);
    assert_eq!(outcomes_of(2), [ShadowOutcome::Allowed, ShadowOutcome::Allowed, ShadowOutcome::Denied]);
    assert_eq!(
        world.exact_store.exact_requests.len(),
        5,
        "one for each rule, and a denial by the log is cached"
    );
    // For a denied request the shadow rules send nothing.
    assert!(!allowed(&world.decide_exact(&[check(&window, 3, 1)], &shadows).1));
    world.run(100);
    assert_eq!((world.exact_store.exact_requests.len(), world.shadow.len()), (5, 6));
}

#[test]
fn exact_shadow_rules_without_a_response_are_undecided() {
    let mut world = world();
    let key = key("k", HOUR);
    world.exact_store.loses_one_in = 1;
    assert!(allowed(&world.decide_exact(&[], &[shadow(log(1, &key, 1, 1))]).1));
    world.run(100 + connection::exact_requests::LATE_MS + 100);
    assert_eq!(world.shadow, [(1, ShadowOutcome::Undecided)]);
    assert!(allowed(&world.decide_exact(&[], &[shadow(log(1, &key, 1, 1))]).1));
    world.run(100);
    world.cut(0, 0);
    world.run(1);
    assert!(allowed(&world.decide_exact(&[], &[shadow(log(1, &key, 1, 1))]).1));
    assert_eq!(world.shadow, [(1, ShadowOutcome::Undecided); 3]);
}

#[test]
fn the_number_of_waiting_requests_is_bounded_and_sent_in_several_frames() {
    let mut world = world();
    world.exact_store.delay_ms = (60, 60);
    let keys = keys(64, HOUR);
    let many: Vec<Check<'_>> =
        keys.iter().enumerate().map(|(at, key)| log(at as u16, key, 1_000_000, 1)).collect();
    let sent: Vec<_> = (0..300).map(|_| world.request_exact(0, 0, &[], &many).0).collect();
    world.run(200);
    assert!(
        sent.iter()
            .all(|id| allowed(&world.resolved[id].1) && world.resolved[id].1.exact.undecided.is_empty())
    );
    world.exact_store.loses_one_in = 1;
    world.paused = true;
    let one = [denying(log(0, &keys[0], 1_000_000, 1))];
    for _ in 0..connection::exact_requests::MAX_AWAITED {
        assert_eq!(world.request_exact(0, 0, &[], &one).1.decision, Decision::Wait);
    }
    let (_, outcome) = world.request_exact(0, 0, &[], &one);
    assert_eq!(denial(&outcome).cause, Cause::Undecided, "one request too many");
    world.run(200);
    let exact_requests = &world.processes[0].workers[0].as_ref().unwrap().limiter.connection.exact.requests;
    assert_eq!(
        (exact_requests.awaited.len(), exact_requests.open.len(), exact_requests.given_up.len()),
        (0, 0, connection::exact_requests::MAX_GIVEN_UP)
    );
    let stats = stats(&world);
    assert_eq!(
        stats.refunds + stats.refunds_lost,
        (connection::exact_requests::MAX_AWAITED - connection::exact_requests::MAX_GIVEN_UP) as u64
    );
    assert!(stats.refunds_lost > 0);
}

#[test]
fn many_refunds_are_sent_in_several_frames() {
    let mut world = world();
    let (window, exact) = (key("w", HOUR), key("k", HOUR));
    world.exact_store.delay_ms = (20, 20);
    assert!(allowed(&world.decide(0, 0, &[check(&window, 2, 1)])), "warm");
    for _ in 0..1_000 {
        world.request_exact(0, 0, &[check(&window, 2, 1)], &[log(1, &exact, 9_000, 1)]);
    }
    world.run(1_000);
    assert_eq!(world.charged(exact.as_bytes()), 1);
    assert_eq!(stats(&world).refunds, 999);
}

#[test]
fn a_worker_that_shuts_down_refunds_the_requests_that_wait() {
    let mut world = world();
    let key = key("k", HOUR);
    world.exact_store.delay_ms = (60, 60);
    world.request_exact(0, 0, &[], &[denying(log(1, &key, 9, 1))]);
    world.run(10);
    assert_eq!(world.charged(key.as_bytes()), 1);
    world.end(0, 0);
    assert_eq!(world.charged(key.as_bytes()), 0);
}

#[test]
fn malformed_exact_responses_do_no_harm() {
    let mut world = world();
    let key = key("k", HOUR);
    let results = vec![
        wire::ExactResponse {
            id: 999,
            results: vec![wire::ChargeResult { verdict: 2, ..Default::default() }],
        },
        wire::ExactResponse { id: 0, results: Vec::new() },
    ];
    let frame = wire::RegionFrame { results, ..Default::default() };
    let now = MonoMs(world.now);
    let Process { shared, workers, .. } = &mut world.processes[0];
    let limiter = &mut workers[0].as_mut().unwrap().limiter;
    limiter.on_frame(shared, &frame, now);
    let resolved = |limiter: &mut Limiter, shared: &mut Counting| {
        let resolve = |output| match output {
            Output::Resolve { request, outcome } => Some((request, outcome)),
            _ => None,
        };
        outputs(limiter, shared, now).into_iter().filter_map(resolve).collect::<Vec<_>>()
    };
    assert_eq!(resolved(limiter, shared), []);
    // Too few results, an unknown verdict and a repeated response: undecided, and decided once.
    limiter.decide(shared, 77, &[log(1, &key, 9, 1), ledger(2, 7, 1)], now);
    let few =
        wire::ExactResponse { id: 1, results: vec![wire::ChargeResult { verdict: 9, ..Default::default() }] };
    let frame = wire::RegionFrame { results: vec![few.clone(), few], ..Default::default() };
    limiter.on_frame(shared, &frame, now);
    let resolved = resolved(limiter, shared);
    assert_eq!(
        (resolved.len(), resolved[0].0, resolved[0].1.exact.undecided.clone()),
        (1, 77, RuleSet::from_iter([1, 2]))
    );
    assert!(allowed(&resolved[0].1));
}
