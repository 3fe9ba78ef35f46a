//! What the program shows of itself: metrics, spans, request ids in its log, warnings at a bounded rate; and the wall clock.

pub mod clock;
pub mod metrics;
pub mod request_log;
pub mod spans;
pub mod throttle;
