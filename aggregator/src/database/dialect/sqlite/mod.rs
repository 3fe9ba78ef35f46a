//! SQLite.

mod errors;
mod ledger;
mod migrate;
mod statements;

pub use statements::{COUNT, ENOUGH, STATEMENTS};

use super::arg::Arg;
use super::link::{Call, Columns, FileId, Kind, Link, Named, Server, Take, UrlError};
use super::migrations::MigrationReport;
use super::purpose::Purpose;
use super::statements::Statements;
use super::through_sqlx::{prepared, through_sqlx};
use super::velocity::Velocity;
use crate::database::error::{DatabaseError, Reason};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteRow, SqliteSynchronous};
use sqlx::{ConnectOptions, Row as _};
use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

pub(super) const KIND: Kind = Kind { schemes: &["sqlite"], server };

/// The mode of new files, which SQLite uses too.
const FILE_MODE: u32 = 0o644;
const MISSING: &str =
    "there is no such file: restore it, or run weir-aggregator migrate to make a new database";

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
            match connect(&self.0, purpose).await {
                Ok(connection) => Ok(Box::new(SqliteLink(connection)) as Box<dyn Link>),
                Err(_) if self.is_missing().await => Err(DatabaseError::new(Reason::Schema, MISSING)),
                Err(error) => Err(errors::explain(error)),
            }
        })
    }

    fn create(&self) -> Call<'_, ()> {
        Box::pin(async move {
            let mut options = tokio::fs::OpenOptions::new();
            let made = options.append(true).create(true).mode(FILE_MODE).open(self.0.get_filename()).await;
            made.map(drop).map_err(|error| {
                DatabaseError::new(Reason::Refused, format!("unable to open the database file: {error}"))
            })
        })
    }

    fn file(&self) -> Named<'_> {
        Box::pin(async move {
            let file = tokio::fs::metadata(self.0.get_filename()).await.ok()?;
            Some(FileId { device: file.dev(), inode: file.ino() })
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

impl Sqlite {
    async fn is_missing(&self) -> bool {
        matches!(tokio::fs::try_exists(self.0.get_filename()).await, Ok(false))
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

/// WAL mode: readers do not wait for writers. A file that is missing was lost, or its path is mistyped, so only a migration makes one.
fn session(options: SqliteConnectOptions) -> SqliteConnectOptions {
    options.create_if_missing(false).journal_mode(SqliteJournalMode::Wal).disable_statement_logging()
}
