//! The gRPC listener: filters' streams, the services of Envoy, their health and their descriptions.

use super::health::{self, Checked};
use super::reflection::{self, Described, V1ALPHA};
use crate::net::calls::serve_calls;
use crate::net::listen::{Listener, Patience};
use crate::net::shutdown::draining;
use crate::net::tls::{Protocol, Tls};
use crate::region::services::Services;
use hyper::body::Incoming;
use hyper::{Request, Response, Uri};
use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service};
use tonic::server::NamedService;
use tonic_health::pb::health_server::HealthServer;
use tonic_reflection::server::v1::ServerReflectionServer;
use tracing::debug;

/// How long a client may take to send the HTTP/2 preface.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(5);

/// The only method of the reflection service.
const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

type Responding = BoxFuture<Response<Body>, Infallible>;

/// A service of the listener.
pub(super) struct ServedApi {
    name: &'static str,
    serve: Box<dyn Fn(Request<Incoming>) -> Responding + Send + Sync>,
}

impl ServedApi {
    pub(super) fn new(
        name: &'static str,
        serve: impl Fn(Request<Incoming>) -> Responding + Send + Sync + 'static,
    ) -> ServedApi {
        ServedApi { name, serve: Box::new(serve) }
    }
}

/// The services that need no credential.
#[derive(Clone)]
struct Public {
    health: HealthServer<Checked>,
    described: ServerReflectionServer<Described>,
}

/// Serves until the shutdown has begun and every connection has ended.
pub(super) async fn serve(
    services: Arc<Services>,
    apis: Vec<ServedApi>,
    (socket, max_connections): (TcpListener, usize),
    tls: Option<Arc<Tls>>,
) {
    let listener = Listener {
        api: "grpc",
        socket,
        tls,
        protocol: Protocol::Grpc,
        max_connections,
        patience: Patience::Preface(PREFACE_TIMEOUT),
    };
    let drain = services.draining.clone();
    let health = health::service(services.clone(), apis.iter().map(|api| api.name));
    let own = [HealthServer::<Checked>::NAME, ServerReflectionServer::<Described>::NAME, V1ALPHA];
    let described = reflection::service(apis.iter().map(|api| api.name).chain(own));
    let public = Public { health, described };
    let apis: Arc<[ServedApi]> = apis.into();
    let serve = move |connection| {
        let (apis, public) = (apis.clone(), public.clone());
        let call = move |request: Request<Incoming>| called(&apis, &public, request);
        let served = serve_calls(connection, call, draining(drain.subscribe()));
        async move {
            if let Err(error) = served.await {
                debug!(%error, "a gRPC connection failed");
            }
        }
    };
    listener.run(services.metrics.clone(), draining(services.draining.subscribe()), serve).await;
}

/// Passes a call to the service that its path names.
fn called(apis: &[ServedApi], public: &Public, mut request: Request<Incoming>) -> Responding {
    let name = request.uri().path().trim_start_matches('/').split('/').next().unwrap_or_default();
    if name == HealthServer::<Checked>::NAME {
        return public.health.clone().call(request);
    }
    if name == ServerReflectionServer::<Described>::NAME {
        return public.described.clone().call(request);
    }
    if name == V1ALPHA {
        *request.uri_mut() = Uri::from_static(REFLECTION);
        return public.described.clone().call(request);
    }
    match apis.iter().find(|api| api.name == name) {
        Some(api) => (api.serve)(request),
        None => Box::pin(ready(Ok(Status::unimplemented("there is no such service").into_http()))),
    }
}
