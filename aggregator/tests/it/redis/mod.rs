//! The store on Redis: merges, failover, cluster, exact logs.

mod store_redis;
mod store_redis_cluster;
mod store_redis_faults;
mod store_redis_log;
mod store_redis_receipts;
mod store_redis_sentinel;
