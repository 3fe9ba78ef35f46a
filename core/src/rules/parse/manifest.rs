//! Kubernetes objects that attach the filter: Istio's `WasmPlugin` and `TrafficExtension`, Envoy Gateway's
//! `EnvoyExtensionPolicy`. An `EnvoyFilter` has Envoy's own form, which `envoy_config` finds. All other objects have no
//! configuration of the filter, also a `ConfigMap`, whose texts may be anything.

use super::plugin::{Marks, PluginConfig};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use serde_json::Value;

/// Kind and name of a Kubernetes object; `None` for any other value.
pub fn object_name(value: &Value) -> Option<String> {
    let kind =
        value.get("kind")?.as_str().filter(|_| value.get("apiVersion").is_some_and(Value::is_string))?;
    let name = value.get("metadata").and_then(|metadata| metadata.get("name")).and_then(Value::as_str);
    Some(name.map_or_else(|| kind.to_string(), |name| format!("{kind} {name}")))
}

/// The configurations of the filter that an object attaches.
pub(super) fn attached(object: &Value) -> Vec<PluginConfig> {
    let (Some(kind), Some(spec)) = (object.get("kind").and_then(Value::as_str), object.get("spec")) else {
        return Vec::new();
    };
    let name = object.get("metadata").and_then(|metadata| metadata.get("name"));
    let of_istio =
        |path: &str, plugin| config_of(format!("{path}.pluginConfig"), plugin, "pluginConfig", name);
    match kind {
        "WasmPlugin" => of_istio("spec", spec).into_iter().collect(),
        "TrafficExtension" => {
            spec.get("wasm").and_then(|wasm| of_istio("spec.wasm", wasm)).into_iter().collect()
        }
        "EnvoyExtensionPolicy" => {
            let listed = |field: &str| {
                let listed = spec.get(field).and_then(Value::as_array);
                listed.map(Vec::as_slice).unwrap_or_default().iter().enumerate()
            };
            let wasm = listed("wasm").filter_map(|(at, plugin)| {
                config_of(format!("spec.wasm[{at}].config"), plugin, "config", name)
            });
            let native = listed("dynamicModule").filter_map(|(at, plugin)| {
                let found = config_of(format!("spec.dynamicModule[{at}].config"), plugin, "config", name)?;
                Some(PluginConfig { is_native: true, ..found })
            });
            wasm.chain(native).collect()
        }
        _ => Vec::new(),
    }
}

fn config_of(path: String, plugin: &Value, field: &str, object: Option<&Value>) -> Option<PluginConfig> {
    let json = match plugin.get(field) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(config) => config.to_string(),
    };
    let source = |kind: &str| plugin.get("code")?.get(kind)?.get("url");
    let module = plugin.get("url").or_else(|| source("image")).or_else(|| source("http"));
    let own = plugin.get("name").or_else(|| plugin.get("pluginName"));
    // An object may be named after what it serves, so its name counts only if nothing else shows it.
    let object = object.filter(|_| own.is_none() && module.is_none());
    let names = [object, own, plugin.get("rootID").or_else(|| plugin.get("filterName"))];
    Marks { names, module, json: &json }.are_ours().then(|| PluginConfig {
        path,
        json,
        module: module.and_then(Value::as_str).map(String::from),
        variables: variables_of(plugin),
        is_native: false,
    })
}

/// The variables that Istio's `vmConfig.env` sets or passes, or that Envoy Gateway's `env.hostKeys` passes.
fn variables_of(plugin: &Value) -> Vec<String> {
    let of_istio = plugin.get("vmConfig").and_then(|vm| vm.get("env")).and_then(Value::as_array);
    let of_istio = of_istio.into_iter().flatten().filter_map(|variable| variable.get("name"));
    let of_gateway = plugin.get("env").and_then(|env| env.get("hostKeys")).and_then(Value::as_array);
    of_istio.chain(of_gateway.into_iter().flatten()).filter_map(Value::as_str).map(String::from).collect()
}

#[cfg(test)]
mod tests {
    use super::super::envoy_config::find_plugin_configs;
    use super::*;
    use serde_json::json;

    fn found(value: &Value) -> Vec<(String, String)> {
        find_plugin_configs(value).into_iter().map(|one| (one.path, one.json)).collect()
    }

    fn of(path: &str, json: &str) -> Vec<(String, String)> {
        Vec::from([(path.to_string(), json.to_string())])
    }

