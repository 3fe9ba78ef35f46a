//! Scenarios of one or more processes: several workers share a table, a region is behind them, and time advances in steps.
//!
//! `harness` and `network` drive the limiter and the region as the filter and the aggregator do. `exact_store` holds the
//! exact limits. The other files hold the tests.

mod accuracy;
mod aggregators;
mod clock;
mod cold;
mod decisions;
mod deferred;
mod deferred_places;
mod deferred_property;
mod eviction;
mod exact;
mod exact_property;
mod exact_store;
mod faults;
mod first_stream;
mod floods;
mod hard_limit;
mod harness;
mod idle;
mod limits;
mod local;
mod model;
mod network;
mod property;
mod queries;
mod registry;
mod spent;
mod strict;
mod trace;
mod violations;
