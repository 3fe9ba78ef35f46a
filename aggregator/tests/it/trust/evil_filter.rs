//! Tests of the damage that a malicious filter with a valid token can do to other filters of its region.

use crate::support::server::{Peer, Weir, hello, hello_frame, settings, start, start_with, until};
use serde_json::json;
use tempfile::TempDir;
use weir_aggregator::database::DatabaseOptions;
use weir_aggregator::region::stream_error::node_of;
use weir_aggregator::server::Settings;
use weir_aggregator::telemetry::clock::Clock;
use weir_core::model::key::NodeId;
use weir_core::model::schedule::Schedule;
use weir_core::model::wire::{Ban, ControlsKnown, Count, Counters, FilterFrame, Hello, Ping, Report};
use weir_core::region::{MOST_A_SECOND, RegionLimits};

/// What a reader of the admin listener, of Redis or of a log can read about the filter that sends `secret`.
fn public(secret: u8) -> Vec<u8> {
    node_of(NodeId([secret; 16])).0.to_vec()
}

async fn pong(peer: &mut Peer) -> u32 {
    peer.send(FilterFrame { ping: Some(Ping { sent_ms: 1 }), ..FilterFrame::default() }).await;
    peer.next_with(|frame| frame.pong).await.live_nodes
}

#[tokio::test]
async fn it_cannot_take_the_place_of_a_node_whose_public_id_it_has() {
    let weir = start(None).await;
    let mut victim = weir.join(1, true).await;
    victim.send(weir.report(1, "k", 3)).await;
    victim.next_with(|frame| frame.ack).await;
    let mut attacker = Peer::open(weir.connect().await).await;
    let taken = Hello { node: public(1), ..hello(1, true) };
    attacker.send(FilterFrame { hello: Some(taken), ..FilterFrame::default() }).await;
    attacker.next_with(|frame| frame.welcome).await;
    attacker.send(weir.report(1, "k", 500)).await;
    attacker.next_with(|frame| frame.ack).await;
    // The victim still receives its own pushes, and its count is what it reported.
    let snapshot = victim.pushed("k", |snapshot| snapshot.region_others == 500).await;
    assert_eq!(snapshot.own, 3);
    let cells = weir.server.services().explain(b"default", b"api", b"k");
    let owners: Vec<_> = cells[0].cells[0].components.iter().map(|part| (part.node, part.own)).collect();
    let mut expected = vec![(node_of(NodeId([1; 16])), 3), (node_of(node_of(NodeId([1; 16]))), 500)];
    expected.sort_unstable();
    assert_eq!(owners, expected);
}

#[tokio::test]
async fn it_counts_as_no_node_before_it_reports_and_as_64_at_the_most() {
    let weir = start(None).await;
    let mut honest = weir.join(1, false).await;
    honest.send(weir.report(1, "k", 1)).await;
    honest.next_with(|frame| frame.ack).await;
    let channel = weir.connect().await;
    let mut invented = Vec::new();
    for node in 2..102 {
        let mut peer = Peer::open(channel.clone()).await;
        peer.send(hello_frame(node, false)).await;
        peer.next_with(|frame| frame.welcome).await;
        invented.push(peer);
    }
    assert_eq!(pong(&mut honest).await, 1);
    for peer in &mut invented {
        peer.send(weir.report(1, "k", 1)).await;
        peer.next_with(|frame| frame.ack).await;
    }
    assert_eq!(pong(&mut honest).await, 64, "all streams share one address");
    // Nodes that leave make room. The last one was not counted, because its address already had 63.
    invented.drain(..63);
    until("they have left", || weir.metric("weir_aggregator_streams") == 1.0 + invented.len() as f64).await;
    assert_eq!(pong(&mut honest).await, 1);
    let last = invented.last_mut().unwrap();
    last.send(FilterFrame { counters: Some(Counters::default()), ..FilterFrame::default() }).await;
    assert_eq!(pong(last).await, 2);
    assert_eq!(pong(&mut honest).await, 2);
}

