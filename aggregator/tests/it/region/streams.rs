//! Tests of filters' streams: acknowledgements, pushes, grants, one subscriber for each Envoy, and an orderly end.

use crate::support::server::{HOUR_MS, start};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use weir_core::model::key::NodeId;
use weir_core::model::wire::{Answer, Count, FilterFrame, Ping, Query, Report};

#[tokio::test]
async fn a_report_is_acknowledged_and_pushed_to_the_others() {
    let weir = start(None).await;
    let mut writer = weir.join(1, false).await;
    let mut reader = weir.join(2, true).await;
    assert!(reader.next_with(|frame| frame.push).await.complete, "an empty snapshot is complete");
    reader.send(weir.report(1, "alice", 1)).await;
    reader.next_with(|frame| frame.ack).await;

    let reported = Instant::now();
    writer.send(weir.report(7, "alice", 5)).await;
    let ack = writer.next_with(|frame| frame.ack).await;
    assert_eq!((ack.report_id, ack.refused, ack.baselines.len()), (7, vec![], 0));
    let snapshot = reader.pushed("alice", |snapshot| snapshot.region_others == 5).await;
    let late = reported.elapsed();
    assert_eq!((snapshot.own, snapshot.sequence), (1, weir.sequence()));
    println!("pushed {late:?} after the report");

    writer.send(weir.report(8, "alice", 3)).await;
    writer.next_with(|frame| frame.ack).await;
    writer.send(weir.report(9, "alice", 9)).await;
    reader.pushed("alice", |snapshot| snapshot.region_others == 9).await;
    weir.server.stop().await;
}

#[tokio::test]
async fn bad_counts_are_refused_and_good_ones_taken() {
    let weir = start(None).await;
    let mut peer = weir.join(1, false).await;
    let good = weir.count("alice", 5);
    let counts = vec![
        good.clone(),
        Count { key: vec![9, 9], ..good.clone() },
        Count { sequence: good.sequence + 3, ..good.clone() },
        Count { own: u64::MAX, ..good.clone() },
        Count { without_baseline: true, own: 2, ..good },
    ];
    let report = Report { id: 1, counts };
    peer.send(FilterFrame { report: Some(report), ..FilterFrame::default() }).await;
    let ack = peer.next_with(|frame| frame.ack).await;
    assert_eq!(ack.refused, [1, 2, 3], "the positions of the refused counts");
    assert_eq!(ack.baselines.iter().map(|baseline| baseline.own).collect::<Vec<_>>(), [5]);
    assert_eq!(weir.metric("weir_aggregator_counts_merged_total"), 2.0);
    for reason in ["key", "sequence", "component"] {
        let name = format!("weir_aggregator_counts_refused_total{{reason=\"{reason}\"}}");
        assert_eq!(weir.metric(&name), 1.0, "{name}");
    }
}

#[tokio::test]
async fn grants_of_a_region_never_exceed_the_limit() {
    let weir = start(None).await;
    let mut first = weir.join(1, false).await;
    let mut second = weir.join(2, false).await;
    let granted = first.answers(vec![weir.query(1, "bob", 0, 6, 10)]).await;
    assert!(granted[0].granted);
    let queries = vec![weir.query(3, "bob", 0, 5, 10), weir.query(4, "bob", 0, 4, 10)];
    let answers = second.answers(queries).await;
    assert_eq!(answers.iter().map(|a| (a.id, a.granted)).collect::<Vec<_>>(), [(3, false), (4, true)]);
    let snapshot = answers[1].current.clone().unwrap();
    assert_eq!((snapshot.own, snapshot.region_others), (4, 6));
}

#[tokio::test]
async fn a_query_that_cannot_be_judged_is_answered_without_a_snapshot() {
    let weir = start(None).await;
    let mut peer = weir.join(1, false).await;
    let wrong = Query { key: vec![1], ..weir.query(1, "bob", 0, 1, 10) };
    let answers = peer.answers(vec![wrong, weir.query(2, "bob", 0, 1, 10)]).await;
    let judged = |answer: &Answer| (answer.id, answer.granted, answer.current.is_some());
    assert_eq!(answers.iter().map(judged).collect::<Vec<_>>(), [(1, false, false), (2, true, true)]);
    assert_eq!(weir.metric("weir_aggregator_queries_total{result=\"unjudged\"}"), 1.0);
}

