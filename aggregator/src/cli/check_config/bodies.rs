//! Rules by fields of the body, which filters of Envoy parse and leave in metadata: what clients evade or invent, and filters that stand
//! where the metadata is not there yet.

use super::order::{filters_of, kind, name};
use serde_json::Value;
use weir_core::rules::{Config, Missing, PluginConfig, field};

/// The filter for MCP, and the namespace of what it writes.
const MCP: &str = "Mcp";
const OF_MCP: &str = "envoy.filters.http.mcp";
/// The filter that writes fields of JSON where its configuration states, and its namespace if that states none.
const JSON: &str = "JsonToMetadata";
const OF_JSON: &str = "envoy.filters.http.json_to_metadata";
/// The filter for language models, and the namespaces of what it writes.
const MODELS: &str = "AiProtocolManager";
const OF_MODELS: [&str; 2] = ["envoy.ai.request_info", "envoy.ai.token_usage"];
const DECOMPRESSOR: &str = "Decompressor";

/// Metadata that a rule reads.
struct Read<'a> {
    /// The field of the configuration.
    field: String,
    namespace: &'a str,
}

/// What is known of the filters around a plugin.
pub struct Chain<'a> {
    filters: &'a [Value],
    own: usize,
    /// The path of the list in the document.
    path: &'a str,
}

impl<'a> Chain<'a> {
    /// The list of filters that has the plugin.
    pub fn of(document: &'a Value, plugin: &'a PluginConfig) -> Option<Chain<'a>> {
        let (filters, own) = filters_of(document, &plugin.path)?;
        let end = ["http_filters[", "httpFilters["]
            .iter()
            .filter_map(|name| Some(plugin.path.rfind(name)? + name.len()));
        let path = plugin.path.get(..end.max()?.checked_sub(1)?)?;
        Some(Chain { filters, own, path })
    }

    /// The parsers of bodies in the list: place, filter, and the namespaces that it writes.
    fn parsers(&self) -> impl Iterator<Item = (usize, &'a Value, Vec<&'a str>)> {
        self.filters.iter().enumerate().filter_map(|(at, filter)| {
            let written = written(filter);
            (!written.is_empty()).then_some((at, filter, written))
        })
    }

    /// The paths of parsers that run after the plugin though rules read what they write, each with what is wrong.
    pub fn late_parsers(&self, json: &Value) -> Vec<(String, String)> {
        let read = read(json);
        let before: Vec<&str> =
            self.parsers().filter(|(at, ..)| *at < self.own).flat_map(|(.., written)| written).collect();
        let late = self.parsers().filter(|(at, ..)| *at > self.own);
        let late = late.filter_map(|(at, filter, written)| {
            let is_missing = |read: &&Read<'_>| written.contains(&read.namespace) && !before.contains(&read.namespace);
            let Read { field, namespace } = read.iter().find(is_missing)?;
            let message = format!(
                "{} writes the metadata {namespace} of {field}, and requests pass it after Weir; expected a place before Weir",
                name(filter)
            );
            Some((format!("{}[{at}]", self.path), message))
        });
        late.collect()
    }

    /// Warns of filters that let a body be read in two ways, or keep a response from ending.
    pub fn warnings(&self, json: &Value) -> Vec<String> {
        let read = read(json);
        let reads = |namespaces: &[&str]| read.iter().find(|read| namespaces.contains(&read.namespace));
        let at = |wanted: &str| self.filters.iter().position(|filter| kind(filter) == wanted);
        let mut found = Vec::new();
        for (place, filter, written) in self.parsers() {
            let Some(Read { field, .. }) = reads(&written) else { continue };
            let rejects = config_of(filter)
                .is_some_and(|config| is_true(config, "reject_duplicate_keys", "rejectDuplicateKeys"));
            let remedy = match kind(filter) {
                MCP if !rejects => "set reject_duplicate_keys: true",
                JSON if at(MODELS).is_none() => {
                    "a filter that refuses such bodies, such as envoy.filters.http.ai_protocol_manager, has to stand in the list"
                }
                _ => continue,
            };
            found.push(format!(
                "warning: {field}: http_filters[{place}] ({}) takes the last of fields that a body has twice, and an upstream may take the first; {remedy}",
                name(filter)
            ));
        }
        let parsers: Vec<&str> = self.parsers().flat_map(|(.., written)| written).collect();
        if let Some(Read { field, namespace }) =
            read.iter().find(|read| is_known(read.namespace) && !parsers.contains(&read.namespace))
        {
            found.push(format!(
                "warning: {field}: no filter of this list writes the metadata {namespace}; put the one that does before Weir"
            ));
        }
        if let (Some(models), Some(decompressor)) = (at(MODELS), at(DECOMPRESSOR))
            && models < decompressor
            && self
                .filters
                .get(models)
                .is_some_and(|filter| has(filter, "response_handling", "responseHandling"))
            && self.filters.get(decompressor).is_some_and(decompresses_responses)
        {
            found.push(format!(
                "warning: http_filters[{decompressor}] ({}) decompresses responses before http_filters[{models}] reads them: in Envoy 1.40 \
                 such a response never ends; remove accept-encoding from requests instead",
                self.filters.get(decompressor).map(name).unwrap_or_default()
            ));
        }
        found
    }

    /// The namespaces of metadata that are of a body.
    pub fn namespaces(&self) -> Vec<&'a str> {
        self.parsers().flat_map(|(.., written)| written).collect()
    }
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
    found.extend(evaded(json, is_of_body));
    found
}

