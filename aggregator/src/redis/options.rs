//! Where the regional store is and how it is reached: a URL, parsed and checked before anything connects.
//!
//! Errors name the part that is wrong and never repeat the URL, as it may hold a password.
//!
//! Leaves to others: connecting (`wire`), which server holds what (`nodes`).

use super::names::MAX_NAME_BYTES;
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, TlsCertificates};
use std::path::PathBuf;
use std::time::Duration;

/// Most nodes that may be named; a cluster tells of the others itself.
const MAX_URLS: usize = 64;
const DEFAULT_PREFIX: &str = "weir";
const CLUSTER_QUERY: &str = "?cluster=true";

/// How the regional store is reached.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreOptions {
    /// `redis://`, `rediss://` (TLS) or `unix://`, with `user:password@`, and `/db` unless a cluster. Several are nodes
    /// of one cluster with the same login.
    pub urls: Vec<String>,
    /// Whether it is a Redis Cluster. True as well wherever there are several URLs.
    pub cluster: bool,
    /// What every key begins with; 1 to 64 bytes.
    pub prefix: String,
    /// The region; 1 to 64 bytes.
    pub region: String,
    /// The only authorities that a TLS certificate may come from, in PEM; the system's if `None`.
    pub ca_file: Option<PathBuf>,
}

impl std::fmt::Debug for StoreOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreOptions")
            .field("urls", &self.urls.len())
            .field("cluster", &self.cluster)
            .field("prefix", &self.prefix)
            .field("region", &self.region)
            .field("ca_file", &self.ca_file)
            .finish()
    }
}

/// What is wrong with [`StoreOptions`]. URLs are told by their place, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// There is no URL, or more than 64.
    #[error("1 to {MAX_URLS} Redis URLs are needed, separated by commas")]
    Count,
    /// Neither `redis://`, `rediss://` nor `unix://` and so on, or a part of it cannot be read.
    #[error(
        "Redis URL {0} must be like redis://user:password@host:6379/0 or rediss://… (percent-encode special characters)"
    )]
    Url(usize),
    /// A cluster has one database.
    #[error("Redis URL {0} names a database; a Redis Cluster has only number 0")]
    Database(usize),
    /// A cluster's nodes are told apart by host and port.
    #[error("Redis URL {0} names a unix socket; a Redis Cluster is reached by host and port")]
    Socket(usize),
    /// Prefix or region is empty or too long.
    #[error("the {0} must have 1 to {MAX_NAME_BYTES} bytes")]
    Name(&'static str),
    /// The file cannot be read, or holds no certificate.
    #[error("cannot use the CA file {path}: {problem}")]
    CaFile {
        /// Which file.
        path: PathBuf,
        /// Why.
        problem: String,
    },
    /// Certificates of authorities are of use with TLS only.
    #[error("a CA file is given, but Redis URL {0} is not rediss://")]
    CaWithoutTls(usize),
}

impl StoreOptions {
    /// Reads the value of one setting: a URL, or several nodes of a cluster separated by commas, where those after the
    /// first may be `host:port` alone and take the rest from the first. `?cluster=true` after a single URL says that
    /// it is a node of a cluster. A comma in a password is written as `%2C`.
    pub fn parse(text: &str, region: &str) -> Result<StoreOptions, OptionsError> {
        let mut cluster = false;
        let mut urls: Vec<String> = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let url = part.strip_suffix(CLUSTER_QUERY);
            cluster |= url.is_some();
            let url = url.unwrap_or(part);
            if url.contains(['?', '#']) {
                return Err(OptionsError::Url(urls.len() + 1));
            }
            let url = match urls.first() {
                Some(first) if !url.contains("://") => {
                    with_host(first, url).ok_or(OptionsError::Url(urls.len() + 1))?
                }
                _ => url.to_owned(),
            };
            urls.push(url);
        }
        let options = StoreOptions {
            cluster: cluster || urls.len() > 1,
            urls,
            prefix: DEFAULT_PREFIX.to_owned(),
            region: region.to_owned(),
            ca_file: None,
        };
        options.seeds()?;
        Ok(options)
    }

    /// Checks everything, and reads the CA file.
    pub(super) fn check(&self) -> Result<Checked, OptionsError> {
        for (what, text) in [("prefix", &self.prefix), ("region", &self.region)] {
            if text.is_empty() || text.len() > MAX_NAME_BYTES {
                return Err(OptionsError::Name(what));
            }
        }
        let seeds = self.seeds()?;
        let ca = self.ca_file.as_ref().map(|path| {
            let wrong = |problem: String| OptionsError::CaFile { path: path.clone(), problem };
            std::fs::read(path).map_err(|error| wrong(error.to_string()))
        });
        let mut checked =
            Checked { seeds, cluster: self.cluster || self.urls.len() > 1, ca: ca.transpose()? };
        if let (Some(path), Some(ca)) = (&self.ca_file, &checked.ca) {
            let wrong =
                |problem: &str| OptionsError::CaFile { path: path.clone(), problem: problem.to_owned() };
            if !String::from_utf8_lossy(ca).contains("-----BEGIN CERTIFICATE-----") {
                return Err(wrong("it holds no PEM certificate"));
            }
            let plain = |seed: &ConnectionInfo| !matches!(seed.addr(), ConnectionAddr::TcpTls { .. });
            if let Some(place) = checked.seeds.iter().position(plain) {
                return Err(OptionsError::CaWithoutTls(place + 1));
            }
            let seeds = checked.seeds.iter().map(|seed| checked.client(seed.clone()).map(|_| ()));
            seeds.collect::<Result<(), _>>().map_err(|_| wrong("a certificate in it cannot be read"))?;
        }
        checked.seeds.truncate(MAX_URLS);
        Ok(checked)
    }

    fn seeds(&self) -> Result<Vec<ConnectionInfo>, OptionsError> {
        if self.urls.is_empty() || self.urls.len() > MAX_URLS {
            return Err(OptionsError::Count);
        }
        let cluster = self.cluster || self.urls.len() > 1;
        (1..).zip(&self.urls).map(|(place, url)| seed(place, url, cluster)).collect()
    }
}

