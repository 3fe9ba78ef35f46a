//! The APIs for applications and for Envoys without the filter.

mod all_apis;
mod embedded_limiter;
mod grpc_health;
mod grpc_reflection;
mod http_api;
mod http_hostile;
mod http_openapi;
mod request_ids;
mod reservations;
mod rlqs;
mod rls;
mod rls_metrics;
mod rls_reference;
mod rls_waits;
mod rls_xds;
