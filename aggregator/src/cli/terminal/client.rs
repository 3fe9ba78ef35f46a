//! HTTP client for an aggregator's admin listener.

use super::error::TerminalError;
use crate::cli::client::exchange;
use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::{Request, StatusCode};
use serde::de::DeserializeOwned;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Deadline of an answer.
const WITHIN: Duration = Duration::from_secs(5);
/// Longest answer that is read.
const MAX_ANSWER_BYTES: usize = 16 * 1024 * 1024;

/// A client of one server.
#[derive(Clone, Debug)]
pub struct Client {
    /// The server, as it was given.
    pub server: String,
    authority: String,
}

impl Client {
    /// Accepts `http://host:port` or `host:port`.
    pub fn new(server: &str) -> Result<Client, TerminalError> {
        let wrong = || TerminalError::Server(server.to_owned());
        let authority = server.strip_prefix("http://").unwrap_or(server).trim_end_matches('/');
        let authority: hyper::http::uri::Authority = authority.parse().map_err(|_| wrong())?;
        if authority.host().is_empty() || authority.as_str().contains('@') {
            return Err(wrong());
        }
        let port = authority.port_u16();
        if port.is_none() && authority.as_str().rsplit(']').next().is_some_and(|rest| rest.contains(':')) {
            return Err(wrong());
        }
        let authority = format!("{}:{}", authority.host(), port.unwrap_or(7_070));
        Ok(Client { server: format!("http://{authority}"), authority })
    }

    /// Requests `path` and parses the answer.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, TerminalError> {
        let text = self.text(path).await?;
        read(&text).ok_or_else(|| TerminalError::Foreign(self.server.clone()))
    }

    /// Requests `path` and returns the answer's text.
    pub async fn text(&self, path: &str) -> Result<String, TerminalError> {
        let unavailable = |reason: String| TerminalError::Unavailable { server: self.server.clone(), reason };
        let answered = timeout(WITHIN, self.get_once(path)).await;
        let (status, body) =
            answered.map_err(|_| unavailable("no answer within 5 s".to_owned()))?.map_err(unavailable)?;
        let text =
            String::from_utf8(body.to_vec()).map_err(|_| TerminalError::Foreign(self.server.clone()))?;
        match status {
            StatusCode::OK => Ok(text),
            _ => Err(self.refused(&text)),
        }
    }

    /// The error in the answer, or that the server is not an aggregator.
    fn refused(&self, text: &str) -> TerminalError {
        let answer: Option<serde_json::Value> = serde_json::from_str(text).ok();
        match answer.as_ref().and_then(|answer| answer["error"].as_str()) {
            Some(reason) => TerminalError::Refused(reason.to_owned()),
            None => TerminalError::Foreign(self.server.clone()),
        }
    }

    async fn get_once(&self, path: &str) -> Result<(StatusCode, Bytes), String> {
        let text = |error: &dyn std::error::Error| error.to_string();
        let socket = TcpStream::connect(&self.authority).await.map_err(|error| text(&error))?;
        let request = Request::get(path).header("host", &self.authority).body(Empty::<Bytes>::new());
        let request = request.map_err(|error| text(&error))?;
        exchange(socket, request, MAX_ANSWER_BYTES).await.map_err(|error| text(&error))
    }
}

/// Parses an answer. All fields have defaults, so any JSON would parse; an aggregator's answer is recognised by its
/// region.
fn read<T: DeserializeOwned>(text: &str) -> Option<T> {
    let value: serde_json::Value = serde_json::from_str(text).ok()?;
    value["region"].as_str().filter(|region| !region.is_empty())?;
    serde_json::from_value(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::parts::Parts;

    #[test]
    fn answers_of_others() {
        for text in ["{}", "[]", "null", r#"{"region": ""}"#, r#"{"region": 1}"#, "<html>"] {
            assert!(read::<Parts>(text).is_none(), "{text}");
        }
        assert_eq!(read::<Parts>(r#"{"region": "here"}"#).map(|parts| parts.region).as_deref(), Some("here"));
    }

    #[test]
    fn the_listener_to_name_stands_in_the_error() {
        let client = Client::new("localhost:7072").unwrap();
        let error = client.refused(r#"{"error": {"code": "not_found"}}"#).to_string();
        assert!(error.contains("http://localhost:7072 is not an aggregator's admin listener"), "{error}");
        assert!(error.contains("--admin-listen"), "{error}");
    }

    #[test]
    fn servers() {
        let cases = [
            ("http://127.0.0.1:7070", Some("http://127.0.0.1:7070")),
            ("http://weir.internal:81/", Some("http://weir.internal:81")),
            ("localhost", Some("http://localhost:7070")),
            ("http://[::1]:7070", Some("http://[::1]:7070")),
            ("https://weir.internal", None),
            ("http://a@b:7070", None),
            ("http://weir/path", None),
            ("http://weir:x", None),
            ("http://weir:99999", None),
            ("", None),
        ];
        for (given, expected) in cases {
            assert_eq!(Client::new(given).ok().map(|client| client.server).as_deref(), expected, "{given}");
        }
    }
}
