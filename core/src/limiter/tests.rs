//! Scenarios of one or more processes: several workers over one table, a region behind them, time in steps.
//!
//! `harness` and `network` drive the two state machines as the shells do, `exact_store` holds exact limits; the others say what must hold.

mod accuracy;
mod aggregators;
mod clock;
mod cold;
mod consults;
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
mod local;
mod network;
mod property;
mod strict;
mod trace;
mod violations;
