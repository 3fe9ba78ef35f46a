//! Serves gRPC calls on one connection, by HTTP/2, in the connection's own task.
//!
//! A task for each call would be run by another thread: that thread has to be woken, the connection's thread has to be woken
//! for the response, and responses seldom share a write. With Envoy's `ratelimit` filter as the client, a call costs a third
//! less in the connection's task. Calls of one connection therefore share a thread; connections are spread over all threads.

use super::listen::{Connection, ConnectionInfo};
use futures_util::stream::{FuturesUnordered, Stream};
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tonic::body::Body;
use tonic::codegen::BoxFuture;
use tonic::transport::server::Connected;

/// How often an idle connection is pinged, and how long the answer may take.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// Most streams on one connection. A worker of an Envoy opens one or two on its own connection.
const MAX_STREAMS_PER_CONNECTION: u32 = 256;

/// Serves until the client closes the connection, or until `ending` is complete and the calls in progress have ended. Requests
/// carry the connection's [`ConnectionInfo`] as an extension.
pub async fn serve_calls<S>(
    connection: Connection,
    serve: S,
    ending: impl Future<Output = ()>,
) -> hyper::Result<()>
where
    S: Fn(Request<Incoming>) -> BoxFuture<Response<Body>, Infallible>,
{
    let info: ConnectionInfo = connection.connect_info();
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(info.clone());
        serve(request)
    });
    let calls = Calls::default();
    let served = http2::Builder::new(calls.clone())
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(KEEPALIVE))
        .keep_alive_timeout(KEEPALIVE)
        .max_concurrent_streams(MAX_STREAMS_PER_CONNECTION)
        .serve_connection(TokioIo::new(connection), service);
    let (mut served, mut ending) = (pin!(served), pin!(ending));
    let (mut running, mut ends) = (FuturesUnordered::new(), false);
    poll_fn(move |cx| {
        if !ends && ending.as_mut().poll(cx).is_ready() {
            ends = true;
            served.as_mut().graceful_shutdown();
        }
        if let Poll::Ready(ended) = served.as_mut().poll(cx) {
            return Poll::Ready(ended);
        }
        running.extend(calls.0.lock().drain(..));
        // The response of a call wakes this task, which then writes it.
        while let Poll::Ready(Some(())) = Pin::new(&mut running).poll_next(cx) {}
        Poll::Pending
    })
    .await
}

/// The calls that a connection has accepted and that do not run yet.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<Call>>>);

type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Calls {
    fn execute(&self, call: F) {
        // This happens only while the connection is polled, after which its calls are taken.
        self.0.lock().push(Box::pin(call));
    }
}
