//! The host names by which a listener without a password may be called.
//!
//! A web page may let its own name resolve to this machine's address while the page is open (DNS rebinding). A browser then
//! treats this listener's responses as part of that page, which could read and change what the browser's user could.
//! Such a page cannot choose the `Host` of its requests: it is always the page's own name. Therefore a request is
//! accepted only if its host is an address, `localhost`, or a name that an operator has allowed.

use hyper::header::HOST;
use hyper::{HeaderMap, Uri};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Longest name, and longest label between dots, in bytes (RFC 1035, section 2.3.4).
const MAX_NAME_BYTES: usize = 253;
const MAX_LABEL_BYTES: usize = 63;

/// Names that are allowed besides addresses and `localhost`: in lower case, without a dot at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts(Vec<String>);

/// A text that is not a host name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a host name such as weir.example.com; give names without a port, several separated by commas"
)]
pub struct NotAName(String);

/// The host of a request.
#[derive(Debug, PartialEq, Eq)]
enum Called {
    Address,
    Name(String),
}

impl Hosts {
    /// Parses names separated by commas; the list may be empty.
    pub fn parse(list: &str) -> Result<Hosts, NotAName> {
        let names = list.split(',').map(str::trim).filter(|_| !list.trim().is_empty());
        names
            .map(|given| name(given).ok_or_else(|| NotAName(given.to_owned())))
            .collect::<Result<_, _>>()
            .map(Hosts)
    }

    /// Whether the host of a request is allowed, in its `Host` header and in its URI. A request without a `Host` header, or
    /// with two, is not allowed.
    pub fn allow(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        let mut hosts = headers.get_all(HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
        let host_is_allowed = host.to_str().is_ok_and(|host| self.allows(host));
        host_is_allowed && uri.authority().is_none_or(|authority| self.allows(authority.as_str()))
    }

    fn allows(&self, authority: &str) -> bool {
        match called(authority) {
            Some(Called::Address) => true,
            Some(Called::Name(name)) => {
                name == "localhost" || name.ends_with(".localhost") || self.0.contains(&name)
            }
            None => false,
        }
    }
}

/// Parses `host` or `host:port`, as in a `Host` header.
fn called(authority: &str) -> Option<Called> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (address, port) = rest.split_once(']')?;
        return (is_port(port) && address.parse::<Ipv6Addr>().is_ok()).then_some(Called::Address);
    }
    let (host, port) = authority.split_at(authority.find(':').unwrap_or(authority.len()));
    if !is_port(port) {
        return None;
    }
    match host.parse::<Ipv4Addr>() {
        Ok(_) => Some(Called::Address),
        Err(_) => name(host).map(Called::Name),
    }
}

/// Empty, or a colon and digits.
fn is_port(text: &str) -> bool {
    text.is_empty()
        || text.strip_prefix(':').is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Normalises a name for comparison; `None` if it is not a host name.
fn name(text: &str) -> Option<String> {
    let name = text.strip_suffix('.').unwrap_or(text);
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let label = |label: &str| (1..=MAX_LABEL_BYTES).contains(&label.len()) && label.bytes().all(letter);
    (name.len() <= MAX_NAME_BYTES && name.split('.').all(label)).then(|| name.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    fn is_allowed(names: &str, uri: &str, hosts: &[&[u8]]) -> bool {
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(HOST, HeaderValue::from_bytes(host).unwrap());
        }
        Hosts::parse(names).unwrap().allow(&uri.parse().unwrap(), &headers)
    }

    #[test]
    fn addresses_localhost_and_allowed_names() {
        let long = format!("{}.localhost", "a".repeat(64));
        let names = "weir.internal, Weir-2.Example.com.";
        let cases: [(&str, bool); 34] = [
            ("127.0.0.1:7070", true),
            ("127.0.0.1", true),
            ("10.1.2.3:80", true),
            ("[::1]:7070", true),
            ("[2001:db8::1]", true),
            ("localhost", true),
            ("LocalHost.:7070", true),
            ("weir.localhost:7070", true),
            ("localhost:", true),
            ("weir.internal:7070", true),
            ("WEIR.internal.", true),
            ("weir-2.example.com", true),
            ("", false),
            (".", false),
            (":7070", false),
            ("attacker.example", false),
            ("weir.internal.attacker.example", false),
            ("attackerlocalhost", false),
            ("localhost.attacker.example", false),
            ("localhost..", false),
            ("127.0.0.1.attacker.example", false),
            ("127.1", false),
            ("0x7f000001", false),
            ("attacker.example@127.0.0.1", false),
            ("127.0.0.1@attacker.example", false),
            ("localhost:80@attacker.example", false),
            ("localhost:+80", false),
            ("localhost:80:80", false),
            ("localhost, attacker.example", false),
            ("[::1", false),
            ("[localhost]", false),
            ("[::1]attacker.example", false),
            ("::1", false),
            (&long, false),
        ];
        for (host, expected) in cases {
            assert_eq!(is_allowed(names, "/v1/top", &[host.as_bytes()]), expected, "{host:?}");
        }
        assert!(!is_allowed("", "/v1/top", &[b"weir.internal"]), "allowed only if listed");
        assert!(!is_allowed(names, "/v1/top", &[b"localhost\xff"]));
    }

    #[test]
    fn a_host_given_twice_has_to_be_allowed_twice() {
        let cases: [(&str, &[&[u8]], bool); 6] = [
            ("/v1/top", &[], false),
            ("/v1/top", &[b"localhost", b"localhost"], false),
            ("http://localhost/v1/top", &[b"localhost"], true),
            ("http://attacker.example/v1/top", &[b"localhost"], false),
            ("http://localhost/v1/top", &[b"attacker.example"], false),
            ("http://localhost/v1/top", &[], false),
        ];
        for (uri, hosts, expected) in cases {
            assert_eq!(is_allowed("", uri, hosts), expected, "{uri} {hosts:?}");
        }
    }

    #[test]
    fn lists_of_names() {
        for list in ["", "  "] {
            assert_eq!(Hosts::parse(list), Ok(Hosts::default()));
        }
        for list in ["a:80", "a,,b", ",", "http://a", "*.a", "a b", "ä", "[::1]", "a@b"] {
            assert!(Hosts::parse(list).is_err(), "{list:?}");
        }
    }
}
