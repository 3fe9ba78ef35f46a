//! End-to-end tests with real parts, in one program: it is linked once, and its tests wait side by side.

#![cfg(test)]

mod dashboards;
mod dialects;
mod documentation;
mod example;
mod examples;
mod harness;
mod kubernetes;
mod pages;
mod scenarios;
mod schema;
