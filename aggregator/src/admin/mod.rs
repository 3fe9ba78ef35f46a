//! HTTP for operators and Prometheus: `/healthz`, `/readyz`, `/metrics`, the status page at `/`, the documentation at `/docs/…`, and its data as JSON
//! under `/v1`.
//!
//! Clients cannot exhaust it: the head of a request must arrive in time, and the life and the number of connections are
//! bounded.
//!
//! Pages and paths that show identifiers require an allowed host name; probes and Prometheus may use any.

pub mod control;
pub mod documentation;
mod error;
pub mod exact;
pub mod explain;
pub mod overrides;
pub mod page;
pub mod parts;
pub mod query;
pub mod rules;
pub mod shared;
pub mod top;
pub mod view;

use crate::net::hosts::Hosts;
use crate::net::listen::{Connection, Listener, Patience};
use crate::net::serve;
use crate::net::tls::Protocol;
use crate::region::services::{Services, WaitsFor};
use crate::telemetry::metrics::exposition;
use axum::extract::{RawQuery, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use axum::{Router, body};
use serde::Serialize;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tower_http::compression::CompressionLayer;
use tracing::debug;

use error::error;

/// Deadline for the head of a request, and the longest idle time of a connection.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest head of a request. An identifier of 16 KiB fits, with each byte percent-encoded.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Longest life of a connection; clients then reconnect.
const CONNECTION_LIFE: Duration = Duration::from_secs(60);
/// Most connections at one time. A further connection replaces an idle one, so that probes are answered even if many
/// connections are held open.
pub const MAX_CONNECTIONS: usize = 128;
/// Most concurrent requests that read stores and may take long. That is half of the connections that one address may
/// have, so that a probe from the same address is still answered.
const MAX_REQUESTS: usize = 32;
/// Content types of the metrics: of OpenMetrics, and of Prometheus' older text format.
const OPEN_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

const NO_SUCH_PAGE: &str = "no such page; there are /, /healthz, /readyz, /healthcheck, /metrics, /v1/keys, /v1/top, /v1/rules, \
    /v1/overrides, /v1/overrides/audit, /v1/parts, /v1/links and /docs/…";

const TOO_MANY_REQUESTS: &str = "too many requests at once; try again in a second";

const WRONG_HOST: &str = "this is shown to those who call by an address, by localhost, or by a name that --admin-hosts \
    (WEIR_ADMIN_HOSTS) allows; the request's Host is none of these, so a web page of another name may have sent it";

/// What the page links to, besides its own parts: `/v1/links`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Links {
    /// The URL of Grafana, if it is configured.
    pub grafana: Option<String>,
}

/// A text that is not such a URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a URL such as https://grafana.example.com/d/weir")]
pub struct NotALink(String);

impl Links {
    /// With the URL of Grafana, or without it if the text is empty.
    pub fn parse(grafana: &str) -> Result<Links, NotALink> {
        let wrong = || NotALink(grafana.to_owned());
        if grafana.is_empty() {
            return Ok(Links::default());
        }
        // A link of another scheme, such as javascript:, would run in the page.
        let uri: Uri = grafana.parse().map_err(|_| wrong())?;
        let is_web = matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some();
        if is_web { Ok(Links { grafana: Some(grafana.to_owned()) }) } else { Err(wrong()) }
    }
}

/// Serves until the program ends; `hosts` are the allowed host names.
pub async fn serve(
    services: Arc<Services>,
    hosts: Hosts,
    links: Links,
    (socket, max_connections): (TcpListener, usize),
) {
    let router = router(services.clone(), hosts, links);
    let listener = Listener {
        api: "admin",
        socket,
        tls: None,
        protocol: Protocol::Http,
        max_connections,
        patience: Patience::Exchange { idle: HEAD_TIMEOUT, head: HEAD_TIMEOUT, write: CONNECTION_LIFE },
    };
    listener
        .run(services.metrics.clone(), pending(), move |connection| {
            serve_connection(router.clone(), connection)
        })
        .await;
}

