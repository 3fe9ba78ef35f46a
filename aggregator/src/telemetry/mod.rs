//! Observability: metrics, spans, request ids in the log, warnings at a bounded rate; and the wall clock.

pub mod clock;
pub mod metrics;
pub mod request_log;
pub mod spans;
pub mod throttle;
