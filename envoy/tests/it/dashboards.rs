//! The dashboard and the alerts use only what the programs export: metrics, labels, and label values. Otherwise a
//! renamed metric would leave a panel empty, or disable an alert. The tables of `aggregator/METRICS.md` list exactly
//! the exported metrics with their labels.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, SqliteConnection};
use weir_core::model::outcome::{Group, RuleOutcome};
use weir_envoy::http::{Protocol, Request};
use weir_envoy::{
    Aggregator, AggregatorOptions, Envoy, EnvoyOptions, Filter, Redis, RedisOptions, Weir, binaries,
    bootstrap, wait, yaml,
};

use super::documentation;
use super::scenarios::upstream::{self, Upstream};

const SOON: Duration = Duration::from_secs(30);
/// The limit of the first rule.
const LIMIT: u64 = 2;
/// The labels that Prometheus adds to every sample, and the metric that it generates.
const SCRAPED: [&str; 2] = ["instance", "job"];
const UP: &str = "up";
/// The beginnings of the names of metrics. The second are those of another rate-limit service.
const PREFIXES: [&str; 2] = ["weir", "ratelimit_service_"];
/// Limits of the rate-limit service.
const LIMITS: &str = "
domain: shop
descriptors:
  - key: method
    value: GET
    descriptors: [{key: path, rate_limit: {unit: hour, requests_per_unit: 5}}]
";
/// Convergence metrics that must be exported under these names, by the filter or by the aggregator.
const REQUIRED: [&str; 14] = [
    "weir_ratelimit_global_writes_total",
    "weir_ratelimit_global_write_errors_total",
    "weir_ratelimit_global_sync_rows_applied_total",
    "weir_ratelimit_global_sync_errors_total",
    "weir_ratelimit_global_entries_created_total",
    "weir_ratelimit_global_rows_last_poll",
    "weir_ratelimit_windows",
    "weir_ratelimit_windows_created_total",
    "weir_ratelimit_windows_evicted_total",
    "weir_ratelimit_strict_mode_activations_total",
    "weir_ratelimit_origin_operations_total",
    "weir_ratelimit_origin_latency_seconds_bucket",
    "weir_ratelimit_origin_latency_seconds_count",
    "weir_ratelimit_origin_errors_total",
];

/// A label's name and the accepted values.
type Matcher = (String, Vec<String>);

/// The metrics and labels of an expression.
#[derive(Debug, Default)]
struct Expression {
    /// Each metric with its label matchers.
    metrics: Vec<(String, Vec<Matcher>)>,
    /// Labels by which results are grouped.
    grouped: BTreeSet<String>,
}

/// Reads the relevant parts of PromQL: metric names, matchers, groups.
fn read(expression: &str) -> Expression {
    let mut parsed = Expression::default();
    let mut rest = expression;
    while let Some(start) = rest.find(|c: char| c.is_ascii_alphabetic() || matches!(c, '"' | '[' | '_')) {
        rest = &rest[start..];
        if let Some(after) = rest.strip_prefix('[') {
            rest = after.split_once(']').expect("a range ends").1;
            continue;
        }
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        rest = after;
        if word == "by" {
            let list = after.trim_start().strip_prefix('(').expect("a group is a list");
            let (list, after) = list.split_once(')').expect("a list ends");
            parsed.grouped.extend(list.split(',').map(|label| label.trim().to_owned()));
            rest = after;
        } else if PREFIXES.iter().any(|prefix| word.starts_with(prefix)) || word == UP {
            let mut matchers = Vec::new();
            if let Some(inside) = after.strip_prefix('{') {
                let (inside, after) = inside.split_once('}').expect("a selector ends");
                rest = after;
                for matcher in inside.split(',') {
                    let (label, value) = matcher.split_once('=').expect("a matcher");
                    let value = value.trim_start_matches('~').trim_matches('"');
                    matchers.push((label.to_owned(), value.split('|').map(str::to_owned).collect()));
                }
            }
            parsed.metrics.push((word.to_owned(), matchers));
        }
    }
    parsed
}

/// Samples by name, each with its labels.
type Samples = BTreeMap<String, Vec<BTreeMap<String, String>>>;

