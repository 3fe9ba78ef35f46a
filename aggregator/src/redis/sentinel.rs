//! Redis Sentinel: the address of the primary, which changes at a failover.
//!
//! Every connection asks the Sentinels anew when it is made, and uses a server only if that one answers that it is the primary. A
//! Sentinel that has not noticed a failover yet names the former one.

use percent_encoding::percent_decode_str;
use redis::io::tcp::TcpSettings;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, TlsCertificates, TlsMode};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::timeout;

/// Schemes of a URL of Sentinels, without and with TLS, and those of a server that they stand for.
const SCHEMES: [(&str, &str); 2] = [("redis+sentinel://", "redis"), ("rediss+sentinel://", "rediss")];
/// A part of a URL.
const NAME: &str = "the name of the primary";
const DEFAULT_PORT: u16 = 26_379;
/// A Sentinel that hangs takes half of this until the next one's answer is used.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(3);

/// A parsed URL of Sentinels.
#[derive(Clone)]
pub(super) struct SentinelUrl {
    sentinels: Vec<ConnectionAddr>,
    user: Option<String>,
    password: Option<String>,
    /// The name by which the Sentinels monitor the primary.
    name: String,
    /// The first Sentinel's address, with the login, the database and the TLS of the Redis servers.
    servers: ConnectionInfo,
}

/// Finds the primary.
pub(super) struct Sentinels(Mutex<SentinelClient>);

/// Whether `url` has the scheme of a URL of Sentinels.
pub(super) fn is_of_sentinels(url: &str) -> bool {
    SCHEMES.iter().any(|(scheme, _)| url.starts_with(scheme))
}

impl SentinelUrl {
    /// Parses `redis+sentinel://user:password@host:26379,host:26379/name/0?sentinel_user=…&sentinel_password=…&sentinel_tls=…`.
    /// An error is the part that is wrong, in words that repeat nothing of it.
    pub(super) fn parse(url: &str, settings: &TcpSettings) -> Result<SentinelUrl, &'static str> {
        let scheme =
            SCHEMES.iter().find_map(|(scheme, of_server)| Some((url.strip_prefix(scheme)?, *of_server)));
        let (rest, scheme) = scheme.ok_or("the scheme")?;
        if rest.contains('#') {
            return Err("what follows the #");
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (login, rest) = rest.rsplit_once('@').map_or(("", rest), |(login, rest)| (login, rest));
        let (hosts, path) = rest.split_once('/').ok_or(NAME)?;
        let (name, database) = path.split_once('/').unwrap_or((path, "0"));
        let name = decode(name).filter(|name| !name.is_empty()).ok_or(NAME)?;
        let query = Query::parse(query)?;
        let hosts: Vec<&str> = hosts.split(',').map(str::trim).collect();
        let address = |host: &&str, scheme| -> Result<ConnectionAddr, &str> {
            let host = with_port(host);
            let info = format!("{scheme}://{host}").into_connection_info().map_err(|_| "a host")?;
            Ok(info.addr().clone())
        };
        let of_sentinels = match query.tls {
            None => scheme,
            Some(true) => "rediss",
            Some(false) => "redis",
        };
        let sentinels = hosts.iter().map(|host| address(host, of_sentinels)).collect::<Result<_, _>>()?;
        let first = with_port(hosts.first().copied().unwrap_or_default());
        let login = if login.is_empty() { String::new() } else { format!("{login}@") };
        let servers = format!("{scheme}://{login}{first}/{database}").into_connection_info();
        let servers = servers.map_err(|_| "the login or the database")?;
        let servers = servers.set_tcp_settings(settings.clone());
        Ok(SentinelUrl { sentinels, user: query.user, password: query.password, name, servers })
    }

    /// Whether the servers or the Sentinels are connected to by TLS.
    pub(super) fn has_tls(&self) -> bool {
        self.sentinels.iter().chain([self.servers.addr()]).any(is_tls)
    }

    /// How the servers are connected to; the address is that of a Sentinel.
    pub(super) fn servers(&self) -> &ConnectionInfo {
        &self.servers
    }

    /// A client that trusts `ca` alone, if given. Fails if the `redis` crate rejects it.
    pub(super) fn sentinels(&self, ca: Option<&[u8]>) -> redis::RedisResult<Sentinels> {
        let certificates = ca.map(|ca| TlsCertificates { client_tls: None, root_cert: Some(ca.to_vec()) });
        let settings = self.servers.redis_settings();
        let of_all = self.sentinels.iter().cloned();
        let mut builder = SentinelClientBuilder::new(of_all, &self.name, SentinelServerType::Master)?
            .set_client_to_redis_db(settings.db())
            .set_client_to_redis_tcp_settings(self.servers.tcp_settings().clone())
            .set_client_to_sentinel_tcp_settings(self.servers.tcp_settings().clone());
        if let Some(user) = settings.username() {
            builder = builder.set_client_to_redis_username(user);
        }
        if let Some(password) = settings.password() {
            builder = builder.set_client_to_redis_password(password);
        }
        if let Some(user) = &self.user {
            builder = builder.set_client_to_sentinel_username(user);
        }
        if let Some(password) = &self.password {
            builder = builder.set_client_to_sentinel_password(password);
        }
        if is_tls(self.servers.addr()) {
            builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
            if let Some(certificates) = &certificates {
                builder = builder.set_client_to_redis_certificates(certificates.clone());
            }
        }
        if self.sentinels.iter().all(is_tls)
            && let Some(certificates) = certificates
        {
            builder = builder.set_client_to_sentinel_certificates(certificates);
        }
        Ok(Sentinels(Mutex::new(builder.build()?)))
    }
}

