//! `check-config`: validates a filter's configuration with the parser that runs in the filter.
//!
//! The file has the filter's own object, a whole Envoy configuration or Kubernetes objects, in JSON or YAML, also several
//! documents of YAML. All configurations of the filter in it are validated. Kubernetes objects without one are left alone.
//! Any other document is taken for the filter's object, so that an error always names what is expected.

use serde_json::{Map, json};
use std::convert::Infallible;
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;
use weir_core::fields::{Bounds, FieldErrors, Value};
use weir_core::model::exact::Algorithm;
use weir_core::rules::rule::Rule;
use weir_core::rules::{
    Ban, Config, Cost, PluginConfig, ResponseCost, STAND_IN, Share, Written, object_name, recognise,
    static_clusters,
};

/// The module without response callbacks, and the one with them.
const MODULE: &str = "weir-filter.wasm";
const MODULE_OF_RESPONSES: &str = "weir-filter-responses.wasm";
/// The file name that stands for the standard input.
const STDIN: &str = "-";
/// Most cluster names in an error.
const NAMES_SHOWN: usize = 10;
/// The path of an error about a whole configuration.
const WHOLE: &str = "configuration";
const NOTHING_FOUND: &str = "no document of this file has a configuration of Weir's filter; expected a WasmPlugin, a \
    TrafficExtension, an EnvoyExtensionPolicy, an EnvoyFilter, an Envoy configuration or the filter's own object";

/// The result of a validation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What was found: each valid configuration with a summary of its rules.
    valid: Vec<(Place, String)>,
    errors: Vec<Problem>,
}

/// Where a configuration stands in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Place {
    /// The document's number from 1; 0 if the file has only one.
    document: usize,
    /// Kind and name of the Kubernetes object.
    object: Option<String>,
    /// The path in the document; empty for the filter's own object.
    path: String,
}

/// An error at a path in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Problem {
    place: Place,
    path: String,
    message: String,
}

/// Validates a file, or the standard input if the name is `-`. Returns the reason if it cannot be read.
pub fn check(file: &Path) -> Result<Report, String> {
    let read = match file == Path::new(STDIN) {
        true => {
            let mut text = Vec::new();
            std::io::stdin().lock().read_to_end(&mut text).map(|_| text)
        }
        false => std::fs::read(file),
    };
    let text = read.map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    Ok(check_text(&text))
}

/// Validates the content of a file.
pub fn check_text(text: &[u8]) -> Report {
    let mut report = Report::default();
    let documents = match documents(text) {
        Ok(documents) => documents,
        Err(error) => {
            match recognise(text, &Err::<serde_json::Value, _>(error)) {
                Ok(_) => report.judge_text(Place::default(), text),
                Err(message) => report.reject(Place::default(), "", message),
            }
            return report;
        }
    };
    // The filter's parser reports where JSON is wrong, and repeated fields.
    if let [_] | [] = documents.as_slice()
        && text.iter().find(|byte| !byte.is_ascii_whitespace()).is_none_or(|first| *first == b'{')
        && matches!(
            documents.first().map(|one| recognise_plain(&plain(one))),
            None | Some(Ok(Written::Filter))
        )
        && documents.first().and_then(|one| object_name(&plain(one))).is_none()
    {
        report.judge_text(Place::default(), text);
        return report;
    }
    let several = documents.len() > 1;
    for (number, document) in
        (1..).zip(&documents).filter(|(_, document)| !several || **document != Value::Null)
    {
        let json = plain(document);
        let place = Place {
            document: if several { number } else { 0 },
            object: object_name(&json),
            path: String::new(),
        };
        report.judge_document(&place, document, &json);
    }
    if report.valid.is_empty() && report.errors.is_empty() {
        report.reject(Place::default(), "", NOTHING_FOUND.to_owned());
    }
    report
}

/// The documents of a YAML text, which JSON is too.
fn documents(text: &[u8]) -> Result<Vec<Value<'_>>, serde_yaml_ng::Error> {
    serde_yaml_ng::Deserializer::from_slice(text)
        .map(|document| Value::read(document, Bounds::OF_A_FILE))
        .collect()
}

fn recognise_plain(json: &serde_json::Value) -> Result<Written, String> {
    recognise(b"", &Ok::<_, Infallible>(json.clone()))
}