/// Options that can be connected with.
#[derive(Clone)]
pub(super) struct Checked {
    pub(super) seeds: Vec<ConnectionInfo>,
    pub(super) cluster: bool,
    ca: Option<Vec<u8>>,
}

impl Checked {
    /// What connects to `to`.
    pub(super) fn client(&self, to: ConnectionInfo) -> redis::RedisResult<Client> {
        match &self.ca {
            Some(ca) => {
                let certificates = TlsCertificates { client_tls: None, root_cert: Some(ca.clone()) };
                Client::build_with_tls(to, certificates)
            }
            None => Client::open(to),
        }
    }
}

fn seed(place: usize, url: &str, cluster: bool) -> Result<ConnectionInfo, OptionsError> {
    // The crate's errors could repeat a part of the URL.
    let info = url.into_connection_info().map_err(|_| OptionsError::Url(place))?;
    if cluster && info.redis_settings().db() != 0 {
        return Err(OptionsError::Database(place));
    }
    if cluster && matches!(info.addr(), ConnectionAddr::Unix(_)) {
        return Err(OptionsError::Socket(place));
    }
    Ok(info.set_tcp_settings(tcp_settings()))
}

/// So that a cut network is noticed even where nothing is being asked.
fn tcp_settings() -> TcpSettings {
    const IDLE: Duration = Duration::from_secs(5);
    const PROBE_INTERVAL: Duration = Duration::from_secs(1);
    let keepalive = TcpKeepalive::new().with_time(IDLE).with_interval(PROBE_INTERVAL);
    let settings = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(super::wire::HUNG_AFTER);
    settings
}

/// `url` with another host and port.
fn with_host(url: &str, host: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let login = rest.rsplit_once('@').map(|(login, _)| format!("{login}@")).unwrap_or_default();
    Some(format!("{scheme}://{login}{host}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<StoreOptions, OptionsError> {
        StoreOptions::parse(text, "eu")
    }

    #[test]
    fn urls() {
        let one = parse("redis://localhost:6379/3").unwrap();
        assert!(!one.cluster);
        assert!(parse("redis://localhost?cluster=true").unwrap().cluster);
        assert!(parse("rediss://user:pa%2Css@cache.example.com").is_ok());
        assert!(parse("unix:///run/redis.sock").is_ok());
        let several = parse("rediss://u:p@a:1, b:2 ,redis://c:3").unwrap();
        assert!(several.cluster);
        assert_eq!(several.urls, ["rediss://u:p@a:1", "rediss://u:p@b:2", "redis://c:3"]);
    }

    #[test]
    fn errors_say_what_is_wrong_and_not_the_password() {
        let cases = [
            ("", OptionsError::Count),
            ("http://u:hunter2@a", OptionsError::Url(1)),
            ("hunter2", OptionsError::Url(1)),
            ("redis://u:hunter2@a:99999", OptionsError::Url(1)),
            ("redis://u:hunter2@a/hunter2", OptionsError::Url(1)),
            ("redis://u:hunter2@a:1,redis://b/2", OptionsError::Database(2)),
            ("redis://u:hunter2@a:1,unix:///x", OptionsError::Socket(2)),
        ];
        for (text, expected) in cases {
            let error = parse(text).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"));
            assert_eq!(error, expected, "{text}");
        }
        let options = parse("redis://u:hunter2@a").unwrap();
        assert!(!format!("{options:?}").contains("hunter2"));
        assert_eq!(
            StoreOptions { region: String::new(), ..options }.check().err(),
            Some(OptionsError::Name("region"))
        );
    }

    #[test]
    fn a_ca_file_must_be_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        let options = StoreOptions { ca_file: Some(path.clone()), ..parse("rediss://a").unwrap() };
        let refused = |options: &StoreOptions| options.check().err().map(|error| error.to_string());
        assert!(refused(&options).unwrap().contains("No such file"));
        std::fs::write(&path, "nothing").unwrap();
        assert!(refused(&options).unwrap().contains("no PEM certificate"));
        std::fs::write(&path, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
        assert!(refused(&options).unwrap().contains("cannot be read"));
        let plain = StoreOptions { urls: vec!["redis://a".to_owned()], ..options };
        assert_eq!(plain.check().err(), Some(OptionsError::CaWithoutTls(1)));
    }
}
