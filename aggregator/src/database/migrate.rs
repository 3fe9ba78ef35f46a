//! Applies the migrations of this version. Concurrent migrations are safe: the second waits and then has nothing to do.

use super::connection::retry::{self, Execute};
use super::dialect::MigrationReport;
use super::{Database, DatabaseError, Reason};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Deadline of the whole migration.
const TIMEOUT: Duration = Duration::from_secs(600);
/// How long to wait for the database's first answer, login included. A server that accepts connections may never send one.
const ANSWER: Duration = Duration::from_secs(30);
impl Database {
    /// Applies the missing migrations.
    pub async fn migrate(&self) -> Result<MigrationReport, DatabaseError> {
        let answered = async {
            self.primary().create().await?;
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
        let migrated = timeout(TIMEOUT, held.connection.migrate()).await;
        migrated
            .unwrap_or_else(|_| Err(DatabaseError::timeout()))
            .map_err(|error| self.primary().explain(error))
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
