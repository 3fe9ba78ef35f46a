//! From checks to a decision.
//!
//! - `item`: checks of one cell, coalesced. `round`: all items of a request, all charged or none.
//! - `charge`: one item, by a lease (`lease`) or in the table, where `judge` decides (`trial`: on
//!   one entry).
//! - `snapshots`: counts and answers of the region. `exact`: exact rules. `deferred`: costs that responses state.
//! - `violations`: denials that count towards a ban. `spent`: use that was decided elsewhere.

pub(in crate::limiter) mod charge;
pub(in crate::limiter) mod deferred;
pub(in crate::limiter) mod exact;
pub(in crate::limiter) mod item;
pub(in crate::limiter) mod judge;
pub(in crate::limiter) mod lease;
pub(in crate::limiter) mod round;
pub(in crate::limiter) mod snapshots;
mod spent;
mod trial;
pub(in crate::limiter) mod violations;
