//! Parsers of `weir-aggregator`.

pub mod admin;
pub mod api;
pub mod configuration;
pub mod stores;
