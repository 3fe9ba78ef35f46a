//! The options of the stream to an xDS server.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

/// How long connecting may take, TLS included.
const CONNECT: Duration = Duration::from_secs(5);
/// How often the connection is pinged, and how long the answer may take.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// The server of limits, and how to connect to it.
#[derive(Clone, PartialEq, Eq)]
pub struct XdsOptions {
    url: String,
    node: String,
    ca_file: Option<PathBuf>,
    identity: Option<(PathBuf, PathBuf)>,
    token: Option<String>,
}

/// Why the options are invalid, or their files cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// The URL is invalid.
    #[error("--rls-xds-url (WEIR_RLS_XDS_URL) is {0:?}: {1}; expected http://host:port or https://host:port")]
    Url(String, String),
    /// TLS options without TLS.
    #[error("{0} is set, and --rls-xds-url begins with http://; use https://")]
    Plain(&'static str),
    /// One of two options that belong together is missing.
    #[error("{0} is set without {1}; a client certificate needs both")]
    Half(&'static str, &'static str),
    /// An option of a server without the server.
    #[error("{0} is set without --rls-xds-url")]
    Alone(&'static str),
    /// The token cannot be sent.
    #[error("the token of --rls-xds-token (WEIR_RLS_XDS_TOKEN) has characters other than printable ASCII")]
    Token,
    /// A file cannot be read.
    #[error("{0} cannot be read: {1}")]
    Read(String, String),
    /// The files of TLS cannot be used.
    #[error("the TLS files of the xDS server cannot be used: {0}")]
    Tls(String),
}

impl fmt::Debug for XdsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XdsOptions").field("url", &self.url).field("node", &self.node).finish_non_exhaustive()
    }
}

impl XdsOptions {
    /// Validates the options. `identity` is the client's certificate and its key; files are read when a stream is opened.
    pub fn new(
        url: String,
        node: String,
        ca_file: Option<PathBuf>,
        identity: (Option<PathBuf>, Option<PathBuf>),
        token: Option<String>,
    ) -> Result<XdsOptions, OptionsError> {
        const CERTIFICATE: &str = "--rls-xds-cert-file (WEIR_RLS_XDS_CERT_FILE)";
        const KEY: &str = "--rls-xds-key-file (WEIR_RLS_XDS_KEY_FILE)";
        let identity = match identity {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (Some(_), None) => return Err(OptionsError::Half(CERTIFICATE, KEY)),
            (None, Some(_)) => return Err(OptionsError::Half(KEY, CERTIFICATE)),
            (None, None) => None,
        };
        let options = XdsOptions { url, node, ca_file, identity, token };
        options.address()?;
        if !options.is_tls() && options.ca_file.is_some() {
            return Err(OptionsError::Plain("--rls-xds-ca-file (WEIR_RLS_XDS_CA_FILE)"));
        }
        if !options.is_tls() && options.identity.is_some() {
            return Err(OptionsError::Plain(CERTIFICATE));
        }
        let sendable = |token: &String| token.bytes().all(|byte| byte.is_ascii_graphic());
        if !options.token.as_ref().is_none_or(sendable) {
            return Err(OptionsError::Token);
        }
        Ok(options)
    }

    /// The server's URL, without anything secret.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The id of this client.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// The value of the header `authorization`, if there is a token.
    pub(super) fn authorization(&self) -> Option<String> {
        self.token.as_ref().map(|token| format!("Bearer {token}"))
    }

    fn is_tls(&self) -> bool {
        self.url.starts_with("https://")
    }

    /// The endpoint, with the present contents of the files.
    pub(super) fn endpoint(&self) -> Result<Endpoint, OptionsError> {
        let endpoint = self
            .address()?
            .connect_timeout(CONNECT)
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE)
            .keep_alive_while_idle(true);
        if !self.is_tls() {
            return Ok(endpoint);
        }
        let mut tls = match &self.ca_file {
            Some(file) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(file)?)),
            None => ClientTlsConfig::new().with_native_roots(),
        };
        if let Some((certificate, key)) = &self.identity {
            tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
        }
        endpoint.tls_config(tls).map_err(|error| OptionsError::Tls(super::causes(&error)))
    }

    fn address(&self) -> Result<Endpoint, OptionsError> {
        let wrong = |why: String| OptionsError::Url(self.url.clone(), why);
        if !["http://", "https://"].iter().any(|scheme| self.url.starts_with(scheme)) {
            return Err(wrong("it has no scheme".to_owned()));
        }
        if self.url.contains('@') {
            // The URL is logged.
            return Err(OptionsError::Url(
                "…".to_owned(),
                "it contains a user; use --rls-xds-token".to_owned(),
            ));
        }
        Endpoint::from_shared(self.url.clone()).map_err(|error| wrong(super::causes(&error)))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, OptionsError> {
    crate::net::follow::read(path, crate::net::follow::MAX_FILE_BYTES)
        .map_err(|error| OptionsError::Read(path.display().to_string(), error.to_string()))
}
