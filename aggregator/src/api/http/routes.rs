//! Routing: from a request to its response.

use super::answer::Checked;
use super::ask::{Asked, parse_batch, parse_check};
use super::problem::{Problem, json};
use super::{HttpApi, body, ledger, overrides};
use crate::api::ruled::Forbidden;
use crate::auth::{Caller, Presented};
use crate::net::hosts::Hosts;
use crate::net::listen::ConnectionInfo;
use crate::telemetry::metrics::api::Route;
use crate::telemetry::metrics::{Api, ApiResult};
use crate::telemetry::spans::around;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, EXPECT, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use std::time::Instant;
use weir_core::model::exact::Algorithm;

/// Longest body of `POST /v1/check`.
pub const MAX_CHECK_BYTES: usize = 64 * 1024;
/// Longest body of `POST /v1/check/batch`.
pub const MAX_BATCH_BYTES: usize = 256 * 1024;

/// The description of this API (OpenAPI 3.1).
const OPENAPI: &[u8] = include_bytes!("openapi.json");

/// All routes.
const PATHS: &str = "there are POST /v1/check, POST /v1/check/batch, GET /v1/ledger, GET /v1/ledger/{id}, GET /v1/overrides, \
                     PUT /v1/overrides, DELETE /v1/overrides, GET /v1/overrides/audit and GET /openapi.json";

const WRONG_HOST: &str = "without tokens (--tokens-file) this API accepts only requests whose Host is an address or localhost; \
                          a request with another Host may come from a web page of that name";

type Answered = Response<Full<Bytes>>;

/// Answers any request.
pub(super) async fn handle(api: &HttpApi, request: Request<Incoming>) -> Answered {
    let began = Instant::now();
    let (head, mut body) = request.into_parts();
    let found = find(head.uri.path());
    let path = found.as_ref().and_then(Found::path);
    let span = api.services.telemetry.http(head.method.as_str(), path, &head.headers);
    let answered = match &found {
        _ if !may_call(api, &head) => {
            Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, "wrong_host", WRONG_HOST))
        }
        Some(route) => around(span.as_ref(), answer(api, route, &head, &mut body)).await,
        None => Err(Problem::new(StatusCode::NOT_FOUND, "not_found", format!("no such path; {PATHS}"))),
    };
    let response = match answered {
        Ok(response) => response,
        Err(problem) => {
            if matches!(found, Some(Found(Route::Check | Route::CheckBatch, _))) {
                api.services.metrics.api_decided(Api::Http, ApiResult::Refused);
            }
            // A client that waits for "100 Continue" has not sent its body.
            if !head.headers.contains_key(EXPECT) {
                body::discard(&mut body).await;
            }
            problem.response()
        }
    };
    let route = found.map_or(Route::Unknown, |found| found.0);
    span.into_iter().for_each(|span| span.responded(response.status().as_u16()));
    api.services.metrics.api.answered(route, response.status().as_u16(), began.elapsed());
    response
}

/// Whether the request cannot come from a web page whose own name resolves to this host. Such a page has no token.
fn may_call(api: &HttpApi, head: &Parts) -> bool {
    api.tokens.is_required() || Hosts::default().allow(&head.uri, &head.headers)
}

/// A route, and the id in its path.
struct Found<'a>(Route, Option<&'a str>);

impl Found<'_> {
    /// The path without the id.
    fn path(&self) -> Option<&'static str> {
        match self {
            Found(Route::Check, _) => Some("/v1/check"),
            Found(Route::CheckBatch, _) => Some("/v1/check/batch"),
            Found(Route::Ledger, None) => Some("/v1/ledger"),
            Found(Route::Ledger, Some(_)) => Some("/v1/ledger/{id}"),
            Found(Route::Overrides, _) => Some("/v1/overrides"),
            Found(Route::Audit, _) => Some("/v1/overrides/audit"),
            Found(Route::OpenApi, _) => Some("/openapi.json"),
            Found(Route::Unknown, _) => None,
        }
    }
}

fn find(path: &str) -> Option<Found<'_>> {
    match path {
        "/v1/check" => Some(Found(Route::Check, None)),
        "/v1/check/batch" => Some(Found(Route::CheckBatch, None)),
        "/v1/ledger" => Some(Found(Route::Ledger, None)),
        "/v1/overrides" => Some(Found(Route::Overrides, None)),
        "/v1/overrides/audit" => Some(Found(Route::Audit, None)),
        "/openapi.json" => Some(Found(Route::OpenApi, None)),
        _ => {
            let id = path.strip_prefix("/v1/ledger/")?;
            (!id.contains('/')).then_some(Found(Route::Ledger, Some(id)))
        }
    }
}

