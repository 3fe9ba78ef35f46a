//! What a worker exchanges with its aggregator, and with the other workers of its process about that.

pub(in crate::limiter) mod consults;
pub(in crate::limiter) mod exact_requests;
pub(in crate::limiter) mod link;
pub(in crate::limiter) mod ration;
pub(in crate::limiter) mod registry;
