//! `check-config`: a filter's configuration, judged by the parser that runs in the filter.
//!
//! The file is the filter's JSON itself, or a whole Envoy configuration in YAML or JSON, of which every Weir filter is
//! judged. What is neither is judged as the filter's, so that an error always names what is expected.
//!
//! Leaves to others: which of the two it is, what is right and what is wrong (`weir_core::rules`), printing and exit codes
//! (`main`).

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;
use weir_core::exact::Strategy;
use weir_core::rules::rule::Rule;
use weir_core::rules::{Config, PluginConfig, Written, tell_written};

/// What is to be said of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All of it can be used; a summary of the rules.
    Sound(String),
    /// Every error, a line each.
    Wrong(String),
    /// The file could not be read.
    Unreadable(String),
}

/// Judges a file.
pub fn check(file: &Path) -> Verdict {
    match std::fs::read(file) {
        Ok(text) => check_text(&text),
        Err(error) => Verdict::Unreadable(format!("cannot read {}: {error}", file.display())),
    }
}

/// Judges what was in a file.
pub fn check_text(text: &[u8]) -> Verdict {
    match tell_written(text, &serde_yaml_ng::from_slice(text)) {
        Ok(Written::Filter) => judge_plugin(text),
        Ok(Written::Envoy(plugins)) => judge_envoy(&plugins),
        Err(error) => Verdict::Wrong(error),
    }
}

fn judge_plugin(text: &[u8]) -> Verdict {
    match Config::parse(text) {
        Ok(config) => Verdict::Sound(summary(&config)),
        Err(errors) => Verdict::Wrong(errors.to_string()),
    }
}

fn judge_envoy(plugins: &[PluginConfig]) -> Verdict {
    let (mut sound, mut wrong) = (String::new(), String::new());
    for plugin in plugins {
        let (place, said) = match Config::parse(plugin.json.as_bytes()) {
            Ok(config) => (&mut sound, summary(&config)),
            Err(errors) => (&mut wrong, errors.to_string()),
        };
        let said = said.replace('\n', "\n  ");
        // Writing into a string has no error.
        let _ = writeln!(place, "{}:\n  {said}", plugin.path);
    }
    if wrong.is_empty() {
        return Verdict::Sound(sound.trim_end().to_owned());
    }
    Verdict::Wrong(wrong.trim_end().to_owned())
}

fn summary(config: &Config) -> String {
    let Config { workspace, aggregator, rules, .. } = config;
    let head = format!(
        "sound: workspace {workspace:?}, aggregator cluster {:?}, {} {}",
        aggregator.cluster,
        rules.len(),
        if rules.len() == 1 { "rule" } else { "rules" },
    );
    rules.iter().fold(head, |summary, rule| format!("{summary}\n  {}", rule_summary(rule)))
}

fn rule_summary(rule: &Rule) -> String {
    let Rule { name, namespace, limit, duration_ms, ceiling, shadow, .. } = rule;
    let window = humantime::format_duration(Duration::from_millis(*duration_ms));
    let limited = match rule.strategy {
        Strategy::Window => format!("{limit} per {window} in namespace {namespace:?}"),
        Strategy::Log => format!("{limit} per {window} in namespace {namespace:?}, by an exact log"),
        Strategy::Ledger { zone } => format!("what zone {zone} of the ledger allows"),
    };
    let ceiling = if *ceiling { ", at most that in any window" } else { "" };
    let shadow = if *shadow { ", in shadow: never denies" } else { "" };
    format!("{name}: {limited}{ceiling}{shadow}")
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
        let log = PLUGIN.replace("\"limit\"", "\"strategy\": \"log\", \"limit\"");
        let ledger = r#"{"aggregator": {"cluster": "weir"}, "rules": [{"name": "cards",
            "identifier": {"header": "x-card"}, "strategy": "ledger", "zone": 7, "shadow": true}]}"#;
        let cases = [
            (PLUGIN.to_owned(), Ok("keys: 100 per 1h in namespace \"api\"")),
            (envoy(PLUGIN), Ok("http_filters[0]")),
            (envoy(PLUGIN), Ok("keys: 100 per 1h")),
            (log, Ok("keys: 100 per 1h in namespace \"api\", by an exact log")),
            (ledger.to_owned(), Ok("cards: what zone 7 of the ledger allows, in shadow: never denies")),
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
                (Verdict::Sound(said), Ok(part)) | (Verdict::Wrong(said), Err(part)) => {
                    assert!(said.contains(part), "{text}\nsaid {said}\nnot {part}");
                }
                (verdict, _) => panic!("{text}\n{verdict:?}\nnot {expected:?}"),
            }
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let verdict = check(Path::new("/nowhere/weir.json"));
        assert!(matches!(verdict, Verdict::Unreadable(said) if said.contains("/nowhere/weir.json")));
    }
}
