//! `--peers`: limits that several Envoys share. Weir's filter is compared with Envoy's own `ratelimit` filter, which queries Weir's
//! rate-limit service, and the services that are named, for each request.
//!
//! Each service must have a limit of the domain `bench` with one descriptor for each value of `x-api-key`, too high to be reached.
//! Envoy queries a service for requests to an upstream only, so another Envoy stands behind each one that is measured.

use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Error, Result, ensure};
use tempfile::TempDir;
use weir_envoy::http::Request;
use weir_envoy::load::{self, LoadPlan, LoadReport};
use weir_envoy::{Aggregator, AggregatorOptions, Envoy, EnvoyOptions, Filter, RateLimit, Route, process};

use crate::median::median;
use crate::results::{Table, cell};
use crate::variants::{self, KEY_HEADER};

const TITLE: &str = "Comparison with other limiters";
const COLUMNS: [&str; 5] = ["requests/s", "Envoy µs/request", "service µs/request", "p50 µs", "p99 µs"];
const DOMAIN: &str = "bench";
/// Our own rate-limit service's limits.
const LIMITS: &str = "domain: bench\n\
    descriptors:\n\
    - key: x-api-key\n  \
      rate_limit: {unit: hour, requests_per_unit: 1000000000}\n";
const CONNECTIONS: usize = 32;
const KEYS: u64 = 10_000;
/// Requests of a variant in a round, over all connections.
const REQUESTS: u64 = 30_000;
/// Requests of a variant in a round over a single connection.
const SINGLE_REQUESTS: u64 = 3_000;

/// A rate-limit service on this machine that the user started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    name: String,
    port: u16,
    /// The process whose processor time is measured.
    pid: Option<u32>,
}

impl FromStr for Peer {
    type Err = Error;

    /// Parses `NAME=PORT` or `NAME=PORT/PID`.
    fn from_str(text: &str) -> Result<Self> {
        let (name, address) = text.split_once('=').context("expected NAME=PORT or NAME=PORT/PID")?;
        let (port, pid) = match address.split_once('/') {
            Some((port, pid)) => (port, Some(pid.parse().context("the process id is not a number")?)),
            None => (address, None),
        };
        Ok(Self { name: name.to_owned(), port: port.parse().context("the port is not a number")?, pid })
    }
}

/// One row: an Envoy, and the processes that decide for it.
struct Row {
    title: String,
    envoy: Envoy,
    aggregator: Option<Aggregator>,
    service_pid: Option<u32>,
    rounds: Vec<Round>,
    _files: TempDir,
}

/// One round of one row.
struct Round {
    per_second: f64,
    envoy_us: f64,
    service_us: f64,
    p50_us: f64,
    p99_us: f64,
}

/// Measures all rows in interleaved rounds; returns the table.
pub async fn compare(peers: &[Peer], rounds: usize) -> Result<Table> {
    let upstream = Envoy::start(EnvoyOptions::default()).await?;
    let port = upstream.address().port();
    let mut rows = vec![
        Row::start("no limit", Filter::None, None, port).await?,
        Row::start("Weir's filter", variants::weir_filter()?, None, port).await?,
        Row::start("Envoy `ratelimit` with Weir's aggregator", rate_limit(), None, port).await?,
    ];
    for peer in peers {
        let title = format!("Envoy `ratelimit` with {}", peer.name);
        rows.push(Row::start(&title, rate_limit(), Some(peer), port).await?);
    }
    // The first round compiles the filter and creates all keys.
    for round in 0..=rounds {
        for index in 0..rows.len() {
            let at = (index + round) % rows.len();
            let measured = rows[at].measure().await.with_context(|| rows[at].title.clone())?;
            if round > 0 {
                rows[at].rounds.push(measured);
            }
        }
        eprintln!("round {round} of {rounds}");
    }
    Ok(table(&rows))
}

fn rate_limit() -> Filter {
    let descriptors = vec![vec![KEY_HEADER]];
    Filter::RateLimit(RateLimit { domain: DOMAIN.to_owned(), descriptors, ..RateLimit::default() })
}

