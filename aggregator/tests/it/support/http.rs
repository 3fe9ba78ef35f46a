//! A client of the HTTP API, and configuration files for it.

use crate::support::server::{DEADLINE, Weir, settings, start_with, until};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::SendRequest;
use hyper::{HeaderMap, Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::path::{Path, PathBuf};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use weir_aggregator::api::ApiSettings;
use weir_aggregator::auth::{Entry, Listed, NewToken};
use weir_aggregator::server::Settings;

pub const JSON: (&str, &str) = ("content-type", "application/json");

/// The path of live control.
pub const OVERRIDES: &str = "/v1/overrides";

pub async fn start_apis(api: ApiSettings) -> Weir {
    start_with(Settings { api, ..settings() }).await
}

/// An answer; its body is parsed if it is JSON.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Value,
}

/// A kept-alive connection.
pub struct Client {
    sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
}

impl Client {
    pub async fn connect(weir: &Weir) -> Client {
        Client::over(TcpStream::connect(weir.server.http_address().unwrap()).await.unwrap()).await
    }

    pub async fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Client {
        let (sender, driver) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        Client { sender, driver: tokio::spawn(async move { drop(driver.await) }) }
    }

    pub async fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut request = Request::builder().method(Method::from_bytes(method.as_bytes()).unwrap()).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", "localhost");
        }
        let request = request.body(Full::new(Bytes::copy_from_slice(body))).unwrap();
        timeout(DEADLINE, self.sender.ready()).await.unwrap().unwrap();
        let response = timeout(DEADLINE, self.sender.send_request(request)).await.unwrap().unwrap();
        let (head, body) = response.into_parts();
        let body = timeout(DEADLINE, body.collect()).await.unwrap().unwrap().to_bytes();
        let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
        Answer { status: head.status.as_u16(), headers: head.headers, body }
    }

    pub async fn post(&mut self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, &[JSON], body.to_string().as_bytes()).await
    }

    pub async fn post_as(&mut self, token: &str, path: &str, body: &Value) -> Answer {
        let bearer = format!("Bearer {token}");
        self.send("POST", path, &[JSON, ("authorization", &bearer)], body.to_string().as_bytes()).await
    }

    /// Whether the server has closed the connection.
    pub fn is_over(&self) -> bool {
        self.driver.is_finished()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Sets live control, and waits until the aggregator that stored it has read it back.
pub async fn put(weir: &Weir, body: Value) -> Value {
    let mut client = Client::connect(weir).await;
    let answer = client.send("PUT", OVERRIDES, &[JSON], body.to_string().as_bytes()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    until_read_back(weir, &answer.body).await;
    answer.body
}

/// Waits until an aggregator has a change.
pub async fn until_read_back(weir: &Weir, change: &Value) {
    let revision = change["revision"].as_u64().unwrap();
    let book = || weir.server.services().control.book();
    let is_read = || book().edition().is_some_and(|held| held.revision >= revision);
    until("the change is read back", is_read).await;
}

/// A new token for the namespaces in which tests count, and its entry with these zones.
pub fn token(name: &str, workspace: &str, zones: &str) -> (String, String) {
    let namespaces = Some(Listed::These(["api", "default"].map(str::to_owned).into()));
    let NewToken { token, entry } =
        NewToken::new(Entry { namespaces, ..Entry::application(name, workspace) }).unwrap();
    (token, entry.replace("zones: []", &format!("zones: {zones}")))
}

pub fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path
}
