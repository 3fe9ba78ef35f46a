//! What `top` shows, as it was read.

use super::client::Client;
use super::error::TerminalError;
use crate::admin::parts::Parts;
use crate::admin::rules::Rules;
use crate::admin::top::Top;
use serde::Serialize;

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

/// Reads everything that `top` shows.
pub async fn snapshot(client: &Client) -> Result<Snapshot, TerminalError> {
    let (top, rules, parts) =
        tokio::join!(client.get("/v1/top"), client.get("/v1/rules"), client.get("/v1/parts"));
    Ok(Snapshot { top: top?, rules: rules?, parts: parts? })
}
