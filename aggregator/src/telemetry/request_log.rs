//! Request ids in the log: each line that is logged while a request is processed has the request's id.
//!
//! This is a `tracing` span, whose fields are added to each line within it. Without an id there is no span.

use hyper::HeaderMap;
use tracing::{Span, error_span};
use weir_core::model::trace::Trace;
use weir_core::model::wire;

/// A span for a call with these headers.
pub fn of_headers(headers: &HeaderMap) -> Span {
    let mut ids = headers.get_all("x-request-id").iter();
    match (ids.next(), ids.next()) {
        (Some(id), None) => span(Trace::of_headers(None, Some(id.as_bytes()))),
        // With several ids it is not clear which one to use.
        _ => Span::none(),
    }
}

/// A span for a query or an exact request of a filter.
pub fn of_question(trace: Option<&wire::Trace>) -> Span {
    span(trace.and_then(Trace::of_wire))
}

/// The span has the highest level, so that lines of every level have its fields.
fn span(trace: Option<Trace<'_>>) -> Span {
    match trace.and_then(|trace| trace.request_id) {
        Some(request_id) => error_span!("request", request_id),
        None => Span::none(),
    }
}