impl Row {
    async fn start(title: &str, filter: Filter, peer: Option<&Peer>, upstream: u16) -> Result<Self> {
        let files = tempfile::tempdir()?;
        let limits = files.path().join("limits.yaml");
        std::fs::write(&limits, LIMITS)?;
        let arguments = vec!["--rls-config".to_owned(), limits.display().to_string()];
        let needs_own = peer.is_none() && !matches!(filter, Filter::None);
        let aggregator = match needs_own {
            true => Some(
                Aggregator::start(AggregatorOptions { arguments, ..AggregatorOptions::default() }).await?,
            ),
            false => None,
        };
        let port = aggregator.as_ref().map(Aggregator::grpc_port).or(peer.map(|peer| peer.port));
        let envoy = Envoy::start(EnvoyOptions {
            filter,
            route: Route::Upstream(upstream),
            aggregator_ports: port.into_iter().collect(),
            ..EnvoyOptions::default()
        });
        let service_pid = peer.and_then(|peer| peer.pid);
        let (title, envoy) = (title.to_owned(), envoy.await?);
        Ok(Self { title, envoy, aggregator, service_pid, rounds: Vec::new(), _files: files })
    }

    async fn measure(&mut self) -> Result<Round> {
        let (envoy, service) = self.cpu()?;
        let many = self.run(CONNECTIONS, REQUESTS).await?;
        let (envoy_after, service_after) = self.cpu()?;
        let micros = |after: Duration, before: Duration| {
            after.saturating_sub(before).as_secs_f64() * 1e6 / REQUESTS as f64
        };
        let single = self.run(1, SINGLE_REQUESTS).await?;
        let latency_us = |share| single.latency(share).as_secs_f64() * 1e6;
        Ok(Round {
            per_second: many.per_second(),
            envoy_us: micros(envoy_after, envoy),
            service_us: match service_after.zip(service) {
                Some((after, before)) => micros(after, before),
                None => f64::NAN,
            },
            p50_us: latency_us(0.5),
            p99_us: latency_us(0.99),
        })
    }

    async fn run(&self, connections: usize, requests: u64) -> Result<LoadReport> {
        let request = |number: u64| {
            // A multiplier without a common factor with the number of keys reaches each key.
            let key = number.wrapping_mul(7_919) % KEYS;
            (0, Request::get("/").header(KEY_HEADER, format!("key-{key:07}")))
        };
        let report =
            load::run(LoadPlan::of(vec![self.envoy.address()], connections, requests, request)).await?;
        ensure!(report.count(200) == requests, "not all requests passed: {report:?}");
        Ok(report)
    }

    /// Processor time so far of Envoy, and of the service if its process is known.
    fn cpu(&mut self) -> Result<(Duration, Option<Duration>)> {
        let own = self.aggregator.as_mut().map(|aggregator| aggregator.process().pid());
        let service = own.or(self.service_pid).map(process::threads_cpu_time).transpose()?;
        Ok((self.envoy.process().threads_cpu_time()?, service))
    }
}

fn table(rows: &[Row]) -> Table {
    let rows = rows.iter().map(|row| {
        let of = |field: fn(&Round) -> f64| cell(median(row.rounds.iter().map(field)));
        let figures = [
            of(|round| round.per_second),
            of(|round| round.envoy_us),
            of(|round| round.service_us),
            of(|round| round.p50_us),
            of(|round| round.p99_us),
        ];
        (row.title.clone(), figures.to_vec())
    });
    Table { title: TITLE.to_owned(), columns: COLUMNS.map(str::to_owned).to_vec(), rows: rows.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_has_a_name_a_port_and_perhaps_a_process() {
        let peer = |name: &str, port, pid| Peer { name: name.to_owned(), port, pid };
        assert_eq!("limitador=8081".parse::<Peer>().unwrap(), peer("limitador", 8081, None));
        assert_eq!("a b=1/42".parse::<Peer>().unwrap(), peer("a b", 1, Some(42)));
        for wrong in ["", "limitador", "limitador=", "limitador=x", "limitador=70000", "limitador=1/x"] {
            assert!(wrong.parse::<Peer>().is_err(), "{wrong}");
        }
    }
}
