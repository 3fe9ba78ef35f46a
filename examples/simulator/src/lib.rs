//! A deterministic simulation of Weir in one process: the core's own limiter and region state run on virtual time,
//! between simulated stores, network and clients.
//!
//! A [`plan::Plan`] is a run as data. It contains the seed of every random choice, so the same plan gives the same
//! bytes. [`world::World`] carries the plan out and reports each request to a [`measure::observe::Observer`].
//!
//! The library reads no clock, starts no thread and does no I/O, so it also runs in a browser.
//!
//! - `report`: results as text; a run over time; the last events before a failure.
//! - `scenarios`: named plans, and links to plans.
//! - `accuracy`: the measured error beside the design's bounds.
//! - `run`: one run and its verdict; shrinking of failing plans.
//! - `world`: the simulated parts and their events.
//! - `check`: the invariants.
//! - `control`: live control, in a world of its own.
//! - `traffic`: the arrivals of a plan.
//! - `table`: an Envoy's shared data. `queue`: events in order of time. `random`: the random generator.
//! - `measure`: comparison with exact limiters; what a run reports.
//! - `plan`: a run as data.

pub mod accuracy;
pub mod check;
pub mod control;
pub mod measure;
pub mod plan;
mod queue;
pub mod random;
pub mod report;
pub mod run;
pub mod scenarios;
pub(crate) mod table;
pub mod traffic;
pub mod world;
