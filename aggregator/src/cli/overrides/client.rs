//! One request to an aggregator's HTTP API.

use super::arguments::Server;
use super::trust::secured;

use crate::cli::client::{self, ExchangeError};
use crate::telemetry::text::encode;
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

/// Deadline of an answer; the server's own deadlines are shorter.
const WITHIN: Duration = Duration::from_secs(15);
/// Longest answer; a full page has about 700 KB.
const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;

/// The target of a deletion has no control of that kind and window.
#[derive(Debug, thiserror::Error)]
#[error("there is no control of this kind for the target; see weir-aggregator overrides list")]
pub struct NoControl;

/// Sends a request and returns the answer. Other servers may also answer with JSON, so `mark` names a field that the
/// expected answer has.
pub async fn call(
    server: &Server,
    method: Method,
    path: &str,
    body: Option<&Value>,
    mark: &str,
) -> anyhow::Result<Value> {
    let url = &server.api_url;
    let method_deletes = method == Method::DELETE;
    let answered = timeout(WITHIN, connect_and_send(server, method, path, body)).await;
    let Ok(answered) = answered else { bail!("{url} does not answer; check --api-url or WEIR_API_URL") };
    let (status, value) = answered?;
    match value {
        Some(value) if status.is_success() && value.get(mark).is_some() => Ok(value),
        Some(value) if value["error"]["code"] == "not_found" && method_deletes => Err(NoControl.into()),
        Some(value) if !status.is_success() && value["error"]["message"].is_string() => {
            bail!("{}", refusal(&value["error"]))
        }
        _ => bail!(
            "{url} is not an aggregator's HTTP API (its answer has status {status}); check --api-url or WEIR_API_URL"
        ),
    }
}

/// The error of an aggregator, in terms of the commands' options.
fn refusal(error: &Value) -> String {
    let text = |name: &str| error[name].as_str().unwrap_or_default();
    let (message, field) = (text("message"), text("field"));
    match text("code") {
        "token_missing" => "the server requires a token; set --api-token or WEIR_API_TOKEN".to_owned(),
        "token_malformed" => {
            "the token in --api-token or WEIR_API_TOKEN is malformed; create one with weir-aggregator token"
                .to_owned()
        }
        "token_unknown" => format!("{message}; check --api-token or WEIR_API_TOKEN"),
        "workspace_not_allowed" => "the token belongs to another workspace; omit --workspace".to_owned(),
        "invalid_request" if field == "expires_at" => "--expires-at is not in the future".to_owned(),
        _ => match message.strip_prefix(&format!("{field}: ")).filter(|_| !field.is_empty()) {
            Some(rest) => format!("{}: {rest}", flag(field)),
            None => message.to_owned(),
        },
    }
}

/// The option for a field.
fn flag(field: &str) -> String {
    if field == "credit" { "NUMBER".to_owned() } else { format!("--{}", field.replace('_', "-")) }
}

/// A path with query parameters.
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
            "{url:?} is not a server's URL; set --api-url or WEIR_API_URL to http:// or https:// with a host"
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
    let stream =
        stream.with_context(|| format!("cannot connect to {url}; check --api-url or WEIR_API_URL"))?;
    let mut request = Request::builder().method(method).uri(path).header(HOST, format!("{host}:{port}"));
    if !server.api_token.is_empty() {
        request = request.header(AUTHORIZATION, format!("Bearer {}", server.api_token));
    }
    if body.is_some() {
        request = request.header(CONTENT_TYPE, "application/json");
    }
    let bytes = body.map(Value::to_string).unwrap_or_default();
    let request =
        request.body(Full::new(Bytes::from(bytes))).context("check --api-token or WEIR_API_TOKEN")?;
    if !secure {
        let hint = "if it uses TLS, use https://";
        return send(stream, request, || {
            format!("{url} does not answer; {hint}; check --api-url or WEIR_API_URL")
        })
        .await;
    }
    let name = ServerName::try_from(bare.to_owned()).with_context(unusable)?;
    let stream = secured(stream, name, server).await?;
    // With TLS 1.3, a client without a required certificate learns so only when it reads the answer.
    let hint = "if it has --tls-client-ca-file, it requires a client certificate, which these commands do not support";
    send(stream, request, || format!("{url} does not answer; {hint}")).await
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
            ("workspace_not_allowed", "workspace", "workspace: leave the field out", "omit --workspace"),
            ("invalid_request", "expires_in", "expires_in: missing; such", "--expires-in: missing; such"),
            ("invalid_request", "expires_at", "expires_at: expected ms", "--expires-at is not"),
            ("invalid_request", "limit", "limit: expected", "--limit: expected"),
            ("invalid_request", "credit", "credit: expected", "NUMBER: expected"),
            ("busy", "", "others are changing", "others are changing"),
        ] {
            let text = refusal(&serde_json::json!({"code": code, "field": field, "message": message}));
            assert!(text.contains(expected), "{code}: {text}");
        }
    }

    #[test]
    fn queries() {
        assert_eq!(with_query("/p", &[]), "/p");
        let pairs = [("identifier", "a|b &=+é*".to_owned()), ("limit", "5".to_owned())];
        assert_eq!(with_query("/p", &pairs), "/p?identifier=a%7Cb%20%26%3D%2B%C3%A9%2A&limit=5");
    }
}
