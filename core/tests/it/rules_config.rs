//! Configurations: how valid ones are read, and which errors are reported for invalid ones.

use proptest::prelude::*;
use weir_core::model::exact::{self, MAX_LOG_LIMIT};
use weir_core::rules::{Ambiguous, Config, Cost, Missing, OnFailure, UnknownKey};

const RULE: &str = r#"{"name": "r", "identifier": {"header": "x"}, "limit": 1, "window": "1s"}"#;

fn with_rules(rules: &str) -> String {
    format!(r#"{{"aggregator": {{"cluster": "weir"}}, "rules": {rules}}}"#)
}

/// A configuration of one rule with these fields, in addition to the required ones or replacing them.
fn with_fields(fields: &str) -> String {
    let required =
        [("name", r#""r""#), ("identifier", r#"{"header": "x"}"#), ("limit", "1"), ("window", r#""1s""#)];
    let missing = required.iter().filter(|(name, _)| !fields.starts_with(&format!("\"{name}\":")));
    let missing: String = missing.map(|(name, value)| format!(", \"{name}\": {value}")).collect();
    with_rules(&format!("[{{{fields}{missing}}}]"))
}

fn many_rules(count: usize) -> String {
    let rules: Vec<String> = (0..count).map(|n| RULE.replace("\"r\"", &format!("\"r{n}\""))).collect();
    format!("[{}]", rules.join(","))
}

fn errors(text: &str) -> Vec<String> {
    match Config::parse(text.as_bytes()) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.iter().map(ToString::to_string).collect(),
    }
}

/// Expects exactly one error for each of these beginnings, in that order.
fn check(text: &str, expected: &[&str]) {
    let errors = errors(text);
    let fits = |(error, expected): (&String, &&str)| error.starts_with(*expected);
    let all = errors.len() == expected.len() && errors.iter().zip(expected).all(fits);
    assert!(all, "{text}\n found: {errors:#?}\n expected: {expected:#?}");
}

#[test]
fn the_least_configuration_has_the_documented_defaults() {
    let config = Config::parse(with_rules(&format!("[{RULE}]")).as_bytes()).unwrap();
    assert_eq!(config.workspace, "default");
    assert_eq!((config.aggregator.cluster.as_str(), config.aggregator.token.is_none()), ("weir", true));
    assert_eq!((config.aggregator.authority, config.aggregator.trace), (None, false));
    assert_eq!(config.table.max_keys, 262_144);
    assert_eq!(config.responses, Default::default());
    assert!(!config.test_faults);
    let rule = &config.rules[0];
    assert_eq!((rule.name.as_str(), rule.namespace.as_str()), ("r", "r"));
    assert_eq!((rule.limit, rule.duration_ms), (1, 1_000));
    assert!(matches!(rule.cost, Cost::Fixed(1)), "{:?}", rule.cost);
    assert_eq!((rule.missing, rule.shadow, rule.timeout_ms), (Missing::Shared, false, 50));
    assert_eq!(rule.ambiguous, Ambiguous::Shared);
    assert_eq!((rule.on_failure, rule.unknown_key), (OnFailure::Allow, UnknownKey::Query));
}

const COMPLETE: &str = r#"{
    "workspace": "acme.prod",
    "aggregator": {"cluster": "outbound|80||weir.svc", "token": "secret", "authority": "weir.example",
        "trace": true},
    "table": {"max_keys": 1e3},
    "responses": {"ietf_headers": true, "problem_json": true, "headers_on_allowed": true, "filter_state": true},
    "test_faults": true,
    "rules": [{
        "name": "login",
        "match": {
            "path": {"prefix": "/login"}, "methods": ["POST"], "host": ["login.example.com", "*.example.org"],
            "headers": [{"name": "X-Probe", "present": false}, {"name": "x-kind", "regex": "a|b", "invert": true}]
        },
        "namespace": "logins",
        "identifier": [
            {"header": "x"}, {"cookie": "c"}, {"query": "q"}, {"client_address": {"ipv6_prefix": 56}},
            {"path_segment": 2}, {"host": true}, {"jwt_claim": {"payload": "p", "claim": ["a", "b"]}},
            {"constant": "k"}
        ],
        "limit": 18446744073709551615, "window": "366d", "cost": {"request": {"header": "x-cost"}, "max": 50, "default": 2},
        "overrides": [{"identifier": "vip-*", "exempt": true}, {"identifier": "bad", "limit": 0}],
        "on_missing_identifier": "deny", "shadow_mode": true, "timeout": "250ms", "on_failure": "deny",
        "unknown_key": "assume_low"
    }]
}"#;

#[test]
fn every_field_is_read() {
    let config = Config::parse(COMPLETE.as_bytes()).unwrap();
    assert_eq!(config.workspace, "acme.prod");
    assert_eq!(config.aggregator.cluster, "outbound|80||weir.svc");
    assert_eq!(config.aggregator.token.as_ref().map(|token| token.reveal()), Some("secret"));
    assert_eq!(config.aggregator.authority.as_deref(), Some("weir.example"));
    assert_eq!(config.table.max_keys, 1_000);
    assert!(
        config.responses.ietf_headers
            && config.responses.problem_json
            && config.responses.headers_on_allowed
            && config.responses.filter_state
    );
    assert!(config.test_faults);
    let rule = &config.rules[0];
    assert_eq!((rule.name.as_str(), rule.namespace.as_str()), ("login", "logins"));
    assert_eq!((rule.limit, rule.duration_ms), (u64::MAX, 31_622_400_000));
    let Cost::Request(cost) = &rule.cost else { panic!("{:?}", rule.cost) };
    assert_eq!((cost.header(), cost.max, cost.default), (Some(b"x-cost".as_slice()), 50, 2));
    assert_eq!((rule.missing, rule.shadow, rule.timeout_ms), (Missing::Deny, true, 250));
    assert_eq!(rule.ambiguous, Ambiguous::Deny);
    assert_eq!((rule.on_failure, rule.unknown_key), (OnFailure::Deny, UnknownKey::AssumeLow));
}

#[test]
fn the_token_is_never_printed() {
    let config = Config::parse(COMPLETE.as_bytes()).unwrap();
    assert!(!format!("{config:?}").contains("secret"));
    let errors = errors(r#"{"aggregator": {"cluster": "c", "token": "not so secret"}, "rules": []}"#);
    assert!(!format!("{errors:?}").contains("secret"), "{errors:?}");
}

#[test]
fn secrets_are_read_from_environment_variables() {
    let text = |aggregator: &str, key: &str| {
        format!(r#"{{"aggregator": {{"cluster": "c", {aggregator}}}, {key}, "rules": [{RULE}]}}"#)
    };
    let from_variables = text(r#""token_env": "T""#, r#""hash_key_env": "K""#);
    let variables = |name: &str| match name {
        "T" => Some("a-token".to_owned()),
        "K" => Some("0123456789abcdef".to_owned()),
        "SPACED" => Some("not so secret".to_owned()),
        _ => None,
    };
    let config = Config::parse_with(from_variables.as_bytes(), &variables).unwrap();
    assert_eq!(config.aggregator.token.unwrap().reveal(), "a-token");
    let given = text(r#""token": "a-token""#, r#""hash_key": "0123456789abcdef""#);
    let given = Config::parse(given.as_bytes()).unwrap();
    let digests = [config.hash_key, given.hash_key].map(|key| {
        let mut digest = Vec::new();
        key.unwrap().write(b"a secret", &mut digest);
        digest
    });
    assert_eq!(digests[0], digests[1]);
    let key = r#""hash_key": "0123456789abcdef""#;
    for (text, expected) in [
        (
            text(r#""token_env": "NONE""#, key),
            "aggregator.token_env: the filter has no environment variable \"NONE\"; expected one listed in vm_config.environment_variables",
        ),
        (
            text(r#""token_env": "SPACED""#, key),
            "aggregator.token_env: the value of the environment variable \"SPACED\" cannot be used; expected a string of 1 to 1024",
        ),
        (
            text(r#""token": "a", "token_env": "T""#, key),
            "aggregator: both token and token_env are given; expected exactly one",
        ),
        (
            text(r#""token": "a""#, r#""hash_key_env": "T""#),
            "hash_key_env: the value of the environment variable \"T\" cannot be used; expected 16 to 1024",
        ),
        (text(r#""token_env": """#, key), "aggregator.token_env: "),
    ] {
        let errors = Config::parse_with(text.as_bytes(), &variables).unwrap_err().to_string();
        assert!(errors.starts_with(expected) && !errors.contains("not so secret"), "{errors}");
    }
}

#[test]
fn text_that_is_not_an_object() {
    for (text, expected) in [
        ("", "configuration: it is empty; expected a JSON object"),
        (" \n", "configuration: it is empty; expected a JSON object"),
        (
            "{\n  \"rules\": [,]\n}",
            "configuration: not JSON at line 2, column 13: expected value; expected a JSON object",
        ),
        ("{} x", "configuration: not JSON at line 1, column 4: trailing characters"),
        ("{", "configuration: not JSON at line 1, column 1: EOF"),
        (
            "[]",
            "configuration: a list is not an object; expected an object with workspace, aggregator, table",
        ),
        ("\"x\"", "configuration: \"x\" is not an object"),
        ("nul", "configuration: not JSON at line 1"),
    ] {
        check(text, &[expected]);
    }
    check(&"[".repeat(100_000), &["configuration: not JSON at line 1, column 128: recursion limit exceeded"]);
    check(&" ".repeat(4 << 20), &["configuration: it is empty"]);
    check(
        &" ".repeat((4 << 20) + 1),
        &["configuration: it has 4194305 bytes; expected at most 4194304 bytes"],
    );
    let not_utf8 = Config::parse(b"{\"workspace\": \"\xff\"}").unwrap_err();
    assert!(not_utf8.to_string().starts_with("configuration: not JSON at line 1"), "{not_utf8}");
}

#[test]
fn invalid_sections() {
    let rule = format!("[{RULE}]");
    for (text, expected) in [
        (
            "{}".into(),
            &["aggregator: it is missing; expected an object with cluster", "rules: it is missing"][..],
        ),
        (with_rules("[]"), &["rules: it has 0 rules; expected a list of 1 to 1024 rules"]),
        (with_rules("{}"), &["rules: an object is not a list; expected a list of 1 to 1024 rules"]),
        (with_rules(&many_rules(1_025)), &["rules: it has 1025 rules; expected a list of 1 to 1024 rules"]),
        (
            with_rules(&many_rules(1_025).replacen("1s", "1x", 1)),
            &["rules: it has 1025 rules", "rules[0].window: \"1x\" is not a duration"],
        ),
        (with_rules("[7]"), &["rules[0]: 7 is not an object; expected an object with name, match"]),
        (
            format!(r#"{{"workspace": "a b", "aggregator": {{}}, "rules": {rule}}}"#),
            &[
                "workspace: \"a b\" is not a name; expected 1 to 64 characters of",
                "aggregator.cluster: it is missing",
            ],
        ),
        (
            format!(r#"{{"workspce": "a", "zzz": 1, "aggregator": {{"cluster": "a b"}}, "rules": {rule}}}"#),
            &[
                "workspce: there is no such field; did you mean workspace?; expected workspace,",
                "zzz: there is no such field; expected workspace,",
                "aggregator.cluster: \"a b\" contains characters other than printable ASCII",
            ],
        ),
        (
            format!(
                r#"{{"aggregator": {{"cluster": "c"}}, "table": {{"max_keys": 7}},
                "responses": {{"headers_on_allowed": 1}}, "test_faults": "yes", "rules": {rule}}}"#
            ),
            &[
                "table.max_keys: 7 is out of range; expected a whole number from 8 to 8388608",
                "responses.headers_on_allowed: 1 is not a boolean; expected true or false",
                "test_faults: \"yes\" is not a boolean",
            ],
        ),
        (
            format!(
                r#"{{"aggregator": {{"cluster": "c"}}, "exempt": [{{}}], "rules": {rule},
                "responses": {{"reset": "minutes", "names": {{"limit": ":status", "remaining": "Retry-After", "reset": "x"}}}}}}"#
            ),
            &[
                "responses.reset: \"minutes\" is not one of its values; expected seconds or unix_seconds",
                "responses.names.limit: \":status\" has another meaning in a response; expected another name",
                "responses.names.remaining: \"Retry-After\" has another meaning in a response",
                "exempt[0]: an object has no condition, so that every request would be exempt",
            ],
        ),
        (
            format!(
                r#"{{"aggregator": {{"cluster": "c"}}, "rules": {rule},
                "responses": {{"names": {{"limit": "x-Limit", "reset": "X-limit"}}}}}}"#
            ),
            &["responses.names.reset: \"X-limit\" is given twice; expected a different name for each header"],
        ),
        (
            format!(r#"{{"aggregator": {{"cluster": "c"}}, "rules": {rule}, "aggregator": null}}"#),
            &["aggregator: it is given twice; expected one value"],
        ),
        (
            with_rules(&format!("[{RULE}, {}, {RULE}]", RULE.replace("\"r\"", "\"s\""))),
            &["rules[2].name: \"r\" is also the name of rules[0]; expected a different name for each rule"],
        ),
    ] {
        check(&text, expected);
    }
}

/// Each fields of a rule, and the only error of it.
fn check_each(fields: &[(&str, &str)]) {
    for (fields, expected) in fields {
        check(&with_fields(fields), &[*expected]);
    }
}

#[test]
fn invalid_names_limits_and_words() {
    check_each(&[
        (r#""name": "ünï""#, r#"rules[0].name: "ünï" is not a name"#),
        (r#""name": """#, r#"rules[0].name: "" is not a name"#),
        (r#""namespace": null"#, "rules[0].namespace: null is not a name"),
        (r#""limits": 5"#, r#"rules[0].limits: there is no such field; did you mean limit?"#),
        (r#""limit": -1"#, "rules[0].limit: -1 is not a whole number; expected a whole number, 0 or more"),
        (r#""limit": 1.5"#, "rules[0].limit: 1.5 is not a whole number"),
        (r#""limit": "5""#, r#"rules[0].limit: "5" is a text; write it without quotes; expected"#),
        (r#""limit": 18446744073709551616"#, "rules[0].limit: 18446744073709552000 is not a whole number"),
        (
            r#""window": "5x""#,
            r#"rules[0].window: "5x" is not a duration; expected a number with ms, s, m, h or d"#,
        ),
        (r#""window": "999ms""#, r#"rules[0].window: "999ms" is out of range; expected a number with"#),
        (r#""window": "367d""#, r#"rules[0].window: "367d" is out of range"#),
        (r#""window": 60"#, "rules[0].window: 60 is out of range"),
        (r#""window": true"#, "rules[0].window: true is not a duration"),
        (
            r#""on_missing_identifier": "allow""#,
            r#"rules[0].on_missing_identifier: "allow" is not one of its values; expected shared, skip or deny"#,
        ),
        (r#""timeout": "2s""#, r#"rules[0].timeout: "2s" is out of range; expected a number"#),
        (r#""on_failure": 1"#, "rules[0].on_failure: 1 is not a string; expected allow or deny"),
        (
            r#""unknown_key": """#,
            r#"rules[0].unknown_key: "" is not one of its values; expected query or assume_low"#,
        ),
        (
            r#""limit": {"filter_state": "a", "default": 9, "max": 8}"#,
            "rules[0].limit.default: 9 is above max; expected a number up to max",
        ),
        (
            r#""limit": {"header": "a", "filter_state": "b", "default": 1, "max": 8}"#,
            "rules[0].limit.header: there is no such field",
        ),
        (
            r#""limit": {"by": {"header": "x"}, "of": {"a": 1}}"#,
            "rules[0].limit.default: it is missing; expected the limit of all other plans",
        ),
        (
            r#""limit": {"by": {"cookie": "x"}, "of": {"a": 1}, "default": 1}"#,
            "rules[0].limit.by: cookie cannot name a plan, as a client chooses it",
        ),
        (r#""hash": "yes""#, r#"rules[0].hash: "yes" is not a boolean"#),
        (
            r#""hash": true"#,
            "hash_key: it is missing, and rules[0].hash requires it; expected 16 to 1024 printable ASCII",
        ),
        (
            r#""on_ambiguous_identifier": "skip""#,
            r#"rules[0].on_ambiguous_identifier: "skip" is not one of its values; expected shared or deny"#,
        ),
    ]);
}

#[test]
fn invalid_overrides() {
    check_each(&[
        (r#""overrides": [{"identifier": "a"}]"#, "rules[0].overrides[0]: none of limit or exempt is given"),
        (
            r#""overrides": [{"identifier": "a", "limit": 1, "exempt": true}]"#,
            "rules[0].overrides[0]: both limit and exempt are given",
        ),
        (
            r#""overrides": [{"identifier": "a", "exempt": false}]"#,
            "rules[0].overrides[0].exempt: false has no effect; expected true",
        ),
        (
            r#""overrides": [{"identifier": "a\\b", "limit": 1}]"#,
            r#"rules[0].overrides[0].identifier: has a backslash before another character"#,
        ),
    ]);
    let many = vec![r#"{"identifier": "a", "limit": 1}"#; 10_001].join(",");
    let expected = "rules[0].overrides: it has 10001 overrides; expected a list of 0 to 10000 overrides";
    check(&with_fields(&format!(r#""overrides": [{many}]"#)), &[expected]);
}

#[test]
fn invalid_costs_and_bans() {
    check_each(&[
        (
            r#""cost": -1"#,
            "rules[0].cost: -1 is not a cost; expected a whole number, 0 or more, or an object",
        ),
        (r#""cost": {"request": {"header": "x"}}"#, "rules[0].cost.max: it is missing"),
        (
            r#""cost": {"response": {"header": "x"}, "max": 9, "header": "y", "reserve": 1}"#,
            "rules[0].cost.header: there is no such field",
        ),
        (r#""cost": {"response": {"header": "x"}, "max": 9}"#, "rules[0].cost.reserve: it is missing"),
        (
            r#""cost": {"response": {"header": "x"}, "max": 9, "reserve": 10}"#,
            "rules[0].cost.reserve: 10 is out of range",
        ),
        (
            r#""cost": {"response": {"header": "x"}, "max": 9, "reserve": 1, "default": 10}"#,
            "rules[0].cost.default: 10 is out of range",
        ),
        (
            r#""cost": {"response": {"header": "x"}, "max": 9, "reserve": 1, "hold_timeout": "2h"}"#,
            "rules[0].cost.hold_timeout: \"2h\" is out of range",
        ),
        (
            r#""cost": {"response": {"header": "x"}, "max": 9, "reserve": 1}, "algorithm": "sliding_log""#,
            "rules[0].cost: an object cannot come from a response",
        ),
        (
            r#""cost": {"response": {"header": "x"}, "max": 9, "reserve": 1}, "hard_limit": true"#,
            "rules[0].cost: an object cannot come from a response, as a hard limit",
        ),
        (
            r#""cost": {"only": 401}, "algorithm": "sliding_log""#,
            "rules[0].cost: an object cannot come from a response",
        ),
        (
            r#""cost": {"when": [{"status": 401, "cost": 2}], "reserve": 1}, "hard_limit": true"#,
            "rules[0].cost: an object can be more than its reserve, which a hard limit must hold",
        ),
        (
            r#""ban": {"threshold": 1, "window": "1m", "duration": "1m", "count": "charged"}"#,
            "rules[0].ban.count: \"charged\" has no effect here, as no response settles the cost",
        ),
        (r#""cost": {"request": {"header": "x"}, "max": 0}"#, "rules[0].cost.max: 0 is out of range"),
        (
            r#""ban": {"threshold": 0, "window": "1m", "duration": "1m"}"#,
            "rules[0].ban.threshold: 0 is out of range",
        ),
        (r#""ban": {"threshold": 1, "window": "1m"}"#, "rules[0].ban.duration: it is missing"),
        (
            r#""ban": {"threshold": 1, "window": "1m", "duration": "2m", "max_duration": "1m"}"#,
            "rules[0].ban.max_duration: \"1m\" is shorter than the first ban",
        ),
        (
            r#""cost": {"request": {"header": "x"}, "max": 5, "default": 6}"#,
            "rules[0].cost.default: 6 is out of range",
        ),
    ]);
}

#[test]
fn invalid_matches() {
    check_each(&[
        (r#""match": {"route": {"exact": "a", "prefix": "b"}}"#, "rules[0].match.route: "),
        (r#""match": {"virtual_host": "a"}"#, "rules[0].match.virtual_host: "),
        (
            r#""match": {"path": "/x"}"#,
            r#"rules[0].match.path: "/x" is not an object; expected an object with segments"#,
        ),
        (
            r#""match": {"path": {"segments": "/Login./"}}"#,
            r#"rules[0].match.path.segments: "/Login./" is not in the form in which paths are compared; expected the path "/Login""#,
        ),
        (
            r#""match": {"path": {"segments": "/a*/b"}}"#,
            r#"rules[0].match.path.segments: "/a*/b" has a star next to other characters"#,
        ),
        (
            r#""match": {"path": {"exact": "/a;b"}}"#,
            r#"rules[0].match.path.exact: "/a;b" is not in the form in which paths are compared; expected the path "/a""#,
        ),
        (
            r#""match": {"path": {"regex": "/a", "ignore_case": true}}"#,
            "rules[0].match.path.ignore_case: true has no effect on a regular expression; expected (?i)",
        ),
        (r#""match": {"path": {"exact": "x"}}"#, r#"rules[0].match.path.exact: "x" is not a path"#),
        (r#""match": {"path": {"exact": "/x?y"}}"#, r#"rules[0].match.path.exact: "/x?y" is not a path"#),
        (
            r#""match": {"path": {"prefix": "/a//%62"}}"#,
            r#"rules[0].match.path.prefix: "/a//%62" is not in the form in which paths are compared; expected the path "/a/b""#,
        ),
        (
            r#""match": {"path": {"regex": "("}}"#,
            r#"rules[0].match.path.regex: "(" is not a usable regular expression: regex parse error:"#,
        ),
        (
            r#""match": {"methods": ["get"]}"#,
            r#"rules[0].match.methods[0]: "get" is not a method; expected a method in"#,
        ),
        (r#""match": {"host": "a:80"}"#, r#"rules[0].match.host: "a:80" is not a host"#),
        (r#""match": {"headers": [{"name": "x"}]}"#, "rules[0].match.headers[0]: none of exact, prefix"),
        (r#""match": {"headers": {"x": "y"}}"#, "rules[0].match.headers: an object is not a list"),
        (r#""match": {"except": []}"#, "rules[0].match.except: it has 0 exceptions"),
        (
            r#""match": {"except": [{}]}"#,
            "rules[0].match.except[0]: an object has no condition, so that the rule would match nothing",
        ),
        (
            r#""match": {"except": [{"host": "a", "except": [{"host": "b"}]}]}"#,
            "rules[0].match.except[0].except: there is no such field",
        ),
        (r#""match": {"except": [{"path": {"exact": "x"}}]}"#, "rules[0].match.except[0].path.exact: "),
        (
            r#""match": {"client_network": {}}"#,
            "rules[0].match.client_network: none of in or not_in is given",
        ),
        (r#""match": {"query": {"a": "b"}}"#, "rules[0].match.query: an object is not a list"),
        (r#""path_group": "a b""#, r#"rules[0].path_group: "a b" is not a name"#),
    ]);
}

#[test]
fn invalid_identifiers() {
    check_each(&[
        (r#""identifier": []"#, "rules[0].identifier: it has 0 parts; expected a list of 1 to 8 parts"),
        (
            r#""identifier": "x""#,
            r#"rules[0].identifier: "x" is not an object; expected an object with header"#,
        ),
        (
            r#""identifier": [{"header": "a b"}]"#,
            r#"rules[0].identifier[0].header: "a b" is not a header name"#,
        ),
        (r#""identifier": {"header": ":"}"#, r#"rules[0].identifier.header: ":" is not a header name"#),
        (r#""identifier": {}"#, "rules[0].identifier: none of header, authorization"),
        (
            r#""identifier": {"header": "a", "cookie": "b"}"#,
            "rules[0].identifier: both header and cookie are given; expected exactly one of",
        ),
        (r#""identifier": {"host": false}"#, "rules[0].identifier.host: false has no effect; expected true"),
        (r#""identifier": {"path_segment": 0}"#, "rules[0].identifier.path_segment: 0 is out of range"),
        (r#""identifier": {"constant": ""}"#, r#"rules[0].identifier.constant: "" is empty"#),
        (
            r#""identifier": {"client_address": {"ipv4_prefix": 33}}"#,
            "rules[0].identifier.client_address.ipv4_prefix: 33 is out of range; expected a whole number from 0 to 32",
        ),
        (
            r#""identifier": {"metadata": {"key": "a"}}"#,
            "rules[0].identifier.metadata: none of filter or typed is given",
        ),
        (r#""identifier": {"client_certificate": "san"}"#, "rules[0].identifier.client_certificate: "),
        (r#""identifier": {"jwt_claim": {}}"#, "rules[0].identifier.jwt_claim.claim: it is missing"),
        (
            r#""identifier": {"jwt_claim": {"claim": ["a", "\u0000"]}}"#,
            r#"rules[0].identifier.jwt_claim.claim[1]: "\0" contains a zero byte"#,
        ),
        (
            r#""identifier": {"cookie": "a", "pick": "any"}"#,
            r#"rules[0].identifier.pick: "any" is not one of its values; expected first or last"#,
        ),
        (
            r#""identifier": {"header": "a", "pick": "last"}"#,
            r#"rules[0].identifier.pick: "last" has no effect here; expected it only with cookie or query"#,
        ),
        (
            r#""identifier": {"host": true, "lowercase": true}"#,
            "rules[0].identifier.lowercase: true has no effect here; expected it only with header or authorization or cookie or",
        ),
        (r#""identifier": {"host": {"port": 80}}"#, "rules[0].identifier.host.port: 80 is not a boolean"),
    ]);
}

/// A configuration of one rule with a name, an identifier and these fields.
fn with_identifier(fields: &str) -> String {
    with_rules(&format!(r#"[{{"name": "r", "identifier": {{"header": "x"}}, {fields}}}]"#))
}

#[test]
fn a_rule_names_its_algorithm() {
    let read = |fields: &str| Config::parse(with_identifier(fields).as_bytes()).unwrap().rules.remove(0);
    let window = read(r#""limit": 5, "window": "1m", "algorithm": "sliding_window""#);
    assert_eq!((window.algorithm, window.timeout_ms), (exact::Algorithm::Window, 50));
    let log = read(r#""limit": 100000, "window": "1m", "algorithm": "sliding_log""#);
    assert_eq!((log.algorithm, log.limit, log.duration_ms), (exact::Algorithm::Log, MAX_LOG_LIMIT, 60_000));
    assert_eq!(log.timeout_ms, 100);
    let ledger = read(
        r#""algorithm": "ledger", "zone": 4294967295, "timeout": "10s", "on_failure": "deny",
           "shadow_mode": true, "cost": 2, "on_missing_identifier": "skip", "match": {"methods": "GET"},
           "overrides": [{"identifier": "vip", "exempt": true}]"#,
    );
    assert_eq!(ledger.algorithm, exact::Algorithm::Ledger { zone: u32::MAX });
    assert_eq!((ledger.limit, ledger.duration_ms, ledger.timeout_ms), (0, 0, 10_000));
    assert_eq!(read(r#""algorithm": "ledger", "zone": 1"#).timeout_ms, 100);
}

#[test]
fn exact_algorithms_deny_on_failure_by_default() {
    let read =
        |fields: &str| Config::parse(with_identifier(fields).as_bytes()).unwrap().rules.remove(0).on_failure;
    for exact in
        [r#""limit": 5, "window": "1m", "algorithm": "sliding_log""#, r#""algorithm": "ledger", "zone": 1"#]
    {
        assert_eq!(read(exact), OnFailure::Deny, "{exact}");
        let configured = format!(r#"{exact}, "on_failure": "allow""#);
        assert_eq!(read(&configured), OnFailure::Allow, "{configured}");
    }
    for window in
        [r#""limit": 5, "window": "1m""#, r#""limit": 5, "window": "1m", "algorithm": "sliding_window""#]
    {
        assert_eq!(read(window), OnFailure::Allow, "{window}");
    }
}

#[test]
fn a_hard_limit_requires_a_window_of_ten_whole_cells() {
    let read = |fields: &str| {
        let text = with_rules(&format!(r#"[{{"name": "r", "identifier": {{"header": "x"}}, {fields}}}]"#));
        Config::parse(text.as_bytes())
            .map(|config| (config.rules[0].hard_limit, config.rules[0].resolution()))
    };
    for (fields, expected) in [
        (r#""limit": 5, "window": "1s""#, (false, 1)),
        (r#""limit": 5, "window": "1001ms", "hard_limit": false"#, (false, 1)),
        (r#""limit": 5, "window": "1s", "hard_limit": true"#, (true, 10)),
        (r#""limit": 5, "window": 1010, "hard_limit": true, "algorithm": "sliding_window""#, (true, 10)),
        (r#""limit": 5, "window": "31d", "hard_limit": true"#, (true, 10)),
    ] {
        assert_eq!(read(fields), Ok(expected), "{fields}");
    }
    check(
        &with_fields(r#""window": "1001ms", "hard_limit": true"#),
        &[
            r#"rules[0].window: "1001ms" cannot be divided into ten cells of whole milliseconds, as a hard limit requires; expected a multiple of 10ms"#,
        ],
    );
    check(&with_fields(r#""hard_limit": "yes""#), &[r#"rules[0].hard_limit: "yes" is"#]);
    check(
        &with_fields(r#""algorithm": "sliding_log", "hard_limit": true"#),
        &[
            "rules[0].hard_limit: true has no effect here, as no window of a log ever holds more than its limit; expected \"algorithm\": \"sliding_window\"",
        ],
    );
    let ledger = r#"[{"name": "r", "identifier": {"header": "x"}, "algorithm": "ledger", "zone": 1, "hard_limit": false}]"#;
    check(&with_rules(ledger), &["rules[0].hard_limit: false has no effect here, as no window of a ledger"]);
}

const LOG: &str = r#""limit": 5, "window": "1m", "algorithm": "sliding_log""#;
const LEDGER: &str = r#""algorithm": "ledger", "zone": 7"#;

fn with(base: &str, more: &str) -> String {
    format!("{base}, {more}")
}

/// The fields of each rule, and the errors of it.
fn check_algorithm(rules: &[(String, &[&str])]) {
    for (fields, expected) in rules {
        check(&with_identifier(fields), expected);
    }
}

#[test]
fn fields_without_effect_on_a_window_or_a_log_are_refused() {
    check_algorithm(&[
        (
            r#""limit": 5, "window": "1m", "algorithm": "exact""#.to_owned(),
            &[
                r#"rules[0].algorithm: "exact" is not one of its values; expected sliding_window, sliding_log or ledger"#,
            ],
        ),
        (
            r#""limit": 100001, "window": "1m", "algorithm": "sliding_log""#.into(),
            &["rules[0].limit: 100001 is out of range; expected a whole number from 0 to 100000"],
        ),
        (
            r#""algorithm": "sliding_log""#.into(),
            &["rules[0].limit: it is missing", "rules[0].window: it is missing"],
        ),
        (
            with(
                LOG,
                r#""overrides": [{"identifier": "a", "limit": 100000}, {"identifier": "b", "limit": 100001}]"#,
            ),
            &["rules[0].overrides[1].limit: 100001 is out of range"],
        ),
        (
            with(LOG, r#""timeout": "11s""#),
            &[
                r#"rules[0].timeout: "11s" is out of range; expected a number with ms, s, m, h or d between 1ms and 10s"#,
            ],
        ),
        (
            with(LOG, r#""unknown_key": "assume_low""#),
            &[r#"rules[0].unknown_key: "assume_low" has no effect here, as every request is queried"#],
        ),
        (
            with(LOG, r#""zone": 7"#),
            &[
                r#"rules[0].zone: 7 has no effect here, as only a ledger has a zone; expected "algorithm": "ledger""#,
            ],
        ),
        (r#""limit": 5, "window": "1m", "zone": 7"#.into(), &["rules[0].zone: 7 has no effect here"]),
    ]);
}

#[test]
fn fields_without_effect_on_a_ledger_are_refused() {
    check_algorithm(&[
        (
            r#""algorithm": "ledger""#.into(),
            &["rules[0].zone: it is missing; expected the number of the ledger's zone"],
        ),
        (
            r#""algorithm": "ledger", "zone": 0"#.into(),
            &["rules[0].zone: 0 is out of range; expected a whole number from 1 to 4294967295"],
        ),
        (
            r#""algorithm": "ledger", "zone": 4294967296"#.into(),
            &["rules[0].zone: 4294967296 is out of range"],
        ),
        (
            with(LEDGER, r#""limit": 5, "window": "1m""#),
            &[
                "rules[0].limit: 5 has no effect here, as a ledger's zone sets rate and window",
                r#"rules[0].window: "1m" has no effect here, as a ledger's zone sets rate and window"#,
            ],
        ),
        (
            with(LEDGER, r#""cost": 9007199254740993"#),
            &[
                "rules[0].cost: 9007199254740993 is more than a ledger records; expected at most 9007199254740992",
            ],
        ),
        (
            with(LEDGER, r#""cost": {"request": {"header": "x-cost"}, "max": 9007199254740993}"#),
            &["rules[0].cost: an object is more than a ledger records"],
        ),
        (
            with(LEDGER, r#""overrides": [{"identifier": "a", "limit": 1}]"#),
            &["rules[0].overrides[0].limit: 1 has no effect here, as a ledger's zone sets the rate"],
        ),
        (with(LEDGER, r#""unknown_key": "query""#), &["rules[0].unknown_key: "]),
        (
            with(LEDGER, r#""namespace": "n""#),
            &[r#"rules[0].namespace: "n" has no effect here, as a ledger counts by its zone"#],
        ),
    ]);
}

#[test]
fn all_errors_are_reported_together() {
    let text = r#"{
        "workspace": 5, "aggregator": {"clutser": "c"}, "table": {"max_keys": "many"},
        "rules": [{"name": "a", "limit": 1, "window": "1s", "identifier": {"header": "x"}},
                  {"name": "a", "limit": -1, "window": "5x", "identifier": [{"header": "x"}, {"headr": "x"}],
                   "match": {"methods": ["get"], "path": {"exact": "x", "regex": "("}}}]
    }"#;
    check(
        text,
        &[
            "workspace: 5 is not a name",
            "aggregator.clutser: there is no such field; did you mean cluster?",
            "aggregator.cluster: it is missing",
            "table.max_keys: \"many\" is not a whole number",
            "rules[1].match.path: both exact and regex are given",
            "rules[1].match.methods[0]: \"get\" is not a method",
            "rules[1].identifier[1].headr: there is no such field; did you mean header?",
            "rules[1].identifier[1]: none of header, authorization",
            "rules[1].limit: -1 is not a whole number",
            "rules[1].window: \"5x\" is not a duration",
            "rules[1].name: \"a\" is also the name of rules[0]",
        ],
    );
    let shown = Config::parse(text.as_bytes()).unwrap_err();
    assert_eq!(shown.to_string().lines().count(), shown.count());
}

/// JSON that is often close to a configuration: a valid one with one value replaced.
fn nearly_right() -> impl Strategy<Value = String> {
    let values =
        ["null", "-1", "1e400", "0.5", "\"\"", "[]", "{}", "[[]]", "{\"a\": 1}", "true", "\"*\"", "\"\\\\\""];
    let places: Vec<usize> = COMPLETE.match_indices(": ").map(|(at, _)| at + 2).collect();
    (proptest::sample::select(places), proptest::sample::select(values.to_vec())).prop_map(|(at, value)| {
        let rest = &COMPLETE[at..];
        let end = rest.find([',', '}', ']']).unwrap_or(rest.len());
        format!("{}{value}{}", &COMPLETE[..at], &rest[end..])
    })
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(text in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Config::parse(&text);
    }

    #[test]
    fn any_json_like_text_is_read_or_refused(text in "[\\[\\]{}\",:0-9a-z\\\\. -]{0,100}") {
        let _ = Config::parse(text.as_bytes());
    }

    #[test]
    fn nearly_right_configurations_are_read_or_refused(text in nearly_right()) {
        if let Err(errors) = Config::parse(text.as_bytes()) {
            prop_assert!(errors.iter().all(|error| !error.problem.is_empty() && !error.expected.is_empty()));
        }
    }

    #[test]
    fn damaged_configurations_are_read_or_refused(at in 0..COMPLETE.len(), byte in any::<u8>()) {
        let mut text = COMPLETE.as_bytes().to_vec();
        text[at] = byte;
        let _ = Config::parse(&text);
        let _ = Config::parse(&text[..at]);
    }
}

#[test]
fn regular_expressions_are_bounded_in_number() {
    let rule = |at: usize| {
        format!(
            r#"{{"name": "r{at}", "match": {{"path": {{"regex": "/a"}}, "route": {{"regex": "b"}}}},
                 "identifier": {{"header": "a"}}, "limit": 1, "window": "1s"}}"#
        )
    };
    let rules = |count: usize| (0..count).map(rule).collect::<Vec<_>>().join(",");
    let text = |count| format!(r#"{{"aggregator": {{"cluster": "weir"}}, "rules": [{}]}}"#, rules(count));
    assert_eq!(Config::parse(text(512).as_bytes()).unwrap().rules.len(), 512);
    let errors = Config::parse(text(1_024).as_bytes()).unwrap_err().to_string();
    assert!(
        errors.starts_with("rules[512]") && errors.contains("one regular expression too many"),
        "{errors}"
    );
    assert_eq!(errors.lines().count(), 1, "{errors}");
}
