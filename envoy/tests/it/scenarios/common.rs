//! Shared parts of the scenarios: a region with real Envoys, configurations, and readers of Weir's metrics and state.

use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::net::TcpStream;
use weir_envoy::http::Request;
use weir_envoy::load::LoadReport;
use weir_envoy::{
    Aggregator, AggregatorOptions, Envoy, EnvoyOptions, Filter, Weir, binaries, bootstrap, wait,
};

/// Generous, because a busy machine is slow and conditions rarely fail to come true.
pub const SOON: Duration = Duration::from_secs(20);
/// The longest delay that a busy machine may add to a single wait.
pub const STALL: Duration = Duration::from_secs(5);
/// The header that identifies clients in most scenarios.
pub const KEY: &str = "x-key";

/// Runs a command of `weir-aggregator` on a database.
pub fn run_aggregator(url: &str, arguments: &[&str]) {
    let mut command = Command::new(binaries::aggregator().unwrap());
    let output = command.args(arguments).env("WEIR_DATABASE_URL", url).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {stderr}");
}

/// One aggregator and its Envoys.
pub struct Region {
    pub envoys: Vec<Envoy>,
    pub aggregator: Aggregator,
}

impl Region {
    /// `envoys` Envoys with `config`, connected and settled. Before an Envoy has the number of nodes, each of its
    /// requests is a query. The region then grants budget to several nodes at once, and unused grants stay counted.
    pub async fn start(envoys: usize, options: EnvoyOptions, config: &Value) -> Self {
        let aggregator = Aggregator::start(AggregatorOptions::default()).await.unwrap();
        let mut region = Self { envoys: Vec::new(), aggregator };
        for _ in 0..envoys {
            region.add(options.clone(), config).await;
        }
        region.settled().await;
        region
    }

    /// Starts another Envoy and waits until it is connected.
    pub async fn add(&mut self, options: EnvoyOptions, config: &Value) {
        let aggregator_ports = vec![self.aggregator.grpc_port()];
        let envoy = Envoy::start(EnvoyOptions { filter: filter(config), aggregator_ports, ..options });
        self.envoys.push(envoy.await.unwrap());
        connected(self.envoys.last().unwrap()).await;
    }

    async fn settled(&self) {
        for envoy in &self.envoys {
            settled(envoy).await;
        }
    }

    /// The only Envoy, or the first.
    pub fn envoy(&self) -> &Envoy {
        &self.envoys[0]
    }

    /// The region's count of an identifier in the namespace, summed over its cells.
    pub async fn total(&self, namespace: &str, identifier: &str) -> u64 {
        total_in(&self.aggregator, namespace, identifier).await
    }

    /// Waits until the region's count is exactly `expected`; the aggregator must be available.
    pub async fn settles_at(&self, namespace: &str, identifier: &str, expected: u64) {
        let settled = async || self.total(namespace, identifier).await == expected;
        let waited = wait::until("the region settles", SOON, settled).await;
        if waited.is_err() {
            let total = self.total(namespace, identifier).await;
            panic!("{namespace}/{identifier} stands at {total}, not at {expected}");
        }
    }

    /// Waits until the region's count covers a load that reached a limit over `connections` connections and of which
    /// `passed` requests passed; returns the count.
    pub async fn comes_to_hold(
        &self,
        namespace: &str,
        identifier: &str,
        passed: u64,
        connections: usize,
    ) -> u64 {
        let mut seen = (0, 0);
        let settled = async || {
            seen = (self.total(namespace, identifier).await, unused_grants(&self.envoys, connections).await);
            (passed..=passed + seen.1).contains(&seen.0)
        };
        if wait::until("the region settles", SOON, settled).await.is_err() {
            let (total, unused) = seen;
            panic!("{namespace}/{identifier} stands at {total}, not at {passed} and at most {unused} more");
        }
        seen.0
    }

    /// Waits until the metrics contain all `decisions`, which workers add in batches.
    pub async fn counted(&self, decisions: u64) {
        let counted = async || {
            let mut sum = 0;
            for envoy in &self.envoys {
                sum += sum_of(envoy, "wasmcustom.weir_decisions_total").await;
            }
            sum == decisions
        };
        wait::until("every decision is counted", SOON, counted).await.unwrap();
    }

    /// Queries to the aggregator, over all Envoys and reasons.
    pub async fn queries(&self) -> u64 {
        let mut sum = 0;
        for envoy in &self.envoys {
            sum += sum_of(envoy, "wasmcustom.weir_queries_total").await;
        }
        sum
    }

