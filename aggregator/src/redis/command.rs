//! A command, and the server that executes it.

use super::slots::slot_of;
use redis::Cmd;

/// A command, with the slot that determines its server.
pub(super) struct Command {
    pub(super) slot: u16,
    pub(super) what: Cmd,
    /// How many keys it works on, or members of a key.
    pub(super) keys: usize,
}

impl Command {
    /// A command on `key`.
    pub(super) fn on(key: &str, what: Cmd) -> Command {
        Command { slot: slot_of(key.as_bytes()), what, keys: 1 }
    }

    /// A command on `keys` keys or members, of which `first` is one.
    pub(super) fn on_several(first: &str, keys: usize, what: Cmd) -> Command {
        Command { keys, ..Command::on(first, what) }
    }
}
