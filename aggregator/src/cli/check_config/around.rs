//! What a document has around a plugin: the aggregators' cluster, the connection manager, what happens if the plugin fails, and another
//! filter of the same kind.

use super::order::{filters_of, manager_of, name, one_or_list, value_at};
use serde_json::Value;
use weir_core::rules::{Config, PLACEHOLDER, PluginConfig, STAND_IN, field};

/// The extension that states a cluster's protocol.
const PROTOCOL: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
const MANAGER: &str = ".HttpConnectionManager";

/// What is wrong with the aggregators' cluster, if the document has it: gRPC needs HTTP/2.
pub fn without_http2(document: &Value, cluster: &str) -> Option<String> {
    let cluster_of = cluster_of(document, cluster)?;
    let is_missing = matches!(protocol_of(cluster_of), Protocol::Other);
    is_missing.then(|| {
        format!(
            "the cluster {cluster:?} of this file is not HTTP/2, which gRPC needs: no stream would ever reach the aggregator; expected \
             http2_protocol_options in explicit_http_config of its typed_extension_protocol_options"
        )
    })
}

/// Warns of what leaves a configuration without effect, or keeps it from failing safely. `plugins` are all of the document.
pub fn warnings(
    config: &Config,
    document: &Value,
    plugin: &PluginConfig,
    plugins: &[PluginConfig],
) -> Vec<String> {
    let found = [
        without_keepalive(document, &config.aggregator.cluster),
        written_address(document, plugin),
        fails_open(document, plugin),
        twin(config, document, plugin, plugins),
    ];
    found.into_iter().flatten().collect()
}

/// Warns of a token that is still the placeholder.
pub fn placeholder(json: &Value) -> Option<String> {
    let token = json.pointer("/aggregator/token")?.as_str()?;
    (token.trim() == PLACEHOLDER).then(|| {
        "warning: aggregator.token: it is a placeholder, with which no aggregator starts; write that of --filter-token"
            .to_owned()
    })
}

fn cluster_of<'a>(document: &'a Value, wanted: &str) -> Option<&'a Value> {
    let clusters = field(document, "static_resources", "staticResources")?.get("clusters")?.as_array()?;
    clusters.iter().find(|cluster| cluster.get("name").and_then(Value::as_str) == Some(wanted))
}

enum Protocol<'a> {
    /// HTTP/2, with these options if they are given.
    Two(Option<&'a Value>),
    /// As the downstream has it, or as TLS negotiates it.
    Negotiated,
    Other,
}

fn protocol_of(cluster: &Value) -> Protocol<'_> {
    let options = |holder| field(holder, "http2_protocol_options", "http2ProtocolOptions");
    if let Some(options) = options(cluster) {
        return Protocol::Two(Some(options));
    }
    let extensions = field(cluster, "typed_extension_protocol_options", "typedExtensionProtocolOptions");
    let Some(stated) = extensions.and_then(|extensions| extensions.get(PROTOCOL)) else {
        return Protocol::Other;
    };
    let stated = stated.get("value").unwrap_or(stated);
    let negotiated =
        [("auto_config", "autoConfig"), ("use_downstream_protocol_config", "useDownstreamProtocolConfig")];
    if negotiated.iter().any(|(snake, camel)| field(stated, snake, camel).is_some()) {
        return Protocol::Negotiated;
    }
    match field(stated, "explicit_http_config", "explicitHttpConfig").and_then(options) {
        Some(options) => Protocol::Two(Some(options)),
        None => Protocol::Other,
    }
}

fn without_keepalive(document: &Value, cluster: &str) -> Option<String> {
    let Protocol::Two(options) = protocol_of(cluster_of(document, cluster)?) else { return None };
    let keepalive = options.and_then(|options| field(options, "connection_keepalive", "connectionKeepalive"));
    keepalive.is_none().then(|| {
        format!(
            "warning: aggregator.cluster: the cluster {cluster:?} has no connection_keepalive, without which Envoy buffers for an \
             aggregator that hangs, without limit; set it in http2_protocol_options"
        )
    })
}

