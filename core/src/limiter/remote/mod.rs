//! The exchange with the aggregator, and among the workers of the process.
//!
//! - `link`: state of the stream. `queries`: queries. `exact_requests`: exact requests and refunds. `ration`: bounds of queries.
//! - `waiting`: the requests that wait for either.
//! - `registry`: the worker registry. `subscription`: whether the stream receives pushes.

pub(in crate::limiter) mod exact_requests;
pub(in crate::limiter) mod link;
pub(in crate::limiter) mod queries;
pub(in crate::limiter) mod ration;
pub(in crate::limiter) mod registry;
pub(in crate::limiter) mod subscription;
pub(in crate::limiter) mod waiting;
