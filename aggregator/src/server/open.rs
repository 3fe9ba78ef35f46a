//! What the start opens before anything is served: stores and ports.

use super::bind::{Bound, bind};
use super::error::ServeError;
use super::settings::Settings;
use crate::database::{Database, DatabaseOptions};
use crate::redis::Store;
use crate::region::exact::Exact;
use crate::region::global::Global;
use crate::region::regional::Regional;
use std::net::SocketAddr;
use std::sync::Arc;
use tracing::warn;

/// The stores of the region, none of them called yet.
pub(super) struct Stores {
    pub regional: Option<Arc<Regional>>,
    pub global: Option<Arc<Global>>,
    /// The same database, for its tables and the ledger's history.
    pub database: Option<Database>,
    pub exact: Exact,
}

impl Stores {
    pub(super) fn open(settings: &Settings) -> Result<Stores, ServeError> {
        let store = settings.store.as_ref().map(Store::open).transpose()?;
        settings.database.as_ref().map(DatabaseOptions::check_folders).transpose()?;
        let database = settings.database.as_ref().map(Database::open).transpose()?;
        for warning in settings.database.iter().flat_map(DatabaseOptions::unverified) {
            warn!("{warning}");
        }
        let exact = Exact::new(store.clone(), database.clone());
        let id = rand::random();
        let regional = store.map(|store| Arc::new(Regional::new(store, settings.schedule, id)));
        let global = database.clone();
        let global = global.map(|database| Arc::new(Global::new(database, settings.schedule, id)));
        Ok(Stores { regional, global, database, exact })
    }
}

/// The ports of the listeners, which refuse connections until they listen.
pub(super) struct Ports {
    pub grpc: Bound,
    pub admin: Bound,
    pub http: Option<Bound>,
    pub addresses: Addresses,
}

/// The addresses of the listeners.
#[derive(Clone, Copy)]
pub(super) struct Addresses {
    pub grpc: SocketAddr,
    pub admin: SocketAddr,
    pub http: Option<SocketAddr>,
}

impl Ports {
    pub(super) async fn bind(settings: &Settings) -> Result<Ports, ServeError> {
        let Settings { grpc_listen, admin_listen, api, .. } = settings;
        let (grpc, grpc_address) =
            bind(grpc_listen, "filters (gRPC)", "--grpc-listen or WEIR_GRPC_LISTEN").await?;
        let (admin, admin_address) =
            bind(admin_listen, "the admin HTTP", "--admin-listen or WEIR_ADMIN_LISTEN").await?;
        let (http, http_address) = match &api.http_listen {
            Some(address) => {
                let bound = bind(address, "applications (HTTP)", "--http-listen or WEIR_HTTP_LISTEN");
                let (socket, address) = bound.await?;
                (Some(socket), Some(address))
            }
            None => (None, None),
        };
        let addresses = Addresses { grpc: grpc_address, admin: admin_address, http: http_address };
        Ok(Ports { grpc, admin, http, addresses })
    }
}
