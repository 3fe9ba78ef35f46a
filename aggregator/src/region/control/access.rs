//! Live control in the database, for operators: each call waits for a turn of its workspace.

use super::Live;
use super::turns::Turn;
use crate::controls::{AuditEntry, AuditFilter, ControlFilter};
use crate::database::{DatabaseError, Reason};
use crate::region::global::Global;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tracing::warn;
use weir_core::control::change::{Change, ChangeOutcome, StoredControl};

/// Longest wait for a turn to call the database.
const MAX_WAIT: Duration = Duration::from_secs(2);
/// Timeout of a database call. It is longer than the wait for a lock, which is 3 s and, as the
/// database checks once a second, up to 4 s. A caller that waited for a lock in vain therefore gets the error `Locked`.
const WITHIN: Duration = Duration::from_secs(5);
/// Least time between two warnings that the database does not answer.
pub(super) const BETWEEN_WARNINGS: Duration = Duration::from_secs(5);

/// The right to make one call about a workspace.
pub struct Access<'a> {
    live: &'a Arc<Live>,
    global: &'a Arc<Global>,
    _turn: Turn<'a>,
}

/// Why live control was neither read nor changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// No database is configured.
    #[error("no database is set (--database-url), so live control is not available")]
    NoDatabase,
    /// Too many calls about the workspace wait.
    #[error("too many reads and changes of this workspace's live control wait; try again later")]
    Waits,
    /// Another change held a lock.
    #[error(
        "other changes of live control were in progress for too long, and this one was not made; try again"
    )]
    Locked,
    /// The database lacks tables.
    #[error(
        "the database lacks tables of this version; the controls in force stay as they are; its operator has to run weir-aggregator \
         migrate"
    )]
    LacksTables,
    /// The database refuses the aggregator's account.
    #[error(
        "the database refuses the aggregator's account; the controls in force stay as they are; its operator has to look into the \
         aggregator's log"
    )]
    Refused,
    /// The database failed, or did not answer in time.
    #[error("the database does not answer; the controls in force stay as they are; try again later")]
    Unavailable,
}

impl Live {
    /// Waits for a turn of a workspace to call the database.
    pub async fn access<'a>(
        self: &'a Arc<Live>,
        global: Option<&'a Arc<Global>>,
        workspace: &str,
    ) -> Result<Access<'a>, AccessError> {
        let global = global.ok_or(AccessError::NoDatabase)?;
        let turn = timeout(MAX_WAIT, self.turns.take(workspace)).await.ok().flatten();
        Ok(Access { live: self, global, _turn: turn.ok_or(AccessError::Waits)? })
    }
}

impl Access<'_> {
    /// The controls that `filter` selects, by revision.
    pub async fn controls(&self, filter: &ControlFilter) -> Result<Vec<StoredControl>, AccessError> {
        let found = self.global.database.controls(filter, self.live.hub.now(), WITHIN).await;
        found.map_err(|error| self.failed(&error))
    }

    /// The changes that `filter` selects, the newest first.
    pub async fn audit(&self, filter: &AuditFilter) -> Result<Vec<AuditEntry>, AccessError> {
        let found = self.global.database.control_audit(filter, WITHIN).await;
        found.map_err(|error| self.failed(&error))
    }

    /// Makes a change; see [`Live::change`].
    pub async fn change(&self, change: Change) -> Result<Option<ChangeOutcome>, AccessError> {
        let changed = self.live.change(self.global, &[change], WITHIN).await;
        Ok(changed.map_err(|error| self.failed(&error))?.into_iter().next())
    }

    fn failed(&self, error: &DatabaseError) -> AccessError {
        // The database's error may name its address, so it is only logged.
        if let Some(held_back) = self.live.warnings.pass() {
            warn!(%error, held_back, "could not read or change live control");
        }
        match error.kind() {
            Reason::LockWait | Reason::Deadlock => AccessError::Locked,
            Reason::Schema => AccessError::LacksTables,
            Reason::Refused => AccessError::Refused,
            _ => AccessError::Unavailable,
        }
    }
}
