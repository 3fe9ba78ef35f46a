//! A collector of spans inside this process: receives OTLP over gRPC and stores the spans unchanged.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;
use tonic::metadata::MetadataMap;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};

use crate::processes::{ports, wait};

/// A running collector; it ends when this value is dropped.
pub struct Collector {
    address: SocketAddr,
    state: Arc<State>,
    serving: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    spans: Mutex<Vec<Received>>,
    connections: AtomicUsize,
}

/// A span and its sender.
#[derive(Clone, Debug)]
pub struct Received {
    /// The resource's `service.name`.
    pub service: String,
    /// All attributes of the resource.
    pub resource: Vec<KeyValue>,
    /// The headers of the call that contained it.
    pub metadata: MetadataMap,
    pub span: Span,
}

impl Received {
    /// An attribute as text, whatever its type.
    pub fn attribute(&self, key: &str) -> Option<String> {
        text_of(&self.span.attributes, key)
    }

    /// An attribute of the resource as text.
    pub fn resource(&self, key: &str) -> Option<String> {
        text_of(&self.resource, key)
    }
}

impl Collector {
    /// Starts on a free port; uses TLS if a certificate and its key (PEM) are given.
    pub async fn start(identity: Option<(String, String)>) -> Result<Collector> {
        let listener = TcpListener::bind(ports::local(0)).await.context("starting the collector")?;
        let address = listener.local_addr()?;
        let state = Arc::new(State::default());
        let mut server = Server::builder();
        if let Some((certificate, key)) = identity {
            let tls = ServerTlsConfig::new().identity(Identity::from_pem(certificate, key));
            server = server.tls_config(tls)?;
        }
        let counted = state.clone();
        let incoming = TcpIncoming::from(listener).map(move |connection| {
            counted.connections.fetch_add(1, Relaxed);
            connection
        });
        let service = TraceServiceServer::new(Service(state.clone()));
        let serving = server.add_service(service).serve_with_incoming(incoming);
        let serving = tokio::spawn(async move { drop(serving.await) });
        Ok(Collector { address, state, serving })
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Number of connections that it has accepted.
    pub fn connections(&self) -> usize {
        self.state.connections.load(Relaxed)
    }

    /// All spans received so far.
    pub fn spans(&self) -> Vec<Received> {
        self.state.spans.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for a span that matches.
    pub async fn wait_for(
        &self,
        what: &str,
        within: Duration,
        fits: impl Fn(&Received) -> bool,
    ) -> Result<Received> {
        let found = async || Ok(self.spans().into_iter().find(|received| fits(received)));
        let waited = wait::until_some(what, within, found).await;
        waited.with_context(|| format!("these came: {:#?}", self.spans()))
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

struct Service(Arc<State>);

#[tonic::async_trait]
impl TraceService for Service {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let mut spans = self.0.spans.lock().unwrap_or_else(PoisonError::into_inner);
        for of_resource in request.resource_spans {
            let resource = of_resource.resource.map(|resource| resource.attributes).unwrap_or_default();
            let service = text_of(&resource, "service.name").unwrap_or_default();
            for span in of_resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                let (service, resource, metadata) = (service.clone(), resource.clone(), metadata.clone());
                spans.push(Received { service, resource, metadata, span });
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn text_of(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    match found.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        Value::IntValue(number) => Some(number.to_string()),
        Value::BoolValue(value) => Some(value.to_string()),
        other => Some(format!("{other:?}")),
    }
}