    /// Checks that no VM has died and the logs contain no unexpected lines.
    pub async fn is_sound(&self) {
        for envoy in &self.envoys {
            sound(envoy).await;
        }
    }
}

/// Weir with `config`.
pub fn filter(config: &Value) -> Filter {
    Filter::Weir(Weir::new(weir_envoy::binaries::filter().unwrap(), config.clone()))
}

/// A configuration with these rules.
pub fn config(rules: &[Value]) -> Value {
    json!({ "aggregator": { "cluster": bootstrap::AGGREGATOR_CLUSTER }, "rules": rules })
}

/// A rule by [`KEY`] whose window does not end during the test. Its timeout is the longest allowed, because a busy
/// machine delays responses longer than the default timeout.
pub fn rule(name: &str, limit: u64) -> Value {
    json!({ "name": name, "identifier": { "header": KEY }, "limit": limit, "window": long_window(),
            "timeout": "1s" })
}

/// `base` with the fields of `more`.
pub fn with(mut base: Value, more: Value) -> Value {
    let Value::Object(more) = more else { panic!("an object") };
    base.as_object_mut().unwrap().extend(more);
    base
}

/// An hour, or 31 days if the current hour ends soon.
pub fn long_window() -> &'static str {
    const ROOM_MS: u64 = 5 * 60_000;
    let left = |window_ms: u64| window_ms - unix_ms() % window_ms;
    if left(3_600_000) > ROOM_MS { "1h" } else { "31d" }
}

#[expect(clippy::disallowed_methods, reason = "this is the one place that reads the wall clock")]
pub fn unix_ms() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

/// GET / as the client `key`.
pub fn get_as(key: &str) -> Request {
    Request::get("/").header(KEY, key)
}

/// Waits until every worker's stream is up and the Envoy's snapshot is complete.
pub async fn connected(envoy: &Envoy) {
    envoy.wait_stat("wasmcustom.weir_subscribers", SOON, |subscribers| subscribers == 1).await.unwrap();
    let workers = workers(envoy).await;
    envoy.wait_stat("wasmcustom.weir_streams_connected", SOON, |streams| streams == workers).await.unwrap();
}

/// Waits until the Envoy has the number of nodes, so that not every request is a query.
pub async fn settled(envoy: &Envoy) {
    let workers = workers(envoy).await;
    envoy.wait_stat("wasmcustom.weir_streams_settled", SOON, |streams| streams == workers).await.unwrap();
}

/// How much more than the requests that passed a region of several Envoys may count: unused grants.
///
/// A filter whose query times out decides by its own counts. So does a filter that receives, before the response, that
/// others have reached the limit: their counts arrive on another stream. If it then denies, the grant stays counted.
/// The region therefore never counts less than what passed. Each time a limit is reached, it counts at most as much
/// more as requests were waiting for a response.
///
/// Workers add to the metrics in batches, so this value grows for a moment after a load.
pub async fn unused_grants(envoys: &[Envoy], connections: usize) -> u64 {
    connections as u64 + unanswered(envoys).await
}

/// Queries that timed out or whose stream broke.
pub async fn unanswered(envoys: &[Envoy]) -> u64 {
    let mut sum = 0;
    for envoy in envoys {
        for result in ["timeout", "broken"] {
            sum += sum_of(envoy, &format!("wasmcustom.weir_query_results_total.result.{result}")).await;
        }
    }
    sum
}

/// Whether each client is counted as it passed, except for [`unused_grants`]; each client reaches its limit once.
pub async fn all_counted(envoys: &[Envoy], connections: usize, passed: &[u64], totals: &[u64]) -> bool {
    let pairs = || passed.iter().zip(totals);
    let beyond: u64 = pairs().map(|(passed, total)| total.saturating_sub(passed + connections as u64)).sum();
    passed.len() == totals.len()
        && pairs().all(|(passed, total)| total >= passed)
        && beyond <= unanswered(envoys).await
}

/// The passed requests of a load for each of `clients` clients, and for all others; `client` maps a request's number to
/// its client.
pub fn passed_of(report: &LoadReport, clients: u64, client: impl Fn(u64) -> Option<u64>) -> (Vec<u64>, u64) {
    let mut passed = vec![0; usize::try_from(clients).unwrap()];
    let mut others = 0;
    for (number, _) in &report.passed {
        *client(*number).map_or(&mut others, |client| &mut passed[usize::try_from(client).unwrap()]) += 1;
    }
    (passed, others)
}

