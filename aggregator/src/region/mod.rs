//! One region at work: streams of filters, the state behind its lock, its store, the database, live control.
//!
//! - [`grpc`], [`stream`], [`send_queue`], [`stream_error`]: a filter's stream. [`push`]: what changed, to subscribers.
//! - [`hub`]: the region's state behind its lock, its events and clock, below all others. [`services`]: all parts, wired once.
//! - [`regional`]: Redis and the region's other aggregators. [`global`]: the database that regions share.
//! - [`exact`]: limits that are held exactly. [`control`]: live control. [`status`]: what people see.

pub mod control;
pub mod exact;
pub mod global;
pub mod grpc;
pub mod hub;
pub mod push;
pub mod regional;
pub mod send_queue;
pub mod services;
pub mod slots;
pub mod status;
pub mod stream;
pub mod stream_error;
