//! Shared by the tests of the regional store: a private server, a store on it, and short names for cells.

use std::path::Path;
use std::process::Command;
use std::time::Duration;
pub use weir_aggregator::redis::LastRead;
use weir_aggregator::redis::{Incarnation, Store, StoreOptions};
use weir_aggregator::telemetry::clock::{Clock, SystemClock};
use weir_core::model::key::{Key, KeyParts, NodeId};
use weir_core::model::time::UnixMs;
use weir_core::region::exchange::{Merge, Merged, Proposal};
use weir_core::replication::members::Member;
use weir_core::replication::regional::clock::TimeProposal;
use weir_envoy::{Process, Redis, RedisOptions, ports, wait};

/// Enough time for any call on a busy machine.
pub const AMPLE: Duration = Duration::from_secs(10);
/// Time within which a fault must be repaired.
pub const HEALED: Duration = Duration::from_secs(20);
/// An arbitrary cell, and its expiry in the year 2096.
pub const CELL: u64 = 29_000_000;
pub const LATE: UnixMs = UnixMs(4_000_000_000_000);

pub const A: NodeId = NodeId([0xA1; 16]);
pub const B: NodeId = NodeId([0xB2; 16]);
/// A separator, a line break and bytes that are not valid UTF-8.
pub const C: NodeId = NodeId(*b"\0\r\n {}:/%\xff\xfe12345");

/// The region's time, which is right.
pub fn now() -> UnixMs {
    SystemClock.now()
}

/// The time of an aggregator whose machine has the right time.
pub fn time() -> TimeProposal {
    let time_us = now().0 * 1_000;
    TimeProposal { time_us, machine_us: time_us, is_shared: false }
}

/// An aggregator that owes nothing.
pub fn member(number: u8) -> Member {
    Member { id: [number; 16], owes: false }
}

pub async fn redis() -> Redis {
    Redis::start(RedisOptions::default()).await.unwrap()
}

/// A Sentinel that monitors a primary under the name `weir`, alone or with others.
pub struct Sentinel {
    pub process: Process,
    pub port: u16,
    folder: tempfile::TempDir,
}

impl Sentinel {
    /// Starts it with further lines of its configuration; with one of `tls-…` it listens with TLS alone. So many Sentinels as `quorum`
    /// must find that the primary has failed.
    pub fn start(primary: u16, quorum: usize, lines: &str) -> Sentinel {
        let (port, folder) = (ports::free().unwrap(), tempfile::tempdir().unwrap());
        let file = folder.path().join("sentinel.conf");
        let has_tls = lines.contains("tls-");
        let own = if has_tls { format!("port 0\ntls-port {port}") } else { format!("port {port}") };
        let text = format!(
            "{own}\nbind 127.0.0.1\nsentinel monitor weir 127.0.0.1 {primary} {quorum}\nsentinel \
             down-after-milliseconds weir 500\nsentinel failover-timeout weir 5000\n{lines}\n"
        );
        std::fs::write(&file, text).unwrap();
        let program = std::env::var_os("WEIR_REDIS_SERVER").unwrap_or_else(|| "redis-server".into());
        let mut command = Command::new(program);
        command.arg(&file).arg("--sentinel").current_dir(folder.path());
        let process = Process::spawn("sentinel", command, folder.path()).unwrap();
        Sentinel { process, port, folder }
    }

    /// Waits until it has found `replica`, and so many other Sentinels.
    pub async fn knows(&mut self, replica: &Redis, others: usize, login: &str) {
        let url = format!("redis://{login}127.0.0.1:{}", self.port);
        let asked = async |words: &[&str]| -> Option<String> {
            let mut connection =
                redis::Client::open(&*url).unwrap().get_connection_with_timeout(AMPLE).ok()?;
            let answer: redis::Value = redis::cmd("SENTINEL").arg(words).query(&mut connection).ok()?;
            Some(format!("{answer:?}"))
        };
        let port = replica.port().to_string();
        let knows = async || {
            let (replicas, sentinels) =
                (asked(&["replicas", "weir"]).await, asked(&["sentinels", "weir"]).await);
            replicas.is_some_and(|replicas| replicas.contains(&port))
                && sentinels.is_some_and(|sentinels| sentinels.matches("runid").count() == others)
        };
        self.process.wait_for("the Sentinel has found the others", HEALED, knows).await.unwrap();
        assert!(self.folder.path().exists());
    }
}

/// A replica of `primary` that has all its data.
pub async fn replica_of(primary: &Redis) -> Redis {
    let arguments = ["--replicaof", "127.0.0.1", &primary.port().to_string()].map(str::to_owned).to_vec();
    let replica = Redis::start(RedisOptions { port: 0, arguments }).await.unwrap();
    wait::until("the replica is connected", HEALED, async || {
        replica.command("INFO replication").await.is_ok_and(|info| info.contains("master_link_status:up"))
    })
    .await
    .unwrap();
    replica
}

pub async fn replicated(primary: &Redis) {
    wait::until("the replica has everything", HEALED, async || {
        primary.command("WAIT 1 1000").await.is_ok_and(|answer| answer.starts_with(":1"))
    })
    .await
    .unwrap();
}