/// Parses Prometheus' text format.
fn samples(text: &str) -> Samples {
    let mut samples = Samples::new();
    for line in text.lines().filter(|line| PREFIXES.iter().any(|prefix| line.starts_with(prefix))) {
        let (series, _value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.trim_end_matches('}').split_once('{').unwrap_or((series, ""));
        let pairs = labels.split("\",").filter_map(|pair| pair.split_once("=\""));
        let labels = pairs.map(|(label, value)| (label.to_owned(), value.trim_matches('"').to_owned()));
        samples.entry(name.to_owned()).or_default().push(labels.collect());
    }
    samples
}

/// All exported samples, and the bytes of the filter, for series that it only exports once they count.
struct Exported {
    samples: Samples,
    filter: Vec<u8>,
}

/// Rules that count in each way, by metadata that a filter before has set.
fn rules() -> Value {
    let used = json!({ "metadata": { "filter": "test", "input": "in", "output": "out" } });
    let unknown = json!({ "metadata": { "filter": "nobody", "input": "in", "output": "out" } });
    json!({ "aggregator": { "cluster": bootstrap::AGGREGATOR_CLUSTER }, "rules": [
        { "name": "a.rule-of_mine", "identifier": { "header": "x-key" }, "limit": LIMIT, "window": "1h" },
        { "name": "held", "identifier": { "header": "x-key" }, "limit": 9, "window": "1h", "algorithm": "sliding_log" },
        { "name": "settled", "identifier": { "header": "x-key" }, "limit": 1_000, "window": "1h", "cost": { "refund": "5xx" } },
        { "name": "listed", "identifier": { "header": "x-key", "one_of": ["shared"] }, "limit": 1_000, "window": "1h" },
        { "name": "tokens", "identifier": { "header": "x-key" }, "limit": 1_000, "window": "1h", "cost": { "usage": used, "max": 9, "reserve": { "input": 0, "output": 1 } } },
        { "name": "money", "identifier": { "header": "x-key" }, "limit": { "usd": 5 }, "window": "1h", "cost": { "usage": used, "prices": { "*": { "input": 1, "output": 1 } } } },
        { "name": "guessed", "identifier": { "header": "x-key" }, "limit": 1_000, "window": "1h", "cost": { "usage": unknown, "max": 9, "reserve": { "input": 2, "output": 1 } } },
    ]})
}

impl Exported {
    async fn gather() -> Exported {
        let redis = Redis::start(RedisOptions::default()).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let database = format!("sqlite://{}", folder.path().join("weir.db").display());
        let limits = folder.path().join("limits.yaml");
        std::fs::write(&limits, LIMITS).unwrap();
        let environment = [
            ("WEIR_RLS_CONFIG", limits.display().to_string()),
            ("WEIR_REDIS_URL", redis.url()),
            ("WEIR_DATABASE_URL", database.clone()),
            ("WEIR_DATABASE_READ_URL", database.clone()),
        ];
        let aggregator = Aggregator::start(AggregatorOptions {
            arguments: ["--test-schedule", "--migrate"].map(str::to_owned).to_vec(),
            environment: environment.map(|(name, value)| (name.to_owned(), value)).to_vec(),
            ..AggregatorOptions::default()
        })
        .await
        .unwrap();
        let wasm = binaries::filter().unwrap();
        let set_metadata = json!({ "name": "set_metadata", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config",
            "metadata": [{ "metadata_namespace": "test", "value": { "in": 3, "out": 2 } }],
        }});
        let upstream = Upstream::start(Protocol::Http1, |_| Ok(upstream::whole(200, "an answer"))).await;
        let envoy = Envoy::start(EnvoyOptions {
            filter: Filter::Weir(Weir::new(wasm.clone(), rules())),
            aggregator_ports: vec![aggregator.grpc_port()],
            before: vec![set_metadata],
            ..upstream.options()
        })
        .await
        .unwrap();
        envoy.wait_stat("wasmcustom.weir_subscribers", SOON, |subscribers| subscribers == 1).await.unwrap();
        // Metrics about other regions exist once one has written; that of an excess once it has used too much.
        envoy.send(Request::get("/").header("x-key", "shared")).await.unwrap();
        let mut connection = SqliteConnection::connect(&database).await.unwrap();
        let mut used = LIMIT;
        wait::until("the excess of two regions is exported", SOON, async || {
            used += 1;
            another_region_has_used(&mut connection, used).await;
            let text = aggregator.admin_get("/metrics").await.unwrap().text();
            text.contains("weir_ratelimit_global_excess_ratio{")
        })
        .await
        .unwrap();
        let mut text = String::new();
        wait::until("all has happened that panels show", SOON, async || {
            envoy.send(Request::post("/", "a body").header("x-key", "a")).await.unwrap();
            text = envoy.admin_get("/stats/prometheus").await.unwrap().text();
            text += &aggregator.admin_get("/metrics").await.unwrap().text();
            let results = [
                "weir_query_results_total{",
                "weir_exact_results_total{",
                "weir_settled_total{",
                "weir_usage_tokens_total{",
                "weir_unlisted_values_total{",
                "weir_unpriced_models_total{",
                "weir_usage_estimated_total{",
            ];
            let mut expected = ["outcome=\"denied\"", "outcome=\"allowed\""].into_iter().chain(results);
            expected.all(|expected| text.contains(expected))
        })
        .await
        .unwrap();
        text += &figures_with_certificate().await;
        Exported { samples: samples(&text), filter: std::fs::read(wasm).unwrap() }
    }

    /// Whether the filter contains the word. Envoy only exports a counter with labels once it has counted.
    fn filter_names(&self, word: &str) -> bool {
        self.filter.windows(word.len()).any(|bytes| bytes == word.as_bytes())
    }

    /// Each metric with the names of its labels. The series of a histogram are one metric.
    fn metrics(&self) -> Metrics {
        let mut metrics = Metrics::new();
        for (name, found) in &self.samples {
            let series = ["_bucket", "_sum", "_count"].into_iter().filter_map(|end| name.strip_suffix(end));
            let histogram = series.into_iter().find(|of| self.samples.contains_key(&format!("{of}_bucket")));
            let labels = found.iter().flat_map(BTreeMap::keys).filter(|label| *label != "le").cloned();
            metrics.entry(histogram.unwrap_or(name).to_owned()).or_default().extend(labels);
        }
        metrics
    }

    fn check(&self, place: &str, expression: &str) {
        let parsed = read(expression);
        assert!(!parsed.metrics.is_empty(), "{place}: no metric in {expression}");
        let count = |c: char| expression.matches(c).count();
        assert_eq!((count('('), count('{')), (count(')'), count('}')), "{place}: {expression}");
        let mut labels = BTreeSet::from(SCRAPED.map(str::to_owned));
        for (name, matchers) in &parsed.metrics {
            if name == UP {
                continue;
            }
            let Some(found) = self.samples.get(name) else { panic!("{place}: {name} is not exported") };
            labels.extend(found.iter().flat_map(BTreeMap::keys).cloned());
            for (label, values) in matchers.iter().filter(|(label, _)| !SCRAPED.contains(&&**label)) {
                for value in values {
                    let exported = found.iter().any(|sample| sample.get(label) == Some(value));
                    // A value that is not exported yet is accepted if the label is, and the filter contains the value.
                    let accepted = exported
                        || found.iter().any(|sample| sample.contains_key(label)) && self.filter_names(value);
                    assert!(accepted, "{place}: {name} has no {label}={value:?}: {found:?}");
                }
            }
        }
        assert!(parsed.grouped.is_subset(&labels), "{place}: {:?} of {labels:?}", parsed.grouped);
    }
}

