//! How an aggregator uses its region's store (Redis) and exchanges changes with the other aggregators of the region.
//!
//! - `replay`: counts to the store. [`queries`]: queries that the store answers.
//! - `hot`: keys near their limits, from the store. [`watch`]: whether the store has lost data, by
//!   its `marker`, also what was acknowledged since the last look ([`receipts`]).
//! - `heartbeat`: which nodes are alive, and the region's time (`clock`), which [`joining`] takes at the start. [`broadcast`]: changes to
//!   and from the other aggregators.

pub mod broadcast;
pub mod clock;
pub mod heartbeat;
pub mod hot;
pub mod joining;
pub mod marker;
pub mod queries;
pub mod receipts;
pub mod replay;
pub mod watch;
