//! One question to an aggregator's HTTP API, and its answer.
//!
//! Leaves to others: what is asked (`arguments`), who is trusted (`trust`), telling the answer (`show`).

use super::arguments::Server;
use super::trust::secured;

use crate::admin::text::encode;
use crate::cli::client::{self, ExchangeError};
use anyhow::{Context, bail};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode, Uri};
use rustls::pki_types::ServerName;
use serde_json::Value;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long an answer may take; the server gives up before.
const WITHIN: Duration = Duration::from_secs(15);
/// Longest answer; a full page is some 700 KB.
const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;

/// Asks, and takes the answer, or says why there is none. Another server may answer with JSON as well: `mark` is a field
/// that answers to this question have.
pub async fn call(
    server: &Server,
    method: Method,
    path: &str,
    body: Option<&Value>,
    mark: &str,
) -> anyhow::Result<Value> {
    let url = &server.api_url;
    let answered = timeout(WITHIN, connect_and_send(server, method, path, body)).await;
    let Ok(answered) = answered else { bail!("{url} does not answer; see --api-url or WEIR_API_URL") };
    let (status, value) = answered?;
    match value {
        Some(value) if status.is_success() && value.get(mark).is_some() => Ok(value),
        Some(value) if !status.is_success() && value["error"]["message"].is_string() => {
            bail!("{}", refusal(&value["error"]))
        }
        _ => bail!(
            "{url} is no aggregator's HTTP API: its answer ({status}) is none of those; see --api-url or WEIR_API_URL"
        ),
    }
}

/// Why an aggregator refuses, with what these commands can do about it.
fn refusal(error: &Value) -> String {
    let text = |name: &str| error[name].as_str().unwrap_or_default();
    let (message, field) = (text("message"), text("field"));
    match text("code") {
        "token_missing" => "the server asks for a token; set --api-token or WEIR_API_TOKEN".to_owned(),
        "token_malformed" => {
            "what --api-token or WEIR_API_TOKEN gives is no token; weir-aggregator token makes one".to_owned()
        }
        "token_unknown" => format!("{message}; see --api-token or WEIR_API_TOKEN"),
        "workspace_not_allowed" => "the token is for another workspace; leave --workspace out".to_owned(),
        "not_found" => {
            "nothing of this kind is said of it; weir-aggregator overrides list shows what is".to_owned()
        }
        "invalid_request" if field == "expires_at" => "--expires-at is not a moment to come".to_owned(),
        _ => match message.strip_prefix(&format!("{field}: ")).filter(|_| !field.is_empty()) {
            Some(rest) => format!("{}: {rest}", flag(field)),
            None => message.to_owned(),
        },
    }
}

/// A field as its argument.
fn flag(field: &str) -> String {
    if field == "credit" { "NUMBER".to_owned() } else { format!("--{}", field.replace('_', "-")) }
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
) -> anyhow::Result<(StatusCode, Option<Value>)> {
    let url = &server.api_url;
    let unusable = || {
        format!(
            "{url:?} is no server; expected http:// or https:// and a host; see --api-url or WEIR_API_URL"
        )
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
    let stream = stream.with_context(|| format!("cannot connect to {url}; see --api-url or WEIR_API_URL"))?;
    let mut request = Request::builder().method(method).uri(path).header(HOST, format!("{host}:{port}"));
    if !server.api_token.is_empty() {
        request = request.header(AUTHORIZATION, format!("Bearer {}", server.api_token));
    }
    if body.is_some() {
        request = request.header(CONTENT_TYPE, "application/json");
    }
    let bytes = body.map(Value::to_string).unwrap_or_default();
    let request = request.body(Full::new(Bytes::from(bytes))).context("see --api-token or WEIR_API_TOKEN")?;
    if !secure {
        let hint = "if it speaks TLS, say https://";
        return send(stream, request, || {
            format!("{url} gives no answer; {hint}; see --api-url or WEIR_API_URL")
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
) -> anyhow::Result<(StatusCode, Option<Value>)> {
    let (status, body) = match client::exchange(stream, request, MAX_ANSWER_BYTES).await {
        Err(ExchangeError::Unanswered(error)) => return Err(error).with_context(unanswered),
        answered => answered?,
    };
    Ok((status, serde_json::from_slice(&body).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_arguments() {
        for (code, field, message, expected) in [
            ("token_missing", "", "no token was sent", "--api-token or WEIR_API_TOKEN"),
            ("not_found", "", "GET /v1/overrides", "overrides list"),
            ("workspace_not_allowed", "workspace", "workspace: leave the field out", "leave --workspace out"),
            ("invalid_request", "expires_in", "expires_in: missing; such", "--expires-in: missing; such"),
            ("invalid_request", "expires_at", "expires_at: expected ms", "--expires-at is not"),
            ("invalid_request", "limit", "limit: expected", "--limit: expected"),
            ("invalid_request", "credit", "credit: expected", "NUMBER: expected"),
            ("busy", "", "others are changing", "others are changing"),
        ] {
            let said = refusal(&serde_json::json!({"code": code, "field": field, "message": message}));
            assert!(said.contains(expected), "{code}: {said}");
        }
    }

    #[test]
    fn queries() {
        assert_eq!(with_query("/p", &[]), "/p");
        let pairs = [("identifier", "a|b &=+é*".to_owned()), ("limit", "5".to_owned())];
        assert_eq!(with_query("/p", &pairs), "/p?identifier=a%7Cb%20%26%3D%2B%C3%A9%2A&limit=5");
    }
}