#[tokio::test]
async fn pings_are_echoed_with_the_clock_and_the_live_nodes() {
    let weir = start(None).await;
    // A difference of a day or more is a wrong clock that was set, and no step.
    weir.clock.0.fetch_add(-2 * 86_400_000, Relaxed);
    let mut first = weir.join(1, false).await;
    let _second_of_the_same = weir.join(1, false).await;
    let other = weir.join(2, false).await;
    let ping = || FilterFrame { ping: Some(Ping { sent_ms: 42 }), ..FilterFrame::default() };
    first.send(ping()).await;
    let pong = first.next_with(|frame| frame.pong).await;
    assert_eq!((pong.sent_ms, pong.live_nodes), (42, 2));
    let now = weir_aggregator::telemetry::clock::Clock::now(&*weir.clock).0;
    assert!(now.abs_diff(pong.unix_ms) < HOUR_MS, "{} is not near {now}", pong.unix_ms);
    drop(other);
    let has_left = || weir.metric("weir_aggregator_streams") == 2.0;
    crate::support::server::until("the other left", has_left).await;
    first.send(ping()).await;
    assert_eq!(first.next_with(|frame| frame.pong).await.live_nodes, 1);
}

#[tokio::test]
async fn the_newest_subscriber_of_an_envoy_takes_over_with_everything() {
    let weir = start(None).await;
    let writer = weir.join(1, false).await;
    let mut older = weir.join(2, true).await;
    older.send(weir.report(1, "carol", 1)).await;
    older.next_with(|frame| frame.ack).await;
    writer.send(weir.report(1, "carol", 5)).await;
    older.pushed("carol", |snapshot| snapshot.region_others == 5).await;

    let mut newer = weir.join(2, true).await;
    newer.pushed("carol", |snapshot| snapshot.region_others == 5).await;
    writer.send(weir.report(2, "carol", 6)).await;
    newer.pushed("carol", |snapshot| snapshot.region_others == 6).await;
    older.send(weir.report(2, "carol", 2)).await;
    let frame = older.next().await.unwrap().unwrap();
    assert!(frame.ack.is_some() && frame.push.is_none(), "{frame:?}");

    newer.send(crate::support::server::hello_frame(2, false)).await;
    older.send(crate::support::server::hello_frame(2, true)).await;
    older.pushed("carol", |snapshot| snapshot.region_others == 6).await;
}

#[tokio::test]
async fn cells_that_are_over_leave_memory() {
    let weir = start(None).await;
    let mut peer = weir.join(1, false).await;
    peer.send(weir.report(1, "dave", 1)).await;
    peer.next_with(|frame| frame.ack).await;
    assert_eq!(weir.server.services().stats().keys, 1);
    weir.clock.0.fetch_add(72 * 3_600_000, Relaxed);
    crate::support::server::until("the key is evicted", || weir.server.services().stats().keys == 0).await;
}

#[tokio::test]
async fn a_shutdown_takes_what_was_sent_and_ends_the_streams() {
    let weir = start(None).await;
    let mut peer = weir.join(1, true).await;
    for id in 1..=10 {
        peer.send(weir.report(id, "erin", id)).await;
    }
    let services = weir.server.services().clone();
    let began = Instant::now();
    let stopped = tokio::spawn(weir.server.stop());
    let mut acked = 0;
    let end = loop {
        match peer.next().await {
            Ok(Some(frame)) => acked = frame.ack.map_or(acked, |ack| ack.report_id),
            Ok(None) => panic!("ended without a status"),
            Err(status) => break status.code(),
        }
    };
    stopped.await.unwrap();
    assert_eq!((acked, end), (10, tonic::Code::Unavailable));
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    assert_eq!(services.explain(b"default", b"api", b"erin")[0].cells[0].regional_total(), 10);
}

#[tokio::test(flavor = "current_thread")]
async fn evicting_many_keys_does_not_delay_other_calls() {
    const MANY: usize = 20_000;
    let weir = start(None).await;
    let services = weir.server.services();
    let counts = (0..MANY).map(|n| weir.count(&format!("k{n}"), 1)).collect();
    let frame = FilterFrame { report: Some(Report { id: 1, counts }), ..FilterFrame::default() };
    services.take(NodeId([1; 16]), frame).unwrap();
    assert_eq!(services.stats().keys, MANY);
    weir.clock.0.fetch_add(72 * HOUR_MS.cast_signed(), Relaxed);
    let mut seen = Vec::new();
    let watched = async {
        while seen.last() != Some(&0) {
            seen.push(services.stats().keys);
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(crate::support::server::DEADLINE, watched).await.expect("all keys are evicted");
    assert!(seen.iter().any(|keys| (1..MANY).contains(keys)), "keys must be evicted in steps");
}
