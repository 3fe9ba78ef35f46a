//! One question to an aggregator's HTTP door, and its answer.
//!
//! Leaves to others: what is asked (`arguments`), who is trusted (`trust`), telling the answer (`show`).

use super::arguments::Server;
use super::trust::secured;

use anyhow::{Context, bail};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, Uri};
use rustls::pki_types::ServerName;
use serde_json::Value;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use weir_aggregator::admin::text::encode;
use weir_aggregator::exchange::{self, ExchangeError};

/// How long an answer may take; the server gives up before.
const WITHIN: Duration = Duration::from_secs(15);
/// Longest answer; a full page is some 700 KB.
const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;

/// Asks, and takes the answer, or says why there is none.
pub async fn ask(server: &Server, method: Method, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
    let url = &server.server;
    let answered = timeout(WITHIN, connect_and_send(server, method, path, body)).await;
    answered.unwrap_or_else(|_| bail!("{url} does not answer; see --server or WEIR_SERVER"))
}

/// A path with a query.
pub fn with_query(path: &str, pairs: &[(&str, String)]) -> String {
    let pairs: Vec<String> =
        pairs.iter().map(|(name, value)| format!("{name}={}", encode(value.as_bytes()))).collect();
    if pairs.is_empty() { path.to_owned() } else { format!("{path}?{}", pairs.join("&")) }
}

async fn connect_and_send(
    server: &Server,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> anyhow::Result<Value> {
    let url = &server.server;
    let unusable = || {
        format!("{url:?} is no server; expected http:// or https:// and a host; see --server or WEIR_SERVER")
    };
    let uri: Uri = url.parse().ok().with_context(unusable)?;
    let (host, secure) = match (uri.host(), uri.scheme_str()) {
        (Some(host), Some("http")) => (host, false),
        (Some(host), Some("https")) => (host, true),
        _ => bail!(unusable()),
    };
    let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((bare, port)).await;
    let stream = stream.with_context(|| format!("cannot connect to {url}; see --server or WEIR_SERVER"))?;
    let mut request = Request::builder().method(method).uri(path).header(HOST, format!("{host}:{port}"));
    if !server.token.is_empty() {
        request = request.header(AUTHORIZATION, format!("Bearer {}", server.token));
    }
    if body.is_some() {
        request = request.header(CONTENT_TYPE, "application/json");
    }
    let bytes = body.map(Value::to_string).unwrap_or_default();
    let request = request.body(Full::new(Bytes::from(bytes))).context("see --token or WEIR_SERVER_TOKEN")?;
    if !secure {
        let hint = "if it speaks TLS, say https://";
        return send(stream, request, || {
            format!("{url} gives no answer; {hint}; see --server or WEIR_SERVER")
        })
        .await;
    }
    let name = ServerName::try_from(bare.to_owned()).with_context(unusable)?;
    let stream = secured(stream, name, server).await?;
    // With TLS 1.3 who may not come hears of it only now.
    let hint = "with --tls-client-ca-file it wants a certificate, and these commands have none";
    send(stream, request, || format!("{url} gives no answer; {hint}")).await
}

async fn send(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
    unanswered: impl FnOnce() -> String,
) -> anyhow::Result<Value> {
    let (status, body) = match exchange::exchange(stream, request, MAX_ANSWER_BYTES).await {
        Err(ExchangeError::Unanswered(error)) => return Err(error).with_context(unanswered),
        answered => answered?,
    };
    let value: Option<Value> = serde_json::from_slice(&body).ok();
    match (status.is_success(), value) {
        (true, Some(value)) => Ok(value),
        (_, value) => {
            let message = value.as_ref().and_then(|value| value["error"]["message"].as_str());
            bail!("{}", message.unwrap_or("the answer is not one of an aggregator's HTTP door"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries() {
        assert_eq!(with_query("/p", &[]), "/p");
        let pairs = [("identifier", "a|b &=+é*".to_owned()), ("limit", "5".to_owned())];
        assert_eq!(with_query("/p", &pairs), "/p?identifier=a%7Cb%20%26%3D%2B%C3%A9%2A&limit=5");
    }
}
