//! From a request to its answer.
//!
//! Leaves to others: what a body says (`ask`), deciding (`super::super::decider`).

use super::answer::Checked;
use super::ask::{Asked, parse_limit, parse_limits};
use super::problem::{Problem, json};
use super::{HttpDoor, body, ledger};
use crate::doors::metrics::Route;
use crate::doors::tokens::Caller;
use crate::metrics::{Door, DoorResult};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, EXPECT, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use std::time::Instant;
use weir_core::exact::Strategy;

/// Longest body of `POST /v1/limit`.
pub const MAX_LIMIT_BYTES: usize = 64 * 1024;
/// Longest body of `POST /v1/limits`.
pub const MAX_LIMITS_BYTES: usize = 256 * 1024;

/// The description of this door (OpenAPI 3.1).
const OPENAPI: &[u8] = include_bytes!("openapi.json");

/// What there is.
const PATHS: &str =
    "there are POST /v1/limit, POST /v1/limits, GET /v1/ledger, GET /v1/ledger/{id} and GET /openapi.json";

type Answered = Response<Full<Bytes>>;

/// Answers a request, whatever it is.
pub(super) async fn handle(door: &HttpDoor, request: Request<Incoming>) -> Answered {
    let began = Instant::now();
    let (head, mut body) = request.into_parts();
    let found = find(head.uri.path());
    let answered = match &found {
        Some(route) => answer(door, route, &head, &mut body).await,
        None => Err(Problem::new(StatusCode::NOT_FOUND, "not_found", format!("no such path; {PATHS}"))),
    };
    let response = match answered {
        Ok(response) => response,
        Err(problem) => {
            if matches!(found, Some(Found(Route::Limit | Route::Limits, _))) {
                door.shared.metrics.door_decided(Door::Http, DoorResult::Refused);
            }
            // A client that waits to be asked for its body is not.
            if !head.headers.contains_key(EXPECT) {
                body::discard(&mut body).await;
            }
            problem.response()
        }
    };
    let route = found.map_or(Route::Unknown, |found| found.0);
    door.shared.metrics.doors.answered(route, response.status().as_u16(), began.elapsed());
    response
}

/// A route, and what its path names.
struct Found<'a>(Route, Option<&'a str>);

fn find(path: &str) -> Option<Found<'_>> {
    match path {
        "/v1/limit" => Some(Found(Route::Limit, None)),
        "/v1/limits" => Some(Found(Route::Limits, None)),
        "/v1/ledger" => Some(Found(Route::Ledger, None)),
        "/openapi.json" => Some(Found(Route::OpenApi, None)),
        _ => {
            let id = path.strip_prefix("/v1/ledger/")?;
            (!id.contains('/')).then_some(Found(Route::Ledger, Some(id)))
        }
    }
}

async fn answer(
    door: &HttpDoor,
    Found(route, id): &Found<'_>,
    head: &Parts,
    body: &mut Incoming,
) -> Result<Answered, Problem> {
    let (method, name) = match route {
        Route::Limit | Route::Limits => (Method::POST, "POST"),
        Route::Ledger | Route::OpenApi | Route::Unknown => (Method::GET, "GET"),
    };
    if head.method != method {
        return Err(Problem::method(name));
    }
    if *route == Route::OpenApi {
        return Ok(openapi());
    }
    let caller = door.tokens.check(authorization(&head.headers)).map_err(Problem::unauthorized)?;
    match (route, id) {
        (Route::Ledger, Some(id)) => {
            ledger::one(door.ledger.as_deref(), id, &caller).await.map(|found| json(StatusCode::OK, &found))
        }
        (Route::Ledger, None) => {
            let query = head.uri.query().unwrap_or_default();
            let found = ledger::several(door.ledger.as_deref(), query, &caller).await;
            found.map(|found| json(StatusCode::OK, &found))
        }
        _ => decide(door, *route, &caller, head, body).await,
    }
}

async fn decide(
    door: &HttpDoor,
    route: Route,
    caller: &Caller,
    head: &Parts,
    body: &mut Incoming,
) -> Result<Answered, Problem> {
    check_type(&head.headers)?;
    let asked = match route {
        Route::Limits => parse_limits(&body::read(body, MAX_LIMITS_BYTES).await?)?,
        _ => parse_limit(&body::read(body, MAX_LIMIT_BYTES).await?)?,
    };
    let asked = admit(asked, caller, route)?;
    let answer = door.decider.decide(&asked.questions, asked.on_failure.into(), asked.within).await;
    let mut checked = Checked::of(&asked, &answer, door.shared.now());
    let result = match (answer.allowed, checked.decided) {
        (true, _) => DoorResult::Allowed,
        (false, true) => DoorResult::Denied,
        (false, false) => DoorResult::Undecided,
    };
    door.shared.metrics.door_decided(Door::Http, result);
    if route == Route::Limit
        && let Some(outcome) = checked.checks.pop()
    {
        return Ok(json(StatusCode::OK, &outcome));
    }
    Ok(json(StatusCode::OK, &checked))
}

/// The one that there is; with two it is not clear who asks.
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
    let message = "the body is read as content-type application/json alone, without a content-encoding";
    Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message))
}

/// Whether the caller may ask this; its workspace is filled in.
fn admit(mut asked: Asked, caller: &Caller, route: Route) -> Result<Asked, Problem> {
    let named = asked.workspace.as_deref();
    let Some(workspace) = caller.workspace(named.map(str::as_bytes)) else {
        let message = "this token is for another workspace; leave the field out".to_owned();
        return Err(Problem::forbidden("workspace_not_allowed", "workspace".to_owned(), message));
    };
    for (index, question) in asked.questions.iter_mut().enumerate() {
        question.workspace = workspace.to_vec();
        if let Strategy::Ledger { zone } = question.strategy
            && !caller.may_use(zone)
        {
            let field =
                if route == Route::Limits { format!("checks[{index}].zone") } else { "zone".to_owned() };
            return Err(Problem::forbidden(
                "zone_not_allowed",
                field,
                format!("this token is not for zone {zone}"),
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
