//! Tests of the aggregator from outside, in one program: it is linked once, and its tests wait side by side.

mod api;
mod control;
mod database;
mod exact;
mod operating;
mod redis;
mod region;
mod support;
mod telemetry;
mod trust;
