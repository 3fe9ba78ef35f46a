//! The settings of the APIs.

use super::rls;
use crate::net::tls::TlsFiles;
use std::path::PathBuf;

/// The addresses of the APIs, and their authentication.
#[derive(Clone, Debug)]
pub struct ApiSettings {
    /// The address for applications over HTTP, `host:port`; without it there is no such listener.
    pub http_listen: Option<String>,
    /// The file of tokens and their workspaces; without it every caller on this machine is accepted.
    pub tokens_file: Option<PathBuf>,
    /// Certificates of the gRPC and the HTTP API; without them both use plain text.
    pub tls: Option<TlsFiles>,
    /// The rate-limit service.
    pub rls: rls::Settings,
    /// The listeners that may be used without authentication.
    pub insecure: Insecure,
}

/// What an operator has explicitly allowed without authentication. Otherwise a listener that other machines can reach needs a
/// token or client certificates, and live control needs a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Insecure {
    /// The gRPC listener, from other machines.
    pub grpc: bool,
    /// The HTTP listener, from other machines.
    pub http: bool,
    /// The admin listener, from other machines. It has no authentication of its own.
    pub admin: bool,
    /// Live control over HTTP without tokens.
    pub control: bool,
}

impl Default for ApiSettings {
    fn default() -> Self {
        ApiSettings {
            http_listen: Some("127.0.0.1:0".to_owned()),
            tokens_file: None,
            tls: None,
            rls: rls::Settings::default(),
            insecure: Insecure::default(),
        }
    }
}
