//! A configuration of the filter that was found, and how a plugin of Weir is recognised.

use alloc::string::String;
use alloc::vec::Vec;
use serde_json::Value;

const OUR_NAME: &str = "weir";
/// The beginning of the names of the modules and of the images.
const OUR_MODULE: &str = "weir-filter";
/// The file of the native filter.
const OUR_LIBRARY: &str = "libweir_filter.so";

/// One configuration of the filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginConfig {
    /// The path in the document, such as `static_resources.listeners[0]…configuration.value` or `spec.pluginConfig`.
    pub path: String,
    /// The configuration's text as the filter receives it; empty if the plugin has none.
    pub json: String,
    /// The file or URL of the module, if the plugin names one.
    pub module: Option<String>,
    /// The environment variables that Envoy passes to the plugin. The native filter has all of Envoy's own.
    pub variables: Vec<String>,
    /// It is a configuration of the native filter, a dynamic module.
    pub is_native: bool,
}

/// What shows whose plugin it is.
pub(super) struct Marks<'a> {
    /// Names that its author gave it.
    pub names: [Option<&'a Value>; 3],
    /// The file, image or URL of its module.
    pub module: Option<&'a Value>,
    /// Its configuration.
    pub json: &'a str,
}

impl Marks<'_> {
    /// Whether the plugin is Weir's: by its module, by a name with the word `weir`, or by a configuration that only Weir's has. Of a plugin
    /// whose module is not named, `rules` suffice.
    pub fn are_ours(&self) -> bool {
        let module = self.module.and_then(Value::as_str);
        let mut names = self.names.into_iter().flatten().filter_map(Value::as_str);
        if module.is_some_and(is_our_module) || names.any(has_our_name) {
            return true;
        }
        let config = serde_json::from_str::<Value>(self.json).unwrap_or_default();
        let has = |field: &str| config.get(field).is_some();
        has("rules") && (module.is_none() || has("aggregator"))
    }
}

/// Whether a file, an image or a URL is named `weir-filter…` or as the native filter, whatever its folder, tag and digest are.
fn is_our_module(module: &str) -> bool {
    let file = module.rsplit('/').next().unwrap_or(module);
    file == OUR_LIBRARY
        || file
            .strip_prefix(OUR_MODULE)
            .is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_alphanumeric()))
}

/// Whether a name has our name as a word: `weir`, `my-Weir`, `weir_limits`, but not `weird`.
fn has_our_name(name: &str) -> bool {
    let mut words = name.split(|letter: char| !letter.is_ascii_alphanumeric());
    words.any(|word| word.eq_ignore_ascii_case(OUR_NAME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_is_ours_by_its_module_its_name_or_its_configuration() {
        let ours = r#"{"aggregator": {"cluster": "a"}, "rules": []}"#;
        for (name, module, json, expected) in [
            ("weir", "", "", true),
            ("my-Weir", "", "", true),
            ("weir_limits", "oci://r/mirror:1", "", true),
            ("weird", "", "", false),
            ("plugin", "", r#"{"rules": []}"#, true),
            ("plugin", "oci://ghcr.io/corazawaf/coraza-proxy-wasm:1", r#"{"rules": []}"#, false),
            ("plugin", "oci://weir.example/coraza-proxy-wasm", r#"{"rules": []}"#, false),
            ("plugin", "oci://r.example/mirror:1", ours, true),
            ("plugin", "oci://r.example/weir-filter:0.1.0", "", true),
            ("plugin", "oci://r.example/weir-filter@sha256:ab", "", true),
            ("plugin", "file:///opt/weir-filter-responses.wasm", "", true),
            ("plugin", "/opt/libweir_filter.so", "", true),
            ("plugin", "/opt/weir-filters.wasm", "", false),
            ("plugin", "/opt/weirwolf.wasm", "", false),
        ] {
            let (name, module) = (Value::from(name), Value::from(module));
            let module = Some(&module).filter(|module| **module != "");
            let marks = Marks { names: [Some(&name), None, None], module, json };
            assert_eq!(marks.are_ours(), expected, "{name} {module:?} {json}");
        }
    }
}