/// The metrics of an aggregator with a certificate: only these include its expiry.
async fn figures_with_certificate() -> String {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, text: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_string_lossy().into_owned()
    };
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["aggregator.test".to_owned()]).unwrap();
    let certificate = certificate.self_signed(&key).unwrap().pem();
    let [certificate, key] = [put("crt", certificate), put("key", key.serialize_pem())];
    let arguments = ["--tls-cert-file".to_owned(), certificate, "--tls-key-file".to_owned(), key].to_vec();
    let options = AggregatorOptions { arguments, ..AggregatorOptions::default() };
    let aggregator = Aggregator::start(options).await.unwrap();
    let mut text = String::new();
    wait::until("the certificate's expiry is exported", SOON, async || {
        text = aggregator.admin_get("/metrics").await.unwrap().text();
        text.contains("weir_aggregator_certificate_not_after_seconds{")
    })
    .await
    .unwrap();
    text
}

/// Writes what another region has used of the identifier `shared` in this hour.
async fn another_region_has_used(connection: &mut SqliteConnection, count: u64) {
    const HOUR_MS: u64 = 3_600_000;
    let now = "CAST(unixepoch('subsec') * 1000 AS INTEGER)";
    let row = format!(
        "INSERT INTO ratelimit_window_counts
         (workspace_id, namespace, identifier, duration_ms, sequence, region, count, expires_at, updated_at)
         VALUES (CAST('default' AS BLOB), CAST('a.rule-of_mine' AS BLOB), CAST('shared' AS BLOB), {HOUR_MS},
                 {now} / {HOUR_MS}, CAST('elsewhere' AS BLOB), {count}, {now} + 2 * {HOUR_MS}, {now})
         ON CONFLICT DO UPDATE SET count = excluded.count"
    );
    sqlx::query(AssertSqlSafe(row)).execute(connection).await.unwrap();
}

