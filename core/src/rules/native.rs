//! What a configuration may not name for the native filter: values that Envoy does not pass to dynamic modules.
//!
//! Envoy's interface for these has what is at the top of the metadata of a filter: no typed metadata, and nothing below an object. Without
//! this check such a rule would find no value, and limit nothing.

use crate::fields::{Errors, Path, Value};
use alloc::borrow::Cow;
use alloc::format;

/// The sources of use whose keys are at the top of metadata or below, as an object or in `metadata`.
const KEYED: [&str; 2] = ["ai_gateway", "metadata"];
const WITH_WASM: &str = "the WASM filter for it";

/// Records an error for each value in `json`, a valid configuration, which the native filter cannot read.
pub(super) fn check(json: &Value<'_>, path: &Path<'_>, errors: &mut Errors) {
    match json {
        Value::Object(fields) => {
            check_metadata(fields, path, errors);
            for (name, value) in fields {
                let path = Path::Field(path, name);
                check_field(name, value, &path, errors);
                check(value, &path, errors);
            }
        }
        Value::List(values) => {
            for (at, value) in values.iter().enumerate() {
                check(value, &Path::Index(path, at), errors);
            }
        }
        _ => {}
    }
}

/// The place of a value in metadata: `filter` or `typed`, and keys.
fn check_metadata(fields: &[(Cow<'_, str>, Value<'_>)], path: &Path<'_>, errors: &mut Errors) {
    let get = |wanted: &str| fields.iter().find(|(name, _)| name == wanted).map(|(_, value)| value);
    if matches!(get("typed"), Some(Value::Text(_))) {
        let problem = "the native filter cannot read typed metadata";
        errors.reject::<()>(&Path::Field(path, "typed"), problem, format!("filter, or {WITH_WASM}"));
    }
    if matches!(get("filter"), Some(Value::Text(_))) {
        check_keys(fields, path, errors);
    }
}

/// Lists of keys that lead to a value.
fn check_keys(fields: &[(Cow<'_, str>, Value<'_>)], path: &Path<'_>, errors: &mut Errors) {
    for (name, value) in fields {
        if matches!(value, Value::List(keys) if keys.len() > 1 && keys.iter().all(|key| matches!(key, Value::Text(_))))
        {
            let problem = "the native filter reads metadata at the top of a filter's alone";
            errors.reject::<()>(&Path::Field(path, name), problem, format!("one key, or {WITH_WASM}"));
        }
    }
}

fn check_field(name: &str, value: &Value<'_>, path: &Path<'_>, errors: &mut Errors) {
    match (name, value) {
        ("jwt_claim", Value::Object(_)) => {
            let problem = "the native filter cannot read claims, which are below the top of metadata";
            let expected = format!("a header that claim_to_headers of the JWT filter sets, or {WITH_WASM}");
            errors.reject::<()>(path, problem, expected);
        }
        ("usage", Value::Text(word)) if word == "envoy" => reject_usage(path, errors),
        ("usage", Value::Object(of)) => {
            for (kind, value) in of {
                match value {
                    _ if kind == "envoy" => reject_usage(path, errors),
                    Value::Object(keys) if KEYED.contains(&kind.as_ref()) => {
                        let path = Path::Field(path, kind);
                        // With a filter's name the object is found as metadata.
                        if !keys.iter().any(|(name, _)| name == "filter") {
                            check_keys(keys, &path, errors);
                        }
                    }
                    _ => {}
                }
            }
        }
        _ => {}
    }
}

fn reject_usage(path: &Path<'_>, errors: &mut Errors) {
    let problem = "the native filter cannot read the AI protocol manager's record, which is typed metadata";
    errors.reject::<()>(path, problem, format!("ai_gateway, metadata of a filter, or {WITH_WASM}"));
}

#[cfg(test)]
mod tests {
    use crate::rules::Config;
    use alloc::format;
    use alloc::string::String;

    fn parse(rule: &str) -> Result<(), String> {
        let text = format!(
            r#"{{"aggregator": {{"cluster": "c"}}, "rules": [{{"name": "r", "limit": 5, "window": "1m", {rule}}}]}}"#
        );
        assert!(Config::parse(text.as_bytes()).is_ok(), "{text}: {:?}", Config::parse(text.as_bytes()));
        let native = Config::parse_native(text.as_bytes(), &|_| None);
        native.map(|_| ()).map_err(|errors| format!("{errors}"))
    }

    #[test]
    fn what_a_dynamic_module_cannot_read_is_refused() {
        let header = r#""identifier": {"header": "k"}"#;
        for (rule, expected) in [
            (r#""identifier": {"jwt_claim": {"claim": "sub"}}"#, "rules[0].identifier.jwt_claim: "),
            (
                r#""identifier": [{"metadata": {"typed": "a", "key": "b"}}]"#,
                "rules[0].identifier[0].metadata.typed: ",
            ),
            (
                r#""identifier": {"metadata": {"filter": "a", "key": ["b", "c"]}}"#,
                "rules[0].identifier.metadata.key: ",
            ),
            (
                &format!(
                    r#"{header}, "match": {{"metadata": [{{"typed": "a", "key": "b", "exact": "c"}}]}}"#
                ),
                "rules[0].match.metadata[0].typed: ",
            ),
            (&format!(r#"{header}, "cost": {{"usage": "envoy", "max": 100000}}"#), "rules[0].cost.usage: "),
            (
                &format!(
                    r#"{header}, "cost": {{"usage": {{"metadata": {{"filter": "a", "total": ["b", "c"]}}}}, "max": 100000}}"#
                ),
                "rules[0].cost.usage.metadata.total: ",
            ),
            (
                &format!(
                    r#"{header}, "cost": {{"usage": {{"ai_gateway": {{"total": ["b", "c"]}}}}, "max": 100000}}"#
                ),
                "rules[0].cost.usage.ai_gateway.total: ",
            ),
        ] {
            let errors = parse(rule).unwrap_err();
            assert!(errors.starts_with(expected) && errors.contains(super::WITH_WASM), "{rule}: {errors}");
            assert_eq!(errors.lines().count(), 1, "{errors}");
        }
    }

    #[test]
    fn what_it_can_read_is_not() {
        for rule in [
            r#""identifier": {"metadata": {"filter": "a", "key": "b"}}"#,
            r#""identifier": [{"metadata": {"filter": "a", "key": ["b"]}}, {"filter_state": "c"}, {"client_certificate": "uri_san"}]"#,
            r#""identifier": {"header": "k"}, "cost": {"usage": "ai_gateway", "max": 100000}"#,
        ] {
            assert_eq!(parse(rule), Ok(()), "{rule}");
        }
    }
}
