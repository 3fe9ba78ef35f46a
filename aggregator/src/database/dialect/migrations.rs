//! Migrations as sqlx applies them, the same for all drivers.

use crate::database::error::{DatabaseError, Reason};
use sqlx::migrate::{Migrate, MigrateError, Migrator};

/// The table of applied migrations. Its name differs from sqlx's default, because other programs that use sqlx may
/// share the database.
pub(super) const TABLE: &str = "weir_migrations";

/// The result of a migration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Migrated {
    /// The migrations applied now: number and name.
    pub applied: Vec<String>,
    /// Number of migrations applied before.
    pub present: usize,
}

pub(super) fn prepared(mut migrator: Migrator) -> Migrator {
    migrator.set_locking(false);
    migrator.dangerous_set_table_name(TABLE);
    migrator
}

pub(super) async fn apply<C: Migrate>(
    migrator: &Migrator,
    connection: &mut C,
) -> Result<Migrated, MigrateError> {
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

/// Explains an error; `of` explains one of the driver.
pub(super) fn explain(error: MigrateError, of: fn(sqlx::Error) -> DatabaseError) -> DatabaseError {
    match error {
        MigrateError::Execute(error) => of(error),
        MigrateError::ExecuteMigration(error, version) => {
            let error = of(error);
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
