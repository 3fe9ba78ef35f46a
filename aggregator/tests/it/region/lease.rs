//! The region lease of real processes: without a Redis, one aggregator of a region decides.

use crate::support::server::{HOUR_MS, Peer, hello_frame, key};
use serde_json::json;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tokio::task::JoinSet;
use tonic::transport::Endpoint;
use weir_aggregator::telemetry::clock::{Clock, SystemClock};
use weir_core::model::wire::{Charge, ExactRequest, FilterFrame, LogLimit, Query};
use weir_envoy::{Process, http, ports, wait};

/// More than the lease's time, that of several renewals, and that of a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const LIMIT: u64 = 1_000;
/// Calls that wait for the frozen process.
const CALLS: usize = 16;

/// A process that takes the lease of the region `eu` before it serves.
struct Holder {
    process: Process,
    grpc: SocketAddr,
    http: SocketAddr,
}

impl Holder {
    async fn start(name: &str, folder: &Path) -> Holder {
        let [grpc, admin, http] = [(); 3].map(|()| ports::local(ports::free().unwrap()));
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir-aggregator"));
        let variables = std::env::vars_os().filter(|(name, _)| !name.to_string_lossy().starts_with("WEIR_"));
        command.args(["serve", "--region", "eu", "--migrate"]);
        for (option, address) in [("--grpc-listen", grpc), ("--admin-listen", admin), ("--http-listen", http)]
        {
            command.args([option, &address.to_string()]);
        }
        command.env_clear().envs(variables);
        command.env("WEIR_DATABASE_URL", format!("sqlite://{}", folder.join("weir.db").display()));
        let mut process = Process::spawn(name, command, folder).unwrap();
        let ready = async || {
            http::send(admin, http::Request::get("/readyz")).await.is_ok_and(|answer| answer.status == 200)
        };
        process.wait_for("the aggregator serves", PATIENCE, ready).await.unwrap();
        Holder { process, grpc, http }
    }
}

fn check() -> http::Request {
    let check = json!({
        "namespace": "api", "identifier": "alice", "limit": LIMIT, "duration": "1h", "cost": 1, "timeout": "5s",
    });
    http::Request::post("/v1/check", check.to_string()).header("content-type", "application/json")
}

fn query(id: u64) -> Query {
    let (key, sequence) = (key("alice"), SystemClock.now().0 / HOUR_MS);
    Query { id, key, sequence, limit: LIMIT, own: 0, cost: 1, ..Query::default() }
}

/// The code of a decision that was not made.
const UNDECIDED: u32 = 0;

fn exact(id: u64) -> FilterFrame {
    let log = Some(LogLimit { key: key("alice"), most: LIMIT });
    let charges = vec![Charge { log, ledger: None, cost: 1 }];
    let request = ExactRequest { id, charges, timeout_ms: 5_000, trace: None };
    FilterFrame { exact_requests: vec![request], ..FilterFrame::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_holder_of_the_lease_decides_nothing_once_it_runs_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = Holder::start("first", folder.path()).await;
    let passed = http::send(first.http, check()).await.unwrap().json().unwrap();
    assert_eq!((&passed["allowed"], &passed["decided"]), (&json!(true), &json!(true)), "{passed}");
    let channel = Endpoint::from_shared(format!("http://{}", first.grpc)).unwrap().connect().await.unwrap();
    let mut filter = Peer::try_open(channel, None).await.unwrap();
    filter.send(hello_frame(1, false)).await;
    filter.next_with(|frame| frame.welcome).await;
    assert!(filter.answers(vec![query(1)]).await[0].granted, "its queries are answered");
    filter.send(exact(1)).await;
    let ruled = filter.next_with(|frame| frame.results.into_iter().next()).await;
    assert_ne!(ruled.results[0].verdict, UNDECIDED, "{ruled:?}");
    let mut connections = Vec::new();
    for _ in 0..CALLS {
        connections.push(http::Connection::open(first.http).await.unwrap());
    }

    first.process.pause().await.unwrap();
    // It serves, so it holds the lease: that of the first one has expired.
    let second = Holder::start("second", folder.path()).await;
    filter.send(FilterFrame { queries: vec![query(2)], ..FilterFrame::default() }).await;
    filter.send(exact(2)).await;
    let mut calls: JoinSet<_> =
        connections.into_iter().map(|mut first| async move { first.send(check()).await }).collect();
    first.process.resume().unwrap();

    let mut undecided = 0;
    while let Some(call) = calls.join_next().await {
        // The process ends, and a call that it did not answer with it.
        let Ok(answer) = call.unwrap() else { continue };
        let answer = answer.json().unwrap();
        assert_eq!((&answer["allowed"], &answer["decided"]), (&json!(false), &json!(false)), "{answer}");
        undecided += 1;
    }
    assert!(undecided > 0, "it answered no call");
    while let Ok(Some(frame)) = filter.next().await {
        assert!(frame.answers.is_empty(), "a query was decided: {frame:?}");
        let mut ruled = frame.results.iter().flat_map(|response| &response.results);
        assert!(ruled.all(|result| result.verdict == UNDECIDED), "a log was charged: {frame:?}");
    }
    let ended = async || Ok(first.process.ended()?);
    let status = wait::until_some("the first one ends", PATIENCE, ended).await.unwrap();
    assert_eq!(status.code(), Some(1), "{}", first.process.tail());
    let passed = http::send(second.http, check()).await.unwrap().json().unwrap();
    assert_eq!((&passed["allowed"], &passed["decided"]), (&json!(true), &json!(true)), "{passed}");
}

/// The machine's clock, which times the lease in SQLite, is set back by an hour while the holder is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_holders_lease_ends_although_the_databases_clock_was_set_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = Holder::start("first", folder.path()).await;
    first.process.kill().unwrap();
    let url = format!("sqlite://{}", folder.path().join("weir.db").display());
    let mut connection = <sqlx::SqliteConnection as sqlx::Connection>::connect(&url).await.unwrap();
    let set_back = sqlx::raw_sql("UPDATE weir_region_leases SET expires_at = expires_at + 3600000");
    assert_eq!(set_back.execute(&mut connection).await.unwrap().rows_affected(), 1);
    drop(connection);
    let second = Holder::start("second", folder.path()).await;
    let passed = http::send(second.http, check()).await.unwrap().json().unwrap();
    assert_eq!((&passed["allowed"], &passed["decided"]), (&json!(true), &json!(true)), "{passed}");
}
