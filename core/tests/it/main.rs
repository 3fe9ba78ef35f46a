//! Tests of the core from outside, in one program.

mod allocations;
mod limiter_allocations;
mod recipes;
mod rooms;
mod rules_config;
mod rules_paths;
mod rules_resolve;
mod rules_tricks;
mod wire_proto;
