//! Migrations of MySQL and MariaDB, which commit each statement that changes a table.

use super::errors::{explain, had_been_applied};
use crate::database::dialect::migrations::{self, MigrationReport, TABLE, apply, prepared};
use crate::database::error::{DatabaseError, Reason};
use sqlx::migrate::{Migrate, MigrateError, Migrator};
use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, Executor};

/// How long to wait for another migration.
const LOCK_SECONDS: u32 = 60;

/// Applies the missing migrations.
pub(super) async fn migrate(
    connection: &mut sqlx::MySqlConnection,
) -> Result<MigrationReport, DatabaseError> {
    be_patient(connection, LOCK_SECONDS).await?;
    // sqlx's own lock waits without a limit, spelled in a way that MariaDB reads as no wait at all.
    let locked: Option<i64> =
        sqlx::query_scalar("SELECT GET_LOCK(CONCAT('weir migrate ', LEFT(SHA2(DATABASE(), 256), 32)), ?)")
            .bind(LOCK_SECONDS)
            .fetch_one(&mut *connection)
            .await
            .map_err(explain)?;
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
/// server's answer shows whether it had been applied.
async fn apply_or_repair(
    migrator: Migrator,
    connection: &mut sqlx::MySqlConnection,
) -> Result<MigrationReport, DatabaseError> {
    connection.ensure_migrations_table(TABLE).await.map_err(of_migration)?;
    let interrupted = connection.dirty_version(TABLE).await.map_err(of_migration)?;
    if let Some(version) = interrupted {
        forget(connection, version).await.map_err(explain)?;
    }
    let failed = match apply(&migrator, connection).await {
        Err(MigrateError::ExecuteMigration(error, version)) => (error, version),
        applied => return applied.map_err(of_migration),
    };
    let (error, version) = failed;
    // If this fails as well, the connection is lost, and the next migration does it.
    let forgotten = forget(connection, version).await;
    let migration = migrator.iter().find(|one| one.version == version);
    match migration.filter(|_| interrupted == Some(version) && forgotten.is_ok() && had_been_applied(&error))
    {
        Some(migration) => {
            connection.skip(TABLE, migration).await.map_err(of_migration)?;
            apply(&migrator, connection).await.map_err(of_migration)
        }
        None => Err(of_migration(MigrateError::ExecuteMigration(error, version))),
    }
}

/// Removes the note of a migration that did not end.
async fn forget(connection: &mut sqlx::MySqlConnection, version: i64) -> Result<(), sqlx::Error> {
    let forget = format!("DELETE FROM {TABLE} WHERE version = ? AND success = FALSE");
    sqlx::query(AssertSqlSafe(forget)).bind(version).execute(connection).await.map(drop)
}

fn of_migration(error: MigrateError) -> DatabaseError {
    migrations::explain(error, explain)
}

/// Session settings for a migration: no statement timeout, and a long wait for locks.
async fn be_patient(connection: &mut MySqlConnection, seconds: u32) -> Result<(), DatabaseError> {
    let settings = format!(
        "SET SESSION lock_wait_timeout = {seconds}, SESSION innodb_lock_wait_timeout = {seconds}
             /*M!100101 , SESSION max_statement_time = 0 */
             /*!80000 , SESSION max_execution_time = 0 */"
    );
    connection.execute(sqlx::raw_sql(AssertSqlSafe(settings))).await.map_err(explain)?;
    Ok(())
}
