//! The status page in a terminal: `weir-aggregator top` and `weir-aggregator explain`.
//!
//! In reading order: [`client`] (requests to an aggregator's admin listener), [`format`] (formats of numbers and times),
//! [`tables`] and [`explained`] (answers as lines), [`screen`] (a live screen, updated each second).

pub mod client;
mod error;
pub mod explained;
pub mod format;
pub mod screen;
mod snapshot;
pub mod tables;

use crate::admin::text::encode;
use crate::admin::view::Explanation;
use crate::cli::outcome::plain_json;
use client::Client;
use std::io::{IsTerminal, Write, stdin, stdout};

pub use error::TerminalError;
pub use snapshot::{Snapshot, snapshot};

/// Columns of a text that is not shown on a terminal.
const PLAIN_COLUMNS: usize = 120;

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

/// Prints the text; a closed pipe is not an error.
fn print(text: &str) -> Result<(), TerminalError> {
    match stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
}
