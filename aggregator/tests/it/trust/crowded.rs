//! Tests with peers that hold idle connections and streams open: other clients are still served.

use crate::support::server::{DEADLINE, Peer, TOKEN, Weir, hello_frame, start, until};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::time::timeout;
use tonic::Code;
use tonic::transport::Endpoint;
use weir_aggregator::net::listen::{Connection, Listener, Patience};
use weir_aggregator::net::tls::Protocol;

/// A slower probe has failed: Kubernetes waits for one second.
const PROBE: Duration = Duration::from_secs(1);

#[tokio::test]
async fn idle_connections_do_not_delay_a_health_check() {
    let weir = start(None).await;
    let mut idle = Vec::new();
    for _ in 0..300 {
        idle.push(TcpStream::connect(weir.server.admin_address()).await.unwrap());
    }
    let began = Instant::now();
    assert!(healthz(&weir).await.starts_with("HTTP/1.1 200"));
    let took = began.elapsed();
    println!("/healthz took {took:?} beside {} idle connections", idle.len());
    assert!(took < PROBE, "{took:?}");
    assert!(weir.metric("weir_aggregator_connections_evicted_total{api=\"admin\"}") > 0.0);
}

#[tokio::test]
async fn streams_without_a_hello_are_bounded_and_keep_no_filter_out() {
    let weir = start(Some(TOKEN)).await;
    let mut channel = weir.connect().await;
    let mut idle = Vec::new();
    let mut refused = None;
    for opened in 0..300 {
        if opened % 100 == 0 {
            // A connection has room for 256 streams.
            channel = weir.connect().await;
        }
        match Peer::try_open(channel.clone(), Some(TOKEN)).await {
            Ok(peer) => idle.push(peer),
            Err(status) => refused = refused.or(Some((opened, status))),
        }
    }
    let (opened, status) = refused.expect("a bound");
    println!("stream {opened} is refused: {status:?}");
    assert_eq!((opened, status.code()), (256, Code::ResourceExhausted));
    // The idle streams end after two seconds at most. Then filters of the same address are admitted.
    until("streams without a hello have ended", || weir.metric("weir_aggregator_streams") == 0.0).await;
    let mut filter = weir.join(1, false).await;
    filter.send(weir.report(1, "k", 1)).await;
    filter.next_with(|frame| frame.ack).await;
}

#[tokio::test]
async fn a_hello_makes_room_for_another_stream_without_one() {
    let weir = start(None).await;
    let mut greeted = Vec::new();
    for stream in 0..300 {
        let mut peer = Peer::open(weir.connect().await).await;
        peer.send(hello_frame(1, false)).await;
        if stream % 50 == 0 {
            peer.next_with(|frame| frame.welcome).await;
        }
        greeted.push(peer);
    }
    until("all are served", || weir.metric("weir_aggregator_streams") == 300.0).await;
}

async fn healthz(weir: &Weir) -> String {
    let mut probe = TcpStream::connect(weir.server.admin_address()).await.unwrap();
    probe.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    probe.read_to_string(&mut answer).await.unwrap();
    answer
}

