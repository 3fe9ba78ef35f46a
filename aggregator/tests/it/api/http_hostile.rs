//! Tests with clients of the HTTP API that are slow, idle, oversized or malformed. Each affects only itself.

use crate::support::http::Client;
use crate::support::server::{Weir, start, until};
use serde_json::json;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, interval, timeout};

/// Longer than every tested timeout except the one between requests.
const CUT_WITHIN: Duration = Duration::from_secs(20);

async fn connect(weir: &Weir) -> TcpStream {
    TcpStream::connect(weir.server.http_address().unwrap()).await.unwrap()
}

/// What the server sends until it closes the connection.
async fn rest(connection: &mut TcpStream) -> String {
    let mut received = Vec::new();
    // A reset also ends the connection.
    let _ = timeout(CUT_WITHIN, connection.read_to_end(&mut received))
        .await
        .expect("the connection is still held");
    String::from_utf8_lossy(&received).into_owned()
}

/// Sends one byte at intervals until the server closes the connection.
async fn drip(connection: &mut TcpStream, byte: u8) -> Duration {
    let (began, mut interval) = (Instant::now(), interval(Duration::from_millis(200)));
    while connection.write_all(&[byte]).await.is_ok() {
        assert!(began.elapsed() < CUT_WITHIN, "the connection is still held");
        interval.tick().await;
    }
    began.elapsed()
}

async fn others_are_served(weir: &Weir) {
    let mut client = Client::connect(weir).await;
    let body = json!({"identifier": "alice", "limit": 1_000, "duration": "1h"});
    assert_eq!(client.post("/v1/check", &body).await.status, 200);
}

