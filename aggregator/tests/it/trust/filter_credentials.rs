//! Tests of filters' credentials: which streams are admitted, what a stream may count and receives, and the end of a
//! stream when its credential is revoked.

use crate::support::database::ledger::set_zone;
use crate::support::http::write;
use crate::support::server::{Peer, Weir, hello, hello_frame, key, settings, start_with, until};
use serde_json::json;
use std::path::{Path, PathBuf};
use tonic::Code;
use weir_aggregator::api::ApiSettings;
use weir_aggregator::auth::{Entry, Listed, NewToken};
use weir_aggregator::database::{Database, DatabaseOptions};
use weir_aggregator::server::Settings;
use weir_aggregator::telemetry::clock::Clock;
use weir_core::model::key::{Key, KeyParts};
use weir_core::model::schedule::Schedule;
use weir_core::model::wire::{
    Ban, Charge, ControlsKnown, Count, Counters, ExactRequest, FilterFrame, Hello, LedgerLimit, LogLimit,
    Ping, Query, Refund, Report,
};

/// A filter's token for these workspaces, and for no zone.
fn filter(name: &str, workspaces: &[&str]) -> NewToken {
    filter_with_zones(name, workspaces, &[])
}

fn filter_with_zones(name: &str, workspaces: &[&str], zones: &[u32]) -> NewToken {
    let workspaces = Some(Listed::These(workspaces.iter().map(ToString::to_string).collect()));
    let zones = Listed::These(zones.iter().copied().collect());
    NewToken::new(Entry { name: name.to_owned(), workspaces, zones, ..Entry::default() }).unwrap()
}

fn tokens_file(folder: &Path, tokens: &[&NewToken]) -> PathBuf {
    let entries: String = tokens.iter().map(|token| token.entry.as_str()).collect();
    write(folder, "tokens.yaml", if entries.is_empty() { "[]" } else { &entries })
}

async fn serve(tokens_file: PathBuf) -> Weir {
    let api = ApiSettings { tokens_file: Some(tokens_file), ..settings().api };
    start_with(Settings { api, ..settings() }).await
}

/// A welcomed stream.
async fn join(weir: &Weir, node: u8, token: &NewToken) -> Peer {
    let mut peer = Peer::try_open(weir.connect().await, Some(&token.token)).await.unwrap();
    peer.send(hello_frame(node, true)).await;
    peer.next_with(|frame| frame.welcome).await;
    peer
}

async fn error(weir: &Weir, token: Option<&str>) -> (String, Code) {
    let mut peer = Peer::try_open(weir.connect().await, token).await.unwrap();
    peer.refused().await
}

/// A key like [`crate::support::server::key`] in another workspace.
fn key_in(workspace: &str, identifier: &str) -> Vec<u8> {
    let common = Key::parse(&key(identifier)).unwrap();
    let parts = KeyParts { workspace: workspace.as_bytes(), ..common.parts() };
    Key::new(&parts).unwrap().as_bytes().to_vec()
}

#[tokio::test]
async fn a_stream_opens_with_a_filters_credential_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (gateways, next) = (filter("gateways", &["default"]), filter("gateways-next", &["default"]));
    let shop = NewToken::new(Entry::application("shop", "default")).unwrap();
    let weir = serve(tokens_file(folder.path(), &[&gateways, &next, &shop])).await;
    // Two credentials are valid at the same time, so that they can be rotated.
    for (node, token) in [(1, &gateways), (2, &next)] {
        join(&weir, node, token).await;
    }
    for token in [None, Some("weir_unknown"), Some(&*shop.token)] {
        let (reason, code) = error(&weir, token).await;
        assert_eq!(code, Code::Unauthenticated, "{token:?}");
        assert!(reason.contains("workspaces"), "{reason}");
    }
    let mut client = crate::support::http::Client::connect(&weir).await;
    let request = json!({"identifier": "a", "limit": 1, "duration": "1h"});
    let answer = client.post_as(&gateways.token, "/v1/check", &request).await;
    assert_eq!((answer.status, &answer.body["error"]["code"]), (403, &json!("credential_of_a_filter")));
}

/// Where filters need no credential, that of an application opens no stream either.
#[tokio::test]
async fn an_application_opens_no_stream_where_filters_need_no_credential() {
    let folder = tempfile::tempdir().unwrap();
    let shop = NewToken::new(Entry::application("shop", "default")).unwrap();
    let weir = serve(tokens_file(folder.path(), &[&shop])).await;
    let (reason, code) = error(&weir, Some(&shop.token)).await;
    assert_eq!(code, Code::Unauthenticated, "{reason}");
    let mut peer = Peer::try_open(weir.connect().await, None).await.unwrap();
    peer.send(hello_frame(1, true)).await;
    peer.next_with(|frame| frame.welcome).await;
}

