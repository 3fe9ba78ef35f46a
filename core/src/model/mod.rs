//! What every other part of the core is built on: identities, time, the arithmetic of windows, and the frames.
//!
//! - `key`: a check's identity → key bytes, cells and sequences.
//! - `time`: wall and monotonic clocks, as values.
//! - `window`: the arithmetic of a sliding window: used, effective, when could it pass.
//! - `wire`: the frames between a filter and an aggregator.
//! - `shared`: the shared data of a process.
//! - `exact`: limits that are worth a round trip: what is asked about them and what is ruled.
//! - `trace`: the trace context of a request.
//! - [`schedule`] and [`breaker`]: when stores are queried, and whether.

pub mod breaker;
pub mod exact;
pub mod key;
pub mod schedule;
pub mod shared;
pub mod time;
pub mod trace;
pub mod window;
pub mod wire;
