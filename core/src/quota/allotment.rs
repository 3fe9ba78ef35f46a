//! What a proxy reports and gets, and shares of amounts.

use crate::model::window::Position;

/// A bucket of tokens refills in this time. Envoy 1.40 fills a new bucket only if it would refill in less than the machine has been running.
pub const FILL_MS: u64 = 30_000;

/// The limit and its use at the time of a division.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Most that may be used in a window.
    pub limit: u64,
    /// What is left of it, by the counts of all nodes.
    pub left: u64,
    /// The position in the window's cells.
    pub at: Position,
}

/// What a proxy may admit until it receives another allotment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allotment {
    /// No request.
    Nothing,
    /// A full bucket of this many tokens, which refills in [`FILL_MS`].
    Tokens(u64),
    /// A bucket that receives `tokens` in each of `seconds`. It holds those of one second, at least one.
    Rate {
        /// At least 1.
        tokens: u64,
        /// At least 1.
        seconds: u64,
    },
}

/// What a proxy reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Requests that it has admitted since its last report.
    pub allowed: u64,
    /// Requests that it has denied since then.
    pub denied: u64,
    /// The time since then, in milliseconds, as the proxy states it.
    pub within_ms: u64,
}

/// `amount × part / whole`, rounded down; at most `amount`.
pub(super) fn portion(amount: u64, part: u64, whole: u64) -> u64 {
    let product = u128::from(amount).saturating_mul(u128::from(part.min(whole)));
    u64::try_from(product.checked_div(u128::from(whole)).unwrap_or(0)).unwrap_or(amount)
}

/// The same, rounded up.
pub(super) fn portion_up(amount: u64, part: u64, whole: u64) -> u64 {
    let product = u128::from(amount).saturating_mul(u128::from(part.min(whole)));
    u64::try_from(product.div_ceil(u128::from(whole.max(1)))).unwrap_or(amount)
}
