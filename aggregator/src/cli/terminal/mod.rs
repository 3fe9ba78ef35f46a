//! What the page shows, in a terminal: `weir-aggregator top` and `weir-aggregator explain`.
//!
//! In reading order: [`client`] (asks an aggregator's admin listener), [`format`] (numbers and times as people read them),
//! [`tables`] and [`explained`] (answers as lines), [`screen`] (a terminal that is drawn anew each second).
//!
//! Leaves to others: arguments (`cli`), the answers themselves (`admin`).

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
use client::Client;
use serde::Serialize;
use std::io::{IsTerminal, Write, stdin, stdout};

/// Columns of a text that goes to no terminal.
const PLAIN_COLUMNS: usize = 120;

/// Why nothing could be shown.
#[derive(Debug, thiserror::Error)]
pub enum TerminalError {
    /// No server's address.
    #[error(
        "{0:?} is not where an aggregator could be; expected its admin listener, which speaks no TLS, as in http://127.0.0.1:7070"
    )]
    Server(String),
    /// Nobody answers there.
    #[error(
        "cannot reach an aggregator at {server}: {reason}; is it running, and is that its --admin-listen? See --admin-url"
    )]
    Unavailable {
        /// Where it was looked for.
        server: String,
        /// What the system said.
        reason: String,
    },
    /// It answered something else.
    #[error("{0}")]
    Refused(String),
    /// It answered what is no answer.
    #[error("what answers at {0} is no aggregator, or one of another version")]
    Foreign(String),
    /// The terminal.
    #[error("the terminal cannot be used: {0}")]
    Terminal(#[from] std::io::Error),
}

/// Everything that `top` shows, of one moment.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Snapshot {
    /// The keys nearest their limits.
    pub top: Top,
    /// What rules decide.
    pub rules: Rules,
    /// The parts.
    pub parts: Parts,
}

/// How `top` is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// On a terminal, anew each second; as text where there is none.
    Live,
    /// Once, as text.
    Once,
    /// Once, as JSON.
    Json,
}

/// Whose key `explain` explains.
#[derive(Clone, Debug)]
pub struct KeyName {
    /// Whose limits.
    pub workspace: String,
    /// Which family of them.
    pub namespace: String,
    /// Who is limited.
    pub identifier: String,
    /// The only window that matters.
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
        Manner::Json => print(&format!("{}\n", serde_json::to_string(&snapshot).unwrap_or_default())),
        Manner::Live | Manner::Once => print(&(tables::all(&snapshot, PLAIN_COLUMNS).join("\n") + "\n")),
    }
}

/// Explains a key.
pub async fn explain(server: &str, asked: &KeyName, json: bool) -> Result<(), TerminalError> {
    let client = Client::new(server)?;
    let window = asked.window_ms.map(|ms| format!("&window_ms={ms}")).unwrap_or_default();
    let text = |text: &str| encode(text.as_bytes());
    let path = format!(
        "/v1/explain?workspace={}&namespace={}&identifier={}{window}",
        text(&asked.workspace),
        text(&asked.namespace),
        text(&asked.identifier)
    );
    if json {
        return print(&(client.text(&path).await? + "\n"));
    }
    let explanation: Explanation = client.get(&path).await?;
    if let Some(unknown) = explanation.unknown {
        return Err(TerminalError::Refused(format!("{unknown}; see --workspace, --namespace and --window")));
    }
    print(&(explained::lines(&explanation).join("\n") + "\n"))
}

/// All that `top` shows.
pub async fn snapshot(client: &Client) -> Result<Snapshot, TerminalError> {
    let (top, rules, parts) =
        tokio::join!(client.get("/v1/top"), client.get("/v1/rules"), client.get("/v1/parts"));
    Ok(Snapshot { top: top?, rules: rules?, parts: parts? })
}

/// Whoever reads may have seen enough.
fn print(text: &str) -> Result<(), TerminalError> {
    match stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
}