impl Sentinels {
    /// Asks for the primary, and that one whether it is.
    pub(super) async fn primary(&self) -> redis::RedisResult<Client> {
        let asked = timeout(LOOKUP_TIMEOUT, async { self.0.lock().await.async_get_client().await });
        asked.await.unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()))
    }
}

/// What a URL of Sentinels says after `?`.
#[derive(Default)]
struct Query {
    user: Option<String>,
    password: Option<String>,
    tls: Option<bool>,
}

impl Query {
    fn parse(text: &str) -> Result<Query, &'static str> {
        let wrong = "what follows the ?";
        let mut query = Query::default();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').ok_or(wrong)?;
            let value = decode(value).ok_or(wrong)?;
            match (name, value.as_str()) {
                ("sentinel_user", _) => query.user = Some(value),
                ("sentinel_password", _) => query.password = Some(value),
                ("sentinel_tls", "true" | "false") => query.tls = Some(value == "true"),
                _ => return Err(wrong),
            }
        }
        Ok(query)
    }
}

fn is_tls(address: &ConnectionAddr) -> bool {
    matches!(address, ConnectionAddr::TcpTls { .. })
}

fn decode(text: &str) -> Option<String> {
    percent_decode_str(text).decode_utf8().ok().map(|text| text.into_owned())
}

/// `host` with the Sentinels' port, unless it has one.
fn with_port(host: &str) -> String {
    let after_brackets = host.rsplit_once(']').map_or(host, |(_, rest)| rest);
    if after_brackets.contains(':') { host.to_owned() } else { format!("{host}:{DEFAULT_PORT}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<SentinelUrl, &'static str> {
        SentinelUrl::parse(url, &TcpSettings::default())
    }

    fn addresses(url: &SentinelUrl) -> Vec<String> {
        url.sentinels.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_url_has_the_sentinels_their_login_and_that_of_the_servers() {
        let url = parse(
            "redis+sentinel://weir:pa%2Css@a,b:7,[::1]/main%2F1/3?sentinel_user=s&sentinel_password=%26%3D",
        )
        .unwrap();
        assert_eq!(addresses(&url), ["a:26379", "b:7", "::1:26379"]);
        assert_eq!(
            (url.name.as_str(), url.user.as_deref(), url.password.as_deref()),
            ("main/1", Some("s"), Some("&="))
        );
        let settings = url.servers().redis_settings();
        assert_eq!(
            (settings.username(), settings.password(), settings.db()),
            (Some("weir"), Some("pa,ss"), 3)
        );
        assert!(!url.has_tls() && !is_tls(url.servers().addr()));
        let plain = parse("redis+sentinel://a/main").unwrap();
        assert_eq!((plain.user, plain.servers.redis_settings().password()), (None, None));
    }

    #[test]
    fn tls_is_for_both_unless_the_sentinels_have_none() {
        let both = parse("rediss+sentinel://a,b/main").unwrap();
        assert!(both.has_tls() && both.sentinels.iter().all(is_tls));
        let servers = parse("rediss+sentinel://a,b/main?sentinel_tls=false").unwrap();
        assert!(servers.has_tls() && is_tls(servers.servers.addr()));
        assert_eq!(addresses(&servers), ["a:26379", "b:26379"]);
    }

    #[test]
    fn errors_name_the_part_and_no_secret() {
        for (url, part) in [
            ("redis+sentinel://u:hunter2@a:26379", "the name of the primary"),
            ("redis+sentinel://u:hunter2@a/", "the name of the primary"),
            ("redis+sentinel://u:hunter2@a:hunter2/main", "a host"),
            ("redis+sentinel://u:hunter2@a,,b/main", "a host"),
            ("redis+sentinel://u:hunter2@a/main/hunter2", "the login or the database"),
            ("redis+sentinel://a/main#hunter2", "what follows the #"),
            ("redis+sentinel://a/main?hunter2", "what follows the ?"),
            ("redis+sentinel://a/main?sentinel_tls=hunter2", "what follows the ?"),
            ("redis+sentinel://a/main?password=hunter2", "what follows the ?"),
        ] {
            let error = parse(url).err().unwrap_or_else(|| panic!("{url} was taken"));
            assert_eq!(error, part, "{url}");
        }
    }
}
