//! The servers of one Redis or one Redis Cluster, and the connections to them.

pub(in crate::redis) mod nodes;
pub(in crate::redis) mod server_clock;
pub(in crate::redis) mod servers;
pub(in crate::redis) mod topology;
