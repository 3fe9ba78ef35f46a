//! The servers of a scenario. Programs: `aggregator`, `envoy` (configured by `bootstrap`), `redis` and `database`.
//! Parts of the test's own process: `upstream`, `collector` (of spans), `pages` (static files), `xds` (a server of limits)
//! and `proxy` (a network that fails on demand).

pub mod aggregator;
pub mod bootstrap;
pub mod collector;
pub mod database;
pub mod envoy;
pub mod pages;
pub mod proxy;
pub mod redis;
pub mod upstream;
pub mod xds;
