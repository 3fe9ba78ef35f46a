//! A folder of static files over HTTP, read when it starts. Only these files are served.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

type Files = Arc<BTreeMap<String, (HeaderValue, Bytes)>>;

/// A running server; it ends when this value is dropped.
pub struct Pages {
    address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Pages {
    /// Serves the files of `folder`, without its subfolders, at `address`; on a free port if that is 0.
    pub async fn start(folder: &Path, address: SocketAddr) -> Result<Self> {
        let files: Files = Arc::new(read(folder).with_context(|| folder.display().to_string())?);
        let listener = TcpListener::bind(address).await.with_context(|| format!("listening on {address}"))?;
        let address = listener.local_addr()?;
        let serving = tokio::spawn(async move {
            // An accept fails when file descriptors run out; the next one may succeed.
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    tokio::task::yield_now().await;
                    continue;
                };
                let files = Arc::clone(&files);
                let serve = service_fn(move |request| {
                    let answered = answer(&files, &request);
                    async move { Ok::<_, Infallible>(answered) }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), serve));
            }
        });
        Ok(Self { address, serving })
    }

    /// The address of the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn read(folder: &Path) -> Result<BTreeMap<String, (HeaderValue, Bytes)>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()).filter(|_| path.is_file()) else {
            continue;
        };
        let file = (HeaderValue::from_static(content_type(&path)), Bytes::from(std::fs::read(&path)?));
        files.insert(format!("/{name}"), file);
    }
    Ok(files)
}

/// Browsers only compile WASM while downloading if it has its own content type.
fn content_type(path: &Path) -> &'static str {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("wasm") => "application/wasm",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

fn answer(files: &Files, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let path = match request.uri().path() {
        "/" => "/index.html",
        path => path,
    };
    let file = files.get(path);
    let mut response = Response::new(Full::new(Bytes::new()));
    match (request.method(), file) {
        (&Method::GET | &Method::HEAD, Some((content_type, bytes))) => {
            *response.body_mut() = Full::new(bytes.clone());
            response.headers_mut().insert(CONTENT_TYPE, content_type.clone());
            // Browsers show a new build at the next reload.
            response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        }
        (&Method::GET | &Method::HEAD, None) => *response.status_mut() = StatusCode::NOT_FOUND,
        _ => {
            *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        }
    }
    response
}
