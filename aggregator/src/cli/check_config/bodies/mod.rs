//! Rules by fields of the body, which filters of Envoy parse and leave in metadata: what clients evade or invent, and filters that stand
//! where the metadata is not there yet.
//!
//! `chain` checks the filters around a plugin, `answers` what they write of responses, and `locks` whether rules by the body leave requests
//! without one to others.

mod answers;
mod chain;
mod locks;

pub use chain::Chain;

use super::order::{kind, one_or_list};
use serde_json::Value;
use weir_core::rules::{Config, Missing, field};

/// The filter for MCP, and the namespace of what it writes.
const MCP: &str = "Mcp";
const OF_MCP: &str = "envoy.filters.http.mcp";
/// The filter that writes fields of JSON where its configuration states, and its namespace if that states none.
const JSON: &str = "JsonToMetadata";
const OF_JSON: &str = "envoy.filters.http.json_to_metadata";
/// The filter for language models, and the namespaces of what it writes: of requests, and of their answers.
const MODELS: &str = "AiProtocolManager";
const OF_MODELS: [&str; 2] = ["envoy.ai.request_info", OF_ANSWERS];
const OF_ANSWERS: &str = "envoy.ai.token_usage";

/// Metadata that a rule reads.
struct Read<'a> {
    /// The field of the configuration.
    field: String,
    namespace: &'a str,
}

/// Warns of rules by a body's values that clients evade or invent. `namespaces` are those that are known to be of a body beside Envoy's own.
pub fn warnings(config: &Config, json: &Value, namespaces: &[&str]) -> Vec<String> {
    let is_of_body = |namespace: &str| is_known(namespace) || namespaces.contains(&namespace);
    let mut found = Vec::new();
    for (at, rule) in config.rules.iter().enumerate().filter(|(_, rule)| !rule.shadow) {
        let parts = rule.metadata_parts();
        let parts = parts.filter(|part| std::str::from_utf8(part.namespace).is_ok_and(is_of_body));
        for part in parts {
            let key = String::from_utf8_lossy(part.key);
            if !part.is_listed {
                found.push(format!(
                    "warning: rules[{at}].identifier: a client writes {key} into its body, and each value that it invents has a count of its own; \
                     list the values in one_of"
                ));
            }
            if part.skips_unlisted {
                found.push(format!(
                    "warning: rules[{at}].identifier: on_unlisted: skip allows every request with a {key} that is not listed; use shared or deny"
                ));
            }
            if rule.missing == Missing::Skip {
                found.push(format!(
                    "warning: rules[{at}].on_missing_identifier: skip allows every request whose body has no {key} or is not parsed, such as a \
                     batch, a large or a compressed one; use deny"
                ));
            }
        }
    }
    found.extend(chosen(json, is_of_body));
    found.extend(locks::evaded(config, json, is_of_body));
    found
}

/// Warns of limits, plans and exceptions that a client chooses by its body.
fn chosen(json: &Value, is_of_body: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for (at, rule) in json["rules"].as_array().into_iter().flatten().enumerate() {
        let of_body = |metadata: &Value| namespace_of(metadata).is_some_and(&is_of_body);
        let limit = &rule["limit"];
        for (field, metadata) in [("limit.by", &limit["by"]["metadata"]), ("limit", &limit["metadata"])] {
            if of_body(metadata) {
                found.push(format!(
                    "warning: rules[{at}].{field}.metadata: a client chooses its limit by what it writes into its body; use a claim, or metadata \
                     of an authorisation"
                ));
            }
        }
        for (number, except) in rule["match"]["except"].as_array().into_iter().flatten().enumerate() {
            if one_or_list(&except["metadata"]).iter().any(of_body) {
                found.push(format!(
                    "warning: rules[{at}].match.except[{number}]: a client chooses by its body whether the rule applies; make an exception of \
                     what it cannot choose"
                ));
            }
        }
    }
    found
}

/// The metadata that the rules of a configuration read.
fn read(json: &Value) -> Vec<Read<'_>> {
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

fn namespace_of(metadata: &Value) -> Option<&str> {
    metadata.get("filter").or_else(|| metadata.get("typed"))?.as_str()
}

/// Whether Envoy's own parsers write this namespace.
fn is_known(namespace: &str) -> bool {
    [OF_MCP, OF_JSON].contains(&namespace) || OF_MODELS.contains(&namespace)
}

/// The namespaces that a parser of bodies writes of requests.
fn written(filter: &Value) -> Vec<&str> {
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
fn config_of(filter: &Value) -> Option<&Value> {
    let config = field(filter, "typed_config", "typedConfig")?;
    match field(config, "type_url", "typeUrl") {
        Some(_) => config.get("value"),
        None => Some(config),
    }
}

fn has(filter: &Value, snake: &str, camel: &str) -> bool {
    config_of(filter).is_some_and(|config| field(config, snake, camel).is_some())
}

#[cfg(test)]
mod tests;
