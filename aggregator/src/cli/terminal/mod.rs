//! The status page in a terminal: `weir-aggregator top` and `weir-aggregator explain`.
//!
//! In reading order: [`client`] (requests to an aggregator's admin listener), [`format`] (formats of numbers and times),
//! [`tables`] and [`explained`] (answers as lines), [`screen`] (a live screen, updated each second).

pub mod client;
pub mod explained;
pub mod format;
pub mod screen;
pub mod tables;

use crate::admin::parts::Parts;
use crate::admin::rules::Rules;
use crate::admin::text::encode;
use crate::admin::top::Top;
use crate::admin::view::Explanation;
use crate::cli::outcome::plain_json;
use client::Client;
use serde::Serialize;
use std::io::{IsTerminal, Write, stdin, stdout};

/// Columns of a text that is not shown on a terminal.
const PLAIN_COLUMNS: usize = 120;

/// Why nothing could be shown.
#[derive(Debug, thiserror::Error)]
pub enum TerminalError {
    /// The URL is invalid.
    #[error(
        "{0:?} is not the URL of an admin listener; expected http:// (it has no TLS), as in http://127.0.0.1:7070"
    )]
    Server(String),
    /// The server does not answer.
    #[error(
        "cannot reach an aggregator at {server}: {reason}; check that it runs, and that --admin-url is its --admin-listen"
    )]
    Unavailable {
        /// The URL.
        server: String,
        /// The cause.
        reason: String,
    },
    /// The aggregator answered with an error.
    #[error("{0}")]
    Refused(String),
    /// The answer is not an aggregator's.
    #[error("the server at {0} is not an aggregator, or has another version")]
    Foreign(String),
    /// The terminal failed.
    #[error("the terminal cannot be used: {0}")]
    Terminal(#[from] std::io::Error),
}

/// Everything that `top` shows, read at about the same time.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Snapshot {
    /// The keys nearest their limits.
    pub top: Top,
    /// The decisions of the rules.
    pub rules: Rules,
    /// The state of the parts.
    pub parts: Parts,
}

/// The output of `top`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// A live screen; text if the output is not a terminal.
    Live,
    /// Once, as text.
    Once,
    /// Once, as JSON.
    Json,
}

/// The key to explain.
#[derive(Clone, Debug)]
pub struct KeyName {
    /// The workspace.
    pub workspace: String,
    /// The namespace, unless a zone is given.
    pub namespace: Option<String>,
    /// The zone of a ledger.
    pub zone: Option<u32>,
    /// The identifier.
    pub identifier: String,
    /// The only window to show.
    pub window_ms: Option<u64>,
}

/// Shows the keys nearest their limits, the rules and the parts.
pub async fn top(server: &str, manner: Manner) -> Result<(), TerminalError> {
    let client = Client::new(server)?;
    if manner == Manner::Live && stdout().is_terminal() && stdin().is_terminal() {
        return screen::run(&client).await;
    }
    let snapshot = snapshot(&client).await?;
    match manner {
        Manner::Json => print(&(plain_json(&serde_json::to_string(&snapshot).unwrap_or_default()) + "\n")),
        Manner::Live | Manner::Once => print(&(tables::all(&snapshot, PLAIN_COLUMNS).join("\n") + "\n")),
    }
}

/// Explains a key.
pub async fn explain(server: &str, key: &KeyName, json: bool) -> Result<(), TerminalError> {
    let client = Client::new(server)?;
    let window = key.window_ms.map(|ms| format!("&window_ms={ms}")).unwrap_or_default();
    let text = |text: &str| encode(text.as_bytes());
    let place = match key.zone {
        Some(zone) => format!("zone={zone}"),
        None => format!("namespace={}", text(key.namespace.as_deref().unwrap_or_default())),
    };
    let path = format!(
        "/v1/keys?workspace={}&{place}&identifier={}{window}",
        text(&key.workspace),
        text(&key.identifier)
    );
    if json {
        return print(&(plain_json(&client.text(&path).await?) + "\n"));
    }
    let explanation: Explanation = client.get(&path).await?;
    if let Some(unknown) = explanation.unknown {
        return Err(TerminalError::Refused(format!("{unknown}; see --workspace, --namespace and --window")));
    }
    print(&(explained::lines(&explanation).join("\n") + "\n"))
}

/// Reads everything that `top` shows.
pub async fn snapshot(client: &Client) -> Result<Snapshot, TerminalError> {
    let (top, rules, parts) =
        tokio::join!(client.get("/v1/top"), client.get("/v1/rules"), client.get("/v1/parts"));
    Ok(Snapshot { top: top?, rules: rules?, parts: parts? })
}

/// Prints the text; a closed pipe is not an error.
fn print(text: &str) -> Result<(), TerminalError> {
    match stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
}
