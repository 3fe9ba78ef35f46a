//! Sends many requests concurrently over persistent connections and counts the results. It has neither pipelining nor
//! HTTP/2.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until, timeout};

use crate::clients::http::{Connection, Request, Response};
use crate::processes::wait;

/// Delay after a failed connection, so that an unavailable target does not cause a tight loop of attempts.
const RECONNECT_PAUSE: Duration = Duration::from_millis(5);

/// Time in which a load must go on.
const LOAD_TIMEOUT: Duration = Duration::from_secs(120);

/// Builds the request with the given number, and selects its target by index.
pub type RequestFor = dyn Fn(u64) -> (usize, Request) + Send + Sync;

/// The requests of a load, and their rate.
#[derive(Clone)]
pub struct LoadPlan {
    pub targets: Vec<SocketAddr>,
    /// Requests in progress at once. Each of them has its own connection to each target that it uses.
    pub connections: usize,
    pub requests: u64,
    /// Requests per second over all connections; `None` means as fast as possible.
    pub rate: Option<f64>,
    /// Time after which a request counts as an error.
    pub request_timeout: Duration,
    pub request: Arc<RequestFor>,
    /// Requests that were sent so far.
    sent: Arc<AtomicU64>,
}

impl LoadPlan {
    /// `requests` times GET / with one header, to one target, as fast as possible.
    pub fn new(target: SocketAddr, connections: usize, requests: u64, header: (&str, &str)) -> Self {
        let request = Request::get("/").header(header.0, header.1);
        Self::of(vec![target], connections, requests, move |_| (0, request.clone()))
    }

    /// The request with number n is `request(n)`, which also selects its target.
    pub fn of(
        targets: Vec<SocketAddr>,
        connections: usize,
        requests: u64,
        request: impl Fn(u64) -> (usize, Request) + Send + Sync + 'static,
    ) -> Self {
        let request_timeout = Duration::from_secs(10);
        let (request, sent) = (Arc::new(request), Arc::default());
        Self { targets, connections, requests, rate: None, request_timeout, request, sent }
    }

    /// How far the load is, for what happens while it runs.
    pub fn progress(&self) -> Progress {
        Progress { sent: Arc::clone(&self.sent), requests: self.requests }
    }

    #[must_use]
    pub fn rate(mut self, per_second: f64) -> Self {
        self.rate = Some(per_second);
        self
    }
}

/// How far a load is.
pub struct Progress {
    sent: Arc<AtomicU64>,
    requests: u64,
}

impl Progress {
    /// Waits until so many more requests were sent, or all of the plan.
    pub async fn sends(&self, more: u64) {
        let last = self.requests.min(self.sent.load(Ordering::Relaxed) + more);
        let is_sent = async || self.sent.load(Ordering::Relaxed) >= last;
        wait::until("the load goes on", LOAD_TIMEOUT, is_sent).await.expect("the load goes on");
    }
}

/// The results of a load.
#[derive(Default)]
pub struct LoadReport {
    pub statuses: BTreeMap<u16, u64>,
    /// Requests without a response: connection refused, cut, or timed out.
    pub errors: u64,
    pub first_error: Option<String>,
    pub elapsed: Duration,
    /// Requests answered with 200: number, and time of the response since the load began.
    pub passed: Vec<(u64, Duration)>,
    latencies_us: Vec<u32>,
}

impl LoadReport {
    pub fn count(&self, status: u16) -> u64 {
        self.statuses.get(&status).copied().unwrap_or(0)
    }

    /// The latency that a `share` (0 to 1) of the answered requests did not exceed.
    pub fn latency(&self, share: f64) -> Duration {
        let last = self.latencies_us.len().saturating_sub(1);
        let index = (share.clamp(0.0, 1.0) * last as f64).round() as usize;
        Duration::from_micros(self.latencies_us.get(index).copied().unwrap_or(0).into())
    }

    pub fn per_second(&self) -> f64 {
        self.latencies_us.len() as f64 / self.elapsed.as_secs_f64()
    }

    fn add(&mut self, other: Self) {
        for (status, count) in other.statuses {
            *self.statuses.entry(status).or_default() += count;
        }
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
        self.passed.extend(other.passed);
        self.latencies_us.extend(other.latencies_us);
    }
}

impl fmt::Debug for LoadReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("LoadReport")
            .field("statuses", &self.statuses)
            .field("errors", &self.errors)
            .field("first_error", &self.first_error)
            .field("elapsed", &self.elapsed)
            .field("p50", &self.latency(0.5))
            .field("p99", &self.latency(0.99))
            .field("max", &self.latency(1.0))
            .finish()
    }
}

/// Sends all requests of the plan. Failed requests are counted, not repeated.
pub async fn run(plan: LoadPlan) -> Result<LoadReport> {
    let plan = Arc::new(plan);
    let next = Arc::new(AtomicU64::new(0));
    let started = Instant::now();
    let mut senders = JoinSet::new();
    for _ in 0..plan.connections {
        senders.spawn(send_until_done(Arc::clone(&plan), Arc::clone(&next), started));
    }
    let mut report = LoadReport::default();
    while let Some(part) = senders.join_next().await {
        report.add(part.context("a sender panicked")?);
    }
    report.elapsed = started.elapsed();
    report.latencies_us.sort_unstable();
    Ok(report)
}

async fn send_until_done(plan: Arc<LoadPlan>, next: Arc<AtomicU64>, started: Instant) -> LoadReport {
    let mut report = LoadReport::default();
    let mut connections: Vec<Option<Connection>> = plan.targets.iter().map(|_| None).collect();
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= plan.requests {
            return report;
        }
        if let Some(rate) = plan.rate {
            sleep_until((started + Duration::from_secs_f64(number as f64 / rate)).into()).await;
        }
        let (target, request) = (plan.request)(number);
        let sent = Instant::now();
        plan.sent.fetch_add(1, Ordering::Relaxed);
        let answer = send_one(&plan, &mut connections, target, request).await;
        match answer {
            Ok(response) => {
                *report.statuses.entry(response.status).or_default() += 1;
                if response.status == 200 {
                    report.passed.push((number, started.elapsed()));
                }
                report.latencies_us.push(u32::try_from(sent.elapsed().as_micros()).unwrap_or(u32::MAX));
            }
            Err(error) => {
                report.errors += 1;
                report.first_error.get_or_insert_with(|| format!("{error:#}"));
            }
        }
    }
}

async fn send_one(
    plan: &LoadPlan,
    connections: &mut [Option<Connection>],
    target: usize,
    request: Request,
) -> Result<Response> {
    let slot = connections.get_mut(target).context("the request names a target that is not in the plan")?;
    let mut connection = match slot.take().filter(Connection::is_open) {
        Some(connection) => connection,
        None => match Connection::open(plan.targets[target]).await {
            Ok(connection) => connection,
            Err(error) => {
                sleep(RECONNECT_PAUSE).await;
                return Err(error);
            }
        },
    };
    // A connection is not reused after a request on it failed or timed out.
    let response =
        timeout(plan.request_timeout, connection.send(request)).await.context("no answer in time")??;
    *slot = Some(connection);
    Ok(response)
}
