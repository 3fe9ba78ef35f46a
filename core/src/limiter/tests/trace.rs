//! Whence requests come, as their questions say it: of those that wait, bounded, and without a change to anything else.

use super::harness::*;
use crate::limiter::{Check, Decision, ExactCheck, ExactLimit, Outcome, Policy};
use crate::model::key::Key;
use crate::model::trace::{MAX_TRACES, Trace};
use crate::model::wire;
use std::vec::Vec;

const RECORDED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const UNRECORDED: &str = "00-1bf7651916cd43dd8448eb211c80319c-c7ad6b7169203331-00";

fn log(key: &Key, most: u64) -> ExactCheck<'_> {
    let policy = Policy { timeout_ms: 100, ..Policy::default() };
    ExactCheck { rule: 1, limit: ExactLimit::Log { key: key.as_bytes(), most }, cost: 1, policy }
}

/// The flags of each trace.
fn flags(traces: &[wire::Trace]) -> Vec<u8> {
    traces.iter().map(|trace| Trace::of_wire(trace).unwrap().parent.unwrap().flags).collect()
}

/// Requests on cold, warm and exact keys: what each came to, and what was asked.
fn run(traceparent: Option<&'static str>) -> (Vec<(u64, Outcome)>, World) {
    let mut world = World::connected(2, 1);
    world.traceparent = traceparent;
    let (window, exact) = (key("window", HOUR), key("exact", HOUR));
    let mut outcomes = Vec::new();
    for _ in 0..40 {
        let (id, outcome) = world.request(0, 0, &[check(&window, 30, 1)]);
        outcomes.push(world.wait_for(id, outcome));
        outcomes.push(world.decide_exact(&[check(&window, 30, 1)], &[log(&exact, 20)]));
        world.decide(1, 0, &[check(&window, 30, 1)]);
    }
    (outcomes, world)
}

#[test]
fn decisions_and_questions_are_the_same_with_and_without() {
    let ((with, traced), (without, silent)) = (run(Some(RECORDED)), run(None));
    assert_eq!(with, without);
    assert!(silent.asked.iter().all(|(_, request)| request.traces.is_empty()));
    assert!(silent.exact_store.exact_requests.iter().all(|(_, request)| request.trace.is_none()));
    assert!(traced.asked.iter().any(|(_, request)| flags(&request.traces) == [1]));
    assert!(traced.exact_store.exact_requests.iter().any(|(_, request)| request.trace.is_some()));
    let bare = |world: &World| -> Vec<_> {
        let each = world.asked.iter().cloned();
        each.map(|(at, request)| (at, wire::Consult { traces: Vec::new(), ..request })).collect()
    };
    assert_eq!(bare(&traced), bare(&silent));
}

#[test]
fn of_many_that_join_a_question_a_few_are_named_and_a_recorded_one_first() {
    let mut world = World::connected(2, 1);
    world.paused = true;
    let key = key("k", HOUR);
    let request = |world: &mut World, traceparent, timeout_ms| {
        let policy = Policy { timeout_ms, ..Policy::default() };
        world.traceparent = traceparent;
        let (_, outcome) = world.request(0, 0, &[Check { policy, ..check(&key, 100, 1) }]);
        assert_eq!(outcome.decision, Decision::Wait);
    };
    // The others wait for the question that is asked when the first has given up.
    request(&mut world, None, 20);
    let others = [Some(UNRECORDED), None, Some(UNRECORDED), Some(RECORDED), Some(RECORDED), Some(UNRECORDED)];
    others.into_iter().for_each(|traceparent| request(&mut world, traceparent, 200));
    world.run(40);
    let asked: Vec<_> = world.asked.iter().map(|(_, request)| flags(&request.traces)).collect();
    assert_eq!(asked, [Vec::new(), [1, 0, 0, 1].to_vec()]);
    assert_eq!(asked[1].len(), MAX_TRACES);
}

#[test]
fn a_window_that_is_asked_about_after_a_log_says_it_too() {
    let mut world = World::connected(2, 1);
    world.traceparent = Some(RECORDED);
    let (exact, window) = (key("exact", MINUTE), key("window", HOUR));
    assert!(allowed(&world.decide_exact(&[check(&window, 4, 1)], &[log(&exact, 9)]).1));
    let [(_, request)] = world.exact_store.exact_requests.as_slice() else {
        panic!("one question about the log")
    };
    let [(_, consult)] = world.asked.as_slice() else { panic!("one about the cold window") };
    assert_eq!((request.trace.as_ref(), consult.traces.len()), (consult.traces.first(), 1));
}
