//! The filters around a plugin: where those stand that parse bodies, and what they leave open.

use super::super::order::{filters_of, kind, list_of, manager_of, name};
use super::answers;
use super::parsers::{JSON, MCP, MODELS, Read, config_of, has, is_known, read, written};
use serde_json::{Value, json};
use weir_core::rules::{PluginConfig, field};

pub(super) const DECOMPRESSOR: &str = "Decompressor";
/// The type of a route's setting that disables a filter.
const SWITCH: &str = "FilterConfig";

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
        found.extend(answers::warnings(json, self.filters, self.own));
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
