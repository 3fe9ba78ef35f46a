//! Reads what an operator pastes: a rule, a list of rules, a filter's configuration, or a whole Envoy configuration, as
//! JSON or YAML.
//!
//! The text is checked by the parser that runs in the filter. Of a rule, its limit and its decision are simulated;
//! which requests match it is defined by the traffic.

use crate::bounds::{RULES_MAX, SAFE_MAX};
use serde::Serialize;
use serde_json::Value as Json;
use std::borrow::Cow;
use weir_core::fields::{Bounds, Value, yaml};
use weir_core::model::exact::Algorithm;
use weir_core::rules::{
    self, Config, Documents, OnFailure, STAND_IN, UnknownKey, Written, documents, recognise,
};
use weir_simulator::plan::Rule;

const MB: usize = 1 << 20;
/// The filter refuses a larger configuration.
const TEXT_BYTES_MAX: usize = rules::config::CONFIG_BYTES_MAX;

/// What was found in a text. It can be simulated if there are rules and no errors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Judged {
    /// In the order of the text.
    pub rules: Vec<Found>,
    /// All errors.
    pub errors: Vec<Wrong>,
    /// Remarks on what is valid but is not simulated.
    pub notes: Vec<String>,
    /// The text as a filter's configuration in YAML, to be copied; absent with errors, and if the text has several filters.
    pub yaml: Option<String>,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Found {
    /// Its name.
    pub name: String,
    /// The rule in the simulator's format.
    pub rule: Rule,
}

/// An error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Wrong {
    /// The path of the value; empty for the text as a whole.
    pub path: String,
    /// The problem, and what is expected.
    pub message: String,
}

/// Parses and checks a text.
pub fn judge(text: &str) -> Judged {
    if text.len() > TEXT_BYTES_MAX {
        let (got, most) = (text.len() as f64 / MB as f64, TEXT_BYTES_MAX / MB);
        return Judged::wrong(format!(
            "{got:.1} MB are too much to read here; expected at most {most} MB, such as the filter's configuration alone"
        ));
    }
    if text.trim_ascii().is_empty() {
        return Judged::wrong(
            "it is empty; expected a rule, the filter's configuration or one of Envoy's".to_owned(),
        );
    }
    let read = documents(text.as_bytes()).and_then(|read| {
        let is_json = matches!(read, Documents::Json(_));
        read.into_one().map(|document| (document, is_json))
    });
    let (document, is_json) = match read {
        Ok(read) => read,
        Err(message) => return Judged::wrong(message),
    };
    let json = document.value.to_json();
    let mut judged = Judged::default();
    match recognise(&json) {
        Err(message) => return Judged::wrong(message),
        Ok(Written::Envoy(plugins)) => {
            judged.yaml = match plugins.as_slice() {
                [plugin] => {
                    Value::parse(plugin.json.as_bytes(), Bounds::OF_A_FILE).ok().as_ref().map(yaml_of)
                }
                _ => None,
            };
            plugins.iter().for_each(|one| judged.add(&one.path, &one.json));
        }
        Ok(Written::Filter) => {
            judged.yaml = Some(yaml_of(&document.value));
            // JSON is passed on as text, since its parser reports fields that are given twice.
            match is_json {
                true => judged.add("", &as_config(&json, text)),
                false => judged.add("", &as_config(&json, &json.to_string())),
            }
        }
    }
    if !is_json {
        judged.errors.extend(document.repeated.iter().map(|field| Wrong {
            path: field.path.clone(),
            message: format!("{}; expected one value", field.problem()),
        }));
    }
    judged.close();
    judged.yaml = judged.yaml.take().filter(|_| judged.errors.is_empty());
    judged
}

/// A complete configuration as YAML, with the fields in the order of the text.
fn yaml_of(value: &Value<'_>) -> String {
    let is_rule = |value: &Value<'_>| is_rule(&value.to_json());
    let rules = match value {
        Value::List(rules) if rules.iter().any(is_rule) => value.clone(),
        rule if is_rule(rule) => Value::List(vec![rule.clone()]),
        whole => return yaml::write(whole),
    };
    let cluster = Value::Object(vec![("cluster".into(), Value::Text("weir_aggregator".into()))]);
    yaml::write(&Value::Object(vec![("aggregator".into(), cluster), ("rules".into(), rules)]))
}

