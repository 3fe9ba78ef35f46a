//! `envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas`: an Envoy's stream.

use super::ended::{Ended, NotedBody};
use super::quotas::Quotas;
use super::stream::{self, Credential};
use super::wire::{METHOD, QuotaResponse, SERVICE, UsageReports};
use crate::auth::Authenticator;
use crate::net::listen::ConnectionInfo;
use crate::net::method::Method;
use crate::region::send_queue::{self, Frames};
use crate::region::slots::Slots;
use hyper::body::Incoming;
use std::convert::Infallible;
use std::sync::Arc;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, http};
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
    /// The service's name.
    pub const NAME: &'static str = SERVICE;
    const METHOD: Method = Method { service: SERVICE, name: METHOD, max_bytes: MAX_MESSAGE_BYTES };

    /// Serves `quotas` to callers that `authenticator` accepts, the same as those of the rate-limit service.
    pub fn new(quotas: Arc<Quotas>, authenticator: Authenticator) -> QuotaService {
        QuotaService { quotas, authenticator, slots: Arc::default() }
    }

    /// Serves a call.
    pub fn serve(&self, request: http::Request<Incoming>) -> BoxFuture<http::Response<Body>, Infallible> {
        let ended = Ended::default();
        let (mut head, body) = request.into_parts();
        head.extensions.insert(ended.clone());
        let request = http::Request::from_parts(head, NotedBody::new(body, ended));
        let service = self.clone();
        Self::METHOD.stream(request, move |request| service.open(request))
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
