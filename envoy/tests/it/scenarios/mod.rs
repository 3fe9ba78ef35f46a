//! Weir's guarantees, tested with real Envoys and the real aggregator. Every scenario starts its own processes on free
//! ports and waits for conditions; run with `--nocapture` to see the figures that it prints.

mod addresses;
mod aggregators;
mod answers;
pub mod attributes;
mod bans;
mod bodies;
pub mod common;
mod control;
mod exact;
mod exactness;
mod faults;
mod flood;
mod global;
mod global_delay;
mod global_faults;
mod hard_limit;
mod hostile;
mod leases;
mod native;
mod outcomes;
mod peers;
mod queries;
mod redis;
mod redis_faults;
mod region;
mod reload;
mod response_cost;
mod rlqs;
mod rls;
mod rules;
mod tls;
mod tracing;
mod tricks;
pub mod upstream;
mod usage;
mod window;
