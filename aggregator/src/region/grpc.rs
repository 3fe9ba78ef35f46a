//! `/weir.v1.Region/Follow`: a filter's stream.
//!
//! The token and the number of streams are checked before a frame is read or decoded.

use crate::auth::{Authenticator, Presented};
use crate::net::listen::ConnectionInfo;
use crate::net::method::Method;
use crate::region::send_queue::{self, Frames};
use crate::region::services::Services;
use crate::region::slots::Slots;
use crate::region::stream;
use crate::region::stream_error::StreamError;
use hyper::body::Incoming;
use std::convert::Infallible;
use std::sync::Arc;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, http};
use tonic::{Request, Response, Status, Streaming};
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
    /// The service's name.
    pub const NAME: &'static str = SERVICE;
    const METHOD: Method = Method { service: SERVICE, name: METHOD, max_bytes: MAX_DECODED_BYTES };

    /// Serves `services` to the filters that `authenticator` admits.
    pub fn new(services: Arc<Services>, authenticator: Authenticator) -> RegionService {
        RegionService { services, authenticator, slots: Arc::default() }
    }

    /// Serves a call.
    pub fn serve(&self, request: http::Request<Incoming>) -> BoxFuture<http::Response<Body>, Infallible> {
        let service = self.clone();
        Self::METHOD.stream(request, move |request| service.open(request))
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
