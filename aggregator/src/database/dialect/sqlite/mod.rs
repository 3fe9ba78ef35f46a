//! SQLite.

mod errors;
mod ledger;
mod migrate;
mod statements;

pub use statements::{COUNT, ENOUGH, STATEMENTS};

use super::arg::Arg;
use super::link::{Call, Columns, Kind, Link, Server, Take, UrlError};
use super::migrations::MigrationReport;
use super::purpose::Purpose;
use super::statements::Statements;
use super::through_sqlx::{prepared, through_sqlx};
use super::velocity::Velocity;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteRow, SqliteSynchronous};
use sqlx::{ConnectOptions, Row as _};
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

pub(super) const KIND: Kind = Kind { schemes: &["sqlite"], server };

/// A file.
struct Sqlite(SqliteConnectOptions);

struct SqliteLink(SqliteConnection);

fn server(url: &str) -> Result<Arc<dyn Server>, UrlError> {
    if url.contains(":memory:") || url.contains("mode=memory") {
        return Err(UrlError::InMemory);
    }
    // sqlx's errors name the fault of a URL without quoting it.
    let options =
        SqliteConnectOptions::from_str(url).map_err(|error| UrlError::Malformed(error.to_string()))?;
    Ok(Arc::new(Sqlite(session(options))))
}

impl Server for Sqlite {
    fn statements(&self) -> &'static Statements {
        &STATEMENTS
    }

    fn connect(&self, purpose: Purpose) -> Call<'_, Box<dyn Link>> {
        Box::pin(async move {
            let connection = connect(&self.0, purpose).await.map_err(errors::explain)?;
            Ok(Box::new(SqliteLink(connection)) as Box<dyn Link>)
        })
    }

    /// SQLite has one writer at a time, and calls that wait here are served in order.
    fn ledger_connections(&self) -> usize {
        1
    }

    fn folder(&self) -> Option<&Path> {
        self.0.get_filename().parent().filter(|folder| !folder.as_os_str().is_empty())
    }
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sqlite://{}", self.0.get_filename().display())
    }
}

through_sqlx!(SqliteLink, errors::explain);

impl Columns for SqliteRow {
    fn bytes(&self, column: usize) -> Option<&[u8]> {
        self.try_get(column).ok()
    }

    fn number(&self, column: usize) -> Option<u64> {
        // For SQLite, sqlx decodes NULL as 0 unless the type is an `Option`.
        self.try_get::<Option<i64>, _>(column).ok()??.try_into().ok()
    }
}

/// Connects. A crash of the machine may lose the last counts, which are sent again, but no attempt.
async fn connect(options: &SqliteConnectOptions, purpose: Purpose) -> Result<SqliteConnection, sqlx::Error> {
    let synchronous = match purpose {
        Purpose::Counts => SqliteSynchronous::Normal,
        Purpose::Ledger => SqliteSynchronous::Full,
    };
    let busy_timeout = Duration::from_secs(purpose.lock_wait_seconds().into());
    options.clone().synchronous(synchronous).busy_timeout(busy_timeout).connect().await
}

/// WAL mode: readers do not wait for writers.
fn session(options: SqliteConnectOptions) -> SqliteConnectOptions {
    options.create_if_missing(true).journal_mode(SqliteJournalMode::Wal).disable_statement_logging()
}
