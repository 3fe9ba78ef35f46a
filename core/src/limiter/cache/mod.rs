//! The caches of one worker.
//!
//! - `worker_cache`: leases, denials and acknowledgements of keys.
//! - `denials`: denials of exact logs.

pub(in crate::limiter) mod denials;
pub(in crate::limiter) mod worker_cache;
