//! Checks what was read: the filter's own object, and what an Envoy configuration or a Kubernetes object contains.

use super::around;
use super::bodies::{self, Chain};
use super::conditions;
use super::order;
use super::quic;
use super::report::{Place, Report};
use super::summary::{MODULE_OF_RESPONSES, summary};
use weir_core::fields::yaml::{Repeated, line_of};
use weir_core::rules::{
    Config, Parse, PathSetting, PluginConfig, STAND_IN, Written, path_settings, recognise, static_clusters,
    underscore_managers,
};

/// The module without response callbacks.
const MODULE: &str = "weir-filter.wasm";
/// Most cluster names in an error.
const NAMES_SHOWN: usize = 10;

/// Validates the filter's own object, as text and as JSON.
pub fn judge_text(place: Place, text: &[u8], json: &serde_json::Value) -> Report {
    let mut report = Report::default();
    match Config::parse_with(text, &|_| Some(STAND_IN.to_owned())) {
        Ok(config) => {
            let of_bodies = bodies::warnings(&config, json, &[]);
            let warnings = of_rules(json).chain(of_bodies).chain(order::unset_headers(json));
            report.accept(place, summary(&config, json) + &listed(warnings));
        }
        Err(errors) => report.reject_all(&place, &errors),
    }
    report
}

/// A document of a text.
pub struct Text<'a> {
    /// The whole text.
    pub text: &'a str,
    /// The document's number from 0.
    pub document: usize,
}

impl Text<'_> {
    /// Where the value at a path stands, to be appended to a sentence; empty if the text does not have it.
    fn at(&self, path: &str) -> String {
        line_of(self.text, self.document, path).map(|line| format!(", at line {line}")).unwrap_or_default()
    }
}

/// Validates all configurations of the filter in a document, and finds fields that are given twice.
pub fn judge_document(
    place: &Place,
    text: &Text<'_>,
    repeated: &[Repeated],
    json: &serde_json::Value,
) -> Report {
    let mut report = Report::default();
    let written = recognise(json);
    // Also a `Kustomization`, whose field `resources` an Envoy configuration has too.
    if place.object.is_some() && matches!(written, Ok(Written::Filter) | Err(_)) {
        return report;
    }
    for field in repeated {
        report.reject(place.clone(), &*field.path, format!("{}; expected one value", field.problem()));
    }
    match written {
        Ok(Written::Filter) => report.append(judge_text(place.clone(), json.to_string().as_bytes(), json)),
        Ok(Written::Envoy(plugins)) => {
            let around = Around {
                clusters: static_clusters(json),
                settings: path_settings(json),
                underscores: underscore_managers(json),
                document: json,
                plugins: &plugins,
                text,
            };
            for plugin in &plugins {
                let place = Place { path: plugin.path.clone(), ..place.clone() };
                report.append(judge_plugin(place, plugin, &around));
            }
        }
        Err(message) => report.reject(place.clone(), "", message),
    }
    report
}

/// Warns of what a configuration means by itself.
fn of_rules(json: &serde_json::Value) -> impl Iterator<Item = String> {
    around::placeholder(json).into_iter().chain(conditions::warnings(json))
}

fn listed(warnings: impl IntoIterator<Item = String>) -> String {
    warnings.into_iter().map(|warning| format!("\n  {warning}")).collect()
}

/// What of a document its plugins are held against.
struct Around<'a> {
    clusters: Option<Vec<&'a str>>,
    settings: Vec<PathSetting>,
    /// Connection managers that pass headers with underscores on.
    underscores: Vec<String>,
    document: &'a serde_json::Value,
    plugins: &'a [PluginConfig],
    text: &'a Text<'a>,
}

/// Validates a filter's configuration by itself, and against the document that contains it.
fn judge_plugin(place: Place, plugin: &PluginConfig, around: &Around<'_>) -> Report {
    let mut report = Report::default();
    let is_shown = |name: &str| plugin.is_native || plugin.variables.iter().any(|shown| shown == name);
    let variables = |name: &str| is_shown(name).then(|| STAND_IN.to_owned());
    let parse: Parse = if plugin.is_native { Config::parse_native } else { Config::parse_with };
    let config = match parse(plugin.json.as_bytes(), &variables) {
        Ok(config) => config,
        Err(errors) => {
            report.reject_all(&place, &errors);
            return report;
        }
    };
    let Around { clusters, settings, underscores, document, plugins, text } = around;
    let cluster =
        clusters.as_deref().and_then(|clusters| no_such_cluster(&config.aggregator.cluster, clusters));
    let http2 = around::without_http2(document, &config.aggregator.cluster)
        .map(|message| ("aggregator.cluster".to_owned(), message));
    let wrong = [cluster, http2, wrong_module(&config, plugin)];
    let settings = wrong_settings(&config, plugin, settings);
    let json = serde_json::from_str(&plugin.json).unwrap_or_default();
    let chain = Chain::of(document, plugin);
    let late = chain.as_ref().map(|chain| chain.late_parsers(&json)).unwrap_or_default();
    if wrong.iter().all(Option::is_none) && settings.is_empty() && late.is_empty() {
        let of_bodies = chain.map(|chain| (chain.namespaces(), chain.warnings(&json)));
        let (namespaces, around) = of_bodies.unwrap_or_default();
        let warnings = underscore_warning(&config, plugin, underscores).into_iter();
        let warnings = of_rules(&json).chain(warnings);
        let warnings = warnings.chain(around::warnings(&config, document, plugin, plugins));
        let warnings = warnings.chain(order::warnings(document, plugin));
        let warnings = warnings.chain(quic::warnings(&json, document, plugin, |path| text.at(path)));
        let warnings = warnings.chain(bodies::warnings(&config, &json, &namespaces)).chain(around);
        report.accept(place.clone(), summary(&config, &json) + &listed(warnings));
    }
    for (path, message) in late {
        let message = message + &text.at(&path);
        report.reject(Place { path, ..place.clone() }, "", message);
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
    let around = settings.iter().filter(|setting| is_above(&setting.manager, plugin));
    around
        .map(|PathSetting { manager, name, expected }| {
            let message =
                format!("rules[{at}].{field} reads the path, which upstreams may read differently; expected {expected}");
            (manager.clone(), *name, message)
        })
        .collect()
}

/// Whether a connection manager contains the plugin.
fn is_above(manager: &str, plugin: &PluginConfig) -> bool {
    plugin.path.strip_prefix(manager).is_some_and(|rest| manager.is_empty() || rest.starts_with('.'))
}

/// Warns of a connection manager that passes headers with underscores on, if a rule reads a header of which that makes another name.
fn underscore_warning(config: &Config, plugin: &PluginConfig, managers: &[String]) -> Option<String> {
    managers.iter().find(|manager| is_above(manager, plugin))?;
    let mut read =
        config.rules.iter().enumerate().filter_map(|(at, rule)| Some((at, rule.aliased_header()?)));
    let (at, (field, name)) = read.next()?;
    let name = String::from_utf8_lossy(name);
    Some(format!(
        "warning: rules[{at}].{field}: an upstream that takes _ and - for the same, as PHP and WSGI do, accepts another header for \
         {name}; set common_http_protocol_options.headers_with_underscores_action to REJECT_REQUEST or DROP_HEADER"
    ))
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