#[tokio::test]
async fn connections_without_a_timely_head_are_cut() {
    let weir = start(None).await;
    let mut idle = connect(&weir).await;
    let mut halfway = connect(&weir).await;
    halfway.write_all(b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\n").await.unwrap();
    let mut slow = connect(&weir).await;
    slow.write_all(b"POST /v1/check HTTP/1.1\r\nx: ").await.unwrap();
    others_are_served(&weir).await;
    let (first, second, _) = tokio::join!(rest(&mut idle), rest(&mut halfway), drip(&mut slow, b'a'));
    assert_eq!((first.as_str(), second.as_str()), ("", ""));
    until("all connections are closed", || weir.metric("weir_aggregator_connections{api=\"http\"}") == 0.0)
        .await;
}

#[tokio::test]
async fn a_second_head_that_drips_is_cut_as_well() {
    let weir = start(None).await;
    let mut slow = connect(&weir).await;
    slow.write_all(b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut received = vec![0; 17];
    timeout(CUT_WITHIN, slow.read_exact(&mut received)).await.unwrap().unwrap();
    assert!(received.starts_with(b"HTTP/1.1 200 OK"));
    slow.write_all(b"GET /").await.unwrap();
    let took = drip(&mut slow, b'a').await;
    assert!(took < Duration::from_secs(15), "the connection was cut as if it were idle: {took:?}");
}

#[tokio::test]
async fn a_body_that_drips_is_refused_and_cut() {
    let weir = start(None).await;
    let head = "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    let mut fixed = connect(&weir).await;
    fixed.write_all(format!("{head}content-length: 1000\r\n\r\n{{").as_bytes()).await.unwrap();
    let mut chunked = connect(&weir).await;
    chunked
        .write_all(format!("{head}transfer-encoding: chunked\r\n\r\n1\r\n{{\r\n").as_bytes())
        .await
        .unwrap();
    others_are_served(&weir).await;
    let (mut reader, mut writer) = fixed.into_split();
    let dripping = tokio::spawn(async move {
        let mut interval = interval(Duration::from_millis(200));
        while writer.write_all(b" ").await.is_ok() {
            interval.tick().await;
        }
    });
    let mut received = Vec::new();
    let _ =
        timeout(CUT_WITHIN, reader.read_to_end(&mut received)).await.expect("the connection is still held");
    dripping.abort();
    let received = String::from_utf8_lossy(&received).into_owned();
    for received in [received, rest(&mut chunked).await] {
        assert!(received.starts_with("HTTP/1.1 408") && received.contains("too_slow"), "{received}");
        assert!(received.contains("connection: close"), "{received}");
    }
}

#[tokio::test]
async fn too_much_is_refused_before_it_is_taken() {
    let weir = start(None).await;
    let head = "POST /v1/check/batch HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    // A large body, announced and sent nevertheless: the answer still arrives.
    let mut announced = connect(&weir).await;
    announced
        .write_all(format!("{head}content-length: 400000\r\nconnection: close\r\n\r\n").as_bytes())
        .await
        .unwrap();
    announced.write_all(&vec![b' '; 400_000]).await.unwrap();
    let received = rest(&mut announced).await;
    assert!(received.starts_with("HTTP/1.1 413") && received.contains("262144"), "{received}");
    // A large body without a length.
    let mut endless = connect(&weir).await;
    endless.write_all(format!("{head}transfer-encoding: chunked\r\n\r\n").as_bytes()).await.unwrap();
    let chunk = [b"10000\r\n".as_slice(), &[b' '; 0x10000], b"\r\n"].concat();
    let mut sent = 0_usize;
    while endless.write_all(&chunk).await.is_ok() {
        sent += chunk.len();
        assert!(sent < 64 * 1024 * 1024, "the server must stop reading");
    }
    // An endless head.
    let mut long = connect(&weir).await;
    let _ = long
        .write_all(format!("GET /openapi.json HTTP/1.1\r\nx: {}\r\n", "a".repeat(40_000)).as_bytes())
        .await;
    let received = rest(&mut long).await;
    assert!(received.is_empty() || received.starts_with("HTTP/1.1 431"), "{received}");
    // Not HTTP.
    let mut other = connect(&weir).await;
    other.write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n").await.unwrap();
    let received = rest(&mut other).await;
    assert!(received.is_empty() || received.starts_with("HTTP/1.1 400"), "{received}");
    others_are_served(&weir).await;
}

#[tokio::test]
async fn a_foreign_web_page_may_not_call_without_a_token() {
    let weir = start(None).await;
    let address = weir.server.http_address().unwrap().to_string();
    for (line, host, expected) in [
        ("GET /v1/overrides", "host: attacker.example\r\n", 421),
        ("PUT /v1/overrides", "host: attacker.example\r\n", 421),
        ("POST /v1/check", "host: attacker.example:7072\r\n", 421),
        ("GET /openapi.json", "", 421),
        ("GET /openapi.json", "host: localhost\r\nhost: attacker.example\r\n", 421),
        ("GET http://attacker.example/openapi.json", "host: localhost\r\n", 421),
        ("GET /openapi.json", "host: localhost:7072\r\n", 200),
        ("GET /openapi.json", &format!("host: {address}\r\n"), 200),
    ] {
        let mut connection = connect(&weir).await;
        let head = format!("{line} HTTP/1.1\r\n{host}connection: close\r\n\r\n");
        connection.write_all(head.as_bytes()).await.unwrap();
        let received = rest(&mut connection).await;
        assert!(received.starts_with(&format!("HTTP/1.1 {expected} ")), "{line} {host:?}: {received}");
        assert_eq!(expected == 421, received.contains("wrong_host"), "{received}");
    }
}

#[tokio::test]
async fn clients_that_do_not_read_responses_are_cut() {
    let weir = start(None).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let mut unread = socket.connect(weir.server.http_address().unwrap()).await.unwrap();
    let request = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(100);
    let began = Instant::now();
    // Ends when the server closes the connection; until then the write waits while all buffers are full.
    while timeout(CUT_WITHIN, unread.write_all(&request)).await.expect("the connection is still held").is_ok()
    {
        assert!(began.elapsed() < 2 * CUT_WITHIN, "the server must close the connection");
    }
    others_are_served(&weir).await;
    until("the connection is closed", || weir.metric("weir_aggregator_connections{api=\"http\"}") == 0.0)
        .await;
}
