//! Regions on real Envoys, aggregators and databases: use in one counts in the others, soon, exactly and once,
//! whatever the identifier; unused budget counts nowhere.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, SqliteConnection};
use tempfile::TempDir;
use weir_envoy::http::Request;
use weir_envoy::load::{self, LoadPlan};
use weir_envoy::{
    Aggregator, AggregatorOptions, DatabaseServer, Envoy, EnvoyOptions, Redis, RedisOptions, wait,
};

use super::common::{SOON, config, connected, filter, get_as, rule, settled, sound, unused_grants, with};

const CONNECTIONS: usize = 8;
/// Some packets at the intervals of `--test-schedule`, and the delay of a busy machine.
const PROPAGATION: Duration = Duration::from_millis(9_000);

/// The database that the regions share.
pub enum SharedDatabase {
    Server(Box<DatabaseServer>),
    File(TempDir),
}

impl SharedDatabase {
    pub async fn mariadb() -> SharedDatabase {
        Self::of(DatabaseServer::mariadb().await.unwrap()).await
    }

    pub fn sqlite() -> SharedDatabase {
        SharedDatabase::File(tempfile::tempdir().unwrap())
    }

    pub async fn of(server: DatabaseServer) -> SharedDatabase {
        let mut connection = MySqlConnection::connect(&server.url("mysql")).await.unwrap();
        sqlx::raw_sql("CREATE DATABASE weir").execute(&mut connection).await.unwrap();
        SharedDatabase::Server(Box::new(server))
    }

    pub fn url(&self) -> String {
        match self {
            SharedDatabase::Server(server) => server.url("weir"),
            SharedDatabase::File(folder) => format!("sqlite://{}", folder.path().join("weir.db").display()),
        }
    }

    pub fn server(&mut self) -> &mut DatabaseServer {
        match self {
            SharedDatabase::Server(server) => server,
            SharedDatabase::File(_) => panic!("a file has no server"),
        }
    }

    /// Runs a statement of the test on the server.
    pub async fn run(&self, sql: &str) {
        let mut connection = MySqlConnection::connect(&self.url()).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.unwrap();
    }

