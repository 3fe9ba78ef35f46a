//! Finds the filter's configuration in a text: the configuration itself, a whole Envoy configuration that contains it, or
//! a Kubernetes object that attaches it (see `manifest`). `documents` parses YAML, and [`Config::parse`](crate::rules::Config::parse) parses what was found.

use super::manifest;
use super::plugin::{Marks, PluginConfig};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use serde_json::Value;

/// Fields at the top of Envoy's configuration files. One of them suffices to recognise such a file.
const ENVOY_FIELDS: [&str; 6] =
    ["static_resources", "dynamic_resources", "resources", "filter_chains", "http_filters", "typed_config"];

const CONNECTION_MANAGER: &str =
    "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
const WASM_FILTER: &str = "envoy.extensions.filters.http.wasm.v3.Wasm";
const NATIVE_FILTER: &str = "envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter";
const TYPED_STRUCT: &str = ".TypedStruct";
/// What states a decision about escaped slashes.
const ESCAPED_SLASHES: [&str; 4] =
    ["UNESCAPE_AND_REDIRECT", "UNESCAPE_AND_FORWARD", "REJECT_REQUEST", "KEEP_UNCHANGED"];
/// What keeps headers with underscores in their names from upstreams.
const UNDERSCORES_REMOVED: [&str; 2] = ["REJECT_REQUEST", "DROP_HEADER"];
/// Names of fields are shortened to this many characters in a path.
const NAME_CHARS_MAX: usize = 64;

/// What a text contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// The filter's own configuration, or any text to be parsed as one since it is nothing else.
    Filter,
    /// An Envoy configuration or a part of one; never empty.
    Envoy(Vec<PluginConfig>),
}

/// Determines what a document contains. Returns a message if it cannot be used.
pub fn recognise(value: &Value) -> Result<Written, String> {
    let plugins = find_plugin_configs(value);
    if !plugins.is_empty() {
        return Ok(Written::Envoy(plugins));
    }
    if ENVOY_FIELDS.iter().any(|field| value.get(field).is_some()) {
        return Err("this Envoy configuration has no Weir filter; expected an HTTP filter of type \
                    envoy.extensions.filters.http.wasm.v3.Wasm whose name, root_id or vm_id has the word \"weir\", or \
                    envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter whose filter_name has it"
            .to_string());
    }
    Ok(Written::Filter)
}

/// Names of the clusters that an Envoy configuration lists; `None` if it lists none, or may receive more dynamically.
pub fn static_clusters(value: &Value) -> Option<Vec<&str>> {
    let dynamic = field(value, "dynamic_resources", "dynamicResources");
    let elsewhere = [("cds_config", "cdsConfig"), ("cds_resources_locator", "cdsResourcesLocator")];
    if dynamic.is_some_and(|dynamic| elsewhere.iter().any(|(a, b)| field(dynamic, a, b).is_some())) {
        return None;
    }
    let clusters = field(value, "static_resources", "staticResources")?.get("clusters")?.as_array()?;
    let names: Vec<&str> = clusters.iter().filter_map(|cluster| cluster.get("name")?.as_str()).collect();
    (!names.is_empty()).then_some(names)
}

/// Finds the configurations of Weir's plugins in any JSON value, in its order.
///
/// A plugin belongs to Weir if its name, root id or VM id has the word `weir`, if its module is named `weir-filter…`, or by its
/// configuration.
pub fn find_plugin_configs(value: &Value) -> Vec<PluginConfig> {
    let mut found = Vec::new();
    walk(value, |path, value| {
        if let Some(plugin) = plugin_of(value) {
            found.extend(weir_config(path, plugin));
        }
        if let Some((way, filter)) = native_of(value) {
            found.extend(native_config(path, way, filter));
        }
        let attached = manifest::attached(value).into_iter();
        found.extend(attached.map(|one| PluginConfig { path: join(&path(), &one.path), ..one }));
    });
    found
}

/// A setting of an HTTP connection manager that leaves paths which upstreams read differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathSetting {
    /// The path of the connection manager in the document.
    pub manager: String,
    /// The setting's name.
    pub name: &'static str,
    /// What is expected in its place.
    pub expected: &'static str,
}

