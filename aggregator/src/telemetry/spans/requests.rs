//! Spans of the calls of the APIs, in their callers' traces.

use super::{Active, Telemetry};
use hyper::HeaderMap;
use weir_core::model::trace::Trace;

impl Telemetry {
    /// A span of an HTTP call; `route` is one of a small fixed set, or `None` for an unknown path.
    pub fn http(&self, method: &str, route: Option<&'static str>, headers: &HeaderMap) -> Option<Active> {
        let on = self.on.as_ref()?;
        // A client may send any text as the method.
        let method =
            ["GET", "POST", "PUT", "DELETE"].into_iter().find(|known| *known == method).unwrap_or("_OTHER");
        let shown = if method == "_OTHER" { "HTTP" } else { method };
        let name = route.map_or_else(|| shown.to_owned(), |route| format!("{shown} {route}"));
        let span = on.serve(name, trace(headers).as_slice())?;
        span.set("http.request.method", method);
        route.into_iter().for_each(|route| span.set("http.route", route));
        Some(span)
    }

    /// A span of a gRPC call.
    pub fn rpc(&self, service: &'static str, method: &'static str, headers: &HeaderMap) -> Option<Active> {
        let span = self.on.as_ref()?.serve(format!("{service}/{method}"), trace(headers).as_slice())?;
        span.set("rpc.system", "grpc");
        span.set("rpc.service", service);
        span.set("rpc.method", method);
        Some(span)
    }
}

impl Active {
    /// Ends the span of an HTTP call.
    pub fn responded(self, status: u16) {
        self.set("http.response.status_code", i64::from(status));
        if status >= 500 {
            self.fail("server_error");
        }
    }

    /// Ends the span of a gRPC call.
    pub fn returned(self, code: i32) {
        self.set("rpc.grpc.status_code", i64::from(code));
        if code != 0 {
            self.fail("grpc_status");
        }
    }
}

/// The trace in the headers. A header that occurs several times is ignored, as it is not clear which value to use.
fn trace(headers: &HeaderMap) -> Option<Trace<'_>> {
    let only = |name: &str| {
        let mut values = headers.get_all(name).iter();
        values.next().filter(|_| values.next().is_none()).map(|value| value.as_bytes())
    };
    Trace::of_headers(only("traceparent"), only("x-request-id"))
}