    #[test]
    fn attachments_of_each_kind_are_found() {
        let object = |kind: &str, spec: Value| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "limits"}, "spec": spec});
        let rules = json!({"rules": []});
        for (value, expected) in [
            (
                object("WasmPlugin", json!({"pluginConfig": rules})),
                of("spec.pluginConfig", r#"{"rules":[]}"#),
            ),
            (object("WasmPlugin", json!({"pluginName": "weir"})), of("spec.pluginConfig", "")),
            (
                object("WasmPlugin", json!({"url": "oci://r.example/weir-filter:1"})),
                of("spec.pluginConfig", ""),
            ),
            (object("WasmPlugin", json!({"pluginName": "other", "pluginConfig": {"a": 1}})), Vec::new()),
            (
                object("TrafficExtension", json!({"wasm": {"pluginConfig": rules}})),
                of("spec.wasm.pluginConfig", r#"{"rules":[]}"#),
            ),
            (object("TrafficExtension", json!({"lua": {}})), Vec::new()),
            (
                object(
                    "EnvoyExtensionPolicy",
                    json!({"wasm": [{"name": "other", "config": {}}, {"name": "Weir", "config": 7}]}),
                ),
                of("spec.wasm[1].config", "7"),
            ),
            (
                object(
                    "EnvoyExtensionPolicy",
                    json!({"wasm": [{"code": {"image": {"url": "r/weir-filter"}}}]}),
                ),
                of("spec.wasm[0].config", ""),
            ),
            (object("EnvoyExtensionPolicy", json!({"wasm": {"name": "weir"}})), Vec::new()),
            (
                object(
                    "EnvoyExtensionPolicy",
                    json!({"dynamicModule": [{"name": "other", "filterName": "weir", "config": rules}]}),
                ),
                of("spec.dynamicModule[0].config", r#"{"rules":[]}"#),
            ),
            (object("ConfigMap", json!({"wasm": [{"config": rules}], "pluginConfig": rules})), Vec::new()),
            (json!({"kind": "WasmPlugin"}), Vec::new()),
            (
                json!({"kind": "List", "items": [object("WasmPlugin", json!({"pluginConfig": rules}))]}),
                of("items[0].spec.pluginConfig", r#"{"rules":[]}"#),
            ),
        ] {
            assert_eq!(found(&value), expected, "{value}");
        }
        let filter = json!({"@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
            "config": {"name": "weir", "configuration": {"value": "{}"}}});
        let patch =
            json!({"applyTo": "HTTP_FILTER", "patch": {"value": {"name": "weir", "typed_config": filter}}});
        assert_eq!(
            found(&object("EnvoyFilter", json!({"configPatches": [{}, patch]}))),
            of("spec.configPatches[1].patch.value.typed_config.config.configuration.value", "{}")
        );
    }

    #[test]
    fn variables_and_modules_are_found() {
        let istio = json!({"kind": "WasmPlugin", "spec": {"pluginName": "weir", "url": "file:///a/weir-filter.wasm",
            "vmConfig": {"env": [{"name": "A", "valueFrom": "HOST"}, {"name": "B", "value": "b"}, {}]}}});
        let one = find_plugin_configs(&istio).remove(0);
        assert_eq!(
            (one.module.as_deref(), one.variables),
            (Some("file:///a/weir-filter.wasm"), ["A", "B"].map(String::from).into())
        );
        let gateway = json!({"kind": "EnvoyExtensionPolicy", "spec": {"wasm": [{"name": "weir", "env": {"hostKeys": ["A"]},
            "code": {"http": {"url": "https://a/b.wasm"}}}]}});
        let one = find_plugin_configs(&gateway).remove(0);
        assert_eq!(
            (one.module.as_deref(), one.variables),
            (Some("https://a/b.wasm"), ["A"].map(String::from).into())
        );
    }

    #[test]
    fn objects_have_a_kind_and_an_api_version() {
        for (value, expected) in [
            (json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}}), Some("Service a")),
            (json!({"apiVersion": "v1", "kind": "Service"}), Some("Service")),
            (json!({"kind": "Service"}), None),
            (json!({"apiVersion": "v1"}), None),
            (json!(["kind"]), None),
            (json!(null), None),
        ] {
            assert_eq!(object_name(&value).as_deref(), expected, "{value}");
        }
    }
}
