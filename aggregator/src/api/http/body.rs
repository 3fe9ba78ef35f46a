//! Reads the body of a request, bounded in bytes and in time.

use super::problem::Problem;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE, EXPECT, HeaderValue};
use axum::http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body as _;
use std::time::Duration;
use tokio::time::timeout;

/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// Most bytes that are read and discarded, so that a client that is still sending receives the error.
const MAX_DISCARDED_BYTES: usize = 1024 * 1024;
/// How long discarding may take.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);

/// The JSON text of a request, at most `MAX` bytes.
pub(super) struct JsonBody<const MAX: usize>(pub Bytes);

impl<S: Sync, const MAX: usize> FromRequest<S> for JsonBody<MAX> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let (head, mut body) = request.into_parts();
        let read = match check_type(&head.headers) {
            Ok(()) => read(&mut body, MAX).await,
            Err(problem) => Err(problem),
        };
        if read.is_err() {
            discard(&head.headers, body).await;
        }
        read.map(JsonBody)
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

async fn read(body: &mut Body, most: usize) -> Result<Bytes, Problem> {
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > most {
        return Err(too_large(most));
    }
    match timeout(BODY_TIMEOUT, Limited::new(body, most).collect()).await {
        Ok(Ok(whole)) => Ok(whole.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large(most)),
        Ok(Err(error)) => {
            let message = format!("the body was not received completely: {error}");
            Err(Problem::new(StatusCode::BAD_REQUEST, "incomplete", message))
        }
        Err(_) => Err(Problem::too_slow()),
    }
}

/// Reads and discards the rest of a refused request, within bounds. A client that waits for "100 Continue" has not sent it.
pub(super) async fn discard(headers: &HeaderMap, body: Body) {
    if headers.contains_key(EXPECT) || body.is_end_stream() {
        return;
    }
    let mut rest = Limited::new(body, MAX_DISCARDED_BYTES);
    // Errors are ignored, as the connection ends with the response.
    let _ = timeout(DISCARD_TIMEOUT, async { while let Some(Ok(_)) = rest.frame().await {} }).await;
}

fn too_large(most: usize) -> Problem {
    let message = format!("the body is longer than {most} bytes, the most that this path accepts");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
}
