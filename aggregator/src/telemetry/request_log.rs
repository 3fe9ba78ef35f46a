//! Request ids in the log: what is warned of while one request is answered names that request.
//!
//! A span of `tracing`, which whatever is logged within it brings along. Where nobody knows an id none is made.
//!
//! Leaves to others: which ids are sound (`weir_core::model::trace`), spans for a collector (`telemetry`).

use hyper::HeaderMap;
use tracing::{Span, error_span};
use weir_core::model::trace::Trace;
use weir_core::model::wire;

/// Around the answer to a call with these headers.
pub fn of_headers(headers: &HeaderMap) -> Span {
    let mut ids = headers.get_all("x-request-id").iter();
    match (ids.next(), ids.next()) {
        (Some(id), None) => span(Trace::of_headers(None, Some(id.as_bytes()))),
        // Of several it is not clear which is meant.
        _ => Span::none(),
    }
}

/// Around the answer to a question of a filter.
pub fn of_question(trace: Option<&wire::Trace>) -> Span {
    span(trace.and_then(Trace::of_wire))
}

/// Of the highest level, so that no line is without it.
fn span(trace: Option<Trace<'_>>) -> Span {
    match trace.and_then(|trace| trace.request_id) {
        Some(request_id) => error_span!("request", request_id),
        None => Span::none(),
    }
}