    /// The sum of a region's rows of cells whose identifiers begin with `prefix`; 0 if there are none.
    pub async fn rows(&self, region: &str, prefix: &[u8]) -> u64 {
        let (region, prefix_hex, bytes) = (hex(region.as_bytes()), hex(prefix), prefix.len());
        let query = format!(
            "SELECT CAST(COALESCE(SUM(count), 0) AS SIGNED) FROM ratelimit_window_counts
             WHERE region = x'{region}' AND duration_ms > 0 AND SUBSTR(identifier, 1, {bytes}) = x'{prefix_hex}'"
        );
        let number: i64 = match self {
            SharedDatabase::Server(_) => {
                let mut connection = MySqlConnection::connect(&self.url()).await.unwrap();
                sqlx::query_scalar(AssertSqlSafe(query)).fetch_one(&mut connection).await.unwrap()
            }
            SharedDatabase::File(_) => {
                let mut connection = SqliteConnection::connect(&self.url()).await.unwrap();
                let query = query.replace("AS SIGNED", "AS INTEGER");
                sqlx::query_scalar(AssertSqlSafe(query)).fetch_one(&mut connection).await.unwrap()
            }
        };
        number.unsigned_abs()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The number of aggregators and Envoys of a region, and whether it has a Redis.
#[derive(Clone, Copy)]
pub struct Shape {
    pub aggregators: usize,
    pub envoys: usize,
    pub redis: bool,
}

/// One aggregator without a Redis, and one Envoy.
pub const SMALL: Shape = Shape { aggregators: 1, envoys: 1, redis: false };
/// Two aggregators that share a Redis, and two Envoys.
pub const LARGE: Shape = Shape { aggregators: 2, envoys: 2, redis: true };

/// A region that shares counts with others. Its Envoys are dropped before its aggregators.
pub struct GlobalRegion {
    pub name: &'static str,
    pub envoys: Vec<Envoy>,
    pub aggregators: Vec<Aggregator>,
    redis: Option<Redis>,
}

impl GlobalRegion {
    pub async fn start(name: &'static str, shape: Shape, url: String, config: &Value) -> GlobalRegion {
        GlobalRegion::start_with(name, shape, url, config, &["--test-schedule"]).await
    }

    /// The same with these arguments of its aggregators.
    pub async fn start_with(
        name: &'static str,
        shape: Shape,
        url: String,
        config: &Value,
        arguments: &[&str],
    ) -> GlobalRegion {
        let redis =
            if shape.redis { Some(Redis::start(RedisOptions::default()).await.unwrap()) } else { None };
        let mut environment = vec![("WEIR_DATABASE_URL".to_owned(), url)];
        environment.extend(redis.iter().map(|redis| ("WEIR_REDIS_URL".to_owned(), redis.url())));
        let mut region = GlobalRegion { name, envoys: Vec::new(), aggregators: Vec::new(), redis };
        for _ in 0..shape.aggregators {
            let options = AggregatorOptions {
                region: name.to_owned(),
                arguments: arguments
                    .iter()
                    .chain(&["--migrate"])
                    .map(|argument| (*argument).to_owned())
                    .collect(),
                environment: environment.clone(),
                ..AggregatorOptions::default()
            };
            region.aggregators.push(Aggregator::start(options).await.unwrap());
        }
        for _ in 0..shape.envoys {
            let options = EnvoyOptions {
                filter: filter(config),
                aggregator_ports: region.aggregators.iter().map(Aggregator::grpc_port).collect(),
                ..EnvoyOptions::default()
            };
            region.envoys.push(Envoy::start(options).await.unwrap());
        }
        for envoy in &region.envoys {
            connected(envoy).await;
            settled(envoy).await;
        }
        region
    }

    /// Stops its Redis, if it has one.
    pub fn stop_redis(&mut self) {
        self.redis = None;
    }

    /// Sends requests of one client to all Envoys in turn; returns how many passed, and panics if one failed.
    pub async fn sends(&self, requests: u64, request: impl Fn() -> Request + Send + Sync + 'static) -> u64 {
        let addresses: Vec<_> = self.envoys.iter().map(Envoy::address).collect();
        let sides = addresses.len() as u64;
        let plan = LoadPlan::of(addresses, CONNECTIONS, requests, move |number| {
            (usize::try_from(number % sides).unwrap(), request())
        });
        let report = load::run(plan).await.unwrap();
        assert_eq!(report.count(200) + report.count(429), requests, "{report:?}");
        report.count(200)
    }

    /// Each aggregator's counts of an identifier of the rule `r`: the region's own use, and the other regions'.
    pub async fn hold(&self, identifier: &[u8]) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        for aggregator in &self.aggregators {
            all.push(held(aggregator, identifier).await);
        }
        all
    }

    /// Waits until every aggregator has these counts.
    pub async fn comes_to_hold(&self, identifier: &[u8], expected: (u64, u64)) {
        let agreed = async || self.hold(identifier).await.iter().all(|held| *held == expected);
        if wait::until("all agree", SOON, agreed).await.is_err() {
            let (name, held) = (identifier.escape_ascii(), self.hold(identifier).await);
            panic!("{} holds {held:?} of {name}, not {expected:?}", self.name);
        }
    }

    /// Waits until every aggregator has completed `times` more packets and imports.
    pub async fn intervals(&self, times: u64) {
        for aggregator in &self.aggregators {
            for operation in ["exchange", "import"] {
                let name = format!("weir_ratelimit_origin_operations_total{{op=\"{operation}\"}}");
                // One that is in progress does not count.
                let enough = metric(aggregator, &name).await + (times + 1) as f64;
                wait::until(&name, SOON, async || metric(aggregator, &name).await >= enough).await.unwrap();
            }
        }
    }

    pub async fn is_sound(&self) {
        for envoy in &self.envoys {
            sound(envoy).await;
        }
    }
}

/// An aggregator's counts of an identifier of the rule `r`, over its cells: own use, and other regions'.
async fn held(aggregator: &Aggregator, identifier: &[u8]) -> (u64, u64) {
    let windows = windows(aggregator, identifier).await;
    let cells = windows.iter().flat_map(|window| window["cells"].as_array().unwrap());
    let number = |cell: &Value, name: &str| cell[name].as_u64().unwrap();
    cells.fold((0, 0), |(own, others), cell| {
        (own + number(cell, "regional_total"), others + number(cell, "global_others"))
    })
}

/// An aggregator's explanation of an identifier of the rule `r`.
async fn windows(aggregator: &Aggregator, identifier: &[u8]) -> Vec<Value> {
    let identifier: String = identifier.iter().map(|byte| format!("%{byte:02x}")).collect();
    let answer =
        aggregator.admin_get(&format!("/v1/keys?namespace=r&identifier={identifier}")).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json().unwrap()["windows"].as_array().unwrap().clone()
}

/// One sample of an aggregator's metrics, with its labels in `name`; 0 if it does not exist.
pub async fn metric(aggregator: &Aggregator, name: &str) -> f64 {
    let text = aggregator.admin_get("/metrics").await.unwrap().text();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.map_or(0.0, |value| value.parse().unwrap())
}

/// Two regions, each with two Envoys, two aggregators and a Redis, share one limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_regions_keep_one_limit() {
    const LIMIT: u64 = 100;
    let database = SharedDatabase::mariadb().await;
    let config = config(&[rule("r", LIMIT)]);
    let a = GlobalRegion::start("a", LARGE, database.url(), &config).await;
    let b = GlobalRegion::start("b", LARGE, database.url(), &config).await;
    assert_eq!(a.sends(60, || get_as("x")).await, 60);
    let sent = Instant::now();
    b.comes_to_hold(b"x", (0, 60)).await;
    let took = sent.elapsed();
    let there = b.sends(LIMIT, || get_as("x")).await;
    assert!(there <= LIMIT - 60 + LIMIT / 20, "{there} passed there");
    let agreed = async || {
        let counted = there..=there + unused_grants(&b.envoys, CONNECTIONS).await;
        let rows = (database.rows("a", b"x").await, database.rows("b", b"x").await);
        let (in_a, in_b) = (a.hold(b"x").await, b.hold(b"x").await);
        println!("rows {rows:?}; a holds {in_a:?}, b {in_b:?}; {there} passed there");
        let imported =
            in_a.iter().all(|held| *held == rows) && in_b.iter().all(|held| *held == (rows.1, rows.0));
        rows.0 == 60 && counted.contains(&rows.1) && imported
    };
    wait::until("each has its own row, and all have both counts", SOON, agreed).await.unwrap();
    let counted = database.rows("b", b"x").await;
    assert!(counted + LIMIT / 20 >= LIMIT - 60, "{there} passed there, {counted} are counted");
    for region in [&a, &b] {
        region.intervals(2).await;
    }
    assert!(agreed().await, "and it stays so");
    let late = a.sends(20, || get_as("x")).await;
    println!("imported after {took:?}; {there} passed there, then {late} here");
    assert!(60 + there + late <= LIMIT + LIMIT / 20, "{late} more passed here");
    assert!(took < PROPAGATION, "{took:?}");
    a.is_sound().await;
    b.is_sound().await;
}

