//! How texts and addresses are compared, by rules and by live control alike.
//!
//! - `canonical`: the form of an identifier that is counted.
//! - `glob`: patterns over identifiers.
//! - `networks`: sets of IP networks.

pub mod canonical;
pub mod glob;
pub mod networks;