/// Warns of conditions on a body that no request without a parsed body meets, if no rule is for such requests.
fn evaded(json: &Value, is_of_body: impl Fn(&str) -> bool) -> Option<String> {
    let rules: Vec<Vec<(&str, bool)>> =
        json["rules"].as_array().into_iter().flatten().map(|rule| conditions(rule).collect()).collect();
    // A rule whose conditions on the metadata all hold without it.
    let is_closed = |namespace: &str| {
        rules.iter().any(|conditions| {
            let mut of_namespace = conditions.iter().filter(|(other, _)| *other == namespace).peekable();
            of_namespace.peek().is_some() && of_namespace.all(|(_, meets_nothing)| *meets_nothing)
        })
    };
    let (at, namespace) = rules.iter().enumerate().find_map(|(at, conditions)| {
        let mut evaded = conditions.iter().filter(|(_, meets_nothing)| !meets_nothing);
        let (namespace, _) = evaded.find(|(namespace, _)| is_of_body(namespace) && !is_closed(namespace))?;
        Some((at, namespace))
    })?;
    Some(format!(
        "warning: rules[{at}].match.metadata: a request whose body is not parsed, such as a batch, a large or a compressed one, does not \
         meet it; add a rule with present: false on metadata of {namespace} for such requests"
    ))
}

/// The conditions of a rule on metadata: the namespace, and whether the condition holds without the metadata.
fn conditions(rule: &Value) -> impl Iterator<Item = (&str, bool)> {
    let conditions = rule["match"]["metadata"].as_array().into_iter().flatten();
    conditions.filter_map(|condition| Some((namespace_of(condition)?, meets_nothing(condition))))
}

