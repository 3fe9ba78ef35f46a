//! Applies the migrations of this version. Concurrent migrations are safe: the second waits and then has nothing to do.

use super::connection::Connection;
use super::connection::retry::{self, Execute};
use super::{Database, DatabaseError, Reason};
use sqlx::migrate::{Migrate, MigrateError, Migrator};
use sqlx::mysql::MySqlDatabaseError;
use sqlx::{AssertSqlSafe, Connection as _, Sqlite, Transaction};
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
    apply_or_repair(prepared(sqlx::migrate!("../migrations/mysql")), connection).await
}

/// MySQL and MariaDB commit before and after each statement that changes a table, so the note of a migration that failed remains. Each
/// migration is one statement, which changes all or nothing: one that failed is applied again, and of one whose end is unknown, the
/// server's answer tells whether it had been applied.
async fn apply_or_repair(
    migrator: Migrator,
    connection: &mut sqlx::MySqlConnection,
) -> Result<Migrated, DatabaseError> {
    connection.ensure_migrations_table(TABLE).await.map_err(explain)?;
    let interrupted = connection.dirty_version(TABLE).await.map_err(explain)?;
    if let Some(version) = interrupted {
        forget(connection, version).await?;
    }
    let failed = match apply(&migrator, connection).await {
        Err(MigrateError::ExecuteMigration(error, version)) => (error, version),
        applied => return applied.map_err(explain),
    };
    let (error, version) = failed;
    // If this fails as well, the connection is lost, and the next migration does it.
    let forgotten = forget(connection, version).await;
    let migration = migrator.iter().find(|one| one.version == version);
    match migration.filter(|_| interrupted == Some(version) && forgotten.is_ok() && had_been_applied(&error))
    {
        Some(migration) => {
            connection.skip(TABLE, migration).await.map_err(explain)?;
            apply(&migrator, connection).await.map_err(explain)
        }
        None => Err(explain(MigrateError::ExecuteMigration(error, version))),
    }
}

/// Removes the note of a migration that did not end.
async fn forget(connection: &mut sqlx::MySqlConnection, version: i64) -> Result<(), sqlx::Error> {
    let forget = format!("DELETE FROM {TABLE} WHERE version = ? AND success = FALSE");
    sqlx::query(AssertSqlSafe(forget)).bind(version).execute(connection).await.map(drop)
}

/// Whether the server refused a statement because what it makes exists: a table, a column, an index or a procedure.
fn had_been_applied(error: &sqlx::Error) -> bool {
    let cause = error.as_database_error().and_then(|error| error.try_downcast_ref::<MySqlDatabaseError>());
    cause.is_some_and(|cause| matches!(cause.number(), 1050 | 1060 | 1061 | 1304))
}

async fn sqlite(connection: &mut sqlx::SqliteConnection) -> Result<Migrated, DatabaseError> {
    let mut transaction: Transaction<'_, Sqlite> = connection.begin_with("BEGIN IMMEDIATE").await?;
    let migrator = prepared(sqlx::migrate!("../migrations/sqlite"));
    let migrated = apply(&migrator, &mut *transaction).await.map_err(explain)?;
    transaction.commit().await?;
    Ok(migrated)
}

fn prepared(mut migrator: Migrator) -> Migrator {
    migrator.set_locking(false);
    migrator.dangerous_set_table_name(TABLE);
    migrator
}

async fn apply<C: Migrate>(migrator: &Migrator, connection: &mut C) -> Result<Migrated, MigrateError> {
    connection.ensure_migrations_table(TABLE).await?;
    let present = connection.list_applied_migrations(TABLE).await?;
    migrator.run_direct(None, connection, false).await?;
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
        MigrateError::VersionMissing(version) => DatabaseError::new(
            Reason::Schema,
            format!(
                "the database has migration {version:04}, which this version does not have: use a newer version"
            ),
        ),
        error => DatabaseError::new(Reason::Schema, error),
    }
}
