//! What the doors are told to do.
//!
//! Leaves to others: arguments (`cli`).

use std::path::PathBuf;

/// Where doors are, and who may pass.
#[derive(Clone, Debug)]
pub struct DoorSettings {
    /// Where applications connect over HTTP, `host:port`.
    pub http_listen: String,
    /// Who may ask, and for which workspace; without it everybody on this machine may.
    pub tokens_file: Option<PathBuf>,
    /// Certificates of the gRPC and the HTTP door; without them both speak plain text.
    pub tls: Option<TlsFiles>,
    /// The rate-limit service's descriptors and their limits; without it the service knows none.
    pub rate_limits_file: Option<PathBuf>,
}

/// PEM files, read again when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate and those between it and its authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authorities that clients' certificates must come from; without them clients need none.
    pub client_authorities: Option<PathBuf>,
}

impl Default for DoorSettings {
    fn default() -> Self {
        DoorSettings {
            http_listen: "127.0.0.1:0".to_owned(),
            tokens_file: None,
            tls: None,
            rate_limits_file: None,
        }
    }
}
