//! Parsing a configuration into values, with every error and its path.
//!
//! - `envoy_config`: the filter's configurations in an Envoy configuration.
//! - `json`, `fields`: JSON text, and the fields of its objects.
//! - `structure`: a protobuf struct as JSON text.
//! - `duration`: durations.
//! - `errors`: errors and their paths.

pub mod duration;
pub mod envoy_config;
pub(in crate::rules) mod errors;
pub(in crate::rules) mod fields;
pub(in crate::rules) mod json;
pub(in crate::rules) mod structure;
