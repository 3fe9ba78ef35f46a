//! Why the program does not start, or stops by itself.

use crate::api::authentication::AuthenticationError;
use crate::api::rls::FilesError;
use crate::database::DatabaseError;
use std::io;
use tokio::task::JoinError;

/// Why the program does not start, or stops by itself.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be bound; usually the port is in use.
    #[error("cannot listen on {address} for {purpose}: {source}; choose another with {option}")]
    Listen {
        /// The address, as given.
        address: String,
        /// What the listener is for.
        purpose: &'static str,
        /// The option that sets the address.
        option: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Certificates or tokens cannot be used.
    #[error("{0}")]
    Authentication(#[from] AuthenticationError),
    /// The Redis settings cannot be used.
    #[error("{0}; see --redis-url or WEIR_REDIS_URL")]
    Store(#[from] crate::redis::OptionsError),
    /// The database settings cannot be used.
    #[error("{0}")]
    DatabaseOptions(#[from] crate::database::OptionsError),
    /// The database is available, but its tables cannot be brought up to date.
    #[error("{0}")]
    Database(#[from] DatabaseError),
    /// The rate-limit service's limits cannot be used.
    #[error("{0}\nsee --rls-config or WEIR_RLS_CONFIG")]
    RateLimits(#[from] FilesError),
    /// Spans cannot be exported.
    #[error("{0}")]
    Telemetry(#[from] crate::telemetry::spans::OptionsError),
    /// Another aggregator holds the region lease. Two aggregators with separate memories would each allow the whole limit.
    #[error(
        "another aggregator serves region {0:?}; a region without a Redis can have only one. Stop the other one, or set the \
         same Redis for both with --redis-url or WEIR_REDIS_URL"
    )]
    RegionTaken(String),
    /// A server ended although no shutdown was requested.
    #[error("the gRPC or the HTTP server ended unexpectedly")]
    Ended,
    /// A task of the program panicked.
    #[error("a task failed: {0}")]
    Task(#[from] JoinError),
}
