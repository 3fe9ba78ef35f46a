//! One region: the streams of filters, the region's state behind its lock, its store, the database, live control.
//!
//! - [`grpc`], [`stream`], [`slots`], [`send_queue`], [`stream_error`]: a filter's stream. [`push`]: pushes to subscribers.
//! - `hub`: the region's state behind its lock, with events and clock; all others use it. [`machine`]: runs the core's state machines. [`services`]: owns all parts.
//! - `regional`: Redis and the region's other aggregators. [`global`]: the database that the regions share.
//! - `exact`: exact requests. [`control`]: live control. [`status`]: what the admin listener shows.

pub mod clocks;
pub mod control;
pub mod exact;
pub mod global;
pub mod grpc;
pub mod hub;
pub mod machine;
pub mod push;
pub mod regional;
pub mod send_queue;
pub mod services;
pub mod slots;
pub mod status;
pub mod stream;
pub mod stream_error;
