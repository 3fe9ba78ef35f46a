//! The worker's gRPC stream to the aggregator, as Envoy keeps it.
//!
//! Envoy aborts on a service that is only a cluster's name, so a serialised `envoy.config.core.v3.GrpcService` is
//! passed. An opened stream may close a moment later: it counts once the aggregator has welcomed it. After a close
//! the token is cancelled too, as Envoy keeps it otherwise.
//!
//! Leaves to others: when to open it and what to say (`weir_core::limiter`).

use crate::host::{self, Refused};
use prost::Message;
use proxy_wasm::types::LogLevel;
use weir_core::rules::Aggregator;
use weir_core::wire;

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

/// One stream at a time.
#[derive(Debug)]
pub struct Stream {
    cluster: String,
    service: Vec<u8>,
    token: Option<u32>,
    buffer: Vec<u8>,
    /// Something is wrong and the log knows it: what follows until the next welcome is mostly its consequence.
    complained: bool,
}

impl Stream {
    /// To the aggregator that a configuration names.
    pub fn new(aggregator: &Aggregator) -> Stream {
        let envoy_grpc = EnvoyGrpc {
            cluster_name: aggregator.cluster.clone(),
            authority: aggregator.authority.clone().unwrap_or_default(),
        };
        let service = GrpcService { envoy_grpc: Some(envoy_grpc) }.encode_to_vec();
        let cluster = aggregator.cluster.clone();
        Stream { cluster, service, token: None, buffer: Vec::new(), complained: false }
    }

    /// Opens it, unless Envoy refuses (no such cluster).
    pub fn open(&mut self) -> Result<(), Refused> {
        self.close();
        self.token = Some(host::grpc_stream(&self.service, wire::SERVICE, wire::METHOD)?);
        Ok(())
    }

    /// Tells the log what is wrong, once until the next welcome: a stream is retried every second or faster.
    pub fn complain(&mut self, what: &str) {
        if !std::mem::replace(&mut self.complained, true) {
            let text = format!(
                "weir: no stream to the aggregator (cluster {:?}): {what}. Limits hold by what this Envoy knows; retrying",
                self.cluster
            );
            host::log(LogLevel::Warn, &text);
        }
    }

    /// The aggregator has accepted it.
    pub fn welcomed(&mut self) {
        if std::mem::replace(&mut self.complained, false) {
            let text = format!("weir: the stream to the aggregator (cluster {:?}) is up", self.cluster);
            host::log(LogLevel::Warn, &text);
        }
    }

    /// Whether `token` is this stream's.
    pub fn is(&self, token: u32) -> bool {
        self.token == Some(token)
    }

    /// Sends a frame; false if the stream is gone.
    pub fn send(&mut self, frame: &wire::FilterFrame) -> bool {
        self.buffer.clear();
        let encoded = frame.encode(&mut self.buffer).is_ok();
        encoded && self.token.is_some_and(|token| host::grpc_send(token, &self.buffer).is_ok())
    }

    /// Forgets it.
    pub fn close(&mut self) {
        if let Some(token) = self.token.take() {
            host::grpc_cancel(token);
        }
    }
}