/// Checks that no request waited as long as the fault lasted, and nearly all no longer than they may. A busy machine
/// can delay single requests, but not most of them.
pub fn assert_prompt(report: &LoadReport, may_wait: Duration) {
    assert!(report.latency(0.95) < may_wait + Duration::from_millis(500), "{report:?}");
    assert!(report.latency(1.0) < may_wait + STALL, "{report:?}");
}

/// Waits until Envoy has received `requests` requests.
pub async fn came(envoy: &Envoy, requests: u64) {
    envoy.wait_stat("http.ingress.downstream_rq_total", SOON, |came| came >= requests).await.unwrap();
}

/// Closes connections and waits until Envoy has noticed.
pub async fn leave(envoy: &Envoy, connections: Vec<TcpStream>) {
    const LEFT: &str = "http.ingress.downstream_cx_destroy_remote";
    let all = envoy.stat(LEFT).await.unwrap() + connections.len() as u64;
    drop(connections);
    envoy.wait_stat(LEFT, SOON, |left| left >= all).await.unwrap();
}

/// Waits until no request is in progress.
pub async fn idle(envoy: &Envoy) {
    envoy.wait_stat("http.ingress.downstream_rq_active", SOON, |active| active == 0).await.unwrap();
}

/// Threads of an Envoy that have a stream.
async fn workers(envoy: &Envoy) -> u64 {
    threads(envoy.stat("server.concurrency").await.unwrap())
}

/// Threads that have a stream: the workers, and with WASM the main thread.
pub fn threads(workers: u64) -> u64 {
    workers + u64::from(!binaries::is_native())
}

/// The sum of all metrics whose names begin with `prefix`.
pub async fn sum_of(envoy: &Envoy, prefix: &str) -> u64 {
    stats_of(envoy, prefix).await.iter().map(|(_, value)| value).sum()
}

/// The metrics whose names begin with `prefix`, as the rest of the name and the value.
pub async fn stats_of(envoy: &Envoy, prefix: &str) -> Vec<(String, u64)> {
    let stats = envoy.stats().await.unwrap();
    stats.into_iter().filter_map(|(name, n)| Some((name.strip_prefix(prefix)?.to_owned(), n))).collect()
}

/// Checks that no VM has died and no panic was caught, and that Envoy's log has neither errors nor warnings about the filter.
pub async fn sound(envoy: &Envoy) {
    assert_eq!(vm_reloads(envoy).await, 0, "a VM died: {}", envoy.log().unwrap());
    let log = envoy.log().unwrap();
    let odd: Vec<_> = log.lines().filter(|line| is_odd(line)).collect();
    assert!(odd.is_empty(), "{odd:#?}");
}

/// Failures of VMs, or panics of the native filter.
pub async fn vm_reloads(envoy: &Envoy) -> u64 {
    let stats = envoy.stats().await.unwrap();
    let is_failure = |name: &str| name.contains("vm_reload") || name.ends_with("weir_panics_total");
    stats.iter().filter(|(name, _)| is_failure(name)).map(|(_, n)| n).sum()
}

/// Lines about a lost or restored stream are expected.
fn is_odd(line: &str) -> bool {
    let loud = ["[error]", "[critical]", "[warning][wasm]", "[warning][dynamic_modules]"]
        .iter()
        .any(|level| line.contains(level));
    // The native filter finds out what a value of metadata is by reading it as each kind, the first time.
    let is_kind =
        line.contains("[dynamic_modules]") && line.contains("] key ") && line.contains(" is not a ");
    loud && !line.contains("stream to the aggregator") && !is_kind
}

/// An aggregator's count of an identifier in the namespace, summed over its cells.
pub async fn total_in(aggregator: &Aggregator, namespace: &str, identifier: &str) -> u64 {
    let path = format!("/v1/keys?namespace={namespace}&identifier={identifier}");
    let answer = aggregator.admin_get(&path).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    total_of(&answer.json().unwrap())
}

fn total_of(explanation: &Value) -> u64 {
    let windows = explanation["windows"].as_array().unwrap();
    let cells = windows.iter().flat_map(|window| window["cells"].as_array().unwrap());
    cells.map(|cell| cell["regional_total"].as_u64().unwrap()).sum()
}
