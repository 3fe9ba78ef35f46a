//! Requests that wait for results: what is asked, what follows from what is ruled, and what if nothing is.

use super::harness::*;
use crate::limiter::*;
use crate::model::key::Key;
use std::vec;
use std::vec::Vec;

/// A log of rule `rule` that is asked about for up to 100 ms.
fn log(rule: u16, key: &Key, most: u64, cost: u64) -> ExactCheck<'_> {
    let policy = Policy { timeout_ms: 100, ..Policy::default() };
    ExactCheck { rule, limit: ExactLimit::Log { key: key.as_bytes(), most }, cost, policy }
}

fn ledger(rule: u16, zone: u32, cost: u64) -> ExactCheck<'static> {
    let policy = Policy { timeout_ms: 100, ..Policy::default() };
    ExactCheck { rule, limit: ExactLimit::Ledger { zone, bucket: b"alice" }, cost, policy }
}

fn denying(check: ExactCheck<'_>) -> ExactCheck<'_> {
    ExactCheck { policy: Policy { deny_on_failure: true, ..check.policy }, ..check }
}

fn shadow(check: ExactCheck<'_>) -> ExactCheck<'_> {
    ExactCheck { policy: Policy { shadow: true, ..check.policy }, ..check }
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
fn a_log_passes_exactly_its_limit_and_says_what_is_left() {
    let mut world = world();
    let key = key("k", MINUTE);
    for left in [2, 1, 0] {
        let (took, outcome) = world.decide_exact(&[], &[log(5, &key, 3, 1)]);
        let shown = budget(outcome);
        assert_eq!((shown.rule, shown.limit, shown.remaining), (5, 3, left));
        assert_eq!((outcome.exact.window_ms, outcome.exact.undecided), (MINUTE, 0));
        assert!((1..20).contains(&took), "{took} ms");
    }
    let denied = denial(world.decide_exact(&[], &[log(5, &key, 3, 1)]).1);
    assert_eq!((denied.cause, denied.budget.remaining), (Cause::Limit, 0));
    assert!((59_900..=60_000).contains(&denied.retry_after_ms.unwrap()), "{denied:?}");
    assert_eq!(results(&world), [3, 1, 0, 0, 0]);
}

#[test]
fn a_denial_is_remembered_as_long_as_it_is_true_and_no_longer() {
    let mut world = world();
    let key = key("k", MINUTE);
    let first = world.now;
    for _ in 0..3 {
        assert!(allowed(&world.decide_exact(&[], &[log(5, &key, 3, 1)]).1));
        world.run(1_000);
    }
    let (_, denied) = world.decide_exact(&[], &[log(5, &key, 3, 1)]);
    let exact_requests = world.exact_store.exact_requests.len();
    let truth = first + 1 + MINUTE;
    for _ in 0..1_000 {
        let again = denial(world.decide_exact(&[], &[log(5, &key, 3, 1)]).1);
        let told = world.now + again.retry_after_ms.unwrap();
        assert_eq!((again.cause, again.budget.remaining), (Cause::Limit, 0));
        assert!((truth - 2..=truth + 2).contains(&told), "{told} is not {truth}");
        world.run(50);
    }
    // In 50 seconds one request asks again every five.
    let again = world.exact_store.exact_requests.len() - exact_requests;
    assert!(!allowed(&denied) && (8..=10).contains(&again), "{again} asked again");
    assert_eq!(stats(&world).spared, 1_000 - again as u64);
    let exact_requests = exact_requests + again;
    // A higher limit, a smaller cost and another key may pass, so they are asked about.
    for check in [log(5, &key, 3, 0), log(5, &key, 4, 1), log(5, &super::harness::key("l", MINUTE), 3, 1)] {
        assert!(allowed(&world.decide_exact(&[], &[check]).1));
    }
    assert_eq!(world.exact_store.exact_requests.len(), exact_requests + 3);
    // The first use leaves; what was charged above the old limit does not.
    world.run(truth - world.now - 3);
    assert_eq!(world.decide_exact(&[], &[log(5, &key, 4, 1)]).0, 2, "asked about a moment before");
    world.run(1);
    assert!(allowed(&world.decide_exact(&[], &[log(5, &key, 4, 1)]).1));
}

#[test]
fn a_denial_that_rests_on_what_was_taken_back_does_not_last() {
    let mut world = world();
    let (window, exact) = (key("w", HOUR), key("k", HOUR));
    world.exact_store.slowness = (10, 10);
    assert!(allowed(&world.decide(0, 0, &[check(&window, 2, 1)])), "warm");
    let (id, waiting) = world.request_exact(0, 0, &[check(&window, 2, 1)], &[log(1, &exact, 1, 1)]);
    assert!(world.passes(0, 0, &[check(&window, 2, 1)]));
    // Denied for an hour by a charge that is taken back a moment later.
    assert!(!allowed(&world.decide_exact(&[], &[log(1, &exact, 1, 1)]).1));
    assert!(!allowed(&world.wait_for(id, waiting).1));
    world.run(100);
    assert_eq!(world.exact_store.charged(exact.as_bytes()), 0);
    let asked = world.now;
    while !allowed(&world.decide_exact(&[], &[log(1, &exact, 1, 1)]).1) {
        world.run(100);
        assert!(world.now < asked + 6_000, "denied for ever");
    }
    // The one that has passed was the only one: now it is denied for a reason.
    assert!(!allowed(&world.decide_exact(&[], &[log(1, &exact, 1, 1)]).1));
}

#[test]
fn an_attempt_at_a_ledger_is_always_recorded() {
    let mut world = world();
    let mut numbers = Vec::new();
    for attempt in 0..5 {
        let (_, outcome) = world.decide_exact(&[], &[ledger(3, 7, 1)]);
        assert_eq!(allowed(&outcome), attempt < 2);
        numbers.extend(outcome.exact.transactions.iter());
        assert_eq!(outcome.exact.window_ms, MINUTE);
    }
    assert_eq!(numbers, [1, 2, 3, 4, 5]);
    assert_eq!((world.exact_store.exact_requests.len(), stats(&world).spared), (5, 0));
}

#[test]
fn a_cost_above_a_logs_limit_is_denied_without_asking() {
    let mut world = world();
    let key = key("k", MINUTE);
    let (took, outcome) = world.decide_exact(&[], &[log(0, &key, 3, 4), ledger(1, 7, 1)]);
    let denied = denial(outcome);
    assert_eq!((took, denied.cause, denied.retry_after_ms), (0, Cause::Cost, None));
    assert_eq!((world.exact_store.exact_requests.len(), world.exact_store.transactions), (0, 0));
}

#[test]
fn a_window_that_would_deny_spares_the_question() {
    let mut world = world();
    let (window, exact) = (key("w", HOUR), key("k", HOUR));
    assert!(allowed(&world.decide_exact(&[check(&window, 1, 1)], &[log(1, &exact, 9, 1)]).1));
    let (took, outcome) = world.decide_exact(&[check(&window, 1, 1)], &[log(1, &exact, 9, 1)]);
    assert_eq!((took, denial(outcome).budget.rule), (0, 0));
    assert_eq!((world.exact_store.exact_requests.len(), world.exact_store.charged(exact.as_bytes())), (1, 1));
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
    assert_eq!(denial(outcome).budget.rule, 2);
    assert_eq!(outcome.exact.transactions.iter().collect::<Vec<_>>(), [3], "and it is told of");
    assert_eq!(outcome.exact.undecided, 0, "the log was left untried because of the ledger");
    assert!(world.entry(0, &window).is_none() && world.exact_store.charged(exact.as_bytes()) == 0);
}

/// A window that passes when it is looked at, and is used up while the result is under way.
fn overtaken(world: &mut World, exact: &[ExactCheck<'_>], window: &Key) -> Outcome {
    assert!(allowed(&world.decide(0, 0, &[check(window, 2, 1)])), "warm");
    let (id, waiting) = world.request_exact(0, 0, &[check(window, 2, 1)], exact);
    assert_eq!(waiting.decision, Decision::Wait);
    assert!(world.passes(0, 0, &[check(window, 2, 1)]));
    world.wait_for(id, waiting).1
}

#[test]
fn what_was_charged_is_refunded_where_a_window_denies_after_all() {
    let mut world = world();
    let (window, exact) = (key("w", HOUR), key("k", HOUR));
    let outcome = overtaken(&mut world, &[log(1, &exact, 9, 1), ledger(2, 7, 1)], &window);
    assert_eq!(denial(outcome).budget.rule, 0);
    assert_eq!(outcome.exact.transactions.iter().count(), 1);
    assert_eq!(world.exact_store.charged(exact.as_bytes()), 1, "still under way");
    world.run(50);
    assert_eq!(
        (world.exact_store.charged(exact.as_bytes()), world.exact_store.recorded(7, b"alice")),
        (0, 0)
    );
    assert_eq!(stats(&world).refunds, 1);
}

#[test]
fn a_refund_survives_the_end_of_its_stream() {
    let mut world = world();
    let (window, exact) = (key("w", HOUR), key("k", HOUR));
    world.latency = (5, 5);
    overtaken(&mut world, &[log(1, &exact, 9, 1)], &window);
    world.cut(0, 0);
    assert_eq!(world.exact_store.charged(exact.as_bytes()), 1, "lost with the stream");
    world.run(3_000);
    assert_eq!(world.exact_store.charged(exact.as_bytes()), 0, "and said again");
    world.exact_store.refunded.clear();
    world.cut(0, 0);
    world.run(3_000);
    assert!(world.exact_store.refunded.is_empty(), "once it is known to have arrived");
}

#[test]
fn what_nobody_decides_in_time_is_left_to_the_rule() {
    for (deny, passes) in [(false, true), (true, false)] {
        let mut world = world();
        let (window, exact) = (key("w", HOUR), key("k", HOUR));
        world.exact_store.slowness = (300, 300);
        let asked = log(1, &exact, 9, 1);
        let asked = if deny { denying(asked) } else { asked };
        assert!(allowed(&world.decide(0, 0, &[check(&window, 9, 1)])), "warm");
        let (took, outcome) = world.decide_exact(&[check(&window, 9, 1)], &[asked]);
        assert!((100..=112).contains(&took), "{took} ms");
        assert_eq!((allowed(&outcome), outcome.exact.undecided), (passes, 2));
        if deny {
            let denied = denial(outcome);
            assert_eq!((denied.cause, denied.budget.rule), (Cause::Undecided, 1));
        }
        assert_eq!(results(&world), [0, 0, 0, 1, 0]);
        // Where the request passed, what is ruled late stays charged; else it is taken back.
        world.run(400);
        assert_eq!(world.exact_store.charged(exact.as_bytes()), u64::from(passes));
        assert_eq!(stats(&world).refunds, u64::from(deny));
        let own = world.entry(0, &window).unwrap().current.own;
        assert_eq!(own, 1 + u64::from(passes));
    }
}

#[test]
fn a_late_denial_is_remembered() {
    let mut world = world();
    let key = key("k", HOUR);
    assert!(allowed(&world.decide_exact(&[], &[log(1, &key, 1, 1)]).1));
    world.exact_store.slowness = (200, 200);
    assert!(allowed(&world.decide_exact(&[], &[denying(ledger(1, 7, 1)), log(2, &key, 2, 1)][1..]).1));
    let (_, outcome) = world.decide_exact(&[], &[denying(log(1, &key, 2, 1))]);
    assert_eq!(denial(outcome).cause, Cause::Undecided);
    world.run(300);
    let (took, outcome) = world.decide_exact(&[], &[denying(log(1, &key, 2, 1))]);
    assert_eq!((took, denial(outcome).cause), (0, Cause::Limit));
}

#[test]
fn an_exact_request_without_response_is_refunded_unseen() {
    let mut world = world();
    let key = key("k", HOUR);
    world.exact_store.loses_one_in = 1;
    assert!(!allowed(&world.decide_exact(&[], &[denying(log(1, &key, 9, 1))]).1));
    assert_eq!(world.exact_store.charged(key.as_bytes()), 1);
    world.run(remote::exact_requests::LATE_MS + 200);
    assert_eq!(world.exact_store.charged(key.as_bytes()), 0);
}

#[test]
fn each_undecided_rule_has_its_say() {
    let mut world = world();
    let (one, other) = (key("a", HOUR), key("b", HOUR));
    world.exact_store.away = true;
    let (took, outcome) = world.decide_exact(&[], &[log(1, &one, 9, 1), log(4, &other, 9, 1)]);
    assert!(allowed(&outcome) && took < 20, "{took} ms");
    assert_eq!(outcome.exact.undecided, 0b1_0010);
    assert_eq!(outcome.decision, Decision::Allow(None));
    let (_, outcome) = world.decide_exact(&[], &[log(1, &one, 9, 1), denying(log(4, &other, 9, 1))]);
    assert_eq!((denial(outcome).budget.rule, denial(outcome).cause), (4, Cause::Undecided));
    assert_eq!(results(&world), [0, 0, 2, 0, 0]);
    assert!(denial(outcome).retry_after_ms.is_some());
    world.exact_store.away = false;
    assert!(allowed(&world.decide_exact(&[], &[denying(log(4, &other, 9, 1))]).1), "nothing is remembered");
}

#[test]
fn nobody_waits_where_nobody_can_be_asked() {
    let key = key("k", HOUR);
    let mut alone = World::alone(1, 1);
    for (check, passes) in [(log(1, &key, 9, 1), true), (denying(log(1, &key, 9, 1)), false)] {
        let (took, outcome) = alone.decide_exact(&[], &[check]);
        assert_eq!((took, allowed(&outcome), outcome.exact.undecided), (0, passes, 2));
    }
    // A stream that is up and silent.
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
    assert!(frozen.decide_exact(&[], &[log(1, &key, 99, 1)]).1.exact.undecided == 0, "heard of again");
}

#[test]
fn exact_requests_that_time_out_leave_queries_alone() {
    let mut world = World::connected(2, 1);
    let (exact, windows) = (key("k", HOUR), keys(2, HOUR));
    world.exact_store.loses_one_in = 1;
    for _ in 0..5 {
        assert!(world.decide_exact(&[], &[log(1, &exact, 9, 1)]).0 >= 100);
    }
    let (_, outcome) = world.request(0, 0, &[check(&windows[0], 10, 1)]);
    assert_eq!(outcome.decision, Decision::Wait, "the region is asked as ever");
    // And the breaker that consults opened is respected.
    world.paused = true;
    for _ in 0..3 {
        world.decide(0, 0, &[check(&windows[1], 10, 1)]);
    }
    assert_eq!(world.decide_exact(&[], &[log(1, &exact, 9, 1)]).0, 0);
}

#[test]
fn a_broken_stream_settles_all_who_wait_at_once() {
    for (deny, passes) in [(false, true), (true, false)] {
        let mut world = world();
        let key = key("k", HOUR);
        world.exact_store.slowness = (60, 60);
        let asked = if deny { denying(log(1, &key, 9, 1)) } else { log(1, &key, 9, 1) };
        let (id, _) = world.request_exact(0, 0, &[], &[asked]);
        world.run(10);
        world.cut(0, 0);
        let (at, outcome) = world.resolved[&id];
        assert_eq!((at, allowed(&outcome), outcome.exact.undecided), (world.now, passes, 2));
        assert_eq!(results(&world), [0, 0, 0, 0, 1]);
        // Nobody will say what became of it, so it is refunded unseen on the next stream.
        world.run(3_000);
        assert_eq!(world.exact_store.charged(key.as_bytes()), u64::from(passes));
    }
}

#[test]
fn a_request_may_wait_for_its_windows_too() {
    for passes in [true, false] {
        let mut world = World::connected(2, 1);
        let (window, exact) = (key("w", HOUR), key("k", HOUR));
        if !passes {
            // Known to the other process only, and to the region.
            assert!(world.passes(1, 0, &[check(&window, 9, 1)]));
            world.run(100);
            world.exact_store.slowness = (20, 20);
        }
        let forgotten =
            Check { policy: Policy { timeout_ms: 80, ..Policy::default() }, ..check(&window, 9, 9) };
        world.consults = 0;
        let (_, outcome) = world.decide_exact(&[forgotten], &[log(1, &exact, 9, 1)]);
        assert_eq!(allowed(&outcome), passes);
        assert_eq!((world.consults > 0, world.exact_store.exact_requests.len()), (true, 1));
        world.run(100);
        assert_eq!(world.exact_store.charged(exact.as_bytes()), u64::from(passes));
        assert!(world.processes[0].workers[0].as_ref().unwrap().limiter.pending_exact.is_empty());
    }
}

#[test]
fn what_is_ruled_while_the_windows_are_asked_about_is_taken_back_too() {
    let mut world = World::connected(2, 1);
    let (window, exact) = (key("w", HOUR), key("k", HOUR));
    assert!(world.passes(1, 0, &[check(&window, 9, 1)]));
    world.run(100);
    // The result comes 110 ms after the question, the deadline is at 100, and the consult takes 40.
    world.latency = (20, 20);
    world.exact_store.slowness = (80, 80);
    let patient = Check { policy: Policy { timeout_ms: 500, ..Policy::default() }, ..check(&window, 9, 9) };
    let (took, outcome) = world.decide_exact(&[patient], &[log(1, &exact, 9, 1)]);
    assert_eq!((denial(outcome).budget.rule, outcome.exact.undecided), (0, 2), "after {took} ms");
    world.run(200);
    assert_eq!(world.exact_store.charged(exact.as_bytes()), 0);
}

#[test]
fn rules_of_one_limit_are_charged_once() {
    let mut world = world();
    let key = key("k", HOUR);
    let checks = [log(1, &key, 9, 2), log(2, &key, 5, 1), ledger(3, 7, 1), ledger(4, 7, 1)];
    let (_, outcome) = world.decide_exact(&[], &checks);
    assert_eq!((world.exact_store.charged(key.as_bytes()), world.exact_store.recorded(7, b"alice")), (2, 1));
    assert_eq!(budget(outcome).remaining, 1, "the ledger's");
    let request = &world.exact_store.exact_requests[0].1;
    assert_eq!((request.charges.len(), request.charges[0].log.as_ref().unwrap().most), (2, 5));
    world.exact_store.away = true;
    assert_eq!(world.decide_exact(&[], &checks).1.exact.undecided, 0b1_1110, "and all of them are undecided");
}

#[test]
fn shadow_rules_are_asked_beside_and_never_in_the_way() {
    let mut world = world();
    let (exact, window) = (key("k", HOUR), key("w", HOUR));
    let shadows = [shadow(log(1, &exact, 1, 1)), shadow(ledger(2, 7, 1))];
    for _ in 0..3 {
        let (took, outcome) = world.decide_exact(&[check(&window, 3, 1)], &shadows);
        assert!(took <= 5 && allowed(&outcome), "{outcome:?}");
        world.run(100);
    }
    let said = |rule| {
        let of = |(one, said): &(u16, ShadowOutcome)| (*one == rule).then_some(*said);
        world.shadow.iter().filter_map(of).collect::<Vec<_>>()
    };
    assert_eq!(said(1), [ShadowOutcome::Allowed, ShadowOutcome::Denied, ShadowOutcome::Denied]);
    assert_eq!(said(2), [ShadowOutcome::Allowed, ShadowOutcome::Allowed, ShadowOutcome::Denied]);
    assert_eq!(
        world.exact_store.exact_requests.len(),
        5,
        "each alone, and a denial of the log is remembered"
    );
    // A refused request is nothing to them.
    assert!(!allowed(&world.decide_exact(&[check(&window, 3, 1)], &shadows).1));
    world.run(100);
    assert_eq!((world.exact_store.exact_requests.len(), world.shadow.len()), (5, 6));
}

#[test]
fn shadow_rules_that_nobody_rules_are_said_to_be_undecided() {
    let mut world = world();
    let key = key("k", HOUR);
    world.exact_store.loses_one_in = 1;
    assert!(allowed(&world.decide_exact(&[], &[shadow(log(1, &key, 1, 1))]).1));
    world.run(100 + remote::exact_requests::LATE_MS + 100);
    assert_eq!(world.shadow, [(1, ShadowOutcome::Undecided)]);
    assert!(allowed(&world.decide_exact(&[], &[shadow(log(1, &key, 1, 1))]).1));
    world.run(100);
    world.cut(0, 0);
    world.run(1);
    assert!(allowed(&world.decide_exact(&[], &[shadow(log(1, &key, 1, 1))]).1));
    assert_eq!(world.shadow, [(1, ShadowOutcome::Undecided); 3]);
}

#[test]
fn a_flood_of_those_who_wait_is_bounded_and_sent_in_frames() {
    let mut world = world();
    world.exact_store.slowness = (60, 60);
    let keys = keys(64, HOUR);
    let many: Vec<ExactCheck<'_>> =
        keys.iter().enumerate().map(|(at, key)| log(at as u16, key, 1_000_000, 1)).collect();
    let asked: Vec<_> = (0..300).map(|_| world.request_exact(0, 0, &[], &many).0).collect();
    world.run(200);
    assert!(
        asked.iter().all(|id| allowed(&world.resolved[id].1) && world.resolved[id].1.exact.undecided == 0)
    );
    world.exact_store.loses_one_in = 1;
    world.paused = true;
    let one = [denying(log(0, &keys[0], 1_000_000, 1))];
    for _ in 0..remote::exact_requests::MAX_PAUSED {
        assert_eq!(world.request_exact(0, 0, &[], &one).1.decision, Decision::Wait);
    }
    let (_, outcome) = world.request_exact(0, 0, &[], &one);
    assert_eq!(denial(outcome).cause, Cause::Undecided, "one too many");
    world.run(200);
    let exact_requests = &world.processes[0].workers[0].as_ref().unwrap().limiter.exact_requests;
    assert_eq!(
        (exact_requests.paused.len(), exact_requests.open.len(), exact_requests.given_up.len()),
        (0, 0, remote::exact_requests::MAX_GIVEN_UP)
    );
    let stats = stats(&world);
    assert_eq!(
        stats.refunds + stats.refunds_lost,
        (remote::exact_requests::MAX_PAUSED - remote::exact_requests::MAX_GIVEN_UP) as u64
    );
    assert!(stats.refunds_lost > 0);
}

#[test]
fn many_refunds_go_out_in_frames() {
    let mut world = world();
    let (window, exact) = (key("w", HOUR), key("k", HOUR));
    world.exact_store.slowness = (20, 20);
    assert!(allowed(&world.decide(0, 0, &[check(&window, 2, 1)])), "warm");
    for _ in 0..1_000 {
        world.request_exact(0, 0, &[check(&window, 2, 1)], &[log(1, &exact, 9_000, 1)]);
    }
    world.run(1_000);
    assert_eq!(world.exact_store.charged(exact.as_bytes()), 1);
    assert_eq!(stats(&world).refunds, 999);
}

#[test]
fn a_worker_that_ends_lets_nobody_wait_and_takes_back_what_it_knows() {
    let mut world = world();
    let key = key("k", HOUR);
    world.exact_store.slowness = (60, 60);
    world.request_exact(0, 0, &[], &[denying(log(1, &key, 9, 1))]);
    world.run(10);
    assert_eq!(world.exact_store.charged(key.as_bytes()), 1);
    world.end(0, 0);
    assert_eq!(world.exact_store.charged(key.as_bytes()), 0);
}

#[test]
fn malformed_exact_responses_harm_nobody() {
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
    assert_eq!(limiter.take_resolved(), []);
    // Too few, unknown and repeated ones: undecided, and decided once.
    limiter.decide_exact(shared, 77, &[], &[log(1, &key, 9, 1), ledger(2, 7, 1)], now);
    let few =
        wire::ExactResponse { id: 1, results: vec![wire::ChargeResult { verdict: 9, ..Default::default() }] };
    let frame = wire::RegionFrame { results: vec![few.clone(), few], ..Default::default() };
    limiter.on_frame(shared, &frame, now);
    let resolved = limiter.take_resolved();
    assert_eq!((resolved.len(), resolved[0].0, resolved[0].1.exact.undecided), (1, 77, 6));
    assert!(allowed(&resolved[0].1));
}
