//! The metrics of the APIs: connections, watched files, HTTP requests.

use crate::telemetry::metrics::register;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::time::Duration;
use strum::{IntoStaticStr, VariantArray};

const CONNECTIONS: (&str, &str) =
    ("connections", "Open connections by API (grpc, http, admin), including those in a TLS handshake");
const HANDSHAKES_FAILED: (&str, &str) =
    ("handshakes_failed", "TLS handshakes that failed or timed out, by API");
const CONNECTIONS_EVICTED: (&str, &str) = (
    "connections_evicted",
    "Connections closed in favour of a new one because a listener or an address had its maximum, by API",
);
const CONNECTIONS_REFUSED: (&str, &str) = (
    "connections_refused",
    "Connections closed at once because their address had half of the maximum, by API",
);
const FILES_READ: (&str, &str) =
    ("files_read", "Changes of watched files (tls, tokens, rate_limits) by result (ok, failed)");
const FILES_STALE: (&str, &str) = (
    "files_stale",
    "1 while changed files (tls, tokens, rate_limits) cannot be used and their former contents are in force",
);
const NOT_AFTER: (&str, &str) =
    ("certificate_not_after_seconds", "Unix time at which the certificate in force expires");
const HTTP_REQUESTS: (&str, &str) =
    ("http_requests", "HTTP requests of applications by route and status code class");
const HTTP_SECONDS: (&str, &str) =
    ("http_seconds", "Time from the head of an HTTP request to its response, by route");

/// The use of the certificate.
const SERVER: Label = [("use", "server")];

type Label = [(&'static str, &'static str); 1];
type Labels = [(&'static str, &'static str); 2];

/// A kind of watched files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Files {
    /// Certificates.
    Tls,
    /// The tokens of callers.
    Tokens,
    /// The rate-limit service's limits.
    RateLimits,
}

/// The route of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Route {
    /// One limit.
    Check,
    /// Several limits.
    CheckBatch,
    /// The ledger's history.
    Ledger,
    /// Live control.
    Overrides,
    /// The audit of live control.
    Audit,
    /// The API's description.
    #[strum(serialize = "openapi")]
    OpenApi,
    /// An unknown path.
    Unknown,
}

/// The metrics of the APIs.
#[derive(Debug)]
pub struct ApiMetrics {
    connections: Family<Label, Gauge>,
    handshakes_failed: Family<Label, Counter>,
    connections_evicted: Family<Label, Counter>,
    connections_refused: Family<Label, Counter>,
    files_read: Family<Labels, Counter>,
    files_stale: Family<Label, Gauge>,
    not_after: Family<Label, Gauge>,
    routes: [RouteMetrics; Route::VARIANTS.len()],
}

/// Handles looked up once, as each request uses them.
#[derive(Debug)]
struct RouteMetrics {
    ok: Counter,
    client_error: Counter,
    server_error: Counter,
    seconds: Histogram,
}

impl ApiMetrics {
    /// Adds the metrics to the registry.
    pub fn register(registry: &mut Registry) -> ApiMetrics {
        const LISTENERS: [&str; 3] = ["grpc", "http", "admin"];
        let connections: Family<Label, Gauge> = register(registry, CONNECTIONS, Family::default());
        let handshakes_failed: Family<Label, Counter> =
            register(registry, HANDSHAKES_FAILED, Family::default());
        let connections_evicted: Family<Label, Counter> =
            register(registry, CONNECTIONS_EVICTED, Family::default());
        let connections_refused: Family<Label, Counter> =
            register(registry, CONNECTIONS_REFUSED, Family::default());
        for api in LISTENERS {
            drop(connections_evicted.get_or_create(&[("api", api)]));
            drop(connections_refused.get_or_create(&[("api", api)]));
            drop(connections.get_or_create(&[("api", api)]));
            drop(handshakes_failed.get_or_create(&[("api", api)]));
        }
        let files_read: Family<Labels, Counter> = register(registry, FILES_READ, Family::default());
        let files_stale: Family<Label, Gauge> = register(registry, FILES_STALE, Family::default());
        for files in Files::VARIANTS.iter().map(|files| ("files", files.into_str())) {
            drop(files_stale.get_or_create(&[files]));
            for result in ["ok", "failed"] {
                drop(files_read.get_or_create(&[files, ("result", result)]));
            }
        }
        let requests: Family<Labels, Counter> = register(registry, HTTP_REQUESTS, Family::default());
        let seconds: Family<Label, Histogram> = Family::new_with_constructor(|| {
            Histogram::new(exponential_buckets(1e-5, 4.0, 10)) // 10 µs to 2.6 s
        });
        registry.register(HTTP_SECONDS.0, HTTP_SECONDS.1, seconds.clone());
        let route = |route: Route| {
            let label = ("route", route.into_str());
            let count = |code| requests.get_or_create(&[label, ("code", code)]).clone();
            RouteMetrics {
                ok: count("2xx"),
                client_error: count("4xx"),
                server_error: count("5xx"),
                seconds: seconds.get_or_create(&[label]).clone(),
            }
        };
        ApiMetrics {
            connections,
            handshakes_failed,
            connections_evicted,
            connections_refused,
            files_read,
            files_stale,
            // Not at zero without TLS: a certificate that expired in 1970 would raise alerts.
            not_after: register(registry, NOT_AFTER, Family::default()),
            routes: std::array::from_fn(|at| route(Route::VARIANTS[at])),
        }
    }

    /// The gauge of an API's open connections.
    pub fn connections(&self, api: &'static str) -> Gauge {
        self.connections.get_or_create(&[("api", api)]).clone()
    }

    /// Counts a TLS handshake that failed.
    pub fn handshake_failed(&self, api: &'static str) {
        self.handshakes_failed.get_or_create(&[("api", api)]).inc();
    }

    /// Counts a connection that was displaced by a new one.
    pub fn connection_evicted(&self, api: &'static str) {
        self.connections_evicted.get_or_create(&[("api", api)]).inc();
    }

    /// Counts a connection that was closed because its address had too many.
    pub fn connection_refused(&self, api: &'static str) {
        self.connections_refused.get_or_create(&[("api", api)]).inc();
    }

    /// Counts changed files, which are now in force or cannot be used.
    pub fn files_read(&self, files: Files, usable: bool) {
        let (label, result) = (("files", files.into_str()), if usable { "ok" } else { "failed" });
        // The gauge is set first, so that a reader who sees the new count also sees the new state.
        self.files_stale.get_or_create(&[label]).set(i64::from(!usable));
        self.files_read.get_or_create(&[label, ("result", result)]).inc();
    }

    /// Sets the second of Unix time at which the certificate in force expires, if it is known.
    pub fn certificate_ends(&self, at: Option<u64>) {
        match at.and_then(|at| i64::try_from(at).ok()) {
            Some(at) => drop(self.not_after.get_or_create(&SERVER).set(at)),
            None => drop(self.not_after.remove(&SERVER)),
        }
    }

    /// Counts an answered request.
    pub fn answered(&self, route: Route, status: u16, took: Duration) {
        let Some(metrics) = Route::VARIANTS.iter().zip(&self.routes).find(|(of, _)| **of == route) else {
            return;
        };
        let counter = match status {
            0..400 => &metrics.1.ok,
            400..500 => &metrics.1.client_error,
            _ => &metrics.1.server_error,
        };
        counter.inc();
        metrics.1.seconds.observe(took.as_secs_f64());
    }
}
