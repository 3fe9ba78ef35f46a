//! Matching of texts and addresses, for rules and live control.
//!
//! - `canonical`: the form of an identifier that is counted.
//! - `case`: texts that are compared without their case.
//! - `glob`: patterns over identifiers.
//! - `pattern_map`: values by identifiers and patterns.
//! - `networks`: sets of IP networks.

pub mod canonical;
pub(crate) mod case;
pub mod glob;
pub mod networks;
pub(crate) mod pattern_map;
