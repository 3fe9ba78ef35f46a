//! Why nothing could be shown.

/// Why nothing could be shown.
#[derive(Debug, thiserror::Error)]
pub enum TerminalError {
    /// The URL is invalid.
    #[error(
        "{0:?} is not the URL of an admin listener; expected http:// (it has no TLS), as in http://127.0.0.1:7070"
    )]
    Server(String),
    /// The server does not answer.
    #[error(
        "cannot reach an aggregator at {server}: {reason}; check that it runs, and that --admin-url is its --admin-listen"
    )]
    Unavailable {
        /// The URL.
        server: String,
        /// The cause.
        reason: String,
    },
    /// The aggregator answered with an error.
    #[error("{0}")]
    Refused(String),
    /// The answer is not an aggregator's.
    #[error(
        "the server at {0} is not an aggregator's admin listener, or has another version; check that --admin-url is its --admin-listen"
    )]
    Foreign(String),
    /// The terminal failed.
    #[error("the terminal cannot be used: {0}")]
    Terminal(#[from] std::io::Error),
}
