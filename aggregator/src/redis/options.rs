//! Options of the regional store: a URL, parsed and checked before the first connection.
//!
//! Errors name the wrong part and never repeat the URL, because it may contain a password.

use super::names::MAX_NAME_BYTES;
use super::sentinel::{SentinelUrl, is_of_sentinels};
use super::target::Target;
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, TlsCertificates};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Most nodes that may be listed; a cluster reports its other nodes itself.
const MAX_URLS: usize = 64;
const DEFAULT_PREFIX: &str = "weir";
const CLUSTER_QUERY: &str = "?cluster=true";

/// How to connect to the regional store.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreOptions {
    /// URLs `redis://`, `rediss://` (TLS) or `unix://`, with `user:password@`, and with `/db` unless it is a cluster.
    /// Several URLs are nodes of one cluster with the same login. A single URL `redis+sentinel://` or `rediss+sentinel://` has the
    /// Sentinels that name the primary.
    pub urls: Vec<String>,
    /// Whether the store is a Redis Cluster. Always true if there are several URLs.
    pub cluster: bool,
    /// The prefix of every key, 1 to 64 bytes.
    pub prefix: String,
    /// The region's name, 1 to 64 bytes.
    pub region: String,
    /// The only certificate authorities that are trusted for TLS, in PEM; `None` trusts the system's.
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

