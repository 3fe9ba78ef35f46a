//! Certificates of the gRPC and the HTTP API: read, checked, and read again when their files change.
//!
//! A new pair, and new authorities of clients, apply to new connections only. Each is taken by itself: one that cannot be used stays as it
//! was, and holds the other not back.

use crate::net::follow::{self, Contents, Followed, ReadError};
use crate::telemetry::clock::{Clock as _, SystemClock};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::metrics::api::Files;
use parking_lot::RwLock;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{RootCertStore, ServerConfig};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;
use tracing::{error, info, warn};
use x509_cert::der::Decode;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// PEM files, read again when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate and the intermediate certificates up to its authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authorities of clients' certificates; without them clients need no certificate.
    pub client_authorities: Option<PathBuf>,
}

/// The protocol inside TLS, by its ALPN name (RFC 7301).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// `h2`.
    Grpc,
    /// `http/1.1`.
    Http,
}

/// The certificates in force.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    current: RwLock<Current>,
}

/// The files that are watched: each pair with its key, and the authorities of clients by themselves.
pub struct FollowedFiles {
    pair: Followed<Contents>,
    authorities: Option<Followed<Contents>>,
}

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file does not exist or cannot be read.
    #[error("{0}; see --tls-cert-file, --tls-key-file and --tls-client-ca-file")]
    Read(#[from] ReadError),
    /// The file is not PEM, or contains nothing of the required kind.
    #[error("{} contains no {what} in PEM ({marker}); see {option}", path.display())]
    Nothing {
        /// The file.
        path: PathBuf,
        /// What is missing.
        what: &'static str,
        /// The line with which it begins.
        marker: &'static str,
        /// The option that names the file.
        option: &'static str,
    },
    /// The key does not belong to the certificate.
    #[error("the key in {} is not the key of the certificate in {}; see --tls-cert-file and --tls-key-file", key.display(), certificate.display())]
    Mismatch {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// The file cannot be used for another reason.
    #[error("{} cannot be used: {reason}; see {option}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
        /// The option that names the file.
        option: &'static str,
    },
}

/// The DNS names and URIs among the subject alternative names (RFC 5280, section 4.2.1.6) of a client's verified
/// certificate, in the certificate's order. DNS names are in lower case. Empty without a certificate. A URI has a colon, and a DNS name has none; what
/// has the form of the other kind is left out, as an authority may check the two kinds by different rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateNames(Arc<[String]>);

#[derive(Debug)]
struct Current {
    pair: Pair,
    /// Verifies clients by their authorities.
    verifier: Option<Verifier>,
    grpc: TlsConfig,
    http: TlsConfig,
}

/// A certificate and its key.
#[derive(Clone, Debug)]
struct Pair {
    key: Arc<CertifiedKey>,
    /// The end of the certificate's validity, in seconds of Unix time, if it can be read.
    not_after: Option<u64>,
}

type Verifier = Arc<dyn ClientCertVerifier>;

type TlsConfig = Arc<ServerConfig>;

/// Most names of a certificate that are read.
const MAX_NAMES: usize = 64;
const CERTIFICATE: &str = "--tls-cert-file or WEIR_TLS_CERT_FILE";
const KEY: &str = "--tls-key-file or WEIR_TLS_KEY_FILE";
const AUTHORITIES: &str = "--tls-client-ca-file or WEIR_TLS_CLIENT_CA_FILE";

impl Tls {
    /// Reads the files for the first time.
    pub fn open(files: TlsFiles) -> Result<(Arc<Tls>, FollowedFiles), TlsError> {
        let followed = FollowedFiles {
            pair: Followed::open(vec![files.certificate.clone(), files.key.clone()])?,
            authorities: files
                .client_authorities
                .clone()
                .map(|path| Followed::open(vec![path]))
                .transpose()?,
        };
        let pair = Pair::read(&files, followed.pair.contents())?;
        if let Some(ago_s) = pair.expired_s() {
            let path = files.certificate.display();
            error!(
                "the certificate in {path} expired {ago_s} s ago: no client that verifies it will connect; see {CERTIFICATE}"
            );
        }
        let read = |(path, followed): (&PathBuf, &Followed<_>)| verifier(path, followed.contents());
        let verifier =
            files.client_authorities.as_ref().zip(followed.authorities.as_ref()).map(read).transpose()?;
        let current = Current::new(pair, verifier)
            .map_err(|error| unusable(&files.certificate, &error, CERTIFICATE))?;
        warn_of_open_key(&files.key);
        Ok((Arc::new(Tls { files, current: RwLock::new(current) }), followed))
    }

