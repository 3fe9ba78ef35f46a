//! What somebody wrote or pasted: the filter's own configuration, or a whole Envoy configuration with Weir's in it.
//!
//! Only looks; reading what is found is [`Config::parse`](super::Config::parse), and reading YAML is the caller's.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::Display;
use serde_json::Value;

/// Fields at the top of Envoy's configuration files, of which one is enough to tell.
const ENVOY_FIELDS: [&str; 6] =
    ["static_resources", "dynamic_resources", "resources", "filter_chains", "http_filters", "typed_config"];

const WASM_FILTER: &str = "envoy.extensions.filters.http.wasm.v3.Wasm";
const TYPED_STRUCT: &str = ".TypedStruct";
const OUR_NAME: &str = "weir";
/// Names of fields are shortened to this many characters in a path.
const NAME_CHARS_MAX: usize = 64;

/// What a text holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// The filter's own configuration, or what is to be judged as one because it is nothing else.
    Filter,
    /// An Envoy configuration or a part of one; never empty.
    Envoy(Vec<PluginConfig>),
}

/// Tells what `text` is, where `parsed` is what a reader of YAML, and so of JSON, made of it. Otherwise says why it is nothing.
pub fn tell_written<E: Display>(text: &[u8], parsed: &Result<Value, E>) -> Result<Written, String> {
    let value = match parsed {
        Ok(value) => value,
        // It is plainly meant to be JSON, and the filter's parser says what is wrong with it as that.
        Err(_) if text.trim_ascii_start().starts_with(b"{") => return Ok(Written::Filter),
        Err(error) => return Err(format!("this is neither JSON nor YAML: {error}")),
    };
    let plugins = find_plugin_configs(value);
    if !plugins.is_empty() {
        return Ok(Written::Envoy(plugins));
    }
    if ENVOY_FIELDS.iter().any(|field| value.get(field).is_some()) {
        return Err("this Envoy configuration has no Weir filter; expected an HTTP filter of type \
                    envoy.extensions.filters.http.wasm.v3.Wasm whose name, root_id or vm_id contains \"weir\""
            .to_string());
    }
    Ok(Written::Filter)
}

/// One configuration of the filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginConfig {
    /// Where in the Envoy configuration: `static_resources.listeners[0]…configuration.value`.
    pub path: String,
    /// The configuration's text, as the filter gets it; empty when the plugin has none.
    pub json: String,
    /// The file or address of the module, where the plugin names one.
    pub module: Option<String>,
    /// The environment variables that Envoy shows to the plugin.
    pub variables: Vec<String>,
}

/// Names of the clusters that an Envoy configuration brings with it; `None` where it lists none, or may hear of more.
pub fn static_clusters(value: &Value) -> Option<Vec<&str>> {
    let dynamic = either(value, "dynamic_resources", "dynamicResources");
    let elsewhere = [("cds_config", "cdsConfig"), ("cds_resources_locator", "cdsResourcesLocator")];
    if dynamic.is_some_and(|dynamic| elsewhere.iter().any(|(a, b)| either(dynamic, a, b).is_some())) {
        return None;
    }
    let clusters = either(value, "static_resources", "staticResources")?.get("clusters")?.as_array()?;
    let names: Vec<&str> = clusters.iter().filter_map(|cluster| cluster.get("name")?.as_str()).collect();
    (!names.is_empty()).then_some(names)
}

/// Finds the configurations of Weir's plugins in any JSON value, in its order.
///
/// A plugin is Weir's when its name, root or VM id contains `weir`, or when its configuration has `rules`.
pub fn find_plugin_configs(value: &Value) -> Vec<PluginConfig> {
    let mut found = Vec::new();
    let mut steps = Vec::from([Step { from: 0, to: Child::Root }]);
    // A stack of its own: the depth of the value is the writer's.
    let mut pending = Vec::from([(0, value)]);
    while let Some((step, value)) = pending.pop() {
        if let Some(plugin) = plugin_of(value) {
            found.extend(weir_config(|| path_to(&steps, step), plugin));
        }
        // The first child is to be taken first.
        for (to, child) in children(value).into_iter().rev() {
            pending.push((steps.len(), child));
            steps.push(Step { from: step, to });
        }
    }
    found
}