/// The settings of the connection managers in any JSON value that leave paths which upstreams read differently.
pub fn path_settings(value: &Value) -> Vec<PathSetting> {
    let mut found = Vec::new();
    walk(value, |path, value| {
        let kind = value.get("@type").and_then(Value::as_str);
        if !kind.is_some_and(|kind| kind.ends_with(CONNECTION_MANAGER)) {
            return;
        }
        let is_on = |snake, camel| field(value, snake, camel).and_then(Value::as_bool) == Some(true);
        let escaped = field(value, "path_with_escaped_slashes_action", "pathWithEscapedSlashesAction");
        for (is_sound, name, expected) in [
            (is_on("normalize_path", "normalizePath"), "normalize_path", "true"),
            (is_on("merge_slashes", "mergeSlashes"), "merge_slashes", "true"),
            (
                escaped.is_some_and(|word| word.as_str().is_some_and(|word| ESCAPED_SLASHES.contains(&word))),
                "path_with_escaped_slashes_action",
                "UNESCAPE_AND_REDIRECT, UNESCAPE_AND_FORWARD or REJECT_REQUEST, or KEEP_UNCHANGED if an upstream needs such paths",
            ),
        ] {
            if !is_sound {
                found.push(PathSetting { manager: path(), name, expected });
            }
        }
    });
    found
}

/// The paths of the connection managers in any JSON value that pass headers with underscores in their names on.
pub fn underscore_managers(value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    walk(value, |path, value| {
        let kind = value.get("@type").and_then(Value::as_str);
        if !kind.is_some_and(|kind| kind.ends_with(CONNECTION_MANAGER)) {
            return;
        }
        let options = field(value, "common_http_protocol_options", "commonHttpProtocolOptions");
        let action = options.and_then(|options| {
            field(options, "headers_with_underscores_action", "headersWithUnderscoresAction")
        });
        if !action.and_then(Value::as_str).is_some_and(|word| UNDERSCORES_REMOVED.contains(&word)) {
            found.push(path());
        }
    });
    found
}

/// Passes on each object and list in a value, in its order, with its path.
fn walk<'a>(value: &'a Value, mut visit: impl FnMut(&dyn Fn() -> String, &'a Value)) {
    let mut steps = Vec::from([Step { from: 0, to: Child::Root }]);
    // An explicit stack, as the depth of the value is not bounded.
    let mut pending = Vec::from([(0, value)]);
    while let Some((step, value)) = pending.pop() {
        visit(&|| path_to(&steps, step), value);
        // Reversed, so that the first child is taken first.
        for (to, child) in children(value).into_iter().rev() {
            pending.push((steps.len(), child));
            steps.push(Step { from: step, to });
        }
    }
}

/// The objects and lists directly in a value, in its order.
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

/// A step from one value into a child. Values with a common path share its steps, so that a long name above many values
/// is stored once.
struct Step<'a> {
    /// The index of the step before; for the root its own.
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

/// A field's name as shown in a path, shortened if it is longer than any known field.
fn shown(name: &str) -> String {
    let mut characters = name.chars();
    let mut shown: String = characters.by_ref().take(NAME_CHARS_MAX).collect();
    if characters.next().is_some() {
        shown.push('…');
    }
    shown
}

/// The plugin of a Wasm filter (`config`, typed or in a typed struct), and the path to it.
fn plugin_of(filter: &Value) -> Option<(&'static str, &Value)> {
    let kind = filter.get("@type")?.as_str()?;
    if kind.ends_with(WASM_FILTER) {
        return Some(("config", filter.get("config")?));
    }
    let typed = field(filter, "type_url", "typeUrl")?.as_str()?;
    if kind.ends_with(TYPED_STRUCT) && typed.ends_with(WASM_FILTER) {
        return Some(("value.config", filter.get("value")?.get("config")?));
    }
    None
}

/// The filter of a dynamic module, typed or in a typed struct, and the path to it.
fn native_of(filter: &Value) -> Option<(&'static str, &Value)> {
    let kind = filter.get("@type")?.as_str()?;
    if kind.ends_with(NATIVE_FILTER) {
        return Some(("", filter));
    }
    let typed = field(filter, "type_url", "typeUrl")?.as_str()?;
    (kind.ends_with(TYPED_STRUCT) && typed.ends_with(NATIVE_FILTER))
        .then_some(("value", filter.get("value")?))
}

