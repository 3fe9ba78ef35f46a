//! A configuration of the filter that was found, and how a plugin of Weir is recognised.

use alloc::string::String;
use alloc::vec::Vec;
use serde_json::Value;

const OUR_NAME: &str = "weir";

/// One configuration of the filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginConfig {
    /// The path in the document, such as `static_resources.listeners[0]…configuration.value` or `spec.pluginConfig`.
    pub path: String,
    /// The configuration's text as the filter receives it; empty if the plugin has none.
    pub json: String,
    /// The file or URL of the module, if the plugin names one.
    pub module: Option<String>,
    /// The environment variables that Envoy passes to the plugin.
    pub variables: Vec<String>,
}

/// Whether one of these names is Weir's.
pub(super) fn names_us<const N: usize>(names: [Option<&Value>; N]) -> bool {
    let mut names = names.into_iter().flatten().filter_map(Value::as_str);
    names.any(|name| name.to_ascii_lowercase().contains(OUR_NAME))
}

/// Whether a configuration has `rules`.
pub(super) fn has_rules(json: &str) -> bool {
    serde_json::from_str::<Value>(json).is_ok_and(|config| config.get("rules").is_some())
}
