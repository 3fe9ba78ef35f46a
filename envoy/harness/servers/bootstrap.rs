//! Envoy's configuration for a scenario: one listener, at most one filter, one upstream, the aggregators' cluster.
//!
//! The functions are pure: options in, JSON out (Envoy reads it as YAML). The configuration for users is
//! `envoy/deploy/envoy.yaml`, which has the same content with comments. [`crate::Envoy`] runs it.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use weir_core::rules::{Config, STAND_IN};

/// The listener's name, which is also the `stat_prefix` of its HTTP connection manager.
pub const LISTENER: &str = "ingress";
/// The name of the aggregators' cluster in the filter's configuration.
pub const AGGREGATOR_CLUSTER: &str = "weir_aggregator";
/// The names of the only virtual host and of its only route.
pub const VIRTUAL_HOST: &str = "all";
pub const ROUTE: &str = "everything";
/// The cluster of the collector that receives Envoy's own spans.
const COLLECTOR_CLUSTER: &str = "collector";

/// Options of an Envoy. Ports of 0 are replaced by free ones.
#[derive(Clone, Debug)]
pub struct EnvoyOptions {
    /// Worker threads.
    pub concurrency: u32,
    /// The address that the listener binds. All other listeners bind the loopback address.
    pub host: IpAddr,
    pub port: u16,
    pub admin_port: u16,
    pub filter: Filter,
    /// HTTP filters in front of the filter, as Envoy's configuration has them.
    pub before: Vec<Value>,
    /// Filters after it, before the router.
    pub after: Vec<Value>,
    /// TLS for clients; `None` for plain text.
    pub client_tls: Option<ClientTls>,
    /// How often the filter stands in the chain. The cost of one is small beside a machine's noise, that of ten is not.
    pub copies: usize,
    /// The port and the filter of a second listener with the same route.
    pub second: Option<(u16, Filter)>,
    pub route: Route,
    /// `typed_per_filter_config` of the only route, as Envoy's API defines it; null for none.
    pub route_filters: Value,
    /// The gRPC ports of the region's aggregators on this machine. If there is none, their cluster is left out.
    pub aggregator_ports: Vec<u16>,
    /// TLS to the aggregators, with PEM files; `None` for plain text.
    pub aggregator_tls: Option<UpstreamTls>,
    /// Read the listener from a file that [`crate::Envoy::reload`] replaces. Without this, an invalid listener ends
    /// Envoy.
    pub reloadable: bool,
    /// The time in seconds for which a replaced listener drains its connections. Envoy's default is 600.
    pub drain_s: u32,
    /// Write a JSON line for each request to `access.log` in the scenario's folder.
    pub access_log: bool,
    /// The port of the OTLP collector on this machine that receives Envoy's own spans.
    pub collector_port: Option<u16>,
    pub log_level: String,
    pub environment: Vec<(String, String)>,
}

impl Default for EnvoyOptions {
    fn default() -> Self {
        Self {
            concurrency: 1,
            host: Ipv4Addr::LOCALHOST.into(),
            port: 0,
            admin_port: 0,
            filter: Filter::None,
            before: Vec::new(),
            after: Vec::new(),
            client_tls: None,
            copies: 1,
            second: None,
            route: Route::Direct,
            route_filters: Value::Null,
            aggregator_ports: Vec::new(),
            aggregator_tls: None,
            reloadable: false,
            drain_s: 1,
            access_log: false,
            collector_port: None,
            log_level: "warning".to_owned(),
            environment: Vec::new(),
        }
    }
}

/// The parameters of TLS between clients and Envoy. A certificate of a client is optional, and valid if it has one.
#[derive(Clone, Debug)]
pub struct ClientTls {
    /// The CA of the clients' certificates.
    pub authority: PathBuf,
    /// Envoy's certificate and key.
    pub own: (PathBuf, PathBuf),
}

/// The parameters of mutual TLS from Envoy to its aggregators.
#[derive(Clone, Debug)]
pub struct UpstreamTls {
    /// The CA of the aggregators' certificates.
    pub authority: PathBuf,
    /// The DNS name in those certificates.
    pub name: String,
    /// Envoy's own certificate and key, if it presents one.
    pub own: Option<(PathBuf, PathBuf)>,
}

