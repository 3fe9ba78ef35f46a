//! Matching of texts and addresses, for rules and live control.
//!
//! - `canonical`: the form of an identifier that is counted.
//! - `glob`: patterns over identifiers.
//! - `networks`: sets of IP networks.

pub mod canonical;
pub mod glob;
pub mod networks;
