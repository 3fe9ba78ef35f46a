//! Starts real Envoys with Weir around them, for the launcher, the end-to-end tests and the benchmark.
//!
//! A scenario is made of parts, each of which dies with its value: an [`EchoUpstream`], an [`Aggregator`], one or
//! more [`Envoy`]s whose configuration [`bootstrap`] writes. [`http`] sends single requests and [`load`] many.
//! A [`Redis`] or a [`RedisCluster`] stands behind aggregators. [`strip`] prepares the filter's WASM for Envoy.
//! [`browser`] looks at pages, and [`Pages`] serves those that are files. Which requests should pass is left to the tests.

mod aggregator;
pub mod binaries;
pub mod bootstrap;
pub mod browser;
mod clock;
mod collector;
mod database;
mod envoy;
pub mod http;
pub mod load;
mod median;
mod pages;
pub mod ports;
pub mod process;
mod proxy;
mod redis;
pub mod strip;
mod upstream;
pub mod wait;

pub use aggregator::{Aggregator, AggregatorOptions};
pub use bootstrap::{EnvoyOptions, Filter, RateLimit, Route, Weir};
pub use clock::Clock;
pub use collector::{Collector, Received};
pub use database::DatabaseServer;
pub use envoy::{Envoy, Reload, validate_file};
pub use median::median;
pub use pages::Pages;
pub use process::Process;
pub use proxy::Proxy;
pub use redis::{Redis, RedisCluster, RedisOptions};
pub use upstream::EchoUpstream;
