//! What the APIs are told to do.
//!
//! Leaves to others: arguments (`cli`).

use crate::net::tls::TlsFiles;
use std::path::PathBuf;

/// Where APIs are, and who may pass.
#[derive(Clone, Debug)]
pub struct ApiSettings {
    /// Where applications connect over HTTP, `host:port`; without it there is no such listener.
    pub http_listen: Option<String>,
    /// Who may ask, and for which workspace; without it everybody on this machine may.
    pub tokens_file: Option<PathBuf>,
    /// Certificates of the gRPC and the HTTP API; without them both speak plain text.
    pub tls: Option<TlsFiles>,
    /// The rate-limit service's descriptors and their limits; without it the service knows none.
    pub rls_config: Option<PathBuf>,
    /// What is served without authentication.
    pub insecure: Insecure,
}

/// What is served without authentication, because an operator asks for it. Otherwise a listener that other machines can reach
/// needs a token or client certificates, and live control needs a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Insecure {
    /// The gRPC listener, from other machines.
    pub grpc: bool,
    /// The HTTP listener, from other machines.
    pub http: bool,
    /// The admin listener, from other machines. It has no authentication of its own.
    pub admin: bool,
    /// Live control over HTTP, where no tokens are set.
    pub control: bool,
}

impl Default for ApiSettings {
    fn default() -> Self {
        ApiSettings {
            http_listen: Some("127.0.0.1:0".to_owned()),
            tokens_file: None,
            tls: None,
            rls_config: None,
            insecure: Insecure::default(),
        }
    }
}
