//! Brings a database's tables up to this version. Two at once are safe: one waits and then finds nothing to do.
//!
//! Leaves to others: the files (`migrations/`), printing (`main`).

use super::connection::Connection;
use super::connection::retry::{self, Execute};
use super::{Database, DatabaseError, Reason};
use sqlx::migrate::{Migrate, MigrateError, Migrator};
use sqlx::{Connection as _, Sqlite, Transaction};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Notes which migrations a database has; an own table, as other programs may share the database and use sqlx as well.
const TABLE: &str = "weir_migrations";
/// How long all of it may take.
const TIMEOUT: Duration = Duration::from_secs(600);
/// How long to wait for another that migrates.
const LOCK_SECONDS: u32 = 60;

/// What a migration did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Migrated {
    /// What was applied now: number and name.
    pub applied: Vec<String>,
    /// How many had been applied before.
    pub present: usize,
}

impl Database {
    /// Applies the migrations that the database does not have.
    pub async fn migrate(&self) -> Result<Migrated, DatabaseError> {
        let migrating = async {
            // Connects, with second tries: another that opens the same new SQLite file may be in the way.
            let connect = Execute("SELECT 1", &[]);
            retry::until(Instant::now() + TIMEOUT, self.primary(), connect).await?;
            let mut held = self.primary().hold().await?;
            // The connection has other settings afterwards and is not kept.
            match &mut held.connection {
                Connection::MySql(connection) => mysql(connection).await,
                Connection::Sqlite(connection) => sqlite(connection).await,
            }
        };
        timeout(TIMEOUT, migrating).await.unwrap_or_else(|_| Err(DatabaseError::timeout()))
    }
}

async fn mysql(connection: &mut sqlx::MySqlConnection) -> Result<Migrated, DatabaseError> {
    super::connection::mysql::be_patient(connection, LOCK_SECONDS).await?;
    // sqlx's own lock asks for an endless wait, which MariaDB takes for none.
    let locked: Option<i64> =
        sqlx::query_scalar("SELECT GET_LOCK(CONCAT('weir migrate ', LEFT(SHA2(DATABASE(), 256), 32)), ?)")
            .bind(LOCK_SECONDS)
            .fetch_one(&mut *connection)
            .await?;
    if locked != Some(1) {
        return Err(DatabaseError::new(Reason::LockWait, "another migration of this database does not end"));
    }
    // Closing the connection releases the lock.
    apply(sqlx::migrate!("../migrations/mysql"), connection).await
}

async fn sqlite(connection: &mut sqlx::SqliteConnection) -> Result<Migrated, DatabaseError> {
    let mut transaction: Transaction<'_, Sqlite> = connection.begin_with("BEGIN IMMEDIATE").await?;
    let migrated = apply(sqlx::migrate!("../migrations/sqlite"), &mut *transaction).await?;
    transaction.commit().await?;
    Ok(migrated)
}

async fn apply<C: Migrate>(mut migrator: Migrator, connection: &mut C) -> Result<Migrated, DatabaseError> {
    migrator.set_locking(false);
    migrator.dangerous_set_table_name(TABLE);
    connection.ensure_migrations_table(TABLE).await.map_err(explain)?;
    let present = connection.list_applied_migrations(TABLE).await.map_err(explain)?;
    migrator.run_direct(None, connection, false).await.map_err(explain)?;
    let applied = migrator
        .iter()
        .filter(|migration| present.iter().all(|present| present.version != migration.version))
        .map(|migration| format!("{:04} {}", migration.version, migration.description))
        .collect();
    Ok(Migrated { applied, present: present.len() })
}

fn explain(error: MigrateError) -> DatabaseError {
    match error {
        MigrateError::Execute(error) => error.into(),
        MigrateError::ExecuteMigration(error, version) => {
            let error = DatabaseError::from(error);
            DatabaseError::new(error.kind(), format!("migration {version:04}: {error}"))
        }
        MigrateError::Dirty(version) => DatabaseError::new(
            Reason::Schema,
            format!(
                "migration {version:04} was cut off; undo what it did, delete its row from {TABLE}, and migrate again"
            ),
        ),
        MigrateError::VersionMissing(version) => DatabaseError::new(
            Reason::Schema,
            format!("the database has migration {version:04}, which this version does not know: it is newer"),
        ),
        error => DatabaseError::new(Reason::Schema, error),
    }
}
