//! Checks what was read: the filter's own object, and what an Envoy configuration or a Kubernetes object contains.

use super::documents::{recognise_plain, repeated};
use super::report::{Place, Report};
use super::summary::{MODULE_OF_RESPONSES, summary};
use weir_core::fields::Value;
use weir_core::rules::{
    Config, PathSetting, PluginConfig, STAND_IN, Written, path_settings, static_clusters,
};

/// The module without response callbacks.
const MODULE: &str = "weir-filter.wasm";
/// Most cluster names in an error.
const NAMES_SHOWN: usize = 10;

/// Validates the filter's own object.
pub fn judge_text(place: Place, text: &[u8]) -> Report {
    let mut report = Report::default();
    match Config::parse_with(text, &|_| Some(STAND_IN.to_owned())) {
        Ok(config) => report.accept(place, summary(&config)),
        Err(errors) => report.reject_all(&place, &errors),
    }
    report
}

/// Validates all configurations of the filter in a document, and finds fields that are given twice.
pub fn judge_document(place: &Place, document: &Value<'_>, json: &serde_json::Value) -> Report {
    let mut report = Report::default();
    let written = recognise_plain(json);
    // Also a `Kustomization`, whose field `resources` an Envoy configuration has too.
    if place.object.is_some() && matches!(written, Ok(Written::Filter) | Err(_)) {
        return report;
    }
    for path in repeated(document) {
        report.reject(place.clone(), path, "it is given twice; expected one value".to_owned());
    }
    match written {
        Ok(Written::Filter) => report.append(judge_text(place.clone(), json.to_string().as_bytes())),
        Ok(Written::Envoy(plugins)) => {
            let (clusters, settings) = (static_clusters(json), path_settings(json));
            for plugin in &plugins {
                let place = Place { path: plugin.path.clone(), ..place.clone() };
                report.append(judge_plugin(place, plugin, clusters.as_deref(), &settings));
            }
        }
        Err(message) => report.reject(place.clone(), "", message),
    }
    report
}

/// Validates a filter's configuration by itself, and against the document that contains it.
fn judge_plugin(
    place: Place,
    plugin: &PluginConfig,
    clusters: Option<&[&str]>,
    settings: &[PathSetting],
) -> Report {
    let mut report = Report::default();
    let is_shown = |name: &str| plugin.variables.iter().any(|shown| shown == name);
    let variables = |name: &str| is_shown(name).then(|| STAND_IN.to_owned());
    let config = match Config::parse_with(plugin.json.as_bytes(), &variables) {
        Ok(config) => config,
        Err(errors) => {
            report.reject_all(&place, &errors);
            return report;
        }
    };
    let cluster = clusters.and_then(|clusters| no_such_cluster(&config.aggregator.cluster, clusters));
    let wrong = [cluster, wrong_module(&config, plugin)];
    let settings = wrong_settings(&config, plugin, settings);
    if wrong.iter().all(Option::is_none) && settings.is_empty() {
        report.accept(place.clone(), summary(&config));
    }
    for (path, message) in wrong.into_iter().flatten() {
        report.reject(place.clone(), path, message);
    }
    for (manager, name, message) in settings {
        report.reject(Place { path: manager, ..place.clone() }, name, message);
    }
    report
}

/// Rejects settings of the plugin's connection manager that leave paths which upstreams read differently, if a rule reads the path:
/// path and name of each, and what is wrong.
fn wrong_settings(
    config: &Config,
    plugin: &PluginConfig,
    settings: &[PathSetting],
) -> Vec<(String, &'static str, String)> {
    let mut fields = config.rules.iter().enumerate().filter_map(|(at, rule)| Some((at, rule.reads_path()?)));
    let Some((at, field)) = fields.next() else { return Vec::new() };
    let is_above = |manager: &str| {
        plugin.path.strip_prefix(manager).is_some_and(|rest| manager.is_empty() || rest.starts_with('.'))
    };
    let around = settings.iter().filter(|setting| is_above(&setting.manager));
    around
        .map(|PathSetting { manager, name, expected }| {
            let message =
                format!("rules[{at}].{field} reads the path, which upstreams may read differently; expected {expected}");
            (manager.clone(), *name, message)
        })
        .collect()
}

/// A path in the configuration, and what is wrong there.
type Wrong = (String, String);

fn no_such_cluster(cluster: &str, clusters: &[&str]) -> Option<Wrong> {
    if clusters.contains(&cluster) {
        return None;
    }
    let mut names: Vec<String> = clusters.iter().take(NAMES_SHOWN).map(|name| format!("{name:?}")).collect();
    if clusters.len() > NAMES_SHOWN {
        names.push("…".to_owned());
    }
    let names = names.join(", ");
    let message = format!("this file has no cluster {cluster:?}; expected one of {names}");
    Some(("aggregator.cluster".to_owned(), message))
}

/// Rejects a module without response callbacks where the configuration needs them: Envoy would reject the listener. A
/// module with another name may be either.
fn wrong_module(config: &Config, plugin: &PluginConfig) -> Option<Wrong> {
    let module = plugin.module.as_deref()?;
    if module.rsplit('/').next() != Some(MODULE) {
        return None;
    }
    let why = config.needs_responses()?;
    let (path, reason) = match why.split_once(": ") {
        Some((path, reason)) => (path, format!("{reason}: ")),
        None => (why.as_str(), String::new()),
    };
    let message = format!(
        "{reason}the module {module:?} receives no responses; expected {MODULE_OF_RESPONSES} in vm_config.code"
    );
    Some((path.to_owned(), message))
}