/// The filter that a request passes before it is routed.
#[derive(Clone, Debug)]
pub enum Filter {
    None,
    Weir(Weir),
    /// Envoy's own limiter, with `tokens` per hour for the whole listener.
    Local {
        tokens: u32,
    },
    /// Envoy's own filter for the rate-limit service, which the aggregators serve. Envoy only queries it for requests
    /// to an upstream.
    RateLimit(RateLimit),
    /// Envoy's own filter for the rate-limit quota service, which the aggregators serve.
    Quota(Quota),
}

/// The queries of Envoy's own filter to the rate-limit service.
#[derive(Clone, Debug, Default)]
pub struct RateLimit {
    pub domain: String,
    /// One descriptor for each list of request headers; the key of an entry is its header's name. A request without one
    /// of the headers does not produce that descriptor.
    pub descriptors: Vec<Vec<&'static str>>,
    /// `rate_limits` of a `RateLimitPerRoute`, as Envoy's API defines them: only there it sends `hits_addend`. They replace
    /// the `descriptors`.
    pub rate_limits: Vec<Value>,
    /// Add the `metadata` of the service's `dynamic_metadata` to responses, as header `x-limit-metadata`.
    pub shows_metadata: bool,
    /// The aggregator's bearer token.
    pub token: Option<String>,
    /// Answer 500 if the service does not respond.
    pub failure_mode_deny: bool,
}

/// The buckets of Envoy's own filter for the rate-limit quota service.
#[derive(Clone, Debug, Default)]
pub struct Quota {
    pub domain: String,
    /// One bucket for each list of request headers; the key of an entry is its header's name. A request is in the first bucket
    /// whose first header it has.
    pub buckets: Vec<Vec<&'static str>>,
    /// The aggregator's bearer token.
    pub token: Option<String>,
    /// Deny all requests of a bucket whose assignment has expired. Otherwise they pass.
    pub deny_expired: bool,
}

/// A module of a filter: Weir's, or another one in its place.
#[derive(Clone, Debug)]
pub struct Weir {
    /// A file of WASM, or with the ending `so` a dynamic module.
    pub module: PathBuf,
    /// VMs of WASM with the same id share their data between workers and across reloads. All of a dynamic module do.
    pub vm_id: String,
    /// The plugin's configuration.
    pub config: Value,
}

impl Weir {
    /// The filter `module`, or the module of WASM beside it that receives responses, if the configuration needs that.
    pub fn new(module: PathBuf, config: Value) -> Self {
        let text = config.to_string();
        let parsed = Config::parse_with(text.as_bytes(), &|_| Some(STAND_IN.to_owned()));
        let needs_responses = parsed.is_ok_and(|config| config.needs_responses().is_some());
        let module = match needs_responses && !is_dynamic(&module) {
            true => module.with_file_name("weir-filter-responses.wasm"),
            false => module,
        };
        Self { module, vm_id: "weir".to_owned(), config }
    }
}

/// The destination of a request.
#[derive(Clone, Copy, Debug)]
pub enum Route {
    /// Envoy answers by itself: 200, `ok`.
    Direct,
    /// An upstream on this port of this machine.
    Upstream(u16),
    /// The same, by HTTP/2 without TLS.
    Http2(u16),
}

