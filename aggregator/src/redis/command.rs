//! A command, and the server that executes it.

use super::slots::slot_of;
use redis::Cmd;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use tokio::time::Instant;

/// Whose calls share what a connection can have under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// The region's own calls: merges, reads of markers and cells, messages.
    Region,
    /// Queries of filters.
    Queries,
    /// Exact requests of a workspace, by a hash of it.
    Workspace(u64),
}

/// How the commands of a call are sent.
#[derive(Clone, Copy)]
pub(super) struct How {
    /// By the connection for small calls.
    pub(super) quick: bool,
    pub(super) part: Part,
    pub(super) deadline: Instant,
}

/// A command, with the slot that determines its server.
pub(super) struct Command {
    pub(super) slot: u16,
    pub(super) what: Cmd,
    /// How many keys it works on, or members of a key.
    pub(super) keys: usize,
    pub(super) part: Part,
}

impl Command {
    /// A command on `key`.
    pub(super) fn on(key: &str, what: Cmd) -> Command {
        Command { slot: slot_of(key.as_bytes()), what, keys: 1, part: Part::Region }
    }

    /// A command on `keys` keys or members, of which `first` is one.
    pub(super) fn on_several(first: &str, keys: usize, what: Cmd) -> Command {
        Command { keys, ..Command::on(first, what) }
    }

    /// The same, as an exact request of a workspace.
    pub(super) fn of(self, workspace: &[u8]) -> Command {
        let mut hasher = DefaultHasher::new();
        workspace.hash(&mut hasher);
        Command { part: Part::Workspace(hasher.finish()), ..self }
    }
}
