//! The JSON Schema of the filter's configuration agrees with the filter's parser: on what examples and pages show, on broken
//! configurations, and on every change of a single value.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use regex::Regex;
use serde_json::{Value, json};
use weir_core::rules::{Config, schema};
use weir_envoy::{binaries, yaml};

/// Fields whose texts or numbers the parser checks further than a schema can: regular expressions, paths, networks,
/// patterns, templates, ends of ranges in durations and in numbers that are written as strings, decimals, the order of two values,
/// and what other fields require.
const FURTHER: [&str; 40] = [
    "max_keys",
    "trusted_hops",
    "ipv4_prefix",
    "ipv6_prefix",
    "path_segment",
    "threshold",
    "status",
    "segments",
    "exact",
    "prefix",
    "regex",
    "ignore_case",
    "host",
    "exempt",
    "deny",
    "in",
    "not_in",
    "identifier",
    "claim",
    "payload",
    "window",
    "timeout",
    "hold_timeout",
    "duration",
    "max_duration",
    "max",
    "default",
    "reserve",
    "limit",
    "enforce_percent",
    "hard_limit",
    "hash",
    "hash_key",
    "hash_key_env",
    "zone",
    "cost",
    "name",
    "body",
    "content_type",
    "response",
];

/// A configuration with every field that others do not exclude.
fn complete() -> Value {
    json!({
        "workspace": "w", "hash_key": "0123456789abcdef", "test_faults": false, "table": { "max_keys": 1000 },
        "aggregator": { "cluster": "c", "token_env": "T", "authority": "a", "trace": true },
        "responses": {
            "ietf_headers": true, "problem_json": false, "headers_on_allowed": true, "reset": "unix_seconds",
            "names": { "limit": "X-Rate-Limit", "remaining": "x-left", "reset": "x-reset" },
        },
        "exempt": [{ "headers": [{ "name": "x", "exact": "a" }] }, { "client_network": { "in": ["::1"] }, "methods": "GET" }],
        "client_networks": { "trusted_hops": 1, "exempt": ["10.0.0.0/8"], "deny": ["::1"] },
        "rules": [
            {
                "name": "a", "namespace": "n", "hash": true, "limit": "4294967296", "window": 1000, "hard_limit": true,
                "match": {
                    "path": { "prefix": "/a", "ignore_case": true }, "methods": ["GET", "POST"], "host": ["a.b", "*"],
                    "headers": [{ "name": "x", "exact": "a", "invert": true }, { "name": "y", "present": false }],
                    "metadata": [
                        { "filter": "f", "key": ["a", "b"], "prefix": "c" }, { "typed": "t", "key": "k", "present": true, "invert": false },
                    ],
                    "query": [{ "name": "q", "suffix": "a" }, { "name": "r", "present": true, "invert": true }],
                    "client_network": { "not_in": ["10.0.0.0/8"], "trusted_hops": 1 },
                    "except": [
                        { "path": { "segments": "/a/*" }, "client_network": { "in": ["::1"] } },
                        { "query": [{ "name": "q", "contains": "b" }], "methods": "GET" },
                    ],
                },
                "path_group": "g",
                "identifier": [
                    { "header": "x-a", "lowercase": true }, { "cookie": "c", "pick": "first" }, { "query": "q" },
                    { "client_address": { "ipv4_prefix": 24, "ipv6_prefix": 48, "trusted_hops": 2 } },
                    { "path_segment": 2 }, { "host": { "port": true } },
                    { "jwt_claim": { "payload": "p", "claim": ["a", "b"] }, "pick": "last" },
                    { "metadata": { "typed": "t", "key": "k" }, "one_of": ["a", "b"], "on_unlisted": "deny" },
                ],
                "cost": { "request": { "header": "x-cost" }, "max": 9, "default": 2 },
                "ban": { "threshold": 3, "window": "1m", "duration": "10m", "max_duration": "1d" },
                "overrides": [{ "identifier": "a*", "limit": 4 }, { "identifier": "b", "exempt": true }],
                "on_missing_identifier": "deny", "on_ambiguous_identifier": "shared", "shadow_mode": false,
                "enforce_percent": 12.5, "timeout": "250ms", "on_failure": "deny", "unknown_key": "assume_low",
                "response": { "status": 503, "body": "{}", "content_type": "application/json", "headers": "hidden" },
            },
            {
                "name": "b", "identifier": [{ "jwt_claim": { "claim": "sub" } }, { "path": true }], "window": "1h",
                "limit": {
                    "by": { "jwt_claim": { "claim": "plan" }, "lowercase": true, "pick": "last" },
                    "of": { "free": 6, "pro*": 60 }, "default": 1e2,
                },
                "cost": { "response": { "header": "x" }, "reserve": 1, "max": 9, "default": 0, "hold_timeout": "1m" },
            },
            {
                "name": "c", "algorithm": "sliding_log", "identifier": { "host": true }, "limit": 9, "window": "1h", "timeout": 9000,
                "cost": { "request": { "metadata": { "filter": "f", "key": "k" } }, "max": 9 },
                "response": { "format": "json_rpc", "status": 200, "id": { "filter": "f", "key": "k" }, "headers": "shown" },
            },
            { "name": "d", "algorithm": "ledger", "zone": 7, "identifier": { "authorization": true }, "cost": 0 },
            {
                "name": "e", "identifier": { "host": true }, "limit": 9, "window": "1h",
                "cost": {
                    "when": [
                        { "status": [401, "4xx", "500-599"], "header": { "name": "x", "prefix": "a" }, "cost": 1 },
                        { "grpc_status": 16, "metadata": [{ "filter": "f", "key": "k", "present": true }], "cost": 0 },
                        { "details": "rbac_", "from": "envoy", "cost": { "header": "x" }, "max": 9 },
                    ],
                    "default": 0, "reserve": 9, "unanswered": "reserve", "hold_timeout": "1m",
                },
                "ban": { "threshold": 3, "window": "1m", "duration": "10m", "count": "charged" },
            },
            { "name": "f", "identifier": { "host": true }, "limit": 9, "window": "1h", "cost": { "only": 401, "unanswered": 0 } },
            {
                "name": "h", "identifier": { "host": true }, "limit": { "usd": 0.5 }, "window": "1h",
                "cost": {
                    "usage": { "envoy": "envoy.ai.token_usage" }, "without_usage": "reserve", "on_disconnect": "max", "on_error_status": 3,
                    "prices": { "a*": { "input": 2.5, "cached_input": 1, "output": 10 }, "*": { "input": 10, "output": 30 } },
                    "hold_timeout": "10m",
                },
                "response": { "headers": "openai", "format": "openai" },
            },
            {
                "name": "i", "identifier": { "host": true }, "limit": 9, "window": "1h",
                "cost": {
                    "usage": { "metadata": { "filter": "f", "input": "i", "output": ["o", "n"], "model": "m" } }, "max": 100_000,
                    "weights": { "cache_creation": 1.25, "reasoning": 4 }, "models": [{ "model": "b*", "weights": { "input": 0 } }],
                    "reserve": { "input": "content_length", "input_default": 9, "output": 5, "output_cap": 9, "output_default": 7 },
                },
            },
            {
                "name": "g", "identifier": { "host": true }, "limit": 9, "window": "1h", "hard_limit": true,
                "cost": { "refund": ["5xx"], "hold_timeout": 1000 },
            },
        ],
    })
}