/// Paths and handlers.
pub fn router(services: Arc<Services>, hosts: Hosts, links: Links) -> Router {
    let room = Arc::new(Semaphore::new(MAX_REQUESTS));
    let control = services.clone();
    let revision = move || control.control.book().edition().map_or(0, |edition| edition.revision);
    let answers = Arc::new(shared::Answers::new(revision));
    // What all viewers see alike. Those that wait for one answer take the room of one.
    let watched = Router::new()
        .route("/v1/top", get(nearest))
        .route("/v1/rules", get(ruled))
        .route(
            "/v1/parts",
            get(|State(services): State<Arc<Services>>| async move { Json(parts::parts(&services)) }),
        )
        .route("/v1/overrides", get(overridden))
        .route_layer(CompressionLayer::new())
        .route_layer(middleware::from_fn_with_state(room.clone(), in_room))
        .route_layer(middleware::from_fn_with_state(answers, shared::share));
    let others = Router::new()
        .route("/v1/keys", get(explained))
        .route("/v1/overrides/audit", get(audited))
        .route("/v1/links", get(move || async move { Json(links) }))
        .route("/", get(page::index))
        .route("/page/{*file}", get(page::file))
        .route("/docs/{*page}", get(page::document))
        .route_layer(CompressionLayer::new())
        .route_layer(middleware::from_fn_with_state(room, in_room));
    Router::new()
        .merge(watched)
        .merge(others)
        .route_layer(middleware::from_fn_with_state(Arc::new(hosts), called_well))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        // The reference service's name for it.
        .route("/healthcheck", get(ready))
        .route("/metrics", get(metrics))
        .fallback(|| async { error(StatusCode::NOT_FOUND, NO_SUCH_PAGE) })
        .method_not_allowed_fallback(|| async {
            error(StatusCode::METHOD_NOT_ALLOWED, "this listener is read-only; use GET")
        })
        .layer(middleware::map_response(harden))
        .with_state(services)
}

async fn serve_connection(router: Router, connection: Connection) {
    let served = serve::serve_connection(router, connection, MAX_HEAD_BYTES, pending());
    if let Ok(Err(error)) = timeout(CONNECTION_LIFE, served).await {
        debug!(%error, "a connection to the admin HTTP ended");
    }
}

/// Passes requests with an allowed host name.
async fn called_well(State(hosts): State<Arc<Hosts>>, request: Request, next: Next) -> Response {
    match hosts.allow(request.uri(), request.headers()) {
        true => next.run(request).await,
        false => error(StatusCode::MISDIRECTED_REQUEST, WRONG_HOST),
    }
}

/// Passes requests as long as there is room for concurrent ones.
async fn in_room(State(room): State<Arc<Semaphore>>, request: Request, next: Next) -> Response {
    match room.try_acquire() {
        Ok(_room) => next.run(request).await,
        Err(_) => error(StatusCode::SERVICE_UNAVAILABLE, TOO_MANY_REQUESTS),
    }
}

