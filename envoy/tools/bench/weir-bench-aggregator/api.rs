//! Clients that request decisions of an aggregator, and its stores: a filter's stream with exact requests, an application over
//! HTTP, Envoy's own rate-limit filter.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tempfile::TempDir;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;
use weir_core::model::exact::{Charge, ExactKey, MAX_LOG_LIMIT};
use weir_core::model::key::{Key, KeyParts};
use weir_core::model::wire::{ExactRequest, FilterFrame};
use weir_envoy::http::{Connection, Request};
use weir_envoy::{Aggregator, AggregatorOptions, DatabaseServer, Redis, RedisOptions, binaries, ports};

use crate::peer::{HOUR_MS, Peer};
use crate::stage::Cpu;

/// Large enough not to be reached.
const AMPLE: u32 = 1_000_000_000;
/// The window of a log: entries expire as fast as they are added.
const LOG_WINDOW_MS: u64 = 1_000;
const ZONE: u32 = 1;
/// Connections of Envoys to the rate-limit service.
const CHANNELS: usize = 4;
/// Longer than any response takes.
const TIMEOUT_MS: u32 = 10_000;
const RATE_LIMITS: &str = "domain: bench\n\
    descriptors:\n\
    - key: client\n  \
      rate_limit: {name: clients, unit: hour, requests_per_unit: 1000000000}\n";
/// `RateLimitResponse.Code.OK`.
const RLS_OK: i32 = 1;

/// The API, and the kind of limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Api {
    /// A log in the aggregator's memory, over a filter's stream.
    LogInMemory,
    /// A log in Redis.
    LogInRedis,
    /// The same, used up: cached denials answer most requests.
    LogDenied,
    /// A ledger in MariaDB.
    Ledger,
    /// Sliding windows over HTTP.
    Http,
    /// Sliding windows over Envoy's rate-limit service.
    RateLimitService,
}

/// The processes behind an API; they end with this value.
pub struct Scene {
    api: Api,
    aggregator: Aggregator,
    redis: Option<Redis>,
    database: Option<DatabaseServer>,
    /// An Envoy's requests share its connections to the rate-limit service.
    channels: Vec<Channel>,
    _folder: TempDir,
}

/// A client with a connection of its own.
pub enum Asker {
    Stream { peer: Peer, charge: fn(usize) -> Result<Charge>, last: u64 },
    Http(Connection),
    RateLimitService(Grpc<Channel>),
}

impl Api {
    pub const ALL: [Api; 6] =
        [Api::LogInMemory, Api::LogInRedis, Api::LogDenied, Api::Ledger, Api::Http, Api::RateLimitService];

    pub fn title(self) -> &'static str {
        match self {
            Api::LogInMemory => "log in memory",
            Api::LogInRedis => "log in Redis",
            Api::LogDenied => "log in Redis, used up",
            Api::Ledger => "ledger in MariaDB",
            Api::Http => "window over HTTP",
            Api::RateLimitService => "window over the rate-limit service",
        }
    }
}

impl Scene {
    pub async fn start(api: Api) -> Result<Scene> {
        let folder = tempfile::Builder::new().prefix("weir-bench-").tempdir()?;
        let mut environment = Vec::new();
        let mut redis = None;
        if matches!(api, Api::LogInRedis | Api::LogDenied) {
            let server = Redis::start(RedisOptions::default()).await?;
            environment.push(("WEIR_REDIS_URL".to_owned(), server.url()));
            redis = Some(server);
        }
        let mut database = None;
        if api == Api::Ledger {
            let server = DatabaseServer::mariadb().await?;
            prepare_ledger(&server.url("mysql")).await?;
            environment.push(("WEIR_DATABASE_URL".to_owned(), server.url("weir")));
            run_aggregator(&["migrate"], &environment)?;
            let rate = AMPLE.to_string();
            run_aggregator(
                &["zones", "set", "--zone", "1", "--rate", &rate, "--window", "1s"],
                &environment,
            )?;
            database = Some(server);
        }
        let mut arguments = Vec::new();
        if api == Api::RateLimitService {
            let file = folder.path().join("limits.yaml");
            std::fs::write(&file, RATE_LIMITS)?;
            arguments.extend(["--rls-config".to_owned(), file.display().to_string()]);
        }
        let options = AggregatorOptions { arguments, environment, ..AggregatorOptions::default() };
        let aggregator = Aggregator::start(options).await?;
        let mut channels = Vec::new();
        if api == Api::RateLimitService {
            for _ in 0..CHANNELS {
                let address = ports::local(aggregator.grpc_port());
                channels.push(Endpoint::from_shared(format!("http://{address}"))?.connect().await?);
            }
        }
        Ok(Scene { api, aggregator, redis, database, channels, _folder: folder })
    }

