//! What the scenarios share: a region with real Envoys, configurations, and what Weir says of itself.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::net::TcpStream;
use weir_envoy::http::Request;
use weir_envoy::load::LoadReport;
use weir_envoy::{Aggregator, AggregatorOptions, Envoy, EnvoyOptions, Filter, Weir, bootstrap, wait};

/// Generous: a loaded machine is slow, and a condition that never comes true is rare.
pub const SOON: Duration = Duration::from_secs(20);
/// What a busy machine may at worst add to a single wait.
pub const STALL: Duration = Duration::from_secs(5);
/// The header that identifies clients in most scenarios.
pub const KEY: &str = "x-key";

/// One aggregator and its Envoys.
pub struct Region {
    pub envoys: Vec<Envoy>,
    pub aggregator: Aggregator,
}

impl Region {
    /// `envoys` Envoys with `config`, connected, that know how many they are: until then each request asks, and what is granted
    /// to several at once and not used up stays counted.
    pub async fn start(envoys: usize, options: EnvoyOptions, config: &Value) -> Self {
        let aggregator = Aggregator::start(AggregatorOptions::default()).await.unwrap();
        let mut region = Self { envoys: Vec::new(), aggregator };
        for _ in 0..envoys {
            region.add(options.clone(), config).await;
        }
        region.settled().await;
        region
    }

    /// One more Envoy, connected.
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

    /// What the region holds of an identifier in the namespace, summed over its cells.
    pub async fn total(&self, namespace: &str, identifier: &str) -> u64 {
        total_in(&self.aggregator, namespace, identifier).await
    }

    /// Waits until the region holds exactly `expected`; the aggregator must be there.
    pub async fn settles_at(&self, namespace: &str, identifier: &str, expected: u64) {
        let settled = async || self.total(namespace, identifier).await == expected;
        let waited = wait::until("the region settles", SOON, settled).await;
        if waited.is_err() {
            let total = self.total(namespace, identifier).await;
            panic!("{namespace}/{identifier} stands at {total}, not at {expected}");
        }
    }

    /// Waits until the region holds what passed of a load over so many connections that has reached a limit; returns how
    /// much it holds.
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

    /// Waits until the statistics hold every one of `decisions`: they are told in batches.
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

    /// Questions asked of the aggregator, over all Envoys and reasons.
    pub async fn consults(&self) -> u64 {
        let mut sum = 0;
        for envoy in &self.envoys {
            sum += sum_of(envoy, "wasmcustom.weir_consults_total").await;
        }
        sum
    }

