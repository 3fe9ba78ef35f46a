//! Bans by rules: from a denial to a live control of all regions.
//!
//! ```text
//! denial → violation (counted with all workers and Envoys) → threshold → banned in this process
//!        → proposed until the region has it → queued in the aggregator → stored in the database
//! ```
//! In reading order: [`making`] (on a worker), [`proposals`] (of a process), [`queue`] (in an aggregator).

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

pub mod making;
pub mod proposals;
pub mod queue;
#[cfg(test)]
mod tests;
