//! The worker's gRPC stream to the aggregator.
//!
//! Envoy looks a stream up in the root of the calling context. A worker's stream serves several roots, so calls about it are made in the
//! context of the root that opened it.
//!
//! Envoy aborts if a service is only a cluster's name, so a serialised `envoy.config.core.v3.GrpcService` is passed. An opened stream
//! may close a moment later, so it counts as connected once the aggregator has accepted it. After a close the token is cancelled, as
//! Envoy would keep it otherwise.
//!
//! Envoy collects a whole message before it calls the VM, and without a bound it collects any size. With the bound, it ends the
//! stream at the head of a message that is larger.

use super::calls::{self, Refused};
use super::request::serialise;
use crate::host::kinds::{Here, LogLevel, MAX_MESSAGE_BYTES};
use crate::host::log_throttle::LogThrottle;
use prost::Message;
use weir_core::model::time::MonoMs;
use weir_core::model::wire;
use weir_core::rules::Aggregator;

#[derive(Clone, PartialEq, prost::Message)]
struct GrpcService {
    #[prost(message, optional, tag = "1")]
    envoy_grpc: Option<EnvoyGrpc>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct EnvoyGrpc {
    #[prost(string, tag = "1")]
    cluster_name: String,
    #[prost(string, tag = "2")]
    authority: String,
    /// A `google.protobuf.UInt32Value`.
    #[prost(message, optional, tag = "4")]
    max_receive_message_length: Option<u32>,
}

impl Here {
    /// Runs `work` in the context of `root`. Fails if Envoy has deleted it.
    fn within<R>(self, root: u32, work: impl FnOnce() -> R) -> Result<R, Refused> {
        if self.root == root {
            return Ok(work());
        }
        calls::set_effective_context(root)?;
        let done = work();
        let _ = calls::set_effective_context(self.context);
        Ok(done)
    }
}

/// At most one stream at a time.
#[derive(Debug)]
pub struct Stream {
    service: Vec<u8>,
    /// Metadata of each stream: the filter's token, which the aggregator checks before it reads a frame.
    metadata: Vec<u8>,
    /// The root that opened it, and its token.
    opened: Option<(u32, u32)>,
    buffer: Vec<u8>,
    log_throttle: LogThrottle,
    /// The aggregator has accepted it.
    is_welcome: bool,
}

impl Stream {
    /// For the aggregator that a configuration names; not open yet.
    pub fn new(aggregator: &Aggregator) -> Stream {
        let envoy_grpc = EnvoyGrpc {
            cluster_name: aggregator.cluster.clone(),
            authority: aggregator.authority.clone().unwrap_or_default(),
            max_receive_message_length: u32::try_from(MAX_MESSAGE_BYTES).ok(),
        };
        let service = GrpcService { envoy_grpc: Some(envoy_grpc) }.encode_to_vec();
        let log_throttle = LogThrottle::new(&aggregator.cluster);
        let token = aggregator.token.as_ref();
        let bearer = token.map(|token| ("authorization", format!("Bearer {}", token.reveal()).into()));
        let metadata = serialise(bearer.as_slice());
        Stream { service, metadata, opened: None, buffer: Vec::new(), log_throttle, is_welcome: false }
    }

    /// Opens it for `root`. Fails if Envoy has no such cluster.
    pub fn open(&mut self, root: u32, here: Here) -> Result<(), Refused> {
        self.close(here);
        self.log_throttle.attempt();
        let open = || calls::grpc_stream(&self.service, wire::SERVICE, wire::METHOD, &self.metadata);
        let token = here.within(root, open)??;
        self.opened = Some((root, token));
        Ok(())
    }

    /// The root that opened it; `None` if it is closed.
    pub fn root(&self) -> Option<u32> {
        self.opened.map(|(root, _)| root)
    }

    /// Whether it is open for a root that Envoy has deleted.
    pub fn has_lost_root(&self, here: Here) -> bool {
        self.opened.is_some_and(|(root, _)| here.within(root, || ()).is_err())
    }

    /// Logs a failure, unless its reason was logged since the last accepted stream.
    pub fn log_failure(&mut self, what: &str, now: MonoMs) {
        if let Some(line) = self.log_throttle.wrong(what, now) {
            calls::log(LogLevel::Warn, &line);
        }
    }

    /// Notes that the aggregator accepted it.
    pub fn welcomed(&mut self) {
        self.is_welcome = true;
        if let Some(line) = self.log_throttle.right() {
            calls::log(LogLevel::Info, &line);
        }
    }

    /// Whether the aggregator has accepted it.
    pub fn is_welcome(&self) -> bool {
        self.is_welcome
    }

    /// Whether `token` of `root` names this stream.
    pub fn is(&self, root: u32, token: u32) -> bool {
        self.opened == Some((root, token))
    }

    /// Sends a frame; false if the stream has ended.
    pub fn send(&mut self, frame: &wire::FilterFrame, here: Here) -> bool {
        let Some((root, token)) = self.opened else { return false };
        self.buffer.clear();
        let encoded = frame.encode(&mut self.buffer).is_ok();
        encoded && matches!(here.within(root, || calls::grpc_send(token, &self.buffer)), Ok(Ok(())))
    }

    /// Closes it.
    pub fn close(&mut self, here: Here) {
        self.is_welcome = false;
        if let Some((root, token)) = self.opened.take() {
            let _ = here.within(root, || calls::grpc_cancel(token));
        }
    }
}