/// Names of metrics, each with the names of its labels.
type Metrics = BTreeMap<String, BTreeSet<String>>;

/// The metrics in the tables of `aggregator/METRICS.md`, below "All metrics".
fn documented() -> Metrics {
    let page = file("../../../aggregator/METRICS.md");
    let (_, section) = page.split_once("\n## All metrics\n").expect("a section");
    let section = section.split_once("\n## ").map_or(section, |(section, _)| section);
    let mut metrics = Metrics::new();
    for row in section.lines().filter_map(|line| line.strip_prefix("| `")) {
        let (names, _meaning) = row.split_once("` |").expect("a row has two cells");
        for name in names.split("`, `").filter(|name| !name.starts_with("envoy_")) {
            let (name, labels) = name.trim_end_matches('}').split_once('{').unwrap_or((name, ""));
            let labels = labels.split(',').filter(|label| !label.is_empty()).map(str::to_owned).collect();
            assert!(metrics.insert(name.to_owned(), labels).is_none(), "{name} is there twice");
        }
    }
    metrics
}

fn file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/grafana").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_outcome_is_documented() {
    let names: BTreeSet<String> = RuleOutcome::ALL.iter().map(|outcome| outcome.name().to_owned()).collect();
    // The words in quotes of the first line that begins with `start`, after `start`; in text, of the whole sentence.
    let listed = |page: &str, start: &str, quote: char| -> BTreeSet<String> {
        let page = file(page);
        let at = page.find(&format!("\n{start}")).expect(start) + 1 + start.len();
        let end = if start.ends_with("is ") { ". " } else { "\n" };
        let line = page[at..].split(end).next().unwrap_or_default();
        line.split(quote).skip(1).step_by(2).map(str::to_owned).collect()
    };
    let metric = "| `weir_decisions_total{rule,outcome}` | ";
    assert_eq!(listed("../../../aggregator/METRICS.md", metric, '`'), names);
    // An access log has others where no rule decided.
    let mut logged = listed("../../../filter/README.md", "`weir_outcome` is ", '`');
    assert!(logged.remove("weir_decisions_total"), "{logged:?}");
    assert_eq!(
        logged.difference(&names).collect::<Vec<_>>(),
        ["ambiguous_path", "client_networks", "denied_address", "path"]
    );
}

