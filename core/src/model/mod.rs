//! The types that all other parts of the core use: keys, time, windows, and frames.
//!
//! - `key`: keys and their canonical bytes.
//! - `time`: wall and monotonic clocks, as values.
//! - `window`: the arithmetic of sliding windows: use, remaining budget, waiting time.
//! - `metric`: a table of metrics: how each is defined, labelled and read.
//! - `outcome`: how a rule's check ends, and a value for each outcome.
//! - `wire`: the frames between a filter and an aggregator.
//! - `room`: what a part may have of a room that several share; `named`: what namespaces have in one, by name.
//! - `shared`: the interface of a process' shared data.
//! - `exact`: exact requests and their results.
//! - `generations`: a bounded map of what was inserted lately.
//! - `trace`: the trace context of a request.
//! - [`schedule`] and [`breaker`]: the intervals of calls to stores, and the circuit breaker.

pub mod breaker;
pub mod exact;
pub mod generations;
pub mod key;
pub mod metric;
pub mod named;
pub mod outcome;
pub mod room;
pub mod schedule;
pub mod shared;
pub mod time;
pub mod trace;
pub mod window;
pub mod wire;