/// Whether a condition holds for a request without the metadata.
fn meets_nothing(condition: &Value) -> bool {
    (condition["present"] == false) != (condition["invert"] == true)
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

fn one_or_list(value: &Value) -> &[Value] {
    value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice)
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

fn is_true(config: &Value, snake: &str, camel: &str) -> bool {
    field(config, snake, camel).and_then(Value::as_bool) == Some(true)
}

fn decompresses_responses(filter: &Value) -> bool {
    let direction = config_of(filter)
        .and_then(|config| field(config, "response_direction_config", "responseDirectionConfig"))
        .and_then(|direction| field(direction, "common_config", "commonConfig"))
        .and_then(|common| common.get("enabled"));
    let default = direction.and_then(|enabled| field(enabled, "default_value", "defaultValue"));
    default.and_then(Value::as_bool) != Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const BY_TOOL: &str = r#"{"metadata": {"filter": "envoy.filters.http.mcp", "key": ["params", "name"]}}"#;

    fn config(rules: &Value) -> Config {
        let rules = rules.as_array().unwrap().iter().enumerate().map(|(at, rule)| {
            let mut rule = rule.clone();
            let base = json!({ "name": format!("r{at}"), "limit": 9, "window": "1m", "identifier": { "header": "a" } });
            for (name, value) in base.as_object().unwrap() {
                rule.as_object_mut().unwrap().entry(name.clone()).or_insert(value.clone());
            }
            rule
        });
        let text =
            json!({ "aggregator": { "cluster": "c" }, "rules": rules.collect::<Vec<_>>() }).to_string();
        Config::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn rules_that_a_body_evades_are_warned_of() {
        let listed = |more: Value| {
            let mut part: Value = serde_json::from_str(BY_TOOL).unwrap();
            part["one_of"] = json!(["search"]);
            part.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            part
        };
        let by_tool: Value = serde_json::from_str(BY_TOOL).unwrap();
        let own = json!({ "metadata": { "filter": "acme", "key": "model" } });
        let call = json!({ "metadata": [{ "filter": "envoy.filters.http.mcp", "key": "method", "exact": "tools/call" }] });
        let none = json!({ "metadata": [{ "filter": "envoy.filters.http.mcp", "key": "method", "present": false }] });
        let of_method = |more: Value| {
            let mut condition = json!({ "filter": "envoy.filters.http.mcp", "key": "method" });
            condition.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            condition
        };
        let not = of_method(json!({ "exact": "tools/call", "invert": true }));
        let not_call = json!({ "metadata": [not] });
        let other = json!({ "metadata": [not, of_method(json!({ "present": true }))] });
        for (rules, namespaces, parts) in [
            (
                json!([{ "identifier": by_tool, "on_missing_identifier": "deny" }]),
                &[][..],
                &["list the values in one_of"][..],
            ),
            (json!([{ "identifier": listed(json!({})), "on_missing_identifier": "deny" }]), &[], &[]),
            (
                json!([{ "identifier": listed(json!({})), "on_missing_identifier": "skip" }]),
                &[],
                &["rules[0].on_missing_identifier: skip"],
            ),
            (
                json!([{ "identifier": by_tool, "on_missing_identifier": "skip", "shadow_mode": true }]),
                &[],
                &[],
            ),
            (
                json!([{ "identifier": listed(json!({ "on_unlisted": "skip" })) }]),
                &[],
                &["on_unlisted: skip allows every request with a name"],
            ),
            (json!([{ "identifier": own, "on_missing_identifier": "deny" }]), &[], &[]),
            (
                json!([{ "identifier": own, "on_missing_identifier": "deny" }]),
                &["acme"],
                &["a client writes model into its body"],
            ),
            (json!([{}, { "match": call }]), &[], &["rules[1].match.metadata"]),
            (json!([{ "match": call }, { "match": none }]), &[], &[]),
            (json!([{ "match": call }, { "match": other }]), &[], &["rules[0].match.metadata"]),
            (json!([{ "match": call }, { "match": not_call }]), &[], &[]),
        ] {
            let found = warnings(&config(&rules), &json!({ "rules": rules }), namespaces);
            assert_eq!(found.len(), parts.len(), "{rules} {found:?}");
            for (warning, part) in found.iter().zip(parts) {
                assert!(warning.starts_with("warning: rules[") && warning.contains(part), "{warning}");
            }
        }
    }

    fn plugin(at: usize) -> PluginConfig {
        PluginConfig {
            path: format!("static_resources.listeners[0].http_filters[{at}].typed_config.config"),
            json: String::new(),
            module: None,
            variables: Vec::new(),
        }
    }

    /// A list with these filters, of which `weir` is the plugin.
    fn document(filters: &[Value]) -> (Value, PluginConfig) {
        let own = filters.iter().position(|filter| filter == "weir").unwrap();
        let filters: Vec<Value> = filters
            .iter()
            .map(|filter| match filter.as_str() {
                Some("weir") => json!({ "name": "weir" }),
                Some(kind) => of_type(kind, json!({})),
                None => filter.clone(),
            })
            .collect();
        (json!({ "static_resources": { "listeners": [{ "http_filters": filters }] } }), plugin(own))
    }

    fn of_type(kind: &str, mut config: Value) -> Value {
        config["@type"] = format!("type.googleapis.com/x.v3.{kind}").into();
        json!({ "name": kind.to_lowercase(), "typed_config": config })
    }

    fn to_metadata(namespace: &str) -> Value {
        let rule = json!({ "selectors": [{ "key": "model" }], "on_present": { "metadata_namespace": namespace, "key": "model" } });
        of_type(JSON, json!({ "request_rules": { "rules": [rule] } }))
    }

    #[test]
    fn a_parser_after_the_plugin_is_an_error() {
        let part: Value = serde_json::from_str(BY_TOOL).unwrap();
        let by_tool = json!({ "rules": [{ "identifier": [{ "header": "a" }, part] }] });
        let by_model = json!({ "rules": [{ "match": { "metadata": [{ "filter": "acme", "key": "model", "exact": "a" }] } }] });
        let by_tokens = json!({ "rules": [{ "cost": { "request": { "metadata": { "typed": OF_MODELS[0], "key": "estimated_input_tokens" } } } }] });
        let rpc = json!({ "rules": [{ "response": { "format": "json_rpc" } }] });
        let weir = || json!("weir");
        for (rules, filters, late) in [
            (&by_tool, vec![json!(MCP), weir()], None),
            (
                &by_tool,
                vec![weir(), json!(MCP)],
                Some(("[1]", "mcp writes the metadata envoy.filters.http.mcp of rules[0].identifier")),
            ),
            (&by_tool, vec![json!(MCP), weir(), json!(MCP)], None),
            (&by_model, vec![weir(), to_metadata("acme")], Some(("[1]", "of rules[0].match.metadata"))),
            (&by_model, vec![to_metadata("acme"), weir()], None),
            (&by_model, vec![weir(), to_metadata("other")], None),
            (
                &by_tokens,
                vec![weir(), json!("Lua"), json!(MODELS)],
                Some(("[2]", "of rules[0].cost.request.metadata")),
            ),
            (&rpc, vec![weir(), json!(MCP)], Some(("[1]", "of rules[0].response.format"))),
        ] {
            let (document, plugin) = document(&filters);
            let found = Chain::of(&document, &plugin).unwrap().late_parsers(rules);
            assert_eq!(found.len(), usize::from(late.is_some()), "{filters:?} {found:?}");
            if let Some((place, part)) = late {
                assert_eq!(found[0].0, format!("static_resources.listeners[0].http_filters{place}"));
                assert!(found[0].1.contains(part), "{found:?}");
            }
        }
    }

    #[test]
    fn filters_that_read_a_body_otherwise_are_warned_of() {
        let part: Value = serde_json::from_str(BY_TOOL).unwrap();
        let by_tool = json!({ "rules": [{ "identifier": part }] });
        let by_model =
            json!({ "rules": [{ "identifier": { "metadata": { "filter": "acme", "key": "model" } } }] });
        let strict = || of_type(MCP, json!({ "reject_duplicate_keys": true }));
        let models = || of_type(MODELS, json!({ "response_handling": {} }));
        let off = json!({ "common_config": { "enabled": { "default_value": false } } });
        let weir = || json!("weir");
        for (rules, filters, parts) in [
            (&by_tool, vec![json!(MCP), weir()], &["set reject_duplicate_keys: true"][..]),
            (&by_tool, vec![strict(), weir()], &[]),
            (&by_tool, vec![weir()], &["no filter of this list writes the metadata envoy.filters.http.mcp"]),
            (
                &by_model,
                vec![to_metadata("acme"), weir()],
                &["ai_protocol_manager, has to stand in the list"],
            ),
            (&by_model, vec![to_metadata("acme"), json!(MODELS), weir()], &[]),
            (&by_model, vec![weir()], &[]),
            (
                &by_model,
                vec![models(), json!(DECOMPRESSOR), weir()],
                &["http_filters[1] (decompressor) decompresses responses"],
            ),
            (&by_model, vec![json!(DECOMPRESSOR), models(), weir()], &[]),
            (&by_model, vec![json!(MODELS), json!(DECOMPRESSOR), weir()], &[]),
            (
                &by_model,
                vec![models(), of_type(DECOMPRESSOR, json!({ "response_direction_config": off })), weir()],
                &[],
            ),
        ] {
            let (document, plugin) = document(&filters);
            let found = Chain::of(&document, &plugin).unwrap().warnings(rules);
            assert_eq!(found.len(), parts.len(), "{filters:?} {found:?}");
            assert!(found.iter().zip(parts).all(|(warning, part)| warning.contains(part)), "{found:?}");
        }
    }
}