/// Each of three regions imports the sum of the other two. A request whose cost exceeds the limit is charged nowhere.
async fn three_regions(database: SharedDatabase) {
    const LIMIT: u64 = 100;
    let costly = with(
        rule("r", LIMIT),
        json!({ "cost": { "request": { "header": "x-cost" }, "max": 1_000, "default": 1 } }),
    );
    let config = config(&[costly]);
    let a = GlobalRegion::start("a", SMALL, database.url(), &config).await;
    let b = GlobalRegion::start("b", SMALL, database.url(), &config).await;
    let c = GlobalRegion::start("c", SMALL, database.url(), &config).await;
    assert_eq!(a.sends(3, || get_as("cold").header("x-cost", "101")).await, 0, "more than the limit");
    assert_eq!(a.sends(60, || get_as("x")).await, 60);
    // Once one region has published the cell, the others publish theirs too, however small.
    assert_eq!(b.sends(17, || get_as("x")).await, 17);
    assert_eq!(c.sends(5, || get_as("x")).await, 5);
    a.comes_to_hold(b"x", (60, 22)).await;
    b.comes_to_hold(b"x", (17, 65)).await;
    c.comes_to_hold(b"x", (5, 77)).await;
    for region in [&a, &b, &c] {
        region.intervals(2).await;
        assert_eq!(region.hold(b"cold").await, [(0, 0)]);
    }
    let mut rows = Vec::new();
    for region in ["a", "b", "c"] {
        rows.push(database.rows(region, b"x").await);
        assert_eq!(database.rows(region, b"cold").await, 0);
    }
    assert_eq!(rows, [60, 17, 5]);
    assert_eq!(b.sends(1, || get_as("cold").header("x-cost", "100")).await, 1, "all of the limit is left");
    for region in [&a, &b, &c] {
        region.is_sound().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_regions_on_mariadb() {
    three_regions(SharedDatabase::mariadb().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_regions_on_mysql() {
    match DatabaseServer::mysql(&[]).await.unwrap() {
        Some(server) => three_regions(SharedDatabase::of(server).await).await,
        None => {
            eprintln!("SKIPPED: no MySQL here; envoy/tools/install/databases.sh mysql --build unpacks one")
        }
    }
}

/// Identifiers that some store or encoding may confuse.
fn traps() -> Vec<Vec<u8>> {
    const LONG: usize = 16_000;
    let (long, longer) = (vec![b'x'; LONG], [&vec![b'x'; LONG - 1][..], b"y"].concat());
    [
        "Alice",
        "alice",
        "ALICE",
        "alic\u{e9}",
        "alice\u{301}",
        "al ice",
        "al  ice",
        "al\tice",
        "al\0ice",
        "a\0b",
        "a\0\0b",
        "a|b",
        "a:b",
        "a/b",
        "a,b",
        "a;b",
        "a{b}",
        "{a}b",
        "a%b",
        "a%00b",
        "a\\b",
        "a\\\\b",
        "a'b",
        "a\"b",
        "a`b",
        "a\nb",
        "a\r\nb",
        "\\@0.1:a",
        "\\@1.1:a",
        "\\-",
        "-",
        "sha256:",
        "\u{df}",
        "ss",
        "SS",
        "\u{130}",
        "i",
        "I",
        "NULL",
        "0",
        "00",
        "a=b",
        "a&b",
        "a#b",
        "a?b",
        "a b",
        "a+b",
    ]
    .iter()
    .map(|text| text.as_bytes().to_vec())
    .chain([vec![0xff, 0xfe], vec![0xc3], vec![0xc3, 0x28], vec![0x80], long, longer])
    .collect()
}

/// Each of the identifiers that could be confused keeps its own count at every layer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn identifiers_stay_apart_at_every_layer() {
    const LIMIT: u64 = 8;
    let database = SharedDatabase::mariadb().await;
    let by_query = with(rule("r", LIMIT), json!({ "identifier": { "query": "key" } }));
    let shape = Shape { envoys: 1, ..LARGE };
    let mut a =
        GlobalRegion::start("a", shape, database.url(), &config(std::slice::from_ref(&by_query))).await;
    let b = GlobalRegion::start("b", SMALL, database.url(), &config(&[by_query])).await;
    let traps = traps();
    let envoy = &a.envoys[0];
    let mut expected = Vec::new();
    for (place, trap) in (0..).zip(&traps) {
        // More than half of the limit, so that the cell is hot and published; counts of successive identifiers differ.
        let times = LIMIT / 2 + 1 + place % 4;
        let escaped: String = trap.iter().map(|byte| format!("%{byte:02x}")).collect();
        for _ in 0..times {
            let answer = envoy.send(Request::get(&format!("/?key={escaped}"))).await.unwrap();
            assert_eq!(answer.status, 200, "{}", trap.escape_ascii());
        }
        let raw: Vec<u8> = trap
            .iter()
            .flat_map(|byte| [&b"\\"[..usize::from(b"\\|".contains(byte))], &[*byte]].concat())
            .collect();
        expected.push((raw, times));
    }
    for (raw, times) in &expected {
        b.comes_to_hold(raw, (0, *times)).await;
    }
    let sum: u64 = expected.iter().map(|(_, times)| times).sum();
    assert_eq!(database.rows("a", b"").await, sum);
    // Aggregators and the Envoy lose their memory, so the counts can only come from Redis, not from the database table.
    database.run("TRUNCATE TABLE ratelimit_window_counts").await;
    for aggregator in &mut a.aggregators {
        aggregator.process().kill().unwrap();
    }
    a.envoys.clear();
    database.run("TRUNCATE TABLE ratelimit_window_counts").await;
    for aggregator in &mut a.aggregators {
        aggregator.restart().await.unwrap();
    }
    for (raw, times) in &expected {
        a.comes_to_hold(raw, (*times, 0)).await;
    }
    println!("{} identifiers, {sum} requests", traps.len());
    b.is_sound().await;
}

/// Two regions on one SQLite file, without any server; one of them is restarted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn regions_on_one_file() {
    const LIMIT: u64 = 50;
    let database = SharedDatabase::sqlite();
    let config = config(&[rule("r", LIMIT)]);
    let mut a = GlobalRegion::start("a", SMALL, database.url(), &config).await;
    let b = GlobalRegion::start("b", SMALL, database.url(), &config).await;
    assert_eq!(a.sends(LIMIT + 10, || get_as("x")).await, LIMIT);
    b.comes_to_hold(b"x", (0, LIMIT)).await;
    assert_eq!(b.sends(5, || get_as("x")).await, 0, "used up elsewhere");
    assert_eq!(database.rows("a", b"x").await, LIMIT);
    a.envoys[0].process().kill().unwrap();
    a.aggregators[0].restart().await.unwrap();
    a.envoys[0].restart().await.unwrap();
    connected(&a.envoys[0]).await;
    assert_eq!(a.sends(10, || get_as("x")).await, 0, "used up before");
    a.comes_to_hold(b"x", (LIMIT, 0)).await;
    a.intervals(1).await;
    assert_eq!((database.rows("a", b"x").await, database.rows("b", b"x").await), (LIMIT, 0));
    a.is_sound().await;
    b.is_sound().await;
}
