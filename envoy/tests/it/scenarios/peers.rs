//! A region of several aggregators that meet in one Redis, its Envoys, and a load whose outcome can be checked to the
//! last request.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_envoy::load::{self, LoadPlan, LoadReport};
use weir_envoy::{Aggregator, AggregatorOptions, Envoy, EnvoyOptions, Redis, RedisOptions, wait};

use super::common::{
    SOON, all_counted, assert_prompt, config, connected, filter, get_as, passed_of, rule, sound, sum_of,
    total_in, with,
};

/// The timeout of the rules, in milliseconds.
pub const TIMEOUT_MS: u64 = 50;
/// Workers of each Envoy. Envoy distributes their streams over its aggregators.
pub const WORKERS: u32 = 2;
/// The limit of each client, which is reached in every scenario, so that both outcomes occur.
pub const LIMIT: u64 = 60;
/// Clients whose use is compared. One request in ten is of a client that sends no other.
pub const CLIENTS: u64 = 19;
pub const PER_SECOND: u64 = 500;
const ONE_IN: u64 = 10;
pub const CONNECTIONS: usize = 8;

/// Which aggregators each Envoy is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wiring {
    /// Every Envoy is connected to all aggregators.
    Crossed,
    /// Each Envoy has its own aggregator; they only share Redis.
    Apart,
}

/// All parts except Redis.
pub struct Peers {
    pub envoys: Vec<Envoy>,
    pub aggregators: Vec<Aggregator>,
    redis_url: String,
    wiring: Wiring,
    config: Value,
}

/// A rule by client whose limit the loads reach.
pub fn limits() -> Value {
    config(&[with(rule("r", LIMIT), json!({ "timeout": format!("{TIMEOUT_MS}ms") }))])
}

/// The same with the longest timeout, so that the result is exact on a busy machine too.
pub fn patient_limits() -> Value {
    config(&[rule("r", LIMIT)])
}

impl Peers {
    /// Two Envoys and two aggregators, all connected, and their Redis.
    pub async fn start(wiring: Wiring, config: &Value) -> (Self, Redis) {
        let redis = Redis::start(RedisOptions::default()).await.unwrap();
        let (redis_url, config) = (redis.url(), config.clone());
        let mut peers = Self { envoys: Vec::new(), aggregators: Vec::new(), redis_url, wiring, config };
        for _ in 0..2 {
            peers.add_aggregator().await;
        }
        for _ in 0..2 {
            peers.add_envoy().await;
        }
        for envoy in &peers.envoys {
            connected(envoy).await;
        }
        peers.until_all_count(2).await;
        (peers, redis)
    }

    /// Starts another aggregator. Envoys that already run do not connect to it.
    pub async fn add_aggregator(&mut self) {
        let options = AggregatorOptions {
            arguments: vec!["--test-schedule".to_owned()],
            environment: vec![("WEIR_REDIS_URL".to_owned(), self.redis_url.clone())],
            ..AggregatorOptions::default()
        };
        self.aggregators.push(Aggregator::start(options).await.unwrap());
    }

    /// Starts another Envoy.
    pub async fn add_envoy(&mut self) {
        let ports: Vec<u16> = self.aggregators.iter().map(Aggregator::grpc_port).collect();
        let aggregator_ports = match self.wiring {
            Wiring::Crossed => ports,
            Wiring::Apart => vec![ports[self.envoys.len() % ports.len()]],
        };
        let filter = filter(&self.config);
        let options =
            EnvoyOptions { filter, aggregator_ports, concurrency: WORKERS, ..EnvoyOptions::default() };
        self.envoys.push(Envoy::start(options).await.unwrap());
    }

    /// Waits until every aggregator counts this many live Envoys.
    pub async fn until_all_count(&self, envoys: u64) {
        for aggregator in &self.aggregators {
            let counted = async || metric(aggregator, "weir_aggregator_live_nodes").await == envoys as f64;
            wait::until("all count the live Envoys", SOON, counted).await.unwrap();
        }
    }

    /// Requests of the clients in turn, distributed over the first two Envoys.
    pub fn load(&self, seconds: u64) -> LoadPlan {
        self.load_of(seconds, ONE_IN)
    }

    /// The same without clients that send a single request.
    pub fn load_of_clients(&self, seconds: u64) -> LoadPlan {
        self.load_of(seconds, u64::MAX)
    }

    fn load_of(&self, seconds: u64, one_in: u64) -> LoadPlan {
        let addresses: Vec<_> = self.envoys.iter().map(Envoy::address).take(2).collect();
        let sides = addresses.len() as u64;
        let plan = LoadPlan::of(addresses, CONNECTIONS, PER_SECOND * seconds, move |number| {
            let side = usize::try_from(number / CLIENTS % sides).unwrap();
            (side, get_as(&client(number, one_in).map_or(format!("once-{number}"), |at| format!("c{at}"))))
        });
        plan.rate(PER_SECOND as f64)
    }

