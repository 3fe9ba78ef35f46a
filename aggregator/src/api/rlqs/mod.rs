//! Envoy's rate-limit quota service (RLQS), for Envoys with the filter `envoy.filters.http.rate_limit_quota`.
//!
//! Such an Envoy decides alone, by the last assignment of each bucket, and reports its use every five seconds. A bucket is matched against the
//! same limits as a descriptor of the rate-limit service, and counts on the same key. [`weir_core::quota`] divides what is left.
//!
//! In reading order: `wire` (the messages), `bucket` (a bucket → its limit), `action` (what a bucket's Envoy is to do, as a message),
//! `subscriptions` (the buckets of a stream), `quotas` (all buckets, reports and assignments), `stream` (one Envoy's stream), `ended` (whether its
//! Envoy has ended it), `service` (the transport).

pub mod action;
pub mod bucket;
mod ended;
pub mod quotas;
pub mod service;
pub mod stream;
pub mod subscriptions;
pub mod wire;

pub use quotas::Quotas;
pub use service::QuotaService;