#[tokio::test]
async fn it_leaves_places_to_nodes_of_other_addresses_and_to_the_embedded_limiter() {
    let limits = RegionLimits { max_nodes: 8, ..RegionLimits::default() };
    let weir = start_with(Settings { limits, ..settings() }).await;
    let (channel, mut invented) = (weir.connect().await, Vec::new());
    let mut refused = Vec::new();
    for node in 1..=8 {
        let mut peer = Peer::open(channel.clone()).await;
        peer.send(hello_frame(node, false)).await;
        match peer.next().await.unwrap().unwrap().error {
            None => invented.push(peer),
            Some(error) => refused.push((node, error.reason)),
        }
    }
    assert_eq!(refused.iter().map(|(node, _)| *node).collect::<Vec<_>>(), [7, 8], "three quarters");
    assert!(refused[0].1.contains("too many nodes"), "{refused:?}");
    let mut again = Peer::open(channel).await;
    again.send(hello_frame(1, false)).await;
    again.next_with(|frame| frame.welcome).await;
    // The embedded limiter is a node too, and joins with the first check.
    let mut client = crate::support::http::Client::connect(&weir).await;
    let check = json!({"namespace": "api", "identifier": "k", "limit": 5, "duration": "1h"});
    assert_eq!(client.post("/v1/check", &check).await.body["allowed"], true);
    until("the embedded limiter reports", || {
        !weir.server.services().explain(b"default", b"api", b"k").is_empty()
    })
    .await;
    let mut other = Peer::open(weir.connect_from([127, 0, 0, 2]).await).await;
    other.send(hello_frame(9, false)).await;
    other.next_with(|frame| frame.welcome).await;
}

#[tokio::test]
async fn it_cannot_raise_a_component_beyond_what_a_node_can_pass() {
    let weir = start(None).await;
    let mut attacker = weir.join(1, false).await;
    let most = 3_660 * MOST_A_SECOND;
    let count = |own, region_others| Count { own, region_others, limit: u64::MAX, ..weir.count("k", 0) };
    let counts = vec![count(1 << 53, 0), count(most, 0), count(1, 1 << 53), count(0, 1 << 53), count(9, 0)];
    attacker.send(FilterFrame { report: Some(Report { id: 1, counts }), ..FilterFrame::default() }).await;
    assert_eq!(
        attacker.next_with(|frame| frame.ack).await.refused,
        [0, 1],
        "an implausible sum of the others is bounded, and the own count is taken"
    );
    let cells = weir.server.services().explain(b"default", b"api", b"k");
    let components: Vec<_> = cells[0].cells[0].components.iter().map(|component| component.own).collect();
    assert_eq!(components, [9]);
    assert_eq!(weir.metric("weir_aggregator_counts_refused_total{reason=\"component\"}"), 2.0);
}

#[tokio::test]
async fn it_cannot_have_the_database_begin_another_incarnation() {
    let (weir, _folder) = with_database().await;
    let edition = || weir.server.services().control.book().edition();
    until("live control has been read", || edition().is_some()).await;
    let before = edition().unwrap();
    let mut attacker = weir.join(1, true).await;
    let none = ControlsKnown::default();
    attacker.send(FilterFrame { controls_known: Some(none), ..FilterFrame::default() }).await;
    let received = attacker.next_with(|frame| frame.controls).await;
    assert_ne!(
        received.incarnation, before.incarnation,
        "the wire must contain only a digest of the incarnation"
    );
    // It claims a newer revision than the database has, as after a restore.
    for ahead in 1..5 {
        let newer = ControlsKnown {
            incarnation: received.incarnation,
            revision: before.revision + ahead,
            proof: received.proof,
            stamp: received.stamp,
        };
        attacker.send(FilterFrame { controls_known: Some(newer), ..FilterFrame::default() }).await;
        pong(&mut attacker).await;
    }
    // A change makes the aggregator read the database and compare it with the filters' revisions.
    crate::support::http::put(&weir, json!({"namespace": "n", "identifier": "a", "limit": 5})).await;
    until("the change is read", || edition().is_some_and(|now| now.revision > before.revision)).await;
    assert_eq!(edition().unwrap().incarnation, before.incarnation);
}

#[tokio::test]
async fn it_cannot_ban_in_all_namespaces() {
    let (weir, _folder) = with_database().await;
    let attacker = weir.join(1, true).await;
    let until_ms = weir.clock.now().0 + 60_000;
    let ban = |namespace: &str| Ban {
        workspace: "default".into(),
        namespace: namespace.into(),
        identifier: b"victim".to_vec(),
        until_ms,
        level: 1,
        rule: "r".into(),
        since_ms: 0,
    };
    attacker.send(FilterFrame { bans: vec![ban("*"), ban("api")], ..FilterFrame::default() }).await;
    let scopes = || {
        let book = weir.server.services().control.book();
        book.entries().map(|entry| entry.control.target.scope.clone()).collect::<Vec<_>>()
    };
    until("the ban of one namespace is stored", || !scopes().is_empty()).await;
    assert_eq!(scopes(), ["api"]);
}

/// With a database, which live control requires.
async fn with_database() -> (Weir, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/weir.db", folder.path().display());
    let database = DatabaseOptions { url, read_url: None, region: "test-region".into() };
    let schedule = Schedule::for_tests();
    let weir = start_with(Settings { database: Some(database), migrate: true, schedule, ..settings() }).await;
    (weir, folder)
}
