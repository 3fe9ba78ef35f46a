//! The harness itself: what it starts, loads and stops.

mod aggregator_smoke;
mod harness_smoke;