    /// One aggregator's count of each client that is compared.
    async fn totals_at(&self, aggregator: &Aggregator) -> Vec<u64> {
        let mut totals = Vec::new();
        for client in 0..CLIENTS {
            totals.push(total_in(aggregator, "r", &format!("c{client}")).await);
        }
        totals
    }

    /// Waits until every aggregator has counted what passed of each client, except for unused grants, and all have the
    /// same counts. Returns how long that took, and the sum of the counts.
    pub async fn agree(&self, passed: &[u64]) -> (Duration, u64) {
        let started = Instant::now();
        let mut totals = Vec::new();
        let settled = async || {
            totals = self.totals().await;
            let same = totals.iter().all(|total| *total == totals[0]);
            same && all_counted(&self.envoys, CONNECTIONS, passed, &totals[0]).await
        };
        if wait::until("all agree", SOON, settled).await.is_err() {
            panic!("aggregators stand at {totals:?}, but {passed:?} passed");
        }
        let (took, sum) = (started.elapsed(), totals[0].iter().sum::<u64>());
        let passed = passed.iter().sum::<u64>();
        println!("aggregators stand at {sum}, {passed} passed, agreed after {took:?}");
        (took, sum)
    }

    /// Waits until all aggregators have the same counts, and returns their sum.
    pub async fn totals_agree(&self) -> u64 {
        let same = async || {
            let totals = self.totals().await;
            Ok(totals.iter().all(|total| *total == totals[0]).then(|| totals[0].clone()))
        };
        let totals: Vec<u64> = wait::until_some("all agree", SOON, same).await.unwrap();
        totals.iter().sum()
    }

    async fn totals(&self) -> Vec<Vec<u64>> {
        let mut totals = Vec::new();
        for aggregator in &self.aggregators {
            totals.push(self.totals_at(aggregator).await);
        }
        totals
    }

    /// Checks that every Envoy denies every client, since all limits are used up.
    pub async fn all_deny(&self) {
        for envoy in &self.envoys {
            for client in 0..CLIENTS {
                let answer = envoy.send(get_as(&format!("c{client}"))).await.unwrap();
                assert_eq!(answer.status, 429, "{client}");
            }
        }
    }

    /// The sum of a metric over the aggregators.
    pub async fn metric(&self, name: &str) -> f64 {
        let mut sum = 0.0;
        for aggregator in &self.aggregators {
            sum += metric(aggregator, name).await;
        }
        sum
    }

    /// Waits until `accept` accepts a metric at every aggregator.
    pub async fn each_metric(&self, name: &str, accept: impl Fn(f64) -> bool) {
        for aggregator in &self.aggregators {
            let held = async || accept(metric(aggregator, name).await);
            wait::until(name, SOON, held).await.unwrap();
        }
    }

    /// Queries to the aggregators, over all Envoys and reasons.
    pub async fn queries(&self) -> u64 {
        let mut sum = 0;
        for envoy in &self.envoys {
            sum += sum_of(envoy, "wasmcustom.weir_queries_total").await;
        }
        sum
    }

    /// Checks that no VM has died and the logs contain no unexpected lines.
    pub async fn are_sound(&self) {
        for envoy in &self.envoys {
            sound(envoy).await;
        }
    }
}

/// Runs a load and a fault concurrently.
pub async fn load_while(plan: LoadPlan, fault: impl Future<Output = ()>) -> LoadReport {
    let (report, ()) = tokio::join!(load::run(plan), fault);
    report.unwrap()
}

/// The client of a request; `None` for a client that sends a single request.
fn client(number: u64, one_in: u64) -> Option<u64> {
    let once = number > 0 && number.is_multiple_of(one_in);
    (!once).then_some(number % CLIENTS)
}

/// How many requests of each compared client passed; all requests of other clients pass.
pub fn compared(report: &LoadReport, seconds: u64) -> Vec<u64> {
    let (passed, others) = passed_of(report, CLIENTS, |number| client(number, ONE_IN));
    assert_eq!(others, (PER_SECOND * seconds - 1) / ONE_IN, "{report:?}");
    passed
}

/// Checks that every request was decided, and hardly any waited longer than its timeout.
pub fn assert_served(report: &LoadReport, seconds: u64) {
    assert_eq!(report.count(200) + report.count(429), PER_SECOND * seconds, "{report:?}");
    assert_prompt(report, Duration::from_millis(TIMEOUT_MS));
}

/// A metric of an aggregator, with its labels in `name`; 0 if it does not exist.
pub async fn metric(aggregator: &Aggregator, name: &str) -> f64 {
    let text = aggregator.admin_get("/metrics").await.unwrap().text();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map_or(0.0, |value| value.parse().unwrap())
}
