//! OpenTelemetry spans of what this program does, if an endpoint is configured.
//!
//! In reading order: [`Telemetry`], here; `queries` (queries and exact requests, in the trace of the waiting request),
//! `requests` (calls of the APIs), `round` (replay, exchange, import), `calls` (calls to a store within each of these),
//! `export` (the queue to the collector), [`TelemetryOptions`] (`options`).
//!
//! Without an endpoint each place checks one `Option` and no span is created. No span has an identifier, because traces are
//! read by people who need not know who was limited.

mod calls;
mod export;
mod options;
mod queries;
mod requests;
mod round;

pub use calls::{around, current, failed, redis, statement};
pub use options::{OptionsError, TelemetryOptions};
pub use queries::QuerySpans;
pub use round::Round;

use crate::telemetry::build::VERSION;
use crate::telemetry::metrics::spans::SpanFigures;
use export::Export;
use opentelemetry::trace::{
    Link, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState, Tracer,
    TracerProvider,
};
use opentelemetry::{Context, Key, KeyValue, Value};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use std::sync::Arc;
use weir_core::model::trace::{Trace, TraceParent};

/// The tag that Envoy uses in its own spans.
const REQUEST_ID: &str = "guid:x-request-id";
const SERVICE_NAME: &str = "service.name";

/// Creates spans, if an endpoint is configured.
pub struct Telemetry {
    on: Option<On>,
    figures: SpanFigures,
}

struct On {
    tracer: Arc<SdkTracer>,
    export: Export,
}

/// A recorded span in progress. It ends when its last clone is dropped.
#[derive(Clone)]
pub struct Active {
    context: Context,
    tracer: Arc<SdkTracer>,
}

impl Telemetry {
    /// Creates no spans.
    pub fn off() -> Telemetry {
        Telemetry { on: None, figures: SpanFigures::default() }
    }

    /// Creates spans if there are options, and exports them in the background. Needs a tokio runtime.
    pub fn start(options: Option<&TelemetryOptions>, region: &str) -> Result<Telemetry, OptionsError> {
        let Some(options) = options else { return Ok(Telemetry::off()) };
        let (figures, resource) = (SpanFigures::default(), resource(region));
        let (export, queue) = Export::start(options, &resource, figures.clone())?;
        let provider = SdkTracerProvider::builder()
            .with_sampler(options.sampler.clone())
            .with_resource(resource)
            .with_span_processor(queue)
            .build();
        let tracer = Arc::new(provider.tracer("weir-aggregator"));
        Ok(Telemetry { on: Some(On { tracer, export }), figures })
    }

    /// The metrics of spans.
    pub fn figures(&self) -> &SpanFigures {
        &self.figures
    }

    /// Exports the spans that have ended, within bounds; spans that end later are not exported.
    pub async fn end(&self) {
        if let Some(on) = &self.on {
            on.export.end().await;
        }
    }

    /// A span with a trace of its own, if it is recorded.
    fn root(&self, name: &'static str) -> Option<Active> {
        let on = self.on.as_ref()?;
        Active::begin(&on.tracer, name, SpanKind::Internal, &Context::new(), Vec::new())
    }
}

impl On {
    /// A span of something that requests wait for. It belongs to the first of the requests' traces and has links to the others.
    fn serve(&self, name: impl Into<std::borrow::Cow<'static, str>>, traces: &[Trace<'_>]) -> Option<Active> {
        let mut parents = traces.iter().filter_map(|trace| trace.parent).map(remote);
        let parent = parents.next().map(|parent| Context::new().with_remote_span_context(parent));
        let links = parents.map(Link::with_context).collect();
        let parent = parent.unwrap_or_default();
        let span = Active::begin(&self.tracer, name, SpanKind::Server, &parent, links)?;
        if let Some(id) = traces.iter().find_map(|trace| trace.request_id) {
            span.set(REQUEST_ID, id.to_owned());
        }
        Some(span)
    }
}

impl Active {
    fn begin(
        tracer: &Arc<SdkTracer>,
        name: impl Into<std::borrow::Cow<'static, str>>,
        kind: SpanKind,
        parent: &Context,
        links: Vec<Link>,
    ) -> Option<Active> {
        let builder = tracer.span_builder(name).with_kind(kind).with_links(links);
        let context = Context::new().with_span(tracer.build_with_context(builder, parent));
        context.span().is_recording().then(|| Active { context, tracer: tracer.clone() })
    }

    /// A span of a call that this span waits for.
    fn call(&self, name: impl Into<std::borrow::Cow<'static, str>>) -> Option<Active> {
        Active::begin(&self.tracer, name, SpanKind::Client, &self.context, Vec::new())
    }

    fn set(&self, key: &'static str, value: impl Into<Value>) {
        self.context.span().set_attribute(KeyValue::new(key, value));
    }

    /// Sets a number; the highest number that a span can hold stands for all above it.
    fn set_number(&self, key: &'static str, value: u64) {
        self.set(key, i64::try_from(value).unwrap_or(i64::MAX));
    }

    /// Marks the span as failed, for one of a small fixed set of reasons.
    pub fn fail(&self, reason: &'static str) {
        self.set("error.type", reason);
        self.context.span().set_status(Status::error(reason));
    }
}

fn remote(parent: TraceParent) -> SpanContext {
    SpanContext::new(
        TraceId::from_bytes(parent.trace_id),
        SpanId::from_bytes(parent.span_id),
        TraceFlags::new(parent.flags),
        true,
        TraceState::default(),
    )
}

/// The attributes of this program: those of `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`, and what is known otherwise.
fn resource(region: &str) -> Resource {
    let resource = Resource::builder().build();
    let named = resource.get(&Key::from_static_str(SERVICE_NAME));
    let unknown = named.is_none_or(|name| name.as_str().starts_with("unknown_service"));
    let own = [
        ("service.version", VERSION.to_owned()),
        ("service.instance.id", format!("{:032x}", rand::random::<u128>())),
        ("weir.region", region.to_owned()),
    ];
    let own = own.into_iter().filter(|(key, _)| resource.get(&Key::from_static_str(key)).is_none());
    let service = unknown.then(|| KeyValue::new(SERVICE_NAME, "weir-aggregator"));
    let own = own.map(|(key, value)| KeyValue::new(key, value)).chain(service);
    Resource::builder().with_attributes(own).build()
}
