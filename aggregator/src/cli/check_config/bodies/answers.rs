//! Metadata of answers, which costs are settled by: which filter of the list writes it, wherever it stands.

use super::super::order::{kind, name, one_or_list};
use super::parsers::{JSON, MODELS, OF_ANSWERS, OF_JSON, config_of, namespace_of, written};
use serde_json::Value;
use weir_core::rules::field;

/// The filter that writes fields of streams of events, and its namespace if its configuration states none.
const EVENTS: &str = "SseToMetadata";
const OF_EVENTS: &str = "envoy.filters.http.sse_to_metadata";
const OF_GATEWAY: &str = "io.envoy.ai_gateway";
/// The types of filters that may write any metadata.
const WRITERS: [&str; 5] = ["ExternalProcessor", "ExtAuthz", "Lua", "Wasm", "DynamicModuleFilter"];

/// Warns of costs by metadata of answers that no filter of the list writes, and of estimates that are not there yet. `own` is the plugin's
/// place in the list.
pub fn warnings(json: &Value, filters: &[Value], own: usize) -> Vec<String> {
    let others: Vec<(usize, &Value)> =
        filters.iter().enumerate().filter(|(at, filter)| *at != own && filter["disabled"] != true).collect();
    let is_written = |namespace: &str| {
        others.iter().any(|(_, filter)| {
            let may_write = || WRITERS.contains(&kind(filter)) || written(filter).contains(&namespace);
            of_answers(filter).contains(&namespace) || (namespace != OF_ANSWERS && may_write())
        })
    };
    let mut found = Vec::new();
    for (at, rule) in json["rules"].as_array().into_iter().flatten().enumerate() {
        let cost = &rule["cost"];
        if let Some(namespace) = of_usage(&cost["usage"])
            && !is_written(namespace)
        {
            let remedy = match namespace {
                OF_ANSWERS => {
                    "put envoy.filters.http.ai_protocol_manager with response_handling.token_usage before Weir"
                }
                _ => "put the one that does into it",
            };
            found.push(format!(
                "warning: rules[{at}].cost.usage: no filter of this list writes the metadata {namespace}, so that each answer is charged \
                 without_usage; {remedy}"
            ));
        }
        found.extend(late_estimate(at, &cost["usage"], &others, own));
        for (number, line) in cost["when"].as_array().into_iter().flatten().enumerate() {
            let mut read = one_or_list(&line["metadata"]).iter().filter_map(namespace_of);
            if let Some(namespace) = read.find(|namespace| !is_written(namespace)) {
                found.push(format!(
                    "warning: rules[{at}].cost.when[{number}].metadata: no filter of this list writes the metadata {namespace}; put the one \
                     that does into it"
                ));
            }
        }
    }
    found
}

/// Warns of a parser of requests after the plugin, whose estimate and cap the reserve lacks.
fn late_estimate(at: usize, usage: &Value, others: &[(usize, &Value)], own: usize) -> Option<String> {
    of_usage(usage)?;
    let parsers = || others.iter().filter(|(_, filter)| kind(filter) == MODELS);
    let (place, filter) = parsers().find(|(place, _)| *place > own)?;
    let is_first = parsers().all(|(place, _)| *place > own);
    is_first.then(|| {
        format!(
            "warning: rules[{at}].cost.reserve: requests pass http_filters[{place}] ({}) after Weir, so that its model, its estimate and its \
             max_tokens are not known for the reserve; put it before Weir",
            name(filter)
        )
    })
}

/// The namespace of the metadata that has the use.
fn of_usage(usage: &Value) -> Option<&str> {
    match usage.as_str() {
        Some("envoy") => Some(OF_ANSWERS),
        Some("ai_gateway") => Some(OF_GATEWAY),
        Some(_) => None,
        None if usage.get("envoy").is_some() => usage["envoy"].as_str(),
        None if usage.get("ai_gateway").is_some() => Some(OF_GATEWAY),
        None => namespace_of(&usage["metadata"]),
    }
}

/// The namespaces that a filter writes of answers.
fn of_answers(filter: &Value) -> Vec<&str> {
    let Some(config) = config_of(filter) else { return Vec::new() };
    let mut found = Vec::new();
    match kind(filter) {
        MODELS => {
            let handling = field(config, "response_handling", "responseHandling");
            if handling.and_then(|handling| field(handling, "token_usage", "tokenUsage")).is_some() {
                found.push(OF_ANSWERS);
            }
        }
        JSON | EVENTS => {
            let usual = if kind(filter) == JSON { OF_JSON } else { OF_EVENTS };
            if let Some(rules) = field(config, "response_rules", "responseRules") {
                namespaces(rules, usual, &mut found);
            }
        }
        _ => {}
    }
    found
}

/// The namespaces to which rules write, or the usual one where they state none.
fn namespaces<'a>(rules: &'a Value, usual: &'a str, found: &mut Vec<&'a str>) {
    match rules {
        Value::Object(fields) => {
            for (name, value) in fields {
                let is_target = ["on_present", "onPresent", "on_missing", "onMissing", "on_error", "onError"]
                    .contains(&name.as_str());
                if is_target && value.is_object() {
                    let stated =
                        field(value, "metadata_namespace", "metadataNamespace").and_then(Value::as_str);
                    found.push(stated.filter(|text| !text.is_empty()).unwrap_or(usual));
                } else {
                    namespaces(value, usual, found);
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| namespaces(item, usual, found)),
        _ => {}
    }
}
