//! Tests with peers that send nothing, garbage or too much, or that do not read. Each loses only its own stream.

use crate::support::server::{DEADLINE, Peer, TOKEN, Weir, hello, hello_frame, key, start};
use std::time::{Duration, Instant};
use tokio_stream::StreamExt;
use tonic::Code;
use tonic::client::Grpc;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use weir_core::model::wire::{Count, Counters, FilterFrame, Hello, Query, Report, RuleCounters};

#[tokio::test]
async fn hellos_that_are_refused() {
    let weir = start(Some(TOKEN)).await;
    let with = |hello: Hello| FilterFrame { hello: Some(hello), ..FilterFrame::default() };
    let cases = [
        (with(Hello { version: 99, ..hello(1, false) }), "version 99", Code::FailedPrecondition),
        (with(Hello { node: vec![0; 16], ..hello(1, false) }), "16 bytes", Code::InvalidArgument),
        (with(Hello { node: vec![1; 15], ..hello(1, false) }), "16 bytes", Code::InvalidArgument),
        (weir.report(1, "mallory", 5), "hello", Code::InvalidArgument),
        (FilterFrame::default(), "hello", Code::InvalidArgument),
    ];
    for (frame, reason, code) in cases {
        let mut peer = Peer::open(weir.connect().await).await;
        peer.send(frame.clone()).await;
        let (message, ended) = peer.refused().await;
        assert!(message.contains(reason), "{frame:?}: {message:?} does not contain {reason:?}");
        assert_eq!(ended, code, "{frame:?}");
    }
    assert_eq!(weir.server.services().stats().keys, 0, "nothing is accepted before a hello");
    weir.join(1, false).await;
}

#[tokio::test]
async fn a_token_is_checked_before_a_frame_is_decoded() {
    let weir = start(Some(TOKEN)).await;
    for token in [None, Some("guess"), Some("a shared tokeN")] {
        let mut grpc = Grpc::new(weir.connect().await);
        grpc.ready().await.unwrap();
        let path = PathAndQuery::from_static("/weir.v1.Region/Follow");
        let frames = tokio_stream::iter([vec![0xff; 20]]).chain(tokio_stream::pending());
        let mut stream = grpc
            .streaming(crate::support::server::shown(frames, token), path, Raw)
            .await
            .unwrap()
            .into_inner();
        let end = tokio::time::timeout(DEADLINE, async {
            while let Some(frame) = stream.next().await {
                if let Err(status) = frame {
                    return Some(status.code());
                }
            }
            None
        });
        assert_eq!(end.await.expect("an end"), Some(Code::Unauthenticated), "{token:?}");
    }
    let refused =
        |reason| weir.metric(&format!("weir_aggregator_frames_refused_total{{reason=\"{reason}\"}}"));
    assert_eq!((refused("token"), refused("malformed")), (3.0, 0.0));
    assert_eq!(weir.metric("weir_aggregator_streams"), 0.0);
}

#[tokio::test]
async fn a_peer_without_a_hello_is_refused_after_two_seconds() {
    let weir = start(None).await;
    let opened = Instant::now();
    let mut peer = Peer::open(weir.connect().await).await;
    let (message, ended) = peer.refused().await;
    assert!(message.contains("no hello"), "{message}");
    assert_eq!(ended, Code::DeadlineExceeded);
    assert!(opened.elapsed() > Duration::from_millis(1_500));
}

#[tokio::test]
async fn frames_over_a_cap_or_of_another_node_end_their_stream() {
    let weir = start(None).await;
    let counts = vec![weir.count("k", 1); 257];
    let queries = vec![weir.query(1, "k", 0, 1, 10); 257];
    let rules = vec![RuleCounters { name: "r".into(), ..RuleCounters::default() }; 1_025];
    let counters = Some(Counters { rules, workspace: "default".into() });
    let cases = [
        (FilterFrame { counters, ..FilterFrame::default() }, "1025 rule counters"),
        (FilterFrame { report: Some(Report { id: 1, counts }), ..FilterFrame::default() }, "257 counts"),
        (FilterFrame { queries, ..FilterFrame::default() }, "257 queries"),
        (hello_frame(2, false), "one node"),
        (oversized(), "oversized"),
    ];
    for (frame, reason) in cases {
        let mut peer = weir.join(1, false).await;
        peer.send(frame).await;
        let (message, _) = peer.refused().await;
        assert!(message.contains(reason), "{message:?} does not contain {reason:?}");
    }
    assert_eq!(weir.server.services().stats().keys, 0);
}

