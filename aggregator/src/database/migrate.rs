//! Applies the migrations of this version. Concurrent migrations are safe: the second waits and then has nothing to do.

use super::connection::Connection;
use super::connection::retry::{self, Execute};
use super::{Database, DatabaseError, Reason};
use sqlx::migrate::{Migrate, MigrateError, Migrator};
use sqlx::{Connection as _, Sqlite, Transaction};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// The table of applied migrations. Its name differs from sqlx's default, because other programs that use sqlx may
/// share the database.
const TABLE: &str = "weir_migrations";
/// Deadline of the whole migration.
const TIMEOUT: Duration = Duration::from_secs(600);
/// How long to wait for the database's first answer, login included. A server that accepts connections may never send one.
const ANSWER: Duration = Duration::from_secs(30);
/// How long to wait for another migration.
const LOCK_SECONDS: u32 = 60;

/// The result of a migration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Migrated {
    /// The migrations applied now: number and name.
    pub applied: Vec<String>,
    /// Number of migrations applied before.
    pub present: usize,
}

impl Database {
    /// Applies the missing migrations.
    pub async fn migrate(&self) -> Result<Migrated, DatabaseError> {
        let answered = async {
            // Connects with retries, because another process that opens the same new SQLite file may hold its lock.
            let connect = Execute("SELECT 1", &[]);
            retry::until(Instant::now() + ANSWER, self.primary(), connect).await?;
            self.primary().hold().await
        };
        let mut held = match timeout(ANSWER, answered).await {
            Ok(Err(error)) if error.kind() == Reason::Timeout => return Err(unanswered()),
            Ok(answered) => answered?,
            Err(_) => return Err(unanswered()),
        };
        let migrating = async {
            // The migration changes the session's settings, so the connection is not reused.
            match &mut held.connection {
                Connection::MySql(connection) => mysql(connection).await,
                Connection::Sqlite(connection) => sqlite(connection).await,
            }
        };
        timeout(TIMEOUT, migrating).await.unwrap_or_else(|_| Err(DatabaseError::timeout()))
    }
}

fn unanswered() -> DatabaseError {
    let seconds = ANSWER.as_secs();
    DatabaseError::new(
        Reason::Timeout,
        format!(
            "the database did not answer within {seconds} s; check the address in --database-url or WEIR_DATABASE_URL, and that a MySQL or \
             MariaDB that is up listens there"
        ),
    )
}

async fn mysql(connection: &mut sqlx::MySqlConnection) -> Result<Migrated, DatabaseError> {
    super::connection::mysql::be_patient(connection, LOCK_SECONDS).await?;
    // sqlx's own lock waits without a limit, spelled in a way that MariaDB reads as no wait at all.
    let locked: Option<i64> =
        sqlx::query_scalar("SELECT GET_LOCK(CONCAT('weir migrate ', LEFT(SHA2(DATABASE(), 256), 32)), ?)")
            .bind(LOCK_SECONDS)
            .fetch_one(&mut *connection)
            .await?;
    if locked != Some(1) {
        return Err(DatabaseError::new(
            Reason::LockWait,
            "another migration of this database did not end in time",
        ));
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
                "migration {version:04} was interrupted; undo its changes, delete its row from {TABLE}, and migrate again"
            ),
        ),
        MigrateError::VersionMissing(version) => DatabaseError::new(
            Reason::Schema,
            format!(
                "the database has migration {version:04}, which this version does not have: use a newer version"
            ),
        ),
        error => DatabaseError::new(Reason::Schema, error),
    }
}