fn native_config(path: impl Fn() -> String, way: &str, filter: &Value) -> Option<PluginConfig> {
    let (name, configuration) = match filter.get("filterConfig") {
        Some(configuration) => ("filterConfig", Some(configuration)),
        None => ("filter_config", filter.get("filter_config")),
    };
    let (part, json) = text_of(name, configuration);
    let module = field(filter, "dynamic_module_config", "dynamicModuleConfig");
    let file = module.and_then(|module| module.get("module")?.get("local")?.get("filename"));
    let names =
        [field(filter, "filter_name", "filterName"), module.and_then(|module| module.get("name")), None];
    let path = if way.is_empty() { path() } else { join(&path(), way) };
    Marks { names, module: file, json: &json }.are_ours().then(|| PluginConfig {
        path: join(&path, &part),
        json,
        module: file.and_then(Value::as_str).map(String::from),
        variables: Vec::new(),
        is_native: true,
    })
}

/// The text of a configuration in an `Any`, and the path to it from the field `name`.
fn text_of(name: &str, configuration: Option<&Value>) -> (String, String) {
    let value = || format!("{name}.value");
    match configuration {
        None | Some(Value::Null) => (name.to_string(), String::new()),
        Some(Value::String(text)) => (name.to_string(), text.clone()),
        Some(any) => match any.get("value") {
            Some(Value::String(text)) => (value(), text.clone()),
            Some(object) => (value(), object.to_string()),
            // Some authors write the message's fields directly instead of its Any form.
            None => (name.to_string(), any.to_string()),
        },
    }
}

fn weir_config(path: impl Fn() -> String, (way, plugin): (&str, &Value)) -> Option<PluginConfig> {
    let (part, json) = text_of("configuration", plugin.get("configuration"));
    let vm_id = field(plugin, "vm_config", "vmConfig").and_then(|vm| field(vm, "vm_id", "vmId"));
    let (names, module) =
        ([plugin.get("name"), field(plugin, "root_id", "rootId"), vm_id], module_of(plugin));
    Marks { names, module, json: &json }.are_ours().then(|| PluginConfig {
        path: join(&join(&path(), way), &part),
        json,
        module: module.and_then(Value::as_str).map(String::from),
        variables: variables_of(plugin),
        is_native: false,
    })
}

/// Variables of Envoy's own environment, and those that the configuration sets.
fn variables_of(plugin: &Value) -> Vec<String> {
    let vm = field(plugin, "vm_config", "vmConfig");
    let Some(shown) = vm.and_then(|vm| field(vm, "environment_variables", "environmentVariables")) else {
        return Vec::new();
    };
    let host = field(shown, "host_env_keys", "hostEnvKeys").and_then(Value::as_array);
    let set = field(shown, "key_values", "keyValues").and_then(Value::as_object);
    let host = host.into_iter().flatten().filter_map(|name| name.as_str().map(String::from));
    host.chain(set.into_iter().flat_map(|set| set.keys().cloned())).collect()
}

fn module_of(plugin: &Value) -> Option<&Value> {
    let code = field(plugin, "vm_config", "vmConfig")?.get("code")?;
    let file = code.get("local").and_then(|local| local.get("filename"));
    let address = || field(code.get("remote")?, "http_uri", "httpUri")?.get("uri");
    file.or_else(address)
}

