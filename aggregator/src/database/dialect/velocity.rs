//! An attempt of the ledger, and the decision on it.

/// Longest bucket in bytes, the size of the table's column.
pub const MAX_BUCKET_BYTES: usize = 255;

/// An attempt to decide and record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt<'a> {
    /// The zone, which defines rate and window.
    pub zone: u32,
    /// The bucket that is limited, compared byte by byte; at most [`MAX_BUCKET_BYTES`].
    pub bucket: &'a [u8],
    /// The cost. A cost of 0 only queries the count, and is recorded too. A cost above 2^53 is taken as 2^53.
    pub cost: u64,
}

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
