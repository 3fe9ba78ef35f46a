//! What connections are for.

use std::time::Duration;

/// A connection that was idle for longer is closed.
pub(in crate::database) const MAX_IDLE: Duration = Duration::from_secs(60);

/// What connections are for. The two are kept apart, so that neither waits for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::database) enum Purpose {
    /// What regions tell each other, and whatever people ask.
    Counts,
    /// Attempts, each of which somebody waits for.
    Ledger,
}

impl Purpose {
    /// Seconds that a statement waits for another transaction: long enough for other writers to end, and not so long
    /// that a publication fails for one row. Who asked the ledger has long given up after one.
    pub fn lock_wait_seconds(self) -> u32 {
        match self {
            Purpose::Counts => 3,
            Purpose::Ledger => 1,
        }
    }
}
