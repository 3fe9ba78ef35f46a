//! `envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas` as a tonic service, written by hand like
//! `region::grpc`.

use super::ended::{Ended, NotedBody};
use super::quotas::Quotas;
use super::stream::{self, Credential};
use super::wire::{METHOD, QuotaResponse, SERVICE, UsageReports};
use crate::auth::Authenticator;
use crate::net::listen::ConnectionInfo;
use crate::region::grpc::serve_streams;
use crate::region::send_queue::{self, Frames};
use crate::region::slots::Slots;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use tonic::body::Body;
use tonic::codegen::{self, BoxFuture, Context, Poll, Service, StdError, http};
use tonic::server::NamedService;
use tonic::{Request, Response, Status, Streaming};

/// Largest message that is decoded: all buckets of a stream, each as long as it may be.
pub const MAX_MESSAGE_BYTES: usize = 6 * 1024 * 1024;
/// Most responses that wait on one stream.
const MAX_RESPONSES: usize = 4;

/// Starts a stream for each call.
#[derive(Clone)]
pub struct QuotaService {
    quotas: Arc<Quotas>,
    authenticator: Authenticator,
    slots: Arc<Slots>,
}

impl QuotaService {
    /// Serves `quotas` to callers that `authenticator` accepts, the same as those of the rate-limit service.
    pub fn new(quotas: Arc<Quotas>, authenticator: Authenticator) -> QuotaService {
        QuotaService { quotas, authenticator, slots: Arc::default() }
    }

    /// Reads nothing of `request` unless its caller is authenticated and a slot is free.
    fn open(
        &self,
        request: Request<Streaming<UsageReports>>,
    ) -> Result<Response<Frames<QuotaResponse>>, Status> {
        let connection = request.extensions().get::<ConnectionInfo>();
        let credential = Credential::of(request.metadata(), connection);
        let caller = credential.caller(&self.authenticator)?;
        let Some((address, turn)) =
            connection.and_then(|connection| Some((connection.address?, connection.turn.clone())))
        else {
            return Err(Status::unavailable("the connection has ended"));
        };
        let slot =
            self.slots.take(address, turn).map_err(|error| Status::new(error.code(), error.to_string()))?;
        let (send_queue, responses) = send_queue::queue(MAX_RESPONSES);
        let authenticated = (self.authenticator.clone(), credential, caller);
        let ended = request.extensions().get::<Ended>().cloned().unwrap_or_default();
        let incoming = (request.into_inner(), ended);
        tokio::spawn(stream::run(self.quotas.clone(), incoming, send_queue, authenticated, slot));
        Ok(Response::new(responses))
    }
}

impl NamedService for QuotaService {
    const NAME: &'static str = SERVICE;
}

impl Service<Request<Streaming<UsageReports>>> for QuotaService {
    type Response = Response<Frames<QuotaResponse>>;
    type Error = Status;
    type Future = Ready<Result<Self::Response, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Streaming<UsageReports>>) -> Self::Future {
        ready(self.open(request))
    }
}

impl<B> Service<http::Request<B>> for QuotaService
where
    B: codegen::Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let ended = Ended::default();
        let (mut head, body) = request.into_parts();
        head.extensions.insert(ended.clone());
        let request = http::Request::from_parts(head, NotedBody::new(body, ended));
        serve_streams(self.clone(), request, (SERVICE, METHOD), MAX_MESSAGE_BYTES)
    }
}
