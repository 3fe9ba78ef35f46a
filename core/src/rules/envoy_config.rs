//! Weir's configurations inside a whole Envoy configuration.
//!
//! Only looks; reading what is found is [`Config::parse`](super::Config::parse), and turning YAML into JSON is the
//! caller's.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use serde_json::Value;

const WASM_FILTER: &str = "envoy.extensions.filters.http.wasm.v3.Wasm";
const TYPED_STRUCT: &str = ".TypedStruct";
const OUR_NAME: &str = "weir";

/// One configuration of the filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginConfig {
    /// Where in the Envoy configuration: `static_resources.listeners[0]…configuration.value`.
    pub path: String,
    /// The configuration's text, as the filter gets it; empty when the plugin has none.
    pub json: String,
}

/// Finds the configurations of Weir's plugins in any JSON value, in its order.
///
/// A plugin is Weir's when its name, root or VM id contains `weir`, or when its configuration has `rules`.
pub fn find_plugin_configs(value: &Value) -> Vec<PluginConfig> {
    let mut found = Vec::new();
    // A stack of its own: the depth of the value is the writer's.
    let mut pending = Vec::from([(String::new(), value)]);
    while let Some((path, value)) = pending.pop() {
        if let Some(plugin) = plugin_of(value) {
            found.extend(weir_config(&path, plugin));
        }
        let at = pending.len();
        match value {
            Value::Object(fields) => {
                let children = fields.iter().map(|(name, child)| (join(&path, name), child));
                pending.extend(children);
            }
            Value::Array(items) => {
                let children =
                    items.iter().enumerate().map(|(index, child)| (format!("{path}[{index}]"), child));
                pending.extend(children);
            }
            _ => {}
        }
        // The first child is to be taken first.
        if let Some(children) = pending.get_mut(at..) {
            children.reverse();
        }
    }
    found
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

fn weir_config(path: &str, (way, plugin): (&str, &Value)) -> Option<PluginConfig> {
    let path = join(path, way);
    let configuration = plugin.get("configuration");
    let (way, json) = match configuration {
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
    ours.then(|| PluginConfig { path: join(&path, way), json })
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
