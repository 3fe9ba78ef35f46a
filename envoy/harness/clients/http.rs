//! A small client for HTTP/1.1, and for HTTP/2 without TLS: one connection, one request at a time. It has no redirects,
//! TLS or pooling.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use http_body_util::{BodyExt, Full};
use hyper::Method;
use hyper::body::Bytes;
use hyper::client::conn::{http1, http2};
use hyper::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::http::uri::{Authority, PathAndQuery, Scheme, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::net::TcpStream;

/// A request. Header values are bytes, because scenarios also send values that are not text.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: Method,
    pub path: String,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub body: Bytes,
}

impl Request {
    pub fn get(path: &str) -> Self {
        Self { method: Method::GET, path: path.to_owned(), headers: Vec::new(), body: Bytes::new() }
    }

    pub fn post(path: &str, body: impl Into<Bytes>) -> Self {
        Self { method: Method::POST, body: body.into(), ..Self::get(path) }
    }

    /// Adds a header. Panics on a name or value that HTTP does not allow; scenarios only pass constants.
    #[must_use]
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a header name");
        let value = HeaderValue::from_bytes(value.as_ref()).expect("a header value");
        self.headers.push((name, value));
        self
    }
}

/// A complete response.
#[derive(Clone, Debug)]
pub struct Response {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Response {
    /// A header's value as text; `None` if the header is missing or not text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Result<Value> {
        serde_json::from_slice(&self.body).with_context(|| format!("not JSON: {}", self.text()))
    }
}

/// A connection that is kept alive between requests.
pub struct Connection {
    sender: Sender,
    host: HeaderValue,
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// The protocol of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http1,
    /// HTTP/2 with prior knowledge. The `host` header of a request becomes its `:authority`.
    Http2,
}

impl Connection {
    pub async fn open(address: SocketAddr) -> Result<Self> {
        Self::open_by(Protocol::Http1, address).await
    }

    pub async fn open_by(protocol: Protocol, address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await.with_context(|| format!("connecting to {address}"))?;
        stream.set_nodelay(true)?;
        let stream = TokioIo::new(stream);
        // A connection ends with its sender. Its errors are returned to the request in progress.
        let sender = match protocol {
            Protocol::Http1 => {
                let (sender, connection) = http1::handshake(stream).await?;
                tokio::spawn(connection);
                Sender::Http1(sender)
            }
            Protocol::Http2 => {
                let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await?;
                tokio::spawn(connection);
                Sender::Http2(sender)
            }
        };
        Ok(Self { sender, host: HeaderValue::from_str(&address.to_string())? })
    }

    /// Whether the server keeps the connection open for another request.
    pub fn is_open(&self) -> bool {
        match &self.sender {
            Sender::Http1(sender) => !sender.is_closed(),
            Sender::Http2(sender) => !sender.is_closed(),
        }
    }

    pub async fn send(&mut self, request: Request) -> Result<Response> {
        let mut send_queue = hyper::Request::new(Full::new(request.body));
        *send_queue.method_mut() = request.method;
        let path: PathAndQuery =
            request.path.parse().with_context(|| format!("the path {:?}", request.path))?;
        *send_queue.uri_mut() = path.clone().into();
        for (name, value) in request.headers {
            send_queue.headers_mut().append(name, value);
        }
        send_queue.headers_mut().entry(HOST).or_insert_with(|| self.host.clone());
        let response = match &mut self.sender {
            Sender::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(send_queue).await?
            }
            Sender::Http2(sender) => {
                let host = send_queue.headers_mut().remove(HOST).context("a host")?;
                let mut parts = hyper::http::uri::Parts::default();
                parts.scheme = Some(Scheme::HTTP);
                parts.authority = Some(Authority::try_from(host.as_bytes())?);
                parts.path_and_query = Some(path);
                *send_queue.uri_mut() = Uri::from_parts(parts)?;
                sender.ready().await?;
                sender.send_request(send_queue).await?
            }
        };
        let (head, body) = response.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok(Response { status: head.status.as_u16(), headers: head.headers, body })
    }
}

/// Sends one request on a new connection.
pub async fn send(address: SocketAddr, request: Request) -> Result<Response> {
    send_by(Protocol::Http1, address, request).await
}

/// Sends one request on a new connection, with that protocol.
pub async fn send_by(protocol: Protocol, address: SocketAddr, request: Request) -> Result<Response> {
    Connection::open_by(protocol, address).await?.send(request).await
}
