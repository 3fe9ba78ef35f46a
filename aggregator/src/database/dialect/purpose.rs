//! The two uses of connections.

use std::time::Duration;

/// A connection that was idle for longer is closed.
pub(in crate::database) const MAX_IDLE: Duration = Duration::from_secs(60);

/// The use of a connection. The two uses have separate pools, so that neither waits for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::database) enum Purpose {
    /// Counts of regions, live control, and queries of operators.
    Counts,
    /// Attempts of the ledger, each with a waiting client.
    Ledger,
}

impl Purpose {
    /// Seconds that a statement waits for another transaction's lock: long enough for other writers to finish, and
    /// short enough that a call does not occupy its connection for long. For the ledger, one second: its callers'
    /// deadlines are shorter.
    pub fn lock_wait_seconds(self) -> u32 {
        match self {
            Purpose::Counts => 3,
            Purpose::Ledger => 1,
        }
    }
}