    /// The acceptor for new connections.
    pub fn acceptor(&self, protocol: Protocol) -> TlsAcceptor {
        let current = self.current.read();
        TlsAcceptor::from(match protocol {
            Protocol::Grpc => current.grpc.clone(),
            Protocol::Http => current.http.clone(),
        })
    }

    /// Whether clients must have a certificate.
    pub fn is_mutual(&self) -> bool {
        self.files.client_authorities.is_some()
    }

    /// The end of the validity of the certificate in force, in seconds of Unix time, if it can be read.
    pub fn not_after(&self) -> Option<u64> {
        self.current.read().pair.not_after
    }

    /// Watches the files until the program ends.
    pub async fn follow(self: Arc<Self>, followed: FollowedFiles, metrics: Arc<Metrics>) {
        let FollowedFiles { pair, authorities } = followed;
        let metrics = &metrics.api;
        metrics.certificate_ends(self.not_after());
        let taking = self.clone();
        let pairs = follow::follow(
            pair,
            move |contents: &Contents| taking.take_pair(contents),
            |state| {
                metrics.files_read(Files::Tls, state.is_ok());
                match state {
                    Ok(()) => {
                        metrics.certificate_ends(self.not_after());
                        info!("TLS certificate and key read again, new connections use them");
                    }
                    Err(reason) => error!(
                        reason,
                        "the TLS certificate or key changed and cannot be used, the former certificate stays in force"
                    ),
                }
            },
        );
        let authorities = async {
            let Some(followed) = authorities else { return };
            let taking = self.clone();
            let take = move |contents: &Contents| taking.take_authorities(contents);
            follow::follow(followed, take, |state| {
                metrics.files_read(Files::ClientAuthorities, state.is_ok());
                match state {
                    Ok(()) => {
                        info!("authorities of clients read again, new connections are verified by them")
                    }
                    Err(reason) => error!(
                        reason,
                        "the authorities of clients changed and cannot be used, the former ones stay in force"
                    ),
                }
            })
            .await;
        };
        tokio::join!(pairs, authorities);
    }

    /// Puts a certificate and its key in force, unless it has expired and the one in force has not.
    fn take_pair(&self, contents: &Contents) -> Result<(), String> {
        let pair = Pair::read(&self.files, contents).map_err(|error| error.to_string())?;
        let mut current = self.current.write();
        if let (Some(ago_s), None) = (pair.expired_s(), current.pair.expired_s()) {
            return Err(format!(
                "the certificate in {} expired {ago_s} s ago",
                self.files.certificate.display()
            ));
        }
        *current = Current::new(pair, current.verifier.clone()).map_err(|error| error.to_string())?;
        Ok(())
    }

    fn take_authorities(&self, contents: &Contents) -> Result<(), String> {
        let path = self.files.client_authorities.as_deref().unwrap_or(Path::new(""));
        let verifier = verifier(path, contents).map_err(|error| error.to_string())?;
        let mut current = self.current.write();
        *current = Current::new(current.pair.clone(), Some(verifier)).map_err(|error| error.to_string())?;
        Ok(())
    }
}

impl CertificateNames {
    /// The names in the client's own certificate, which is the first of the chain.
    pub fn of(chain: Option<&[CertificateDer<'_>]>) -> CertificateNames {
        let names = |certificate: &CertificateDer<'_>| {
            let certificate = x509_cert::Certificate::from_der(certificate).ok()?;
            let (_, found) = certificate.tbs_certificate().get_extension::<SubjectAltName>().ok()??;
            let name = |name: &GeneralName| match name {
                GeneralName::DnsName(name) if !name.as_str().contains(':') => {
                    Some(name.as_str().to_ascii_lowercase())
                }
                GeneralName::UniformResourceIdentifier(uri) if uri.as_str().contains(':') => {
                    Some(uri.as_str().to_owned())
                }
                _ => None,
            };
            Some(found.0.iter().filter_map(name).take(MAX_NAMES).collect())
        };
        chain.and_then(<[_]>::first).and_then(names).map(CertificateNames).unwrap_or_default()
    }