/// The program, with as many descriptors, and its addresses for filters, operators and applications.
async fn limited(descriptors: u32) -> (Child, [String; 3]) {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -n {descriptors} && exec \"$0\" \"$@\"")]);
    command.arg(env!("CARGO_BIN_EXE_weir-aggregator")).args(["serve", "--region", "here"]);
    command.args(["--grpc-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]);
    command.args(["--http-listen", "127.0.0.1:0", "--log-format", "json"]);
    let variables = std::env::vars_os().filter(|(name, _)| !name.to_string_lossy().starts_with("WEIR_"));
    command.env_clear().envs(variables).stdin(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut program = command.spawn().unwrap();
    let mut log = BufReader::new(program.stderr.take().unwrap()).lines();
    let serves = async {
        loop {
            let line = log.next_line().await.unwrap().expect("the program serves");
            if line.contains("weir-aggregator serves") {
                let line: serde_json::Value = serde_json::from_str(&line).unwrap();
                return ["grpc", "admin", "http"]
                    .map(|name| line["fields"][name].as_str().unwrap().to_owned());
            }
        }
    };
    let addresses = timeout(DEADLINE, serves).await.unwrap();
    tokio::spawn(async move { while let Ok(Some(_)) = log.next_line().await {} });
    (program, addresses)
}

/// The beginning of the answer to a request on a connection that stays open.
async fn asked(connection: &mut TcpStream, request: &str) -> Option<String> {
    connection.write_all(request.as_bytes()).await.ok()?;
    let mut answer = vec![0; 15];
    timeout(PROBE, connection.read_exact(&mut answer)).await.ok()?.ok()?;
    Some(String::from_utf8_lossy(&answer).into_owned())
}

#[tokio::test]
async fn connections_to_one_listener_leave_descriptors_to_the_others() {
    let (_program, [grpc, admin, http]) = limited(64).await;
    let mut idle = Vec::new();
    for connection in 0..180 {
        let address = if connection % 3 == 0 { &grpc } else { &http };
        idle.push(TcpStream::connect(address).await.unwrap());
    }
    for probe in 0..3 {
        let mut connection = TcpStream::connect(&admin).await.unwrap();
        let answer = asked(&mut connection, "GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        assert_eq!(answer.as_deref(), Some("HTTP/1.1 200 OK"), "probe {probe}");
    }
    for node in [1, 2] {
        let channel = Endpoint::from_shared(format!("http://{grpc}")).unwrap().connect().await.unwrap();
        let mut peer = Peer::open(channel).await;
        peer.send(hello_frame(node, false)).await;
        peer.next_with(|frame| frame.welcome).await;
        idle.push(TcpStream::connect(&grpc).await.unwrap());
    }
}

#[tokio::test]
async fn idle_callers_without_tokens_keep_no_caller_out() {
    let (_program, [_, _, http]) = limited(256).await;
    let body = r#"{"identifier": "a", "limit": 1000, "duration": "1h"}"#;
    let head =
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length";
    let request = format!("{head}: {}\r\n\r\n{body}", body.len());
    let mut kept = Vec::new();
    for caller in 0..150 {
        let mut connection = TcpStream::connect(&http).await.unwrap();
        let answer = asked(&mut connection, &request).await;
        assert_eq!(
            answer.as_deref(),
            Some("HTTP/1.1 200 OK"),
            "caller {caller} beside {} idle ones",
            kept.len()
        );
        kept.push(connection);
    }
}

#[tokio::test]
async fn a_full_listener_closes_the_longest_idle_connection() {
    let weir = start(None).await;
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    let listener = Listener {
        api: "grpc",
        socket,
        tls: None,
        protocol: Protocol::Grpc,
        // One address may use half of these.
        max_connections: 6,
        patience: Patience::Preface(Duration::from_secs(60)),
    };
    let (admitted, mut first) = tokio::sync::mpsc::channel(1);
    let serve = move |mut connection: Connection| {
        let admitted = admitted.clone();
        async move {
            // The first byte shows whether a stream is served.
            let byte = connection.read_u8().await;
            let served = matches!(byte, Ok(1)).then(|| connection.turn().serve());
            if served.is_some() {
                admitted.send(()).await.unwrap();
            }
            let _ = connection.read_u8().await;
        }
    };
    let serving =
        tokio::spawn(listener.run(weir.server.services().metrics.clone(), std::future::pending(), serve));
    let connect = async |first: u8| {
        let mut peer = TcpStream::connect(address).await.unwrap();
        peer.write_all(&[first]).await.unwrap();
        peer
    };
    let mut admitted_peer = connect(1).await;
    first.recv().await.unwrap();
    let mut idle = [connect(0).await, connect(0).await];
    let mut last = connect(0).await;
    let ended = async |peer: &mut TcpStream| {
        tokio::time::timeout(Duration::from_millis(300), peer.read_u8()).await.is_ok()
    };
    assert!(ended(&mut idle[0]).await, "the connection that has been idle for the longest must end");
    assert!(!ended(&mut admitted_peer).await && !ended(&mut idle[1]).await && !ended(&mut last).await);
    serving.abort();
}