#[tokio::test]
async fn a_stream_counts_in_its_own_workspaces_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (mine, theirs) = (filter("mine", &["default"]), filter("theirs", &["other"]));
    let weir = serve(tokens_file(folder.path(), &[&mine, &theirs])).await;
    let mut peer = join(&weir, 1, &mine).await;
    let foreign = key_in("other", "k");
    let count = |key: &[u8], own| Count { key: key.to_vec(), own, ..weir.count("k", 0) };
    let counts = vec![count(&foreign, 5), count(&key("k"), 3), count(&foreign, 7)];
    peer.send(FilterFrame { report: Some(Report { id: 1, counts }), ..FilterFrame::default() }).await;
    assert_eq!(peer.next_with(|frame| frame.ack).await.refused, [0, 2]);
    let foreign_query = Query { key: foreign.clone(), ..weir.query(1, "k", 0, 1, 100) };
    let answers = peer.answers(vec![foreign_query, weir.query(2, "k", 3, 1, 100)]).await;
    let granted: Vec<_> = answers.iter().map(|answer| (answer.id, answer.granted)).collect();
    assert_eq!(granted, [(1, false), (2, true)]);
    assert!(answers[0].current.is_none(), "{answers:?}");
    assert!(weir.server.services().explain(b"other", b"api", b"k").is_empty());
    assert_eq!(weir.metric("weir_aggregator_counts_refused_total{reason=\"key\"}"), 2.0);

    // A configuration of another workspace is an error that ends the stream with its reason.
    let counters = Some(Counters { rules: Vec::new(), workspace: "other".into() });
    peer.send(FilterFrame { counters, ..FilterFrame::default() }).await;
    let (reason, code) = peer.refused().await;
    assert_eq!(code, Code::PermissionDenied);
    assert!(reason.contains("\"mine\"") && reason.contains("\"other\""), "{reason}");
}

/// So that the filter pauses longer after each refusal, and its metrics show no stream.
#[tokio::test]
async fn a_configuration_of_another_workspace_is_refused_before_the_welcome() {
    let folder = tempfile::tempdir().unwrap();
    let mine = filter("mine", &["default", "mobile"]);
    let weir = serve(tokens_file(folder.path(), &[&mine])).await;
    let hello_of = |workspaces: &[&str]| {
        let workspaces = workspaces.iter().map(ToString::to_string).collect();
        let hello = Some(Hello { workspaces, ..hello(1, true) });
        FilterFrame { hello, ..FilterFrame::default() }
    };
    let open = async || Peer::try_open(weir.connect().await, Some(&mine.token)).await.unwrap();
    let mut peer = open().await;
    peer.send(hello_of(&["default", "other"])).await;
    let first = peer.next().await.unwrap().unwrap();
    assert_eq!(first.welcome, None);
    let reason = first.error.unwrap().reason;
    assert!(reason.contains("\"mine\"") && reason.contains("\"other\""), "{reason}");
    assert_eq!(peer.next().await.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(weir.metric("weir_aggregator_frames_refused_total{reason=\"workspace\"}"), 1.0);
    let mut peer = open().await;
    peer.send(hello_of(&["default", "mobile"])).await;
    peer.next_with(|frame| frame.welcome).await;
}

/// One charge of a log in this workspace, which holds a single use.
fn log_charge(workspace: &str) -> Charge {
    Charge { log: Some(LogLimit { key: key_in(workspace, "k"), most: 1 }), ledger: None, cost: 1 }
}

fn exact_request(id: u64, charge: Charge) -> ExactRequest {
    ExactRequest { id, charges: vec![charge], timeout_ms: 5_000, trace: None }
}

async fn verdict(peer: &mut Peer, id: u64, charge: Charge) -> u32 {
    let exact_requests = vec![exact_request(id, charge)];
    peer.send(FilterFrame { exact_requests, ..FilterFrame::default() }).await;
    peer.next_with(|frame| frame.results.into_iter().next()).await.results[0].verdict
}

const UNDECIDED: u32 = 0;
const ALLOWED: u32 = 2;
const DENIED: u32 = 3;

#[tokio::test]
async fn a_stream_charges_and_bans_in_its_own_workspaces_and_zones_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (none, zoned) = (filter("none", &["default"]), filter_with_zones("zoned", &["default"], &[1]));
    let weir = with_database(folder.path(), tokens_file(folder.path(), &[&none, &zoned])).await;
    let database = Database::open(&database_in(folder.path())).unwrap();
    set_zone(&database, 1, 9, 60).await;
    let (mut none, mut zoned) = (join(&weir, 1, &none).await, join(&weir, 2, &zoned).await);
    let ledger =
        || Charge { log: None, ledger: Some(LedgerLimit { zone: 1, bucket: b"b".to_vec() }), cost: 1 };
    assert_eq!(verdict(&mut none, 1, ledger()).await, UNDECIDED);
    assert_eq!(verdict(&mut zoned, 1, ledger()).await, ALLOWED);
    assert_eq!(verdict(&mut none, 2, log_charge("other")).await, UNDECIDED);
    assert_eq!(verdict(&mut none, 3, log_charge("default")).await, ALLOWED);
    let ban = |workspace: &str| Ban {
        workspace: workspace.into(),
        namespace: "api".into(),
        identifier: b"k".to_vec(),
        until_ms: weir.clock.now().0 + 60_000,
        level: 1,
        rule: "r".into(),
        since_ms: 0,
    };
    none.send(FilterFrame { bans: vec![ban("other"), ban("default")], ..FilterFrame::default() }).await;
    let banned = || {
        let book = weir.server.services().control.book();
        book.entries().map(|entry| entry.control.target.workspace.clone()).collect::<Vec<_>>()
    };
    until("the ban of its own workspace is stored", || !banned().is_empty()).await;
    assert_eq!(banned(), ["default"]);
}

