//! HTTP/3 before costs that are settled at the end of a response.

use super::order::{list_of, manager_of, value_at};
use serde_json::Value;
use weir_core::rules::{PluginConfig, field};

const TRANSPORT: &str = ".QuicDownstreamTransport";
/// What a line of a cost reads at the end of a response.
const READ_AT_THE_END: [&str; 2] = ["metadata", "grpc_status"];

/// Warns of rules whose cost Envoy 1.40 does not settle over HTTP/3. `at` states where a value stands.
pub fn warnings(
    json: &Value,
    document: &Value,
    plugin: &PluginConfig,
    at: impl Fn(&str) -> String,
) -> Vec<String> {
    let Some(path) = quic_of(document, &plugin.path) else { return Vec::new() };
    let line = match at(&path) {
        line if line.is_empty() => " ".to_owned(),
        line => line + ", ",
    };
    let rules = json["rules"].as_array().into_iter().flatten().enumerate();
    let found = rules.filter_map(|(number, rule)| {
        let (field, charge) = match &rule["cost"] {
            cost if cost.get("usage").is_some() => ("usage", "on_disconnect; set on_disconnect: reserve"),
            cost => {
                let kinds = ["when", "only", "refund"].into_iter();
                let mut late = kinds.filter(|kind| cost.get(kind).is_some_and(reads_the_end));
                (late.next()?, "as if no answer came; decide it by status or headers")
            }
        };
        Some(format!(
            "warning: rules[{number}].cost.{field}: {path}{line}serves HTTP/3, over which a request has ended for the filter in Envoy 1.40 \
             before the end of its response is read; it is charged {charge}, or serve these requests over HTTP/2"
        ))
    });
    found.collect()
}

fn reads_the_end(lines: &Value) -> bool {
    match lines {
        Value::Object(fields) => fields
            .iter()
            .any(|(name, value)| READ_AT_THE_END.contains(&name.as_str()) || reads_the_end(value)),
        Value::Array(items) => items.iter().any(reads_the_end),
        _ => false,
    }
}

/// The path of what makes the connections QUIC that reach a plugin.
fn quic_of(document: &Value, path: &str) -> Option<String> {
    let manager = manager_of(document, path);
    let codec = manager.and_then(|manager| field(manager, "codec_type", "codecType"));
    if codec.and_then(Value::as_str) == Some("HTTP3") {
        let (holder, _) = list_of(path)?.0.rsplit_once('.')?;
        return Some(format!("{holder}.codec_type"));
    }
    let holders = path.match_indices(']').filter_map(|(end, _)| path.get(..=end));
    holders.into_iter().find_map(|holder| {
        let value = value_at(document, holder)?;
        let options = ["udp_listener_config", "udpListenerConfig"].into_iter().find_map(|name| {
            let options = field(value.get(name)?, "quic_options", "quicOptions")?;
            options.is_object().then(|| format!("{holder}.{name}"))
        });
        let socket = || {
            ["transport_socket", "transportSocket"].into_iter().find_map(|name| {
                let config = field(value.get(name)?, "typed_config", "typedConfig")?;
                let kind = config.get("@type").and_then(Value::as_str)?;
                kind.ends_with(TRANSPORT).then(|| format!("{holder}.{name}"))
            })
        };
        options.or_else(socket)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn warned(rule: &Value, chain: &Value, listener: &Value, manager: &Value) -> Vec<String> {
        let with = |base: Value, more: &Value| {
            let mut base = base;
            base.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            base
        };
        let manager = with(json!({"http_filters": [{}]}), manager);
        let chain = with(json!({"filters": [{"typed_config": manager}]}), chain);
        let listener = with(json!({"filter_chains": [{}, chain]}), listener);
        let document = json!({"static_resources": {"listeners": [{"filter_chains": []}, listener]}});
        let path = "static_resources.listeners[1].filter_chains[1].filters[0].typed_config.http_filters[0].typed_config.config";
        let (json, path) = (json!({"rules": [{"cost": 1}, {"cost": rule}]}), path.to_owned());
        let plugin =
            PluginConfig { path, json: String::new(), module: None, variables: Vec::new(), is_native: false };
        warnings(&json, &document, &plugin, |_| ", at line 7".to_owned())
    }

    #[test]
    fn costs_at_the_end_of_a_response_are_warned_of_over_http_3() {
        let usage = json!({"usage": "envoy", "max": 9});
        let by_status = json!({"when": [{"status": "5xx", "cost": 0}], "otherwise": 1});
        let by_metadata =
            json!({"when": [{"status": 200}, {"metadata": {"filter": "f", "key": "k"}, "cost": 0}]});
        let none = json!({});
        let quic = json!({"transport_socket": {"typed_config": {"@type": format!("type.googleapis.com/x.v3{TRANSPORT}")}}});
        let tls = json!({"transport_socket": {"typed_config": {"@type": "type.googleapis.com/x.DownstreamTlsContext"}}});
        let udp = json!({"udp_listener_config": {"quic_options": {}}});
        let plain_udp = json!({"udp_listener_config": {}});
        let http3 = json!({"codec_type": "HTTP3"});
        let listener = "static_resources.listeners[1]";
        for (rule, chain, of_listener, manager, expected) in [
            (&usage, &none, &none, &none, None),
            (&usage, &tls, &plain_udp, &json!({"codec_type": "AUTO"}), None),
            (&usage, &quic, &none, &none, Some(format!("{listener}.filter_chains[1].transport_socket"))),
            (&usage, &none, &udp, &none, Some(format!("{listener}.udp_listener_config"))),
            (
                &usage,
                &none,
                &none,
                &http3,
                Some(format!("{listener}.filter_chains[1].filters[0].typed_config.codec_type")),
            ),
            (&by_metadata, &quic, &none, &none, Some("rules[1].cost.when".to_owned())),
            (&by_status, &quic, &udp, &http3, None),
            (&json!({"response": {"header": "x-cost"}, "max": 9}), &quic, &udp, &http3, None),
        ] {
            let found = warned(rule, chain, of_listener, manager);
            assert_eq!(found.len(), usize::from(expected.is_some()), "{rule} {found:?}");
            assert!(
                found.iter().all(|one| one.contains(expected.as_deref().unwrap_or_default())
                    && one.contains(", at line 7, serves HTTP/3")),
                "{found:?}"
            );
        }
    }
}
