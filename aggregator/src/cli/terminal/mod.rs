//! The status page in a terminal: `weir-aggregator top` and `weir-aggregator explain`.
//!
//! In reading order: [`client`] (requests to an aggregator's admin listener), [`format`] (formats of numbers and times),
//! [`tables`] and [`explained`] (answers as lines), `places` (the key that a command names, and where it may be counted), [`screen`] (a live screen, updated
//! each second).

pub mod client;
mod error;
pub mod explained;
pub mod format;
mod places;
pub mod screen;
mod snapshot;
pub mod tables;

use crate::admin::top::Top;
use crate::admin::view::Explanation;
use crate::cli::outcome::plain_json;
use crate::telemetry::text::encode;
use client::Client;
use std::io::{IsTerminal, Write, stdin, stdout};

pub use error::TerminalError;
pub use places::KeyName;
pub use snapshot::{Snapshot, snapshot};

/// Columns of a text that is not shown on a terminal.
const PLAIN_COLUMNS: usize = 120;
/// What a search without a result states.
const NOTHING_FOUND: &str =
    "no key that was used in this window or the previous one has this in its identifier or namespace";

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

/// Shows the keys that a search for this text finds.
pub async fn search(server: &str, text: &str, json: bool) -> Result<(), TerminalError> {
    let client = Client::new(server)?;
    let path = format!("/v1/top?text={}", encode(text.as_bytes()));
    if json {
        return print(&(plain_json(&client.text(&path).await?) + "\n"));
    }
    let found: Top = client.get(&path).await?;
    match found.keys.is_empty() {
        true => Err(TerminalError::Refused(NOTHING_FOUND.to_owned())),
        false => print(&(tables::keys(&found, PLAIN_COLUMNS).join("\n") + "\n")),
    }
}

/// Explains a key, or an identifier in each namespace of its workspace that counts it.
pub async fn explain(server: &str, key: &KeyName, json: bool) -> Result<(), TerminalError> {
    let client = Client::new(server)?;
    if key.namespace.is_none() && key.zone.is_none() {
        let found = places::explanations(&client, key).await?;
        return match json {
            true => print(&(plain_json(&serde_json::to_string(&found).unwrap_or_default()) + "\n")),
            false => {
                let texts: Vec<String> =
                    found.iter().map(|found| explained::lines(found).join("\n")).collect();
                print(&(texts.join("\n\n") + "\n"))
            }
        };
    }
    let path = key.path();
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