/// A filter whose credential lost a workspace cannot refund there what it was charged before.
#[tokio::test]
async fn a_stream_refunds_in_its_own_workspaces_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (shrinks, keeps) = (filter("a", &["default", "other"]), filter("b", &["default", "other"]));
    let file = tokens_file(folder.path(), &[&shrinks, &keeps]);
    let weir = serve(file.clone()).await;
    let (mut old, mut wide) = (join(&weir, 1, &shrinks).await, join(&weir, 2, &keeps).await);
    for (id, workspace) in [(1, "other"), (2, "default")] {
        assert_eq!(verdict(&mut old, id, log_charge(workspace)).await, ALLOWED);
    }
    let narrower = shrinks.entry.replace("\n  - other", "");
    assert_ne!(narrower, shrinks.entry);
    std::fs::write(&file, format!("{narrower}{}", keeps.entry)).unwrap();
    old.refused().await;
    let narrow = join(&weir, 1, &shrinks).await;
    let refund = |(id, workspace)| Refund {
        request: Some(exact_request(id, log_charge(workspace))),
        results: Vec::new(),
    };
    let refunds = [(1, "other"), (2, "default")].map(refund).into();
    narrow.send(FilterFrame { refunds, ..FilterFrame::default() }).await;
    until("its own use is refunded", || {
        weir.metric("weir_aggregator_exact_refunds_total{result=\"done\"}") == 1.0
    })
    .await;
    assert_eq!(verdict(&mut wide, 3, log_charge("default")).await, ALLOWED);
    assert_eq!(verdict(&mut wide, 4, log_charge("other")).await, DENIED);
}

#[tokio::test]
async fn a_stream_is_sent_nothing_of_other_workspaces() {
    let folder = tempfile::tempdir().unwrap();
    let (mine, theirs) = (filter("mine", &["default"]), filter("theirs", &["other"]));
    let both = filter("both", &["default", "other"]);
    let weir = serve(tokens_file(folder.path(), &[&mine, &theirs, &both])).await;
    let (mut narrow, mut wide) = (join(&weir, 1, &mine).await, join(&weir, 2, &both).await);
    let mut writer = join(&weir, 3, &both).await;
    let counts =
        ["other", "default"].map(|workspace| Count { key: key_in(workspace, "k"), ..weir.count("k", 900) });
    let report = Report { id: 1, counts: counts.into() };
    writer.send(FilterFrame { report: Some(report), ..FilterFrame::default() }).await;
    writer.next_with(|frame| frame.ack).await;
    let foreign = key_in("other", "k");
    wide.next_with(|frame| frame.push?.snapshots.into_iter().find(|snapshot| snapshot.key == foreign)).await;
    let mut seen = Vec::new();
    // Both pushes are of the same time; the snapshot of the own workspace may arrive in a later push.
    while !seen.contains(&key("k")) {
        let push = narrow.next_with(|frame| frame.push).await;
        seen.extend(push.snapshots.into_iter().map(|snapshot| snapshot.key));
    }
    narrow.send(FilterFrame { ping: Some(Ping { sent_ms: 1 }), ..FilterFrame::default() }).await;
    loop {
        let frame = narrow.next().await.unwrap().unwrap();
        seen.extend(frame.push.into_iter().flat_map(|push| push.snapshots).map(|snapshot| snapshot.key));
        if frame.pong.is_some() {
            break;
        }
    }
    assert!(!seen.contains(&foreign), "{seen:?}");
}

