//! How an aggregator uses its region's store (Redis) and exchanges changes with the other aggregators of the region.
//!
//! - [`replay`]: counts to the store. [`questions`]: queries that the store answers.
//! - [`hot`]: keys near their limits, from the store. [`watch`]: whether the store has lost data.
//! - [`announce`]: which nodes are alive. [`peers`]: changes to and from the other aggregators.

pub mod announce;
pub mod hot;
pub mod peers;
pub mod questions;
pub mod replay;
pub mod watch;