/// Configurations of examples and pages, and the complete one.
fn configurations() -> Vec<(String, Value)> {
    let mut found = vec![("complete".to_owned(), complete())];
    for entry in std::fs::read_dir(root().join("examples")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "json") {
            found.push((
                path.display().to_string(),
                serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap(),
            ));
        }
    }
    for page in [
        "README.md",
        "envoy/README.md",
        "filter/CONFIGURATION.md",
        "examples/README.md",
        "aggregator/README.md",
    ] {
        let text = std::fs::read_to_string(root().join(page)).unwrap();
        for text in text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("\n```").next()) {
            let shown: Value = yaml(text).unwrap_or_else(|error| panic!("{page}: {error}"));
            let mut config = shown.pointer("/configuration/value").unwrap_or(&shown).clone();
            if config["rules"].is_null() {
                continue;
            }
            if config["aggregator"].is_null() {
                config["aggregator"] = json!({ "cluster": "weir_aggregator" });
            }
            found.push((page.to_owned(), config));
        }
    }
    assert!(found.len() >= 9, "{} configurations", found.len());
    found
}

fn parse(config: &Value) -> Result<Config, String> {
    let variables = |_: &str| Some("0123456789abcdef".to_owned());
    Config::parse_with(config.to_string().as_bytes(), &variables).map_err(|errors| errors.to_string())
}

