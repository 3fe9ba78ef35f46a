//! `check-config` reads a configuration of Envoy as Envoy does: on all examples, and on each type of field in each way of writing it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use weir_envoy::{binaries, validate_file};

/// What the filter's log and `check-config` write before an error.
const MARK: &str = "weir: configuration: ";

/// An Envoy with one filter for each configuration, each given as YAML in one line.
fn envoy(configurations: &[String]) -> String {
    let module = binaries::filter().unwrap().with_file_name("weir-filter-responses.wasm");
    let mut filters = String::new();
    for (number, configuration) in configurations.iter().enumerate() {
        write!(
            filters,
            "
                  - name: weir-{number}
                    typed_config:
                      \"@type\": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm
                      config:
                        name: weir-{number}
                        vm_config:
                          vm_id: weir-{number}
                          runtime: envoy.wasm.runtime.v8
                          code: {{ local: {{ filename: {module:?} }} }}
                          environment_variables: {{ key_values: {{ WEIR_HASH_KEY: 0123456789abcdef, WEIR_FILTER_TOKEN: t }} }}
                        configuration:
                          \"@type\": type.googleapis.com/google.protobuf.Struct
                          value: {configuration}"
        )
        .unwrap();
    }
    format!(
        "
static_resources:
  listeners:
    - name: ingress
      address: {{ socket_address: {{ address: 127.0.0.1, port_value: 0 }} }}
      filter_chains:
        - filters:
            - name: http
              typed_config:
                \"@type\": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: ingress
                normalize_path: true
                merge_slashes: true
                path_with_escaped_slashes_action: UNESCAPE_AND_REDIRECT
                http_filters:{filters}
                  - name: router
                    typed_config: {{ \"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }}
                route_config: {{ virtual_hosts: [] }}
"
    )
}

/// The errors that Envoy's filter logs; none if Envoy accepts the file.
fn of_envoy(file: &Path) -> BTreeSet<String> {
    let Err(error) = validate_file(file) else { return BTreeSet::new() };
    let log = error.to_string();
    let errors: BTreeSet<_> =
        log.lines().filter_map(|line| Some(line.split_once(MARK)?.1.to_owned())).collect();
    assert!(!errors.is_empty(), "{log}");
    errors
}

/// The errors that `check-config` prints, by their paths in the filter's configuration.
fn of_check_config(file: &Path) -> BTreeSet<String> {
    let mut command = Command::new(binaries::aggregator().unwrap());
    let output = command.args(["check-config", "--json"]).arg(file).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let errors = report["errors"].as_array().unwrap().iter().map(|error| {
        let (_, path) = error["path"].as_str().unwrap().split_once(".configuration.value.").unwrap();
        format!("{path}: {}", error["message"].as_str().unwrap())
    });
    errors.collect()
}

fn both(configurations: &[String]) -> [BTreeSet<String>; 2] {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("envoy.yaml");
    std::fs::write(&file, envoy(configurations)).unwrap();
    [of_envoy(&file), of_check_config(&file)]
}

#[test]
fn both_accept_the_examples() {
    let examples = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")).unwrap();
    let paths = examples.map(|entry| entry.unwrap().path());
    let examples: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|end| end == "json"))
        .map(|path| {
            let example: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
            example.to_string()
        })
        .collect();
    assert!(examples.len() >= 7, "{}", examples.len());
    assert_eq!(both(&examples), [BTreeSet::new(), BTreeSet::new()]);
}

/// Writings of each type, some of them of no value of it.
const INTEGERS: [&str; 32] = [
    "100",
    "100.0",
    "1e2",
    "1E+2",
    "+100",
    "0x64",
    "0144",
    "08",
    "0o17",
    "\"100\"",
    "'1e2'",
    "2147483647",
    "2147483648",
    "9007199254740993",
    "18446744073709551615",
    "18446744073709551616",
    "1_000",
    "-1",
    "-1.0",
    "0.5",
    ".5",
    "5.",
    "1e",
    "1e400",
    "~",
    "yes",
    "many",
    ".inf",
    "[]",
    "1e2 # two",
    "!!int 5",
    "!!str 5",
];
const PERCENTAGES: [&str; 12] =
    ["50", "12.34", "50.0", "5e1", ".5", "\"50\"", "\"50.0\"", "100.01", "12.345", "50%", "on", "~"];
