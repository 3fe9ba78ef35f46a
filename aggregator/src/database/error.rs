//! Database errors: a text for operators, and a reason from a small set for metrics.

use sqlx::error::DatabaseError as Cause;
use sqlx::mysql::MySqlDatabaseError;
use sqlx::sqlite::SqliteError;
use std::fmt;
use strum::{IntoStaticStr, VariantArray};

/// The class of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Reason {
    /// The deadline of the call passed.
    Timeout,
    /// The server is unreachable, or the connection was lost.
    Unavailable,
    /// The server chose this transaction as the victim of a deadlock.
    Deadlock,
    /// Another transaction held a lock for too long.
    LockWait,
    /// The server rejects the credentials, or denies the operation.
    Refused,
    /// A table, a column or a procedure is missing.
    Schema,
    /// The ledger has no such zone.
    NoZone,
    /// Anything else.
    Other,
}

/// Why a call failed. The text never contains a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct DatabaseError {
    reason: Reason,
    text: String,
}

impl DatabaseError {
    /// The label of the reason in metrics.
    pub fn reason(&self) -> &'static str {
        self.reason.into_str()
    }

    /// The reason.
    pub fn kind(&self) -> Reason {
        self.reason
    }

    pub(super) fn new(reason: Reason, text: impl fmt::Display) -> DatabaseError {
        DatabaseError { reason, text: text.to_string() }
    }

    /// Prefixes the text with the place of the connection and the option that configured it.
    pub(super) fn at(self, place: &impl fmt::Debug, option: &str) -> DatabaseError {
        DatabaseError { text: format!("{place:?} ({option}): {}", self.text), ..self }
    }

    pub(super) fn timeout() -> DatabaseError {
        DatabaseError::new(Reason::Timeout, "the database did not answer in time")
    }

    /// Whether the same call may succeed a moment later.
    pub(super) fn is_transient(&self) -> bool {
        matches!(self.reason, Reason::Unavailable | Reason::Deadlock | Reason::LockWait)
    }

    /// Whether the connection can be reused. After any other error it is closed. For example, after a failover the old
    /// primary is read-only, and a new connection resolves the name again.
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

/// Error numbers of MySQL and MariaDB, most of them shared.
fn mysql_reason(number: u16) -> Reason {
    match number {
        // Too many connections; shutdown; killed; network failure.
        1040 | 1053 | 1077 | 1079 | 1080 | 1152 | 1158..=1161 | 1184 | 1203 | 1317 | 1927 | 3169 | 4031 => {
            Reason::Unavailable
        }
        1213 => Reason::Deadlock,
        // MariaDB returns 1020 if a snapshot has become too old. The call is retried like after a deadlock.
        1020 => Reason::Deadlock,
        1205 | 3572 => Reason::LockWait,
        // Statement timeout: MariaDB, MySQL.
        1969 | 3024 => Reason::Timeout,
        // Unknown user, wrong password, missing privilege, read-only server, or the procedure's definer is gone.
        1044 | 1045 | 1130 | 1142 | 1143 | 1227 | 1251 | 1275 | 1290 | 1370 | 1449 | 1524 | 1698 | 1836
        | 3118 | 3159 => Reason::Refused,
        // Unknown database, column, table or procedure.
        1049 | 1054 | 1146 | 1305 => Reason::Schema,
        // Raised by the procedure.
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
