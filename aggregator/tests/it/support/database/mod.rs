//! Stores for the database tests: one server for each test, and a new database for each scenario.

pub mod far;
pub mod ledger;
pub mod packets;

use packets::Node;
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, SqliteConnection};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tempfile::TempDir;
use weir_aggregator::database::{Database, DatabaseOptions, ImportedPage};
use weir_core::model::key::{Key, KeyParts};
use weir_core::model::time::UnixMs;
use weir_core::region::exchange::{PageEnd, Publication, Stored};
use weir_core::replication::global::paging::ReadPage;
use weir_envoy::{DatabaseServer, wait};

/// The time of all scenarios.
pub const NOW: UnixMs = UnixMs(1_800_000_000_000);
/// More time than any call needs.
pub const WITHIN: Duration = Duration::from_secs(20);
/// The window of all keys that do not set another.
pub const HOUR_MS: u64 = 3_600_000;

/// Runs scenarios on one store, one after the other, and prints their durations.
macro_rules! run {
    ($store:expr, $($scenario:ident),+ $(,)?) => {
        $(
            let began = std::time::Instant::now();
            $scenario($store).await;
            eprintln!("{} {:?}", stringify!($scenario), began.elapsed());
        )+
    };
}
pub(crate) use run;

/// The tests `mariadb` and `mysql`, each with its own server.
macro_rules! on_servers {
    (|$store:ident| $work:expr) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn mariadb() {
            let $store = $crate::support::database::Store::mariadb().await;
            $work.await;
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn mysql() {
            if let Some($store) = $crate::support::database::Store::mysql().await {
                $work.await;
            }
        }
    };
}
pub(crate) use on_servers;

/// The server for scenarios' databases.
pub struct Store {
    pub server: Option<DatabaseServer>,
    folder: TempDir,
    made: AtomicUsize,
}

impl Store {
    pub async fn mariadb() -> Store {
        Store::new(Some(DatabaseServer::mariadb().await.unwrap()))
    }

    /// `None`, with a printed line, if no MySQL is installed.
    pub async fn mysql() -> Option<Store> {
        let server = DatabaseServer::mysql(&[]).await.unwrap();
        if server.is_none() {
            eprintln!("SKIPPED: no MySQL here; envoy/tools/install/databases.sh mysql --build unpacks one");
        }
        server.map(|server| Store::new(Some(server)))
    }

    pub fn sqlite() -> Store {
        Store::new(None)
    }

    fn new(server: Option<DatabaseServer>) -> Store {
        Store { server, folder: tempfile::tempdir().unwrap(), made: AtomicUsize::new(0) }
    }

    /// A database without tables.
    pub async fn empty(&self) -> Scene {
        let name = format!("weir_{}", self.made.fetch_add(1, Relaxed));
        let Some(server) = &self.server else {
            return Scene { url: format!("sqlite://{}/{name}.db", self.folder.path().display()) };
        };
        let server_itself = Scene { url: server.url("mysql") };
        server_itself.run(&format!("CREATE DATABASE {name}")).await;
        Scene { url: server.url(&name) }
    }

    /// A database with all tables.
    pub async fn fresh(&self) -> Scene {
        let scene = self.empty().await;
        scene.open("a").migrate().await.unwrap();
        scene
    }
}

/// Number of migrations of a database.
pub fn migrations(scene: &Scene) -> usize {
    // SQLite has neither bucket locks nor procedures.
    if scene.is_mysql() { 10 } else { 7 }
}

/// One database.
pub struct Scene {
    pub url: String,
}

impl Scene {
    pub fn open(&self, region: &str) -> Database {
        open(&self.url, region)
    }

    pub fn is_mysql(&self) -> bool {
        self.url.starts_with("mysql")
    }

    pub async fn mysql(&self) -> MySqlConnection {
        MySqlConnection::connect(&self.url).await.unwrap()
    }

    /// Executes the test's own statements.
    pub async fn run(&self, sql: &str) {
        let statement = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
        if self.is_mysql() {
            statement.execute(&mut self.mysql().await).await.unwrap();
        } else {
            let mut connection = SqliteConnection::connect(&self.url).await.unwrap();
            statement.execute(&mut connection).await.unwrap();
        }
    }