/// What is wrong with [`StoreOptions`]. URLs are identified by their position, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// There is no URL, or there are more than 64.
    #[error("expected 1 to {MAX_URLS} Redis URLs, separated by commas")]
    Count,
    /// A URL has an unknown scheme, or a part of it is malformed.
    #[error(
        "Redis URL {0} must be like redis://user:password@host:6379/0 or rediss://… (percent-encode special characters)"
    )]
    Url(usize),
    /// A part of a URL of Sentinels is malformed.
    #[error(
        "{0} of the Redis URL is wrong; it must be like redis+sentinel://user:password@a:26379,b:26379/primary/0?sentinel_password=… \
         (percent-encode special characters)"
    )]
    Sentinel(&'static str),
    /// A cluster has only database 0.
    #[error("Redis URL {0} names a database; a Redis Cluster has only database 0")]
    Database(usize),
    /// Nodes of a cluster are identified by host and port.
    #[error("Redis URL {0} names a unix socket; a Redis Cluster needs host and port")]
    Socket(usize),
    /// The prefix or the region's name is empty or too long.
    #[error("the {0} must have 1 to {MAX_NAME_BYTES} bytes")]
    Name(&'static str),
    /// The CA file cannot be read, or contains no certificate.
    #[error("cannot use the CA file {path}: {problem}")]
    CaFile {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// A CA file has no effect without TLS.
    #[error("a CA file is given, but Redis URL {0} is not rediss://")]
    CaWithoutTls(usize),
}

impl StoreOptions {
    /// Parses the value of the option: one URL, or several nodes of a cluster separated by commas. Nodes after the
    /// first may be `host:port` alone; they take the rest from the first. `?cluster=true` after a single URL states
    /// that it is a node of a cluster. A comma in a password is written as `%2C`. A URL of Sentinels has their addresses, separated by
    /// commas.
    pub fn parse(text: &str, region: &str) -> Result<StoreOptions, OptionsError> {
        let mut cluster = false;
        let mut urls: Vec<String> = Vec::new();
        if is_of_sentinels(text.trim()) {
            urls.push(text.trim().to_owned());
        }
        let servers = if urls.is_empty() { text } else { "" };
        for part in servers.split(',').map(str::trim).filter(|part| !part.is_empty()) {
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

    /// Checks all options and reads the CA file.
    pub(super) fn check(&self) -> Result<Checked, OptionsError> {
        for (what, text) in [("prefix", &self.prefix), ("region", &self.region)] {
            if text.is_empty() || text.len() > MAX_NAME_BYTES {
                return Err(OptionsError::Name(what));
            }
        }
        let seeds = self.seeds()?;
        let cluster = self.cluster || self.urls.len() > 1;
        let ca = self.ca_file.as_ref().map(|path| {
            let wrong = |problem: String| OptionsError::CaFile { path: path.clone(), problem };
            std::fs::read(path).map_err(|error| wrong(error.to_string()))
        });
        let checked = Checked { seeds, cluster, ca: ca.transpose()? };
        if let (Some(path), Some(ca)) = (&self.ca_file, &checked.ca) {
            let wrong =
                |problem: &str| OptionsError::CaFile { path: path.clone(), problem: problem.to_owned() };
            if !String::from_utf8_lossy(ca).contains("-----BEGIN CERTIFICATE-----") {
                return Err(wrong("it holds no PEM certificate"));
            }
            if let Some(place) = checked.seeds.without_tls() {
                return Err(OptionsError::CaWithoutTls(place + 1));
            }
            let targets = checked.seeds().iter().map(|seed| checked.target(seed).map(|_| ()));
            targets.collect::<Result<(), _>>().map_err(|_| wrong("a certificate in it cannot be read"))?;
        }
        Ok(checked)
    }

    fn seeds(&self) -> Result<Seeds, OptionsError> {
        if self.urls.is_empty() || self.urls.len() > MAX_URLS {
            return Err(OptionsError::Count);
        }
        if let [url] = self.urls.as_slice()
            && is_of_sentinels(url)
        {
            let url = SentinelUrl::parse(url, &tcp_settings()).map_err(OptionsError::Sentinel)?;
            return Ok(Seeds::Sentinels(Box::new(url)));
        }
        let cluster = self.cluster || self.urls.len() > 1;
        let seeds = (1..).zip(&self.urls).map(|(place, url)| seed(place, url, cluster));
        Ok(Seeds::Servers(seeds.collect::<Result<_, _>>()?))
    }
}

/// What the URLs name.
#[derive(Clone)]
enum Seeds {
    /// A server, or nodes of a cluster.
    Servers(Vec<ConnectionInfo>),
    Sentinels(Box<SentinelUrl>),
}

impl Seeds {
    /// The position of a URL without TLS.
    fn without_tls(&self) -> Option<usize> {
        let plain = |seed: &ConnectionInfo| !matches!(seed.addr(), ConnectionAddr::TcpTls { .. });
        match self {
            Seeds::Servers(seeds) => seeds.iter().position(plain),
            Seeds::Sentinels(url) => (!url.has_tls()).then_some(0),
        }
    }
}

/// Validated options.
#[derive(Clone)]
pub(super) struct Checked {
    seeds: Seeds,
    pub(super) cluster: bool,
    ca: Option<Vec<u8>>,
}

impl Checked {
    /// The servers that the URLs name; of Sentinels, how their servers are connected to, at the address of the first Sentinel.
    pub(super) fn seeds(&self) -> &[ConnectionInfo] {
        match &self.seeds {
            Seeds::Servers(seeds) => seeds,
            Seeds::Sentinels(url) => std::slice::from_ref(url.servers()),
        }
    }

    /// Where a seed leads.
    pub(super) fn target(&self, seed: &ConnectionInfo) -> redis::RedisResult<Target> {
        let client = self.client(seed.clone())?;
        match &self.seeds {
            Seeds::Servers(_) => Ok(Target::Server(Arc::new(client))),
            Seeds::Sentinels(url) => Ok(Target::Primary(Arc::new(url.sentinels(self.ca.as_deref())?))),
        }
    }

    fn client(&self, to: ConnectionInfo) -> redis::RedisResult<Client> {
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
    // The crate's error could repeat a part of the URL.
    let info = url.into_connection_info().map_err(|_| OptionsError::Url(place))?;
    if cluster && info.redis_settings().db() != 0 {
        return Err(OptionsError::Database(place));
    }
    if cluster && matches!(info.addr(), ConnectionAddr::Unix(_)) {
        return Err(OptionsError::Socket(place));
    }
    Ok(info.set_tcp_settings(tcp_settings()))
}

/// Keepalive settings, so that a broken network is noticed even on an idle connection.
fn tcp_settings() -> TcpSettings {
    const IDLE: Duration = Duration::from_secs(5);
    const PROBE_INTERVAL: Duration = Duration::from_secs(1);
    let keepalive = TcpKeepalive::new().with_time(IDLE).with_interval(PROBE_INTERVAL);
    let settings = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(super::connection::HUNG_AFTER);
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
    fn errors_name_the_problem_and_not_the_password() {
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