/// Warns of rules by an address that Envoy takes from a header.
fn written_address(document: &Value, plugin: &PluginConfig) -> Option<String> {
    let manager = manager_of(document, &plugin.path)?;
    if !manager.get("@type").and_then(Value::as_str)?.ends_with(MANAGER) {
        return None;
    }
    let is_verified = field(manager, "use_remote_address", "useRemoteAddress").and_then(Value::as_bool) == Some(true)
        // Whoever states these knows what stands before this Envoy.
        || field(manager, "xff_num_trusted_hops", "xffNumTrustedHops").is_some_and(|hops| hops != 0)
        || field(manager, "original_ip_detection_extensions", "originalIpDetectionExtensions").is_some();
    if is_verified {
        return None;
    }
    let config: Value = serde_json::from_str(&plugin.json).unwrap_or_default();
    let field = by_address(&config)?;
    Some(format!(
        "warning: {field}: Envoy takes the client's address from x-forwarded-for, which clients write unless a proxy of yours stands before \
         this Envoy; set use_remote_address: true in the connection manager, or trusted_hops here"
    ))
}

/// The first field that reads the address as Envoy has it.
fn by_address(config: &Value) -> Option<String> {
    let reads = |part: &Value| part.get("trusted_hops").is_none_or(|hops| hops == 0);
    let networks = config.get("client_networks").filter(|networks| reads(networks));
    let rules = config.get("rules").and_then(Value::as_array).into_iter().flatten().enumerate();
    let mut of_rules = rules.filter_map(|(at, rule)| {
        let sources = [
            ("identifier.client_address", &rule["identifier"], "client_address"),
            ("match.client_network", &rule["match"], "client_network"),
            ("match.except.client_network", &rule["match"]["except"], "client_network"),
        ];
        let mut read = sources.into_iter().filter(|(_, holders, name)| {
            one_or_list(holders).iter().filter_map(|holder| holder.get(name)).any(reads)
        });
        read.next().map(|(field, ..)| format!("rules[{at}].{field}"))
    });
    let exempt =
        config.get("exempt").into_iter().flat_map(one_or_list).filter_map(|set| set.get("client_network"));
    let exempt = exempt.filter(|network| reads(network)).map(|_| "exempt.client_network".to_owned()).next();
    networks.map(|_| "client_networks".to_owned()).or(exempt).or_else(|| of_rules.next())
}

/// Warns of a plugin whose failure lets requests pass without a limit.
fn fails_open(document: &Value, plugin: &PluginConfig) -> Option<String> {
    let path = plugin.path.strip_suffix(".value").unwrap_or(&plugin.path);
    let holder = value_at(document, path.rsplit_once('.')?.0)?;
    let policy = field(holder, "failure_policy", "failurePolicy").or_else(|| holder.get("failStrategy"));
    let is_open = field(holder, "fail_open", "failOpen").and_then(Value::as_bool) == Some(true);
    (is_open || policy.and_then(Value::as_str) == Some("FAIL_OPEN")).then(|| {
        "warning: if the filter fails, requests pass without any limit (FAIL_OPEN); FAIL_RELOAD replaces it, or FAIL_CLOSED"
            .to_owned()
    })
}

/// Warns of an earlier filter of the list that counts under the same names.
fn twin(
    config: &Config,
    document: &Value,
    plugin: &PluginConfig,
    plugins: &[PluginConfig],
) -> Option<String> {
    let (filters, own) = filters_of(document, &plugin.path)?;
    let is_off = |at: usize| filters.get(at).is_some_and(|filter| filter["disabled"] == true);
    let earlier = plugins.iter().filter_map(|other| {
        let (list, at) = filters_of(document, &other.path)?;
        (std::ptr::eq(list, filters) && at < own && !is_off(at)).then_some((at, other))
    });
    let mut earlier = earlier.filter(|_| !is_off(own));
    earlier.find_map(|(at, other)| {
        let other =
            Config::parse_with(other.json.as_bytes(), &|_| Some(STAND_IN.to_owned())).ok()?;
        if (&other.workspace, &other.aggregator.cluster) != (&config.workspace, &config.aggregator.cluster) {
            return None;
        }
        let mut rules = config.rules.iter().enumerate();
        let (number, rule) = rules.find(|(_, rule)| {
            let counts_there = |one: &&weir_core::rules::Rule| {
                (&one.namespace, one.duration_ms) == (&rule.namespace, rule.duration_ms)
            };
            other.rules.iter().any(|one| counts_there(&one))
        })?;
        Some(format!(
            "warning: rules[{number}]: http_filters[{at}] ({}) counts in namespace {:?} too, so a request that passes both filters counts \
             twice; leave one of them out",
            filters.get(at).map(name).unwrap_or_default(),
            rule.namespace
        ))
    })
}
