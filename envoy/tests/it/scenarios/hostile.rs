//! Hostile input: invalid configurations, peers that are not aggregators, headers that are not text, clocks that jump.
//! Envoy never crashes; it reports a clear error, or the limit holds.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use weir_envoy::http::Request;
use weir_envoy::load::{self, LoadPlan, LoadReport};
use weir_envoy::{
    Aggregator, AggregatorOptions, Clock, Envoy, EnvoyOptions, binaries, bootstrap, ports, wait,
};

use super::common::{
    KEY, Region, SOON, assert_prompt, config, connected, filter, get_as, rule, sound, stats_of, total_in,
    unix_ms, vm_reloads, with,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_configurations_are_refused_with_reasons() {
    let cases = [
        (config(&[]), "rules"),
        (config(&[with(rule("r", 1), json!({ "window": "1y" }))]), "rules[0].window"),
        (config(&[rule("r", 1), rule("r", 2)]), "rules[1].name"),
        (
            config(&[with(rule("r", 1), json!({ "match": { "path": { "regex": "(" } } }))]),
            "rules[0].match.path.regex",
        ),
        (with(config(&[rule("r", 1)]), json!({ "rulez": [] })), "rulez"),
        (json!("no object"), "object"),
    ];
    for (config, expected) in cases {
        let options = || EnvoyOptions { filter: filter(&config), ..EnvoyOptions::default() };
        let Err(error) = Envoy::start(options()).await else { panic!("it started with {config}") };
        let text = format!("{error:#}");
        assert!(text.contains("weir: configuration: ") && text.contains(expected), "{expected}: {text}");
    }
}

/// A rule with a short timeout, for peers that never answer.
fn hasty(limit: u64) -> Value {
    with(rule("r", limit), json!({ "timeout": format!("{HASTY_MS}ms") }))
}

const HASTY_MS: u64 = 50;

/// What a peer does with each connection.
type Peer = fn(TcpStream, &mut JoinSet<()>);

/// A port on which a server that is not an aggregator listens.
struct Impostor {
    port: u16,
    serving: AbortHandle,
}

impl Impostor {
    async fn start(peer: Peer) -> Self {
        let listener = TcpListener::bind(ports::local(0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let serving = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((connection, _)) = listener.accept().await {
                peer(connection, &mut connections);
            }
        });
        Self { port, serving: serving.abort_handle() }
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// With such a peer, a worker decides alone: exactly `limit` requests pass, none fails, and none waits long.
async fn check_impostor(peer: Peer) {
    const LIMIT: u64 = 200;
    let impostor = Impostor::start(peer).await;
    let options = EnvoyOptions {
        filter: filter(&config(&[hasty(LIMIT)])),
        aggregator_ports: vec![impostor.port],
        concurrency: 2,
        ..EnvoyOptions::default()
    };
    let envoy = Envoy::start(options).await.unwrap();
    // Several streams may have one connection.
    let attempts = async || {
        let of = |what| format!("cluster.{}.upstream_{what}_total", bootstrap::AGGREGATOR_CLUSTER);
        envoy.stat(&of("cx")).await.unwrap().max(envoy.stat(&of("rq")).await.unwrap())
    };
    wait::until("three streams were tried", SOON, async || attempts().await >= 3).await.unwrap();
    let plan = LoadPlan::new(envoy.address(), 8, 3 * LIMIT, (KEY, "a")).rate(400.0);
    let report = load::run(plan).await.unwrap();
    println!("{report:?}, {} attempts", attempts().await);
    assert_eq!((report.count(200), report.count(429)), (LIMIT, 2 * LIMIT), "{report:?}");
    assert_prompt(&report, Duration::from_millis(HASTY_MS));
    assert_eq!(vm_reloads(&envoy).await, 0, "{}", envoy.log().unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_hangs_up() {
    check_impostor(|connection, _| drop(connection)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_sends_nothing() {
    check_impostor(|connection, connections| {
        connections.spawn(async move {
            let _open = connection;
            std::future::pending::<()>().await;
        });
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_without_http() {
    check_impostor(|mut connection, connections| {
        connections.spawn(async move {
            // The peer may have closed the connection.
            let _ = connection.write_all(&[0xff; 4_096]).await;
        });
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_streams_nonsense() {
    check_impostor(|connection, connections| {
        connections.spawn(async move {
            let service = service_fn(async |request| Ok::<_, Infallible>(nonsense(request)));
            let served = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            // Envoy resets a stream that it cannot read.
            let _ = served.serve_connection(TokioIo::new(connection), service).await;
        });
    })
    .await;
}

/// Envoy ends a stream at the head of a message that is too large, and does not collect the message first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_whose_message_never_ends() {
    check_impostor(|connection, connections| {
        connections.spawn(async move {
            let service = service_fn(async |_| Ok::<_, Infallible>(endless()));
            let served = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            // Envoy resets the stream.
            let _ = served.serve_connection(TokioIo::new(connection), service).await;
        });
    })
    .await;
    let most = EndlessBody::most_taken().load(Ordering::Relaxed);
    println!("Envoy took {most} bytes of one stream");
    assert!((1..64 << 20).contains(&most), "Envoy took {most} bytes of one stream");
}

/// One of two peers answers every ping but acknowledges nothing: all workers move to the other one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_acknowledges_nothing() {
    const LIMIT: u64 = 200;
    /// Streams that were opened to the peer that acknowledges nothing.
    static STREAMS: AtomicUsize = AtomicUsize::new(0);
    let unacknowledging = Impostor::start(|connection, connections| {
        connections.spawn(async move {
            let service = service_fn(async |request| {
                STREAMS.fetch_add(1, Ordering::Relaxed);
                Ok::<_, Infallible>(unacknowledging(request))
            });
            let served = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            // Envoy closes the connection after a while.
            let _ = served.serve_connection(TokioIo::new(connection), service).await;
        });
    })
    .await;
    let aggregator = Aggregator::start(AggregatorOptions::default()).await.unwrap();
    let options = EnvoyOptions {
        filter: filter(&config(&[hasty(LIMIT)])),
        aggregator_ports: vec![unacknowledging.port, aggregator.grpc_port()],
        concurrency: 4,
        ..EnvoyOptions::default()
    };
    // Each worker chooses a peer. If all choose the aggregator, the test starts another Envoy.
    let envoy = loop {
        let envoy = Envoy::start(options.clone()).await.unwrap();
        connected(&envoy).await;
        if STREAMS.load(Ordering::Relaxed) > 0 {
            break envoy;
        }
    };
    let report = of_one_client(&envoy, 50).await;
    assert_eq!(report.count(200), 50);
    assert_prompt(&report, Duration::from_millis(HASTY_MS));
    let given_up = "wasmcustom.weir_streams_unacknowledged_total";
    let mut others = 0;
    let gives_up = async || {
        // Sends requests until a worker connected to this peer has something to report.
        others += 1;
        envoy.send(get_as(&format!("other-{others}"))).await.unwrap();
        envoy.stat(given_up).await.unwrap() > 0
    };
    wait::until("the peer that acknowledges nothing is given up", SOON, gives_up).await.unwrap();
    assert!(envoy.log().unwrap().contains("acknowledges nothing"), "{}", envoy.log().unwrap());
    let reported = async || total_in(&aggregator, "r", "a").await == 50;
    if wait::until("the other one has all counts", SOON, reported).await.is_err() {
        panic!(
            "the other one counts {}: {:#?}",
            total_in(&aggregator, "r", "a").await,
            stats_of(&envoy, "wasmcustom.").await
        );
    }
    assert_eq!(vm_reloads(&envoy).await, 0);
}

/// A gRPC stream that sends a welcome and answers pings, and ignores all other frames.
fn unacknowledging(request: hyper::Request<Incoming>) -> hyper::Response<ChannelBody> {
    let (frames, sent) = mpsc::unbounded_channel();
    // Ends with the request.
    tokio::spawn(async move {
        let _ = frames.send(grpc(&field(1, &[&[8, 1][..], &field(2, b"region")].concat())));
        let (mut body, mut received) = (request.into_body(), Vec::new());
        while let Some(Ok(frame)) = body.frame().await {
            received.extend_from_slice(&frame.into_data().unwrap_or_default());
            while let Some(message) = next_message(&mut received) {
                // A frame with a ping contains nothing else: its field and length, then the time at which it was sent.
                if let [0x22, _, ping @ ..] = &message[..] {
                    let pong = [ping, &[16], &varint(unix_ms()), &[24, 2]].concat();
                    let _ = frames.send(grpc(&field(5, &pong)));
                }
            }
        }
    });
    let answer = hyper::Response::builder().header("content-type", "application/grpc");
    answer.body(ChannelBody(sent)).unwrap()
}

/// A number as a protobuf varint.
fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7f {
        bytes.push(0x80 | (number & 0x7f) as u8);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// Removes a complete gRPC message from the received bytes.
fn next_message(received: &mut Vec<u8>) -> Option<Vec<u8>> {
    let length = received.get(1..5)?.try_into().map(u32::from_be_bytes).ok()?;
    let end = 5 + usize::try_from(length).ok()?;
    (received.len() >= end).then(|| received.drain(..end).skip(5).collect())
}

/// A body whose parts arrive over a channel.
struct ChannelBody(mpsc::UnboundedReceiver<Bytes>);

impl hyper::body::Body for ChannelBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|part| part.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// A gRPC stream that sends a welcome and then a malformed or invalid frame, a different one on each stream.
fn nonsense(_: hyper::Request<Incoming>) -> hyper::Response<FramesBody> {
    static STREAMS: AtomicUsize = AtomicUsize::new(0);
    const HUGE: &[u8] = &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
    let welcome = field(1, &[&[8, 1][..], &field(2, b"region")].concat());
    let messages = [
        // Not protobuf.
        vec![0xff; 64],
        // A length beyond the end.
        vec![0x22, 0x7f, 1],
        // A welcome of another version.
        field(1, &[8, 99]),
        // An acknowledgement, a response and a pong for frames that were never sent, with the largest numbers.
        field(2, &[&[8], HUGE].concat()),
        field(3, &[&[8], HUGE, &[16, 1]].concat()),
        field(5, &[&[8], HUGE, &[16], HUGE, &[24, 0xff, 0xff, 0xff, 0xff, 15]].concat()),
        // A snapshot of an invalid key.
        field(4, &[&field(1, &field(1, b"no key"))[..], &[16, 1]].concat()),
        Vec::new(),
    ];
    let message = &messages[STREAMS.fetch_add(1, Ordering::Relaxed) % messages.len()];
    let frames = [&welcome, message, message].map(|message| grpc(message));
    let answer = hyper::Response::builder().header("content-type", "application/grpc");
    answer.body(FramesBody(frames.into())).unwrap()
}

/// A body that stays open after its last frame.
struct FramesBody(VecDeque<Bytes>);

impl hyper::body::Body for FramesBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.pop_front().map_or(Poll::Pending, |bytes| Poll::Ready(Some(Ok(Frame::data(bytes)))))
    }
}

/// A gRPC stream that sends a welcome and then a message of 256 MiB.
fn endless() -> hyper::Response<EndlessBody> {
    let welcome = grpc(&field(1, &[&[8, 1][..], &field(2, b"region")].concat()));
    let head = Bytes::from_static(&[0, 0x10, 0, 0, 0]);
    let answer = hyper::Response::builder().header("content-type", "application/grpc");
    answer.body(EndlessBody { first: [welcome, head].into(), taken: 0 }).unwrap()
}

/// A body whose first parts are followed by 256 MiB of zeros.
struct EndlessBody {
    first: VecDeque<Bytes>,
    taken: usize,
}

impl EndlessBody {
    /// The most bytes of such a body that a peer has taken.
    fn most_taken() -> &'static AtomicUsize {
        static MOST: AtomicUsize = AtomicUsize::new(0);
        &MOST
    }
}

impl hyper::body::Body for EndlessBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        const ZEROS: Bytes = Bytes::from_static(&[0; 65_536]);
        if self.first.is_empty() && self.taken > 256 << 20 {
            return Poll::Pending;
        }
        let part = self.first.pop_front().unwrap_or(ZEROS);
        self.taken += part.len();
        Self::most_taken().fetch_max(self.taken, Ordering::Relaxed);
        Poll::Ready(Some(Ok(Frame::data(part))))
    }
}

/// A message in gRPC framing: uncompressed, with its length.
fn grpc(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0][..], &length, message].concat().into()
}

/// A protobuf field with fewer than 128 bytes.
fn field(tag: u8, bytes: &[u8]) -> Vec<u8> {
    [&[tag << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn identifiers_that_are_huge_or_no_text() {
    let parts = json!({ "on_missing_identifier": "shared", "identifier": [
        { "header": KEY }, { "cookie": "c" }, { "query": "q" }, { "path_segment": 1 },
    ]});
    let region = Region::start(1, EnvoyOptions::default(), &config(&[with(rule("r", 1), parts)])).await;
    let huge = "x".repeat(50 * 1024);
    let requests = [
        get_as(&huge),
        get_as(&format!("{huge}y")),
        Request::get("/").header(KEY, [0xff, 0xfe, 0x80, b'|', b'\\']),
        Request::get("/").header(KEY, [0xff, 0xfe, 0x81, b'|', b'\\']),
        Request::get("/").header("cookie", format!("c={huge}")),
        Request::get("/").header("cookie", [b'c', b'=', 0xc3, 0x28]),
        Request::get("/").header("cookie", ";;;=;c;=c; c =;"),
        Request::get(&format!("/?q={}", "%ff%00%zz%".repeat(1_000))),
        Request::get(&format!("/{}", "%2e%2e/%5C/%".repeat(1_000))),
        Request::get("/a%00%ff%"),
        Request::get("/segment").header("x-fault", "none").header("x-weir-fault", "panic"),
    ];
    for (at, request) in requests.iter().enumerate() {
        for expected in [200, 429] {
            let answer = region.envoy().send(request.clone()).await.unwrap();
            assert_eq!(answer.status, expected, "request {at}: {answer:?}");
        }
    }
    for (second, expected) in [("b", 200), ("c", 429), ("", 429)] {
        let doubled = Request::get("/").header(KEY, "a").header(KEY, second);
        let answer = region.envoy().send(doubled).await.unwrap();
        assert_eq!(answer.status, expected, "requests with two lines share one budget");
    }
    let beyond = region.envoy().send(get_as(&"x".repeat(61 * 1024))).await.unwrap();
    assert_eq!(beyond.status, 431, "more than Envoy itself takes");
    region.is_sound().await;
}

/// Sends `requests` requests of one client in half a second.
async fn of_one_client(envoy: &Envoy, requests: u64) -> LoadReport {
    let plan = LoadPlan::new(envoy.address(), 4, requests, (KEY, "a")).rate(2.0 * requests as f64);
    let report = load::run(plan).await.unwrap();
    assert_eq!(report.count(200) + report.count(429), requests, "{report:?}");
    report
}

/// How many of these requests pass.
async fn passing(envoy: &Envoy, requests: u64) -> u64 {
    of_one_client(envoy, requests).await.count(200)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_whose_clocks_jump_follow_the_aggregators() {
    const LIMIT: u64 = 300;
    let config = with(config(&[rule("r", LIMIT)]), json!({ "test_faults": true }));
    let region = Region::start(1, EnvoyOptions { concurrency: 2, ..EnvoyOptions::default() }, &config).await;
    let plan = LoadPlan::of(vec![region.envoy().address()], 8, 2 * LIMIT, |number| {
        let shifts = ["-5000", "5000", "-7200000", "7200000", "-5400000000", "9223372036854775807"];
        let shift = shifts[usize::try_from(number / 10).unwrap() % shifts.len()];
        (0, get_as("a").header("x-weir-fault", format!("clock:{shift}")))
    });
    let report = load::run(plan.rate(400.0)).await.unwrap();
    println!("clocks jump: {report:?}");
    assert_eq!((report.count(200), report.count(429)), (LIMIT, LIMIT), "{report:?}");
    region.settles_at("r", "a", LIMIT).await;
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_envoy_whose_clock_is_wrong_follows_the_aggregators() {
    let clock = Clock::new().unwrap();
    clock.set(400 * 86_400);
    let options = EnvoyOptions { environment: clock.environment().unwrap(), ..EnvoyOptions::default() };
    let region = Region::start(1, options, &config(&[rule("r", 20)])).await;
    assert_eq!(passing(region.envoy(), 40).await, 20);
    clock.set(-400 * 86_400);
    assert_eq!(passing(region.envoy(), 40).await, 0);
    region.settles_at("r", "a", 20).await;
    assert_eq!(region.envoy().stat("wasmcustom.weir_refused_cells_total").await.unwrap(), 0);
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_envoy_alone_whose_clock_goes_back_gives_no_fresh_limit() {
    const TWO_WINDOWS_S: i64 = 62 * 86_400;
    let clock = Clock::new().unwrap();
    let month = with(rule("r", 20), json!({ "window": "31d" }));
    let options = EnvoyOptions {
        filter: filter(&config(&[month])),
        environment: clock.environment().unwrap(),
        aggregator_ports: vec![ports::free().unwrap()],
        ..EnvoyOptions::default()
    };
    let envoy = Envoy::start(options).await.unwrap();
    assert_eq!(passing(&envoy, 40).await, 20);
    clock.set(-TWO_WINDOWS_S);
    assert_eq!(passing(&envoy, 40).await, 0, "back");
    clock.set(0);
    assert_eq!(passing(&envoy, 40).await, 0, "and where it was");
    assert_eq!(vm_reloads(&envoy).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_filter_is_served_with_the_token_and_refused_with_another() {
    let options = AggregatorOptions { token: Some("the-token".to_owned()), ..AggregatorOptions::default() };
    let aggregator = Aggregator::start(options).await.unwrap();
    let start = async |token: &str| {
        let mut config = config(&[rule("r", 10)]);
        config["aggregator"]["token"] = json!(token);
        let options = EnvoyOptions {
            filter: filter(&config),
            aggregator_ports: vec![aggregator.grpc_port()],
            ..EnvoyOptions::default()
        };
        Envoy::start(options).await.unwrap()
    };
    let (accepted, refused) = (start("the-token").await, start("another").await);
    connected(&accepted).await;
    accepted.send(get_as("a")).await.unwrap();
    let reported = async || total_in(&aggregator, "r", "a").await == 1;
    wait::until("a report is stored", SOON, reported).await.unwrap();
    let prefix = "weir_aggregator_frames_refused_total{reason=\"token\"}";
    let refusals = async || {
        let metrics = aggregator.admin_get("/metrics").await.unwrap().text();
        metrics.lines().any(|line| line.strip_prefix(prefix).is_some_and(|count| count.trim() != "0"))
    };
    wait::until("the other token is refused", SOON, refusals).await.unwrap();
    assert_eq!(refused.stat("wasmcustom.weir_streams_connected").await.unwrap(), 0);
    assert!(refused.log().unwrap().contains("token is missing or wrong"), "the log names the cause");
    assert_eq!(passing(&refused, 11).await, 10, "it decides alone");
    sound(&accepted).await;
}

/// As with a wrong token, no stream counts as connected, and the limits hold in this Envoy alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_does_not_cover_the_workspace_opens_no_stream() {
    let (token, entry) = made_token("mobile");
    let folder = tempfile::tempdir().unwrap();
    let tokens_file = folder.path().join("tokens.yaml");
    std::fs::write(&tokens_file, entry).unwrap();
    let arguments = vec!["--tokens-file".to_owned(), tokens_file.display().to_string()];
    let mut aggregator =
        Aggregator::start(AggregatorOptions { arguments, ..AggregatorOptions::default() }).await.unwrap();
    let mut config = config(&[rule("r", 10)]);
    config["aggregator"]["token"] = json!(token);
    let options = EnvoyOptions {
        filter: filter(&config),
        aggregator_ports: vec![aggregator.grpc_port()],
        ..EnvoyOptions::default()
    };
    let envoy = Envoy::start(options).await.unwrap();
    let prefix = "weir_aggregator_frames_refused_total{reason=\"workspace\"}";
    let refused_again = async || {
        assert_eq!(envoy.stat("wasmcustom.weir_streams_connected").await.unwrap(), 0);
        let metrics = aggregator.admin_get("/metrics").await.unwrap().text();
        let refusals = metrics.lines().find_map(|line| line.strip_prefix(prefix)?.trim().parse::<u64>().ok());
        refusals.is_some_and(|refusals| refusals >= 6)
    };
    wait::until("the token is refused again and again", SOON, refused_again).await.unwrap();
    assert!(envoy.log().unwrap().contains("does not cover the workspace"), "the log names the cause");
    let log = std::fs::read_to_string(aggregator.process().log()).unwrap();
    assert!(!log.contains("Envoy connected"), "{log}");
    assert_eq!(passing(&envoy, 11).await, 10, "it decides alone");
    sound(&envoy).await;
}

/// A filter's token, and its entry for a tokens file.
fn made_token(workspaces: &str) -> (String, String) {
    let mut make = std::process::Command::new(binaries::aggregator().unwrap());
    let made = make.args(["token", "--name", "gateways", "--workspaces", workspaces]).output().unwrap();
    let made = String::from_utf8(made.stdout).unwrap();
    let (token, entry) = made.split_once('\n').unwrap();
    (token.to_owned(), entry.to_owned())
}

/// The filter's token and the key of its digests come from Envoy's environment, so that no configuration dump contains
/// them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_come_from_the_environment_and_stand_in_no_dump() {
    const KEY: &str = "a-key-of-this-test-alone";
    let (token, entry) = made_token("default");
    let folder = tempfile::tempdir().unwrap();
    let tokens_file = folder.path().join("tokens.yaml");
    std::fs::write(&tokens_file, entry).unwrap();
    let arguments = vec!["--tokens-file".to_owned(), tokens_file.display().to_string()];
    let aggregator =
        Aggregator::start(AggregatorOptions { arguments, ..AggregatorOptions::default() }).await.unwrap();
    let start = async |config: &Value| {
        let options = EnvoyOptions {
            filter: filter(config),
            aggregator_ports: vec![aggregator.grpc_port()],
            environment: vec![("GATEWAY_TOKEN".into(), token.clone()), ("DIGEST_KEY".into(), KEY.into())],
            ..EnvoyOptions::default()
        };
        Envoy::start(options).await
    };
    let mut config = config(&[with(rule("r", 2), json!({ "hash": true }))]);
    config["aggregator"]["token_env"] = json!("GATEWAY_TOKEN");
    config["hash_key_env"] = json!("DIGEST_KEY");
    let envoy = start(&config).await.unwrap();
    connected(&envoy).await;
    assert_eq!(passing(&envoy, 4).await, 2);
    let dump = envoy.config_dump().await.unwrap().to_string();
    assert!(dump.contains("GATEWAY_TOKEN") && !dump.contains(&token) && !dump.contains(KEY));
    sound(&envoy).await;

    config["aggregator"]["token_env"] = json!("GATEWAY_TOKEN_2");
    assert!(start(&config).await.is_err(), "a variable that is not set is an error");
}
