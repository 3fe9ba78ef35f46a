//! Host conditions: which `:authority` a rule matches. Ports, case and the root's trailing dot are ignored.
//!
//! Some upstreams decode a host's escapes and take other letters for ASCII ones (WHATWG URL), so a host with more than the plain
//! characters of names and addresses meets every condition, and identifies no client.

use crate::fields::Errors;
use crate::fields::Node;
use alloc::boxed::Box;

pub(in crate::rules) const HOST_BYTES_MAX: usize = 255;

/// One host that a rule matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::rules) enum Host {
    /// `*`: any host, also none.
    Any,
    /// `api.example.com`, in lower case.
    Exact(Box<[u8]>),
    /// `*.example.com`, stored as `.example.com`: any name below it, but not the name itself.
    Below(Box<[u8]>),
}

impl Host {
    pub fn read(node: Node<'_>, errors: &mut Errors) -> Option<Host> {
        const EXPECTED: &str = "a host without port: \"api.example.com\", \"*.example.com\" or \"*\"";
        let text = node.visible(HOST_BYTES_MAX, errors)?;
        if text == "*" {
            return Some(Host::Any);
        }
        let lower = text.to_ascii_lowercase();
        let (below, name) = match lower.strip_prefix("*.") {
            Some(name) => (true, name),
            None => (false, lower.as_str()),
        };
        let plain = !name.is_empty() && !name.contains(['*', '/', '@', '?', '#']);
        if !plain || host_of(name.as_bytes()) != name.as_bytes() {
            return node.reject(errors, "is not a host", EXPECTED);
        }
        match (below, lower.strip_prefix('*')) {
            (true, Some(suffix)) => Some(Host::Below(suffix.as_bytes().into())),
            _ => Some(Host::Exact(name.as_bytes().into())),
        }
    }

    pub fn matches(&self, authority: Option<&[u8]>) -> bool {
        let host = authority.map(host_of);
        match (self, host) {
            (Host::Any, _) => true,
            (_, None) => false,
            (_, Some(_)) if !authority.is_some_and(is_plain) => true,
            (Host::Exact(name), Some(host)) => name.eq_ignore_ascii_case(host),
            (Host::Below(suffix), Some(host)) => {
                let at = host.len().saturating_sub(suffix.len());
                at > 0 && host.get(at..).is_some_and(|end| end.eq_ignore_ascii_case(suffix))
            }
        }
    }
}

/// Whether all upstreams take the host of an authority for the same. Some take what stands before the first colon for it, also in a user.
pub(in crate::rules) fn is_plain(authority: &[u8]) -> bool {
    let user = memchr::memrchr(b'@', authority).and_then(|end| authority.get(..end)).unwrap_or_default();
    let host = host_of(authority);
    // An escape in brackets is a zone.
    let is_address = host.starts_with(b"[");
    !user.contains(&b':')
        && host.iter().all(|byte| match byte {
            b'%' => is_address,
            byte => byte.is_ascii_graphic() && !matches!(byte, b'\\' | b'/' | b'?' | b'#'),
        })
}

/// The authority without user, port and trailing dot.
pub(in crate::rules) fn host_of(authority: &[u8]) -> &[u8] {
    host_and_port(authority).0
}

/// The host as [`host_of`] returns it, and the port without leading zeros; an empty port if none is given.
pub(in crate::rules) fn host_and_port(authority: &[u8]) -> (&[u8], &[u8]) {
    let start = memchr::memrchr(b'@', authority).map_or(0, |at| at.saturating_add(1));
    let authority = authority.get(start..).unwrap_or_default();
    let end = match authority.first() {
        Some(b'[') => memchr::memchr(b']', authority).map(|at| at.saturating_add(1)),
        _ => memchr::memchr(b':', authority),
    };
    let (host, rest) = authority.split_at_checked(end.unwrap_or(authority.len())).unwrap_or((authority, &[]));
    let mut port = rest.strip_prefix(b":").unwrap_or_default();
    while let [b'0', tail @ ..] = port {
        port = tail;
    }
    (host.strip_suffix(b".").unwrap_or(host), port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::Value;

    fn host(text: &str) -> Option<Host> {
        Host::read(Node::root("configuration", &Value::Text(text.into())), &mut Errors::default())
    }

    fn check(pattern: &str, authority: Option<&str>, expected: bool) {
        let found = host(pattern).unwrap().matches(authority.map(str::as_bytes));
        assert_eq!(found, expected, "{pattern} {authority:?}");
    }

    #[test]
    fn hosts_match() {
        for (pattern, authority, expected) in [
            ("*", None, true),
            ("*", Some("x"), true),
            ("a.com", None, false),
            ("a.com", Some("a.com"), true),
            ("A.com", Some("a.COM:8080"), true),
            ("a.com", Some("a.com."), true),
            ("a.com", Some("a.com.:80"), true),
            ("a.com", Some("user@a.com"), true),
            ("a.com", Some("a.com:80@b.com"), true),
            ("*.a.com", Some("c.a.com:80@b.com"), true),
            ("a.com", Some("b.a.com"), false),
            ("*.a.com", Some("b.A.com:1"), true),
            ("*.a.com", Some("c.b.a.com"), true),
            ("*.a.com", Some("a.com"), false),
            ("*.a.com", Some(".a.com"), false),
            ("*.a.com", Some("xa.com"), false),
            ("*.a.com", Some(""), false),
            ("[::1]", Some("[::1]:80"), true),
            ("[::1]", Some("[::2]"), false),
            ("[::1]", Some("[fe80::1%25eth0]"), false),
            ("a.com", Some("%61.com"), true),
            ("*.a.com", Some("\u{ff41}.com"), true),
            ("a.com", Some("b%2Ecom"), true),
            ("a.com", Some("b_c!.com"), false),
        ] {
            check(pattern, authority, expected);
        }
    }

    #[test]
    fn hosts_that_can_never_match_are_refused() {
        for text in
            ["", "a.com:80", "a.com.", "a.*", "*a.com", "*.", "http://a.com", "a b", "*.*.com", "a@b", "."]
        {
            assert_eq!(host(text), None, "{text:?}");
        }
    }
}
