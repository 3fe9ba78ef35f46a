//! Streams and nodes, the processing of frames, and the time of acknowledgements.

use super::*;
use crate::model::time::UnixMs;
use crate::model::wire;
use crate::replication::testing::{NODE, NOW, node, query, report, state};
use std::vec;

fn entered(state: &mut RegionState, by: NodeId) -> StreamId {
    state.enter(by, NOW).unwrap().id
}

#[test]
fn an_envoy_is_there_from_its_first_stream_to_its_last() {
    let mut state = state();
    let first = state.enter(NODE, NOW).unwrap();
    assert!(first.is_first);
    state.count_node(NODE, 1);
    assert!(state.take_events().has(Event::Heartbeat));
    state.count_node(NODE, 1);
    let second = state.enter(NODE, NOW).unwrap();
    assert!(!second.is_first && state.take_events().is_empty());
    assert!(!state.leave(NODE, first.id));
    assert_eq!(state.region.nodes.alive(NOW.mono), 1);
    assert!(state.leave(NODE, second.id) && state.take_events().has(Event::Heartbeat));
    assert_eq!(state.region.nodes.alive(NOW.mono), 0);
}

#[test]
fn a_step_of_the_clock_ends_no_node() {
    let mut state = state();
    for node in [NODE, node(9)] {
        entered(&mut state, node);
        state.count_node(node, 1);
    }
    for step in [3_600_000u64, u64::MAX] {
        let unix = UnixMs(NOW.unix.0.saturating_add(step));
        let now = Now { unix, mono: NOW.mono.after(50) };
        let ping = FilterFrame { ping: Some(wire::Ping { sent_ms: 1 }), ..FilterFrame::default() };
        let pong = state.take(NODE, ping, now).unwrap().reply.pong.unwrap();
        assert_eq!(pong.live_nodes, 2, "the other node was alive 50 ms ago");
    }
}

#[test]
fn a_node_counts_once_it_reports_and_each_peer_has_a_limit() {
    let mut state = state();
    let pong = |state: &mut RegionState, of: NodeId| {
        let ping =
            FilterFrame { ping: Some(crate::model::wire::Ping { sent_ms: 1 }), ..FilterFrame::default() };
        state.take(of, ping, NOW).unwrap().reply.pong.unwrap().live_nodes
    };
    let invented = |number: u8| NodeId([7, number, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    entered(&mut state, NODE);
    state.count_node(NODE, 1);
    for number in 0..200 {
        entered(&mut state, invented(number));
    }
    assert_eq!(pong(&mut state, NODE), 1, "nodes that have reported nothing do not count");
    assert_eq!(pong(&mut state, invented(0)), 2, "the node that pings is counted");
    for number in 0..200 {
        state.count_node(invented(number), 2);
    }
    assert_eq!(pong(&mut state, NODE), 65, "64 nodes of one peer count");
    entered(&mut state, node(9));
    state.count_node(node(9), 3);
    assert_eq!(pong(&mut state, NODE), 66);
    state.region.gone(invented(0));
    state.count_node(invented(199), 2);
    assert_eq!(pong(&mut state, NODE), 66, "another node has taken its place");
}

#[test]
fn only_the_last_stream_to_subscribe_is_sent_pushes() {
    let mut state = state();
    let (a, b) = (entered(&mut state, NODE), entered(&mut state, NODE));
    assert_eq!(state.subscribe(NODE, a), None);
    assert_eq!(state.subscribe(NODE, b), Some(a));
    assert_eq!(state.to_be_sent().collect::<Vec<_>>(), vec![b]);
    assert_eq!(state.next_push(NODE, a, NOW), Turn::Superseded);
    assert!(!state.unsubscribe(NODE, a), "another stream is the subscriber");
    let snapshot = Push { snapshots: vec![], complete: true };
    assert_eq!(state.next_push(NODE, b, NOW), Turn::Push(snapshot));
    assert_eq!(state.next_push(NODE, b, NOW), Turn::Idle);
    assert!(state.unsubscribe(NODE, b));
    assert_eq!(state.to_be_sent().count(), 0);
}

#[test]
fn without_a_store_a_report_is_acknowledged_at_once_else_at_the_end_of_a_round() {
    let mut memory = state();
    let taken = memory.take(NODE, report(7, 3), NOW).unwrap();
    assert_eq!((taken.reply.ack.unwrap().report_id, taken.ack), (7, None));
    assert!(memory.take_events().has(Event::Push));

    let mut backed = state().with_store(crate::model::schedule::Schedule::default().store_breaker);
    let taken = backed.take(NODE, report(7, 3), NOW).unwrap();
    assert_eq!(taken.reply.ack, None);
    assert!(backed.take_events().has(Event::Replay));
    let late = taken.ack.unwrap();
    let round = backed.begin_replay();
    assert_eq!((late.after, round.number, round.waiting), (1, 1, 1.max(RESENT_A_ROUND)));
    assert_eq!(backed.replayed(), 0);
    backed.end_replay(round);
    assert_eq!(backed.replayed(), late.after);
    assert_eq!(backed.acknowledge(NODE, late).report_id, 7);
    assert_eq!(backed.take(NODE, report(8, 4), NOW).unwrap().ack.unwrap().after, 2);
}

#[test]
fn queries_go_to_a_usable_store_and_else_to_memory() {
    let mut state = state().with_store(crate::model::schedule::Schedule::default().store_breaker);
    let frame = |id| FilterFrame { queries: vec![query(id, 5, 10)], ..FilterFrame::default() };
    let taken = state.take(node(1), frame(1), NOW).unwrap();
    assert_eq!((taken.reply.answers.len(), taken.queries.len()), (1, 0));
    assert!(taken.reply.answers[0].granted);
    state.store().unwrap().found();
    let taken = state.take(node(2), frame(2), NOW).unwrap();
    assert_eq!((taken.reply.answers.len(), taken.queries.len()), (0, 1));
    let answers = state.answer_from_memory(node(2), &[query(2, 6, 10), Query::default()], NOW);
    assert!(!answers[0].granted && answers[1].current.is_none());
    let figures = &state.figures;
    assert_eq!((figures.granted, figures.denied, figures.unjudged), (1, 1, 1));
}

#[test]
fn refused_counts_are_counted_by_reason() {
    let mut state = state();
    let mut frame = report(1, 3);
    frame.report.as_mut().unwrap().counts[0].sequence += 9;
    let ack = state.take(NODE, frame, NOW).unwrap().reply.ack.unwrap();
    assert_eq!(ack.refused, vec![0]);
    assert_eq!((state.figures.counts_refused.sequence, state.figures.counts_merged), (1, 0));
}
