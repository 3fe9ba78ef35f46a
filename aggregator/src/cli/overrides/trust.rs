//! TLS to an aggregator's HTTP API: trusted authorities, and errors that name the option to check.

use super::arguments::Server;
use anyhow::{Context, Error, bail};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::io;
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const SEE: &str = "check --api-ca-file or WEIR_API_CA_FILE";

/// Performs a TLS handshake and verifies that the server is `name`.
pub async fn secured(
    stream: TcpStream,
    name: ServerName<'static>,
    server: &Server,
) -> anyhow::Result<TlsStream<TcpStream>> {
    let roots = authorities(server.api_ca_file.as_deref())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let connected = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    connected.map_err(|error| explained(error, &server.api_url))
}

/// The authorities of the file, or the system's.
fn authorities(file: Option<&Path>) -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let Some(path) = file else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            bail!("this system has no certificate authorities to verify the server's certificate; {SEE}");
        }
        return Ok(roots);
    };
    let shown = path.display();
    let read = CertificateDer::pem_file_iter(path).with_context(|| format!("cannot read {shown}; {SEE}"))?;
    for certificate in read {
        let certificate = certificate.with_context(|| format!("{shown} is not PEM; {SEE}"))?;
        roots.add(certificate).with_context(|| format!("{shown} contains an invalid certificate; {SEE}"))?;
    }
    if roots.is_empty() {
        bail!("{shown} contains no PEM certificate; {SEE}");
    }
    Ok(roots)
}

fn explained(error: io::Error, url: &str) -> Error {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    let context = match cause {
        Some(rustls::Error::InvalidCertificate(_)) => {
            format!("the certificate of {url} is not trusted; {SEE}")
        }
        _ => format!(
            "the TLS handshake with {url} failed; if it does not use TLS, use http://; check --api-url or WEIR_API_URL"
        ),
    };
    Error::new(error).context(context)
}
