//! A region of the compose file as clients and operators see it, and a record of what passed in it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tokio::time::timeout;
use weir_envoy::http::{self, Request, Response};
use weir_envoy::load::{self, LoadPlan};
use weir_envoy::{ports, wait};

use crate::compose::Compose;

/// Of clients whose key begins with `gold-`; see envoy/deploy/docker/envoy.yaml.
pub const LIMIT: u64 = 1_000;
/// Until an Envoy serves and is connected, where all of them start at once on a slow machine.
const CONNECTED: Duration = Duration::from_secs(150);
/// Until the parts of a region agree.
const AGREEMENT: Duration = Duration::from_secs(60);
/// Until another region has the counts: two intervals of 12 s at which all is published, and a breaker that has to close.
pub const RECEIVED: Duration = Duration::from_secs(90);
/// Timeout of a request to a part.
const TIMEOUT: Duration = Duration::from_secs(10);
const CONNECTIONS: usize = 8;
/// One grant for each request under way, and as much again for those that waited before.
const UNSPENT_MOST: u64 = 2 * CONNECTIONS as u64;
/// The leases of an Envoy that is paused count as spent: a 64th of the limit at most for each of its two workers.
const LEASED_MOST: u64 = 2 * LIMIT.div_ceil(64);
const DATABASE_CALLS: [&str; 2] = ["op=\"exchange\"", "op=\"import\""];
/// The workers of each Envoy and its main thread; see --concurrency in the compose file.
const STREAMS: u64 = 3;

pub struct Region {
    pub name: &'static str,
    envoys: Vec<SocketAddr>,
    envoy_admins: Vec<SocketAddr>,
    aggregators: Vec<SocketAddr>,
    /// What passed, by key.
    book: RefCell<BTreeMap<String, u64>>,
    /// Clients whose grants may be unused in part.
    disturbed: RefCell<BTreeSet<String>>,
    /// Queries for slack that each Envoy had sent before the last requests.
    queries: RefCell<BTreeMap<usize, u64>>,
}

impl Region {
    /// A region of which nothing runs yet: chooses free ports and passes them to Compose.
    pub fn plan(name: &'static str, compose: &mut Compose) -> Result<Self> {
        let prefix = name.to_uppercase();
        let mut publish = |part: &str| {
            let take = |number: usize| {
                let port = ports::free()?;
                compose.set(&format!("{prefix}_{}_PORT", part.replace('#', &number.to_string())), port);
                Ok(ports::local(port))
            };
            (1..=2).map(take).collect::<Result<Vec<_>>>()
        };
        Ok(Self {
            name,
            envoys: publish("ENVOY_#")?,
            envoy_admins: publish("ENVOY_#_ADMIN")?,
            aggregators: publish("AGGREGATOR_#")?,
            book: RefCell::default(),
            disturbed: RefCell::default(),
            queries: RefCell::default(),
        })
    }

    /// The compose file's name of a part of this region, such as `envoy-1`.
    pub fn service(&self, part: &str) -> String {
        format!("{}-{part}", self.name)
    }

    /// Sends requests of one client over these of its Envoys (0 and 1) in turn. Each must be answered. Returns how many passed.
    pub async fn send(&self, key: &str, requests: u64, envoys: &[usize]) -> Result<u64> {
        let targets: Vec<_> = envoys.iter().map(|number| self.envoys[*number]).collect();
        let request = Request::get("/").header("x-api-key", key);
        let sides = targets.len();
        for number in envoys {
            let sent = slack_queries(self.envoy_admins[*number]).await.unwrap_or(0);
            self.queries.borrow_mut().insert(*number, sent);
        }
        let plan = LoadPlan::of(targets, CONNECTIONS, requests, move |number| {
            (usize::try_from(number).unwrap_or(0) % sides, request.clone())
        });
        let report = load::run(plan).await?;
        let (passed, denied) = (report.count(200), report.count(429));
        ensure!(
            passed + denied == requests,
            "{}: {key}: not every request was decided: {report:?}",
            self.name
        );
        *self.book.borrow_mut().entry(key.to_owned()).or_default() += passed;
        Ok(passed)
    }

    /// Notes that grants to this client may stay unused, as a part failed during its requests or Envoys sent queries for them.
    pub fn disturb(&self, key: &str) {
        self.disturbed.borrow_mut().insert(key.to_owned());
    }

    /// What passed for this client in this region.
    pub fn passed(&self, key: &str) -> u64 {
        self.book.borrow().get(key).copied().unwrap_or(0)
    }

