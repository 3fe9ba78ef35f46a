//! A server on free ports and a client for its streams. Every wait has a deadline.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;
use weir_aggregator::admin::Links;
use weir_aggregator::api::{ApiSettings, Insecure};
use weir_aggregator::net::hosts::Hosts;
use weir_aggregator::redis::StoreOptions;
use weir_aggregator::region::stream_error::node_of;
use weir_aggregator::server::{Server, Settings};
use weir_aggregator::telemetry::clock::{Clock, SystemClock};
use weir_core::model::key::{Key, KeyParts, NodeId};
use weir_core::model::schedule::Schedule;
use weir_core::model::time::UnixMs;
use weir_core::model::wire::{
    Answer, Count, Counters, FilterFrame, Hello, PROTOCOL_VERSION, Ping, Query, RegionFrame, Report, Snapshot,
};
use weir_core::region::{CellState, RegionLimits};
use weir_envoy::Redis;

pub const DEADLINE: Duration = Duration::from_secs(10);
pub const HOUR_MS: u64 = 3_600_000;
pub const TOKEN: &str = "a shared token";

/// The machine's clock with an offset.
#[derive(Default)]
pub struct ShiftedClock(pub AtomicI64);

impl Clock for ShiftedClock {
    fn now(&self) -> UnixMs {
        UnixMs(SystemClock.now().0.saturating_add_signed(self.0.load(Relaxed)))
    }
}

/// A clock set to one minute after the full hour, so that no window of one hour ends within a test. All clocks of a
/// process agree.
pub fn clock() -> Arc<ShiftedClock> {
    const MINUTE_MS: u64 = 60_000;
    static SHIFT: LazyLock<i64> = LazyLock::new(|| {
        let now = SystemClock.now().0;
        ((now / HOUR_MS + 1) * HOUR_MS + MINUTE_MS - now).cast_signed()
    });
    Arc::new(ShiftedClock(AtomicI64::new(*SHIFT)))
}

pub struct Weir {
    pub server: Server,
    pub clock: Arc<ShiftedClock>,
}

pub async fn start(token: Option<&str>) -> Weir {
    start_with(Settings { token: token.map(str::to_owned), ..settings() }).await
}

pub async fn start_with(settings: Settings) -> Weir {
    let clock = clock();
    Weir { server: Server::start(settings, clock.clone()).await.unwrap(), clock }
}

/// An aggregator of `redis` that has read the whole hot index.
pub async fn start_on(redis: &Redis) -> Weir {
    let store = StoreOptions::parse(&redis.url(), "test-region").unwrap();
    let weir =
        start_with(Settings { store: Some(store), schedule: Schedule::for_tests(), ..settings() }).await;
    until("the hot index is read", || {
        weir.metric("weir_aggregator_snapshot_age_seconds{what=\"hot\"}") >= 0.0
    })
    .await;
    weir
}

/// The region's use of an identifier of the API's namespace in all live cells, as one aggregator has it.
pub fn used(weir: &Weir, identifier: &str) -> u64 {
    let explained = weir.server.services().explain(b"default", b"api", identifier.as_bytes());
    explained.iter().flat_map(|key| &key.cells).map(CellState::regional_total).sum()
}

/// A region that keeps its state in memory.
pub fn settings() -> Settings {
    Settings {
        region: "test-region".into(),
        grpc_listen: "127.0.0.1:0".into(),
        admin_listen: "127.0.0.1:0".into(),
        admin_hosts: Hosts::default(),
        admin_links: Links::default(),
        token: None,
        limits: RegionLimits::default(),
        store: None,
        database: None,
        migrate: false,
        schedule: Schedule::default(),
        // Equivalent to `--insecure control`.
        api: ApiSettings {
            insecure: Insecure { control: true, ..Insecure::default() },
            ..ApiSettings::default()
        },
        telemetry: None,
    }
}

impl Weir {
    /// A separate connection.
    pub async fn connect(&self) -> Channel {
        let uri = format!("http://{}", self.server.grpc_address());
        Endpoint::from_shared(uri).unwrap().connect().await.unwrap()
    }

    /// A connection from another address of this machine.
    pub async fn connect_from(&self, address: [u8; 4]) -> Channel {
        let uri = format!("http://{}", self.server.grpc_address());
        let endpoint = Endpoint::from_shared(uri).unwrap().local_address(Some(address.into()));
        endpoint.connect().await.unwrap()
    }

    /// A welcomed stream of `node` that has reported its rules' decisions as a filter does; it counts as a node.
    pub async fn join(&self, node: u8, subscriber: bool) -> Peer {
        let mut peer = Peer::open(self.connect().await).await;
        peer.send(hello_frame(node, subscriber)).await;
        let welcome = peer.next_with(|frame| frame.welcome).await;
        assert_eq!((welcome.version, welcome.region.as_str()), (PROTOCOL_VERSION, "test-region"));
        let (counters, ping) = (Some(Counters::default()), Some(Ping { sent_ms: 0 }));
        peer.send(FilterFrame { counters, ping, ..FilterFrame::default() }).await;
        let mut before = VecDeque::new();
        while let Some(frame) = peer.next().await.expect("a frame")
            && frame.pong.is_none()
        {
            before.push_back(frame);
        }
        peer.before = before;
        peer
    }

    pub fn sequence(&self) -> u64 {
        self.clock.now().0 / HOUR_MS
    }

