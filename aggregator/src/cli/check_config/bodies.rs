//! Rules by fields of the body, which filters of Envoy parse and leave in metadata: what clients evade or invent, and filters that stand
//! where the metadata is not there yet.

use super::order::{filters_of, kind, list_of, manager_of, name, one_or_list};
use serde_json::{Value, json};
use weir_core::model::exact::Algorithm;
use weir_core::rules::{
    Config, Cost, Lines, Live, Missing, PluginConfig, Request, Rule, Scratch, Share, field,
};

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
/// The type of a route's setting that disables a filter.
const SWITCH: &str = "FilterConfig";

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
    /// What contains the list: a connection manager.
    manager: Option<&'a Value>,
}

impl<'a> Chain<'a> {
    /// The list of filters that has the plugin.
    pub fn of(document: &'a Value, plugin: &'a PluginConfig) -> Option<Chain<'a>> {
        let (filters, own) = filters_of(document, &plugin.path)?;
        let (path, _) = list_of(&plugin.path)?;
        Some(Chain { filters, own, path, manager: manager_of(document, &plugin.path) })
    }

    /// The parsers of bodies in the list: place, filter, and the namespaces that it writes.
    fn parsers(&self) -> impl Iterator<Item = (usize, &'a Value, Vec<&'a str>)> {
        let enabled = self.filters.iter().enumerate().filter(|(_, filter)| filter["disabled"] != true);
        enabled.filter_map(|(at, filter)| {
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
        found.extend(self.changed_by_routes(&read));
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

    /// Warns of routes that disable or override a parser, for each parser of the first one.
    fn changed_by_routes(&self, read: &[Read<'_>]) -> Vec<String> {
        let mut settings = Vec::new();
        for name in ["route_config", "routeConfig"] {
            let Some(routes) = self.manager.and_then(|manager| manager.get(name)) else { continue };
            settings_of_routes(routes, name, &mut settings);
        }
        let own = self.filters.get(self.own).map(name).unwrap_or_default();
        // Where Weir is disabled, nothing is limited anyway.
        settings.retain(|(_, filters)| filters[own]["disabled"] != true);
        let parsers = self.parsers().filter(|(at, ..)| *at < self.own);
        let changed = parsers.filter_map(|(at, filter, written)| {
            let Read { field, namespace } = read.iter().find(|read| written.contains(&read.namespace))?;
            let (route, change) = settings.iter().find_map(|(route, filters)| {
                Some((route, change_of(filters.get(name(filter))?, filter, namespace)?))
            })?;
            Some(format!(
                "warning: {field}: {route} {change} http_filters[{at}] ({}), so that requests of that route may lack the metadata {namespace}; \
                 deny requests without it there",
                name(filter)
            ))
        });
        changed.collect()
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
    found.extend(evaded(config, json, is_of_body));
    found
}

/// Warns of conditions on a body that no request without a parsed body meets, if no rule is a lock for such requests.
fn evaded(config: &Config, json: &Value, is_of_body: impl Fn(&str) -> bool) -> Option<String> {
    let written = json["rules"].as_array().into_iter().flatten();
    let rules: Vec<RuleOfBody<'_>> =
        config.rules.iter().zip(written).map(|(rule, json)| RuleOfBody { rule, json }).collect();
    let is_closed = |evaded: &RuleOfBody<'_>, namespace: &str| {
        evaded.methods().iter().all(|method| rules.iter().any(|lock| lock.locks(evaded, namespace, method)))
    };
    let of_body = rules.iter().enumerate().filter(|(_, one)| !one.rule.shadow);
    let (at, namespace) = of_body.into_iter().find_map(|(at, one)| {
        let mut evaded = conditions(one.json).filter(|(_, meets_nothing)| !meets_nothing);
        let (namespace, _) =
            evaded.find(|(namespace, _)| is_of_body(namespace) && !is_closed(one, namespace))?;
        Some((at, namespace))
    })?;
    Some(format!(
        "warning: rules[{at}].match.metadata: a request whose body is not parsed, such as a batch, a large or a compressed one, does not \
         meet it; add a rule with present: false on metadata of {namespace} that is enforced for all such requests, with no higher limit"
    ))
}

/// A rule, and how it is written.
struct RuleOfBody<'a> {
    rule: &'a Rule,
    json: &'a Value,
}

impl<'a> RuleOfBody<'a> {
    /// The methods of requests with a body that it is for.
    fn methods(&self) -> Vec<&'a str> {
        let methods = &self.json["match"]["methods"];
        let methods: Vec<&str> = one_or_list(methods).iter().filter_map(Value::as_str).collect();
        if methods.is_empty() { Vec::from(["POST"]) } else { methods }
    }

    /// Whether it limits all requests of this method that `evaded` would apply to if the metadata were there, and not by less.
    fn locks(&self, evaded: &RuleOfBody<'_>, namespace: &str, method: &str) -> bool {
        let mut of_namespace = conditions(self.json).filter(|(other, _)| *other == namespace).peekable();
        let is_for_unparsed = of_namespace.peek().is_some() && of_namespace.all(|(_, nothing)| nothing);
        is_for_unparsed && self.is_enforced(evaded.rule) && self.is_for_all_of(evaded, namespace, method)
    }

    /// Whether it denies at the latest when `evaded` would.
    fn is_enforced(&self, evaded: &Rule) -> bool {
        let Rule { limit, duration_ms, cost, shadow, enforced, missing, algorithm, .. } = self.rule;
        let rate = |limit: u64, other_ms: u64| u128::from(limit) * u128::from(other_ms);
        let is_ledger =
            [algorithm, &evaded.algorithm].iter().any(|one| matches!(one, Algorithm::Ledger { .. }));
        let is_no_higher = rate(*limit, evaded.duration_ms) <= rate(evaded.limit, *duration_ms);
        let can_lack = self.rule.left_out().is_some() || self.rule.metadata_parts().next().is_some();
        let skips = *missing == Missing::Skip && can_lack;
        !shadow
            && *enforced == Share::ALL
            && !matches!(cost, Cost::Fixed(0))
            && !skips
            && (is_ledger || is_no_higher)
    }

    /// Whether its conditions, but those on the metadata, hold for all requests of this method that meet those of `evaded`.
    fn is_for_all_of(&self, evaded: &RuleOfBody<'_>, namespace: &str, method: &str) -> bool {
        let (own, other) = (&self.json["match"], &evaded.json["match"]);
        let own = own.as_object().into_iter().flatten();
        own.filter(|(field, _)| *field != "methods").all(|(field, wanted)| {
            let others = one_or_list(&other[field]);
            match field.as_str() {
                "metadata" => one_or_list(wanted)
                    .iter()
                    .all(|one| namespace_of(one) == Some(namespace) || others.contains(one)),
                "headers" => {
                    one_or_list(wanted).iter().all(|one| others.contains(one) || is_of_method(one, method))
                }
                "host" => {
                    others != [Value::Null] && others.iter().all(|host| one_or_list(wanted).contains(host))
                }
                _ => *wanted == other[field],
            }
        }) && self.is_for_method(method)
    }

    fn is_for_method(&self, method: &str) -> bool {
        let methods = &self.json["match"]["methods"];
        methods.is_null() || one_or_list(methods).iter().any(|one| one == method)
    }
}

/// Whether a condition on a header holds for every request of this method.
fn is_of_method(condition: &Value, method: &str) -> bool {
    let rule = json!({
        "name": "method", "match": { "headers": [condition] }, "identifier": { "constant": "all" }, "limit": 1, "window": "1m",
    });
    let config = json!({ "aggregator": { "cluster": "c" }, "rules": [rule] }).to_string();
    let is_name = condition["name"].as_str().is_some_and(|name| name.eq_ignore_ascii_case(":method"));
    is_name
        && Config::parse(config.as_bytes()).is_ok_and(|config| {
            let mut scratch = Scratch::default();
            config.resolve(&OfMethod(method), &Live::default(), &mut scratch).len() == 1
        })
}

/// A request that has a method, and nothing else.
struct OfMethod<'a>(&'a str);

