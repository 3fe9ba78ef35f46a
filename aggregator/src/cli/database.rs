//! The database options of the commands.

use super::outcome::{UNUSABLE, fail, print_error};
use crate::database::{Database, DatabaseOptions};
use clap::Args;
use std::process::ExitCode;

/// The option for the database in which regions meet.
#[derive(Args, Clone)]
pub struct DatabaseUrl {
    /// URL of the database in which regions meet: mysql://user:password@host/database (MariaDB too) or
    /// sqlite:///path/file.db. Use the variable, because other users can read a process's arguments.
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

/// The option for the read replica.
#[derive(Args, Clone)]
pub struct DatabaseReadUrl {
    /// URL of a read replica of the database, for the full import once a minute.
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

/// No database is configured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no database is configured; set WEIR_DATABASE_URL or --database-url, as in mysql://user:password@host/database or \
         sqlite:///path/file.db"
)]
pub struct NoDatabase;

impl DatabaseUrl {
    /// For commands that do not count and therefore have no region.
    pub fn options(self) -> Result<DatabaseOptions, NoDatabase> {
        match self.of_region(DatabaseReadUrl { database_read_url: String::new() }, String::new()) {
            Some(options) => Ok(options),
            None => Err(NoDatabase),
        }
    }

    /// For an aggregator; `None` if no database is configured.
    pub fn of_region(self, replica: DatabaseReadUrl, region: String) -> Option<DatabaseOptions> {
        let read_url = Some(replica.database_read_url).filter(|url| !url.is_empty());
        Some(DatabaseOptions { url: self.database_url, read_url, region })
            .filter(|options| !options.url.is_empty())
    }
}

/// The URL may contain a password.
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

/// Opens the configured database, runs `work` on it, and reports the result.
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
        print_error(&format_args!("warning: {warning}"));
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