#[test]
fn the_program_prints_the_schema() {
    let mut command = Command::new(binaries::aggregator().unwrap());
    let output = command.args(["check-config", "--schema"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout).unwrap(), schema());
}

#[test]
fn both_accept_what_examples_and_pages_show() {
    let schema = schema();
    for (name, config) in configurations() {
        parse(&config).unwrap_or_else(|errors| panic!("{name}: {errors}"));
        check(&schema, &config, "").unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn both_refuse_broken_configurations() {
    let rule = |number: usize, field: &str, value: Value| {
        let mut config = complete();
        config["rules"][number][field] = value;
        config
    };
    both_refuse(&[
        json!([]),
        json!({}),
        with("/aggregator", json!({})),
        with("/aggregator", json!({ "cluster": "c", "clutser": "d" })),
        with("/aggregator", json!({ "cluster": "c", "token": "a", "token_env": "T" })),
        with("/aggregator/cluster", json!("with space")),
        with("/hash_key", json!("short")),
        with("/table/max_keys", json!(7)),
        with("/client_networks/trusted_hops", json!(33)),
        with("/responses/reset", json!("minutes")),
        with("/responses/names/limit", json!("with space")),
        with("/exempt", json!([])),
        with("/exempt/0", json!({ "except": [] })),
        with("/rules", json!([])),
        with("/rules", Value::Array((0..1_025).map(|_| complete()["rules"][0].clone()).collect())),
        with("/rules/0/name", json!("with space")),
        with("/rules/0/limit", json!(-1)),
        with("/rules/0/limit", json!("5")),
        with("/rules/0/window", json!("1 m")),
        with("/rules/0/window", json!(999)),
        with("/rules/0/match/path", json!({ "exact": "/a", "prefix": "/b" })),
        with("/rules/0/match/path", json!({ "ignore_case": true })),
        with("/rules/0/match/methods", json!(["get"])),
        with("/rules/0/match/headers/0", json!({ "name": "x" })),
        with("/rules/0/match/headers/0", json!({ "exact": "x" })),
        with("/rules/0/identifier", json!([])),
        with("/rules/0/identifier", json!({})),
        with("/rules/0/identifier", json!({ "header": "a", "cookie": "b" })),
        with("/rules/0/identifier", json!({ "header": "a", "pick": "first" })),
        with("/rules/2/response/status", json!(201)),
        with("/rules/0/identifier", json!({ "constant": "a", "lowercase": true })),
        with("/rules/0/identifier", json!({ "host": false })),
        with("/rules/0/identifier", json!({ "path_segment": 0 })),
        with("/rules/0/cost", json!({ "request": { "header": "x" } })),
        with("/rules/0/cost", json!({ "response": { "header": "x" }, "max": 9 })),
        with("/rules/0/overrides/0", json!({ "identifier": "a" })),
        with("/rules/0/overrides/0", json!({ "identifier": "a", "limit": 1, "exempt": true })),
        with("/rules/0/overrides/0", json!({ "identifier": "a", "exempt": false })),
        with("/rules/0/ban", json!({ "threshold": 1, "window": "1m" })),
        with("/rules/0/response/status", json!(200)),
        with("/rules/0/response/headers", json!("none")),
        with("/rules/0/response", json!({ "content_type": "text/html" })),
        with("/rules/0/enforce_percent", json!(101)),
        with("/rules/0/unknown_key", json!("ask")),
        rule(1, "zone", json!(7)),
        rule(1, "timeout", json!(1_001)),
        rule(2, "limit", json!(100_001)),
        rule(2, "hard_limit", json!(true)),
        rule(2, "unknown_key", json!("query")),
        rule(3, "limit", json!(5)),
        rule(3, "namespace", json!("n")),
        rule(3, "zone", json!(0)),
    ]);
}

#[test]
fn both_refuse_broken_limits_by_the_body() {
    both_refuse(&[
        with("/rules/0/identifier", json!({ "header": "a", "one_of": [] })),
        with("/rules/0/identifier", json!({ "header": "a", "on_unlisted": "deny" })),
        with("/rules/0/identifier", json!({ "header": "a", "one_of": ["a"], "on_unlisted": "allow" })),
        with("/rules/0/identifier", json!({ "constant": "a", "one_of": ["a"] })),
        with("/rules/0/identifier", json!({ "metadata": { "filter": "a", "typed": "b", "key": "c" } })),
        with("/rules/0/identifier", json!({ "metadata": { "key": "c" } })),
        with("/rules/0/match/metadata", json!([{ "key": "a", "exact": "b" }])),
        with("/rules/0/match/metadata", json!([{ "filter": "a", "typed": "b", "key": "c", "exact": "d" }])),
        with("/rules/0/match/metadata", json!([{ "filter": "a", "key": "c" }])),
        with(
            "/rules/0/cost",
            json!({ "request": { "header": "x", "metadata": { "filter": "a", "key": "b" } }, "max": 9 }),
        ),
        with("/rules/0/response", json!({ "format": "json_rpc", "body": "x" })),
        with("/rules/0/response", json!({ "id": { "filter": "a", "key": "b" } })),
        with("/rules/1/limit/by", json!({ "query": "plan" })),
        with("/rules/1/limit/by", json!({ "header": "x-plan", "pick": "first" })),
        with("/rules/1/limit/by", json!({ "header": "x-plan", "one_of": ["a"] })),
        with("/rules/1/limit/of", json!({})),
        with("/rules/1/limit/of", json!({ "": 1 })),
        with("/rules/0/match/except/0", json!({})),
        with("/rules/0/match/except/0", json!({ "except": [{ "methods": "GET" }] })),
        with("/rules/0/match/client_network", json!({ "in": ["::1"], "not_in": ["::2"] })),
        with("/rules/0/match/query/0", json!({ "name": "a" })),
    ]);
}

/// The complete configuration with another value in a place.
fn with(place: &str, value: Value) -> Value {
    let mut config = complete();
    *config.pointer_mut(place).unwrap_or_else(|| panic!("{place}")) = value;
    config
}

fn both_refuse(broken: &[Value]) {
    let schema = schema();
    for config in broken {
        assert!(parse(config).is_err(), "the parser accepts {config}");
        assert!(check(&schema, config, "").is_err(), "the schema accepts {config}");
    }
}

/// Replaces, removes or adds one value at each place. The schema never refuses what the parser accepts, and accepts what the
/// parser refuses only in fields that a schema cannot express.
#[test]
fn both_agree_on_every_change_of_one_value() {
    let schema = schema();
    let probes = [
        json!(null),
        json!(true),
        json!(false),
        json!(0),
        json!(1),
        json!(2.0),
        json!(0.5),
        json!(-1),
        json!(1_000),
        json!(u64::MAX),
        json!(""),
        json!("x"),
        json!("5m"),
        json!("a b"),
        json!("9999999999"),
        json!("1e3"),
        json!("12.34"),
        json!("2.0"),
        json!([]),
        json!([1]),
        json!(["x"]),
        json!({}),
        json!({ "x": 1 }),
    ];
    let (mut tried, mut accepted) = (0, 0);
    for (name, config) in configurations() {
        let mut places = Vec::new();
        pointers(&config, String::new(), &mut places);
        for place in &places {
            for change in probes.iter().map(Some).chain([None]) {
                let Some(changed) = changed(&config, place, change) else { continue };
                let (parsed, checked) = (parse(&changed), check(&schema, &changed, ""));
                tried += 1;
                accepted += usize::from(parsed.is_ok());
                match (&parsed, &checked) {
                    (Ok(_), Err(error)) => {
                        panic!("{name}{place} = {change:?}: only the schema refuses it: {error}")
                    }
                    (Err(errors), Ok(())) => {
                        let may = place.split('/').any(|step| FURTHER.contains(&step));
                        assert!(may, "{name}{place} = {change:?}: only the parser refuses it: {errors}");
                    }
                    _ => {}
                }
            }
        }
    }
    assert!(tried > 4_000 && accepted > 200, "{tried} changes, {accepted} accepted");
}

/// The configuration with another value at a place, or with none; `None` if an item of a list would have to be removed.
fn changed(config: &Value, place: &str, value: Option<&Value>) -> Option<Value> {
    let mut changed = config.clone();
    match value {
        Some(value) => *changed.pointer_mut(place)? = value.clone(),
        None => {
            let (holder, name) = place.rsplit_once('/')?;
            changed.pointer_mut(holder)?.as_object_mut()?.remove(name)?;
        }
    }
    Some(changed)
}

/// The JSON pointers of all values in a value.
fn pointers(value: &Value, place: String, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, child)| pointers(child, format!("{place}/{name}"), found));
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(at, item)| pointers(item, format!("{place}/{at}"), found));
        }
        _ => {}
    }
    found.push(place);
}