    /// The number that a query returns.
    pub async fn number(&self, sql: &str) -> i64 {
        if self.is_mysql() {
            let sql = format!("SELECT CAST(({sql}) AS SIGNED)");
            sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut self.mysql().await).await.unwrap()
        } else {
            let mut connection = SqliteConnection::connect(&self.url).await.unwrap();
            sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(&mut connection).await.unwrap()
        }
    }

    /// Waits until a transaction waits for another.
    pub async fn until_a_transaction_waits(&self) {
        self.until_transactions_wait(1).await;
    }

    /// Waits until so many transactions, or more, wait for another.
    pub async fn until_transactions_wait(&self, least: i64) {
        let waiting = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'";
        let waits = async || {
            // The server returns old information if it is queried again within 100 ms.
            tokio::time::sleep(Duration::from_millis(150)).await;
            self.number(waiting).await >= least
        };
        wait::until("transactions wait", WITHIN, waits).await.unwrap();
    }

    /// Number of rows, markers included.
    pub async fn rows(&self) -> i64 {
        self.number("SELECT COUNT(*) FROM ratelimit_window_counts").await
    }

    pub async fn wipe(&self) {
        let wipe = if self.is_mysql() { "TRUNCATE TABLE" } else { "DELETE FROM" };
        self.run(&format!("{wipe} ratelimit_window_counts")).await;
    }
}

pub fn open(url: &str, region: &str) -> Database {
    Database::open(&DatabaseOptions { url: url.to_owned(), read_url: None, region: region.to_owned() })
        .unwrap()
}

pub fn key(identifier: &[u8]) -> Key {
    key_of(identifier, 0, 1)
}

pub fn key_of(identifier: &[u8], epoch: u32, resolution: u16) -> Key {
    let parts =
        KeyParts { workspace: b"w", namespace: b"n", identifier, duration_ms: HOUR_MS, epoch, resolution };
    Key::new(&parts).unwrap()
}

/// The window that contains `NOW`.
pub fn sequence() -> u64 {
    NOW.0 / HOUR_MS
}

pub fn row_of(key: Key, count: u64) -> Publication {
    Publication {
        key,
        sequence: sequence(),
        count,
        limit: u64::MAX,
        expires: UnixMs((sequence() + 2) * HOUR_MS),
    }
}

pub fn row(identifier: &str, count: u64) -> Publication {
    row_of(key(identifier.as_bytes()), count)
}

/// `many` rows with `count` each.
pub fn rows(prefix: &str, many: usize, count: u64) -> Vec<Publication> {
    (0..many).map(|place| row(&format!("{prefix}{place:05}"), count)).collect()
}

/// The same rows, expired `ago_ms` ago.
pub fn expired(prefix: &str, many: usize, ago_ms: u64) -> Vec<Publication> {
    let expires = UnixMs(NOW.0 - ago_ms);
    rows(prefix, many, 7).into_iter().map(|row| Publication { expires, sequence: 5, ..row }).collect()
}

/// Writes rows as a new aggregator of the database's region.
pub async fn publish(database: &Database, rows: &[Publication]) {
    Node::new(database.clone(), rand::random()).write(rows).await;
}

/// The sums of the other regions' counts, sorted by key.
pub async fn import(database: &Database) -> Vec<Stored> {
    let imported = database.import(&whole(WITHIN)).await.unwrap();
    assert_eq!((imported.bad, imported.page.end), (0, None), "{:?}", imported.bad_example);
    sums(imported)
}

/// A page that holds all rows which have not expired.
pub fn whole(within: Duration) -> ReadPage {
    let within_ms = u64::try_from(within.as_millis()).unwrap();
    ReadPage { after: PageEnd::expired_at(NOW), rows: 1_000_000, within_ms }
}

/// The sums over all regions, sorted by key.
pub fn sums(imported: ImportedPage) -> Vec<Stored> {
    let mut sums = BTreeMap::new();
    for cell in imported.page.regions.into_iter().flat_map(|region| region.cells) {
        *sums.entry((cell.key, cell.sequence)).or_default() += cell.count;
    }
    sums.into_iter()
        .map(|((key, sequence), count)| Stored { key, sequence, count, limit: u64::MAX })
        .collect()
}

pub fn sorted(mut cells: Vec<Stored>) -> Vec<Stored> {
    cells.sort_by(|a, b| (&a.key, a.sequence).cmp(&(&b.key, b.sequence)));
    cells
}

/// The expected import of `rows`.
pub fn cells(rows: &[Publication]) -> Vec<Stored> {
    sorted(
        rows.iter()
            .map(|row| Stored {
                key: row.key.clone(),
                sequence: row.sequence,
                count: row.count,
                limit: u64::MAX,
            })
            .collect(),
    )
}
