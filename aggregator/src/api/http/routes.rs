//! Routing: from a request to its response.

use super::admission::admit;
use super::answer::{Checked, Outcome};
use super::body::{JsonBody, discard};
use super::checks::{CheckRequest, parse_batch, parse_check};
use super::problem::Problem;
use super::reservations::{Reservation, Settled, parse_reserve, parse_settle};
use super::{HttpApi, ledger, overrides, reservations};
use crate::auth::{Caller, Presented};
use crate::net::hosts::Hosts;
use crate::net::listen::ConnectionInfo;
use crate::region::exact::Recorded;
use crate::telemetry::metrics::api::Route;
use crate::telemetry::metrics::{Api, ApiResult};
use crate::telemetry::request_log;
use crate::telemetry::spans::around;
use axum::extract::{MatchedPath, Path, RawQuery, Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use serde_json::Value;
use std::sync::Arc;
use std::time::Instant;
use tracing::Instrument;

/// Longest body of `POST /v1/check`.
pub const MAX_CHECK_BYTES: usize = 64 * 1024;
/// Longest body of `POST /v1/check/batch`.
pub const MAX_BATCH_BYTES: usize = 256 * 1024;

/// The description of this API (OpenAPI 3.1).
const OPENAPI: &[u8] = include_bytes!("openapi.json");

const NO_SUCH_PATH: &str = "no such path; there are POST /v1/check, POST /v1/check/batch, POST /v1/reserve, \
                            POST /v1/settle, GET /v1/ledger, GET /v1/ledger/{id}, GET /v1/overrides, PUT /v1/overrides, DELETE /v1/overrides, \
                            GET /v1/overrides/audit and GET /openapi.json";

const WRONG_HOST: &str = "without tokens (--tokens-file) this API accepts only requests whose Host is an address or localhost; \
                          a request with another Host may come from a web page of that name";

/// The paths, and the routes that metrics show for them.
const PATHS: [(&str, Route); 9] = [
    ("/v1/check", Route::Check),
    ("/v1/check/batch", Route::CheckBatch),
    ("/v1/reserve", Route::Reserve),
    ("/v1/settle", Route::Settle),
    ("/v1/ledger", Route::Ledger),
    ("/v1/ledger/{id}", Route::Ledger),
    ("/v1/overrides", Route::Overrides),
    ("/v1/overrides/audit", Route::Audit),
    ("/openapi.json", Route::OpenApi),
];

/// Extracts the parts of the program that the API uses.
type Shared = State<Arc<HttpApi>>;
/// Extracts the authenticated caller.
type By = Extension<Arc<Caller>>;
type Answer<T> = Result<Json<T>, Problem>;

/// All paths. A request passes `observe`, `host`, the path and its method, then `authenticate`.
pub(super) fn router(api: HttpApi) -> Router {
    let api = Arc::new(api);
    Router::new()
        .route("/v1/check", post(check))
        .route("/v1/check/batch", post(check_batch))
        .route("/v1/reserve", post(reserve))
        .route("/v1/settle", post(settle))
        .route("/v1/ledger", get(history))
        .route("/v1/ledger/{id}", get(transaction))
        .route("/v1/overrides", get(list_overrides).put(put_override).delete(delete_override))
        .route("/v1/overrides/audit", get(audit))
        .route_layer(middleware::from_fn_with_state(api.clone(), authenticate))
        .route("/openapi.json", get(|| async { ([(CONTENT_TYPE, "application/json")], OPENAPI) }))
        .fallback(|request| refuse(request, Problem::new(StatusCode::NOT_FOUND, "not_found", NO_SUCH_PATH)))
        .method_not_allowed_fallback(|request| {
            let message =
                "this path does not accept this method; the header allow lists those that it accepts";
            refuse(request, Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message))
        })
        .layer(middleware::from_fn_with_state(api.clone(), host))
        .layer(middleware::from_fn_with_state(api.clone(), observe))
        .with_state(api)
}

/// Responds with an error, once the client can receive it.
async fn refuse(request: Request, problem: Problem) -> Response {
    let (head, body) = request.into_parts();
    discard(&head.headers, body).await;
    problem.into_response()
}