    /// A component of `identifier` in the current hour.
    pub fn count(&self, identifier: &str, own: u64) -> Count {
        let key = key(identifier);
        Count { key, sequence: self.sequence(), own, limit: 1_000, ..Count::default() }
    }

    pub fn report(&self, id: u64, identifier: &str, own: u64) -> FilterFrame {
        let counts = vec![self.count(identifier, own)];
        FilterFrame { report: Some(Report { id, counts }), ..FilterFrame::default() }
    }

    pub fn query(&self, id: u64, identifier: &str, own: u64, cost: u64, limit: u64) -> Query {
        Query { id, key: key(identifier), sequence: self.sequence(), own, cost, limit, ..Default::default() }
    }

    /// The value of a metric; the name includes the labels.
    pub fn metric(&self, name: &str) -> f64 {
        let services = self.server.services();
        let text = services.metrics_text();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.parse().unwrap())
    }
}

/// One stream, from the filter's side.
pub struct Peer {
    frames: mpsc::Sender<FilterFrame>,
    region: Streaming<RegionFrame>,
    /// Frames received before they were awaited.
    before: VecDeque<RegionFrame>,
}

impl Peer {
    /// Presents [`TOKEN`].
    pub async fn open(channel: Channel) -> Peer {
        Peer::try_open(channel, Some(TOKEN)).await.unwrap()
    }

    /// Presents `token`. A stream that is refused before the first frame fails with a status.
    pub async fn try_open(channel: Channel, token: Option<&str>) -> Result<Peer, Status> {
        let (frames, queued) = mpsc::channel(16);
        let mut grpc = Grpc::new(channel).max_decoding_message_size(usize::MAX);
        grpc.ready().await.unwrap();
        let path = PathAndQuery::from_static("/weir.v1.Region/Follow");
        let codec = ProstCodec::<FilterFrame, RegionFrame>::default();
        let call = grpc.streaming(shown(ReceiverStream::new(queued), token), path, codec);
        let region = timeout(DEADLINE, call).await.unwrap()?.into_inner();
        Ok(Peer { frames, region, before: VecDeque::new() })
    }

    pub async fn send(&self, frame: FilterFrame) {
        timeout(DEADLINE, self.frames.send(frame)).await.unwrap().unwrap();
    }

    /// Sends the frame unless the stream is full or closed.
    pub fn try_send(&self, frame: FilterFrame) -> bool {
        self.frames.try_send(frame).is_ok()
    }

    /// The next frame, `None` at the stream's end, or its status.
    pub async fn next(&mut self) -> Result<Option<RegionFrame>, Status> {
        if let Some(frame) = self.before.pop_front() {
            return Ok(Some(frame));
        }
        timeout(DEADLINE, self.region.message()).await.expect("a frame or the end within the deadline")
    }

    /// The first frame with the expected part; skips others.
    pub async fn next_with<T>(&mut self, part: impl Fn(RegionFrame) -> Option<T>) -> T {
        loop {
            let frame = self.next().await.expect("a frame").expect("a frame, not the end");
            if let Some(found) = part(frame) {
                return found;
            }
        }
    }

    pub async fn answers(&mut self, queries: Vec<Query>) -> Vec<Answer> {
        self.send(FilterFrame { queries, ..FilterFrame::default() }).await;
        self.next_with(|frame| Some(frame.answers).filter(|answers| !answers.is_empty())).await
    }

    /// The next pushed snapshot of `identifier` that satisfies `accept`.
    pub async fn pushed(&mut self, identifier: &str, accept: impl Fn(&Snapshot) -> bool) -> Snapshot {
        let key = key(identifier);
        self.next_with(|frame| {
            frame.push?.snapshots.into_iter().find(|snapshot| snapshot.key == key && accept(snapshot))
        })
        .await
    }

    /// The reason and the code of the error that ends this stream.
    pub async fn refused(&mut self) -> (String, tonic::Code) {
        let error = self.next_with(|frame| frame.error).await;
        let end = self.next().await.expect_err("a status after the refusal");
        (error.reason, end.code())
    }
}

pub fn key(identifier: &str) -> Vec<u8> {
    let parts = KeyParts {
        workspace: b"default",
        namespace: b"api",
        identifier: identifier.as_bytes(),
        duration_ms: HOUR_MS,
        epoch: 0,
        resolution: 1,
    };
    Key::new(&parts).unwrap().as_bytes().to_vec()
}

pub fn hello(node: u8, subscriber: bool) -> Hello {
    Hello { version: PROTOCOL_VERSION, node: vec![node; 16], worker: 1, subscriber, workspaces: Vec::new() }
}

pub fn hello_frame(node: u8, subscriber: bool) -> FilterFrame {
    FilterFrame { hello: Some(hello(node, subscriber)), ..FilterFrame::default() }
}

/// The node in [`hello`] with this number.
pub fn node(number: u8) -> NodeId {
    node_of(NodeId([number; 16]))
}

/// A call with `token` in its metadata.
pub fn shown<T>(message: T, token: Option<&str>) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(token) = token {
        request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    }
    request
}

/// Waits until `condition` is true.
pub async fn until(what: &str, condition: impl Fn() -> bool) {
    let held = timeout(DEADLINE, async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(held.await.is_ok(), "not within the deadline: {what}");
}