const DURATIONS: [&str; 13] = [
    "1h",
    "\"1h\"",
    "60000",
    "6e4",
    "60000.0",
    "2678400000",
    "2678400001",
    "1.5h",
    "'60000'",
    "01h",
    "1 h",
    "0x1000",
    "~",
];
const BOOLEANS: [&str; 14] =
    ["true", "True", "TRUE", "tRUE", "yes", "on", "y", "N", "off", "\"true\"", "1", "0", "~", "''"];
const TEXTS: [&str; 26] = [
    "abc",
    "yes",
    "n",
    "~",
    "null",
    "",
    "1",
    "010",
    "08",
    "12.5",
    "1e2",
    "0x1f",
    "0o17",
    "12345678901",
    "\"yes\"",
    "'1'",
    "2026-11-26",
    "12:30",
    "1_0",
    ".inf",
    "-0",
    "+7",
    "!!str 5",
    "\"a\\tb\"",
    "a b",
    "<<",
];
const WORDS: [&str; 5] = ["skip", "\"skip\"", "no", "Skip", "1"];
const NAMES: [&str; 7] = ["n", "12.5", "off", "123", "08", "1e5", "y"];
const NETWORKS: [&str; 5] = ["10.0.0.0/8", "1", "1.5", "::1", "\"::1\""];

/// Every rule has one field in one writing. All errors of both are compared, so a writing that only one of them accepts shows.
#[test]
fn both_read_each_writing_of_each_type_alike() {
    let fields: [(&str, &[&str]); 12] = [
        ("limit: WRITTEN, window: 1h", &INTEGERS),
        ("limit: 1, window: 1h, cost: WRITTEN", &INTEGERS),
        ("limit: 1, window: 1h, ban: { threshold: WRITTEN, window: 1m, duration: 1m }", &INTEGERS),
        ("limit: 1, window: WRITTEN", &DURATIONS),
        ("limit: 1, window: 1h, ban: { threshold: 1, window: 1m, duration: WRITTEN }", &DURATIONS),
        ("limit: 1, window: 1h, enforce_percent: WRITTEN", &PERCENTAGES),
        ("limit: 1, window: 1h, shadow_mode: WRITTEN", &BOOLEANS),
        ("limit: 1, window: 1h, overrides: [{ identifier: a, exempt: WRITTEN }]", &BOOLEANS),
        ("limit: 1, window: 1h, overrides: [{ limit: 1, identifier: WRITTEN }]", &TEXTS),
        ("limit: 1, window: 1h, on_missing_identifier: WRITTEN", &WORDS),
        ("limit: 1, window: 1h, namespace: WRITTEN", &NAMES),
        ("limit: 1, window: 1h, match: { host: WRITTEN }", &NETWORKS),
    ];
    let mut rules = String::new();
    let mut number = 0;
    for (field, writings) in fields {
        for writing in writings {
            // A comment needs a line of its own, and so does a scalar that may be empty.
            let (writing, comment) = writing.split_once(" #").unwrap_or((writing, ""));
            let field = field.replace("WRITTEN", writing);
            let line_end = if comment.is_empty() { String::new() } else { format!(" #{comment}\n") };
            writeln!(rules, "{{ name: r{number}, identifier: {{ constant: c }}, {field} }},{line_end}")
                .unwrap();
            number += 1;
        }
    }
    let indented = rules.lines().fold(String::new(), |text, line| text + "\n" + &" ".repeat(30) + line);
    let all = format!("{{ aggregator: {{ cluster: c }}, rules: [{indented}\n{}] }}", " ".repeat(30));
    let [envoy, checked] = both(&[all]);
    let (more, less): (Vec<_>, Vec<_>) =
        (checked.difference(&envoy).collect(), envoy.difference(&checked).collect());
    assert!(more.is_empty() && less.is_empty(), "only check-config: {more:#?}\nonly Envoy: {less:#?}");
    assert!(envoy.len() > 60 && envoy.len() + 60 < number, "{} of {number} are errors", envoy.len());
    let refused = |text: &str| envoy.iter().any(|error| error.contains(text));
    assert!(!refused("12.34\"") && !refused("\"1e2\" is not a whole number"), "{envoy:#?}");
    assert!(refused("\"100\" is a text; write it without quotes"), "{envoy:#?}");
}
