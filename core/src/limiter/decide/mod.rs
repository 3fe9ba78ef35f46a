//! From checks to a decision: each file takes one part of the way.

pub(in crate::limiter) mod charge;
pub(in crate::limiter) mod deferred;
pub(in crate::limiter) mod exact;
pub(in crate::limiter) mod item;
pub(in crate::limiter) mod judge;
pub(in crate::limiter) mod lease;
pub(in crate::limiter) mod round;
pub(in crate::limiter) mod snapshots;
pub(in crate::limiter) mod violations;
