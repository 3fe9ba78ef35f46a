//! Why the regional store did not do what it was asked, in few kinds and without secrets.
//!
//! Leaves to others: what to do about it. Every call may be repeated, as counts are absolute.

use redis::{ErrorKind, RedisError, ServerError};
use weir_core::replication::Failure;

/// Longest text of a server's error that is kept.
const MAX_DETAIL_BYTES: usize = 160;

/// Why a call, or one cell of it, failed. Nothing is known about whether the store did it all the same.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No answer within the time given. The store may still act on it later.
    #[error("the regional store did not answer in time")]
    Timeout,
    /// There is no connection, or it broke before the answer came.
    #[error("the regional store is away")]
    Unavailable,
    /// A connection cannot be made, and why, as far as that is known.
    #[error("the regional store is away: {0}")]
    Unreachable(&'static str),
    /// As many requests wait for their answers as may.
    #[error("too many requests wait for the regional store")]
    Busy,
    /// The server answered with an error: its code (`NOAUTH`, `READONLY`, `OOM`, `MOVED`, …), and what it said of a
    /// command. What it said of a login is left out.
    #[error("the regional store refused: {code} {detail}")]
    Refused {
        /// First word of the error.
        code: String,
        /// The rest, cut to 160 bytes.
        detail: String,
    },
    /// The server answered something that is no answer to the question.
    #[error("the regional store's answer is malformed")]
    Protocol,
}

impl StoreError {
    /// One of `timeout`, `away`, `refused`, `protocol`: a label for metrics.
    pub fn reason(&self) -> &'static str {
        self.failure().as_str()
    }

    /// What matters of it to what is done next.
    pub fn failure(&self) -> Failure {
        match self {
            StoreError::Timeout => Failure::Timeout,
            StoreError::Unavailable | StoreError::Unreachable(_) => Failure::Unavailable,
            StoreError::Busy => Failure::Busy,
            StoreError::Refused { .. } if self.is_of_the_cell() => Failure::OfTheCell,
            StoreError::Refused { .. } => Failure::Refused,
            StoreError::Protocol => Failure::Malformed,
        }
    }

    /// Whether only the cell that was asked about is to blame: somebody has put something else in its place, or too much
    /// into it. The store itself works.
    pub fn is_of_the_cell(&self) -> bool {
        matches!(self, StoreError::Refused { code, .. } if code == "WRONGTYPE" || code == "ERR")
    }

    /// What a server said of a command.
    pub(super) fn of_command(error: &ServerError) -> StoreError {
        let mut detail = error.details().unwrap_or_default().to_owned();
        detail.truncate(detail.floor_char_boundary(MAX_DETAIL_BYTES));
        StoreError::Refused { code: error.code().to_owned(), detail }
    }

    /// Why a connection could not be made, or ended.
    pub(super) fn of_connection(error: &RedisError) -> StoreError {
        let refused = |code: &str| StoreError::Refused { code: code.to_owned(), detail: String::new() };
        match (error.kind(), error.code()) {
            (ErrorKind::AuthenticationFailed, _) => refused("WRONGPASS"),
            (ErrorKind::Parse | ErrorKind::UnexpectedReturnType, _) => StoreError::Protocol,
            (_, Some(code)) => refused(code),
            _ => why_unreachable(error).map_or(StoreError::Unavailable, StoreError::Unreachable),
        }
    }
}

/// What a connection failed for, in words of our own: the crate's may hold what the URL does.
fn why_unreachable(error: &RedisError) -> Option<&'static str> {
    let text = error.to_string().to_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if error.is_connection_refusal() {
        Some("nothing listens there")
    } else if says(&["lookup", "resolve", "no addresses", "name or service"]) {
        Some("its name cannot be resolved")
    } else if says(&["certificate", "tls", "handshake"]) {
        Some("TLS failed; is its certificate trusted, and made for this name?")
    } else if error.is_timeout() || says(&["timed out"]) {
        Some("it does not answer")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(StoreError::Timeout.reason(), "timeout");
        assert_eq!(StoreError::Busy.reason(), "unavailable");
    }
}
