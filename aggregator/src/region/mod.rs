//! One region at work: streams of filters, the state behind its lock, its store, the database, live control.
//!
//! - [`grpc`], [`stream`], [`outgoing`], [`refusal`]: a filter's stream. [`push`]: what changed, to subscribers.
//! - [`shared`]: the region's state behind its lock.
//! - [`regional`]: Redis and the region's other aggregators. [`global`]: the database that regions share.
//! - [`exact`]: limits that are held exactly. [`control`]: live control. [`status`]: what people see.

pub mod control;
pub mod exact;
pub mod global;
pub mod grpc;
pub mod outgoing;
pub mod push;
pub mod refusal;
pub mod regional;
pub mod shared;
pub mod slots;
pub mod status;
pub mod stream;
