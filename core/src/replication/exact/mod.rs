//! Exact requests in an aggregator: all charges of a request pass, or none is charged.
//!
//! - [`plan`]: the charges as calls to logs and ledgers, and their results as decisions.
//! - [`denials`]: cached denials, so that a flood of denied requests reaches no store.

pub mod denials;
pub mod plan;
