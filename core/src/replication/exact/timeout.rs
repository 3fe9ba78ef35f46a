//! How long the stores have for a request.

/// Timeout of a request that states none, and the longest that is accepted, in milliseconds.
const DEFAULT_TIMEOUT_MS: u32 = 100;
const MAX_TIMEOUT_MS: u32 = 10_000;
/// The part of the timeout kept for the response's way back, in milliseconds.
const RESERVE_MS: u32 = 10;

/// How long the stores have for a request with this timeout, in microseconds.
pub fn within_us(timeout_ms: u32) -> u64 {
    let waits = if timeout_ms == 0 { DEFAULT_TIMEOUT_MS } else { timeout_ms.min(MAX_TIMEOUT_MS) };
    u64::from(waits.saturating_sub(RESERVE_MS).max(1)) * 1_000
}