/// The whole bootstrap. `folder` contains the file of a reloadable listener. All ports must be set.
pub fn bootstrap(options: &EnvoyOptions, folder: &Path) -> Value {
    let mut clusters = Vec::new();
    match options.route {
        Route::Direct => {}
        Route::Upstream(port) => clusters.push(cluster("upstream", &[port])),
        Route::Http2(port) => {
            let mut cluster = cluster("upstream", &[port]);
            use_http2(&mut cluster, json!({}));
            clusters.push(cluster);
        }
    }
    if let Some(port) = options.collector_port {
        let mut cluster = cluster(COLLECTOR_CLUSTER, &[port]);
        use_http2(&mut cluster, json!({}));
        clusters.push(cluster);
    }
    if !options.aggregator_ports.is_empty() {
        let mut cluster = aggregator_cluster(&options.aggregator_ports);
        if let Some(tls) = &options.aggregator_tls {
            cluster["transport_socket"] = transport_socket(tls);
        }
        clusters.push(cluster);
    }
    let mut bootstrap = json!({
        "node": { "id": format!("weir-{}", options.port), "cluster": "weir" },
        "admin": { "address": local_address(options.admin_port) },
        "stats_config": { "stats_tags": stats_tags() },
        // Dynamic modules' metrics then have the names of those of WASM in `/stats/prometheus`, too.
        "layered_runtime": { "layers": [{ "name": "weir", "static_layer": {
            "envoy.reloadable_features.dynamic_modules_strip_custom_stat_prefix": true,
        }}]},
        "static_resources": { "clusters": clusters },
    });
    if options.reloadable {
        bootstrap["dynamic_resources"] = json!({ "lds_config": { "resource_api_version": "V3", "path_config_source": {
            "path": listener_file(folder), "watched_directory": { "path": folder },
        }}});
    } else {
        bootstrap["static_resources"]["listeners"] = json!(listeners(options, folder));
    }
    bootstrap
}

/// The file from which a reloadable listener is read.
pub fn listener_file(folder: &Path) -> PathBuf {
    folder.join("listeners.json")
}

/// The content of [`listener_file`].
pub fn discovery_response(options: &EnvoyOptions, folder: &Path, version: u64) -> Value {
    let mut resources = listeners(options, folder);
    for resource in &mut resources {
        resource["@type"] = json!("type.googleapis.com/envoy.config.listener.v3.Listener");
    }
    json!({ "version_info": version.to_string(), "resources": resources })
}

fn listeners(options: &EnvoyOptions, folder: &Path) -> Vec<Value> {
    let first = listener(options, folder, LISTENER, options.port, &options.filter);
    let second = options.second.as_ref();
    let second = second.map(|(port, filter)| listener(options, folder, "second", *port, filter));
    std::iter::once(first).chain(second).collect()
}

fn listener(options: &EnvoyOptions, folder: &Path, name: &str, port: u16, filter: &Filter) -> Value {
    let mut manager = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": name,
        "codec_type": "AUTO",
        "route_config": { "virtual_hosts": [virtual_host(options)] },
        "http_filters": http_filters(filter, options),
    });
    if options.access_log {
        manager["access_log"] = json!([access_log(folder)]);
    }
    if options.collector_port.is_some() {
        manager["tracing"] = tracing();
    }
    let mut chain = json!({ "filters": [{ "name": "http", "typed_config": manager }] });
    if let Some(tls) = &options.client_tls {
        chain["transport_socket"] = client_socket(tls);
    }
    json!({ "name": name, "address": address(options.host, port), "filter_chains": [chain] })
}

fn virtual_host(options: &EnvoyOptions) -> Value {
    let mut route = route(options.route);
    if !options.route_filters.is_null() {
        route["typed_per_filter_config"] = options.route_filters.clone();
    }
    let mut host = json!({ "name": VIRTUAL_HOST, "domains": ["*"], "routes": [route] });
    if let Filter::RateLimit(service) = &options.filter {
        let action =
            |header: &&str| json!({ "request_headers": { "header_name": header, "descriptor_key": header } });
        let actions =
            |headers: &Vec<&str>| json!({ "actions": headers.iter().map(action).collect::<Vec<_>>() });
        host["rate_limits"] = service.descriptors.iter().map(actions).collect();
        if !service.rate_limits.is_empty() {
            host["typed_per_filter_config"] = json!({ "ratelimit": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute",
                "rate_limits": service.rate_limits,
            }});
        }
        if service.shows_metadata {
            let value = "%DYNAMIC_METADATA(envoy.filters.http.ratelimit:metadata)%";
            host["response_headers_to_add"] =
                json!([{ "header": { "key": "x-limit-metadata", "value": value } }]);
        }
    }
    host
}

