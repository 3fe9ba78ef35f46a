//! `grpc.health.v1.Health`, by which proxies and orchestrators ask whether to send calls here. It needs no credential, as `/readyz` needs
//! none, and tells no more.
//!
//! The aggregator itself (`""`), `ratelimit` (the name in the configurations of Envoy's reference service) and the services that it has
//! serve as long as `/readyz` is 200. Filters are served also before live control was read, since they keep what they have of it.

use crate::api::rlqs::QuotaService;
use crate::api::rls::RateLimitService;
use crate::region::grpc::RegionService;
use crate::region::services::Services;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio_stream::Empty;
use tonic::{Request, Response, Status};
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

/// Largest request that is decoded. It holds a name.
const MAX_REQUEST_BYTES: usize = 1024;
/// The names that have a state.
const NAMES: [&str; 5] = ["", "ratelimit", RegionService::NAME, RateLimitService::NAME, QuotaService::NAME];

/// Answers each call by the state at that moment.
#[derive(Clone)]
pub(super) struct Checked(Arc<Services>);

/// The service, for the gRPC listener.
pub(super) fn service(services: Arc<Services>) -> HealthServer<Checked> {
    HealthServer::new(Checked(services)).max_decoding_message_size(MAX_REQUEST_BYTES)
}

#[tonic::async_trait]
impl Health for Checked {
    type WatchStream = Empty<Result<HealthCheckResponse, Status>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let name = request.get_ref().service.as_str();
        if !NAMES.contains(&name) {
            return Err(Status::not_found("there is no such service"));
        }
        let has_what_it_needs = name == RegionService::NAME || self.0.control.is_read();
        let serves = has_what_it_needs && self.0.serves.load(Relaxed) && self.0.draining.borrow().is_none();
        let status = if serves { ServingStatus::Serving } else { ServingStatus::NotServing };
        Ok(Response::new(HealthCheckResponse { status: status as i32 }))
    }

    /// A stream for everybody without a credential would be one to hold.
    async fn watch(&self, _: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("call Check"))
    }
}
