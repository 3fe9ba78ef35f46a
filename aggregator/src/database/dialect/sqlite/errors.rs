//! What errors of SQLite mean.

use crate::database::error::{DatabaseError, Reason};
use sqlx::error::DatabaseError as _;
use sqlx::sqlite::SqliteError;

/// Explains an error of the driver.
pub(super) fn explain(error: sqlx::Error) -> DatabaseError {
    DatabaseError::of_driver(error, |cause| cause.try_downcast_ref().map_or(Reason::Other, reason))
}

fn reason(error: &SqliteError) -> Reason {
    let extended: i32 = error.code().and_then(|code| code.parse().ok()).unwrap_or_default();
    match extended & 0xff {
        5 | 6 => Reason::LockWait,
        3 | 8 | 14 | 23 => Reason::Refused,
        9 => Reason::Timeout,
        1 if error.message().starts_with("no such") => Reason::Schema,
        _ => Reason::Other,
    }
}
