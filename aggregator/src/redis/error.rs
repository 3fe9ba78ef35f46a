//! Errors of the regional store, in a few kinds and without secrets.

use redis::{ErrorKind, RedisError, ServerError};
use weir_core::replication::Failure;

const NO_PRIMARY: &str = "no Sentinel names a primary of that name which is up";
/// Longest part of a server's error text that is kept, in bytes.
const MAX_DETAIL_BYTES: usize = 160;

/// Why a call, or one cell of it, failed. The store may have executed it nevertheless.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No answer within the given time. The store may still execute the call later.
    #[error("the regional store did not answer in time")]
    Timeout,
    /// There is no connection, or it broke before the answer arrived.
    #[error("the regional store is unavailable")]
    Unavailable,
    /// A connection failed; the cause, if it is known.
    #[error("the regional store is unavailable: {0}")]
    Unreachable(&'static str),
    /// The maximum number of requests is already in flight.
    #[error("too many requests are in flight to the regional store")]
    Busy,
    /// The server answered with an error: its code (`NOAUTH`, `READONLY`, `OOM`, `MOVED`, …), and for a command its
    /// text. The text of a login error is dropped.
    #[error("the regional store returned an error: {code} {detail}{}", hint(code))]
    Refused {
        /// First word of the error.
        code: String,
        /// The rest of the error, cut to 160 bytes.
        detail: String,
    },
    /// The server's answer has an unexpected form.
    #[error("the regional store returned a malformed answer")]
    Protocol,
}

impl StoreError {
    /// One of `timeout`, `unavailable`, `refused`, `protocol`: a label for metrics.
    pub fn reason(&self) -> &'static str {
        self.failure().as_str()
    }

    /// The class of the error, which determines how callers react.
    pub fn failure(&self) -> Failure {
        match self {
            StoreError::Timeout => Failure::Timeout,
            StoreError::Unavailable => Failure::Unavailable,
            StoreError::Unreachable(_) => Failure::Unreachable,
            StoreError::Busy => Failure::Busy,
            StoreError::Refused { .. } if self.is_of_the_cell() => Failure::OfTheCell,
            // A cluster is down while a server of it loads its data.
            StoreError::Refused { code, .. } if code == "LOADING" || code == "CLUSTERDOWN" => {
                Failure::Loading
            }
            StoreError::Refused { .. } => Failure::Refused,
            StoreError::Protocol => Failure::Malformed,
        }
    }

    /// Whether only the cell is at fault: something else was written under its name, or it has too many fields. The
    /// store itself works.
    pub fn is_of_the_cell(&self) -> bool {
        matches!(self, StoreError::Refused { code, .. } if code == "WRONGTYPE" || code == "ERR")
    }

    /// The error of a command.
    pub(super) fn of_command(error: &ServerError) -> StoreError {
        let mut detail = error.details().unwrap_or_default().to_owned();
        detail.truncate(detail.floor_char_boundary(MAX_DETAIL_BYTES));
        StoreError::Refused { code: error.code().to_owned(), detail }
    }

    /// The error of a connection attempt, or of a connection that ended.
    pub(super) fn of_connection(error: &RedisError) -> StoreError {
        let refused = |code: &str| StoreError::Refused { code: code.to_owned(), detail: String::new() };
        match (error.kind(), error.code()) {
            (ErrorKind::AuthenticationFailed, _) => refused("WRONGPASS"),
            (ErrorKind::Parse | ErrorKind::UnexpectedReturnType, _) => StoreError::Protocol,
            (ErrorKind::MasterNameNotFoundBySentinel, _) => StoreError::Unreachable(NO_PRIMARY),
            (_, Some(code)) => refused(code),
            _ => why_unreachable(error).map_or(StoreError::Unavailable, StoreError::Unreachable),
        }
    }

    /// The error of a request on a connection that had been made. However the connection ended, the request may have been executed.
    pub(super) fn of_request(error: &RedisError) -> StoreError {
        match StoreError::of_connection(error) {
            StoreError::Unreachable(_) => StoreError::Unavailable,
            other => other,
        }
    }
}