/// A field of Envoy's configuration, by its name in protobuf, or by that in protobuf's JSON mapping.
pub fn field<'a>(value: &'a Value, snake: &str, camel: &str) -> Option<&'a Value> {
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
    fn the_kind_of_a_text_is_recognised() {
        assert_eq!(recognise(&json!({"rules": []})), Ok(Written::Filter));
        assert_eq!(recognise(&json!(null)), Ok(Written::Filter));
        for field in ENVOY_FIELDS {
            let error = recognise(&json!({field: {}})).unwrap_err();
            assert!(error.starts_with("this Envoy configuration has no Weir filter; expected"), "{error}");
        }
        let filter = json!([{"name": "weir", "typed_config": wasm(json!({"name": "weir"}))}]);
        let path = "[0].typed_config.config.configuration".to_string();
        let found = Written::Envoy(Vec::from([PluginConfig {
            path,
            json: String::new(),
            module: None,
            variables: Vec::new(),
            is_native: false,
        }]));
        assert_eq!(recognise(&filter), Ok(found), "a list of filters is a part of an Envoy configuration");
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
    fn native_filters_are_found() {
        let kind = "type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter";
        let module = json!({"module": {"local": {"filename": "/usr/lib/weir/libweir_filter.so"}}});
        let text = json!({"@type": "type.googleapis.com/google.protobuf.StringValue", "value": "{}"});
        for (filter, expected) in [
            (
                json!({"@type": kind, "filter_name": "weir", "filter_config": text}),
                Some(("filter_config.value", None)),
            ),
            (
                json!({"@type": kind, "filterName": "limits", "filterConfig": text, "dynamicModuleConfig": module}),
                Some(("filterConfig.value", Some("/usr/lib/weir/libweir_filter.so"))),
            ),
            (
                json!({"@type": "type.googleapis.com/xds.type.v3.TypedStruct", "type_url": kind,
                    "value": {"filter_name": "weir", "filter_config": text}}),
                Some(("value.filter_config.value", None)),
            ),
            (
                json!([{"@type": kind, "filter_name": "weir", "filter_config": text}]),
                Some(("[0].filter_config.value", None)),
            ),
            (json!({"@type": kind, "filter_name": "other", "filter_config": text}), None),
        ] {
            let found = find_plugin_configs(&filter);
            let found = found.first().map(|one| {
                assert!(one.is_native && one.json == "{}", "{one:?}");
                (one.path.as_str(), one.module.as_deref())
            });
            assert_eq!(found, expected, "{filter}");
        }
    }

    #[test]
    fn settings_that_leave_paths_as_they_are_are_found() {
        let manager = |settings: Value| {
            let mut manager = json!({"@type": format!("type.googleapis.com/{CONNECTION_MANAGER}")});
            manager.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
            json!({"filters": [{"typed_config": manager}]})
        };
        for (settings, expected) in [
            (json!({}), &["normalize_path", "merge_slashes", "path_with_escaped_slashes_action"][..]),
            (
                json!({"normalize_path": true, "merge_slashes": true, "path_with_escaped_slashes_action": "REJECT_REQUEST"}),
                &[],
            ),
            (
                json!({"normalizePath": true, "mergeSlashes": true, "pathWithEscapedSlashesAction": "KEEP_UNCHANGED"}),
                &[],
            ),
            (
                json!({"normalize_path": false, "merge_slashes": true,
                    "path_with_escaped_slashes_action": "IMPLEMENTATION_SPECIFIC_DEFAULT"}),
                &["normalize_path", "path_with_escaped_slashes_action"],
            ),
        ] {
            let found = path_settings(&manager(settings.clone()));
            assert!(found.iter().all(|one| one.manager == "filters[0].typed_config"), "{found:?}");
            assert_eq!(found.iter().map(|one| one.name).collect::<Vec<_>>(), expected, "{settings}");
        }
        assert_eq!(path_settings(&json!({"@type": "other"})), []);
    }

    #[test]
    fn managers_that_pass_underscores_on_are_found() {
        let kind = format!("type.googleapis.com/{CONNECTION_MANAGER}");
        for (options, expected) in [
            (json!({}), true),
            (json!({"common_http_protocol_options": {"idle_timeout": "1s"}}), true),
            (json!({"common_http_protocol_options": {"headers_with_underscores_action": "ALLOW"}}), true),
            (
                json!({"common_http_protocol_options": {"headers_with_underscores_action": "DROP_HEADER"}}),
                false,
            ),
            (json!({"commonHttpProtocolOptions": {"headersWithUnderscoresAction": "REJECT_REQUEST"}}), false),
        ] {
            let mut manager = json!({"@type": kind});
            manager.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
            let found = underscore_managers(&json!([{"typed_config": manager}]));
            assert_eq!(found == ["[0].typed_config"], expected, "{options} {found:?}");
        }
        assert!(underscore_managers(&json!({"@type": "other"})).is_empty());
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
    fn static_clusters_are_known_unless_there_are_dynamic_ones() {
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
    fn a_long_name_above_many_values_is_stored_once() {
        let name = "n".repeat(1_000_000);
        let mut items: Vec<Value> = (0..50_000).map(|_| json!([])).collect();
        items.push(wasm(json!({"name": "weir"})));
        let found = find_plugin_configs(&json!({name: items}));
        let path = format!("{}…[50000].config.configuration", "n".repeat(64));
        let expected =
            PluginConfig { path, json: String::new(), module: None, variables: Vec::new(), is_native: false };
        assert_eq!(found, [expected]);
    }

    #[test]
    fn deep_values_do_not_overflow_the_stack() {
        let mut value = wasm(json!({"name": "weir", "configuration": {"value": "deep"}}));
        for _ in 0..5_000 {
            value = Value::Array(Vec::from([value]));
        }
        assert_eq!(find_plugin_configs(&value).len(), 1);
        // Dropping such a value would itself recurse.
        core::mem::forget(value);
    }
}