impl Request for OfMethod<'_> {
    fn header(&self, name: &[u8]) -> Lines<'_> {
        if name == b":method" { Lines::One(self.0.as_bytes()) } else { Lines::None }
    }

    fn for_each_header(&self, name: &[u8], line: &mut dyn FnMut(&[u8])) {
        if let Lines::One(value) = self.header(name) {
            line(value);
        }
    }

    fn property(&self, _: &[u8], _: &mut Vec<u8>) -> bool {
        false
    }
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

/// The settings of filters by virtual hosts, routes and clusters of routes, each with its path.
fn settings_of_routes<'a>(value: &'a Value, path: &str, found: &mut Vec<(String, &'a Value)>) {
    match value {
        Value::Object(fields) => {
            if let Some(settings) = field(value, "typed_per_filter_config", "typedPerFilterConfig") {
                found.push((path.to_owned(), settings));
            }
            fields
                .iter()
                .for_each(|(name, inner)| settings_of_routes(inner, &format!("{path}.{name}"), found));
        }
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items.for_each(|(at, inner)| settings_of_routes(inner, &format!("{path}[{at}]"), found));
        }
        _ => {}
    }
}

/// What a route's setting does to a parser that writes this namespace, if that may leave requests without it.
fn change_of(setting: &Value, filter: &Value, namespace: &str) -> Option<&'static str> {
    if setting["disabled"] == true {
        return Some("disables");
    }
    let is_switch = kind(&json!({ "typed_config": setting })) == SWITCH;
    let config = if is_switch { setting.get("config")? } else { setting };
    match kind(filter) {
        MCP => Some("overrides"),
        JSON => {
            let of_route = json!({ "typed_config": config });
            (!written(&of_route).contains(&namespace)).then_some("overrides")
        }
        // A route names its protocol so.
        _ => None,
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

    /// Whether these rules are warned of so, and of nothing else.
    fn check(rules: &Value, namespaces: &[&str], parts: &[&str]) {
        let found = warnings(&config(rules), &json!({ "rules": rules }), namespaces);
        assert_eq!(found.len(), parts.len(), "{rules} {found:?}");
        for (warning, part) in found.iter().zip(parts) {
            assert!(warning.starts_with("warning: rules[") && warning.contains(part), "{warning}");
        }
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
            check(&rules, namespaces, parts);
        }
    }

    #[test]
    fn a_rule_is_a_lock_only_for_what_it_limits() {
        let of_method = |test: Value| {
            let mut condition = json!({ "filter": "envoy.filters.http.mcp", "key": "method" });
            condition.as_object_mut().unwrap().extend(test.as_object().unwrap().clone());
            json!({ "metadata": [condition] })
        };
        let call = of_method(json!({ "exact": "tools/call" }));
        let none = of_method(json!({ "present": false }));
        let evaded = &["rules[0].match.metadata"][..];
        let both = |conditions: &Value, more: Value| {
            let mut conditions = conditions.clone();
            conditions.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            conditions
        };
        let with = |conditions: &Value, more: Value| both(&json!({ "match": conditions }), more);
        let on_header = |name: &str| json!({ "headers": [{ "name": name, "present": true }] });
        for (rules, parts) in [
            (json!([{ "match": call }, with(&none, json!({ "shadow_mode": true }))]), evaded),
            (json!([{ "match": call }, with(&none, json!({ "enforce_percent": 50 }))]), evaded),
            (json!([{ "match": call }, with(&none, json!({ "limit": 10 }))]), evaded),
            (json!([{ "match": call }, with(&none, json!({ "limit": 10, "window": "2m" }))]), &[]),
            (json!([{ "match": call }, with(&none, json!({ "cost": 0 }))]), evaded),
            (json!([{ "match": call }, with(&none, json!({ "on_missing_identifier": "skip" }))]), evaded),
            (json!([{ "match": call }, { "match": both(&none, json!({ "methods": "GET" })) }]), evaded),
            (
                json!([{ "match": call }, { "match": both(&none, json!({ "methods": ["GET", "POST"] })) }]),
                &[],
            ),
            (
                json!([{ "match": both(&call, json!({ "methods": ["POST", "PUT"] })) }, { "match": both(&none, json!({ "methods": "POST" })) }]),
                evaded,
            ),
            (
                json!([
                    { "match": both(&call, json!({ "methods": ["POST", "PUT"] })) },
                    { "match": both(&none, json!({ "methods": "POST" })) },
                    { "match": both(&none, json!({ "headers": [{ "name": ":Method", "exact": "PUT" }] })) },
                ]),
                &[],
            ),
            (json!([{ "match": call }, { "match": both(&none, on_header("x-a")) }]), evaded),
            (
                json!([{ "match": both(&call, on_header("x-a")) }, { "match": both(&none, on_header("x-a")) }]),
                &[],
            ),
            (
                json!([{ "match": call }, { "match": both(&none, json!({ "path": { "prefix": "/a" } })) }]),
                evaded,
            ),
            (
                json!([{ "match": both(&call, json!({ "host": "a.com" })) }, { "match": both(&none, json!({ "host": ["a.com", "b.com"] })) }]),
                &[],
            ),
            (json!([{ "match": call }, { "match": both(&none, json!({ "host": "a.com" })) }]), evaded),
            (json!([with(&call, json!({ "shadow_mode": true }))]), &[]),
        ] {
            check(&rules, &[], parts);
        }
    }

    fn plugin(at: usize) -> PluginConfig {
        PluginConfig {
            path: format!("static_resources.listeners[0].http_filters[{at}].typed_config.config"),
            json: String::new(),
            module: None,
            variables: Vec::new(),
            is_native: false,
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
    fn routes_that_change_a_parser_are_warned_of() {
        let part: Value = serde_json::from_str(BY_TOOL).unwrap();
        let by_tool = json!({ "rules": [{ "identifier": part }] });
        let by_model =
            json!({ "rules": [{ "identifier": { "metadata": { "filter": "acme", "key": "model" } } }] });
        let strict = || of_type(MCP, json!({ "reject_duplicate_keys": true }));
        let off =
            json!({ "@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "disabled": true });
        let other = json!({ "@type": "type.googleapis.com/x.v3.McpOverride" });
        let on = json!({ "@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig" });
        let json_of = |namespace: &str| to_metadata(namespace)["typed_config"].clone();
        let switched = |config: &Value| json!({ "@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "config": config });
        for (rules, parser, setting, change) in [
            (&by_tool, strict(), json!({ "mcp": off }), Some("disables http_filters[0] (mcp)")),
            (&by_tool, strict(), json!({ "mcp": off, "weir": off }), None),
            (&by_tool, strict(), json!({ "mcp": on }), None),
            (&by_tool, strict(), json!({ "mcp": other }), Some("overrides http_filters[0]")),
            (&by_tool, strict(), json!({ "lua": off }), None),
            (&by_model, strict(), json!({ "mcp": off }), None),
            (&by_model, to_metadata("acme"), json!({ "jsontometadata": json_of("acme") }), None),
            (&by_model, to_metadata("acme"), json!({ "jsontometadata": json_of("b") }), Some("overrides")),
            (
                &by_model,
                to_metadata("acme"),
                json!({ "jsontometadata": switched(&json_of("b")) }),
                Some("overrides"),
            ),
        ] {
            let (mut document, plugin) = document(&[parser, json!("weir")]);
            let route = json!({ "match": { "prefix": "/" }, "typed_per_filter_config": setting });
            document["static_resources"]["listeners"][0]["route_config"] =
                json!({ "virtual_hosts": [{ "routes": [{ "match": {} }, route] }] });
            let found = Chain::of(&document, &plugin).unwrap().warnings(rules);
            let of_routes: Vec<_> = found.iter().filter(|one| one.contains("route_config")).collect();
            assert_eq!(of_routes.len(), usize::from(change.is_some()), "{setting} {found:?}");
            if let (Some(change), [found]) = (change, &of_routes[..]) {
                assert!(
                    found.contains(&format!("route_config.virtual_hosts[0].routes[1] {change}")),
                    "{found}"
                );
            }
        }
        let off = json!({ "name": "mcp", "disabled": true, "typed_config": strict()["typed_config"] });
        let (document, plugin) = document(&[off, json!("weir")]);
        let found = Chain::of(&document, &plugin).unwrap().warnings(&by_tool);
        assert!(found[0].contains("no filter of this list writes"), "{found:?}");
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