/// A complete configuration: the pasted text, with the other fields added around a rule or a list of rules.
fn as_config<'a>(value: &Json, json: &'a str) -> Cow<'a, str> {
    let around =
        |rules: &str| format!(r#"{{"aggregator": {{"cluster": "weir_aggregator"}}, "rules": {rules}}}"#);
    match value {
        Json::Array(rules) if rules.iter().any(is_rule) => around(json).into(),
        rule if is_rule(rule) => around(&format!("[{json}]")).into(),
        _ => json.into(),
    }
}

fn is_rule(value: &Json) -> bool {
    let has = |field: &&str| value.get(field).is_some();
    !["rules", "aggregator"].iter().any(has) && ["identifier", "limit", "window"].iter().any(has)
}

impl Judged {
    fn wrong(message: String) -> Judged {
        Judged { errors: vec![Wrong { path: String::new(), message }], ..Judged::default() }
    }

    /// Adds the rules or errors of a plugin's configuration at `place`.
    fn add(&mut self, place: &str, json: &str) {
        match Config::parse_with(json.as_bytes(), &|_| Some(STAND_IN.to_owned())) {
            Ok(config) => config.rules.iter().for_each(|rule| self.find(rule)),
            Err(errors) => self.errors.extend(errors.iter().map(|error| {
                Wrong {
                    path: [place, &error.path]
                        .into_iter()
                        .filter(|part| !part.is_empty())
                        .collect::<Vec<_>>()
                        .join(": "),
                    message: format!("{}; expected {}", error.problem, error.expected),
                }
            })),
        }
    }

    /// Adds the error, if any, of the text as a whole.
    fn close(&mut self) {
        let message = match (self.rules.len(), self.notes.is_empty()) {
            _ if !self.errors.is_empty() => return,
            (0, true) => "there is no rule in it".to_owned(),
            (0, false) => "none of its rules can be simulated, as they have no window".to_owned(),
            (count, _) if count > RULES_MAX => {
                format!("{count} rules are too many to simulate here; expected at most {RULES_MAX}")
            }
            _ => return,
        };
        self.errors.push(Wrong { path: String::new(), message });
    }

    fn find(&mut self, rule: &rules::Rule) {
        let name = rule.name.clone();
        if rule.limit > SAFE_MAX {
            let message = format!("{} is too much to simulate here; expected at most 2⁵³ - 1", rule.limit);
            return self.errors.push(Wrong { path: format!("{name}: limit"), message });
        }
        if rule.algorithm != Algorithm::Window {
            let how = rule.algorithm.kind().word();
            self.notes.push(format!("{name} uses a {how}, which is always exact, and is not simulated"));
            return;
        }
        let (limit, window_ms, hard_limit) = (rule.limit, rule.duration_ms, rule.hard_limit);
        let timeout_ms = u32::try_from(rule.timeout_ms).unwrap_or(u32::MAX);
        let deny_on_failure = rule.on_failure == OnFailure::Deny;
        let trust_first = rule.unknown_key == UnknownKey::AssumeLow;
        let shadow = rule.shadow;
        let rule = Rule {
            hard_limit,
            timeout_ms,
            deny_on_failure,
            trust_first,
            shadow,
            ..Rule::new(limit, window_ms)
        };
        self.rules.push(Found { name, rule });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const RULE: &str = r#"{"name": "keys", "identifier": {"header": "x-api-key"}, "limit": 100, "window": "10s",
        "hard_limit": true, "timeout": "70ms", "on_failure": "deny", "unknown_key": "assume_low"}"#;

    const RULE_IN_YAML: &str = "name: keys\nidentifier: {header: x-api-key}\nlimit: 100\nwindow: 10s\n";

    fn whole(rules: &str) -> String {
        format!(r#"{{"aggregator": {{"cluster": "weir"}}, "rules": [{rules}]}}"#)
    }

    fn envoy(plugin: &str) -> String {
        let filter = json!({"name": "weir", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
            "config": {"name": "weir", "configuration": {
                "@type": "type.googleapis.com/google.protobuf.StringValue", "value": plugin}}}});
        json!({"static_resources": {"listeners": [{"http_filters": [filter]}]}}).to_string()
    }

    #[test]
    fn words_that_others_read_as_booleans_are_quoted() {
        let yaml = judge(&RULE.replace("keys", "on")).yaml.unwrap();
        assert!(yaml.contains("name: 'on'\n"), "{yaml}");
    }

