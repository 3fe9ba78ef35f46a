//! Migrations of SQLite, all in one transaction.

use super::errors::explain;
use crate::database::dialect::migrations::{self, MigrationReport, apply, prepared};
use crate::database::error::DatabaseError;
use sqlx::{Connection as _, Sqlite, Transaction};

/// Applies the missing migrations.
pub(super) async fn migrate(
    connection: &mut sqlx::SqliteConnection,
) -> Result<MigrationReport, DatabaseError> {
    let mut transaction: Transaction<'_, Sqlite> =
        connection.begin_with("BEGIN IMMEDIATE").await.map_err(explain)?;
    let migrator = prepared(sqlx::migrate!("../migrations/sqlite"));
    let migrated =
        apply(&migrator, &mut *transaction).await.map_err(|error| migrations::explain(error, explain))?;
    transaction.commit().await.map_err(explain)?;
    Ok(migrated)
}
