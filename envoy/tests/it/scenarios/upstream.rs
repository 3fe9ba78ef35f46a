//! An upstream whose responses a scenario writes, and holds back while its gate is closed.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::StreamExt;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::HeaderMap;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use weir_envoy::EnvoyOptions;
use weir_envoy::bootstrap::Route;
use weir_envoy::http::{Protocol, Request};
use weir_envoy::wait;

use super::common::{Region, SOON};

pub type Body = UnsyncBoxBody<Bytes, io::Error>;
pub type Response = hyper::Response<Body>;
/// Answers a request, or breaks its connection off.
pub type Answer = fn(&hyper::Request<Incoming>) -> io::Result<Response>;

/// A running upstream; it ends when this value is dropped.
pub struct Upstream {
    port: u16,
    protocol: Protocol,
    /// Whether requests are answered.
    pub gate: watch::Sender<bool>,
    /// Number of requests received.
    arrived: Arc<AtomicU64>,
    serving: JoinHandle<Infallible>,
}

impl Upstream {
    pub async fn start(protocol: Protocol, answer: Answer) -> Upstream {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (gate, arrived) = (watch::Sender::new(true), Arc::new(AtomicU64::new(0)));
        let serving = tokio::spawn(serve(listener, protocol, gate.clone(), arrived.clone(), answer));
        Upstream { port, protocol, gate, arrived, serving }
    }

    pub fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::SeqCst)
    }

    pub fn options(&self) -> EnvoyOptions {
        let route = match self.protocol {
            Protocol::Http1 => Route::Upstream(self.port),
            Protocol::Http2 => Route::Http2(self.port),
        };
        EnvoyOptions { route, ..EnvoyOptions::default() }
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Serves until it is aborted; its connections end with it.
async fn serve(
    listener: TcpListener,
    protocol: Protocol,
    gate: watch::Sender<bool>,
    arrived: Arc<AtomicU64>,
    answer: Answer,
) -> Infallible {
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let (gate, arrived) = (gate.clone(), arrived.clone());
        connections.spawn(async move {
            let service = service_fn(move |request: hyper::Request<Incoming>| {
                let (mut gate, arrived) = (gate.subscribe(), arrived.clone());
                async move {
                    arrived.fetch_add(1, Ordering::SeqCst);
                    gate.wait_for(|open| *open).await.map_err(io::Error::other)?;
                    answer(&request)
                }
            });
            let stream = TokioIo::new(stream);
            match protocol {
                Protocol::Http1 => http1::Builder::new().serve_connection(stream, service).await,
                Protocol::Http2 => {
                    http2::Builder::new(TokioExecutor::new()).serve_connection(stream, service).await
                }
            }
        });
    }
}

/// A response with this status and body.
pub fn whole(status: u16, body: &'static str) -> Response {
    streamed(status, vec![Ok(Frame::data(Bytes::from_static(body.as_bytes())))])
}

/// A response of these frames; an error breaks it off.
pub fn streamed(status: u16, frames: Vec<io::Result<Frame<Bytes>>>) -> Response {
    // The server writes what it has before it waits for more, so an error does not overtake the frames before it.
    let frames = futures_util::stream::iter(frames).then(async |frame| {
        tokio::task::yield_now().await;
        frame
    });
    let body = StreamBody::new(frames).boxed_unsync();
    hyper::Response::builder().status(status).body(body).unwrap()
}

/// Trailers with one line.
pub fn trailers(name: &'static str, value: &str) -> Frame<Bytes> {
    let mut trailers = HeaderMap::new();
    trailers.insert(name, value.parse().unwrap());
    Frame::trailers(trailers)
}

/// A header of a request as text; empty if it is missing.
pub fn header<'a>(request: &'a hyper::Request<Incoming>, name: &str) -> &'a str {
    request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// Sends `requests` requests at once, to the Envoys in turn; returns their statuses as they complete.
pub fn send_all(region: &Region, requests: usize, request: &Request) -> JoinSet<u16> {
    let mut sent = JoinSet::new();
    for at in 0..requests {
        let (address, request) = (region.envoys[at % region.envoys.len()].address(), request.clone());
        sent.spawn(async move { weir_envoy::http::send(address, request).await.unwrap().status });
    }
    sent
}

/// Waits until all requests are denied except those in progress; returns how many those are. `before` requests arrived
/// earlier.
pub async fn held_back(upstream: &Upstream, before: u64, sent: &mut JoinSet<u16>) -> u64 {
    let all = sent.len() as u64 + before;
    let mut refused = 0;
    wait::until("the others are refused", SOON, async || {
        while let Some(status) = sent.try_join_next() {
            assert_eq!(status.unwrap(), 429);
            refused += 1;
        }
        refused + upstream.arrived() == all
    })
    .await
    .unwrap();
    upstream.arrived() - before
}
