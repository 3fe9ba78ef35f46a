//! Counts on their way to the aggregator.
//!
//! - `outbox`: cells to report, and reports that are not acknowledged.
//! - `resync`: reports of the whole table.

pub(in crate::limiter) mod outbox;
pub(in crate::limiter) mod resync;