    /// Iterates over the names.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

impl Current {
    fn new(pair: Pair, verifier: Option<Verifier>) -> Result<Current, rustls::Error> {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let builder = match verifier.clone() {
            Some(verifier) => builder.with_client_cert_verifier(verifier),
            None => builder.with_no_client_auth(),
        };
        let config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(pair.key.clone())));
        let speaking = |protocol: &[u8]| {
            let mut config = config.clone();
            config.alpn_protocols = vec![protocol.to_vec()];
            Arc::new(config)
        };
        Ok(Current { grpc: speaking(b"h2"), http: speaking(b"http/1.1"), pair, verifier })
    }
}

impl Pair {
    fn read(files: &TlsFiles, contents: &Contents) -> Result<Pair, TlsError> {
        let part = |index: usize| contents.get(index).map(Vec::as_slice).unwrap_or_default();
        let chain = certificates(&files.certificate, part(0), CERTIFICATE)?;
        let key = private_key(&files.key, part(1))?;
        let not_after = not_after(&chain);
        let key =
            CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => {
                    TlsError::Mismatch { certificate: files.certificate.clone(), key: files.key.clone() }
                }
                other => unusable(&files.certificate, &other, CERTIFICATE),
            })?;
        Ok(Pair { key: Arc::new(key), not_after })
    }

    /// How long ago the certificate expired, in seconds. One whose validity has not begun is taken, as clocks differ.
    fn expired_s(&self) -> Option<u64> {
        let now_s = SystemClock.now().0 / 1_000;
        self.not_after.filter(|end| *end < now_s).map(|end| now_s - end)
    }
}

fn certificates(
    path: &Path,
    pem: &[u8],
    option: &'static str,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let chain = read.map_err(|error| unusable(path, &error, option))?;
    if chain.is_empty() {
        let (what, marker) = ("certificate", "-----BEGIN CERTIFICATE-----");
        return Err(TlsError::Nothing { path: path.into(), what, marker, option });
    }
    Ok(chain)
}

fn private_key(path: &Path, pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| match error {
        rustls::pki_types::pem::Error::NoItemsFound => {
            let (what, marker) = ("private key without a password", "-----BEGIN PRIVATE KEY-----");
            TlsError::Nothing { path: path.into(), what, marker, option: KEY }
        }
        other => unusable(path, &other, KEY),
    })
}

fn verifier(path: &Path, contents: &Contents) -> Result<Verifier, TlsError> {
    let pem = contents.first().map(Vec::as_slice).unwrap_or_default();
    let mut roots = RootCertStore::empty();
    for authority in certificates(path, pem, AUTHORITIES)? {
        roots.add(authority).map_err(|error| unusable(path, &error, AUTHORITIES))?;
    }
    let provider = Arc::new(ring::default_provider());
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| unusable(path, &error, AUTHORITIES))
}

/// The end of the first certificate's validity (RFC 5280, section 4.1.2.5). A certificate that cannot be parsed here may still
/// be accepted by clients.
fn not_after(chain: &[CertificateDer<'_>]) -> Option<u64> {
    let certificate = x509_cert::Certificate::from_der(chain.first()?).ok()?;
    Some(certificate.tbs_certificate().validity().not_after.to_unix_duration().as_secs())
}

fn unusable(path: &Path, error: &dyn std::fmt::Display, option: &'static str) -> TlsError {
    TlsError::Unusable { path: path.into(), reason: error.to_string(), option }
}

fn warn_of_open_key(path: &Path) {
    const OTHERS_READ: u32 = 0o004;
    // The file was read a moment ago; if it is gone now, `follow` logs that.
    let mode = path.metadata().map_or(0, |metadata| metadata.permissions().mode());
    if mode & OTHERS_READ != 0 {
        warn!(key = %path.display(), "every user of this machine can read the TLS key; remove the permission with chmod o-r");
    }
}
