//! Migrations as sqlx applies them, the same for all drivers.

use crate::database::error::{DatabaseError, Reason};
use sqlx::migrate::{Migrate, MigrateError, Migrator};

/// The table of applied migrations. Its name differs from sqlx's default, because other programs that use sqlx may
/// share the database.
pub(super) const TABLE: &str = "weir_migrations";

/// The result of a migration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MigrationReport {
    /// The migrations applied now: number and name.
    pub applied: Vec<String>,
    /// Number of migrations applied before.
    pub present: usize,
    /// The highest of those that this version does not have: a newer version has applied it.
    pub newer: Option<i64>,
}

pub(super) fn prepared(mut migrator: Migrator) -> Migrator {
    migrator.set_locking(false);
    // A newer version's tables serve this one too, as both run side by side during an upgrade; a table that does not is found by the
    // check of the schema.
    migrator.set_ignore_missing(true);
    migrator.dangerous_set_table_name(TABLE);
    migrator
}

pub(super) async fn apply<C: Migrate>(
    migrator: &Migrator,
    connection: &mut C,
) -> Result<MigrationReport, MigrateError> {
    connection.ensure_migrations_table(TABLE).await?;
    let present = connection.list_applied_migrations(TABLE).await?;
    migrator.run_direct(None, connection, false).await?;
    let applied = migrator
        .iter()
        .filter(|migration| present.iter().all(|present| present.version != migration.version))
        .map(|migration| format!("{:04} {}", migration.version, migration.description))
        .collect();
    let is_known = |version: i64| migrator.iter().any(|migration| migration.version == version);
    let newer = present.iter().map(|present| present.version).filter(|version| !is_known(*version)).max();
    Ok(MigrationReport { applied, present: present.len(), newer })
}

/// Explains an error; `of` explains one of the driver.
pub(super) fn explain(error: MigrateError, of: fn(sqlx::Error) -> DatabaseError) -> DatabaseError {
    match error {
        MigrateError::Execute(error) => of(error),
        MigrateError::ExecuteMigration(error, version) => {
            let error = of(error);
            DatabaseError::new(error.kind(), format!("migration {version:04}: {error}"))
        }
        error => DatabaseError::new(Reason::Schema, error),
    }
}
