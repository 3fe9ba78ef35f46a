//! What one worker remembers by itself.

pub(in crate::limiter) mod denials;
pub(in crate::limiter) mod worker_cache;
