//! Tests of the aggregator from outside, in one program: it is linked once, and its tests wait side by side.

mod admin;
mod api;
mod control;
mod database;
mod exact;
mod redis;
mod region;
mod support;
mod telemetry;
mod trust;