fn route(route: Route) -> Value {
    let matched = json!({ "prefix": "/" });
    match route {
        Route::Direct => {
            json!({ "name": ROUTE, "match": matched, "direct_response": { "status": 200, "body": { "inline_string": "ok\n" } } })
        }
        // Envoy follows a 302 of the upstream by itself.
        Route::Upstream(_) | Route::Http2(_) => json!({ "name": ROUTE, "match": matched,
            "route": { "cluster": "upstream", "internal_redirect_policy": {} } }),
    }
}

fn http_filters(filter: &Filter, options: &EnvoyOptions) -> Vec<Value> {
    let router = json!({ "name": "router", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
    }});
    let first = match filter {
        Filter::None => None,
        Filter::Weir(weir) if is_dynamic(&weir.module) => Some(native_filter(weir)),
        Filter::Weir(weir) => Some(wasm_filter(weir)),
        Filter::Local { tokens } => Some(local_ratelimit(*tokens)),
        Filter::RateLimit(service) => Some(rate_limit_service(service)),
        Filter::Quota(service) => Some(rate_limit_quota(service)),
    };
    let filters = first.into_iter().flat_map(|filter| std::iter::repeat_n(filter, options.copies));
    let after = options.after.iter().cloned();
    options.before.iter().cloned().chain(filters).chain(after).chain([router]).collect()
}

/// Whether a module is a dynamic one, not one of WASM.
fn is_dynamic(module: &Path) -> bool {
    module.extension().is_some_and(|extension| extension == "so")
}

/// With the namespace of a WASM filter's metrics, so that tags and dashboards are the same.
fn native_filter(weir: &Weir) -> Value {
    json!({ "name": "weir", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter",
        "dynamic_module_config": {
            "module": { "local": { "filename": weir.module } },
            "do_not_close": true,
            "metrics_namespace": "wasmcustom",
        },
        "filter_name": "weir",
        "filter_config": {
            "@type": "type.googleapis.com/google.protobuf.StringValue",
            "value": weir.config.to_string(),
        },
    }})
}

fn wasm_filter(weir: &Weir) -> Value {
    json!({ "name": "weir", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
        "config": {
            "name": "weir",
            "root_id": "weir",
            "vm_config": {
                "vm_id": weir.vm_id,
                "runtime": "envoy.wasm.runtime.v8",
                "code": { "local": { "filename": weir.module } },
                "allow_precompiled": false,
                "environment_variables": { "host_env_keys": variables(&weir.config) },
            },
            "configuration": {
                "@type": "type.googleapis.com/google.protobuf.StringValue",
                "value": weir.config.to_string(),
            },
            "failure_policy": "FAIL_RELOAD",
            "reload_config": { "backoff": { "base_interval": "0.1s" } },
        },
    }})
}

fn local_ratelimit(tokens: u32) -> Value {
    let always = json!({ "default_value": { "numerator": 100, "denominator": "HUNDRED" } });
    json!({ "name": "local_ratelimit", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit",
        "stat_prefix": "local",
        "token_bucket": { "max_tokens": tokens, "tokens_per_fill": tokens, "fill_interval": "3600s" },
        "filter_enabled": always,
        "filter_enforced": always,
    }})
}

fn rate_limit_service(service: &RateLimit) -> Value {
    json!({ "name": "ratelimit", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit",
        "domain": service.domain,
        // Envoy's default timeout of 20 ms is too short for a busy machine.
        "timeout": "10s",
        "failure_mode_deny": service.failure_mode_deny,
        "enable_x_ratelimit_headers": "DRAFT_VERSION_03",
        "rate_limit_service": {
            "transport_api_version": "V3",
            "grpc_service": grpc_service(service.token.as_ref()),
        },
    }})
}

