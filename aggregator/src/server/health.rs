//! `grpc.health.v1.Health`, by which proxies and orchestrators ask whether to send calls here. It needs no credential, as `/readyz` needs
//! none, and states no more.
//!
//! The aggregator itself (`""`), `ratelimit` (the name in the configurations of Envoy's reference service) and the services that it has
//! serve as long as `/readyz` is 200. Filters are served also before live control was read, since they keep what they have of it.

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
/// Answers each call by the state at that moment.
#[derive(Clone)]
pub(super) struct Checked {
    services: Arc<Services>,
    /// The names that have a state.
    names: Arc<[&'static str]>,
}

/// The service, for the gRPC listener with services of these names.
pub(super) fn service(
    services: Arc<Services>,
    names: impl Iterator<Item = &'static str>,
) -> HealthServer<Checked> {
    let names = ["", "ratelimit"].into_iter().chain(names).collect();
    HealthServer::new(Checked { services, names }).max_decoding_message_size(MAX_REQUEST_BYTES)
}

#[tonic::async_trait]
impl Health for Checked {
    type WatchStream = Empty<Result<HealthCheckResponse, Status>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let name = request.get_ref().service.as_str();
        if !self.names.contains(&name) {
            return Err(Status::not_found("there is no such service"));
        }
        let services = &self.services;
        let has_what_it_needs = name == RegionService::NAME || services.control.is_read();
        let serves =
            has_what_it_needs && services.serves.load(Relaxed) && services.draining.borrow().is_none();
        let status = if serves { ServingStatus::Serving } else { ServingStatus::NotServing };
        Ok(Response::new(HealthCheckResponse { status: status as i32 }))
    }

    /// A stream for everybody without a credential would be one to hold.
    async fn watch(&self, _: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("call Check"))
    }
}
