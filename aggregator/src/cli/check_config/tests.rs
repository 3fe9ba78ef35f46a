use super::*;
use serde_json::json;

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
        (PLUGIN.replace("\n]}", ",\n]}"), Err("trailing comma at line 3 column 1: JSON has no comma after")),
        (envoy(PLUGIN).replace("\"1h\"}", "\"1h\",}"), Err("trailing comma")),
        ("{}".to_owned(), Err("rules")),
        ("[]".to_owned(), Ok("valid: tokens, entries: 0")),
        ("[7]".to_owned(), Err("expected")),
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
        (with(&format!("\"overrides\": [{one}, {{\"identifier\": \"t*\", \"limit\": 5}}]")), ", 2 overrides"),
        (
            with(r#""ban": {"threshold": 100, "window": "1m", "duration": "10m"}"#),
            "\"api\", bans for 10m, up to 1d, after 100 denials within 1m",
        ),
        (
            PLUGIN.replace(
                "\"rules\"",
                r#""client_networks": {"exempt": ["10.0.0.0/8"], "deny": ["::1", "::2"]}, "rules""#,
            ),
            "\n  addresses: exempt 1, denied 2\n",
        ),
    ] {
        check_said(&text, true, part);
    }
}

#[test]
fn a_rule_that_clients_escape_is_warned_of() {
    let rule =
        |name: &str, fields: &str| format!(r#"{{"name": "{name}", "limit": 1, "window": "1s", {fields}}}"#);
    let by_key = r#""on_missing_identifier": "skip", "identifier": [{"constant": "c"}, {"header": "x-key"}]"#;
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
            format!("{}, {}", rule("a", &format!("{by_address}{on}")), rule("b", &format!("{by_key}{on}"))),
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
fn a_rule_that_skips_values_of_clients_is_warned_of() {
    let rule =
        |name: &str, fields: &str| format!(r#"{{"name": "{name}", "limit": 9, "window": "1s", {fields}}}"#);
    let by_tool = r#""identifier": {"header": "x-tool", "one_of": ["a"], "on_unlisted": "skip"}"#;
    let by_address = r#""identifier": {"client_address": {}}"#;
    let (tool, denying) = (rule("tool", by_tool), rule("tool", &by_tool.replace("skip", "deny")));
    for (rules, warned) in [
        (tool.clone(), true),
        (denying.clone(), false),
        (format!("{}, {tool}", rule("all", by_address)), false),
        (format!("{}, {tool}", rule("all", by_tool)), true),
        (format!("{}, {tool}", denying.replace("tool", "all")), false),
        (rule("tool", &format!("{by_tool}, \"shadow_mode\": true")), false),
        (tool.replace("\"header\": \"x-tool\"", "\"jwt_claim\": {\"claim\": \"plan\"}"), false),
    ] {
        let text = format!(r#"{{"aggregator": {{"cluster": "weir"}}, "rules": [{rules}]}}"#);
        let report = valid(&text);
        let warning = "on_unlisted: skip allows every request with another value of header x-tool";
        assert_eq!(report.contains(warning), warned, "{text}\n{report}");
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
        let code =
            format!("vm_config: {{code: {{local: {{filename: {module}}}}}}}\n                configuration:");
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
        (loading(&headers_on_allowed, "/etc/envoy/plugin.wasm"), true, "needs weir-filter-responses.wasm"),
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
    let sound = format!("{{name: weir, {}}}", http2("{connection_keepalive: {interval: 1s}}"));
    let many: Vec<String> = (0..12).map(|number| format!("{{name: c{number}}}")).collect();
    for (text, sound, part) in [
        (with(&format!("{{name: web}}, {sound}"), ""), true, "valid"),
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

/// The extension of a cluster that makes it HTTP/2 with these options.
fn http2(options: &str) -> String {
    protocol(&format!("explicit_http_config: {{http2_protocol_options: {options}}}"))
}

fn protocol(stated: &str) -> String {
    let kind = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    format!(
        "typed_extension_protocol_options: {{{kind}: {{\"@type\": type.googleapis.com/{kind}, {stated}}}}}"
    )
}

#[test]
fn a_cluster_without_http2_is_an_error() {
    let with = |rest: &str| format!("{}  clusters: [{{name: weir{rest}}}]\n", envoy(PLUGIN));
    let stated = |text: &str| with(&format!(", {text}"));
    let (missing, unbounded) = (
        "aggregator.cluster: the cluster \"weir\" of this file is not HTTP/2",
        "has no connection_keepalive",
    );
    for (text, wrong) in [
        (with(""), Some(missing)),
        (stated(&protocol("explicit_http_config: {http_protocol_options: {}}")), Some(missing)),
        (stated(&protocol("explicit_http_config: {http3_protocol_options: {}}")), Some(missing)),
        (format!("{}dynamic_resources: {{cds_config: {{}}}}\n", with("")), Some(missing)),
        (stated(&http2("{}")), Some(unbounded)),
        (stated("http2_protocol_options: {}"), Some(unbounded)),
        (stated(&http2("{connection_keepalive: {interval: 1s}}")), None),
        (stated(&protocol("auto_config: {}")), None),
        (stated(&protocol("use_downstream_protocol_config: {}")), None),
    ] {
        let report = check_text(text.as_bytes());
        assert_eq!(report.is_valid(), wrong != Some(missing), "{text}\n{report:?}");
        let report = report.to_text();
        assert_eq!(report.contains("connection_keepalive"), wrong == Some(unbounded), "{text}\n{report}");
        assert!(report.contains(wrong.unwrap_or_default()), "{text}\n{report}");
    }
}

/// The connection manager of `envoy` with settings, each in a line of its own.
fn managed(plugin: &str, settings: &[&str]) -> String {
    let kind = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
    let lines: String = settings.iter().map(|line| format!("          {line}\n")).collect();
    let manager = format!("typed_config:\n          \"@type\": {kind}\n{lines}          http_filters:");
    envoy(plugin).replace("typed_config:\n          http_filters:", &manager)
}

#[test]
fn an_address_that_clients_write_is_warned_of() {
    let by_address = |fields: &str| {
        PLUGIN.replace(r#"{"header": "x-api-key"}"#, &format!(r#"{{"client_address": {{{fields}}}}}"#))
    };
    let by_network = PLUGIN.replace("\"rules\"", r#""client_networks": {"exempt": ["10.0.0.0/8"]}, "rules""#);
    let warning = "Envoy takes the client's address from x-forwarded-for";
    for (text, warned) in [
        (managed(&by_address(""), &[]), Some("rules[0].identifier.client_address: ")),
        (managed(&by_address("\"trusted_hops\": 0"), &[]), Some("rules[0].identifier.client_address: ")),
        (managed(&by_network, &["use_remote_address: false"]), Some("client_networks: ")),
        (managed(&by_address("\"trusted_hops\": 1"), &[]), None),
        (managed(&by_address(""), &["use_remote_address: true"]), None),
        (managed(&by_address(""), &["xff_num_trusted_hops: 1"]), None),
        (managed(&by_address(""), &["original_ip_detection_extensions: [{name: a}]"]), None),
        (managed(PLUGIN, &[]), None),
        (envoy(&by_address("")), None),
    ] {
        let report = valid(&text);
        assert_eq!(report.contains(warning), warned.is_some(), "{text}\n{report}");
        assert!(report.contains(warned.unwrap_or_default()), "{text}\n{report}");
    }
}

#[test]
fn what_lets_requests_pass_or_counts_them_twice_is_warned_of() {
    let policy = |name: &str| {
        envoy(PLUGIN)
            .replace("configuration:", &format!("failure_policy: {name}\n                configuration:"))
    };
    let twice = |second: &str, settings: &str| {
        let first = envoy(PLUGIN);
        let (_, filter) = first.split_once("          - name: weir").unwrap();
        let filter = filter.replace(&PLUGIN.replace('\n', " "), &second.replace('\n', " "));
        format!("{first}          - name: again{settings}{filter}")
    };
    let token = |text: &str| PLUGIN.replace("\"weir\"", &format!("\"weir\", \"token\": \"{text}\""));
    let of_istio =
        |fields: &str| object("WasmPlugin", &format!("spec:\n  {fields}\n  pluginConfig:\n{}", yaml("9", 4)));
    let both = "rules[0]: http_filters[0] (weir) counts in namespace \"api\" too";
    for (text, warned) in [
        (policy("FAIL_OPEN"), Some("requests pass without any limit (FAIL_OPEN)")),
        (policy("FAIL_RELOAD"), None),
        (of_istio("failStrategy: FAIL_OPEN"), Some("(FAIL_OPEN)")),
        (of_istio("failStrategy: FAIL_CLOSED"), None),
        (twice(PLUGIN, ""), Some(both)),
        (twice(PLUGIN, "\n            disabled: true"), None),
        (twice(&PLUGIN.replace("\"api\"", "\"other\""), ""), None),
        (twice(&PLUGIN.replace("1h", "1m"), ""), None),
        (token("change-me"), Some("aggregator.token: it is a placeholder")),
        (envoy(&token("change-me")), Some("aggregator.token: it is a placeholder")),
        (token("s3cret"), None),
        (
            PLUGIN.replace("\"limit\"", r#""match": {"methods": "ALL"}, "limit""#),
            Some("rules[0].match.methods"),
        ),
    ] {
        let report = valid(&text);
        assert_eq!(report.contains("warning: "), warned.is_some(), "{text}\n{report}");
        assert!(report.contains(warned.unwrap_or_default()), "{text}\n{report}");
    }
}

#[test]
fn the_connection_manager_is_held_against_rules_by_path() {
    let by_path = PLUGIN.replace("\"limit\"", r#""match": {"path": {"prefix": "/v1/"}}, "limit""#);
    let by_segment = PLUGIN.replace(r#"{"header": "x-api-key"}"#, r#"{"path_segment": 2}"#);
    let on_header = |test: &str| {
        let condition =
            format!(r#""match": {{"headers": [{{"name": ":path", {test}, "invert": true}}]}}, "limit""#);
        PLUGIN.replace("\"limit\"", &condition)
    };
    // The second leaves out one spelling alone, which all upstreams read alike.
    let (by_header, but_one) = (on_header(r#""prefix": "/assets""#), on_header(r#""exact": "/health""#));
    let managed = |plugin: &str, settings: &str| {
        let kind = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
        let manager =
            format!("typed_config:\n          \"@type\": {kind}\n{settings}          http_filters:");
        envoy(plugin).replace("typed_config:\n          http_filters:", &manager)
    };
    let advised = "          normalize_path: true\n          merge_slashes: true\n          path_with_escaped_slashes_action: ";
    let sound = format!("{advised}UNESCAPE_AND_REDIRECT\n");
    let field = "rules[0].match.path reads the path, which upstreams may read differently; expected";
    for (text, is_valid, part) in [
        (managed(&by_path, &sound), true, "valid"),
        (managed(&by_path, &format!("{advised}KEEP_UNCHANGED\n")), true, "valid"),
        (managed(&by_path, ""), false, &*format!("  normalize_path: {field} true")),
        (managed(&by_path, ""), false, &*format!("  merge_slashes: {field} true")),
        (
            managed(&by_path, &sound.replace("UNESCAPE_AND_REDIRECT", "IMPLEMENTATION_SPECIFIC_DEFAULT")),
            false,
            "  path_with_escaped_slashes_action: ",
        ),
        (managed(&by_segment, ""), false, "normalize_path: rules[0].identifier.path_segment reads"),
        (managed(&by_header, ""), false, "normalize_path: rules[0].match.headers on :path reads the path"),
        (managed(&by_header, &sound), true, "valid"),
        (managed(&but_one, ""), true, "valid"),
        (managed(PLUGIN, ""), true, "valid"),
        (by_path.clone(), true, "valid"),
    ] {
        check_said(&text, is_valid, part);
    }
    let report = check_text(managed(&by_path, "").as_bytes()).to_json();
    let path = "static_resources.listeners[0].filter_chains[0].filters[0].typed_config.normalize_path";
    assert_eq!(report["errors"][0]["path"], path, "{report}");
    assert_eq!(report["errors"].as_array().unwrap().len(), 3);
}

#[test]
fn headers_with_underscores_are_warned_of() {
    let kind = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
    let managed = |plugin: &str, settings: &str| {
        let manager =
            format!("typed_config:\n          \"@type\": {kind}\n{settings}          http_filters:");
        envoy(plugin).replace("typed_config:\n          http_filters:", &manager)
    };
    let action = |action: &str| {
        format!("          common_http_protocol_options: {{headers_with_underscores_action: {action}}}\n")
    };
    let by_host = PLUGIN.replace(r#"{"header": "x-api-key"}"#, r#"{"host": true}"#);
    let matching = by_host
        .replace("\"limit\"", r#""match": {"headers": [{"name": "x-tier", "present": true}]}, "limit""#);
    let costing =
        by_host.replace("\"limit\"", r#""cost": {"request": {"header": "x_cost"}, "max": 5}, "limit""#);
    for (text, warned) in [
        (managed(PLUGIN, ""), Some("rules[0].identifier: an upstream that takes _ and - for the same")),
        (managed(PLUGIN, ""), Some("another header for x-api-key; set common_http_protocol_options")),
        (managed(PLUGIN, &action("ALLOW")), Some("rules[0].identifier")),
        (managed(PLUGIN, &action("DROP_HEADER")), None),
        (managed(PLUGIN, &action("REJECT_REQUEST")), None),
        (managed(&PLUGIN.replace("x-api-key", "apikey"), ""), None),
        (managed(&by_host, ""), None),
        (managed(&matching, ""), Some("rules[0].match.headers")),
        (managed(&costing, ""), Some("rules[0].cost")),
        (PLUGIN.to_owned(), None),
        (envoy(PLUGIN), None),
    ] {
        let report = valid(&text);
        assert_eq!(report.contains("headers_with_underscores_action"), warned.is_some(), "{text}\n{report}");
        assert!(report.contains(warned.unwrap_or_default()), "{text}\n{report}");
    }
}

#[test]
fn what_has_many_spellings_is_warned_of() {
    for (from, to, warned) in [
        ("", "", None),
        (
            "x-api-key",
            "Authorization",
            Some("each spelling of header authorization is another client; use authorization"),
        ),
        ("x-api-key", ":path", Some("use path, path_segment or query")),
        (r#""header": "x-api-key""#, r#""authorization": true"#, None),
        (
            "\"limit\"",
            r#""match": {"headers": [{"name": ":path", "prefix": "/a"}]}, "limit""#,
            Some("use match.path"),
        ),
        (
            r#""header": "x-api-key""#,
            r#""query": "user""#,
            Some("rules[0].identifier: many upstreams take user from a form in the body where it has one"),
        ),
        (
            r#""identifier": [{"header": "x-api-key"}]"#,
            r#""match": {"methods": ["GET", "PUT"]}, "identifier": [{"header": "a"}, {"query": "user"}]"#,
            Some("many upstreams take user from a form in the body"),
        ),
        (
            r#""identifier": [{"header": "x-api-key"}]"#,
            r#""match": {"methods": "GET"}, "identifier": {"query": "user"}"#,
            None,
        ),
        (
            "\"limit\"",
            r#""match": {"headers": [{"name": ":path", "exact": "/a", "invert": true}]}, "limit""#,
            None,
        ),
    ] {
        let report = valid(&PLUGIN.replacen(from, to, 1));
        assert_eq!(report.contains("warning"), warned.is_some(), "{to}\n{report}");
        assert!(report.contains(warned.unwrap_or_default()), "{to}\n{report}");
    }
}

#[test]
fn environment_variables_are_held_against_those_that_are_shown() {
    let from_variable = PLUGIN.replace("\"rules\"", "\"hash_key_env\": \"KEY\", \"rules\"");
    let shown = |variables: &str| {
        let vm = format!("vm_config: {{environment_variables: {variables}}}\n                configuration:");
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
    let of_istio = |limit: &str| object("WasmPlugin", &format!("spec:\n  pluginConfig:\n{}", yaml(limit, 4)));
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

/// An example's Envoy configuration, with each text replaced that occurs in it.
fn example(name: &str, changes: &[(&str, &str)]) -> String {
    let file = format!("{}/../examples/{name}/envoy.yaml", env!("CARGO_MANIFEST_DIR"));
    changes.iter().fold(std::fs::read_to_string(file).unwrap(), |text, (from, to)| {
        assert!(text.contains(from), "{name} has no {from}");
        text.replace(from, to)
    })
}

#[test]
fn what_closes_the_examples_by_the_body_is_missed() {
    for (name, changes, part) in [
        ("mcp-tools", &[][..], None),
        ("model-limits", &[], None),
        (
            "mcp-tools",
            &[("reject_duplicate_keys: true", "clear_route_cache: true")],
            Some("set reject_duplicate_keys"),
        ),
        (
            "mcp-tools",
            &[("one_of: [search, fetch, run_sql]", "pick: first")],
            Some("list the values in one_of"),
        ),
        (
            "mcp-tools",
            &[("on_missing_identifier: deny", "on_missing_identifier: skip")],
            Some("has no name or is not parsed"),
        ),
        (
            "mcp-tools",
            &[("present: false", "present: true"), ("exact: 'true', invert: true", "exact: 'true'")],
            Some("add a rule with present: false"),
        ),
        (
            "mcp-tools",
            &[("http.mcp.v3.Mcp", "http.lua.v3.Lua")],
            Some("no filter of this list writes the metadata envoy.filters.http.mcp"),
        ),
        (
            "model-limits",
            &[("one_of: [gpt-4o, gpt-4o-mini]", "pick: first")],
            Some("a client writes model into its body"),
        ),
        (
            "model-limits",
            &[("one_of: [", "on_unlisted: skip\n                                    one_of: [")],
            Some("on_unlisted: skip allows every request with a model"),
        ),
    ] {
        let report = valid(&example(name, changes));
        match part {
            Some(part) => assert!(report.contains(part), "{changes:?}\n{report}"),
            None => assert!(!report.contains("warning:"), "{name}\n{report}"),
        }
    }
}

#[test]
fn a_parser_of_bodies_after_the_filter_is_an_error() {
    for (name, comment) in [("mcp-tools", "# Reads the call"), ("model-limits", "# Reads the model")] {
        let text = example(name, &[]);
        let (before, rest) = text.split_once(&format!("                  {comment}")).unwrap();
        let (parser, rest) = rest.split_once("                  - name: weir\n").unwrap();
        let (weir, after) = rest.split_once("                  - name: router\n").unwrap();
        let moved = format!(
            "{before}                  - name: weir\n{weir}                  #{parser}                  - name: router\n{after}"
        );
        check_said(&moved, false, "and requests pass it after Weir; expected a place before Weir");
        check_said(&moved, false, "filter_chains[0].filters[0].typed_config.http_filters[");
        let named = parser.lines().find(|line| line.contains("- name: ")).unwrap();
        let line = moved.lines().position(|line| line == named).unwrap() + 1;
        check_said(&moved, false, &format!("expected a place before Weir, at line {line}"));
    }
}

#[test]
fn costs_that_http_3_does_not_settle_are_warned_of_with_the_line() {
    let usual = example("llm-budgets", &[]);
    assert!(!valid(&usual).contains("HTTP/3"), "{}", valid(&usual));
    let (before, after) = usual.split_once("      filter_chains:\n").unwrap();
    let quic = format!(
        "{before}      udp_listener_config:\n        quic_options: {{}}\n      filter_chains:\n{after}"
    );
    let line = before.lines().count() + 1;
    let report = valid(&quic);
    let expected = format!(
        "warning: rules[0].cost.usage: static_resources.listeners[0].udp_listener_config, at line {line}, serves HTTP/3"
    );
    assert!(report.contains(&expected), "{report}");
}

#[test]
fn one_object_of_json_has_the_result() {
    let errors = |text: &str| check_text(text.as_bytes()).to_json();
    let sound = errors(PLUGIN);
    assert_eq!((&sound["valid"], &sound["errors"]), (&true.into(), &json!([])));
    assert!(sound["configurations"][0]["summary"].as_str().unwrap().contains("keys: 100 per 1h"));
    let message = format!("it is empty; expected {EXPECTED}");
    let whole = json!([{ "document": 1, "object": null, "path": "", "message": message }]);
    assert_eq!(errors("")["errors"], whole);
    assert_eq!(errors("a: b: c")["errors"].as_array().unwrap().len(), 1);
    let path = errors(&envoy(&PLUGIN.replace("100", "-1")))["errors"][0]["path"].as_str().unwrap().to_owned();
    assert!(path.ends_with(".config.configuration.value.rules[0].limit"), "{path}");
}

#[test]
fn a_field_given_twice_in_yaml_is_found() {
    let twice = object("WasmPlugin", &format!("spec:\n  pluginConfig:\n{}    rules: []\n", yaml("5", 4)));
    check_said(&twice, false, "spec.pluginConfig.rules: it is given twice");
    let whole = format!("{}rules: []\n", yaml("5", 0));
    let line = whole.lines().count();
    let again = format!("rules: it is given twice, again at line {line}, column 1; expected one value");
    check_said(&whole, false, &again);
}

#[test]
fn files_of_the_aggregator_are_checked() {
    let limits = "domain: d\ndescriptors: [{ key: k, rate_limit: { unit: second, requests_per_unit: 1 } }]\n";
    let token = format!("- {{ name: shop, sha256: {}, workspace: default }}\n", "ab".repeat(32));
    check_said(limits, true, "valid: limits of the rate-limit service, domains: 1\n  d: k: 1 per second");
    let several = limits.replace(
        "{ unit: second, requests_per_unit: 1 }",
        "[{ unit: second, requests_per_unit: 1 }, { unit: hour, requests_per_unit: 9 }]",
    );
    check_said(&several, true, "\n  d: k: 1 per second\n  d: k: 9 per hour");
    check_said(
        &several.replace("hour", "second"),
        false,
        "rate_limit[1]: it has the interval of another limit",
    );
    check_said(&limits.replace("second", "fortnight"), false, "unit");
    check_said(&format!("{limits}---\n{limits}"), false, "d");
    check_said(&token, true, "valid: tokens, entries: 1\n  shop: application of workspace default, by token");
    check_said(&token.replace("abab", "xx"), false, "sha256");
    check_said(&token.replace("workspace", "wrkspace"), false, "wrkspace");
    let not_hashed = "- { name: shop, token: weir_0123, workspace: default }\n";
    check_said(not_hashed, false, "a tokens file: ");
    check_said(not_hashed, false, "unknown field `token`");
    check_said("- { name: shop, workspace: default }\n", false, "expected either sha256");
    check_said(token.trim_start_matches("- "), false, "a tokens file: ");
    for named in [format!("tokens:\n{token}"), format!("shop: {}", token.trim_start_matches("- "))] {
        check_said(&named, false, "a tokens file: expected a YAML list of {name, ");
    }
    let limitador = "- { namespace: shop, max_value: 2, seconds: 60, conditions: [], variables: [] }\n";
    check_said(limitador, false, "it has limits of Limitador; expected them in the format of");
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.yaml"), limits).unwrap();
    assert!(check(folder.path()).unwrap().is_valid());
    std::fs::write(folder.path().join("b.yaml"), limits).unwrap();
    let report = check(folder.path()).unwrap();
    assert!(!report.is_valid() && report.to_text().contains("b.yaml"), "{report:?}");
}

#[test]
fn all_errors_of_a_tokens_file_are_named_and_what_has_no_effect() {
    let sha256 = "ab".repeat(32);
    let entry = |fields: &str| format!("- {{ name: shop, sha256: {sha256}, {fields} }}\n");
    let wrong = format!(
        "- {{ name: a, sha256: 12, workspace: w }}\n- {{ name: b, sha256: {sha256}, wrkspace: w }}\n- {{ name: a, san: x, workspaces: [] }}\n"
    );
    let report = check_text(wrong.as_bytes()).to_json();
    let paths: Vec<_> = report["errors"].as_array().unwrap().iter().map(|one| one["path"].clone()).collect();
    assert_eq!(paths, ["[0]", "[1]", "[2]"], "{report}");
    let twice = entry("workspace: w") + &entry("workspace: w");
    check_said(
        &twice,
        false,
        "[1]: it is taken for a tokens file: an earlier entry has the same name (name \"shop\")",
    );
    let pasted = format!("weir_{sha256}\n{}", entry("workspace: w"));
    check_said(&pasted, false, "line 1 is the token itself, which belongs to the client");
    assert!(!check_text(pasted.as_bytes()).to_text().contains(&sha256));
    let of_san = |san: &str| format!("- {{ name: shop, san: {san:?}, workspace: w }}\n");
    for (text, warned) in [
        (entry("workspace: all"), Some("[0].workspace: it is the one that is named all")),
        (entry("workspace: w, zones: [0, 1]"), Some("[0].zones: there is no zone 0")),
        (entry("workspace: w, max_cost: 0"), Some("[0].max_cost: ")),
        (
            entry("workspace: w, namespaces: [\"a*b\"]"),
            Some("[0].namespaces: in \"a*b\" only a star at the end"),
        ),
        (entry("workspace: w, namespaces: [\"a*\", b], zones: all, max_cost: 1, control: true"), None),
        (entry("workspaces: all"), None),
        (of_san("*.example.com"), Some("[0].san: \"*.example.com\" is that name alone")),
        (of_san("a@example.com"), Some("[0].san: \"a@example.com\" is neither")),
        (of_san("spiffe://example.org/a"), None),
    ] {
        let report = valid(&text);
        assert_eq!(report.contains("warning: "), warned.is_some(), "{text}\n{report}");
        assert!(report.contains(warned.unwrap_or_default()), "{text}\n{report}");
    }
}

#[test]
fn what_of_a_limits_file_has_no_effect_is_warned_of() {
    let rate = "rate_limit: { unit: second, requests_per_unit: 1";
    let with = |descriptors: &str| format!("domain: d\ndescriptors: [{descriptors}]\n");
    let several = |last: &str| {
        with(&format!("{{ key: a, {rate}, name: n }} }}, {{ key: b, {rate}, name: {last} }} }}"))
    };
    for (text, warned) in [
        (several("m"), None),
        (several("n"), Some("d: a: several limits have the name \"n\"")),
        (with("{ key: a }"), Some("d: a: it has neither a rate_limit nor descriptors")),
        (with(&format!("{{ key: a, descriptors: [{{ key: b, value: 1, {rate} }} }}] }}")), None),
        // The value is exempt from the limit of the others.
        (with(&format!("{{ key: a, {rate} }} }}, {{ key: a, value: v }}")), None),
        (
            with(&format!("{{ key: a, {rate}, replaces: [{{ name: other }}] }} }}")),
            Some("no limit has the name \"other\""),
        ),
        (several("m, replaces: [{ name: n }]"), None),
    ] {
        let report = valid(&text);
        assert_eq!(report.contains("warning: "), warned.is_some(), "{text}\n{report}");
        assert!(report.contains(warned.unwrap_or_default()), "{text}\n{report}");
    }
}

#[test]
fn what_a_file_is_taken_for_is_named() {
    for text in ["", "domain: d\ndescriptors:\n\t- key: a\n"] {
        check_said(text, false, "limits of --rls-config or a tokens file");
    }
    let typed = "{\"@type\": \"type.googleapis.com/google.protobuf.Struct\", \"value\": PLUGIN}"
        .replace("PLUGIN", PLUGIN);
    for (text, field) in [
        (format!("{{\"configuration\": {PLUGIN}}}"), "configuration: "),
        (format!("configuration:\n{}", yaml("5", 2)), "configuration: "),
        (typed.clone(), "value: "),
        (format!("{{\"configuration\": {typed}}}"), "configuration: "),
    ] {
        let report = check_text(text.as_bytes()).to_text();
        assert_eq!(report.lines().count(), 1, "{report}");
        assert!(report.starts_with(field) && report.contains("expected that object alone"), "{report}");
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.json"), PLUGIN).unwrap();
    std::fs::write(folder.path().join("b.yaml"), envoy(PLUGIN)).unwrap();
    let report = check(folder.path()).unwrap().to_text();
    assert_eq!(report.lines().count(), 2, "{report}");
    assert!(report.contains("a.json: it configures a filter, and a folder is read as"), "{report}");
}

#[test]
fn a_ban_that_ends_while_its_violations_count_is_warned_of() {
    for (window, duration, warned) in
        [("15m", "15m", true), ("15m", "1799s", true), ("15m", "30m", false), ("1m", "10m", false)]
    {
        let ban = format!(r#""ban": {{"threshold": 3, "window": "{window}", "duration": "{duration}"}}"#);
        let report = valid(&PLUGIN.replace("\"limit\"", &format!("{ban}, \"limit\"")));
        assert_eq!(report.contains("warning: "), warned, "{report}");
        let warning = format!("rules[0].ban.duration: after {duration}, other Envoys may still count");
        assert_eq!(report.contains(&warning), warned, "{report}");
        assert_eq!(report.contains("as their window is 15m; use 30m or more"), warned, "{report}");
    }
}

/// What the repository shows and ships is without warnings.
#[test]
fn files_of_the_repository_are_not_warned_of() {
    const OF_BANS: &str = ".ban.duration: ";
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut checked = 0;
    for name in [
        "examples/mcp-tools/envoy.yaml",
        "examples/model-limits/envoy.yaml",
        "examples/rate-limit-service/limits.yaml",
        "examples/rate-limit-quota/limits.yaml",
        "envoy/deploy/envoy.yaml",
        "envoy/deploy/docker/envoy.yaml",
    ] {
        let report = valid(&std::fs::read_to_string(root.join(name)).unwrap());
        assert!(!report.contains("warning: "), "{name}\n{report}");
    }
    for entry in root.join("examples").read_dir().unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "json") {
            let text = std::fs::read_to_string(&path).unwrap();
            let json = serde_json::from_str(&text).unwrap();
            assert_eq!(conditions::warnings(&json), [""; 0], "{}", path.display());
            assert!(!valid(&text).contains(OF_BANS), "{}", path.display());
            checked += 1;
        }
    }
    let page = std::fs::read_to_string(root.join("filter/CONFIGURATION.md")).unwrap();
    for block in page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("\n```").next()) {
        let Ok(Documents::Yaml(documents)) = documents(block.as_bytes()) else { continue };
        for document in documents {
            let mut json = document.value.to_json();
            assert_eq!(conditions::warnings(&json), [""; 0], "{block}");
            if json["rules"].is_array() {
                json["aggregator"] = json!({ "cluster": "weir_aggregator" });
                assert!(!valid(&json.to_string()).contains(OF_BANS), "{block}");
            }
            checked += 1;
        }
    }
    assert!(checked > 12, "{checked}");
}

#[test]
fn limits_in_a_config_map_are_checked() {
    let limits = |domain: &str, unit: &str| {
        format!(
            "domain: {domain}\n    descriptors: [{{ key: k, rate_limit: {{ unit: {unit}, requests_per_unit: 1 }} }}]\n"
        )
    };
    let of_map = |files: &[(&str, &str)]| {
        let files = files.iter().map(|(name, text)| format!("  {name}: |\n    {text}\n"));
        object("ConfigMap", &format!("data:\n{}", files.collect::<String>()))
    };
    let (shop, edge) = (&*limits("shop", "second"), &*limits("edge", "minute"));
    let both = of_map(&[("shop.yaml", shop), ("edge.yaml", edge), ("other.ini", "[a]\n    b = c")]);
    check_said(&both, true, "data:\n  valid: limits of the rate-limit service, domains: 2");
    let own = object("WasmPlugin", &format!("spec:\n  pluginConfig:\n{}", yaml("5", 4)));
    check_said(&format!("{both}---\n{own}"), true, "document 1, ConfigMap weir, data:\n  valid: limits");
    check_said(&of_map(&[("a.yaml", shop), ("b.yaml", shop)]), false, "b.yaml");
    check_said(&of_map(&[("a.yaml", &limits("shop", "fortnight"))]), false, "fortnight");
    check_said(&of_map(&[("a.yaml", "descriptors: [")]), false, "a.yaml");
    check_said(&of_map(&[("a.ini", "descriptors = 1")]), false, "no document of this file");
}

#[test]
fn what_keeps_a_file_from_being_read_is_named() {
    let object = yaml("5", 0);
    for (text, part) in [
        (String::new(), "it is empty"),
        ("# nothing yet\n---\n".to_owned(), "it is empty"),
        (object.replace("rules:\n", "rules:\n\t"), "is indented with a tab"),
        (format!("{{\n// the key\n{}", &PLUGIN[1..]), "JSON has no comments"),
        (format!("\u{feff}{PLUGIN}"), "byte order mark"),
        ("a: b: c".to_owned(), "neither JSON nor YAML"),
    ] {
        check_said(&text, false, part);
    }
    check_said(&format!("\u{feff}{object}"), true, "keys: 5 per 1h");
    check_said(&format!("{{ # the key\n{}", &PLUGIN[1..]), true, "keys: 100 per 1h");
    for (text, part) in [
        (&b"\xff\xfea\0"[..], "it is not UTF-8, at line 1, column 1"),
        (b"rules:\n  - &a [*a]\n", "an alias stands in what it repeats, at line 2, column 9"),
        (b"rules:\n  - { name: a\n    limit: 1 }\n", ", at line 3, column "),
    ] {
        let report = check_text(text);
        assert!(report.to_text().contains(part), "{report:?}");
    }
}

#[test]
fn other_plugins_are_left_alone() {
    let other = |url: &str| {
        object("WasmPlugin", &format!("spec:\n  url: {url}\n  pluginConfig: {{ rules: [{{ a: 1 }}] }}\n"))
    };
    let own = object("WasmPlugin", &format!("spec:\n  pluginConfig:\n{}", yaml("5", 4)));
    check_said(&format!("{own}---\n{}", other("oci://ghcr.io/corazawaf/coraza-proxy-wasm")), true, "valid");
    check_said(&other("oci://r.example/weir-filter:1"), false, "there is no such field");
}

#[test]
fn durations_without_a_unit_and_small_limits_are_warned_of() {
    for (from, to, warned) in [
        ("", "", None),
        ("\"1h\"", "3600", Some("rules[0].window: 3600 is in milliseconds; write \"3600ms\", or \"3600s\"")),
        ("\"limit\"", "\"timeout\": 50, \"limit\"", Some("rules[0].timeout: 50")),
        ("100", "3", Some("rules[0].limit: 3 is small")),
        ("100", "5", None),
        (
            "\"limit\"",
            "\"overrides\": [{\"identifier\": \"a\", \"limit\": 1}, {\"identifier\": \"a|b\", \"limit\": 1}], \"limit\"",
            Some(
                "rules[0].overrides[1].identifier: \"a|b\" matches none, as identifiers of the rule have 1 part",
            ),
        ),
        ("100", "3, \"hard_limit\": true", None),
        ("100", "3, \"algorithm\": \"sliding_log\"", None),
    ] {
        let report = valid(&PLUGIN.replacen(from, to, 1));
        assert_eq!(report.contains("warning"), warned.is_some(), "{to}\n{report}");
        assert!(report.contains(warned.unwrap_or_default()), "{to}\n{report}");
    }
}

#[test]
fn scalars_are_read_as_envoy_and_kubernetes_read_them() {
    let typed = |rules: &str| {
        envoy("RULES").replace("StringValue", "Struct").replace(
            "'RULES'",
            &format!("{{aggregator: {{cluster: weir}}, rules: [{{name: keys, window: 1h, {rules}}}]}}"),
        )
    };
    let of_istio = |rules: &str| {
        let rules = format!("{{ name: keys, window: 1h, {rules} }}");
        object(
            "WasmPlugin",
            &format!("spec:\n  pluginConfig: {{ aggregator: {{ cluster: c }}, rules: [{rules}] }}\n"),
        )
    };
    let header = "identifier: { header: x-api-key }";
    for (rules, of_envoy, of_kubernetes) in [
        ("limit: 1e2, enforce_percent: 12.34", Ok("enforced for 12.34 %"), Ok("keys: 100 per 1h")),
        ("limit: 3000000000", Ok("keys: 3000000000"), Ok("keys: 3000000000")),
        ("limit: 1_000", Err("\"1_000\" is not a whole number"), Ok("keys: 1000 per")),
        ("limit: 5, shadow_mode: yes", Ok("in shadow mode"), Ok("in shadow mode")),
        ("limit: 5, namespace: no", Err("false is not a name"), Err("false is not a name")),
        ("limit: 5, namespace: \"no\"", Ok("\"no\""), Ok("\"no\"")),
        ("limit: 5, namespace: 1.5", Ok("\"1.5\""), Err("1.5 is not a name")),
    ] {
        let rules = format!("{rules}, {header}");
        for (text, expected) in [(typed(&rules), of_envoy), (of_istio(&rules), of_kubernetes)] {
            let (sound, part) = expected.map_or_else(|part| (false, part), |part| (true, part));
            check_said(&text, sound, part);
        }
    }
}