fn rate_limit_quota(service: &Quota) -> Value {
    let header = |name: &str| {
        json!({ "name": name, "typed_config": {
            "@type": "type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput", "header_name": name,
        }})
    };
    let settings = |headers: &[&str]| {
        let builders =
            headers.iter().map(|name| ((*name).to_owned(), json!({ "custom_value": header(name) })));
        let mut settings = json!({
            "@type": "type.googleapis.com/envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaBucketSettings",
            "bucket_id_builder": { "bucket_id_builder": builders.collect::<serde_json::Map<_, _>>() },
            "reporting_interval": "5s",
        });
        if service.deny_expired {
            settings["expired_assignment_behavior"] = json!({
                "fallback_rate_limit": { "blanket_rule": "DENY_ALL" },
                "expired_assignment_behavior_timeout": "600s",
            });
        }
        settings
    };
    let matcher = |headers: &Vec<&'static str>| {
        let any = json!({ "safe_regex": { "google_re2": {}, "regex": ".+" } });
        let input = header(headers.first().copied().unwrap_or_default());
        json!({
            "predicate": { "single_predicate": { "input": input, "value_match": any } },
            "on_match": { "action": { "name": "bucket", "typed_config": settings(headers) } },
        })
    };
    json!({ "name": "rate_limit_quota", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaFilterConfig",
        "domain": service.domain,
        "rlqs_server": grpc_service(service.token.as_ref()),
        "bucket_matchers": {
            "matcher_list": { "matchers": service.buckets.iter().map(matcher).collect::<Vec<_>>() },
        },
    }})
}

/// The aggregator, with a token if it has one.
fn grpc_service(token: Option<&String>) -> Value {
    let bearer = |token: &String| json!({ "key": "authorization", "value": format!("Bearer {token}") });
    json!({
        "envoy_grpc": { "cluster_name": AGGREGATOR_CLUSTER },
        "initial_metadata": token.into_iter().map(bearer).collect::<Vec<_>>(),
    })
}

/// Traces every request; a request with a `traceparent` header stays in that trace.
fn tracing() -> Value {
    json!({ "provider": { "name": "envoy.tracers.opentelemetry", "typed_config": {
        "@type": "type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig",
        "grpc_service": { "envoy_grpc": { "cluster_name": COLLECTOR_CLUSTER }, "timeout": "5s" },
        "service_name": "envoy",
    }}})
}

fn access_log(folder: &Path) -> Value {
    json!({ "name": "file", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
        "path": folder.join("access.log"),
        "log_format": { "json_format": {
            "method": "%REQ(:METHOD)%",
            "path": "%REQ(:PATH)%",
            "status": "%RESPONSE_CODE%",
            "duration_ms": "%DURATION%",
            "details": "%RESPONSE_CODE_DETAILS%",
            "rule": "%FILTER_STATE(wasm.weir_rule:PLAIN)%",
            "outcome": "%FILTER_STATE(wasm.weir_outcome:PLAIN)%",
        }},
    }})
}

/// Without these tags, the name of each rule would be a part of a metric's name. The tags match the keys that the
/// filter writes; a rule's name may contain dots.
fn stats_tags() -> Vec<Value> {
    let rule =
        r"^wasmcustom\.weir_\w+(\.rule\.(.+?))(?:\.(?:outcome|reason|result|line|kind)\.[^.]+)*$".to_owned();
    let last = ["outcome", "reason", "result", "line", "kind"];
    let last = last.map(|tag| (tag, format!(r"^wasmcustom\.weir_.*(\.{tag}\.([^.]+))")));
    let tags = [("rule", rule)].into_iter().chain(last);
    tags.map(|(name, regex)| json!({ "tag_name": name, "regex": regex })).collect()
}

fn cluster(name: &str, ports: &[u16]) -> Value {
    let endpoint = |port: &u16| json!({ "endpoint": { "address": local_address(*port) } });
    let endpoints: Vec<_> = ports.iter().map(endpoint).collect();
    json!({
        "name": name,
        "type": "STATIC",
        "connect_timeout": "0.25s",
        "load_assignment": { "cluster_name": name, "endpoints": [
            { "lb_endpoints": endpoints },
        ]},
    })
}

/// Keepalive closes a connection to an aggregator that is stopped or unreachable; otherwise Envoy would buffer for it
/// without a limit. An aggregator whose streams fail is ejected for a while. If all are ejected, all of them are tried.
fn aggregator_cluster(ports: &[u16]) -> Value {
    let mut cluster = cluster(AGGREGATOR_CLUSTER, ports);
    cluster["lb_policy"] = json!("ROUND_ROBIN");
    cluster["common_lb_config"] = json!({ "healthy_panic_threshold": { "value": 1 } });
    cluster["outlier_detection"] = json!({
        "consecutive_5xx": 3,
        "interval": "1s",
        "base_ejection_time": "2s",
        "max_ejection_time": "10s",
        "max_ejection_percent": 100,
    });
    use_http2(&mut cluster, json!({ "connection_keepalive": { "interval": "1s", "timeout": "1s" } }));
    cluster["circuit_breakers"] = json!({ "thresholds": [{ "max_connections": 64, "max_requests": 1024 }] });
    cluster
}

