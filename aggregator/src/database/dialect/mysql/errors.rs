//! What errors of MySQL and MariaDB mean.

use crate::database::error::{DatabaseError, Reason};
use sqlx::mysql::MySqlDatabaseError;

/// Explains an error of the driver.
pub(super) fn explain(error: sqlx::Error) -> DatabaseError {
    DatabaseError::of_driver(error, |cause| {
        let number = cause.try_downcast_ref().map(MySqlDatabaseError::number);
        number.map_or(Reason::Other, reason)
    })
}

/// Explains a refused password: without TLS, the client must not send a password that the server needs in plain text.
pub(super) fn explain_login(error: sqlx::Error) -> DatabaseError {
    // The error text of the driver; the driver has no error code for this case.
    if error.to_string().contains("RSA auth backend") {
        let text = "the server requires TLS for the password and does not offer TLS";
        return DatabaseError::new(Reason::Refused, format!("{text}: enable TLS on the server"));
    }
    explain(error)
}

/// Whether the server refused a statement because what it makes exists: a table, a column, an index or a procedure.
pub(super) fn had_been_applied(error: &sqlx::Error) -> bool {
    let cause = error.as_database_error().and_then(|error| error.try_downcast_ref::<MySqlDatabaseError>());
    cause.is_some_and(|cause| matches!(cause.number(), 1050 | 1060 | 1061 | 1304))
}

/// Error numbers of MySQL and MariaDB, most of them shared.
fn reason(number: u16) -> Reason {
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

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(reason(number).into_str(), expected, "{number}");
        }
        let lost = explain(sqlx::Error::Io(std::io::ErrorKind::UnexpectedEof.into()));
        assert!(lost.is_transient() && !lost.spares_connection());
        assert_eq!(lost.reason(), "unavailable");
    }
}
