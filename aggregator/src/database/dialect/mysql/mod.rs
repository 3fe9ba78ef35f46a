//! MySQL (8.0 and later) and MariaDB (10.6 and later).

mod errors;
mod ledger;
mod migrate;
mod statements;

pub use statements::{CHECK_VELOCITY, STATEMENTS};

use super::arg::Arg;
use super::link::{Call, Columns, Kind, Link, Server, Take, UrlError};
use super::migrations::MigrationReport;
use super::purpose::{MAX_IDLE, Purpose};
use super::statements::Statements;
use super::through_sqlx::{prepared, through_sqlx};
use super::velocity::Velocity;
use crate::database::error::DatabaseError;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlRow, MySqlSslMode};
use sqlx::{AssertSqlSafe, ConnectOptions, Executor, Row as _};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

/// Seconds after which the server ends a statement; by then the caller's deadline has passed.
const STATEMENT_SECONDS: u32 = 20;
const IDLE_SECONDS: u64 = statements::idle_seconds!();

const _: () = assert!(IDLE_SECONDS > MAX_IDLE.as_secs());

pub(super) const KIND: Kind = Kind { schemes: &["mysql", "mariadb"], server };

/// A server and a database on it.
struct MySql(MySqlConnectOptions);

struct MySqlLink(MySqlConnection);

fn server(url: &str) -> Result<Arc<dyn Server>, UrlError> {
    // sqlx's errors name the fault of a URL without quoting it.
    let options =
        MySqlConnectOptions::from_str(url).map_err(|error| UrlError::Malformed(error.to_string()))?;
    if options.get_database().is_none_or(str::is_empty) {
        return Err(UrlError::NoDatabase);
    }
    Ok(Arc::new(MySql(session(options))))
}

impl Server for MySql {
    fn statements(&self) -> &'static Statements {
        &STATEMENTS
    }

    fn connect(&self, purpose: Purpose) -> Call<'_, Box<dyn Link>> {
        Box::pin(async move {
            let connection = connect(&self.0, purpose).await?;
            Ok(Box::new(MySqlLink(connection)) as Box<dyn Link>)
        })
    }

    /// While one transaction waits for the disk, others can count. More than 16 would wait for the same disk.
    fn ledger_connections(&self) -> usize {
        16
    }

    fn unverified(&self) -> Option<String> {
        let MySql(options) = self;
        let mode = options.get_ssl_mode();
        let verifies = matches!(mode, MySqlSslMode::VerifyCa | MySqlSslMode::VerifyIdentity);
        let host = options.get_host().trim_start_matches('[').trim_end_matches(']');
        let is_loopback =
            host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback());
        let is_local = options.get_socket().is_some() || is_loopback;
        let why = format!("ssl-mode {mode:?}");
        let advice = "append ?ssl-mode=VERIFY_IDENTITY&ssl-ca=/path/ca.pem to the URL";
        (!verifies && !is_local).then(|| format!("({why}); {advice}"))
    }
}

impl fmt::Debug for MySql {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MySql(options) = self;
        let database = options.get_database().unwrap_or_default();
        write!(f, "mysql://{}:{}/{database}", options.get_host(), options.get_port())
    }
}

through_sqlx!(MySqlLink, errors::explain);

impl Columns for MySqlRow {
    fn bytes(&self, column: usize) -> Option<&[u8]> {
        self.try_get(column).ok()
    }

    fn number(&self, column: usize) -> Option<u64> {
        self.try_get::<u64, _>(column).ok().or_else(|| {
            let signed: i64 = self.try_get(column).ok()?;
            signed.try_into().ok()
        })
    }
}

/// The options of the URL, with the settings that the statements require.
fn session(options: MySqlConnectOptions) -> MySqlConnectOptions {
    options
        .pipes_as_concat(false)
        .no_engine_substitution(false)
        .charset("utf8mb4")
        .timezone(Some("+00:00".to_owned()))
        .disable_statement_logging()
}

/// Connects and makes the session independent of the server's configuration. READ COMMITTED locks only the rows that
/// are changed. The default level also locks the gaps between them, which blocks inserts of others.
async fn connect(options: &MySqlConnectOptions, purpose: Purpose) -> Result<MySqlConnection, DatabaseError> {
    let lock_wait_seconds = purpose.lock_wait_seconds();
    let mut connection = options.connect().await.map_err(errors::explain_login)?;
    let settings = format!(
        "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION',
             SESSION autocommit = 1,
             SESSION wait_timeout = {IDLE_SECONDS},
             SESSION innodb_lock_wait_timeout = {lock_wait_seconds},
             SESSION lock_wait_timeout = {lock_wait_seconds}
             /*M!100101 , SESSION max_statement_time = {STATEMENT_SECONDS} */
             /*!80000 , SESSION max_execution_time = {STATEMENT_SECONDS}000 */"
    );
    let isolation = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";
    connection.execute(sqlx::raw_sql(AssertSqlSafe(settings))).await.map_err(errors::explain)?;
    connection.execute(sqlx::raw_sql(isolation)).await.map_err(errors::explain)?;
    Ok(connection)
}
