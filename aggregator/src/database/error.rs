//! Database errors: a text for operators, and a reason from a small set for metrics.

use sqlx::error::DatabaseError as Cause;
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

    /// Explains an error of a driver; `reason_of` classifies what the database answered.
    pub(super) fn of_driver(error: sqlx::Error, reason_of: fn(&dyn Cause) -> Reason) -> DatabaseError {
        let reason = match &error {
            sqlx::Error::Database(cause) => reason_of(cause.as_ref()),
            sqlx::Error::Io(_) | sqlx::Error::WorkerCrashed | sqlx::Error::PoolClosed => Reason::Unavailable,
            sqlx::Error::Tls(_) | sqlx::Error::Configuration(_) => Reason::Refused,
            _ => Reason::Other,
        };
        match (&error, reason) {
            (sqlx::Error::Database(cause), Reason::Schema) => {
                DatabaseError::new(reason, format!("{}: run weir-aggregator migrate", cause.message()))
            }
            (sqlx::Error::Database(cause), _) => DatabaseError::new(reason, cause),
            (_, Reason::Unavailable) => {
                DatabaseError::new(reason, format!("the database cannot be reached: {error}"))
            }
            _ => DatabaseError::new(reason, error),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_a_metrics_label() {
        let all: Vec<_> = Reason::VARIANTS.iter().map(Reason::into_str).collect();
        assert_eq!(all, crate::telemetry::metrics::DATABASE_REASONS);
    }

    #[test]
    fn a_timeout_is_final() {
        assert!(!DatabaseError::timeout().is_transient());
    }
}
