//! Tests with peers that hold idle connections and streams open: other clients are still served.

use crate::support::server::{Peer, TOKEN, Weir, hello_frame, start, until};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tonic::Code;
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

#[tokio::test]
async fn a_full_listener_closes_the_oldest_connection_that_nothing_depends_on() {
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
            // The first byte shows whether the peer is admitted.
            let byte = connection.read_u8().await;
            if matches!(byte, Ok(1)) {
                connection.turn().admit();
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
    assert!(ended(&mut idle[0]).await, "the oldest connection that is not admitted must end");
    assert!(!ended(&mut admitted_peer).await && !ended(&mut idle[1]).await && !ended(&mut last).await);
    serving.abort();
}