/// Validates by the keywords that the schema uses. Any other keyword is a failure of the test, so none is ignored.
fn check(schema: &Value, value: &Value, place: &str) -> Result<(), String> {
    let keywords = match schema {
        Value::Bool(true) => return Ok(()),
        Value::Bool(false) => return Err(format!("{place}: must not be given")),
        Value::Object(keywords) => keywords,
        other => panic!("{other} is no schema"),
    };
    check_children(schema, value, place)?;
    let holds = |schema: &Value| check(schema, value, place).is_ok();
    let count = |schemas: &Value| schemas.as_array().unwrap().iter().filter(|one| holds(one)).count();
    let given = |names: &Value| {
        names.as_array().unwrap().iter().all(|name| value.get(name.as_str().unwrap()).is_some())
    };
    let object = value.as_object();
    for (keyword, wanted) in keywords {
        let number = |compare: fn(f64, f64) -> bool| {
            value.as_f64().is_none_or(|value| compare(value, wanted.as_f64().unwrap()))
        };
        let limit = wanted.as_u64().and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        let characters = value.as_str().map(|text| text.chars().count());
        let sound = match keyword.as_str() {
            "$schema" | "title" | "description" | "then" | "else" | "properties" | "items" => true,
            "type" => is_of_type(value, wanted.as_str().unwrap()),
            "additionalProperties" => {
                let is_known =
                    |name: &String| keywords.get("properties").is_some_and(|known| known.get(name).is_some());
                let mut others = object.into_iter().flatten().filter(|(name, _)| !is_known(name));
                others.all(|(_, value)| check(wanted, value, place).is_ok())
            }
            "propertyNames" => object
                .is_none_or(|fields| fields.keys().all(|name| check(wanted, &json!(name), place).is_ok())),
            "minProperties" => object.is_none_or(|fields| fields.len() >= limit),
            "maxProperties" => object.is_none_or(|fields| fields.len() <= limit),
            "required" => !value.is_object() || given(wanted),
            "dependentRequired" => wanted
                .as_object()
                .unwrap()
                .iter()
                .all(|(name, names)| value.get(name).is_none() || given(names)),
            "dependentSchemas" => {
                wanted.as_object().unwrap().iter().all(|(name, one)| value.get(name).is_none() || holds(one))
            }
            "enum" => wanted.as_array().unwrap().contains(value),
            "const" => wanted == value,
            "minimum" => number(|value, limit| value >= limit),
            "maximum" => number(|value, limit| value <= limit),
            "minLength" => characters.is_none_or(|count| count >= limit),
            "maxLength" => characters.is_none_or(|count| count <= limit),
            "minItems" => value.as_array().is_none_or(|items| items.len() >= limit),
            "maxItems" => value.as_array().is_none_or(|items| items.len() <= limit),
            "pattern" => value.as_str().is_none_or(|text| fits(wanted.as_str().unwrap(), text)),
            "anyOf" => count(wanted) > 0,
            "oneOf" => count(wanted) == 1,
            "not" => !holds(wanted),
            "if" => {
                let next = if holds(wanted) { "then" } else { "else" };
                keywords.get(next).map_or(Ok(()), |schema| check(schema, value, place))?;
                true
            }
            other => panic!("the keyword {other} is not known"),
        };
        if !sound {
            return Err(format!("{place}: {keyword} {wanted} does not hold"));
        }
    }
    Ok(())
}

/// Validates the fields of an object and the items of a list by their own schemas.
fn check_children(schema: &Value, value: &Value, place: &str) -> Result<(), String> {
    for (name, child) in value.as_object().into_iter().flatten() {
        if let Some(schema) = schema.get("properties").and_then(|properties| properties.get(name)) {
            check(schema, child, &format!("{place}/{name}"))?;
        }
    }
    for (at, item) in value.as_array().into_iter().flatten().enumerate() {
        if let Some(schema) = schema.get("items") {
            check(schema, item, &format!("{place}/{at}"))?;
        }
    }
    Ok(())
}

fn is_of_type(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        other => panic!("type {other}"),
    }
}

/// Whether a text matches a pattern, each of which is compiled once.
fn fits(pattern: &str, text: &str) -> bool {
    thread_local!(static PATTERNS: RefCell<BTreeMap<String, Regex>> = RefCell::default());
    PATTERNS.with_borrow_mut(|patterns| {
        let compiled = || Regex::new(pattern).unwrap();
        patterns.entry(pattern.to_owned()).or_insert_with(compiled).is_match(text)
    })
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
