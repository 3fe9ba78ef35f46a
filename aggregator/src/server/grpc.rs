//! The gRPC listener: filters' streams, the rate-limit service, the rate-limit quota service, and their health.

use super::health::{self, Checked};
use crate::api::rlqs::QuotaService;
use crate::api::rls::RateLimitService;
use crate::net::calls::serve_calls;
use crate::net::listen::{Listener, Patience};
use crate::net::shutdown::draining;
use crate::net::tls::{Protocol, Tls};
use crate::region::grpc::RegionService;
use crate::region::services::Services;
use hyper::body::Incoming;
use hyper::{Request, Response};
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
use tracing::debug;

/// How long a client may take to send the HTTP/2 preface.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves until the shutdown has begun and every connection has ended.
pub(super) async fn serve(
    services: Arc<Services>,
    (region, rate_limits, quotas): (RegionService, RateLimitService, QuotaService),
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
    let health = health::service(services.clone());
    let serve = move |connection| {
        let (region, rate_limits, quotas) = (region.clone(), rate_limits.clone(), quotas.clone());
        let health = health.clone();
        let call = move |request: Request<Incoming>| called(&region, &rate_limits, &quotas, &health, request);
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
fn called(
    region: &RegionService,
    rate_limits: &RateLimitService,
    quotas: &QuotaService,
    health: &HealthServer<Checked>,
    request: Request<Incoming>,
) -> BoxFuture<Response<Body>, Infallible> {
    let service = request.uri().path().trim_start_matches('/').split('/').next();
    match service {
        Some(RegionService::NAME) => region.serve(request),
        Some(RateLimitService::NAME) => rate_limits.serve(request),
        Some(QuotaService::NAME) => quotas.serve(request),
        Some(HealthServer::<Checked>::NAME) => health.clone().call(request),
        _ => Box::pin(ready(Ok(Status::unimplemented("there is no such service").into_http()))),
    }
}
