//! A gRPC service with one method. The services are written by hand, as their messages are, so no code is generated.

use prost::Message;
use std::convert::Infallible;
use std::future::ready;
use tonic::body::Body;
use tonic::codegen::{self, BoxFuture, StdError, http};
use tonic::server::Grpc;
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::service_fn;

/// The only method of a service.
#[derive(Clone, Copy, Debug)]
pub struct Method {
    /// The service's name.
    pub service: &'static str,
    /// The method's name.
    pub name: &'static str,
    /// Largest message that is decoded, in bytes.
    pub max_bytes: usize,
}

impl Method {
    /// Serves a call with streams, which `open` starts.
    pub fn stream<Received, Sent, Sending, B>(
        self,
        request: http::Request<B>,
        open: impl Fn(Request<Streaming<Received>>) -> Result<Response<Sending>, Status> + Send + 'static,
    ) -> BoxFuture<http::Response<Body>, Infallible>
    where
        Received: Message + Default + 'static,
        Sent: Message + 'static,
        Sending: futures_util::Stream<Item = Result<Sent, Status>> + Send + 'static,
        B: codegen::Body + Send + 'static,
        B::Error: Into<StdError> + Send + 'static,
    {
        if let Some(refused) = self.refuse_other(&request) {
            return Box::pin(ready(Ok(refused)));
        }
        let open = service_fn(move |request| ready(open(request)));
        Box::pin(async move { Ok(self.grpc::<Sent, Received>().streaming(open, request).await) })
    }

    /// The response to a call of any other method.
    pub fn refuse_other<B>(self, request: &http::Request<B>) -> Option<http::Response<Body>> {
        let called = request.uri().path().rsplit('/').next().unwrap_or_default();
        let message = || format!("{} has only the method {}", self.service, self.name);
        (called != self.name).then(|| Status::unimplemented(message()).into_http())
    }

    /// What decodes the received messages, and encodes those that are sent.
    pub fn grpc<Sent, Received>(self) -> Grpc<ProstCodec<Sent, Received>>
    where
        Received: Message + Default + 'static,
        Sent: Message + 'static,
    {
        Grpc::new(ProstCodec::default()).max_decoding_message_size(self.max_bytes)
    }
}
