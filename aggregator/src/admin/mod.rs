//! HTTP for operators and Prometheus: `/healthz`, `/readyz`, `/metrics`, `/v1/keys`.
//!
//! A client does not hold a connection for as long as it likes: the head of a request has to arrive in time, a connection
//! lives for a bounded time, and there is a bounded number of them.
//!
//! Leaves to others: connections (`listen`), what is measured (`metrics`), what a key's explanation says ([`keys`]).

pub mod keys;
pub mod query;

use crate::listen::{Connection, Listener, Patience};
use crate::shared::Shared;
use crate::tls::Protocol;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use axum::{Router, body};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use serde_json::json;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tracing::debug;

/// How long a request's head may take, and how long a connection may be idle.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection lives at most; a client that wants more connects again.
const CONNECTION_LIFE: Duration = Duration::from_secs(60);
/// Most connections at one time; further ones wait to be accepted.
pub const MAX_CONNECTIONS: usize = 128;
/// Content type of Prometheus' text format as the metrics' encoder writes it.
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves for as long as the program runs.
pub async fn serve(shared: Arc<Shared>, socket: TcpListener) {
    let router = router(shared.clone());
    let listener = Listener {
        door: "admin",
        socket,
        tls: None,
        protocol: Protocol::Http,
        max_connections: MAX_CONNECTIONS,
        patience: Patience::Exchange { idle: HEAD_TIMEOUT, head: HEAD_TIMEOUT, write: CONNECTION_LIFE },
    };
    listener.run(shared, pending(), move |connection| serve_connection(router.clone(), connection)).await;
}

/// The paths and their answers.
pub fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .route("/v1/keys", get(explain))
        .fallback(|| async {
            error(StatusCode::NOT_FOUND, "no such page; there are /healthz, /readyz, /metrics and /v1/keys")
        })
        .method_not_allowed_fallback(|| async {
            error(StatusCode::METHOD_NOT_ALLOWED, "this page is only read, with GET")
        })
        .with_state(shared)
}

async fn serve_connection(router: Router, connection: Connection) {
    let turn = connection.turn();
    let router = TowerToHyperService::new(router);
    let served = http1::Builder::new().serve_connection(
        TokioIo::new(connection),
        service_fn(move |request| {
            turn.begin();
            let (answer, turn) = (router.call(request), turn.clone());
            async move {
                let answer = answer.await;
                turn.end();
                answer
            }
        }),
    );
    if let Ok(Err(error)) = timeout(CONNECTION_LIFE, served).await {
        debug!(%error, "a connection to the admin HTTP ended");
    }
}

async fn ready(State(shared): State<Arc<Shared>>) -> Response {
    if shared.draining.borrow().is_some() {
        return (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n").into_response();
    }
    "ready\n".into_response()
}

async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let text = shared.metrics_text();
    ([(header::CONTENT_TYPE, METRICS_TYPE)], body::Body::from(text)).into_response()
}

async fn explain(State(shared): State<Arc<Shared>>, RawQuery(raw): RawQuery) -> Response {
    let asked = match query::KeyQuery::parse(raw.as_deref().unwrap_or_default()) {
        Ok(asked) => asked,
        Err(reason) => return error(StatusCode::BAD_REQUEST, &reason.to_string()),
    };
    match keys::explain(&shared, &asked) {
        Some(found) => Json(found).into_response(),
        None => error(
            StatusCode::NOT_FOUND,
            "nothing is known of this identifier: it was not used in this window or the last one, or it goes by \
             another workspace or namespace",
        ),
    }
}

fn error(status: StatusCode, reason: &str) -> Response {
    (status, Json(json!({ "error": reason }))).into_response()
}
