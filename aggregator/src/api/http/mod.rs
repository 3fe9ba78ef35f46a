//! HTTP/1.1 for applications: checks, the ledger's history, live control.
//!
//! ```text
//! POST /v1/check        one limit          POST /v1/check/batch    up to 100, all or nothing
//! POST /v1/reserve      a cost, before it is known       POST /v1/settle   its cost
//! GET /v1/ledger/{id}   one transaction    GET /v1/ledger?…   a bucket's history
//! GET, PUT, DELETE /v1/overrides, GET /v1/overrides/audit   live control
//! GET /openapi.json     the description of all of this (OpenAPI 3.1)
//!
//! bytes ─ checks ─ EmbeddedLimiter ─ answer ─ bytes
//!           └─ problem: why the request is refused
//! ```
//!
//! In reading order: this file (connections), `routes` (a request → its response), `checks` (parsing), `admission` (who may),
//! `answer`, `reservations`, `ledger`, `overrides`, `problem`, `body`.

mod admission;
mod answer;
mod body;
mod checks;
mod ledger;
mod overrides;
mod problem;
mod reservations;
mod routes;

pub use answer::{Checked, Outcome};
pub use checks::{
    CheckRequest, MAX_CHECKS, MAX_NAMESPACE_BYTES, MAX_PART_BYTES, MAX_PARTS, OnFailure, parse_batch,
    parse_check,
};
pub use ledger::parse_history;
pub use problem::{FieldProblem, Problem};
pub use reservations::{Costs, MAX_ID_BYTES, ReserveRequest, SettleRequest, parse_reserve, parse_settle};
pub use routes::{MAX_BATCH_BYTES, MAX_CHECK_BYTES};

use super::EmbeddedLimiter;
use crate::auth::Tokens;
use crate::net::listen::{Listener, Patience};
use crate::net::serve::serve_connection;
use crate::net::shutdown::draining;
use crate::net::tls::{Protocol, Tls};
use crate::region::services::Services;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tracing::debug;

/// Most connections at one time. A further one displaces an idle one whose client has not presented a token.
pub const MAX_CONNECTIONS: usize = 4_096;
/// How long a connection may be idle between requests. Applications keep connections open. Load balancers usually close
/// idle ones after at most 60 s, and should be the first to close them.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// Longest head of a request.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// How long a request's head may take from its first byte.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a client may take to read a response.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// The parts of the program that the API uses.
#[derive(Clone)]
pub struct HttpApi {
    /// The region.
    pub services: Arc<Services>,
    /// The embedded limiter.
    pub embedded: Arc<EmbeddedLimiter>,
    /// The credentials of callers.
    pub tokens: Arc<Tokens>,
}

/// Serves until the shutdown has begun and every connection has ended.
pub async fn serve(api: HttpApi, (socket, max_connections): (TcpListener, usize), tls: Option<Arc<Tls>>) {
    let listener = Listener {
        api: "http",
        socket,
        tls,
        protocol: Protocol::Http,
        max_connections,
        patience: Patience::Exchange { idle: IDLE_TIMEOUT, head: HEAD_TIMEOUT, write: WRITE_TIMEOUT },
    };
    let services = api.services.clone();
    let router = routes::router(api);
    let drain = services.draining.clone();
    let serve = move |connection| {
        let served =
            serve_connection(router.clone(), connection, MAX_HEAD_BYTES, draining(drain.subscribe()));
        async move {
            if let Err(error) = served.await {
                debug!(%error, "connection of an application failed");
            }
        }
    };
    listener.run(services.metrics.clone(), draining(services.draining.subscribe()), serve).await;
}
