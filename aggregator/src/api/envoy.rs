//! The messages of Envoy's services, made from `aggregator/proto/` by the build script. They have the fields that are used here; others are
//! skipped when a message is decoded.
#![allow(clippy::all)]

include!(concat!(env!("OUT_DIR"), "/envoy.rs"));
