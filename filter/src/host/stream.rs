//! The worker's gRPC stream to the aggregator.
//!
//! Envoy aborts if a service is only a cluster's name, so a serialised `envoy.config.core.v3.GrpcService` is passed. An opened stream
//! may close a moment later, so it counts as connected once the aggregator has accepted it. After a close the token is cancelled, as
//! Envoy would keep it otherwise.

use crate::host::calls::{self, Refused};
use crate::host::headers::serialise;
use crate::host::log_throttle::LogThrottle;
use prost::Message;
use proxy_wasm::types::LogLevel;
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
}

/// At most one stream at a time.
#[derive(Debug)]
pub struct Stream {
    service: Vec<u8>,
    /// Metadata of each stream: the filter's token, which the aggregator checks before it reads a frame.
    metadata: Vec<u8>,
    token: Option<u32>,
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
        };
        let service = GrpcService { envoy_grpc: Some(envoy_grpc) }.encode_to_vec();
        let log_throttle = LogThrottle::new(&aggregator.cluster);
        let token = aggregator.token.as_ref();
        let bearer = token.map(|token| ("authorization", format!("Bearer {}", token.reveal()).into()));
        let metadata = serialise(bearer.as_slice());
        Stream { service, metadata, token: None, buffer: Vec::new(), log_throttle, is_welcome: false }
    }

    /// Opens it. Fails if Envoy has no such cluster.
    pub fn open(&mut self) -> Result<(), Refused> {
        self.close();
        self.token = Some(calls::grpc_stream(&self.service, wire::SERVICE, wire::METHOD, &self.metadata)?);
        Ok(())
    }

    /// Logs a failure, unless one was logged since the last accepted stream.
    pub fn log_failure(&mut self, what: &str, now: MonoMs) {
        if let Some(line) = self.log_throttle.wrong(what, now) {
            calls::log(LogLevel::Warn, &line);
        }
    }

    /// Notes that the aggregator accepted it.
    pub fn welcomed(&mut self) {
        self.is_welcome = true;
        if let Some(line) = self.log_throttle.right() {
            calls::log(LogLevel::Warn, &line);
        }
    }

    /// Whether the aggregator has accepted it.
    pub fn is_welcome(&self) -> bool {
        self.is_welcome
    }

    /// Whether `token` names this stream.
    pub fn is(&self, token: u32) -> bool {
        self.token == Some(token)
    }

    /// Sends a frame; false if the stream has ended.
    pub fn send(&mut self, frame: &wire::FilterFrame) -> bool {
        self.buffer.clear();
        let encoded = frame.encode(&mut self.buffer).is_ok();
        encoded && self.token.is_some_and(|token| calls::grpc_send(token, &self.buffer).is_ok())
    }

    /// Closes it.
    pub fn close(&mut self) {
        self.is_welcome = false;
        if let Some(token) = self.token.take() {
            calls::grpc_cancel(token);
        }
    }
}
