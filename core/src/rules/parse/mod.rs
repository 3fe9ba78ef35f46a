//! The forms in which Envoy carries a configuration.
//!
//! - `envoy_config`: the filter's configurations in an Envoy configuration.
//! - `manifest`: those that Kubernetes objects attach.
//! - `plugin`: what was found.
//! - `structure`: a protobuf struct as JSON text.

#[cfg(feature = "yaml")]
pub mod documents;
pub mod envoy_config;
pub mod manifest;
pub mod plugin;
pub(in crate::rules) mod structure;
