//! `/weir.v1.Region/Follow` as a tonic service. It is written by hand, as the messages are, so no code is generated.
//!
//! The token and the number of streams are checked before a frame is read or decoded.

use crate::auth::{Authenticator, Presented};
use crate::net::listen::ConnectionInfo;
use crate::region::send_queue::{self, Frames};
use crate::region::services::Services;
use crate::region::slots::Slots;
use crate::region::stream;
use crate::region::stream_error::StreamError;
use prost::Message;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use tonic::body::Body;
use tonic::codegen::{self, BoxFuture, Context, Poll, Service, StdError, http};
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use weir_core::model::wire::{FilterFrame, MAX_FRAME_BYTES, METHOD, SERVICE};

/// Largest frame that is decoded: the most that a filter sends, and room for fields that a newer filter adds.
const MAX_DECODED_BYTES: usize = MAX_FRAME_BYTES + 64 * 1024;

/// Starts a stream for each call.
#[derive(Clone)]
pub struct RegionService {
    services: Arc<Services>,
    authenticator: Authenticator,
    slots: Arc<Slots>,
}

impl RegionService {
    /// Serves `services` to the filters that `authenticator` admits.
    pub fn new(services: Arc<Services>, authenticator: Authenticator) -> RegionService {
        RegionService { services, authenticator, slots: Arc::default() }
    }

    /// Reads nothing of `request` unless its caller is authenticated and a slot is free.
    fn open(&self, request: Request<Streaming<FilterFrame>>) -> Result<Response<Frames>, Status> {
        let (send_queue, frames) = send_queue::queue(send_queue::MAX_FRAMES);
        let services = self.services.clone();
        let connection = request.extensions().get::<ConnectionInfo>();
        let presented = Presented::in_call(request.metadata().as_ref(), connection);
        let scope = match self.authenticator.admit_filter(presented) {
            Some(scope) => scope,
            None => {
                tokio::spawn(async move {
                    stream::refuse(&services, send_queue, &StreamError::Token, None).await
                });
                return Ok(Response::new(frames));
            }
        };
        let Some((address, turn)) =
            connection.and_then(|connection| Some((connection.address?, connection.turn.clone())))
        else {
            return Err(Status::unavailable("the connection has ended"));
        };
        match self.slots.take(address, turn) {
            Ok(slot) => {
                tokio::spawn(stream::run(services, request.into_inner(), send_queue, scope, Some(slot)));
                Ok(Response::new(frames))
            }
            Err(error) => {
                self.services.metrics.frame_refused(error.label());
                self.services.warn(&format!("refused a stream: {error}"), None);
                Err(Status::new(error.code(), error.to_string()))
            }
        }
    }
}

impl NamedService for RegionService {
    const NAME: &'static str = SERVICE;
}

impl Service<Request<Streaming<FilterFrame>>> for RegionService {
    type Response = Response<Frames>;
    type Error = Status;
    type Future = Ready<Result<Self::Response, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Streaming<FilterFrame>>) -> Self::Future {
        ready(self.open(request))
    }
}

impl<B> Service<http::Request<B>> for RegionService
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
        serve_streams(self.clone(), request, (SERVICE, METHOD), MAX_DECODED_BYTES)
    }
}

/// Serves a call of the only method of a service with streams; `max_bytes` is the largest message that is decoded.
pub(crate) fn serve_streams<Received, S, B>(
    service: S,
    request: http::Request<B>,
    (name, method): (&str, &str),
    max_bytes: usize,
) -> BoxFuture<http::Response<Body>, Infallible>
where
    Received: Message + Default + 'static,
    S: StreamingService<Received, Response: Message> + Send + 'static,
    S::ResponseStream: Send + 'static,
    S::Future: Send,
    B: codegen::Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    if let Some(refused) = refuse_other_method(&request, name, method) {
        return Box::pin(ready(Ok(refused)));
    }
    Box::pin(async move {
        let codec = ProstCodec::<S::Response, Received>::default();
        let mut grpc = Grpc::new(codec).max_decoding_message_size(max_bytes);
        Ok(grpc.streaming(service, request).await)
    })
}

/// The response to a call of any method but `method`, the only one of `service`.
pub(crate) fn refuse_other_method<B>(
    request: &http::Request<B>,
    service: &str,
    method: &str,
) -> Option<http::Response<Body>> {
    let called = request.uri().path().rsplit('/').next().unwrap_or_default();
    let status = || Status::unimplemented(format!("{service} has only the method {method}"));
    (called != method).then(|| status().into_http())
}