    #[test]
    fn a_rule_is_found_in_every_kind_of_text() {
        let rule = Rule {
            hard_limit: true,
            timeout_ms: 70,
            deny_on_failure: true,
            trust_first: true,
            ..Rule::new(100, 10_000)
        };
        let yaml = "name: keys\nidentifier: {header: x-api-key}\nlimit: 100\nwindow: 10s\nhard_limit: true\n\
            timeout: 70ms\non_failure: deny\nunknown_key: assume_low\n";
        let expected = vec![Found { name: "keys".to_owned(), rule }];
        let yaml_whole = format!("aggregator: {{cluster: weir}}\nrules:\n- {RULE}\n");
        let flow = RULE.replace('"', "");
        for text in [RULE, &format!("[{RULE}]"), &whole(RULE), &envoy(&whole(RULE)), yaml, &yaml_whole, &flow]
        {
            let judged = judge(text);
            assert_eq!(
                (&judged.rules, &judged.errors, &judged.notes),
                (&expected, &vec![], &vec![]),
                "{text}"
            );
            let yaml = judged.yaml.unwrap();
            assert!(yaml.starts_with("aggregator:\n  cluster: weir"), "{yaml}");
            assert_eq!(judge(&yaml).rules, expected, "{yaml}");
        }
        let log = r#"{"name": "l", "identifier": {"header": "a"}, "limit": 1, "window": "1s", "algorithm": "sliding_log"}"#;
        let judged = judge(&whole(&format!("{RULE}, {log}")));
        assert_eq!((judged.rules, judged.errors, judged.notes.len()), (expected, Vec::new(), 1));
        let judged = judge(log);
        assert!(judged.errors[0].message.contains("no window") && judged.notes.len() == 1, "{judged:?}");
    }

    #[test]
    fn the_rules_of_all_examples_are_found() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
        let mut files: Vec<_> =
            files.filter(|path| path.extension().is_some_and(|it| it == "json")).collect();
        assert!(files.len() > 3, "{files:?}");
        files.push(format!("{folder}/../envoy/deploy/docker/envoy.yaml").into());
        for file in files {
            let judged = judge(&std::fs::read_to_string(&file).unwrap());
            // Exact limits are not simulated, and these examples have no others.
            if file.ends_with("one-time-passwords.json") || file.ends_with("payments.json") {
                assert!(judged.rules.is_empty() && !judged.notes.is_empty(), "{file:?}: {judged:?}");
                continue;
            }
            assert!(judged.errors.is_empty() && !judged.rules.is_empty(), "{file:?}: {judged:?}");
            let copied = judge(&judged.yaml.unwrap());
            assert!(copied.errors.is_empty() && copied.rules == judged.rules, "{file:?}: {copied:?}");
        }
    }

    #[test]
    fn errors_have_the_path_of_the_value() {
        let wrong = RULE.replace("100", "\"many\"").replace("10s", "never");
        let many: Vec<String> =
            (0..=RULES_MAX).map(|at| RULE.replace("\"keys\"", &format!("\"{at}\""))).collect();
        let many = many.join(",");
        for (text, place, count) in [
            (wrong.clone(), "rules[0].limit", 2),
            (whole(&wrong), "rules[0].limit", 2),
            (envoy(&whole(&wrong)), "http_filters[0]", 2),
            (envoy(&whole(RULE)).replace("\"weir", "\"other").replace("rules", "r"), "", 1),
            (RULE.replace("\"limit\"", "\"limit\": 5, \"limit\""), "rules[0].limit", 1),
            (RULE.replace("\"limit\": 100,", ""), "rules[0].limit", 1),
            (RULE.replace("100", "9007199254740992"), "keys: limit", 1),
            (whole(&many), "", 1),
            (whole(""), "", 1),
            (" ".repeat(TEXT_BYTES_MAX + 1), "", 1),
            ("a: b: c".to_owned(), "", 1),
            ("{\"rules\": [".to_owned(), "", 1),
            (format!("{}\nlimit: 5\n", RULE_IN_YAML), "limit", 1),
            (format!("{RULE_IN_YAML}---\n{RULE_IN_YAML}"), "", 1),
            (" \n".to_owned(), "", 1),
        ] {
            let judged = judge(&text);
            assert_eq!((judged.errors.len(), &judged.yaml), (count, &None), "{text}: {:?}", judged.errors);
            assert!(judged.errors[0].path.contains(place), "{text}: {:?}", judged.errors);
        }
    }
}
