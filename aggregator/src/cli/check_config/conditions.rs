//! Conditions and overrides that mean another thing than they look like: patterns of other programs, which here are plain text.

use super::order::one_or_list;
use serde_json::Value;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Words for any method in other programs.
const ANY_METHOD: [&str; 3] = ["ALL", "ANY", "*"];
/// Methods of requests that have a form, and those of requests that have none.
const WITH_FORM: [&str; 3] = ["POST", "PUT", "PATCH"];
const WITHOUT_FORM: [&str; 5] = ["GET", "HEAD", "OPTIONS", "DELETE", "TRACE"];
/// What makes a regular expression more than a text.
const OPERATORS: [char; 13] = ['.', '*', '+', '?', '(', ')', '[', ']', '{', '}', '|', '\\', '$'];
/// Most overrides of a rule that are warned of, for each reason.
pub const OVERRIDES_SHOWN: usize = 5;

/// Warns of conditions and overrides of all rules of a valid configuration.
pub fn warnings(json: &Value) -> Vec<String> {
    let rules = json.get("rules").and_then(Value::as_array).into_iter().flatten().enumerate();
    let found = rules.flat_map(|(at, rule)| {
        let path = rule.pointer("/match/path").and_then(Value::as_object).into_iter().flatten();
        let path = path.filter_map(|(kind, text)| Some((kind, of_path(kind, text.as_str()?)?)));
        let path = path.map(|(kind, problem)| format!("match.path.{kind}: {problem}"));
        let methods = rule.pointer("/match/methods").and_then(of_methods);
        let methods = methods.map(|problem| format!("match.methods: {problem}"));
        let query = of_query(rule).map(|problem| format!("match.query: {problem}"));
        let all = path.chain(methods).chain(query).chain(of_overrides(rule));
        all.map(|problem| format!("warning: rules[{at}].{problem}")).collect::<Vec<_>>()
    });
    found.collect()
}

fn of_path(kind: &str, text: &str) -> Option<String> {
    if kind == "regex" {
        let plain = text.strip_prefix('^').unwrap_or(text);
        return (!plain.contains(OPERATORS)).then(|| {
            format!("a regular expression matches the whole path, so {text:?} is one path alone; write {plain:?} as prefix or exact")
        });
    }
    let placeholder = text.split('/').find(|segment| {
        let is_braced = segment.len() > 2 && segment.starts_with('{') && segment.ends_with('}');
        is_braced || (segment.len() > 1 && segment.starts_with(':'))
    });
    if let Some(segment) = placeholder {
        return Some(format!(
            "{segment:?} is no placeholder, but that text; use segments, where * is any one segment"
        ));
    }
    let is_pattern = ["prefix", "exact"].contains(&kind) && text != "*" && text.contains('*');
    is_pattern.then(|| format!("the star in {text:?} is that letter; use segments, such as \"/v1/**\""))
}

fn of_methods(methods: &Value) -> Option<String> {
    let method =
        one_or_list(methods).iter().filter_map(Value::as_str).find(|method| ANY_METHOD.contains(method))?;
    Some(format!("{method} is no method; without methods a rule is for any"))
}

/// Warns of a parameter that a request has to have, if it may have it in its body instead.
fn of_query(rule: &Value) -> Option<String> {
    let methods = one_or_list(&rule["match"]["methods"]);
    let may_have_body =
        methods.iter().filter_map(Value::as_str).all(|method| !WITHOUT_FORM.contains(&method))
            || methods.iter().any(|method| WITH_FORM.iter().any(|with_form| method == with_form));
    let is_needed = |condition: &&Value| (condition["present"] == false) == (condition["invert"] == true);
    let needed = rule["match"]["query"].as_array()?.iter().find(is_needed)?;
    let name = needed["name"].as_str().filter(|_| may_have_body)?;
    Some(format!(
        "many upstreams take {name} from a form in the body, too, and a request that has it there alone does not meet the condition; limit \
         POST, PUT and PATCH by a rule without it"
    ))
}

/// Warns of overrides that look like regular expressions, and of those that an earlier one of the same text hides.
fn of_overrides(rule: &Value) -> Vec<String> {
    let listed = rule.get("overrides").and_then(Value::as_array).into_iter().flatten().enumerate();
    // What a rule hashes is a secret.
    let shown = |text: &str| if rule["hash"] == true { "its text".to_owned() } else { format!("{text:?}") };
    let mut first = HashMap::new();
    let found = listed.filter_map(|(at, entry)| {
        let text = entry.get("identifier")?.as_str()?;
        let problem = match first.entry(text) {
            Entry::Occupied(earlier) => {
                format!("overrides[{}] is for {} too, and applies", earlier.get(), shown(text))
            }
            Entry::Vacant(room) => {
                room.insert(at);
                let problem = "looks like a regular expression, but only * is special, which is any text";
                is_expression(text).then(|| format!("{} {problem}", shown(text)))?
            }
        };
        Some(format!("overrides[{at}].identifier: {problem}"))
    });
    found.take(OVERRIDES_SHOWN).collect()
}

