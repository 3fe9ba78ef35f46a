//! The whole of Weir in one deterministic process: the core's own `Limiter` and `Aggregator`, on virtual time, between
//! stores, a network and clients that are simulated.
//!
//! A [`plan::Plan`] is a run as data; one seed decides everything, and the same plan gives the same bytes.
//! [`world::World`] carries it out and tells an [`observe::Observer`] what happens.
//!
//! Leaves to others: printing and arguments (`main`). No clock, no threads, no I/O, so that it also runs in a browser.

pub mod accuracy;
pub mod check;
pub mod measure;
pub mod plan;
pub mod random;
pub mod report;
pub mod run;
pub mod scenarios;
pub(crate) mod table;
pub mod traffic;
pub mod world;
