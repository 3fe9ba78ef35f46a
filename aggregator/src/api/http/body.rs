//! Reads the body of a request, bounded in bytes and in time.

use super::problem::Problem;
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::{Body, Bytes, Incoming};
use std::time::Duration;
use tokio::time::timeout;

/// How long a body may take to arrive.
pub(super) const BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// Most bytes that are read and discarded, so that a client that is still sending receives the error.
const MAX_DISCARDED_BYTES: usize = 1024 * 1024;
/// How long discarding may take.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);

/// Reads the whole body, at most `most` bytes.
pub(super) async fn read(body: &mut Incoming, most: usize) -> Result<Bytes, Problem> {
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > most {
        return Err(too_large(most));
    }
    match timeout(BODY_TIMEOUT, collect(body, most)).await {
        Ok(read) => read,
        Err(_) => Err(Problem::too_slow()),
    }
}

/// Nearly every body arrives in one piece, which is not copied.
async fn collect(body: &mut Incoming, most: usize) -> Result<Bytes, Problem> {
    let mut whole = Vec::new();
    let mut first = Bytes::new();
    while let Some(piece) = next(body).await? {
        if first.len() + whole.len() + piece.len() > most {
            return Err(too_large(most));
        }
        if first.is_empty() && whole.is_empty() {
            first = piece;
            continue;
        }
        if whole.is_empty() {
            whole.extend_from_slice(&std::mem::take(&mut first));
        }
        whole.extend_from_slice(&piece);
    }
    Ok(if whole.is_empty() { first } else { whole.into() })
}

/// The next piece that holds data.
async fn next(body: &mut Incoming) -> Result<Option<Bytes>, Problem> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            let message = format!("the body was not received completely: {error}");
            Problem::new(StatusCode::BAD_REQUEST, "incomplete", message)
        })?;
        // Trailers are ignored.
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

/// Reads and discards the rest of a body, within bounds.
pub(super) async fn discard(body: &mut Incoming) {
    if body.is_end_stream() {
        return;
    }
    // Errors are ignored, as the connection ends with the response.
    let _ = timeout(DISCARD_TIMEOUT, collect_nothing(body)).await;
}

async fn collect_nothing(body: &mut Incoming) {
    let mut left = MAX_DISCARDED_BYTES;
    while let Ok(Some(piece)) = next(body).await {
        match left.checked_sub(piece.len()) {
            Some(less) => left = less,
            None => return,
        }
    }
}

fn too_large(most: usize) -> Problem {
    let message = format!("the body is longer than {most} bytes, the most that this path accepts");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
}