    /// Every client that has sent requests in this region.
    pub fn keys(&self) -> Vec<String> {
        self.book.borrow().keys().cloned().collect()
    }

    /// Waits until the streams of these Envoys have settled.
    pub async fn settled(&self, envoys: &[usize]) -> Result<()> {
        for number in envoys {
            let admin = self.envoy_admins[*number];
            let settled = async || streams_settled(admin).await.is_ok_and(|streams| streams == STREAMS);
            let what = format!("Envoy {} of {} is connected", number + 1, self.name);
            wait::until(&what, CONNECTED, settled).await?;
        }
        Ok(())
    }

    /// Waits until the aggregators hold exactly what passed here for this client: together, as each receives the counts of its own
    /// Envoys, and past half the limit each by itself, as hot cells go to all. They may hold a little more, which was granted and not
    /// used: at the limit, after a fault, and if a slow machine made Envoys send queries early. Returns what they hold.
    pub async fn agrees(&self, key: &str) -> Result<u64> {
        let passed = self.passed(key);
        let held = Cell::new(0);
        let agreed = async || {
            let Ok(snapshots) = self.snapshots(key).await else { return false };
            let whole = Snapshot::merged(&snapshots).own();
            held.set(whole);
            let most = passed + if whole > passed { self.unused(key).await.unwrap_or(0) } else { 0 };
            (passed..=most).contains(&whole)
                && (passed <= LIMIT / 2 || snapshots.iter().all(|snapshot| snapshot.own() == whole))
        };
        if wait::until("agreement", AGREEMENT, agreed).await.is_err() {
            let (name, snapshots) = (self.name, self.snapshots(key).await);
            bail!("{name}: {passed} passed for {key}, and the aggregators hold {snapshots:?}");
        }
        Ok(held.get())
    }

    /// How much may have been granted to this client's requests that none of them used.
    async fn unused(&self, key: &str) -> Result<u64> {
        let before = self.queries.borrow().clone();
        for (number, before) in before {
            if slack_queries(self.envoy_admins[number]).await.is_ok_and(|now| now > before) {
                self.disturb(key);
            }
        }
        let is_exact = self.passed(key) < LIMIT && !self.disturbed.borrow().contains(key);
        Ok(if is_exact { 0 } else { UNSPENT_MOST + LEASED_MOST + self.unanswered().await? })
    }

    /// Waits until both aggregators count exactly what those of `other` hold of this client.
    pub async fn receives(&self, key: &str, other: &Region) -> Result<()> {
        other.agrees(key).await?;
        let received = async || {
            let (here, there) = (self.snapshots(key).await, other.snapshots(key).await);
            let (Ok(here), Ok(there)) = (here, there) else { return false };
            let used = Snapshot::merged(&there).own();
            here.iter().all(|snapshot| snapshot.others == used)
        };
        if wait::until("the counts arrive", RECEIVED, received).await.is_err() {
            let (here, there) = (self.snapshots(key).await, other.snapshots(key).await);
            bail!("of {key}, {} holds {here:?} and {} {there:?}", self.name, other.name);
        }
        Ok(())
    }

    /// Whether no aggregator counts anything that this client used in other regions.
    pub async fn has_received_nothing(&self, key: &str) -> Result<bool> {
        let snapshots = wait::until_some("both aggregators answer", AGREEMENT, async || {
            Ok(self.snapshots(key).await.ok())
        })
        .await?;
        Ok(snapshots.iter().all(|snapshot| snapshot.others == 0))
    }

    /// Waits until both aggregators use their Redis.
    pub async fn uses_redis(&self) -> Result<()> {
        let used = async || {
            for aggregator in &self.aggregators {
                let parts = get(*aggregator, "/v1/parts").await.and_then(|answer| answer.json());
                if !parts.is_ok_and(|parts| parts["redis"]["usable"] == true) {
                    return false;
                }
            }
            true
        };
        wait::until(&format!("{} uses its Redis", self.name), AGREEMENT, used).await
    }

    /// Queries of its Envoys, since these started, that the region did not answer in time. The Envoys decided those alone.
    pub async fn unanswered(&self) -> Result<u64> {
        let mut sum = 0;
        for admin in &self.envoy_admins {
            let counts = async || Ok(unanswered(*admin).await.ok());
            sum += wait::until_some("an Envoy answers", AGREEMENT, counts).await?;
        }
        Ok(sum)
    }