/// Two authorities, `ca.pem` and `other.pem`, and `server.pem` for 127.0.0.1 of the first.
pub fn make_certificates(folder: &Path) {
    const EC: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    std::fs::write(folder.join("names"), "subjectAltName=IP:127.0.0.1").unwrap();
    for command in [
        format!("req -x509 {EC} -keyout ca.key -out ca.pem -subj /CN=ca -days 30"),
        format!("req -x509 {EC} -keyout other.key -out other.pem -subj /CN=other -days 30"),
        format!("req {EC} -keyout server.key -out server.csr -subj /CN=redis"),
        "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out server.pem -days 30 -extfile names"
            .to_owned(),
    ] {
        let done = Command::new("openssl").args(command.split(' ')).current_dir(folder).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
}

/// A server with such a certificate, and its port for TLS.
pub async fn redis_with_tls(folder: &Path) -> (Redis, u16) {
    let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let tls_port = ports::free().unwrap();
    let arguments = [
        ["--tls-port", &tls_port.to_string()],
        ["--tls-cert-file", &file("server.pem")],
        ["--tls-key-file", &file("server.key")],
        ["--tls-ca-cert-file", &file("ca.pem")],
        ["--tls-auth-clients", "no"],
    ];
    let arguments = arguments.concat().into_iter().map(str::to_owned).collect();
    (Redis::start(RedisOptions { port: 0, arguments }).await.unwrap(), tls_port)
}

pub fn options(url: &str) -> StoreOptions {
    StoreOptions::parse(url, "eu").unwrap()
}

/// A connected store.
pub async fn open(options: &StoreOptions) -> Store {
    let store = Store::open(options).unwrap();
    connected(&store).await;
    store
}

pub async fn connected(store: &Store) {
    let up = async || {
        store
            .incarnations(&LastRead::default(), AMPLE)
            .await
            .is_ok_and(|incarnations| incarnations.unseen == 0)
    };
    wait::until("the store is connected", HEALED, up).await.unwrap();
}

/// Reads all markers as an aggregator does, which states what it has read last.
pub async fn look(store: &Store, last: &mut LastRead) -> Vec<Incarnation> {
    let incarnations = store.incarnations(last, AMPLE).await.unwrap();
    assert_eq!(incarnations.unseen, 0);
    for read in &incarnations.seen {
        last.insert(*read);
    }
    incarnations.seen
}

/// A server and a store on it.
pub async fn started() -> (Redis, Store) {
    let redis = redis().await;
    let store = open(&options(&redis.url())).await;
    (redis, store)
}

pub fn key(identifier: &[u8]) -> Key {
    let (workspace, namespace) = (b"default", b"login");
    Key::new(&KeyParts { workspace, namespace, identifier, duration_ms: 60_000, epoch: 0, resolution: 1 })
        .unwrap()
}

pub fn numbered(number: usize) -> Key {
    key(format!("user-{number}").as_bytes())
}

pub fn merge(key: &Key, parts: &[(NodeId, u64)]) -> Merge {
    Merge {
        key: key.clone(),
        sequence: CELL,
        parts: parts.to_vec(),
        limit: u64::MAX,
        lower_bound: 0,
        above: vec![],
        expires: LATE,
        proposal: None,
        wants_previous: false,
        incarnation: 0,
    }
}

/// A proposal of `node` for `own` against `limit`, with no use elsewhere.
pub fn proposal(node: NodeId, own: u64, limit: u64) -> Proposal {
    Proposal { node, own, limit, global_current: 0, global_previous: 0, covered_ms: 30_000, cell_ms: 60_000 }
}

pub fn proposing(key: &Key, proposal: Proposal) -> Merge {
    Merge { proposal: Some(proposal), ..merge(key, &[]) }
}

pub async fn merge_one(store: &Store, cell: Merge) -> Merged {
    store.merge(&[cell], now(), AMPLE).await.pop().unwrap().unwrap()
}

pub fn node(number: u64) -> NodeId {
    let mut id = [0xEE; 16];
    id[8..].copy_from_slice(&number.to_be_bytes());
    NodeId(id)
}

/// A separate connection, for manual changes.
pub fn hand(redis: &Redis) -> redis::Connection {
    redis::Client::open(redis.url()).unwrap().get_connection().unwrap()
}

/// A server whose clock the test sets.
pub struct Clocked {
    pub clock: weir_envoy::Clock,
    _process: Process,
    _folder: tempfile::TempDir,
    pub url: String,
}

impl Clocked {
    pub async fn start() -> Clocked {
        let (clock, folder) = (weir_envoy::Clock::new().unwrap(), tempfile::tempdir().unwrap());
        let port = ports::free().unwrap().to_string();
        let program = std::env::var_os("WEIR_REDIS_SERVER").unwrap_or_else(|| "redis-server".into());
        let mut command = Command::new(program);
        command.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--dir"]).arg(folder.path());
        command.envs(clock.environment().unwrap());
        let process = Process::spawn("redis", command, folder.path()).unwrap();
        Clocked { clock, _process: process, _folder: folder, url: format!("redis://127.0.0.1:{port}") }
    }
}