fn use_http2(cluster: &mut Value, options: Value) {
    cluster["typed_extension_protocol_options"] = json!({ "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": { "http2_protocol_options": options },
    }});
}

fn file(path: &Path) -> Value {
    json!({ "filename": path })
}

fn pair((chain, key): &(PathBuf, PathBuf)) -> Value {
    json!({ "certificate_chain": file(chain), "private_key": file(key) })
}

fn client_socket(ClientTls { authority, own }: &ClientTls) -> Value {
    json!({ "name": "tls", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
        "common_tls_context": {
            "tls_certificates": [pair(own)],
            "validation_context": { "trusted_ca": file(authority) },
        },
    }})
}

fn transport_socket(UpstreamTls { authority, name, own }: &UpstreamTls) -> Value {
    json!({ "name": "tls", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        "sni": name,
        "common_tls_context": {
            "tls_certificates": own.iter().map(pair).collect::<Vec<_>>(),
            "validation_context": {
                "trusted_ca": file(authority),
                "match_typed_subject_alt_names": [{ "san_type": "DNS", "matcher": { "exact": name } }],
            },
        },
    }})
}

fn local_address(port: u16) -> Value {
    address(Ipv4Addr::LOCALHOST.into(), port)
}

fn address(host: IpAddr, port: u16) -> Value {
    json!({ "socket_address": { "address": host, "port_value": port } })
}

/// The environment variables that a configuration of the filter names.
fn variables(config: &Value) -> Vec<&Value> {
    let named = [&config["aggregator"]["token_env"], &config["hash_key_env"]];
    named.into_iter().filter(|name| name.is_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reloadable_listener_is_in_its_file_only() {
        let folder = Path::new("/scenario");
        let fixed = bootstrap(&EnvoyOptions::default(), folder);
        assert_eq!(fixed["static_resources"]["listeners"][0]["name"], LISTENER);
        assert!(fixed.get("dynamic_resources").is_none());

        let options = EnvoyOptions { reloadable: true, ..EnvoyOptions::default() };
        let reloadable = bootstrap(&options, folder);
        assert!(reloadable["static_resources"].get("listeners").is_none());
        let source = &reloadable["dynamic_resources"]["lds_config"]["path_config_source"];
        assert_eq!(source["path"], "/scenario/listeners.json");
        assert_eq!(discovery_response(&options, folder, 7)["version_info"], "7");
    }

    #[test]
    fn every_aggregator_is_an_endpoint_of_one_cluster() {
        let clusters = |ports: &[u16]| {
            let options = EnvoyOptions { aggregator_ports: ports.to_vec(), ..EnvoyOptions::default() };
            bootstrap(&options, Path::new("/scenario"))["static_resources"]["clusters"].clone()
        };
        assert_eq!(clusters(&[]), json!([]));
        let two = clusters(&[7, 8]);
        assert_eq!(two[0]["name"], AGGREGATOR_CLUSTER);
        let endpoints = &two[0]["load_assignment"]["endpoints"][0]["lb_endpoints"];
        let port = |at: usize| &endpoints[at]["endpoint"]["address"]["socket_address"]["port_value"];
        assert_eq!((port(0), port(1)), (&json!(7), &json!(8)));
    }

    #[test]
    fn the_plugins_configuration_travels_as_a_string() {
        let weir = Weir::new("/weir.wasm".into(), json!({ "workspace": "w" }));
        let filters = http_filters(&Filter::Weir(weir), &EnvoyOptions::default());
        let [filter, _router] = &filters[..] else { panic!("two filters") };
        assert_eq!(filter["typed_config"]["config"]["configuration"]["value"], r#"{"workspace":"w"}"#);
    }
}
