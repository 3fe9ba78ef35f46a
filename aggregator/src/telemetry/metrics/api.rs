//! The metrics of the APIs: connections, watched files, HTTP requests.

use super::families::{Label, Labels, at_zero, at_zero_by};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::time::Duration;
use strum::{IntoStaticStr, VariantArray};

/// The APIs that have a listener.
const LISTENERS: [&str; 3] = ["grpc", "http", "admin"];
/// The use of the certificate.
const SERVER: Label = [("use", "server")];

/// A kind of watched files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Files {
    /// The certificate and its key.
    Tls,
    /// The authorities of clients' certificates.
    ClientAuthorities,
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
    /// A reservation.
    Reserve,
    /// Its settlement.
    Settle,
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

table! {
    /// The metrics of listeners, watched files and HTTP requests.
    pub struct ApiTable {
        connections: Family<Label, Gauge> =
            "Open connections by API (grpc, http, admin), including those in a TLS handshake", listeners();
        handshakes_failed: Family<Label, Counter> = "TLS handshakes that failed or timed out, by API",
            at_zero("api", &LISTENERS);
        connections_evicted: Family<Label, Counter> =
            "Connections closed in favour of a new one because a listener or an address had its maximum, by API",
            at_zero("api", &LISTENERS);
        connections_refused: Family<Label, Counter> =
            "Connections closed at once because their address had half of the maximum, by API",
            at_zero("api", &LISTENERS);
        files_read: Family<Labels, Counter> =
            "Changes of watched files (tls, client_authorities, tokens, rate_limits) by result (ok, failed)",
            at_zero_by("files", &files(), "result", &["ok", "failed"]);
        files_stale: Family<Label, Gauge> =
            "1 while changed files (tls, client_authorities, tokens, rate_limits) cannot be used and their former contents are in force",
            stale_files();
        rls_xds_connected: Gauge = "1 while there is a connection to the rate-limit service's xDS server";
        rls_limits_unserved: Gauge =
            "Limits of the xDS server in force that cannot be served; calls that they would decide are not decided";
        // Not at zero without TLS: a certificate that expired in 1970 would raise alerts.
        certificate_not_after_seconds: Family<Label, Gauge> =
            "Unix time at which the certificate in force expires";
        http_requests: Family<Labels, Counter> = "HTTP requests of applications by route and status code class";
        http_seconds: Family<Label, Histogram> = "Time from the head of an HTTP request to its response, by route",
            Family::new_with_constructor(|| Histogram::new(exponential_buckets(1e-5, 4.0, 10))); // 10 µs to 2.6 s
        rls_seconds: Histogram = "Time from the head of a call of the rate-limit service to its response",
            Histogram::new(exponential_buckets(1e-5, 4.0, 10)); // 10 µs to 2.6 s
    }
}

/// The metrics of the APIs.
#[derive(Debug)]
pub struct ApiMetrics {
    table: ApiTable,
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

impl Default for ApiMetrics {
    fn default() -> ApiMetrics {
        let table = ApiTable::default();
        let route = |route: Route| {
            let label = ("route", route.into_str());
            let count = |code| table.http_requests.get_or_create_owned(&[label, ("code", code)]);
            RouteMetrics {
                ok: count("2xx"),
                client_error: count("4xx"),
                server_error: count("5xx"),
                seconds: table.http_seconds.get_or_create_owned(&[label]),
            }
        };
        let routes = std::array::from_fn(|at| route(Route::VARIANTS[at]));
        ApiMetrics { table, routes }
    }
}

impl ApiMetrics {
    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        self.table.register(registry);
    }

    /// The gauge of an API's open connections.
    pub fn connections(&self, api: &'static str) -> Gauge {
        self.table.connections.get_or_create(&[("api", api)]).clone()
    }

    /// Counts a TLS handshake that failed.
    pub fn handshake_failed(&self, api: &'static str) {
        self.table.handshakes_failed.get_or_create(&[("api", api)]).inc();
    }

    /// Counts a connection that was displaced by a new one.
    pub fn connection_evicted(&self, api: &'static str) {
        self.table.connections_evicted.get_or_create(&[("api", api)]).inc();
    }

    /// Counts a connection that was closed because its address had too many.
    pub fn connection_refused(&self, api: &'static str) {
        self.table.connections_refused.get_or_create(&[("api", api)]).inc();
    }

    /// Notes how long a call of the rate-limit service took.
    pub fn rls_answered(&self, took: Duration) {
        self.table.rls_seconds.observe(took.as_secs_f64());
    }

    /// Counts changed files, which are now in force or cannot be used.
    pub fn files_read(&self, files: Files, usable: bool) {
        let (label, result) = (("files", files.into_str()), if usable { "ok" } else { "failed" });
        // The gauge is set first, so that a reader who sees the new count also sees the new state.
        self.table.files_stale.get_or_create(&[label]).set(i64::from(!usable));
        self.table.files_read.get_or_create(&[label, ("result", result)]).inc();
    }

    /// The kinds of files whose former contents are in force, as the changed ones cannot be used.
    pub fn stale_files(&self) -> Vec<&'static str> {
        let is_stale =
            |files: &&'static str| self.table.files_stale.get_or_create(&[("files", *files)]).get() != 0;
        files().iter().copied().filter(|files| is_stale(files)).collect()
    }

    /// Sets whether there is a connection to the rate-limit service's xDS server.
    pub fn xds_connected(&self, connected: bool) {
        self.table.rls_xds_connected.set(i64::from(connected));
    }

    /// Sets how many limits of the xDS server cannot be served.
    pub fn limits_unserved(&self, limits: usize) {
        self.table.rls_limits_unserved.set(i64::try_from(limits).unwrap_or(i64::MAX));
    }

    /// Sets the second of Unix time at which the certificate in force expires, if it is known.
    pub fn certificate_ends(&self, at: Option<u64>) {
        match at.and_then(|at| i64::try_from(at).ok()) {
            Some(at) => drop(self.table.certificate_not_after_seconds.get_or_create(&SERVER).set(at)),
            None => drop(self.table.certificate_not_after_seconds.remove(&SERVER)),
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

fn listeners() -> Family<Label, Gauge> {
    let family = Family::default();
    LISTENERS.iter().for_each(|api| drop(family.get_or_create(&[("api", *api)])));
    family
}

fn files() -> Vec<&'static str> {
    Files::VARIANTS.iter().map(Files::into_str).collect()
}

fn stale_files() -> Family<Label, Gauge> {
    let family = Family::default();
    files().iter().for_each(|files| drop(family.get_or_create(&[("files", *files)])));
    family
}