/// A value without what JSON has not. Of repeated fields the last one is kept; `report_repeated` finds them.
fn plain(value: &Value<'_>) -> serde_json::Value {
    match value {
        Value::Null => serde_json::Value::Null,
        Value::Bool(value) => (*value).into(),
        Value::Unsigned(value) => (*value).into(),
        Value::Negative(value) => (*value).into(),
        Value::Float(value) => (*value).into(),
        Value::Text(text) => text.as_ref().into(),
        Value::List(items) => items.iter().map(plain).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| (name.to_string(), plain(value))).collect::<Map<_, _>>().into()
        }
    }
}

impl Report {
    /// Whether all that was found is valid.
    pub fn is_valid(&self) -> bool {
        self.errors.is_empty()
    }

    /// What was found, as text: a summary of the rules, or one line for each error.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let mut last = None;
        let errors = self.errors.iter().map(|problem| (&problem.place, problem.line()));
        let valid = self.valid.iter().map(|(place, summary)| (place, summary.clone()));
        let lines: Vec<_> = if self.is_valid() { valid.collect() } else { errors.collect() };
        for (place, line) in lines {
            let heading = place.heading();
            if last != Some(place) && !heading.is_empty() {
                // Writing to a `String` cannot fail.
                let _ = writeln!(text, "{heading}:");
            }
            let indent = if heading.is_empty() { "" } else { "  " };
            let _ = writeln!(text, "{indent}{}", line.replace('\n', &format!("\n{indent}")));
            last = Some(place);
        }
        text.trim_end().to_owned()
    }

    /// What was found, as one JSON object.
    pub fn to_json(&self) -> serde_json::Value {
        let of = |place: &Place, path: &str| {
            let path = if path == WHOLE { "" } else { path };
            let dot = if place.path.is_empty() || path.is_empty() { "" } else { "." };
            let path = format!("{}{dot}{path}", place.path);
            json!({ "document": place.document.max(1), "object": place.object, "path": path })
        };
        let with = |mut object: serde_json::Value, name: &str, text: &str| {
            object[name] = text.into();
            object
        };
        let valid = self.valid.iter().map(|(place, summary)| with(of(place, ""), "summary", summary));
        let errors = self.errors.iter();
        let errors =
            errors.map(|problem| with(of(&problem.place, &problem.path), "message", &problem.message));
        json!({
            "valid": self.is_valid(),
            "configurations": valid.collect::<Vec<_>>(),
            "errors": errors.collect::<Vec<_>>(),
        })
    }

    fn reject(&mut self, place: Place, path: impl Into<String>, message: String) {
        self.errors.push(Problem { place, path: path.into(), message });
    }

    fn reject_all(&mut self, place: &Place, errors: &FieldErrors) {
        for error in errors {
            self.reject(place.clone(), error.path.as_str(), error.message());
        }
        match errors.count() - errors.iter().count() {
            0 => {}
            more => self.reject(place.clone(), "", format!("and {more} more")),
        }
    }

    /// Validates the filter's own object.
    fn judge_text(&mut self, place: Place, text: &[u8]) {
        match Config::parse_with(text, &|_| Some(STAND_IN.to_owned())) {
            Ok(config) => self.valid.push((place, summary(&config))),
            Err(errors) => self.reject_all(&place, &errors),
        }
    }

    fn judge_document(&mut self, place: &Place, document: &Value<'_>, json: &serde_json::Value) {
        let before = self.errors.len();
        match recognise_plain(json) {
            // Also a `Kustomization`, whose field `resources` an Envoy configuration has too.
            Ok(Written::Filter) | Err(_) if place.object.is_some() => return,
            Ok(Written::Filter) => self.judge_text(place.clone(), json.to_string().as_bytes()),
            Ok(Written::Envoy(plugins)) => {
                let clusters = static_clusters(json);
                for plugin in &plugins {
                    self.judge_plugin(
                        Place { path: plugin.path.clone(), ..place.clone() },
                        plugin,
                        clusters.as_deref(),
                    );
                }
            }
            Err(message) => self.reject(place.clone(), "", message),
        }
        let mut repeated = Vec::new();
        find_repeated(document, String::new(), &mut repeated);
        let problem = |path| Problem {
            place: place.clone(),
            path,
            message: "it is given twice; expected one value".to_owned(),
        };
        drop(self.errors.splice(before..before, repeated.into_iter().map(problem)));
    }

    /// Validates a filter's configuration by itself, and against the document that contains it.
    fn judge_plugin(&mut self, place: Place, plugin: &PluginConfig, clusters: Option<&[&str]>) {
        let is_shown = |name: &str| plugin.variables.iter().any(|shown| shown == name);
        let variables = |name: &str| is_shown(name).then(|| STAND_IN.to_owned());
        let config = match Config::parse_with(plugin.json.as_bytes(), &variables) {
            Ok(config) => config,
            Err(errors) => return self.reject_all(&place, &errors),
        };
        let cluster = clusters.and_then(|clusters| no_such_cluster(&config.aggregator.cluster, clusters));
        let wrong = [cluster, wrong_module(&config, plugin)];
        if wrong.iter().all(Option::is_none) {
            return self.valid.push((place, summary(&config)));
        }
        for (path, message) in wrong.into_iter().flatten() {
            self.reject(place.clone(), path, message);
        }
    }
}

