//! The filters that parse bodies, the metadata that they write, and the metadata that rules read.

use super::super::order::{kind, one_or_list};
use serde_json::Value;
use weir_core::rules::field;

/// The filter for MCP, and the namespace of what it writes.
pub const MCP: &str = "Mcp";
pub const OF_MCP: &str = "envoy.filters.http.mcp";
/// The filter that writes fields of JSON where its configuration states, and its namespace if that states none.
pub const JSON: &str = "JsonToMetadata";
pub const OF_JSON: &str = "envoy.filters.http.json_to_metadata";
/// The filter for language models, and the namespaces of what it writes: of requests, and of their answers.
pub const MODELS: &str = "AiProtocolManager";
pub const OF_MODELS: [&str; 2] = ["envoy.ai.request_info", OF_ANSWERS];
pub const OF_ANSWERS: &str = "envoy.ai.token_usage";

/// Metadata that a rule reads.
pub struct Read<'a> {
    /// The field of the configuration.
    pub field: String,
    /// Where it is written.
    pub namespace: &'a str,
}

/// The metadata that the rules of a configuration read.
pub fn read(json: &Value) -> Vec<Read<'_>> {
    let mut found = Vec::new();
    for (at, rule) in json["rules"].as_array().into_iter().flatten().enumerate() {
        let parts = one_or_list(&rule["identifier"]).iter().map(|part| ("identifier", &part["metadata"]));
        let conditions = one_or_list(&rule["match"]["metadata"]).iter().map(|one| ("match.metadata", one));
        let others = [
            ("cost.request.metadata", &rule["cost"]["request"]["metadata"]),
            ("limit.metadata", &rule["limit"]["metadata"]),
            ("limit.by.metadata", &rule["limit"]["by"]["metadata"]),
            ("response.id", &rule["response"]["id"]),
        ];
        for (field, metadata) in parts.chain(conditions).chain(others) {
            if let Some(namespace) = namespace_of(metadata) {
                found.push(Read { field: format!("rules[{at}].{field}"), namespace });
            }
        }
        if rule["response"]["format"] == "json_rpc" && rule["response"]["id"].is_null() {
            found.push(Read { field: format!("rules[{at}].response.format"), namespace: OF_MCP });
        }
    }
    found
}

pub fn namespace_of(metadata: &Value) -> Option<&str> {
    metadata.get("filter").or_else(|| metadata.get("typed"))?.as_str()
}

/// Whether Envoy's own parsers write this namespace.
pub fn is_known(namespace: &str) -> bool {
    [OF_MCP, OF_JSON].contains(&namespace) || OF_MODELS.contains(&namespace)
}

/// The namespaces that a parser of bodies writes of requests.
pub fn written(filter: &Value) -> Vec<&str> {
    match kind(filter) {
        MCP => vec![OF_MCP],
        MODELS => OF_MODELS.to_vec(),
        JSON => {
            let Some(config) = config_of(filter) else { return Vec::new() };
            let rules = field(config, "request_rules", "requestRules").and_then(|rules| rules.get("rules"));
            let rules = rules.and_then(Value::as_array).into_iter().flatten();
            let ways = [("on_present", "onPresent"), ("on_missing", "onMissing"), ("on_error", "onError")];
            let namespaces = rules.flat_map(|rule| {
                ways.iter().filter_map(|(snake, camel)| {
                    let to = field(rule, snake, camel)?;
                    let namespace =
                        field(to, "metadata_namespace", "metadataNamespace").and_then(Value::as_str);
                    Some(namespace.filter(|text| !text.is_empty()).unwrap_or(OF_JSON))
                })
            });
            namespaces.collect()
        }
        _ => Vec::new(),
    }
}

/// The configuration of a filter, typed or in a typed struct.
pub fn config_of(filter: &Value) -> Option<&Value> {
    let config = field(filter, "typed_config", "typedConfig")?;
    match field(config, "type_url", "typeUrl") {
        Some(_) => config.get("value"),
        None => Some(config),
    }
}

pub fn has(filter: &Value, snake: &str, camel: &str) -> bool {
    config_of(filter).is_some_and(|config| field(config, snake, camel).is_some())
}
