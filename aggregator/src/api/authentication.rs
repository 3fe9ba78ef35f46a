//! Authentication of all listeners: certificates and tokens, read at the start and watched from then on.

use super::{ApiSettings, Insecure};
use crate::auth::{Authenticator, Tokens, TokensError};
use crate::net::follow::{Contents, Followed};
use crate::net::tls::{FollowedFiles, Tls, TlsError};
use crate::telemetry::metrics::Metrics;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::task::JoinSet;
use tracing::{info, warn};

/// The certificates and tokens in force.
pub struct Authentication {
    /// The certificates; without them the listeners use plain text.
    pub tls: Option<Arc<Tls>>,
    /// The credentials of callers.
    pub tokens: Arc<Tokens>,
    certificate_files: Option<FollowedFiles>,
    token_file: Option<Followed<Contents>>,
}

/// Why authentication cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum AuthenticationError {
    /// The certificates cannot be used.
    #[error("{0}")]
    Tls(#[from] TlsError),
    /// The tokens cannot be used.
    #[error("{0}")]
    Tokens(#[from] TokensError),
    /// Other machines could use a listener without authentication.
    #[error(
        "other machines can connect to {option} ({address}), which has no authentication; {remedy}, listen on a loopback \
         address such as 127.0.0.1:{port}, or accept it with --insecure {part} (WEIR_INSECURE={part})"
    )]
    Unguarded {
        /// The option that sets the address.
        option: &'static str,
        /// The address of the listener.
        address: SocketAddr,
        /// How to authenticate callers.
        remedy: &'static str,
        /// The listener's default port.
        port: u16,
        /// The listener's name for `--insecure`.
        part: &'static str,
    },
    /// The token of filters stands in Weir's manifests.
    #[error(
        "other machines can reach --grpc-listen at {address}, and --filter-token or WEIR_FILTER_TOKEN is {token:?}, which stands in \
         published manifests; set a random one, such as openssl rand -hex 32 prints, here and in the filters, or accept it with --insecure grpc"
    )]
    Published {
        /// The address of the listener.
        address: SocketAddr,
        /// The token.
        token: String,
    },
}

impl Authentication {
    /// Reads the files that the settings name.
    pub fn open(settings: &ApiSettings) -> Result<Authentication, AuthenticationError> {
        let (tls, certificate_files) = settings.tls.clone().map(Tls::open).transpose()?.unzip();
        let (tokens, token_file) = settings.tokens_file.clone().map(Tokens::read).transpose()?.unzip();
        let tokens = tokens.unwrap_or_else(|| Tokens::open_to_all(settings.insecure.control));
        Ok(Authentication { tls, tokens, certificate_files, token_file })
    }

    /// Refuses listeners that other machines could use without authentication, unless they are `insecure`.
    pub fn admit(
        &self,
        (grpc, admin, http): (SocketAddr, SocketAddr, Option<SocketAddr>),
        authenticator: &Authenticator,
        insecure: Insecure,
    ) -> Result<(), AuthenticationError> {
        let certificates = self.tls.as_deref().is_some_and(Tls::is_mutual);
        let guarded = |address: SocketAddr, guarded: bool| guarded || address.ip().is_loopback();
        if let Some(token) = authenticator.published_token()
            && !guarded(grpc, insecure.grpc)
        {
            return Err(AuthenticationError::Published { address: grpc, token: token.to_owned() });
        }
        if !guarded(grpc, authenticator.filters_need_tokens() || certificates || insecure.grpc) {
            return Err(AuthenticationError::Unguarded {
                option: "--grpc-listen",
                address: grpc,
                remedy: "set --filter-token or WEIR_FILTER_TOKEN, name filters in the tokens file (weir-aggregator token --workspaces), or set \
                         --tls-client-ca-file",
                port: 7071,
                part: "grpc",
            });
        }
        if !guarded(admin, insecure.admin) {
            return Err(AuthenticationError::Unguarded {
                option: "--admin-listen",
                address: admin,
                remedy: "restrict access with a network policy or a proxy",
                port: 7070,
                part: "admin",
            });
        }
        match http.filter(|http| !guarded(*http, self.tokens.is_required() || certificates || insecure.http))
        {
            None => Ok(()),
            Some(address) => Err(AuthenticationError::Unguarded {
                option: "--http-listen",
                address,
                remedy: "set --tokens-file or WEIR_TOKENS_FILE (weir-aggregator token creates an entry), or --tls-client-ca-file",
                port: 7072,
                part: "http",
            }),
        }
    }

    /// Logs how each listener is protected; `own_token` is whether the aggregator has a token of its own.
    pub fn describe(&self, http: Option<SocketAddr>, grpc: SocketAddr, own_token: bool) {
        let (tokens, tls) = (self.tokens.is_required(), self.tls.as_deref());
        if let Some(http) = http.filter(|http| tokens && tls.is_none() && !http.ip().is_loopback()) {
            warn!(%http, "applications send tokens in plain text; set --tls-cert-file");
        }
        let how = match tls.map(Tls::is_mutual) {
            None => "without TLS",
            Some(false) => "with TLS",
            Some(true) => "with mutual TLS",
        };
        let from =
            |at: SocketAddr| if at.ip().is_loopback() { "loopback only" } else { "from other machines" };
        let by = |file| match (own_token, file) {
            (false, false) => "without tokens",
            (true, false) => "by --filter-token",
            (false, true) => "by --tokens-file",
            (true, true) => "by --filter-token or --tokens-file",
        };
        let (filters, proxies) = (by(self.tokens.name_filters()), by(tokens));
        info!("gRPC at {grpc}: {}, {how}, filters {filters}, the rate-limit service {proxies}", from(grpc));
        let applications = if tokens { "with tokens" } else { "without tokens" };
        match http {
            Some(http) => info!("HTTP for applications at {http}: {}, {how}, {applications}", from(http)),
            None => info!("HTTP for applications: none"),
        }
    }

    /// Watches the files; the watching tasks are added to `tasks`. `replaced` is called with tokens that were read again.
    pub fn follow(
        &mut self,
        metrics: &Arc<Metrics>,
        replaced: impl Fn(&Tokens) + Send + Sync + 'static,
        tasks: &mut JoinSet<()>,
    ) {
        if let (Some(tls), Some(files)) = (&self.tls, self.certificate_files.take()) {
            tasks.spawn(tls.clone().follow(files, metrics.clone()));
        }
        if let Some(file) = self.token_file.take() {
            tasks.spawn(self.tokens.clone().follow(file, metrics.clone(), replaced));
        }
    }
}
