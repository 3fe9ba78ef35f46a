//! Observability: metrics, spans, request ids in the log, warnings at a bounded rate; the wall clock; bytes as text;
//! and the program's version.

pub mod build;
pub mod clock;
pub mod metrics;
pub mod request_log;
pub mod spans;
pub mod text;
pub mod throttle;
