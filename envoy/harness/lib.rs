//! Starts real Envoys with Weir around them, for the launcher, the end-to-end tests and the benchmarks.
//!
//! A scenario is made of parts, each of which ends when its value is dropped: an [`EchoUpstream`], an [`Aggregator`],
//! and one or more [`Envoy`]s with a configuration from [`bootstrap`]. [`http`] sends single requests and [`load`]
//! many. A [`Redis`] or a [`RedisCluster`] serves the aggregators. [`Pages`] serves static pages and [`browser`] opens
//! them. Both `servers` and `clients` use `processes`; `servers` also use `clients`.

mod clients;
mod processes;
mod servers;
mod yaml;

pub use clients::{browser, http, load};
pub use processes::clock::Clock;
pub use processes::process::Process;
pub use processes::{binaries, ports, process, wait};
pub use servers::aggregator::{Aggregator, AggregatorOptions};
pub use servers::bootstrap;
pub use servers::bootstrap::{EnvoyOptions, Filter, Quota, RateLimit, Route, Weir};
pub use servers::collector::{Collector, Received};
pub use servers::database::DatabaseServer;
pub use servers::envoy::{Envoy, Reload, validate_file};
pub use servers::pages::Pages;
pub use servers::proxy::Proxy;
pub use servers::redis::{Redis, RedisCluster, RedisOptions};
pub use servers::upstream::EchoUpstream;
pub use servers::xds::{XdsRequest, XdsResource, XdsServer};
pub use yaml::yaml;
