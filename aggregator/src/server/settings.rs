//! The settings of a server.

use crate::admin::Links;
use crate::api::ApiSettings;
use crate::database::DatabaseOptions;
use crate::net::hosts::Hosts;
use crate::redis::StoreOptions;
use crate::telemetry::spans::TelemetryOptions;
use std::fmt;
use weir_core::model::schedule::Schedule;
use weir_core::region::RegionLimits;

/// The settings of a server.
#[derive(Clone)]
pub struct Settings {
    /// Name of the region.
    pub region: String,
    /// Address for filters, `host:port`.
    pub grpc_listen: String,
    /// Address for operators and Prometheus, `host:port`.
    pub admin_listen: String,
    /// Host names that operators may use for it, besides addresses and `localhost`.
    pub admin_hosts: Hosts,
    /// What the status page links to.
    pub admin_links: Links,
    /// The token of filters.
    pub token: Option<String>,
    /// Bounds of the region.
    pub limits: RegionLimits,
    /// The Redis that the region's aggregators share. Without it the region has one aggregator and its counts are in memory.
    pub store: Option<StoreOptions>,
    /// The database that the regions share. Without it there is one region.
    pub database: Option<DatabaseOptions>,
    /// Whether to bring the database's tables up to date first.
    pub migrate: bool,
    /// Intervals, timeouts and circuit breakers of the calls to stores.
    pub schedule: Schedule,
    /// The APIs for callers without a filter.
    pub api: ApiSettings,
    /// Where spans are exported; without it none are created.
    pub telemetry: Option<TelemetryOptions>,
}

/// Without the token.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings { region, grpc_listen, admin_listen, store, database, api, .. } = self;
        let mut shown = f.debug_struct("Settings");
        shown.field("region", region).field("grpc_listen", grpc_listen).field("admin_listen", admin_listen);
        shown.field("store", store).field("database", database).field("api", api).finish_non_exhaustive()
    }
}