impl Place {
    fn heading(&self) -> String {
        let document = (self.document > 0).then(|| format!("document {}", self.document));
        let object = self.object.clone().filter(|_| self.document > 0);
        let path = Some(self.path.clone()).filter(|path| !path.is_empty());
        [document, object, path].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

impl Problem {
    fn line(&self) -> String {
        let colon = if self.path.is_empty() { "" } else { ": " };
        format!("{}{colon}{}", self.path, self.message)
    }
}

/// The paths of fields that an object has twice. A parser of YAML keeps one of them, and which one differs.
fn find_repeated(value: &Value<'_>, path: String, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (at, (name, child)) in fields.iter().enumerate() {
                let dot = if path.is_empty() { "" } else { "." };
                let path = format!("{path}{dot}{name}");
                if fields.iter().take(at).any(|(earlier, _)| earlier == name) {
                    found.push(path.clone());
                }
                find_repeated(child, path, found);
            }
        }
        Value::List(items) => {
            let each = items.iter().enumerate();
            each.for_each(|(at, item)| find_repeated(item, format!("{path}[{at}]"), found));
        }
        _ => {}
    }
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

fn summary(config: &Config) -> String {
    let Config { workspace, aggregator, rules, .. } = config;
    let head = format!(
        "valid: workspace {workspace:?}, aggregator cluster {:?}, {} {}",
        aggregator.cluster,
        rules.len(),
        if rules.len() == 1 { "rule" } else { "rules" },
    );
    let needs = config.needs_responses().map(|why| format!("needs {MODULE_OF_RESPONSES}, for {why}"));
    let lines = needs.into_iter().chain(addresses_summary(config)).chain(rules.iter().map(rule_summary));
    let lines = lines.chain(warnings(rules));
    lines.fold(head, |summary, line| format!("{summary}\n  {line}"))
}

/// Warns of rules that clients can evade by omitting a header or parameter, if no other rule limits such requests.
fn warnings(rules: &[Rule]) -> impl Iterator<Item = String> {
    rules.iter().enumerate().filter_map(|(at, rule)| {
        let (kind, name) = rule.left_out()?;
        if rule.shadow || rules.iter().any(|other| other.covers(rule)) {
            return None;
        }
        let name = String::from_utf8_lossy(name);
        Some(format!(
            "warning: rules[{at}].on_missing_identifier: skip allows every request without {kind} {name}; add a rule for such requests, or \
             use shared or deny"
        ))
    })
}

fn addresses_summary(config: &Config) -> Option<String> {
    let (allowed, denied) = config.addresses.listed;
    (allowed + denied > 0).then(|| format!("addresses: allowed {allowed}, denied {denied}"))
}

