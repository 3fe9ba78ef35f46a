//! Deletes deleted or expired controls, and old audit entries.

use super::{Begin, begin, edition, end, subtracted};
use crate::database::connection::retry::{self, Execute, Work};
use crate::database::connection::{Arg, Connection};
use crate::database::{Database, DatabaseError};
use std::time::Duration;
use tokio::time::Instant;
use weir_core::model::time::UnixMs;

/// Deadline of one batch.
const BATCH_TIMEOUT: Duration = Duration::from_secs(60);

/// Number of rows that [`Database::cleanup_controls`] deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tidied {
    /// Deleted or expired controls.
    pub controls: u64,
    /// Audit entries.
    pub audited: u64,
}

impl Database {
    /// Deletes controls that were deleted or expired more than `retention` ago, and audit entries older than
    /// `audit_retention`. Deletes `batch` rows at a time.
    pub async fn cleanup_controls(
        &self,
        retention: Duration,
        audit_retention: Duration,
        batch: u32,
        now: UnixMs,
    ) -> Result<Tidied, DatabaseError> {
        let ago =
            |age: Duration| UnixMs(now.0.saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX)));
        let batch = u64::from(batch.max(1));
        let mut tidied = Tidied::default();
        loop {
            let drop = DropOver { before: ago(retention), now, batch };
            let rows = retry::until(Instant::now() + BATCH_TIMEOUT, self.primary(), drop).await?;
            tidied.controls += rows;
            if rows < batch {
                break;
            }
        }
        let args = [Arg::Int(ago(audit_retention).0), Arg::Int(batch)];
        loop {
            let statement = self.primary().statements().control_audit_cleanup;
            let delete = Execute(statement, &args);
            let rows = retry::until(Instant::now() + BATCH_TIMEOUT, self.primary(), delete).await?;
            tidied.audited += rows;
            if rows < batch {
                return Ok(tidied);
            }
        }
    }
}

struct DropOver {
    before: UnixMs,
    now: UnixMs,
    batch: u64,
}

impl Work for DropOver {
    type Output = u64;

    async fn run(&mut self, connection: &mut Connection) -> Result<u64, DatabaseError> {
        begin(connection, Begin::Write).await?;
        let lock = connection.statements().control_edition_lock;
        let result = match edition(connection, lock, self.now).await {
            Ok(_) => drop_over(connection, self.before, self.batch).await,
            Err(error) => Err(error),
        };
        end(connection, result).await
    }
}

/// Drops a batch of controls that were deleted or expired before a time, lowest revisions first, and raises the floor. Subtracts
/// them from the edition's digest.
/// The caller must hold the lock on the edition.
pub(super) async fn drop_over(
    connection: &mut Connection,
    before: UnixMs,
    most: u64,
) -> Result<u64, DatabaseError> {
    let UnixMs(before_ms) = before;
    let before = Arg::Int(before_ms);
    let statements = connection.statements().controls;
    let mut last = None;
    let over = [before, before, Arg::Int(most)];
    connection.each(statements.last_over, &over, &mut |row| last = row.number(0)).await?;
    let Some(last) = last else { return Ok(0) };
    // One condition for both statements, so that the digest loses exactly the rows that the table loses.
    let condition = format!(
        "revision <= {last}
         AND ((deleted = 1 AND updated_at <= {before_ms})
              OR (deleted = 0 AND expires_at > 0 AND expires_at <= {before_ms}))"
    );
    connection.execute_text(subtracted(&condition)).await?;
    let dropped = connection.execute_text(format!("{}{condition}", statements.delete)).await?;
    let raised = [Arg::Int(last), Arg::Int(last), before, before];
    connection.execute(statements.raise_floor, &raised).await?;
    Ok(dropped)
}
