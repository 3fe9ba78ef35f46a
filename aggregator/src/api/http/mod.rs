//! HTTP/1.1 for applications: may this identifier do this now?
//!
//! ```text
//! POST /v1/check        one limit          POST /v1/check/batch    up to 100, all or nothing
//! GET /v1/ledger/{id}   one transaction    GET /v1/ledger?…   a bucket's history
//! GET, PUT, DELETE /v1/overrides, GET /v1/overrides/audit   live control
//! GET /openapi.json     all of this, for programs
//!
//! bytes ─ value ─ ask: what is asked ─ EmbeddedLimiter ─ answer ─ bytes
//!           └──────┴─ problem: why it cannot be answered
//! ```
//!
//! In reading order: this file (a connection's life), `routes` (from a request to its answer), `ask` and `value` (what is
//! asked), `answer`, `ledger`, `overrides`, `problem`, `body`.
//!
//! Leaves to others: connections and their timeouts (`listen`), who may ask (`auth`), deciding
//! (`super::embedded`).

mod answer;
mod ask;
mod body;
mod ledger;
mod overrides;
mod problem;
mod routes;
mod value;

pub use answer::{Checked, Outcome};
pub use ask::{
    Asked, MAX_CHECKS, MAX_NAMESPACE_BYTES, MAX_PART_BYTES, MAX_PARTS, OnFailure, parse_batch, parse_check,
};
pub use ledger::{HistoryQuery, Ledger, parse_history};
pub use overrides::RegionState as OverridesApi;
pub use problem::{FieldProblem, Problem};
pub use routes::{MAX_BATCH_BYTES, MAX_CHECK_BYTES};

use super::EmbeddedLimiter;
use super::ruled::Ruled;
use crate::auth::Tokens;
use crate::net::listen::{Connection, Listener, Patience};
use crate::net::shutdown::draining;
use crate::net::tls::{Protocol, Tls};
use crate::region::services::Services;
use crate::telemetry::request_log;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tonic::transport::server::Connected;
use tracing::{Instrument, debug};

/// Most connections at one time. A further one takes the place of one whose client has not shown a token.
pub const MAX_CONNECTIONS: usize = 4_096;
/// How long a connection may rest between requests. Applications keep connections; load balancers give them up after
/// 60 s at the most usually, and should be first to.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// How long a request's head may take from its first byte.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a client may take to read an answer.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest head, in bytes; beyond it the answer is 431.
const MAX_HEAD_BYTES: usize = 16 * 1024;

/// What the API needs.
#[derive(Clone)]
pub struct HttpApi {
    /// The program.
    pub services: Arc<Services>,
    /// What decides.
    pub embedded: Arc<EmbeddedLimiter>,
    /// Who may ask.
    pub tokens: Arc<Tokens>,
    /// What the ledger recorded, if there is one.
    pub ledger: Option<Arc<Ledger>>,
    /// Where live control is changed.
    pub overrides: Arc<overrides::RegionState>,
    /// Where filters' rules count.
    pub ruled: Arc<Ruled>,
}

/// Serves until the program drains and every connection has ended.
pub async fn serve(api: HttpApi, socket: TcpListener, tls: Option<Arc<Tls>>) {
    let listener = Listener {
        api: "http",
        socket,
        tls,
        protocol: Protocol::Http,
        max_connections: MAX_CONNECTIONS,
        patience: Patience::Exchange { idle: IDLE_TIMEOUT, head: HEAD_TIMEOUT, write: WRITE_TIMEOUT },
    };
    let services = api.services.clone();
    let ending = draining(services.draining.subscribe());
    listener
        .run(services.metrics.clone(), ending, move |connection| serve_connection(api.clone(), connection))
        .await;
}

/// Serves a connection for as long as its client wants. When the program drains it ends after the answer that is due.
async fn serve_connection(api: HttpApi, connection: Connection) {
    let (info, api) = (connection.connect_info(), &api);
    let service = service_fn(|mut request: Request<Incoming>| {
        info.turn.begin();
        request.extensions_mut().insert(info.clone());
        let turn = &info.turn;
        async move {
            let span = request_log::of_headers(request.headers());
            let answer = routes::handle(api, request).instrument(span).await;
            turn.end();
            Ok::<_, std::convert::Infallible>(answer)
        }
    });
    let served = http1::Builder::new()
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(connection), service);
    tokio::pin!(served);
    let ended = tokio::select! {
        ended = &mut served => ended,
        () = draining(api.services.draining.subscribe()) => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        debug!(%error, "a connection of an application ended");
    }
}
