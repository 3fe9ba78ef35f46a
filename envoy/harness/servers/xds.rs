//! An xDS server for the rate-limit service's limits: an aggregated discovery stream, state of the world.
//!
//! It sends what it was given last to each stream, and records all requests. The messages are those of
//! `envoy/service/discovery/v3/discovery.proto`, with the fields that a test needs.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use anyhow::{Context as _, Result};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::{Grpc, NamedService};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::processes::ports;

/// The type of the resources that the aggregator asks for.
const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// A running server; it ends when this value is dropped.
pub struct XdsServer {
    address: SocketAddr,
    state: Arc<State>,
    serving: JoinHandle<()>,
}

struct State {
    sent: watch::Sender<Option<DiscoveryResponse>>,
    /// Raised to end all streams.
    ended: watch::Sender<u64>,
    requests: Mutex<Vec<XdsRequest>>,
    nonces: AtomicU64,
}

/// A received request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdsRequest {
    pub node: String,
    pub type_url: String,
    pub version: String,
    pub nonce: String,
    /// Why the response was refused.
    pub error: Option<String>,
    pub authorization: Option<String>,
}

/// A resource, of any type.
#[derive(Clone, PartialEq, prost::Message)]
pub struct XdsResource {
    #[prost(string, tag = "1")]
    pub type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct DiscoveryRequest {
    #[prost(string, tag = "1")]
    version_info: String,
    #[prost(message, optional, tag = "2")]
    node: Option<Node>,
    #[prost(string, tag = "4")]
    type_url: String,
    #[prost(string, tag = "5")]
    response_nonce: String,
    #[prost(message, optional, tag = "6")]
    error_detail: Option<ErrorDetail>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Node {
    #[prost(string, tag = "1")]
    id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ErrorDetail {
    #[prost(string, tag = "2")]
    message: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct DiscoveryResponse {
    #[prost(string, tag = "1")]
    version_info: String,
    #[prost(message, repeated, tag = "2")]
    resources: Vec<XdsResource>,
    #[prost(string, tag = "4")]
    type_url: String,
    #[prost(string, tag = "5")]
    nonce: String,
}

impl XdsResource {
    /// A `RateLimitConfig`, given as a file of limits would contain it, in JSON.
    pub fn rate_limits(config: &Value) -> XdsResource {
        let mut value = Vec::new();
        field(1, text(&config["domain"]), &mut value);
        field(2, text(&config["domain"]), &mut value);
        add_descriptors(3, &config["descriptors"], &mut value);
        XdsResource { type_url: TYPE_URL.to_owned(), value }
    }
}

/// Encodes a field with a length (protobuf's wire type 2), unless it is empty.
fn field(tag: u8, bytes: &[u8], out: &mut Vec<u8>) {
    if !bytes.is_empty() {
        out.push(tag << 3 | 2);
        prost::encoding::encode_varint(bytes.len() as u64, out);
        out.extend_from_slice(bytes);
    }
}

/// Encodes a number or a boolean (wire type 0), unless it is 0.
fn number(tag: u8, number: u64, out: &mut Vec<u8>) {
    if number != 0 {
        out.push(tag << 3);
        prost::encoding::encode_varint(number, out);
    }
}

fn text(value: &Value) -> &[u8] {
    value.as_str().unwrap_or_default().as_bytes()
}

fn add_descriptors(tag: u8, descriptors: &Value, out: &mut Vec<u8>) {
    for descriptor in descriptors.as_array().into_iter().flatten() {
        let mut bytes = Vec::new();
        field(1, text(&descriptor["key"]), &mut bytes);
        field(2, text(&descriptor["value"]), &mut bytes);
        if let Some(limit) = descriptor.get("rate_limit") {
            let units = ["unknown", "second", "minute", "hour", "day", "month", "year", "week"];
            let unit = units.iter().position(|unit| limit["unit"] == *unit).unwrap_or_default();
            let mut policy = Vec::new();
            number(1, unit as u64, &mut policy);
            number(2, limit["requests_per_unit"].as_u64().unwrap_or_default(), &mut policy);
            number(3, (limit["unlimited"] == true).into(), &mut policy);
            field(4, text(&limit["name"]), &mut policy);
            field(3, &policy, &mut bytes);
        }
        add_descriptors(4, &descriptor["descriptors"], &mut bytes);
        number(5, (descriptor["shadow_mode"] == true).into(), &mut bytes);
        number(7, (descriptor["quota_mode"] == true).into(), &mut bytes);
        if let Some(metadata) = descriptor["metadata"].as_object() {
            let mut object = Vec::new();
            for (name, member) in metadata {
                let (mut value, mut entry) = (Vec::new(), Vec::new());
                field(3, text(member), &mut value);
                field(1, name.as_bytes(), &mut entry);
                field(2, &value, &mut entry);
                field(1, &entry, &mut object);
            }
            field(8, &object, &mut bytes);
        }
        field(tag, &bytes, out);
    }
}

impl XdsServer {
    /// Starts on a free port. With TLS, `identity` is its certificate and key, and clients need a certificate of `clients`.
    pub async fn start(tls: Option<((String, String), String)>) -> Result<XdsServer> {
        XdsServer::start_at(0, tls).await
    }

    /// Starts on this port.
    pub async fn start_at(port: u16, tls: Option<((String, String), String)>) -> Result<XdsServer> {
        let listener = TcpListener::bind(ports::local(port)).await.context("starting the xDS server")?;
        let address = listener.local_addr()?;
        let state = Arc::new(State {
            sent: watch::Sender::new(None),
            ended: watch::Sender::new(0),
            requests: Mutex::default(),
            nonces: AtomicU64::new(0),
        });
        let mut server = Server::builder();
        if let Some(((certificate, key), clients)) = tls {
            let tls = ServerTlsConfig::new()
                .identity(Identity::from_pem(certificate, key))
                .client_ca_root(Certificate::from_pem(clients));
            server = server.tls_config(tls)?;
        }
        let serving =
            server.add_service(Discovery(state.clone())).serve_with_incoming(TcpIncoming::from(listener));
        let serving = tokio::spawn(async move { drop(serving.await) });
        Ok(XdsServer { address, state, serving })
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Sends these resources to all streams, now and later.
    pub fn set(&self, version: &str, resources: Vec<XdsResource>) {
        self.set_of_type(TYPE_URL, version, resources);
    }

    /// Sends resources of another type.
    pub fn set_of_type(&self, type_url: &str, version: &str, resources: Vec<XdsResource>) {
        self.state.sent.send_replace(Some(DiscoveryResponse {
            version_info: version.to_owned(),
            resources,
            type_url: type_url.to_owned(),
            nonce: String::new(),
        }));
    }

    /// Ends all streams.
    pub fn end_streams(&self) {
        self.state.ended.send_modify(|ended| *ended += 1);
    }

    /// All requests, in order.
    pub fn requests(&self) -> Vec<XdsRequest> {
        self.state.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for XdsServer {
    fn drop(&mut self) {
        self.end_streams();
        self.serving.abort();
    }
}

/// Serves each call as a stream.
#[derive(Clone)]
struct Discovery(Arc<State>);

impl NamedService for Discovery {
    const NAME: &'static str = "envoy.service.discovery.v3.AggregatedDiscoveryService";
}

type Future<T, E> = Pin<Box<dyn std::future::Future<Output = Result<T, E>> + Send>>;

impl Service<http::Request<Body>> for Discovery {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Future<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let call = Call(self.0.clone());
        let codec = ProstCodec::<DiscoveryResponse, DiscoveryRequest>::default();
        Box::pin(async move { Ok(Grpc::new(codec).streaming(call, request).await) })
    }
}

struct Call(Arc<State>);

impl Service<Request<Streaming<DiscoveryRequest>>> for Call {
    type Response = Response<ReceiverStream<Result<DiscoveryResponse, Status>>>;
    type Error = Status;
    type Future = Future<Self::Response, Status>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Streaming<DiscoveryRequest>>) -> Self::Future {
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(stream(self.0.clone(), request, sender));
        Box::pin(std::future::ready(Ok(Response::new(ReceiverStream::new(receiver)))))
    }
}

async fn stream(
    state: Arc<State>,
    request: Request<Streaming<DiscoveryRequest>>,
    sender: mpsc::Sender<Result<DiscoveryResponse, Status>>,
) {
    let header = request.metadata().get("authorization").and_then(|value| value.to_str().ok());
    let authorization = header.map(str::to_owned);
    let (mut sent, mut ended) = (state.sent.subscribe(), state.ended.subscribe());
    sent.mark_changed();
    let (mut requests, mut began) = (request.into_inner(), false);
    loop {
        tokio::select! {
            request = requests.message() => {
                let Ok(Some(request)) = request else { return };
                began = true;
                let request = XdsRequest {
                    node: request.node.unwrap_or_default().id,
                    type_url: request.type_url,
                    version: request.version_info,
                    nonce: request.response_nonce,
                    error: request.error_detail.map(|detail| detail.message),
                    authorization: authorization.clone(),
                };
                state.requests.lock().unwrap_or_else(PoisonError::into_inner).push(request);
            }
            _ = sent.changed(), if began => {
                let response = sent.borrow_and_update().clone();
                let Some(mut response) = response else { continue };
                response.nonce = state.nonces.fetch_add(1, Relaxed).to_string();
                if sender.send(Ok(response)).await.is_err() {
                    return;
                }
            }
            _ = ended.changed() => {
                // The client may be gone.
                let _ = sender.send(Err(Status::unavailable("the test ends the stream"))).await;
                return;
            }
        }
    }
}
