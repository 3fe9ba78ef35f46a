//! What was spent, on its way to the aggregator.

pub(in crate::limiter) mod outbox;
pub(in crate::limiter) mod resync;
