//! Why the database did not do what it was asked: a text for people, and a reason out of a few for metrics.
//!
//! Leaves to others: what is tried again (`retry`), counting (`metrics`).

use sqlx::error::DatabaseError as Cause;
use sqlx::mysql::MySqlDatabaseError;
use sqlx::sqlite::SqliteError;
use std::fmt;
use strum::{IntoStaticStr, VariantArray};

/// What went wrong, in one of few words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Reason {
    /// The time for the call was over.
    Timeout,
    /// The server cannot be reached, or went away.
    Unavailable,
    /// Two transactions waited for each other, and this one had to go.
    Deadlock,
    /// Another transaction held a lock for too long.
    LockWait,
    /// The server lets nobody in with these credentials, or not do this.
    Refused,
    /// A table, a column or a procedure is missing.
    Schema,
    /// The ledger has no such zone.
    NoZone,
    /// Anything else.
    Other,
}

/// Why a call failed. Its text holds no password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct DatabaseError {
    reason: Reason,
    text: String,
}

impl DatabaseError {
    /// One of a small fixed set of words, for metrics.
    pub fn reason(&self) -> &'static str {
        self.reason.into_str()
    }

    /// The same as a value.
    pub fn kind(&self) -> Reason {
        self.reason
    }

    pub(super) fn new(reason: Reason, text: impl fmt::Display) -> DatabaseError {
        DatabaseError { reason, text: text.to_string() }
    }

    /// The same, of a connection to this place, which this option names.
    pub(super) fn at(self, place: &impl fmt::Debug, option: &str) -> DatabaseError {
        DatabaseError { text: format!("{place:?} ({option}): {}", self.text), ..self }
    }

    pub(super) fn timeout() -> DatabaseError {
        DatabaseError::new(Reason::Timeout, "the database did not answer in time")
    }

    /// Whether the same may succeed a moment later.
    pub(super) fn is_transient(&self) -> bool {
        matches!(self.reason, Reason::Unavailable | Reason::Deadlock | Reason::LockWait)
    }

    /// Whether the connection is as good as before. After any other error it is closed: a primary that became
    /// read-only, for instance, is left by connecting to where the name points now.
    pub(super) fn spares_connection(&self) -> bool {
        matches!(self.reason, Reason::Deadlock | Reason::LockWait | Reason::NoZone)
    }
}

impl From<sqlx::Error> for DatabaseError {
    fn from(error: sqlx::Error) -> DatabaseError {
        let reason = match &error {
            sqlx::Error::Database(cause) => return from_cause(cause.as_ref()),
            sqlx::Error::Io(_) | sqlx::Error::WorkerCrashed | sqlx::Error::PoolClosed => Reason::Unavailable,
            sqlx::Error::Tls(_) | sqlx::Error::Configuration(_) => Reason::Refused,
            _ => Reason::Other,
        };
        match reason {
            Reason::Unavailable => {
                DatabaseError::new(reason, format!("the database cannot be reached: {error}"))
            }
            _ => DatabaseError::new(reason, error),
        }
    }
}

fn from_cause(cause: &dyn Cause) -> DatabaseError {
    let reason =
        match (cause.try_downcast_ref::<MySqlDatabaseError>(), cause.try_downcast_ref::<SqliteError>()) {
            (Some(error), _) => mysql_reason(error.number()),
            (_, Some(error)) => sqlite_reason(error),
            _ => Reason::Other,
        };
    match reason {
        Reason::Schema => {
            DatabaseError::new(reason, format!("{}: run weir-aggregator migrate", cause.message()))
        }
        _ => DatabaseError::new(reason, cause),
    }
}

/// Numbers that MySQL and MariaDB have in common, and a few of either.
fn mysql_reason(number: u16) -> Reason {
    match number {
        // Too many connections; shutting down; killed; the network failed in between.
        1040 | 1053 | 1077 | 1079 | 1080 | 1152 | 1158..=1161 | 1184 | 1203 | 1317 | 1927 | 3169 | 4031 => {
            Reason::Unavailable
        }
        1213 => Reason::Deadlock,
        // MariaDB says 1020 where a snapshot has become too old: repeated like a deadlock.
        1020 => Reason::Deadlock,
        1205 | 3572 => Reason::LockWait,
        // The statement ran for longer than the session allows: MariaDB, MySQL.
        1969 | 3024 => Reason::Timeout,
        // No such user, password, database for this user, right; read-only; the user is gone that made a procedure.
        1044 | 1045 | 1130 | 1142 | 1143 | 1227 | 1251 | 1275 | 1290 | 1370 | 1449 | 1524 | 1698 | 1836
        | 3118 | 3159 => Reason::Refused,
        // No such database, column, table, procedure.
        1049 | 1054 | 1146 | 1305 => Reason::Schema,
        // What the procedure itself says.
        31001 => Reason::NoZone,
        _ => Reason::Other,
    }
}

fn sqlite_reason(error: &SqliteError) -> Reason {
    let extended: i32 = error.code().and_then(|code| code.parse().ok()).unwrap_or_default();
    match extended & 0xff {
        5 | 6 => Reason::LockWait,
        3 | 8 | 14 | 23 => Reason::Refused,
        9 => Reason::Timeout,
        1 if error.message().starts_with("no such") => Reason::Schema,
        _ => Reason::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_a_metrics_label() {
        let all: Vec<_> = Reason::VARIANTS.iter().map(Reason::into_str).collect();
        assert_eq!(all, crate::telemetry::metrics::DATABASE_REASONS);
    }

    #[test]
    fn reasons() {
        for (number, expected) in [
            (1213, "deadlock"),
            (1205, "lock_wait"),
            (1040, "unavailable"),
            (1045, "refused"),
            (1146, "schema"),
            (1305, "schema"),
            (1449, "refused"),
            (31001, "no_zone"),
            (1969, "timeout"),
            (1062, "other"),
        ] {
            assert_eq!(mysql_reason(number).into_str(), expected, "{number}");
        }
        let lost: DatabaseError = sqlx::Error::Io(std::io::ErrorKind::UnexpectedEof.into()).into();
        assert!(lost.is_transient() && !lost.spares_connection());
        assert_eq!(lost.reason(), "unavailable");
        assert!(!DatabaseError::timeout().is_transient());
    }
}
