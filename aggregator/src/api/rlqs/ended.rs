//! Whether the client has ended a stream (HTTP/2's END_STREAM). Tonic ends a stream in the same way if the client resets it.

use hyper::body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

/// Shared by a request's body and the stream that is read from it.
#[derive(Clone, Debug, Default)]
pub struct Ended(Arc<AtomicBool>);

impl Ended {
    /// Whether the client has ended the stream.
    pub fn is_ended(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// A request's body that notes its end.
pub struct NotedBody<B> {
    body: Pin<Box<B>>,
    ended: Ended,
}

impl<B> NotedBody<B> {
    /// The same body; its end is noted in `ended`.
    pub fn new(body: B, ended: Ended) -> NotedBody<B> {
        NotedBody { body: Box::pin(body), ended }
    }
}

impl<B: Body> Body for NotedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.get_mut();
        let frame = ready!(this.body.as_mut().poll_frame(context));
        let is_last = match &frame {
            None => true,
            Some(Ok(frame)) => frame.is_trailers(),
            Some(Err(_)) => false,
        };
        this.ended.0.fetch_or(is_last, Relaxed);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