#[tokio::test]
async fn a_subscription_that_flaps_is_refused() {
    let weir = start(None).await;
    let mut peer = weir.join(1, false).await;
    let began = Instant::now();
    for change in 0..=10 {
        peer.send(hello_frame(1, change % 2 == 0)).await;
    }
    while weir.metric("weir_aggregator_streams") > 0.0 && began.elapsed() < DEADLINE {
        peer.try_send(hello_frame(1, true));
        peer.try_send(hello_frame(1, false));
        tokio::task::yield_now().await;
    }
    let (message, ended) = peer.refused().await;
    assert!(message.contains("too often"), "{message}");
    assert_eq!(ended, Code::ResourceExhausted);
}

#[tokio::test]
async fn bytes_that_are_no_frame_end_only_their_stream() {
    let weir = start(None).await;
    let channel = weir.connect().await;
    let mut neighbour = Peer::open(channel.clone()).await;
    neighbour.send(hello_frame(1, false)).await;
    neighbour.next_with(|frame| frame.welcome).await;
    let nonsense: [&[u8]; 4] =
        [&[0xff; 20], &[0x0a, 0x7f, 1], &[0x0b, 0x0b], &[0x12, 0xff, 0xff, 0xff, 0xff, 0x0f]];
    for bytes in nonsense {
        let mut grpc = Grpc::new(channel.clone());
        grpc.ready().await.unwrap();
        let path = PathAndQuery::from_static("/weir.v1.Region/Follow");
        // The stream stays open, so the server must end it.
        let frames = tokio_stream::iter([bytes.to_vec()]).chain(tokio_stream::pending());
        let mut stream = grpc.streaming(tonic::Request::new(frames), path, Raw).await.unwrap().into_inner();
        let end = tokio::time::timeout(DEADLINE, async {
            while let Some(frame) = stream.next().await {
                if let Err(status) = frame {
                    return Some(status.code());
                }
            }
            None
        });
        assert_eq!(end.await.expect("an end"), Some(Code::InvalidArgument), "{bytes:x?}");
    }
    neighbour.send(weir.report(1, "k", 1)).await;
    neighbour.next_with(|frame| frame.ack).await;
    assert_eq!(weir.metric("weir_aggregator_frames_refused_total{reason=\"malformed\"}"), 4.0);
}

#[tokio::test]
async fn a_subscriber_that_never_reads_is_dropped_and_harms_no_other() {
    let weir = start(None).await;
    let frozen = weir.join(1, true).await;
    let mut writer = weir.join(2, false).await;
    let mut reader = weir.join(3, true).await;
    let services = weir.server.services().clone();
    let dropped = || weir.metric("weir_aggregator_slow_streams_dropped_total") > 0.0;
    // Hot keys are pushed to every subscriber. Each report adds new ones, until the queue of the frozen subscriber is
    // too long.
    let mut report = 0;
    let began = Instant::now();
    let mut slowest = Duration::ZERO;
    let mut most_pending = 0;
    while !dropped() {
        assert!(began.elapsed() < Duration::from_secs(30), "the frozen subscriber must be dropped");
        report += 1;
        let counts = (0..256).map(|n| hot(&weir, &format!("{}-{n}", report % 200), report)).collect();
        let sent = Instant::now();
        let frame = Report { id: report, counts };
        writer.send(FilterFrame { report: Some(frame), ..FilterFrame::default() }).await;
        writer.next_with(|frame| frame.ack).await;
        slowest = slowest.max(sent.elapsed());
        most_pending = most_pending.max(services.stats().pending_pushes);
        reader.next_with(|frame| frame.push).await;
    }
    println!("dropped after {:?} and {report} reports; slowest ack {slowest:?}", began.elapsed());
    // Each key is queued once for each of two subscribers, however often it changed.
    assert!(most_pending <= 2 * 200 * 256, "{most_pending} pushes were pending");
    crate::support::server::until("the subscriber that never reads is dropped", || {
        weir.metric("weir_aggregator_streams") == 2.0
    })
    .await;
    crate::support::server::until("its queue is dropped", || services.stats().pending_pushes <= 200 * 256)
        .await;
    writer.send(weir.report(1_000_000, "after", 900)).await;
    reader.pushed("after", |snapshot| snapshot.region_others == 900).await;
    drop(frozen);
}

fn hot(weir: &Weir, identifier: &str, own: u64) -> Count {
    Count { key: key(identifier), limit: 1, ..weir.count(identifier, own) }
}

/// A frame with a valid number of cells but too many bytes.
fn oversized() -> FilterFrame {
    let query = Query { key: vec![7; 400_000], ..Query::default() };
    FilterFrame { queries: vec![query], ..FilterFrame::default() }
}

/// Sends raw bytes.
#[derive(Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = ();
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = tonic::Status;

    fn encode(&mut self, bytes: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), tonic::Status> {
        prost::bytes::BufMut::put_slice(buffer, &bytes);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::default()
    }
}

impl Decoder for Raw {
    type Item = ();
    type Error = tonic::Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<()>, tonic::Status> {
        prost::bytes::Buf::advance(buffer, prost::bytes::Buf::remaining(buffer));
        Ok(Some(()))
    }
}