/// Records the span, the log's request id and the metrics of each request.
async fn observe(State(api): Shared, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let matched = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let served = PATHS.iter().find(|(path, _)| Some(*path) == matched);
    let (path, route) = served.map_or((None, Route::Unknown), |(path, route)| (Some(*path), *route));
    let span = api.services.telemetry.http(request.method().as_str(), path, request.headers());
    let log = request_log::of_headers(request.headers());
    let response = around(span.as_ref(), next.run(request)).instrument(log).await;
    let status = response.status();
    if matches!(route, Route::Check | Route::CheckBatch | Route::Reserve) && !status.is_success() {
        api.services.metrics.api_decided(Api::Http, ApiResult::Refused);
    }
    span.into_iter().for_each(|span| span.responded(status.as_u16()));
    api.services.metrics.api.answered(route, status.as_u16(), began.elapsed());
    response
}

/// Refuses requests that may come from a web page whose own name resolves to this host. Such a page has no token.
async fn host(State(api): Shared, request: Request, next: Next) -> Response {
    if api.tokens.is_required() || Hosts::default().allow(request.uri(), request.headers()) {
        return next.run(request).await;
    }
    refuse(request, Problem::new(StatusCode::MISDIRECTED_REQUEST, "wrong_host", WRONG_HOST)).await
}

/// Passes requests of authenticated callers, with the caller as an extension.
async fn authenticate(State(api): Shared, mut request: Request, next: Next) -> Response {
    let connection = request.extensions().get::<ConnectionInfo>();
    let certificate = connection.map(|connection| &connection.certificate);
    let presented = Presented { header: authorization(request.headers()), certificate };
    match api.tokens.check(presented) {
        Ok(caller) => {
            if api.tokens.is_required() {
                connection.into_iter().for_each(|connection| connection.turn.authenticated(&caller.name));
            }
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(reason) => refuse(request, Problem::unauthorized(reason)).await,
    }
}

/// The only authorization header. Two are treated as malformed, since it is not clear which one to use.
fn authorization(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => Some(value.as_bytes()),
        (None, _) => None,
        (Some(_), Some(_)) => Some(b""),
    }
}

async fn check(State(api): Shared, caller: By, body: JsonBody<MAX_CHECK_BYTES>) -> Answer<Option<Outcome>> {
    let mut checked = decide(&api, &caller, false, parse_check(&body.0)?).await?;
    Ok(Json(checked.checks.pop()))
}

async fn check_batch(State(api): Shared, caller: By, body: JsonBody<MAX_BATCH_BYTES>) -> Answer<Checked> {
    decide(&api, &caller, true, parse_batch(&body.0)?).await.map(Json)
}

async fn reserve(State(api): Shared, caller: By, body: JsonBody<MAX_CHECK_BYTES>) -> Answer<Reservation> {
    reservations::reserve(&api, &caller, parse_reserve(&body.0)?).await.map(Json)
}

async fn settle(State(api): Shared, caller: By, body: JsonBody<MAX_CHECK_BYTES>) -> Answer<Settled> {
    reservations::settle(&api, &caller, parse_settle(&body.0)?).map(Json)
}

async fn transaction(State(api): Shared, caller: By, Path(id): Path<String>) -> Answer<Recorded> {
    ledger::one(&api.services.exact, &id, &caller).await.map(Json)
}

async fn history(State(api): Shared, caller: By, RawQuery(query): RawQuery) -> Answer<ledger::History> {
    ledger::several(&api.services.exact, &query.unwrap_or_default(), &caller).await.map(Json)
}

async fn list_overrides(State(api): Shared, caller: By, RawQuery(query): RawQuery) -> Answer<Value> {
    overrides::list(&api, &query.unwrap_or_default(), &caller).await.map(Json)
}

async fn put_override(
    State(api): Shared,
    caller: By,
    body: JsonBody<{ overrides::MAX_BYTES }>,
) -> Answer<Value> {
    overrides::put(&api, &body.0, &caller).await.map(Json)
}

async fn delete_override(State(api): Shared, caller: By, RawQuery(query): RawQuery) -> Answer<Value> {
    overrides::delete(&api, &query.unwrap_or_default(), &caller).await.map(Json)
}

async fn audit(State(api): Shared, caller: By, RawQuery(query): RawQuery) -> Answer<Value> {
    overrides::audit(&api, &query.unwrap_or_default(), &caller).await.map(Json)
}

async fn decide(
    api: &HttpApi,
    caller: &Caller,
    is_list: bool,
    request: CheckRequest,
) -> Result<Checked, Problem> {
    let request = admit(request, caller, is_list)?;
    let answer = api.embedded.decide(&request.checks, request.on_failure.into(), request.within).await;
    let checked = Checked::of(&request, &answer, api.services.now());
    api.services.metrics.api_decided(Api::Http, checked.result(&answer));
    Ok(checked)
}
