//! The forms in which Envoy carries a configuration.
//!
//! - `envoy_config`: the filter's configurations in an Envoy configuration.
//! - `structure`: a protobuf struct as JSON text.

pub mod envoy_config;
pub(in crate::rules) mod structure;