/// Whether a pattern has what regular expressions have and identifiers seldom do. `10.0.*` and `api.*` are common.
fn is_expression(text: &str) -> bool {
    let follows_a_word = |(at, _): (usize, &str)| {
        text.get(..at).and_then(|before| before.chars().next_back()).is_some_and(char::is_alphanumeric)
    };
    (text.starts_with('^') && text.len() > 1)
        || (text.ends_with('$') && text.len() > 1)
        || ["[0-9]", "[a-z", "[A-Z", "[^", "(?"].iter().any(|part| text.contains(part))
        || text.match_indices(".*").any(|found| !follows_a_word(found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn conditions_that_no_request_meets_are_named() {
        let path = |kind: &str, text: &str| json!({ "match": { "path": { kind: text } } });
        let methods = |value: Value| json!({ "match": { "methods": value } });
        let by_query = |kind: &str, more: Value| {
            let test = if kind == "absent" {
                json!({ "name": "format", "present": false })
            } else {
                json!({ "name": "format", "exact": "pdf" })
            };
            let mut conditions = more;
            conditions["query"] = json!([test]);
            json!({ "match": conditions })
        };
        for (rule, part) in [
            (
                path("prefix", "/v1/*"),
                Some("match.path.prefix: the star in \"/v1/*\" is that letter; use segments"),
            ),
            (path("exact", "/v1/*"), Some("match.path.exact: the star")),
            (path("exact", "*"), None),
            (path("prefix", "/v1/"), None),
            (path("segments", "/users/{id}"), Some("match.path.segments: \"{id}\" is no placeholder")),
            (path("segments", "/users/:id/orders"), Some("\":id\" is no placeholder")),
            (path("prefix", "/users/{id}/"), Some("match.path.prefix: \"{id}\"")),
            (path("segments", "/users/*/**"), None),
            (path("segments", "/v1/jobs:cancel"), None),
            (path("segments", "/a/{}/:"), None),
            (
                path("regex", "/orders/"),
                Some("match.path.regex: a regular expression matches the whole path"),
            ),
            (path("regex", "^/orders/"), Some("write \"/orders/\" as prefix or exact")),
            (path("regex", "/orders/.*"), None),
            (path("regex", "^/orders$"), None),
            (methods(json!("ALL")), Some("match.methods: ALL is no method")),
            (methods(json!(["GET", "*"])), Some("* is no method")),
            (methods(json!(["GET", "POST"])), None),
            (
                by_query("exact", json!({})),
                Some("match.query: many upstreams take format from a form in the body"),
            ),
            (by_query("exact", json!({ "methods": ["GET", "PUT"] })), Some("limit POST, PUT and PATCH")),
            (by_query("exact", json!({ "methods": "GET" })), None),
            (by_query("absent", json!({})), None),
            (json!({ "match": { "query": [{ "name": "format", "exact": "pdf", "invert": true }] } }), None),
            (json!({ "match": { "path": "/v1" } }), None),
        ] {
            let found = warnings(&json!({ "rules": [{}, rule] }));
            assert_eq!(found.len(), usize::from(part.is_some()), "{rule} {found:?}");
            let is_named = |one: &String| {
                one.starts_with("warning: rules[1].") && one.contains(part.unwrap_or_default())
            };
            assert!(found.iter().all(is_named), "{found:?}");
        }
    }

    #[test]
    fn overrides_that_do_not_apply_are_named() {
        for (identifiers, expected) in [
            (&["pro_*", "10.0.*", "api.*", "a.b", "cost$5", "x^y"][..], &[][..]),
            (&["pro_.*"], &["overrides[0].identifier: \"pro_.*\" looks like a regular expression"][..]),
            (&["a", "^pro", "pro$", "k[0-9]*", ".*@a.b"], &["[1]", "[2]", "[3]", "[4]"]),
            (&["a", "b", "a"], &["overrides[2].identifier: overrides[0] is for \"a\" too, and applies"]),
        ] {
            let overrides: Vec<Value> =
                identifiers.iter().map(|text| json!({ "identifier": text, "limit": 1 })).collect();
            let found = warnings(&json!({ "rules": [{ "overrides": overrides }] }));
            assert_eq!(found.len(), expected.len(), "{found:?}");
            assert!(found.iter().zip(expected).all(|(one, part)| one.contains(part)), "{found:?}");
        }
    }
}