#[tokio::test]
async fn live_control_is_sent_to_filters_of_its_workspace() {
    let folder = tempfile::tempdir().unwrap();
    let (mine, both) = (filter("mine", &["default"]), filter("both", &["default", "other"]));
    let operators = ["default", "other"].map(|workspace| {
        NewToken::new(Entry { control: true, ..Entry::application(workspace, workspace) }).unwrap()
    });
    let file = tokens_file(folder.path(), &[&mine, &both, &operators[0], &operators[1]]);
    let weir = with_database(folder.path(), file).await;
    let mut client = crate::support::http::Client::connect(&weir).await;
    let limit = json!({"namespace": "n", "identifier": "a", "limit": 5}).to_string();
    // The control of this filter's workspace is the second, so the filter has both once it has the second.
    for operator in operators.iter().rev() {
        let bearer = format!("Bearer {}", operator.token);
        let headers = [("content-type", "application/json"), ("authorization", &*bearer)];
        let answer = client.send("PUT", "/v1/overrides", &headers, limit.as_bytes()).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        crate::support::http::until_read_back(&weir, &answer.body).await;
    }
    for (node, token, expected) in [(1, &mine, vec!["default"]), (2, &both, vec!["default", "other"])] {
        let mut peer = join(&weir, node, token).await;
        let revision = Some(ControlsKnown::default());
        peer.send(FilterFrame { controls_known: revision, ..FilterFrame::default() }).await;
        let mut workspaces = Vec::new();
        loop {
            let controls = peer.next_with(|frame| frame.controls).await;
            workspaces.extend(controls.entries.into_iter().map(|control| control.workspace));
            if controls.complete_through > 0 {
                break;
            }
        }
        workspaces.sort_unstable();
        assert_eq!(workspaces, expected);
    }
}

fn database_in(folder: &Path) -> DatabaseOptions {
    let url = format!("sqlite://{}", folder.join("weir.db").display());
    DatabaseOptions { url, read_url: None, region: "test-region".into() }
}

async fn with_database(folder: &Path, tokens_file: PathBuf) -> Weir {
    let database = Some(database_in(folder));
    let api = ApiSettings { tokens_file: Some(tokens_file), ..settings().api };
    start_with(Settings { database, migrate: true, api, schedule: Schedule::for_tests(), ..settings() }).await
}

#[tokio::test]
async fn a_stream_ends_with_its_credential() {
    let folder = tempfile::tempdir().unwrap();
    let (old, changed, kept) =
        (filter("old", &["default"]), filter("changed", &["default"]), filter("kept", &["default"]));
    let file = tokens_file(folder.path(), &[&old, &changed, &kept]);
    let weir = serve(file.clone()).await;
    let mut streams = Vec::new();
    for (node, token) in [(1, &old), (2, &changed), (3, &kept)] {
        streams.push(join(&weir, node, token).await);
    }
    let wider = changed.entry.replace("- default", "- default\n  - other");
    assert_ne!(wider, changed.entry);
    std::fs::write(&file, format!("{wider}{}", kept.entry)).unwrap();
    for stream in &mut streams[..2] {
        let (reason, code) = stream.refused().await;
        assert_eq!(code, Code::Unauthenticated, "{reason}");
    }
    streams[2].send(FilterFrame { ping: Some(Ping { sent_ms: 1 }), ..FilterFrame::default() }).await;
    streams[2].next_with(|frame| frame.pong).await;
    assert_eq!(error(&weir, Some(&old.token)).await.1, Code::Unauthenticated);
    join(&weir, 2, &changed).await;

    // If the file no longer names a filter, streams still need a credential.
    std::fs::write(&file, "[]").unwrap();
    assert_eq!(streams[2].refused().await.1, Code::Unauthenticated);
    until("the file is read", || {
        weir.metric("weir_aggregator_files_read_total{files=\"tokens\",result=\"ok\"}") >= 2.0
    })
    .await;
    assert_eq!(error(&weir, None).await.1, Code::Unauthenticated);
}