async fn answer(
    api: &HttpApi,
    Found(route, id): &Found<'_>,
    head: &Parts,
    body: &mut Incoming,
) -> Result<Answered, Problem> {
    let (methods, names): (&[Method], _) = match route {
        Route::Check | Route::CheckBatch => (&[Method::POST], "POST"),
        Route::Overrides => (&[Method::GET, Method::PUT, Method::DELETE], "GET, PUT, DELETE"),
        Route::Ledger | Route::Audit | Route::OpenApi | Route::Unknown => (&[Method::GET], "GET"),
    };
    if !methods.contains(&head.method) {
        return Err(Problem::method(names));
    }
    if *route == Route::OpenApi {
        return Ok(openapi());
    }
    let connection = head.extensions.get::<ConnectionInfo>();
    let certificate = connection.map(|connection| &connection.certificate);
    let presented = Presented { header: authorization(&head.headers), certificate };
    let caller = api.tokens.check(presented).map_err(Problem::unauthorized)?;
    connection.into_iter().for_each(|connection| connection.turn.admit());
    match (route, id) {
        (Route::Ledger, Some(id)) => {
            ledger::one(api.ledger.as_deref(), id, &caller).await.map(|found| json(StatusCode::OK, &found))
        }
        (Route::Overrides | Route::Audit, _) => control(api, *route, &caller, head, body).await,
        (Route::Ledger, None) => {
            let query = head.uri.query().unwrap_or_default();
            let found = ledger::several(api.ledger.as_deref(), query, &caller).await;
            found.map(|found| json(StatusCode::OK, &found))
        }
        _ => decide(api, *route, &caller, head, body).await,
    }
}

async fn control(
    api: &HttpApi,
    route: Route,
    caller: &Caller,
    head: &Parts,
    body: &mut Incoming,
) -> Result<Answered, Problem> {
    let query = head.uri.query().unwrap_or_default();
    let answer = match (route, &head.method) {
        (Route::Audit, _) => overrides::audit(api, query, caller).await,
        (_, &Method::PUT) => {
            check_type(&head.headers)?;
            overrides::put(api, body, caller).await
        }
        (_, &Method::DELETE) => overrides::delete(api, query, caller).await,
        _ => overrides::list(api, query, caller).await,
    };
    answer.map(|answer| json(StatusCode::OK, &answer))
}

async fn decide(
    api: &HttpApi,
    route: Route,
    caller: &Caller,
    head: &Parts,
    body: &mut Incoming,
) -> Result<Answered, Problem> {
    check_type(&head.headers)?;
    let asked = match route {
        Route::CheckBatch => parse_batch(&body::read(body, MAX_BATCH_BYTES).await?)?,
        _ => parse_check(&body::read(body, MAX_CHECK_BYTES).await?)?,
    };
    let asked = admit(asked, caller, route, api)?;
    let answer = api.embedded.decide(&asked.questions, asked.on_failure.into(), asked.within).await;
    let mut checked = Checked::of(&asked, &answer, api.services.now());
    let result = match (answer.allowed, checked.decided) {
        (true, _) => ApiResult::Allowed,
        (false, true) => ApiResult::Denied,
        (false, false) => ApiResult::Undecided,
    };
    api.services.metrics.api_decided(Api::Http, result);
    if route == Route::Check
        && let Some(outcome) = checked.checks.pop()
    {
        return Ok(json(StatusCode::OK, &outcome));
    }
    Ok(json(StatusCode::OK, &checked))
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

fn check_type(headers: &HeaderMap) -> Result<(), Problem> {
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let essence = kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let plain = headers.get(CONTENT_ENCODING).is_none_or(|encoding| encoding == "identity");
    if essence.eq_ignore_ascii_case(b"application/json") && plain {
        return Ok(());
    }
    let message = "the body must have content-type application/json and no content-encoding";
    Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message))
}

/// Checks that the caller may make these checks, and sets their workspace.
fn admit(mut asked: Asked, caller: &Caller, route: Route, api: &HttpApi) -> Result<Asked, Problem> {
    let named = asked.workspace.as_deref();
    let Some(workspace) = caller.workspace(named.map(str::as_bytes)) else {
        let message = "this token is for another workspace; leave the field out".to_owned();
        return Err(Problem::forbidden("workspace_not_allowed", "workspace".to_owned(), message));
    };
    for (index, question) in asked.questions.iter_mut().enumerate() {
        question.workspace = workspace.to_vec();
        let field = |name: &str| match route {
            Route::CheckBatch => format!("checks[{index}].{name}"),
            _ => name.to_owned(),
        };
        match api.ruled.forbids(&api.services, caller, question) {
            Some(Forbidden::Namespace) => {
                let message = "this token may not count in this namespace; name it under namespaces in the token's entry of the \
                                     tokens file, which is required for a namespace that a filter's rule counts";
                return Err(Problem::forbidden(
                    "namespace_not_allowed",
                    field("namespace"),
                    message.to_owned(),
                ));
            }
            Some(Forbidden::Cost(most)) => {
                let message = format!("this token allows a cost of at most {most}");
                return Err(Problem::forbidden("cost_not_allowed", field("cost"), message));
            }
            None => {}
        }
        if let Algorithm::Ledger { zone } = question.algorithm
            && !caller.may_use(zone)
        {
            return Err(Problem::forbidden(
                "zone_not_allowed",
                field("zone"),
                format!("this token does not allow zone {zone}"),
            ));
        }
    }
    Ok(asked)
}

fn openapi() -> Answered {
    let mut response = Response::new(Full::new(Bytes::from_static(OPENAPI)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
