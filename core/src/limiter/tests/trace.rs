//! The trace contexts in queries: those of the requests that wait, bounded in number, and without effect on decisions.

use super::harness::*;
use crate::limiter::{Check, Decision, Outcome, Policy};
use crate::model::exact::Algorithm;
use crate::model::key::Key;
use crate::model::trace::{MAX_TRACES, Trace};
use crate::model::wire;
use std::vec::Vec;

const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const UNSAMPLED: &str = "00-1bf7651916cd43dd8448eb211c80319c-c7ad6b7169203331-00";

fn log(key: &Key, most: u64) -> Check<'_> {
    let policy = Policy { timeout_ms: 100, ..Policy::default() };
    Check {
        rule: 1,
        algorithm: Algorithm::Log,
        key: key.as_bytes(),
        cell_ms: 0,
        limit: most,
        configured: None,
        cost: 1,
        policy,
    }
}

/// The flags of each trace.
fn flags(traces: &[wire::Trace]) -> Vec<u8> {
    traces.iter().map(|trace| Trace::of_wire(trace).unwrap().parent.unwrap().flags).collect()
}

/// Sends requests on cold, warm and exact keys. Returns their outcomes, and the world with what was sent.
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
fn decisions_and_queries_are_the_same_with_and_without_traces() {
    let ((with, traced), (without, untraced)) = (run(Some(SAMPLED)), run(None));
    assert_eq!(with, without);
    assert!(untraced.sent_queries.iter().all(|(_, request)| request.traces.is_empty()));
    assert!(untraced.exact_store.exact_requests.iter().all(|(_, request)| request.trace.is_none()));
    assert!(traced.sent_queries.iter().any(|(_, request)| flags(&request.traces) == [1]));
    assert!(traced.exact_store.exact_requests.iter().any(|(_, request)| request.trace.is_some()));
    let bare = |world: &World| -> Vec<_> {
        let each = world.sent_queries.iter().cloned();
        each.map(|(at, request)| (at, wire::Query { traces: Vec::new(), ..request })).collect()
    };
    assert_eq!(bare(&traced), bare(&untraced));
}

#[test]
fn a_query_of_many_requests_carries_a_few_traces_and_a_sampled_one_first() {
    let mut world = World::connected(2, 1);
    world.paused = true;
    let key = key("k", HOUR);
    let request = |world: &mut World, traceparent, timeout_ms| {
        let policy = Policy { timeout_ms, ..Policy::default() };
        world.traceparent = traceparent;
        let (_, outcome) = world.request(0, 0, &[Check { policy, ..check(&key, 100, 1) }]);
        assert_eq!(outcome.decision, Decision::Wait);
    };
    // The others wait for the query that is sent once the first request has timed out.
    request(&mut world, None, 20);
    let others = [Some(UNSAMPLED), None, Some(UNSAMPLED), Some(SAMPLED), Some(SAMPLED), Some(UNSAMPLED)];
    others.into_iter().for_each(|traceparent| request(&mut world, traceparent, 200));
    world.run(40);
    let sent: Vec<_> = world.sent_queries.iter().map(|(_, request)| flags(&request.traces)).collect();
    assert_eq!(sent, [Vec::new(), [1, 0, 0, 1].to_vec()]);
    assert_eq!(sent[1].len(), MAX_TRACES);
}

#[test]
fn the_query_for_a_window_after_an_exact_request_carries_the_trace() {
    let mut world = World::connected(2, 1);
    world.traceparent = Some(SAMPLED);
    let (exact, window) = (key("exact", MINUTE), key("window", HOUR));
    assert!(allowed(&world.decide_exact(&[check(&window, 4, 1)], &[log(&exact, 9)]).1));
    let [(_, request)] = world.exact_store.exact_requests.as_slice() else {
        panic!("one exact request for the log")
    };
    let [(_, query)] = world.sent_queries.as_slice() else { panic!("one query for the cold window") };
    assert_eq!((request.trace.as_ref(), query.traces.len()), (query.traces.first(), 1));
}
