//! What stands before all doors: certificates and tokens, read at the start and followed from then on.
//!
//! Leaves to others: the certificates (`tls`), the tokens ([`super::tokens`]).

use super::DoorSettings;
use super::tokens::{Tokens, TokensError};
use crate::follow::Followed;
use crate::shared::Shared;
use crate::tls::{Tls, TlsError};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::task::JoinSet;
use tracing::{info, warn};

/// Who is let in, and how.
pub struct Entrance {
    /// Certificates; without them plain text is spoken.
    pub tls: Option<Arc<Tls>>,
    /// Who may ask.
    pub tokens: Arc<Tokens>,
    certificate_files: Option<Followed>,
    token_file: Option<Followed>,
}

/// Why nobody can be let in.
#[derive(Debug, thiserror::Error)]
pub enum EntranceError {
    /// The certificates cannot be used.
    #[error("{0}")]
    Tls(#[from] TlsError),
    /// The tokens cannot be used.
    #[error("{0}")]
    Tokens(#[from] TokensError),
    /// Everybody could ask about everything.
    #[error(
        "applications could connect from other machines ({0}), and no tokens are set; set --tokens-file or \
         WEIR_TOKENS_FILE (weir-aggregator token makes one), or let --http-listen be a loopback address such as \
         127.0.0.1:7072"
    )]
    Unguarded(SocketAddr),
}

impl Entrance {
    /// Reads what the settings name.
    pub fn open(settings: &DoorSettings) -> Result<Entrance, EntranceError> {
        let (tls, certificate_files) = settings.tls.clone().map(Tls::open).transpose()?.unzip();
        let (tokens, token_file) = settings.tokens_file.clone().map(Tokens::read).transpose()?.unzip();
        let tokens = tokens.unwrap_or_else(Tokens::open_to_all);
        Ok(Entrance { tls, tokens, certificate_files, token_file })
    }

    /// Whether applications may connect to this address.
    pub fn admit(&self, http: SocketAddr) -> Result<(), EntranceError> {
        match self.tokens.are_asked_for() || http.ip().is_loopback() {
            true => Ok(()),
            false => Err(EntranceError::Unguarded(http)),
        }
    }

    /// Says what an operator should know of the doors; `token` is whether filters must show one.
    pub fn describe(&self, http: SocketAddr, grpc: SocketAddr, token: bool) {
        let (tokens, tls) = (self.tokens.are_asked_for(), self.tls.as_deref());
        if tokens && tls.is_none() && !http.ip().is_loopback() {
            warn!(%http, "applications send tokens in plain text (--tls-cert-file)");
        }
        let how = match tls.map(Tls::is_mutual) {
            None => "without TLS",
            Some(false) => "with TLS",
            Some(true) => "with mutual TLS",
        };
        let from =
            |at: SocketAddr| if at.ip().is_loopback() { "loopback only" } else { "from other machines" };
        let filters = if token { "by --token" } else { "without tokens" };
        let proxies = match (token, tokens) {
            (false, false) => "without tokens",
            (true, false) => "by --token",
            (false, true) => "by --tokens-file",
            (true, true) => "by --token or --tokens-file",
        };
        info!("gRPC at {grpc}: {}, {how}, filters {filters}, the rate-limit service {proxies}", from(grpc));
        let applications = if tokens { "with tokens" } else { "without tokens" };
        info!("HTTP for applications at {http}: {}, {how}, {applications}", from(http));
    }

    /// Follows the files for as long as `tasks` live.
    pub fn follow(&mut self, shared: &Arc<Shared>, tasks: &mut JoinSet<()>) {
        if let (Some(tls), Some(files)) = (&self.tls, self.certificate_files.take()) {
            tasks.spawn(tls.clone().follow(files, shared.clone()));
        }
        if let Some(file) = self.token_file.take() {
            tasks.spawn(self.tokens.clone().follow(file, shared.clone()));
        }
    }
}