/// A panel or an alert that selects denials selects all of them, and one panel shows all outcomes. The page has figures of all groups.
#[test]
fn every_outcome_is_shown() {
    let dashboard: Value = serde_json::from_str(&file("weir.json")).unwrap();
    let alerts: Value = yaml(&file("alerts.yml")).unwrap();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let panels = list(&dashboard["panels"]).into_iter().flat_map(|panel| list(&panel["targets"]));
    let rules = list(&alerts["groups"]).into_iter().flat_map(|group| list(&group["rules"]));
    let mut shows_all = false;
    for one in panels.chain(rules) {
        let parsed = read(text(&one, "expr"));
        for (_, matchers) in parsed.metrics.iter().filter(|(name, _)| name == "weir_decisions_total") {
            let selected = matchers.iter().find(|(label, _)| label == "outcome").map(|(_, names)| names);
            let Some(names) = selected else {
                shows_all |= parsed.grouped.contains("outcome");
                continue;
            };
            for name in names {
                let outcome = RuleOutcome::ALL.iter().find(|outcome| outcome.name() == name);
                let group = outcome.unwrap_or_else(|| panic!("{name} is no outcome: {one}")).group();
                let all: Vec<_> = group.outcomes().map(|outcome| outcome.name()).collect();
                assert!(group == Group::Other || *names == all, "{names:?} of {all:?}: {one}");
            }
        }
    }
    assert!(shows_all, "no panel shows all outcomes");
    for page in ["rules.js", "overview.js"] {
        let page = file(&format!("../../../aggregator/src/admin/page/views/{page}"));
        let missing = Group::ALL.into_iter().find(|group| !page.contains(&format!("\"{}\"", group.name())));
        assert_eq!(missing, None);
    }
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_else(|| panic!("{field} of {value}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_dashboard_and_alerts_name_is_exported() {
    let exported = Exported::gather().await;
    for name in REQUIRED {
        assert!(exported.samples.contains_key(name), "{name}");
    }
    let dashboard: Value = serde_json::from_str(&file("weir.json")).unwrap();
    let (mut expressions, mut ids) = (0, BTreeSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = text(panel, "title");
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: its id is another's");
        for target in panel["targets"].as_array().into_iter().flatten() {
            exported.check(title, text(target, "expr"));
            expressions += 1;
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        let Some(query) = variable["query"]["query"].as_str() else { continue };
        exported.check("a variable", query);
    }
    let alerts: Value = yaml(&file("alerts.yml")).unwrap();
    let mut names = BTreeSet::new();
    for group in alerts["groups"].as_array().unwrap() {
        for rule in group["rules"].as_array().unwrap() {
            let name = text(rule, "alert");
            assert!(names.insert(name.to_owned()), "{name} is there twice");
            exported.check(name, text(rule, "expr"));
            assert!(["info", "warning", "critical"].contains(&text(&rule["labels"], "severity")), "{name}");
            for annotation in ["summary", "description"] {
                assert!(!text(&rule["annotations"], annotation).is_empty(), "{name}");
            }
            let runbook = text(&rule["annotations"], "runbook_url");
            let page = runbook.strip_prefix("https://github.com/OWNER/REPOSITORY/blob/main/");
            assert!(
                page.is_some_and(|page| is_named(name, page)),
                "{runbook} leads to no section that names {name}"
            );
        }
    }
    let (metrics, documented) = (exported.metrics(), documented());
    for name in metrics.keys().chain(documented.keys()) {
        assert_eq!(metrics.get(name), documented.get(name), "{name}: its labels as exported and documented");
    }
    println!("{expressions} expressions, {} alerts and {} metrics", names.len(), metrics.len());
}

/// Prometheus names the job of a ServiceMonitor after the Service.
#[test]
fn the_aggregators_job_has_one_name() {
    let alerts = file("alerts.yml");
    let (_, job) = alerts.split_once("up{job=\"").unwrap();
    let job = job.split('"').next().unwrap();
    let scraped: Value = yaml(&file("../docker/prometheus.yml")).unwrap();
    let service: Value = yaml(&file("../kubernetes/base/service.yaml")).unwrap();
    let monitor: Value = yaml(&file("../kubernetes/components/monitoring/service-monitor.yaml")).unwrap();
    assert_eq!(
        (&scraped["scrape_configs"][0]["job_name"], &service["metadata"]["name"]),
        (&json!(job), &json!(job))
    );
    assert_eq!(monitor["spec"]["jobLabel"], Value::Null);
    let name = "app.kubernetes.io/name";
    assert_eq!(monitor["spec"]["selector"]["matchLabels"][name], service["metadata"]["labels"][name]);
    assert!(file("../../../aggregator/METRICS.md").contains(&format!("job `{job}`")), "{job}");
}

/// Whether a section of a page of the repository, as `page#heading` names it, has the alert's name.
fn is_named(alert: &str, place: &str) -> bool {
    let (page, anchor) = place.split_once('#').unwrap();
    let page = documentation::read(Path::new(page));
    documentation::section(&page, anchor).is_some_and(|section| section.contains(&format!("`{alert}`")))
}

#[test]
fn expressions_are_read() {
    let parsed = read(
        r#"sum by (rule, le) (rate(weir_a_total{x="y",z=~"$v|w"}[$__rate_interval])) / max(weir_b) > 1e3"#,
    );
    let x = ("x".to_owned(), vec!["y".to_owned()]);
    let z = ("z".to_owned(), vec!["$v".to_owned(), "w".to_owned()]);
    assert_eq!(parsed.metrics, [("weir_a_total".to_owned(), vec![x, z]), ("weir_b".to_owned(), vec![])]);
    assert_eq!(parsed.grouped, BTreeSet::from(["le".to_owned(), "rule".to_owned()]));
}
