//! The arrivals of a plan, in order of time; the plan's seed determines them.
//!
//! - `merge`: all sources of a plan, merged ([`arrivals`]).
//! - `shapes`: the times and identifiers of one source.
//! - `zipf`: numbers distributed by Zipf's law ([`Zipf`]).
//! - `trace`: arrivals as text.

mod merge;
mod shapes;
pub mod trace;
mod zipf;

pub use merge::{Arrivals, arrivals};
pub use zipf::Zipf;
