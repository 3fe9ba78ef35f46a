//! Parsers and state machines of `weir-core`, which the filter and the aggregator share.

pub mod control;
pub mod frames;
pub mod log;
pub mod requests;
pub mod shared_data;
