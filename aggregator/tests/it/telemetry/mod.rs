//! Spans that a collector receives.

mod tracing;
mod tracing_api;
