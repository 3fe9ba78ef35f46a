//! Tests that the aggregator's log lines about a request contain its `x-request-id`, whichever API received it.

use crate::support::http::{Client, JSON};
use crate::support::rls::{request, send};
use crate::support::server::{Peer, hello_frame};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStderr, Command, Stdio};
use tokio::net::TcpStream;
use tonic::Request;
use tonic::transport::{Channel, Endpoint};
use weir_core::model::wire::{Charge, ExactRequest, FilterFrame, LedgerLimit, Trace};

/// A program that ends with the test, and its log. Each kind of warning is logged at most once in five seconds.
struct Aggregator {
    process: Child,
    log: Lines<BufReader<ChildStderr>>,
    grpc: String,
    http: String,
}

impl Aggregator {
    fn start() -> Aggregator {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir-aggregator"));
        let variables = std::env::vars_os().filter(|(name, _)| !name.to_string_lossy().starts_with("WEIR_"));
        command.args(["serve", "--region", "here", "--log", "warn,weir_aggregator=info"]);
        command.args(["--log-format", "json", "--grpc-listen", "127.0.0.1:0"]);
        command.args(["--admin-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]);
        command.env_clear().envs(variables).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let log = BufReader::new(process.stderr.take().unwrap()).lines();
        let mut aggregator = Aggregator { process, log, grpc: String::new(), http: String::new() };
        let logged = aggregator.line("weir-aggregator serves");
        let address = |name: &str| logged["fields"][name].as_str().unwrap().to_owned();
        (aggregator.grpc, aggregator.http) = (address("grpc"), address("http"));
        aggregator
    }

    /// The next log line about this.
    fn line(&mut self, about: &str) -> Value {
        let line = self.log.find_map(|line| line.ok().filter(|line| line.contains(about)));
        serde_json::from_str(&line.unwrap_or_else(|| panic!("it ends without {about:?}"))).unwrap()
    }

    /// The request id in the next log line about this.
    fn blames(&mut self, about: &str) -> Value {
        let line = self.line(about);
        println!("{line}");
        line["span"]["request_id"].clone()
    }

    async fn grpc(&self) -> Channel {
        Endpoint::from_shared(format!("http://{}", self.grpc)).unwrap().connect().await.unwrap()
    }
}

impl Drop for Aggregator {
    fn drop(&mut self) {
        // Fails only if it has already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The warning of a ledger without a database.
const UNRULED: &str = "a ledger could not decide";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_filters() {
    let mut aggregator = Aggregator::start();
    let peer = Peer::open(aggregator.grpc().await).await;
    peer.send(hello_frame(1, false)).await;
    let ledger = LedgerLimit { zone: 1, bucket: b"alice".to_vec() };
    let charges = vec![Charge { ledger: Some(ledger), log: None, cost: 1 }];
    let trace = Some(Trace { request_id: "by-a-filter".into(), ..Trace::default() });
    let exact_requests = vec![ExactRequest { id: 1, charges, timeout_ms: 5_000, trace }];
    peer.send(FilterFrame { exact_requests, ..FilterFrame::default() }).await;
    assert_eq!(aggregator.blames(UNRULED), "by-a-filter");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_applications() {
    for (headers, expected) in [
        (&[JSON, ("x-request-id", "by-http")][..], json!("by-http")),
        (&[JSON], Value::Null),
        // Not a valid request id, so that clients cannot inject lines into the log.
        (&[JSON, ("x-request-id", "two words")], Value::Null),
        (&[JSON, ("x-request-id", "one"), ("x-request-id", "other")], Value::Null),
    ] {
        let mut aggregator = Aggregator::start();
        let mut client = Client::over(TcpStream::connect(&aggregator.http).await.unwrap()).await;
        let body = json!({"identifier": "alice", "algorithm": "ledger", "zone": 1}).to_string();
        let answer = client.send("POST", "/v1/check", headers, body.as_bytes()).await;
        assert_eq!((answer.status, &answer.body["decided"]), (200, &json!(false)), "{answer:?}");
        assert_eq!(aggregator.blames(UNRULED), expected, "{headers:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_the_rate_limit_service() {
    let mut aggregator = Aggregator::start();
    let channel = aggregator.grpc().await;
    let mut unknown = Request::new(request(vec![crate::support::rls::descriptor(&[("user", "alice")])]));
    unknown.metadata_mut().insert("x-request-id", "unknown".parse().unwrap());
    send(&channel, unknown).await.unwrap();
    assert_eq!(aggregator.blames("domain that is not configured"), "unknown");
    let mut refused = Request::new(request(Vec::new()));
    refused.metadata_mut().insert("x-request-id", "refused".parse().unwrap());
    send(&channel, refused).await.unwrap_err();
    assert_eq!(aggregator.blames("refused a call of the rate-limit service"), "refused");
}