    /// No VM has died, and nothing odd stands in the logs.
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

/// A rule by [`KEY`] over a window in which nothing rolls over while the test runs. It waits for the region as long as a rule
/// may: a busy machine holds up an answer for longer than a request usually waits.
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

/// An hour, or 31 days where the hour is almost over.
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

/// Waits until the Envoy knows how many others there are, and need not ask about each request any more.
pub async fn settled(envoy: &Envoy) {
    let workers = workers(envoy).await;
    envoy.wait_stat("wasmcustom.weir_streams_settled", SOON, |streams| streams == workers).await.unwrap();
}

/// How much more than what passed a region of several Envoys may hold: grants that were not used.
///
/// A filter that waits no longer for an answer decides by what it knows; so does one that has learnt, before the answer
/// came, that the others have reached the limit: what they use comes on a stream of its own. Where it denies then, the
/// grant counts all the same: no less is ever counted than passed, and at each moment at which a limit is reached at most
/// as much more as requests were waiting for a word.
///
/// Statistics are told in batches, so this grows for a moment after a load.
pub async fn unused_grants(envoys: &[Envoy], connections: usize) -> u64 {
    connections as u64 + unanswered(envoys).await
}

/// Questions for whose answers nobody waited to the end.
pub async fn unanswered(envoys: &[Envoy]) -> u64 {
    let mut sum = 0;
    for envoy in envoys {
        for result in ["timeout", "broken"] {
            sum += sum_of(envoy, &format!("wasmcustom.weir_consult_results_total.result.{result}")).await;
        }
    }
    sum
}

/// Whether of each client as much is counted as passed, but for [`unused_grants`]: each reaches its limit once.
pub async fn all_counted(envoys: &[Envoy], connections: usize, passed: &[u64], totals: &[u64]) -> bool {
    let pairs = || passed.iter().zip(totals);
    let beyond: u64 = pairs().map(|(passed, total)| total.saturating_sub(passed + connections as u64)).sum();
    passed.len() == totals.len()
        && pairs().all(|(passed, total)| total >= passed)
        && beyond <= unanswered(envoys).await
}

/// How much of a load passed of each of so many clients, and of all others; `client` tells whose a request was.
pub fn passed_of(report: &LoadReport, clients: u64, client: impl Fn(u64) -> Option<u64>) -> (Vec<u64>, u64) {
    let mut passed = vec![0; usize::try_from(clients).unwrap()];
    let mut others = 0;
    for (number, _) in &report.passed {
        *client(*number).map_or(&mut others, |client| &mut passed[usize::try_from(client).unwrap()]) += 1;
    }
    (passed, others)
}

/// No request of a load waited for as long as something is away, and nearly all no longer than they may: each by itself
/// can be held up by a busy machine, though not all of them again and again.
pub fn assert_prompt(report: &LoadReport, may_wait: Duration) {
    assert!(report.latency(0.95) < may_wait + Duration::from_millis(500), "{report:?}");
    assert!(report.latency(1.0) < may_wait + STALL, "{report:?}");
}

/// Waits until so many requests have come.
pub async fn came(envoy: &Envoy, requests: u64) {
    envoy.wait_stat("http.ingress.downstream_rq_total", SOON, |came| came >= requests).await.unwrap();
}

/// Ends connections, and waits until Envoy knows.
pub async fn leave(envoy: &Envoy, connections: Vec<TcpStream>) {
    const LEFT: &str = "http.ingress.downstream_cx_destroy_remote";
    let all = envoy.stat(LEFT).await.unwrap() + connections.len() as u64;
    drop(connections);
    envoy.wait_stat(LEFT, SOON, |left| left >= all).await.unwrap();
}

/// Waits until no request is under way any more.
pub async fn idle(envoy: &Envoy) {
    envoy.wait_stat("http.ingress.downstream_rq_active", SOON, |active| active == 0).await.unwrap();
}

/// Threads of an Envoy that hold a stream: its workers and the main thread.
async fn workers(envoy: &Envoy) -> u64 {
    envoy.stat("server.concurrency").await.unwrap() + 1
}

/// All statistics whose names begin so, added up.
pub async fn sum_of(envoy: &Envoy, prefix: &str) -> u64 {
    stats_of(envoy, prefix).await.iter().map(|(_, value)| value).sum()
}

/// The statistics whose names begin so, as `rest of the name: value`.
pub async fn stats_of(envoy: &Envoy, prefix: &str) -> Vec<(String, u64)> {
    let stats = envoy.stats().await.unwrap();
    stats.into_iter().filter_map(|(name, n)| Some((name.strip_prefix(prefix)?.to_owned(), n))).collect()
}

/// No VM has died, and Envoy's log holds neither errors nor warnings about the filter.
pub async fn sound(envoy: &Envoy) {
    assert_eq!(vm_reloads(envoy).await, 0, "a VM died: {}", envoy.log().unwrap());
    let log = envoy.log().unwrap();
    let odd: Vec<_> = log.lines().filter(|line| is_odd(line)).collect();
    assert!(odd.is_empty(), "{odd:#?}");
}

pub async fn vm_reloads(envoy: &Envoy) -> u64 {
    let stats = envoy.stats().await.unwrap();
    stats.iter().filter(|(name, _)| name.contains("vm_reload")).map(|(_, n)| n).sum()
}

/// That a stream ended and came back is to be told, and is no defect.
fn is_odd(line: &str) -> bool {
    let loud = ["[error]", "[critical]", "[warning][wasm]"].iter().any(|level| line.contains(level));
    loud && !line.contains("stream to the aggregator")
}

/// What an aggregator holds of an identifier in the namespace, summed over its cells.
pub async fn total_in(aggregator: &Aggregator, namespace: &str, identifier: &str) -> u64 {
    let path = format!("/v1/keys?namespace={namespace}&identifier={identifier}");
    let answer = aggregator.admin_get(&path).await.unwrap();
    if answer.status == 404 {
        return 0;
    }
    assert_eq!(answer.status, 200, "{}", answer.text());
    total_of(&answer.json().unwrap())
}

fn total_of(explanation: &Value) -> u64 {
    let windows = explanation["windows"].as_array().unwrap();
    let cells = windows.iter().flat_map(|window| window["cells"].as_array().unwrap());
    cells.map(|cell| cell["regional_total"].as_u64().unwrap()).sum()
}
