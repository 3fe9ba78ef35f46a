//! A filter's stream, as a worker of an Envoy opens it, and the cells that it reports.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic::{Request, Streaming};
use tonic_prost::ProstCodec;
use weir_core::model::key::{Key, KeyParts};
use weir_core::model::wire::{Count, FilterFrame, Hello, PROTOCOL_VERSION, RegionFrame, Report};
use weir_envoy::ports;

/// Longer than any measurement's sequence lasts, so that none rolls over in it except on the hour.
pub const HOUR_MS: u64 = 3_600_000;
/// Reports that a filter sends before the first of them is acknowledged.
pub const MAX_IN_FLIGHT: usize = 16;
/// Longer than any wait, unless something is broken.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Frames that wait for the transport: more than an open loop ever has waiting.
const QUEUE: usize = 65_536;

/// One stream.
pub struct Peer {
    pub frames: mpsc::Sender<FilterFrame>,
    pub region: Streaming<RegionFrame>,
}

impl Peer {
    /// A stream of an Envoy of its own, welcomed.
    pub async fn join(port: u16, subscriber: bool) -> Result<Self> {
        let channel = Endpoint::from_shared(format!("http://{}", ports::local(port)))?.connect().await?;
        let (frames, queued) = mpsc::channel(QUEUE);
        let mut grpc = Grpc::new(channel);
        grpc.ready().await?;
        let path = PathAndQuery::from_static("/weir.v1.Region/Follow");
        let codec = ProstCodec::<FilterFrame, RegionFrame>::default();
        let hello = Hello {
            version: PROTOCOL_VERSION,
            node: next_node().to_vec(),
            worker: 1,
            subscriber,
            workspaces: vec!["default".to_owned()],
        };
        frames.send(FilterFrame { hello: Some(hello), ..FilterFrame::default() }).await?;
        let call = grpc.streaming(Request::new(ReceiverStream::new(queued)), path, codec);
        let region = timeout(PATIENCE, call).await??.into_inner();
        let mut peer = Self { frames, region };
        peer.next_with(|frame| frame.welcome).await?;
        Ok(peer)
    }

    /// Queues a report.
    pub async fn report(&self, id: u64, counts: Vec<Count>) -> Result<()> {
        self.frames.send(report(id, counts)).await.context("the stream ended")
    }

    /// The next frame.
    pub async fn next(&mut self) -> Result<RegionFrame> {
        timeout(PATIENCE, self.region.message()).await??.context("the stream ended")
    }

    /// The first frame for which `part` returns something; others are skipped.
    pub async fn next_with<T>(&mut self, part: impl Fn(RegionFrame) -> Option<T>) -> Result<T> {
        loop {
            if let Some(found) = part(self.next().await?) {
                return Ok(found);
            }
        }
    }
}

/// A frame with a report and nothing else.
pub fn report(id: u64, counts: Vec<Count>) -> FilterFrame {
    FilterFrame { report: Some(Report { id, counts }), ..FilterFrame::default() }
}

/// The key of the `number`th client; its identifier has 20 bytes.
pub fn key(group: &str, number: usize) -> Vec<u8> {
    let identifier = format!("{group:.4}-api-key-{number:07}");
    let parts = KeyParts {
        workspace: b"acme",
        namespace: b"per-key",
        identifier: identifier.as_bytes(),
        duration_ms: HOUR_MS,
        epoch: 0,
        resolution: 1,
    };
    Key::new(&parts).map(|key| key.as_bytes().to_vec()).unwrap_or_default()
}

/// The present cell.
pub fn sequence() -> u64 {
    unix_ms() / HOUR_MS
}

/// The wall clock, which is the aggregators' too.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place of the benchmark that reads the wall clock"
)]
pub fn unix_ms() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}

/// Each Envoy has an id of its own.
fn next_node() -> [u8; 16] {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = LAST.fetch_add(1, Relaxed) + 1;
    let mut node = [0x5a; 16];
    node[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    node
}
