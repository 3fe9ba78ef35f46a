//! A server whose spans a collector receives, and its requests.

use crate::support::server::{DEADLINE, settings};
use opentelemetry_sdk::trace::Sampler;
use std::path::PathBuf;
use weir_aggregator::server::Settings;
use weir_aggregator::telemetry::spans::TelemetryOptions;
use weir_core::model::trace::Trace;
use weir_core::model::wire;
use weir_envoy::{Collector, Received};

pub const RECORDED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
pub const LINKED: &str = "00-1bf7651916cd43dd8448eb211c80319c-c7ad6b7169203331-01";
pub const UNRECORDED: &str = "00-2cf7651916cd43dd8448eb211c80319c-d7ad6b7169203331-00";
pub const CLIENT: i32 = 3;
pub const SERVER: i32 = 2;

pub fn options(endpoint: String, ca_file: Option<PathBuf>) -> Option<TelemetryOptions> {
    let sampler = Sampler::ParentBased(Box::new(Sampler::AlwaysOn));
    Some(TelemetryOptions { endpoint, ca_file, sampler })
}

pub fn to(collector: &Collector) -> Settings {
    Settings { telemetry: options(format!("http://127.0.0.1:{}", collector.port()), None), ..settings() }
}

pub fn trace(traceparent: &str, request_id: &str) -> wire::Trace {
    Trace::of_headers(Some(traceparent.as_bytes()), Some(request_id.as_bytes())).unwrap().to_wire()
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The trace id and the parent span id of a span, joined by `-`.
pub fn parent(received: &Received) -> String {
    format!("{}-{}", hex(&received.span.trace_id), hex(&received.span.parent_span_id))
}

pub fn is_beneath(child: &Received, parent: &Received) -> bool {
    child.span.trace_id == parent.span.trace_id && child.span.parent_span_id == parent.span.span_id
}

pub async fn found(collector: &Collector, name: &str, fits: impl Fn(&Received) -> bool) -> Received {
    let fits = |received: &Received| received.span.name == name && fits(received);
    collector.wait_for(name, DEADLINE, fits).await.unwrap()
}

pub fn attributes(received: &Received, expected: &[(&str, &str)]) {
    for (key, value) in expected {
        assert_eq!(received.attribute(key).as_deref(), Some(*value), "{key} of {received:#?}");
    }
}
