//! Spans of Envoy's own tracing for a request, joined with Weir's spans for its query.

use serde_json::{Value, json};
use weir_envoy::http::Request;
use weir_envoy::{Aggregator, AggregatorOptions, Collector, EnvoyOptions, Received};

use super::common::{KEY, Region, SOON, config, rule, with};

/// Traces of callers, and the span that each of them calls from.
const CALLER: &str = "b7ad6b7169203331";
const QUERIED: &str = "0af7651916cd43dd8448eb211c80319c";
const EXACT: &str = "1bf7651916cd43dd8448eb211c80319c";
const UNRECORDED: &str = "2cf7651916cd43dd8448eb211c80319c";
const REQUEST_ID: &str = "guid:x-request-id";

fn traced() -> Value {
    let at =
        |path: &str, timeout: &str| json!({ "match": { "path": { "prefix": path } }, "timeout": timeout });
    let log = with(with(rule("log", 9), at("/log", "5s")), json!({ "algorithm": "sliding_log" }));
    let mut config = config(&[with(rule("window", 9), at("/window", "1s")), log]);
    config["aggregator"]["trace"] = json!(true);
    config
}

async fn start(collector: &Collector, config: &Value) -> Region {
    let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let environment = vec![
        variable("WEIR_OTLP_ENDPOINT", &format!("http://127.0.0.1:{}", collector.port())),
        variable("OTEL_EXPORTER_OTLP_HEADERS", "x-collector-key=secret"),
        variable("OTEL_RESOURCE_ATTRIBUTES", "service.name=weir,deployment=test"),
    ];
    let options = AggregatorOptions { environment, ..AggregatorOptions::default() };
    let aggregator = Aggregator::start(options).await.unwrap();
    let mut region = Region { envoys: Vec::new(), aggregator };
    let options = EnvoyOptions { collector_port: Some(collector.port()), ..EnvoyOptions::default() };
    region.add(options, config).await;
    region
}

/// Sends a GET request as the client `key`, in a trace if one is given; the trace's flags are 00 or 01.
async fn get(region: &Region, path: &str, key: &str, trace: Option<(&str, &str)>) {
    let request = Request::get(path).header(KEY, key);
    let request = match trace {
        Some((trace, flags)) => request.header("traceparent", format!("00-{trace}-{CALLER}-{flags}")),
        None => request,
    };
    assert_eq!(region.envoy().send(request).await.unwrap().status, 200);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn is_in(received: &Received, trace: &str) -> bool {
    hex(&received.span.trace_id) == trace
}

/// Weir's span, and Envoy's span of the same request.
async fn both(collector: &Collector, name: &str, fits: impl Fn(&Received) -> bool) -> (Received, Received) {
    let fits = |received: &Received| received.span.name == name && fits(received);
    let weir = collector.wait_for(name, SOON, fits).await.unwrap();
    let id = weir.attribute(REQUEST_ID).expect("Envoy names each request");
    let same = |received: &Received| {
        received.service == "envoy" && received.attribute(REQUEST_ID).as_ref() == Some(&id)
    };
    (weir, collector.wait_for("Envoy's span", SOON, same).await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_request_waits_for_is_in_its_trace() {
    let collector = Collector::start(None).await.unwrap();
    let region = start(&collector, &traced()).await;
    get(&region, "/window", "unrecorded", Some((UNRECORDED, "00"))).await;
    get(&region, "/window", "a", Some((QUERIED, "01"))).await;
    get(&region, "/log", "a", Some((EXACT, "01"))).await;
    get(&region, "/window", "other", None).await;
    for (name, trace, outcome) in [("query", QUERIED, "granted"), ("exact_request", EXACT, "allowed")] {
        let (weir, envoy) = both(&collector, name, |received| is_in(received, trace)).await;
        assert!(is_in(&envoy, trace), "{envoy:#?}");
        // Envoy passes the incoming trace context to filters; only upstreams receive its own span.
        assert_eq!(
            (hex(&weir.span.parent_span_id), hex(&envoy.span.parent_span_id)),
            (CALLER.into(), CALLER.into())
        );
        assert_eq!((weir.service.as_str(), weir.resource("deployment").as_deref()), ("weir", Some("test")));
        assert_eq!(weir.metadata.get("x-collector-key").unwrap(), "secret");
        assert_eq!(weir.attribute("weir.outcome").as_deref(), Some(outcome));
        assert!(!format!("{:?}", weir.span).contains("\"a\""), "an identifier is exported: {weir:#?}");
    }
    // For a caller without a trace, Envoy starts one that filters do not receive. Only the request's id joins the
    // spans.
    let other = |received: &Received| ![QUERIED, EXACT].iter().any(|trace| is_in(received, trace));
    let (weir, envoy) = both(&collector, "query", other).await;
    assert_ne!(weir.span.trace_id, envoy.span.trace_id);
    assert!(weir.span.parent_span_id.is_empty());
    // Spans are exported in the order of their ends.
    let spans = collector.spans();
    let unrecorded =
        spans.iter().filter(|received| received.service == "weir" && is_in(received, UNRECORDED));
    assert_eq!(unrecorded.count(), 0);
    region.is_sound().await;
}