async fn ready(State(services): State<Arc<Services>>) -> Response {
    if services.draining.borrow().is_some() {
        return (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n").into_response();
    }
    let (recovers, cells) = services.state(|state, _| (state.is_recovering(), state.figures.recovered));
    let waits = match services.waits_for() {
        Some(WaitsFor::Redis) => "starting: Redis does not answer yet\n".to_owned(),
        Some(WaitsFor::Tables) => {
            "starting: tables are missing in the database; run weir-aggregator migrate\n".to_owned()
        }
        Some(WaitsFor::Counts) => {
            format!("starting: {cells} cells that the region had published were read\n")
        }
        Some(WaitsFor::Control) => {
            "live control was not read from the database yet: calls of the APIs are undecided, and filters are served\n".to_owned()
        }
        // It has waited long enough: counts that are missing are better than no decisions.
        None if recovers => {
            return format!("ready, but not all that the region had published was read: {cells} cells so far\n")
                .into_response();
        }
        None => return "ready\n".into_response(),
    };
    (StatusCode::SERVICE_UNAVAILABLE, waits).into_response()
}

async fn metrics(State(services): State<Arc<Services>>, headers: HeaderMap) -> Response {
    let text = services.metrics_text();
    let accepted = headers.get_all(header::ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
    let (kind, text) = match exposition::accepts_open(accepted) {
        true => (OPEN_TYPE, text),
        false => (TEXT_TYPE, exposition::of_prometheus(&text)),
    };
    let headers = [(header::CONTENT_TYPE, kind), (header::VARY, "accept")];
    (headers, body::Body::from(text)).into_response()
}

async fn explained(State(services): State<Arc<Services>>, RawQuery(raw): RawQuery) -> Response {
    match query::KeyQuery::parse(raw.as_deref().unwrap_or_default()) {
        Ok(query) => Json(explain::explain(&services, &query).await).into_response(),
        Err(reason) => error(StatusCode::BAD_REQUEST, &reason.to_string()),
    }
}

async fn nearest(State(services): State<Arc<Services>>, RawQuery(raw): RawQuery) -> Response {
    match query::TopQuery::parse(raw.as_deref().unwrap_or_default()) {
        Ok(query) => Json(top::top(&services, &query).await).into_response(),
        Err(reason) => error(StatusCode::BAD_REQUEST, &reason.to_string()),
    }
}

async fn ruled(State(services): State<Arc<Services>>, RawQuery(raw): RawQuery) -> Response {
    match query::RulesQuery::parse(raw.as_deref().unwrap_or_default()) {
        Ok(query) => Json(rules::rules(&services, &query).await).into_response(),
        Err(reason) => error(StatusCode::BAD_REQUEST, &reason.to_string()),
    }
}

async fn overridden(State(services): State<Arc<Services>>, RawQuery(raw): RawQuery) -> Response {
    match query::OverridesQuery::parse(raw.as_deref().unwrap_or_default()) {
        Ok(query) => Json(overrides::overrides(&services, &query).await).into_response(),
        Err(reason) => error(StatusCode::BAD_REQUEST, &reason.to_string()),
    }
}

async fn audited(State(services): State<Arc<Services>>, RawQuery(raw): RawQuery) -> Response {
    match query::audit(raw.as_deref().unwrap_or_default()) {
        Ok(filter) => match overrides::audit(&services, &filter).await {
            Ok(changes) => Json(changes).into_response(),
            Err(unread) => error(StatusCode::SERVICE_UNAVAILABLE, &unread.to_string()),
        },
        Err(reason) => error(StatusCode::BAD_REQUEST, &reason.to_string()),
    }
}

/// Headers that forbid caching, content sniffing and use by other origins.
async fn harden(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use tonic::codegen::Service as _;

    #[test]
    fn links_lead_to_web_pages() {
        let url = "https://grafana.example.com/d/weir?orgId=1&from=now-1h";
        assert_eq!(Links::parse(url).unwrap().grafana.as_deref(), Some(url));
        assert_eq!(Links::parse(""), Ok(Links::default()));
        for wrong in
            ["javascript:alert(1)", "grafana.example.com", "//x", "https://", "data:text/html,x", "a b"]
        {
            assert!(Links::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[tokio::test]
    async fn looks_that_take_long_are_bounded() {
        let room = Arc::new(Semaphore::new(2));
        let mut router: Router = Router::new()
            .route("/slow", get(|| async { pending::<&str>().await }))
            .route_layer(middleware::from_fn_with_state(room, in_room))
            .route("/healthz", get(|| async { "ok" }));
        let request = |path: &str| {
            Request::builder().uri(path).header("host", "localhost").body(Body::empty()).unwrap()
        };
        let slow: Vec<_> = (0..2).map(|_| tokio::spawn(router.call(request("/slow")))).collect();
        tokio::task::yield_now().await;
        assert_eq!(router.call(request("/slow")).await.unwrap().status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(router.call(request("/healthz")).await.unwrap().status(), StatusCode::OK);
        slow.iter().for_each(tokio::task::JoinHandle::abort);
    }
}