/// The values in a value that hold others in turn, in its order.
fn children(value: &Value) -> Vec<(Child<'_>, &Value)> {
    let all: Vec<_> = match value {
        Value::Object(fields) => {
            fields.iter().map(|(name, child)| (Child::Field(name.as_str()), child)).collect()
        }
        Value::Array(items) => {
            items.iter().enumerate().map(|(index, child)| (Child::Item(index), child)).collect()
        }
        _ => Vec::new(),
    };
    all.into_iter().filter(|(_, child)| child.is_object() || child.is_array()).collect()
}

/// A step from one value into the next: the values on the way share theirs, so that a long name on top of many costs no more than
/// its own length.
struct Step<'a> {
    /// The step before; the root's own for the root.
    from: usize,
    to: Child<'a>,
}

enum Child<'a> {
    Root,
    Field(&'a str),
    Item(usize),
}

/// The path that ends with a step.
fn path_to(steps: &[Step<'_>], last: usize) -> String {
    let mut way = Vec::new();
    let mut at = last;
    while let Some(Step { from, to }) = steps.get(at).filter(|step| !matches!(step.to, Child::Root)) {
        way.push(to);
        at = *from;
    }
    way.iter().rev().fold(String::new(), |path, to| match to {
        Child::Root => path,
        Child::Field(name) => join(&path, &shown(name)),
        Child::Item(index) => format!("{path}[{index}]"),
    })
}

/// A field's name as a path has it: shortened where it is longer than any that means something.
fn shown(name: &str) -> String {
    let mut characters = name.chars();
    let mut shown: String = characters.by_ref().take(NAME_CHARS_MAX).collect();
    if characters.next().is_some() {
        shown.push('…');
    }
    shown
}

/// The way to a plugin's configuration, and the plugin: `config` of a Wasm filter, typed or as a typed struct.
fn plugin_of(filter: &Value) -> Option<(&'static str, &Value)> {
    let kind = filter.get("@type")?.as_str()?;
    if kind.ends_with(WASM_FILTER) {
        return Some(("config", filter.get("config")?));
    }
    let typed = either(filter, "type_url", "typeUrl")?.as_str()?;
    if kind.ends_with(TYPED_STRUCT) && typed.ends_with(WASM_FILTER) {
        return Some(("value.config", filter.get("value")?.get("config")?));
    }
    None
}

fn weir_config(path: impl Fn() -> String, (way, plugin): (&str, &Value)) -> Option<PluginConfig> {
    let configuration = plugin.get("configuration");
    let (part, json) = match configuration {
        None | Some(Value::Null) => ("configuration", String::new()),
        Some(Value::String(text)) => ("configuration", text.clone()),
        Some(any) => match any.get("value") {
            Some(Value::String(text)) => ("configuration.value", text.clone()),
            Some(object) => ("configuration.value", object.to_string()),
            // Some write the message's fields in place of its Any form.
            None => ("configuration", any.to_string()),
        },
    };
    let ours = is_named_ours(plugin) || has_rules(&json);
    ours.then(|| PluginConfig {
        path: join(&join(&path(), way), part),
        json,
        module: module_of(plugin),
        variables: variables_of(plugin),
    })
}

/// Those of Envoy's own environment, and those that the configuration sets.
fn variables_of(plugin: &Value) -> Vec<String> {
    let vm = either(plugin, "vm_config", "vmConfig");
    let Some(shown) = vm.and_then(|vm| either(vm, "environment_variables", "environmentVariables")) else {
        return Vec::new();
    };
    let host = either(shown, "host_env_keys", "hostEnvKeys").and_then(Value::as_array);
    let set = either(shown, "key_values", "keyValues").and_then(Value::as_object);
    let host = host.into_iter().flatten().filter_map(|name| name.as_str().map(String::from));
    host.chain(set.into_iter().flat_map(|set| set.keys().cloned())).collect()
}

fn module_of(plugin: &Value) -> Option<String> {
    let code = either(plugin, "vm_config", "vmConfig")?.get("code")?;
    let file = code.get("local").and_then(|local| local.get("filename"));
    let address = || either(code.get("remote")?, "http_uri", "httpUri")?.get("uri");
    file.or_else(address)?.as_str().map(String::from)
}

fn is_named_ours(plugin: &Value) -> bool {
    let vm_id = either(plugin, "vm_config", "vmConfig").and_then(|vm| either(vm, "vm_id", "vmId"));
    let names = [plugin.get("name"), either(plugin, "root_id", "rootId"), vm_id];
    let mut names = names.into_iter().flatten().filter_map(Value::as_str);
    names.any(|name| name.to_ascii_lowercase().contains(OUR_NAME))
}

fn has_rules(json: &str) -> bool {
    serde_json::from_str::<Value>(json).is_ok_and(|config| config.get("rules").is_some())
}

/// A field by its name in protobuf, or by that in protobuf's JSON.
fn either<'a>(value: &'a Value, snake: &str, camel: &str) -> Option<&'a Value> {
    value.get(snake).or_else(|| value.get(camel))
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_string() } else { format!("{path}.{name}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(value: Value, expected: &[(&str, &str)]) {
        let found = find_plugin_configs(&value);
        let found: Vec<(&str, &str)> =
            found.iter().map(|one| (one.path.as_str(), one.json.as_str())).collect();
        assert_eq!(found, expected);
    }

    fn wasm(plugin: Value) -> Value {
        json!({"@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm", "config": plugin})
    }

    #[test]
    fn what_is_written_is_told() {
        let told = |text: &str, parsed: Result<Value, &str>| tell_written(text.as_bytes(), &parsed);
        assert_eq!(told("{}", Ok(json!({"rules": []}))), Ok(Written::Filter));
        assert_eq!(told("", Ok(json!(null))), Ok(Written::Filter));
        assert_eq!(told(" {\"rules\": [", Err("it ends")), Ok(Written::Filter), "plainly meant to be JSON");
        let error = told("a: b: c", Err("no map here")).unwrap_err();
        assert_eq!(error, "this is neither JSON nor YAML: no map here");
        for field in ENVOY_FIELDS {
            let error = told("", Ok(json!({field: {}}))).unwrap_err();
            assert!(error.starts_with("this Envoy configuration has no Weir filter; expected"), "{error}");
        }
        let filter = json!([{"name": "weir", "typed_config": wasm(json!({"name": "weir"}))}]);
        let path = "[0].typed_config.config.configuration".to_string();
        let found = Written::Envoy(Vec::from([PluginConfig {
            path,
            json: String::new(),
            module: None,
            variables: Vec::new(),
        }]));
        assert_eq!(told("", Ok(filter)), Ok(found), "a list of filters is a part of one");
    }

    #[test]
    fn plugins_are_found() {
        let string =
            |text: &str| json!({"@type": "type.googleapis.com/google.protobuf.StringValue", "value": text});
        check(json!(null), &[]);
        check(json!({"rules": []}), &[]);
        check(
            wasm(json!({"name": "weir", "configuration": string("{}")})),
            &[("config.configuration.value", "{}")],
        );
        check(wasm(json!({"root_id": "my-Weir"})), &[("config.configuration", "")]);
        check(
            wasm(json!({"vmConfig": {"vmId": "weir"}, "configuration": string("x")})),
            &[("config.configuration.value", "x")],
        );
        check(wasm(json!({"name": "other", "configuration": string("{}")})), &[]);
        check(wasm(json!({"name": "other", "configuration": string("not json")})), &[]);
        check(
            wasm(json!({"configuration": {
                "@type": "type.googleapis.com/google.protobuf.Struct", "value": {"rules": [1]}}})),
            &[("config.configuration.value", r#"{"rules":[1]}"#)],
        );
        check(
            json!({"@type": "type.googleapis.com/xds.type.v3.TypedStruct",
                "type_url": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
                "value": {"config": {"name": "weir", "configuration": string("{}")}}}),
            &[("value.config.configuration.value", "{}")],
        );
    }

    #[test]
    fn modules_are_found() {
        for (code, expected) in [
            (json!({"local": {"filename": "/a/weir-filter.wasm"}}), Some("/a/weir-filter.wasm")),
            (json!({"remote": {"http_uri": {"uri": "https://a/b.wasm"}}}), Some("https://a/b.wasm")),
            (json!({"remote": {"httpUri": {"uri": "https://a/b.wasm"}}}), Some("https://a/b.wasm")),
            (json!({"local": {"inline_string": "x"}}), None),
            (json!({"local": {"filename": 7}}), None),
            (json!(null), None),
        ] {
            let found = find_plugin_configs(&wasm(json!({"name": "weir", "vm_config": {"code": code}})));
            assert_eq!(found[0].module.as_deref(), expected, "{code}");
        }
    }

    #[test]
    fn clusters_are_known_where_nothing_else_brings_them() {
        let clusters = json!({"clusters": [{"name": "b"}, {"type": "STATIC"}, {"name": "a"}]});
        for (value, expected) in [
            (json!({"static_resources": clusters}), Some(&["b", "a"][..])),
            (json!({"staticResources": clusters}), Some(&["b", "a"][..])),
            (
                json!({"static_resources": clusters, "dynamic_resources": {"lds_config": {}}}),
                Some(&["b", "a"][..]),
            ),
            (json!({"static_resources": clusters, "dynamic_resources": {"cds_config": {}}}), None),
            (json!({"static_resources": clusters, "dynamicResources": {"cdsConfig": {}}}), None),
            (json!({"static_resources": {"clusters": []}}), None),
            (json!({"static_resources": {"clusters": {}}}), None),
            (json!({"static_resources": {}}), None),
            (json!([]), None),
        ] {
            assert_eq!(static_clusters(&value).as_deref(), expected, "{value}");
        }
    }

    #[test]
    fn every_listener_is_searched_in_order() {
        let listener = |text: &str| {
            let filter = wasm(json!({"name": "weir", "configuration": {"value": text}}));
            json!({"filter_chains": [{"filters": [{"typed_config": {"http_filters": [
                {"name": "router"}, {"name": "weir", "typed_config": filter}]}}]}]})
        };
        let path = |index: usize| {
            format!(
                "static_resources.listeners[{index}].filter_chains[0].filters[0].typed_config.http_filters[1]\
                 .typed_config.config.configuration.value"
            )
        };
        check(
            json!({"static_resources": {"listeners": [listener("a"), listener("b")]}}),
            &[(&path(0), "a"), (&path(1), "b")],
        );
    }

    #[test]
    fn a_long_name_over_many_values_costs_its_length_once() {
        let name = "n".repeat(1_000_000);
        let mut items: Vec<Value> = (0..50_000).map(|_| json!([])).collect();
        items.push(wasm(json!({"name": "weir"})));
        let found = find_plugin_configs(&json!({name: items}));
        let path = format!("{}…[50000].config.configuration", "n".repeat(64));
        assert_eq!(found, [PluginConfig { path, json: String::new(), module: None, variables: Vec::new() }]);
    }

    #[test]
    fn depth_is_no_danger() {
        let mut value = wasm(json!({"name": "weir", "configuration": {"value": "deep"}}));
        for _ in 0..5_000 {
            value = Value::Array(Vec::from([value]));
        }
        assert_eq!(find_plugin_configs(&value).len(), 1);
        // Dropping such a value would itself recurse.
        core::mem::forget(value);
    }
}
