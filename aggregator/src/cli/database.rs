//! The database that a command works on.

use super::outcome::{UNUSABLE, fail};
use crate::database::{Database, DatabaseOptions};
use clap::Args;
use std::process::ExitCode;

/// The global database; for all commands.
#[derive(Args, Clone)]
pub struct DatabaseUrl {
    /// The global database: mysql://user:password@host/database (MariaDB too) or sqlite:///path/file.db. Best given by
    /// the variable, as arguments are seen by everyone.
    #[arg(
        long,
        env = "WEIR_DATABASE_URL",
        default_value = "",
        hide_default_value = true,
        hide_env_values = true,
        value_name = "URL"
    )]
    pub database_url: String,
}

/// The read replica; for commands that import.
#[derive(Args, Clone)]
pub struct DatabaseReadUrl {
    /// A read replica of the global database, for what is read regularly.
    #[arg(
        long,
        env = "WEIR_DATABASE_READ_URL",
        default_value = "",
        hide_default_value = true,
        hide_env_values = true,
        value_name = "URL"
    )]
    pub database_read_url: String,
}

/// No database is set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no database is set; set WEIR_DATABASE_URL or --database-url, as in mysql://user:password@host/database or \
         sqlite:///path/file.db"
)]
pub struct NoDatabase;

impl DatabaseUrl {
    /// For commands that count nothing, and so are of no region.
    pub fn options(self) -> Result<DatabaseOptions, NoDatabase> {
        match self.of_region(DatabaseReadUrl { database_read_url: String::new() }, String::new()) {
            Some(options) => Ok(options),
            None => Err(NoDatabase),
        }
    }

    /// For an aggregator; `None` if no database is set.
    pub fn of_region(self, replica: DatabaseReadUrl, region: String) -> Option<DatabaseOptions> {
        let read_url = Some(replica.database_read_url).filter(|url| !url.is_empty());
        Some(DatabaseOptions { url: self.database_url, read_url, region })
            .filter(|options| !options.url.is_empty())
    }
}

/// A URL may hold a password.
impl std::fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DatabaseUrl").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for DatabaseReadUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DatabaseReadUrl").finish_non_exhaustive()
    }
}

/// Opens the database that the arguments name, and says how `work` on it ended.
#[tokio::main(flavor = "current_thread")]
pub async fn with_database(
    url: DatabaseUrl,
    work: impl AsyncFnOnce(Database) -> anyhow::Result<()>,
) -> ExitCode {
    let options = match url.options() {
        Ok(options) => options,
        Err(error) => return fail(&error, UNUSABLE),
    };
    for warning in options.unverified() {
        eprintln!("warning: {warning}");
    }
    let database = match Database::open(&options) {
        Ok(database) => database,
        Err(error) => return fail(&error, UNUSABLE),
    };
    match work(database).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error, 1),
    }
}