fn rule_summary(rule: &Rule) -> String {
    let Rule { name, namespace, limit, carried, duration_ms, hash, hard_limit, shadow, enforced, .. } = rule;
    let window = duration(*duration_ms);
    let limit = match carried {
        Some(carried) => format!("{limit} (or what the request carries, at most {})", carried.max),
        None => limit.to_string(),
    };
    let limited = match rule.algorithm {
        Algorithm::Window => format!("{limit} per {window} in namespace {namespace:?}"),
        Algorithm::Log => format!("{limit} per {window} in namespace {namespace:?}, by an exact log"),
        Algorithm::Ledger { zone } => format!("as zone {zone} of the ledger allows"),
    };
    let hashed = if *hash { ", identifiers hashed" } else { "" };
    let hard_limit = if *hard_limit { ", as a hard limit" } else { "" };
    let cost = cost_summary(&rule.cost);
    let overrides = match rule.overrides_listed() {
        0 => String::new(),
        1 => ", 1 override".to_owned(),
        many => format!(", {many} overrides"),
    };
    let ban = rule.ban.as_ref().map(ban_summary).unwrap_or_default();
    let shadow = match (*shadow, *enforced == Share::ALL) {
        (true, _) => ", in shadow mode: never denies".to_owned(),
        (false, false) => format!(", enforced for {enforced} % of identifiers"),
        (false, true) => String::new(),
    };
    format!("{name}: {limited}{hashed}{hard_limit}{cost}{overrides}{ban}{shadow}")
}

fn cost_summary(cost: &Cost) -> String {
    match cost {
        Cost::Fixed(1) => String::new(),
        Cost::Fixed(cost) => format!(", a request costs {cost}"),
        Cost::Header { name, max, .. } => {
            format!(", a request costs the value of {}, at most {max}", String::from_utf8_lossy(name))
        }
        Cost::Response(ResponseCost { name, reserve, max, .. }) => {
            let name = String::from_utf8_lossy(name);
            format!(
                ", a request costs the value of {name} in its response ({reserve} until then), at most {max}"
            )
        }
    }
}

fn ban_summary(Ban { threshold, window_ms, first_ms, max_duration_ms }: &Ban) -> String {
    let [within, first, longest] = [*window_ms, *first_ms, *max_duration_ms].map(duration);
    format!(", bans for {first}, up to {longest}, after {threshold} denials within {within}")
}

