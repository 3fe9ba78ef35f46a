//! Parses a cluster's topology: server addresses and slot ranges.

use redis::{ConnectionAddr, Value};

/// The address of a server. A unix socket has its path as host, and port 0.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::redis) struct Address {
    host: String,
    port: u16,
}

/// A range of consecutive slots and its primary.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::redis) struct Range {
    pub(in crate::redis) first: u16,
    pub(in crate::redis) last: u16,
    pub(in crate::redis) owner: Address,
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.port {
            0 => f.write_str(&self.host),
            port => write!(f, "{}:{port}", self.host),
        }
    }
}

impl Address {
    pub(in crate::redis) fn of(address: &ConnectionAddr) -> Address {
        let (host, port) = match address {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                (host.clone(), *port)
            }
            ConnectionAddr::Unix(path) => (path.to_string_lossy().into_owned(), 0),
            // The `redis` crate may add other kinds of address; this type cannot distinguish them.
            other => (other.to_string(), 0),
        };
        Address { host, port }
    }

    /// This address with the kind of connection of `other`.
    pub(in crate::redis) fn like(&self, other: &ConnectionAddr) -> ConnectionAddr {
        let mut address = other.clone();
        match &mut address {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                host.clone_from(&self.host);
                *port = self.port;
            }
            _ => {}
        }
        address
    }

    /// The target of a `MOVED` or `ASK` redirection, from `<slot> <host>:<port>`. An empty host means the server that
    /// answered.
    pub(in crate::redis) fn redirected(&self, detail: &str) -> Option<Address> {
        let (_, target) = detail.split_once(' ')?;
        let (host, port) = target.trim().rsplit_once(':')?;
        let host = if host.is_empty() { &self.host } else { host };
        Some(Address { host: host.to_owned(), port: port.parse().ok()? })
    }
}

/// Parses the answer to `CLUSTER SLOTS` of the server at `from`; skips malformed ranges.
pub(in crate::redis) fn parse(answer: Value, from: &Address) -> Vec<Range> {
    let Value::Array(ranges) = answer else { return Vec::new() };
    ranges.iter().filter_map(|range| parse_range(range, from)).collect()
}

fn parse_range(range: &Value, from: &Address) -> Option<Range> {
    let Value::Array(fields) = range else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = fields.as_slice() else {
        return None;
    };
    let [host, Value::Int(port), ..] = master.as_slice() else { return None };
    let host = match host {
        // A server without an address of its own sends nothing or "?".
        Value::BulkString(host) if !host.is_empty() && host != b"?" => {
            String::from_utf8(host.clone()).ok()?
        }
        _ => from.host.clone(),
    };
    Some(Range {
        first: u16::try_from(*first).ok()?,
        last: u16::try_from(*last).ok()?,
        owner: Address { host, port: u16::try_from(*port).ok()? },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str, port: u16) -> Address {
        Address { host: host.to_owned(), port }
    }

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        let master = Value::Array(vec![host, Value::Int(port), Value::BulkString(b"id".to_vec())]);
        Value::Array(vec![Value::Int(first), Value::Int(last), master])
    }

    #[test]
    fn ranges() {
        let host = |text: &[u8]| Value::BulkString(text.to_vec());
        let answer = Value::Array(vec![
            range(0, 5, host(b"10.0.0.1"), 7_000),
            range(6, 9, host(b""), 7_001),
            range(10, 11, Value::Nil, 7_002),
            range(-1, 11, Value::Nil, 7_002),
            Value::Nil,
        ]);
        let expected = [
            Range { first: 0, last: 5, owner: at("10.0.0.1", 7_000) },
            Range { first: 6, last: 9, owner: at("seed", 7_001) },
            Range { first: 10, last: 11, owner: at("seed", 7_002) },
        ];
        assert_eq!(parse(answer, &at("seed", 1)), expected);
        assert_eq!(parse(Value::Nil, &at("seed", 1)), []);
    }

    #[test]
    fn redirections() {
        let cases = [
            ("3999 127.0.0.1:6381", Some(at("127.0.0.1", 6_381))),
            ("3999 ::1:6381", Some(at("::1", 6_381))),
            ("3999 :6381", Some(at("seed", 6_381))),
            ("3999", None),
            ("3999 host:port", None),
        ];
        for (detail, expected) in cases {
            assert_eq!(at("seed", 1).redirected(detail), expected, "{detail}");
        }
    }
}