    /// The connection of the `number`th client.
    pub async fn connect(&self, number: usize) -> Result<Asker> {
        let charge = match self.api {
            Api::Http => return Ok(Asker::Http(Connection::open(self.aggregator.http_address()).await?)),
            Api::RateLimitService => {
                let channel = self.channels.get(number % CHANNELS).context("there are channels")?;
                return Ok(Asker::RateLimitService(Grpc::new(channel.clone())));
            }
            Api::LogInMemory | Api::LogInRedis => |key| log(key, MAX_LOG_LIMIT, LOG_WINDOW_MS),
            Api::LogDenied => |key| log(key, 1, HOUR_MS),
            Api::Ledger => ledger,
        };
        let peer = Peer::join(self.aggregator.grpc_port(), false).await?;
        Ok(Asker::Stream { peer, charge, last: 0 })
    }

    pub fn has_store(&self) -> bool {
        self.redis.is_some() || self.database.is_some()
    }

    pub fn cpu(&mut self) -> Result<Cpu> {
        let mut cpu = Cpu { aggregators: self.aggregator.process().cpu_time()?, ..Cpu::default() };
        if let Some(redis) = &mut self.redis {
            cpu.store += redis.process().cpu_time()?;
        }
        if let Some(database) = &mut self.database {
            cpu.store += database.process().cpu_time()?;
        }
        Ok(cpu)
    }
}

impl Asker {
    /// Sends a request for the `number`th identifier; returns whether it passed. One that is not decided is an error.
    pub async fn decide(&mut self, number: usize) -> Result<bool> {
        match self {
            Asker::Stream { peer, charge, last } => {
                *last += 1;
                ask_stream(peer, &charge(number)?, *last).await
            }
            Asker::Http(connection) => ask_http(connection, number).await,
            Asker::RateLimitService(grpc) => ask_service(grpc, number).await,
        }
    }
}

async fn ask_stream(peer: &mut Peer, charge: &Charge, id: u64) -> Result<bool> {
    let request = ExactRequest { id, charges: vec![charge.to_wire()], timeout_ms: TIMEOUT_MS, trace: None };
    peer.frames.send(FilterFrame { exact_requests: vec![request], ..FilterFrame::default() }).await?;
    let answer = peer.next_with(|frame| frame.results.into_iter().next()).await?;
    match answer.results.first().map(|result| result.verdict) {
        Some(2) => Ok(true),
        Some(3) => Ok(false),
        other => anyhow::bail!("a request was not decided: verdict {other:?}"),
    }
}

async fn ask_http(connection: &mut Connection, number: usize) -> Result<bool> {
    let body = json!({
        "namespace": "bench", "identifier": format!("client-{number:07}"), "limit": AMPLE, "duration": HOUR_MS,
    });
    let request = Request::post("/v1/check", body.to_string()).header("content-type", "application/json");
    let response = connection.send(request).await?;
    ensure!(response.status == 200, "HTTP {}: {}", response.status, response.text());
    response.json()?["allowed"].as_bool().context("a response without allowed")
}

async fn ask_service(grpc: &mut Grpc<Channel>, number: usize) -> Result<bool> {
    let entry = Entry { key: "client".to_owned(), value: format!("client-{number:07}") };
    let request = RateLimitRequest {
        domain: "bench".to_owned(),
        descriptors: vec![Descriptor { entries: vec![entry] }],
    };
    grpc.ready().await?;
    let path = PathAndQuery::from_static("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
    let codec = ProstCodec::<RateLimitRequest, RateLimitResponse>::default();
    Ok(grpc.unary(tonic::Request::new(request), path, codec).await?.into_inner().overall_code == RLS_OK)
}

fn log(number: usize, most: u64, duration_ms: u64) -> Result<Charge> {
    let identifier = format!("client-{number:07}");
    let parts = KeyParts {
        workspace: b"acme",
        namespace: b"per-key",
        identifier: identifier.as_bytes(),
        duration_ms,
        epoch: 0,
        resolution: 1,
    };
    Ok(Charge { key: ExactKey::Log(Key::new(&parts)?), most, cost: 1 })
}

#[expect(clippy::unnecessary_wraps, reason = "it stands where a log's charge does")]
fn ledger(number: usize) -> Result<Charge> {
    let bucket = format!("client-{number:07}").into_bytes();
    Ok(Charge { key: ExactKey::Ledger { zone: ZONE, bucket: bucket.into() }, most: 0, cost: 1 })
}

/// Commits as a ledger's server does: each transaction is on the disk before its response.
async fn prepare_ledger(url: &str) -> Result<()> {
    use sqlx::{Connection, MySqlConnection};
    let mut database = MySqlConnection::connect(url).await?;
    sqlx::raw_sql("CREATE DATABASE weir; SET GLOBAL innodb_flush_log_at_trx_commit = 1")
        .execute(&mut database)
        .await?;
    Ok(())
}

fn run_aggregator(arguments: &[&str], environment: &[(String, String)]) -> Result<()> {
    let environment = environment.iter().map(|(name, value)| (name, value));
    let output = Command::new(binaries::aggregator()?).args(arguments).envs(environment).output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "weir-aggregator {}: {error}", arguments.join(" "));
    Ok(())
}

/// The fields of `envoy.service.ratelimit.v3` that are used.
#[derive(Clone, PartialEq, prost::Message)]
struct RateLimitRequest {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<Descriptor>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Descriptor {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<Entry>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Entry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RateLimitResponse {
    #[prost(int32, tag = "1")]
    overall_code: i32,
}