fn duration(ms: u64) -> impl std::fmt::Display {
    humantime::format_duration(Duration::from_millis(ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLUGIN: &str = r#"{"aggregator": {"cluster": "weir"}, "rules": [
        {"name": "keys", "namespace": "api", "identifier": [{"header": "x-api-key"}], "limit": 100, "window": "1h"}
    ]}"#;

    fn envoy(plugin: &str) -> String {
        let plugin = plugin.replace('\n', " ");
        format!(
            "static_resources:
  listeners:
  - filter_chains:
    - filters:
      - typed_config:
          http_filters:
          - name: weir
            typed_config:
              \"@type\": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm
              config:
                name: weir
                configuration:
                  \"@type\": type.googleapis.com/google.protobuf.StringValue
                  value: '{plugin}'
"
        )
    }

    #[test]
    fn verdicts() {
        let wrong_limit = PLUGIN.replace("100", "\"many\"");
        let log = PLUGIN.replace("\"limit\"", "\"algorithm\": \"sliding_log\", \"limit\"");
        let ledger = r#"{"aggregator": {"cluster": "weir"}, "rules": [{"name": "cards",
            "identifier": {"header": "x-card"}, "algorithm": "ledger", "zone": 7, "shadow_mode": true}]}"#;
        let cases = [
            (PLUGIN.to_owned(), Ok("keys: 100 per 1h in namespace \"api\"")),
            (envoy(PLUGIN), Ok("http_filters[0]")),
            (envoy(PLUGIN), Ok("keys: 100 per 1h")),
            (log, Ok("keys: 100 per 1h in namespace \"api\", by an exact log")),
            (ledger.to_owned(), Ok("cards: as zone 7 of the ledger allows, in shadow mode: never denies")),
            (ledger.replace("\"zone\": 7, ", ""), Err("rules[0].zone: ")),
            (wrong_limit.clone(), Err("rules[0].limit: ")),
            (envoy(&wrong_limit), Err("  rules[0].limit: ")),
            (envoy("{}"), Err("rules")),
            (envoy(PLUGIN).replace("weir", "other").replace("rules", "r"), Err("no Weir filter")),
            ("{\"rules\": [".to_owned(), Err("expected")),
            ("{}".to_owned(), Err("rules")),
            ("[]".to_owned(), Err("expected")),
            (String::new(), Err("expected")),
            ("a: b: c".to_owned(), Err("neither JSON nor YAML")),
            ("\u{feff}\0".to_owned(), Err("")),
        ];
        for (text, expected) in cases {
            let (sound, part) = expected.map_or_else(|part| (false, part), |part| (true, part));
            check_said(&text, sound, part);
        }
    }

    #[test]
    fn the_summary_names_what_changes_who_is_denied() {
        let with = |field: &str| PLUGIN.replace("\"limit\"", &format!("{field}, \"limit\""));
        let one = r#"{"identifier": "vip", "exempt": true}"#;
        for (text, part) in [
            (with("\"cost\": 3"), "\"api\", a request costs 3"),
            (
                with("\"hash\": true").replace("\"rules\"", "\"hash_key\": \"0123456789abcdef\", \"rules\""),
                "namespace \"api\", identifiers hashed",
            ),
            (
                with(r#""cost": {"request": {"header": "x-cost"}, "max": 5}"#),
                ", a request costs the value of x-cost, at most 5",
            ),
            (
                with(r#""cost": {"response": {"header": "x-used"}, "reserve": 2, "max": 9}"#),
                ", a request costs the value of x-used in its response (2 until then), at most 9",
            ),
            (with("\"enforce_percent\": 0.5"), "\"api\", enforced for 0.5 % of identifiers"),
            (with(&format!("\"overrides\": [{one}]")), "\"api\", 1 override"),
            (
                with(&format!("\"overrides\": [{one}, {{\"identifier\": \"t*\", \"limit\": 5}}]")),
                ", 2 overrides",
            ),
            (
                with(r#""ban": {"threshold": 100, "window": "1m", "duration": "10m"}"#),
                "\"api\", bans for 10m, up to 1day, after 100 denials within 1m",
            ),
            (
                PLUGIN.replace(
                    "\"rules\"",
                    r#""client_networks": {"exempt": ["10.0.0.0/8"], "deny": ["::1", "::2"]}, "rules""#,
                ),
                "\n  addresses: allowed 1, denied 2\n",
            ),
        ] {
            check_said(&text, true, part);
        }
    }

    #[test]
    fn a_rule_that_clients_escape_is_warned_of() {
        let rule = |name: &str, fields: &str| {
            format!(r#"{{"name": "{name}", "limit": 1, "window": "1s", {fields}}}"#)
        };
        let by_key =
            r#""on_missing_identifier": "skip", "identifier": [{"constant": "c"}, {"header": "x-key"}]"#;
        let by_address = r#""identifier": {"client_address": {}}"#;
        let on = r#", "match": {"path": {"regex": "/v1/.*"}}"#;
        let alone = rule("key", by_key);
        for (rules, warned) in [
            (alone.clone(), true),
            (format!("{}, {alone}", rule("all", by_address)), false),
            (format!("{}, {alone}", rule("all", &format!("{by_address}, \"shadow_mode\": true"))), true),
            (format!("{}, {alone}", rule("all", &format!("{by_address}, \"enforce_percent\": 99"))), true),
            (format!("{}, {alone}", rule("all", &format!("{by_address}{on}"))), true),
            (
                format!(
                    "{}, {}",
                    rule("a", &format!("{by_address}{on}")),
                    rule("b", &format!("{by_key}{on}"))
                ),
                false,
            ),
            (rule("key", &format!("{by_key}, \"shadow_mode\": true")), false),
            (alone.replace("skip", "shared"), false),
            (rule("address", &format!("\"on_missing_identifier\": \"skip\", {by_address}")), false),
        ] {
            let text = format!(r#"{{"aggregator": {{"cluster": "weir"}}, "rules": [{rules}]}}"#);
            let report = valid(&text);
            assert_eq!(report.contains("].on_missing_identifier: skip allows"), warned, "{text}\n{report}");
            assert_eq!(report.contains("without header x-key"), warned, "{text}\n{report}");
        }
    }

    #[test]
    fn the_module_is_held_against_the_configuration() {
        let headers_on_allowed =
            PLUGIN.replace("\"rules\"", "\"responses\": {\"headers_on_allowed\": true}, \"rules\"");
        let responsive = PLUGIN.replace(
            "\"limit\"",
            "\"cost\": {\"response\": {\"header\": \"x-used\"}, \"reserve\": 1, \"max\": 9}, \"limit\"",
        );
        let loading = |plugin: &str, module: &str| {
            let code = format!(
                "vm_config: {{code: {{local: {{filename: {module}}}}}}}\n                configuration:"
            );
            envoy(plugin).replace("configuration:", &code)
        };
        for (text, sound, part) in [
            (
                headers_on_allowed.clone(),
                true,
                "needs weir-filter-responses.wasm, for responses.headers_on_allowed",
            ),
            (responsive.clone(), true, "needs weir-filter-responses.wasm, for rules[0].cost.response.header"),
            (envoy(&headers_on_allowed), true, "needs weir-filter-responses.wasm"),
            (
                loading(&headers_on_allowed, "/etc/envoy/weir-filter.wasm"),
                false,
                "responses.headers_on_allowed: the module \"/etc/envoy/weir-filter.wasm\" receives no responses; expected \
                 weir-filter-responses.wasm in vm_config.code",
            ),
            (loading(&responsive, "weir-filter.wasm"), false, "rules[0].cost.response.header: the module"),
            (loading(&headers_on_allowed, "/etc/envoy/weir-filter-responses.wasm"), true, "valid"),
            (
                loading(&headers_on_allowed, "/etc/envoy/plugin.wasm"),
                true,
                "needs weir-filter-responses.wasm",
            ),
            (loading(PLUGIN, "/etc/envoy/weir-filter.wasm"), true, "valid"),
        ] {
            check_said(&text, sound, part);
        }
        let report = valid(PLUGIN);
        assert!(!report.contains("needs"), "{report}");
    }

    #[test]
    fn the_cluster_is_held_against_those_of_the_file() {
        let with = |names: &str, rest: &str| format!("{}  clusters: [{names}]\n{rest}", envoy(PLUGIN));
        let many: Vec<String> = (0..12).map(|number| format!("{{name: c{number}}}")).collect();
        for (text, sound, part) in [
            (with("{name: web}, {name: weir}", ""), true, "valid"),
            (
                with("{name: web}, {name: weird}", ""),
                false,
                "aggregator.cluster: this file has no cluster \"weir\"; expected one of \"web\", \"weird\"",
            ),
            (with(&many.join(", "), ""), false, "\"c9\", …"),
            (with("{name: web}", "dynamic_resources: {cds_config: {}}\n"), true, "valid"),
            (with("", ""), true, "valid"),
        ] {
            check_said(&text, sound, part);
        }
    }

    #[test]
    fn environment_variables_are_held_against_those_that_are_shown() {
        let from_variable = PLUGIN.replace("\"rules\"", "\"hash_key_env\": \"KEY\", \"rules\"");
        let shown = |variables: &str| {
            let vm =
                format!("vm_config: {{environment_variables: {variables}}}\n                configuration:");
            envoy(&from_variable).replace("configuration:", &vm)
        };
        for (text, sound, part) in [
            (from_variable.clone(), true, "valid"),
            (envoy(&from_variable), false, "hash_key_env: the filter has no environment variable \"KEY\""),
            (shown("{host_env_keys: [OTHER]}"), false, "hash_key_env"),
            (shown("{host_env_keys: [OTHER, KEY]}"), true, "valid"),
            (shown("{key_values: {KEY: value}}"), true, "valid"),
        ] {
            check_said(&text, sound, part);
        }
    }

    fn check_said(text: &str, sound: bool, part: &str) {
        let report = check_text(text.as_bytes());
        assert_eq!(report.is_valid(), sound, "{text}\n{report:?}");
        let report = report.to_text();
        assert!(report.contains(part), "{text}\nhas {report}\nnot {part}");
    }

    fn valid(text: &str) -> String {
        let report = check_text(text.as_bytes());
        assert!(report.is_valid(), "{text}\n{report:?}");
        report.to_text()
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let reason = check(Path::new("/nowhere/weir.json")).unwrap_err();
        assert!(reason.contains("/nowhere/weir.json"), "{reason}");
    }

    /// PLUGIN in YAML, at an indent.
    fn yaml(limit: &str, indent: usize) -> String {
        let lines = [
            "aggregator: { cluster: weir }".to_owned(),
            "rules:".to_owned(),
            format!("- {{ name: keys, identifier: {{ header: x-api-key }}, limit: {limit}, window: 1h }}"),
        ];
        lines.map(|line| format!("{:indent$}{line}\n", "")).concat()
    }

    fn object(kind: &str, spec: &str) -> String {
        format!("apiVersion: v1\nkind: {kind}\nmetadata: {{ name: weir }}\n{spec}")
    }

    #[test]
    fn what_operators_ship_is_read() {
        let of_istio =
            |limit: &str| object("WasmPlugin", &format!("spec:\n  pluginConfig:\n{}", yaml(limit, 4)));
        let extension =
            object("TrafficExtension", &format!("spec:\n  wasm:\n    pluginConfig:\n{}", yaml("many", 6)));
        let gateway = object(
            "EnvoyExtensionPolicy",
            &format!("spec:\n  wasm:\n  - name: weir\n    config:\n{}", yaml("-1", 6)),
        );
        let config_map = object("ConfigMap", "data: { rules: \"[7]\" }\n");
        let several = |documents: &[&str]| documents.join("---\n");
        check_said(&yaml("5", 0), true, "keys: 5 per 1h");
        check_said(&yaml("many", 0), false, "rules[0].limit: \"many\" is not");
        check_said(&of_istio("5"), true, "spec.pluginConfig:\n  valid");
        check_said(&of_istio("many"), false, "spec.pluginConfig:\n  rules[0].limit: ");
        check_said(
            &several(&[&config_map, &of_istio("5")]),
            true,
            "document 2, WasmPlugin weir, spec.pluginConfig:\n  valid",
        );
        let kustomization = object("Kustomization", "resources: [a.yaml]\n");
        check_said(&several(&[&kustomization, &of_istio("5")]), true, "document 2, WasmPlugin weir");
        check_said(&config_map, false, "no document of this file has a configuration of Weir's filter");
        check_said(&several(&[&config_map, "---\n"]), false, "no document of this file");
        let all = several(&["~\n", &of_istio("5"), &extension, &config_map, &gateway, &yaml("0.5", 0)]);
        let report = check_text(all.as_bytes());
        assert_eq!(report.to_text().lines().count(), 6, "{}", report.to_text());
        let json = report.to_json();
        assert_eq!((&json["valid"], &json["configurations"][0]["document"]), (&false.into(), &2.into()));
        let errors = json["errors"].as_array().unwrap();
        let places = errors.iter().map(|error| {
            assert!(error["message"].as_str().unwrap().contains("expected a whole number"), "{error}");
            (error["document"].as_u64().unwrap(), error["object"].as_str(), error["path"].as_str().unwrap())
        });
        let expected = [
            (3, Some("TrafficExtension weir"), "spec.wasm.pluginConfig.rules[0].limit"),
            (5, Some("EnvoyExtensionPolicy weir"), "spec.wasm[0].config.rules[0].limit"),
            (6, None, "rules[0].limit"),
        ];
        assert_eq!(places.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn one_object_of_json_has_the_result() {
        let errors = |text: &str| check_text(text.as_bytes()).to_json();
        let sound = errors(PLUGIN);
        assert_eq!((&sound["valid"], &sound["errors"]), (&true.into(), &json!([])));
        assert!(sound["configurations"][0]["summary"].as_str().unwrap().contains("keys: 100 per 1h"));
        let whole = json!([{ "document": 1, "object": null, "path": "", "message": "it is empty; expected a JSON object" }]);
        assert_eq!(errors("")["errors"], whole);
        assert_eq!(errors("a: b: c")["errors"].as_array().unwrap().len(), 1);
        let path =
            errors(&envoy(&PLUGIN.replace("100", "-1")))["errors"][0]["path"].as_str().unwrap().to_owned();
        assert!(path.ends_with(".config.configuration.value.rules[0].limit"), "{path}");
    }

    #[test]
    fn a_field_given_twice_in_yaml_is_found() {
        let twice = object("WasmPlugin", &format!("spec:\n  pluginConfig:\n{}    rules: []\n", yaml("5", 4)));
        check_said(&twice, false, "spec.pluginConfig.rules: it is given twice");
        check_said(&format!("{}rules: []\n", yaml("5", 0)), false, "rules: it is given twice");
    }
}
