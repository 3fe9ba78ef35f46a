//! Starts real Envoys with Weir around them, for the launcher, the end-to-end tests and the benchmark.
//!
//! [`Envoy`], [`Aggregator`] and [`EchoUpstream`] are the parts of a scenario, [`http`] and [`load`] send its
//! traffic, and [`process`] sees to it that nothing outlives it. [`strip`] prepares the filter's WASM for Envoy.
//! Which requests should pass is left to the tests.

pub mod strip;
