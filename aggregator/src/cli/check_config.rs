//! `check-config`: validates a filter's configuration with the parser that runs in the filter.
//!
//! The file is the filter's JSON, or a whole Envoy configuration in YAML or JSON, of which every Weir filter is
//! validated. Any other file is treated as the filter's JSON, so that an error always names what is expected.

use std::fmt::Write as _;
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;
use weir_core::model::exact::Algorithm;
use weir_core::rules::rule::Rule;
use weir_core::rules::{
    Ban, Config, Cost, PluginConfig, ResponseCost, STAND_IN, Share, Written, recognise, static_clusters,
};

/// The module without response callbacks, and the one with them.
const MODULE: &str = "weir-filter.wasm";
const MODULE_OF_RESPONSES: &str = "weir-filter-responses.wasm";
/// The file name that stands for the standard input.
const STDIN: &str = "-";
/// Most cluster names in an error.
const NAMES_SHOWN: usize = 10;

/// The result of a validation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Valid; a summary of the rules.
    Sound(String),
    /// Invalid; one line for each error.
    Wrong(String),
    /// The file could not be read.
    Unreadable(String),
}

/// Validates a file, or the standard input if the name is `-`.
pub fn check(file: &Path) -> Verdict {
    let read = match file == Path::new(STDIN) {
        true => {
            let mut text = Vec::new();
            std::io::stdin().lock().read_to_end(&mut text).map(|_| text)
        }
        false => std::fs::read(file),
    };
    match read {
        Ok(text) => check_text(&text),
        Err(error) => Verdict::Unreadable(format!("cannot read {}: {error}", file.display())),
    }
}

/// Validates the content of a file.
pub fn check_text(text: &[u8]) -> Verdict {
    let parsed = serde_yaml_ng::from_slice(text);
    match recognise(text, &parsed) {
        Ok(Written::Filter) => judge_plugin(text),
        Ok(Written::Envoy(plugins)) => {
            let clusters = parsed.as_ref().ok().and_then(static_clusters);
            judge_envoy(&plugins, clusters.as_deref())
        }
        Err(error) => Verdict::Wrong(error),
    }
}

fn judge_plugin(text: &[u8]) -> Verdict {
    match Config::parse_with(text, &|_| Some(STAND_IN.to_owned())) {
        Ok(config) => Verdict::Sound(summary(&config)),
        Err(errors) => Verdict::Wrong(errors.to_string()),
    }
}

fn judge_envoy(plugins: &[PluginConfig], clusters: Option<&[&str]>) -> Verdict {
    let (mut sound, mut wrong) = (String::new(), String::new());
    for plugin in plugins {
        let (place, report) = match judge_among(plugin, clusters) {
            Ok(report) => (&mut sound, report),
            Err(errors) => (&mut wrong, errors),
        };
        let report = report.replace('\n', "\n  ");
        // Writing to a `String` cannot fail.
        let _ = writeln!(place, "{}:\n  {report}", plugin.path);
    }
    if wrong.is_empty() {
        return Verdict::Sound(sound.trim_end().to_owned());
    }
    Verdict::Wrong(wrong.trim_end().to_owned())
}

/// Validates a filter's configuration by itself, and against the Envoy configuration that contains it.
fn judge_among(plugin: &PluginConfig, clusters: Option<&[&str]>) -> Result<String, String> {
    let is_shown = |name: &str| plugin.variables.iter().any(|shown| shown == name);
    let variables = |name: &str| is_shown(name).then(|| STAND_IN.to_owned());
    let config =
        Config::parse_with(plugin.json.as_bytes(), &variables).map_err(|errors| errors.to_string())?;
    let cluster = clusters.and_then(|clusters| no_such_cluster(&config.aggregator.cluster, clusters));
    let errors: Vec<String> = [cluster, wrong_module(&config, plugin)].into_iter().flatten().collect();
    if errors.is_empty() { Ok(summary(&config)) } else { Err(errors.join("\n")) }
}

fn no_such_cluster(cluster: &str, clusters: &[&str]) -> Option<String> {
    if clusters.contains(&cluster) {
        return None;
    }
    let mut names: Vec<String> = clusters.iter().take(NAMES_SHOWN).map(|name| format!("{name:?}")).collect();
    if clusters.len() > NAMES_SHOWN {
        names.push("…".to_owned());
    }
    let names = names.join(", ");
    Some(format!("aggregator.cluster: this file has no cluster {cluster:?}; expected one of {names}"))
}

/// Rejects a module without response callbacks where the configuration needs them: Envoy would reject the listener. A
/// module with another name may be either.
fn wrong_module(config: &Config, plugin: &PluginConfig) -> Option<String> {
    let module = plugin.module.as_deref()?;
    if module.rsplit('/').next() != Some(MODULE) {
        return None;
    }
    let why = config.needs_responses()?;
    Some(format!(
        "{why}: the module {module:?} receives no responses; expected {MODULE_OF_RESPONSES} in vm_config.code"
    ))
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
    let Rule { name, namespace, limit, duration_ms, hash, hard_limit, shadow, enforced, .. } = rule;
    let window = duration(*duration_ms);
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
            match (check_text(text.as_bytes()), expected) {
                (Verdict::Sound(report), Ok(part)) | (Verdict::Wrong(report), Err(part)) => {
                    assert!(report.contains(part), "{text}\nhas {report}\nnot {part}");
                }
                (verdict, _) => panic!("{text}\n{verdict:?}\nnot {expected:?}"),
            }
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
            let Verdict::Sound(report) = check_text(text.as_bytes()) else { panic!("{text}") };
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
        let Verdict::Sound(report) = check_text(PLUGIN.as_bytes()) else {
            panic!("the configuration must be valid")
        };
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
        match (check_text(text.as_bytes()), sound) {
            (Verdict::Sound(report), true) | (Verdict::Wrong(report), false) => {
                assert!(report.contains(part), "{text}\nhas {report}\nnot {part}");
            }
            (verdict, _) => panic!("{text}\n{verdict:?}\nnot {part}"),
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let verdict = check(Path::new("/nowhere/weir.json"));
        assert!(matches!(verdict, Verdict::Unreadable(report) if report.contains("/nowhere/weir.json")));
    }
}
