//! What a change did, and the renewal of a database that was set back.

use super::random_life;
use crate::database::DatabaseError;
use crate::database::connection::{Arg, Connection};
use weir_core::control::book::{Edition, MAX_REVISION, first_revision};
use weir_core::model::time::UnixMs;

/// Life and revision.
const RENEW: &str = "UPDATE weir_control_edition SET life = ?, revision = ? WHERE id = 1";

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Something was said.
    Set,
    /// Nothing is said any more.
    Deleted,
}

impl Action {
    pub(super) fn number(self) -> u64 {
        match self {
            Action::Set => 1,
            Action::Deleted => 2,
        }
    }
}

/// Gives a database that was set back another life, with revisions that were never used.
pub(super) async fn renew(
    connection: &mut Connection,
    found: Edition,
    known: u64,
    now: UnixMs,
) -> Result<Edition, DatabaseError> {
    let revision = found.revision.max(known).max(first_revision(now)).min(MAX_REVISION - 1) + 1;
    let renewed = Edition { life: random_life(), revision, ..found };
    connection.execute(RENEW, &[Arg::Int(renewed.life), Arg::Int(revision)]).await?;
    Ok(renewed)
}