/// What to do about an error of the server.
fn hint(code: &str) -> &'static str {
    match code {
        "MOVED" => "; the server is one of a Redis Cluster: if the URL names it alone, add ?cluster=true",
        _ => "",
    }
}

/// Why a connection failed, in a fixed text: the crate's error text may contain parts of the URL.
fn why_unreachable(error: &RedisError) -> Option<&'static str> {
    let text = error.to_string().to_lowercase();
    let mentions = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if error.is_connection_refusal() {
        Some("nothing listens at its address")
    } else if mentions(&["sentinel node"]) {
        Some("what listens at its address is no Sentinel")
    } else if mentions(&["lookup", "resolve", "no addresses", "name or service"]) {
        Some("its host name cannot be resolved")
    } else if mentions(&["unknownissuer"]) {
        Some("its certificate is of an unknown authority; --redis-ca-file names the one that issued it")
    } else if mentions(&["expired"]) {
        Some("its certificate has expired")
    } else if mentions(&["notvalidyet", "not valid yet"]) {
        Some("its certificate is not valid yet")
    } else if mentions(&["notvalidforname", "not valid for name"]) {
        Some("its certificate is for other host names than that of the URL")
    } else if mentions(&["certificate", "tls", "handshake"]) {
        Some("the TLS handshake failed; check that its certificate is trusted and issued for this host name")
    } else if error.is_timeout() || mentions(&["timed out"]) {
        Some("the connection timed out")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_of_a_refused_certificate_is_named() {
        for (text, part) in [
            ("invalid peer certificate: UnknownIssuer", "--redis-ca-file"),
            ("invalid peer certificate: Expired", "has expired"),
            ("invalid peer certificate: certificate expired: verification time 7", "has expired"),
            ("invalid peer certificate: NotValidForName", "other host names"),
            ("invalid peer certificate: certificate not valid for name \"hunter2\"", "other host names"),
            ("invalid peer certificate: BadSignature", "TLS handshake failed"),
        ] {
            let error = RedisError::from(std::io::Error::new(std::io::ErrorKind::InvalidData, text));
            let error = StoreError::of_connection(&error).to_string();
            assert!(error.contains(part) && !error.contains("hunter2"), "{text}: {error}");
        }
    }

    #[test]
    fn a_request_may_have_been_executed_however_its_connection_ended() {
        let ended = "peer closed connection without sending TLS close_notify";
        let error = RedisError::from(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, ended));
        assert!(matches!(StoreError::of_connection(&error), StoreError::Unreachable(_)));
        assert_eq!(StoreError::of_request(&error), StoreError::Unavailable);
    }

    #[test]
    fn a_server_of_a_cluster_is_named() {
        let error = StoreError::Refused { code: "MOVED".to_owned(), detail: "1 h:7".to_owned() };
        assert!(error.to_string().contains("MOVED 1 h:7; ") && error.to_string().contains("?cluster=true"));
    }

    #[test]
    fn reasons_are_few_and_a_login_s_text_is_dropped() {
        let login = RedisError::from((ErrorKind::AuthenticationFailed, "no", "hunter2".to_owned()));
        let io = RedisError::from(std::io::Error::other("hunter2"));
        let parse = RedisError::from((ErrorKind::Parse, "hunter2"));
        for (error, reason) in [(login, "refused"), (io, "unavailable"), (parse, "protocol")] {
            let error = StoreError::of_connection(&error);
            assert_eq!(error.reason(), reason);
            assert!(!format!("{error} {error:?}").contains("hunter2"));
        }
        let refused = |code: &str| StoreError::Refused { code: code.to_owned(), detail: String::new() };
        for (code, failure) in [
            ("LOADING", Failure::Loading),
            ("CLUSTERDOWN", Failure::Loading),
            ("READONLY", Failure::Refused),
            ("ERR", Failure::OfTheCell),
        ] {
            assert_eq!(refused(code).failure(), failure, "{code}");
        }
        assert_eq!(StoreError::Timeout.reason(), "timeout");
        assert_eq!(StoreError::Busy.reason(), "unavailable");
    }
}
