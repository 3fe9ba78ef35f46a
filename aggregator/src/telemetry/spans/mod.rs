//! Spans of what this program does, by OpenTelemetry, where somebody asks for them.
//!
//! In reading order: [`Telemetry`], here; `queries` (consults and asks, in the trace of the request that waits),
//! `requests` (calls of the APIs), `round` (replay, publish, import), `calls` (what each of them asks of a store),
//! `export` (the queue to the collector), [`TelemetryOptions`] (`options`).
//!
//! While it is off, each place looks at one `Option` and nothing is made. No span has an identifier: who was limited is not
//! for those who look at traces.
//!
//! Leaves to others: the protocol and sampling (`opentelemetry`), which trace a request belongs to (`weir_core::model::trace`).

mod calls;
mod export;
mod options;
mod queries;
mod requests;
mod round;

pub use calls::{around, current, failed, redis, statement};
pub use options::{OptionsError, TelemetryOptions};
pub use queries::Consults;
pub use round::Round;

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

/// As Envoy names the tag of its own spans.
const REQUEST_ID: &str = "guid:x-request-id";
const SERVICE_NAME: &str = "service.name";

/// What makes spans, if anything does.
pub struct Telemetry {
    on: Option<On>,
    figures: SpanFigures,
}

struct On {
    tracer: Arc<SdkTracer>,
    export: Export,
}

/// A span that is under way and is recorded. Ends when the last clone is dropped.
#[derive(Clone)]
pub struct Active {
    context: Context,
    tracer: Arc<SdkTracer>,
}

impl Telemetry {
    /// Makes none.
    pub fn off() -> Telemetry {
        Telemetry { on: None, figures: SpanFigures::default() }
    }

    /// Makes spans if there are options, and exports them in the background. Needs a tokio runtime.
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

    /// What is counted.
    pub fn figures(&self) -> &SpanFigures {
        &self.figures
    }

    /// Exports what has ended, within bounds; what ends later is not exported.
    pub async fn end(&self) {
        if let Some(on) = &self.on {
            on.export.end().await;
        }
    }

    /// A span of its own trace, if it is recorded.
    fn root(&self, name: &'static str) -> Option<Active> {
        let on = self.on.as_ref()?;
        Active::begin(&on.tracer, name, SpanKind::Internal, &Context::new(), Vec::new())
    }
}

impl On {
    /// A span of what somebody waits for, who may have said in which traces: the first is its own, others are linked.
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

    /// A call that it waits for.
    fn call(&self, name: impl Into<std::borrow::Cow<'static, str>>) -> Option<Active> {
        Active::begin(&self.tracer, name, SpanKind::Client, &self.context, Vec::new())
    }

    fn set(&self, key: &'static str, value: impl Into<Value>) {
        self.context.span().set_attribute(KeyValue::new(key, value));
    }

    /// Numbers beyond what a span holds are told as the highest.
    fn set_number(&self, key: &'static str, value: u64) {
        self.set(key, i64::try_from(value).unwrap_or(i64::MAX));
    }

    /// It failed, for one of a small fixed set of reasons.
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

/// Who speaks: what `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` say, and what is known besides.
fn resource(region: &str) -> Resource {
    let said = Resource::builder().build();
    let named = said.get(&Key::from_static_str(SERVICE_NAME));
    let unknown = named.is_none_or(|name| name.as_str().starts_with("unknown_service"));
    let own = [
        ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
        ("service.instance.id", format!("{:032x}", rand::random::<u128>())),
        ("weir.region", region.to_owned()),
    ];
    let own = own.into_iter().filter(|(key, _)| said.get(&Key::from_static_str(key)).is_none());
    let service = unknown.then(|| KeyValue::new(SERVICE_NAME, "weir-aggregator"));
    let own = own.map(|(key, value)| KeyValue::new(key, value)).chain(service);
    Resource::builder().with_attributes(own).build()
}
