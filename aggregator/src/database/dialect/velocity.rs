//! The decision of a ledger on an attempt.

/// Longest bucket in bytes, the size of the table's column.
pub const MAX_BUCKET_BYTES: usize = 255;

/// The decision on an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Velocity {
    /// The number of the recorded transaction.
    pub transaction: u64,
    /// Whether the attempt is blocked.
    pub blocked: bool,
    /// The zone's rate.
    pub rate: u64,
    /// The zone's window in milliseconds.
    pub window_ms: u64,
    /// The sum of all counted costs, including this attempt if it was allowed.
    pub used: u64,
    /// Milliseconds until the oldest counted attempt leaves the window; 0 if nothing counts.
    pub reset_ms: u64,
    /// For a blocked attempt, milliseconds until the same cost would be allowed; `None` if the cost exceeds the rate.
    pub retry_after_ms: Option<u64>,
}
