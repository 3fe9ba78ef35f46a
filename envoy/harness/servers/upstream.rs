//! An upstream inside this process. It answers with the method, path and headers of the request as JSON, and adds the
//! header that `x-echo-header` names as `name=value`.

use std::convert::Infallible;

use anyhow::{Context, Result};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::processes::ports;

/// A running upstream; it ends when this value is dropped.
pub struct EchoUpstream {
    port: u16,
    serving: JoinHandle<()>,
}

impl EchoUpstream {
    /// Listens on `port`, or on a free one if it is 0.
    pub async fn start(port: u16) -> Result<Self> {
        let listener = TcpListener::bind(ports::local(port)).await.context("starting the echo upstream")?;
        let port = listener.local_addr()?.port();
        let serving = tokio::spawn(async move {
            // An accept fails when file descriptors run out; the next one may succeed.
            loop {
                if let Ok((stream, _)) = listener.accept().await {
                    let connection =
                        http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(echo));
                    tokio::spawn(connection);
                } else {
                    tokio::task::yield_now().await;
                }
            }
        });
        Ok(Self { port, serving })
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for EchoUpstream {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn echo(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut headers = Map::new();
    for name in request.headers().keys() {
        let values =
            request.headers().get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
        headers.insert(name.to_string(), Value::from(values.collect::<Vec<_>>().join(", ")));
    }
    let answer = json!({
        "method": request.method().as_str(),
        "path": request.uri().path_and_query().map_or("", |path| path.as_str()),
        "headers": headers,
    });
    let mut response = Response::new(Full::new(Bytes::from(format!("{answer}\n"))));
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/json"));
    response.headers_mut().extend(requested_header(request.headers()));
    Ok(response)
}

fn requested_header(headers: &HeaderMap) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = headers.get("x-echo-header")?.to_str().ok()?.split_once('=')?;
    Some((name.parse().ok()?, value.parse().ok()?))
}