    async fn snapshots(&self, key: &str) -> Result<Vec<Snapshot>> {
        let mut all = Vec::new();
        for aggregator in &self.aggregators {
            let path = format!("/v1/keys?namespace=per-key&identifier={key}");
            let answer = get(*aggregator, &path).await?;
            all.push(Snapshot::of(&answer.json()?));
        }
        Ok(all)
    }

    /// Calls of the database that failed so far, of each aggregator.
    pub async fn database_failures(&self) -> Result<Vec<f64>> {
        let mut all = Vec::new();
        for aggregator in &self.aggregators {
            let failures = async || Ok(database_failures(*aggregator).await.ok());
            all.push(wait::until_some("an aggregator answers", AGREEMENT, failures).await?);
        }
        Ok(all)
    }

    /// Waits until calls of the database have failed at both aggregators.
    pub async fn misses_the_database(&self, before: &[f64]) -> Result<()> {
        let missed = async || {
            let now = self.database_failures().await;
            now.is_ok_and(|now| now.iter().zip(before).all(|(now, before)| now > before))
        };
        wait::until(&format!("{} finds the database unavailable", self.name), RECEIVED, missed).await
    }
}

/// What an aggregator holds of a client, over all windows and cells.
#[derive(Debug, Default)]
struct Snapshot {
    /// What each Envoy used of each cell.
    components: BTreeMap<(u64, String), u64>,
    /// What other regions used.
    others: u64,
}

impl Snapshot {
    /// Reads the response of `/v1/keys`.
    fn of(explanation: &Value) -> Self {
        let list = |value: &Value, name: &str| value[name].as_array().cloned().unwrap_or_default();
        let number = |value: &Value, name: &str| value[name].as_u64().unwrap_or(0);
        let mut snapshot = Self::default();
        for cell in list(explanation, "windows").iter().flat_map(|window| list(window, "cells")) {
            snapshot.others += number(&cell, "global_others");
            for component in list(&cell, "components") {
                let node = component["node"].as_str().unwrap_or_default().to_owned();
                snapshot.components.insert((number(&cell, "sequence"), node), number(&component, "own"));
            }
        }
        snapshot
    }

    /// The maximum of each component.
    fn merged(snapshots: &[Self]) -> Self {
        let mut whole = Self::default();
        for (name, own) in snapshots.iter().flat_map(|snapshot| &snapshot.components) {
            let most = whole.components.entry(name.clone()).or_default();
            *most = (*most).max(*own);
        }
        whole
    }

    fn own(&self) -> u64 {
        self.components.values().sum()
    }
}

/// A response that does not arrive in time is an error, so that the caller can try again.
async fn get(address: SocketAddr, path: &str) -> Result<Response> {
    timeout(TIMEOUT, http::send(address, Request::get(path))).await.context("no response")?
}

async fn unanswered(admin: SocketAddr) -> Result<u64> {
    let name = "weir_query_results_total";
    Ok(sum_of(admin, name, "result.timeout").await? + sum_of(admin, name, "result.broken").await?)
}

/// The statistics of an Envoy with this name and label, added up.
async fn sum_of(admin: SocketAddr, name: &str, label: &str) -> Result<u64> {
    let stats = get(admin, &format!("/stats?filter={name}")).await?.text();
    let found = stats.lines().filter(|line| line.contains(label));
    found.map(|line| Ok(line.rsplit(' ').next().unwrap_or_default().parse::<u64>()?)).sum()
}

/// Queries that an Envoy sent because its slack was spent.
async fn slack_queries(admin: SocketAddr) -> Result<u64> {
    sum_of(admin, "weir_queries_total", "reason.slack").await
}

async fn streams_settled(admin: SocketAddr) -> Result<u64> {
    let stats = get(admin, "/stats?filter=weir_streams_settled").await?.text();
    let value = stats.lines().find_map(|line| line.strip_prefix("wasmcustom.weir_streams_settled: "));
    Ok(value.unwrap_or("0").trim().parse()?)
}

/// Failed calls of the database: the metric has a series for each operation and reason.
async fn database_failures(aggregator: SocketAddr) -> Result<f64> {
    let text = get(aggregator, "/metrics").await?.text();
    let failures = text.lines().filter_map(|line| line.strip_prefix("weir_ratelimit_origin_errors_total{"));
    let of_database = failures.filter(|line| DATABASE_CALLS.iter().any(|call| line.contains(call)));
    Ok(of_database.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
}
