//! Parses the queries of `/v1/keys` and `/v1/top`.
//!
//! Identifiers come from headers and need not be UTF-8, so they are decoded as bytes. A text decoder would select
//! another key.

use crate::net::percent::decode;
use weir_core::model::key::{MAX_DURATION_MS, MAX_TEXT_BYTES, MIN_DURATION_MS};
use weir_core::region::top::MAX_TOP;

/// The requested key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyQuery {
    /// The workspace, by default `default`.
    pub workspace: Vec<u8>,
    /// The namespace as in the rule.
    pub namespace: Vec<u8>,
    /// The identifier, as a request carries it or as it is counted.
    pub identifier: Vec<u8>,
    /// Whether the identifier is given in the form in which it is counted.
    pub is_counted: bool,
    /// The only window to show.
    pub window_ms: Option<u64>,
}

/// Why a query is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// A required parameter is missing or empty.
    #[error("missing: {0}; expected ?namespace=…&identifier=…, and &workspace=… if it is not \"default\"")]
    Missing(String),
    /// An unknown parameter.
    #[error("unknown parameter {0:?}; expected workspace, namespace, identifier (or counted) and window_ms")]
    Unknown(String),
    /// Not a number, or out of range.
    #[error("{0} is not a number from {1} to {2}")]
    Number(&'static str, u64, u64),
    /// The identifier is given in both forms.
    #[error("both identifier and counted are given; expected one of them")]
    Both,
    /// An unknown parameter of `/v1/top`.
    #[error("unknown parameter {0:?}; expected limit")]
    UnknownOfTop(String),
    /// A parameter is given twice.
    #[error("{0} is given more than once")]
    Repeated(&'static str),
    /// Longer than any key's text.
    #[error("{0} is longer than {MAX_TEXT_BYTES} bytes, so no key has it")]
    Long(&'static str),
    /// A `%` is not followed by two hexadecimal digits.
    #[error("{0} is not validly percent-encoded; expected two hexadecimal digits after each %")]
    Encoding(&'static str),
}

impl KeyQuery {
    /// Parses a query string.
    pub fn parse(raw: &str) -> Result<KeyQuery, QueryError> {
        const NAMES: [&str; 5] = ["workspace", "namespace", "identifier", "counted", "window_ms"];
        let mut values: [Option<Vec<u8>>; 5] = [const { None }; 5];
        for pair in raw.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let found = NAMES.iter().zip(&mut values).find(|(known, _)| **known == name);
            let (known, place) = found.ok_or_else(|| QueryError::Unknown(name.to_owned()))?;
            let value = decode(value).ok_or(QueryError::Encoding(known))?;
            if place.replace(value).is_some() {
                return Err(QueryError::Repeated(known));
            }
        }
        let [workspace, namespace, raw, counted, window_ms] = values;
        if raw.is_some() && counted.is_some() {
            return Err(QueryError::Both);
        }
        let is_counted = counted.is_some();
        let identifier = raw.or(counted);
        let window_ms =
            window_ms.map(|text| number("window_ms", &text, MIN_DURATION_MS, MAX_DURATION_MS)).transpose()?;
        let given = |value: &Option<Vec<u8>>| value.as_ref().is_some_and(|value| !value.is_empty());
        let missing: Vec<&str> = [("namespace", given(&namespace)), ("identifier", given(&identifier))]
            .iter()
            .filter_map(|(name, given)| (!given).then_some(*name))
            .collect();
        let (Some(namespace), Some(identifier), true) = (namespace, identifier, missing.is_empty()) else {
            return Err(QueryError::Missing(missing.join(", ")));
        };
        let workspace = workspace.unwrap_or_else(|| b"default".to_vec());
        for (name, value) in [("workspace", &workspace), ("namespace", &namespace)] {
            if value.len() > MAX_TEXT_BYTES {
                return Err(QueryError::Long(name));
            }
        }
        Ok(KeyQuery { workspace, namespace, identifier, is_counted, window_ms })
    }
}

/// Parses `limit`, the number of keys that `/v1/top` returns; all by default.
pub fn limit(raw: &str) -> Result<usize, QueryError> {
    let mut limit = MAX_TOP as u64;
    for pair in raw.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("limit", value)) => limit = number("limit", value.as_bytes(), 1, MAX_TOP as u64)?,
            _ => return Err(QueryError::UnknownOfTop(pair.to_owned())),
        }
    }
    Ok(usize::try_from(limit).unwrap_or(MAX_TOP))
}

fn number(name: &'static str, text: &[u8], least: u64, most: u64) -> Result<u64, QueryError> {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.filter(|number| (least..=most).contains(number)).ok_or(QueryError::Number(name, least, most))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(workspace: &[u8], namespace: &[u8], identifier: &[u8]) -> KeyQuery {
        KeyQuery {
            workspace: workspace.to_vec(),
            namespace: namespace.to_vec(),
            identifier: identifier.to_vec(),
            is_counted: false,
            window_ms: None,
        }
    }

    #[test]
    fn queries() {
        let missing = |names: &str| Err(QueryError::Missing(names.to_owned()));
        let long = format!("namespace={}&identifier=i", "n".repeat(65));
        let cases = [
            ("namespace=n&identifier=i", Ok(query(b"default", b"n", b"i"))),
            ("&workspace=w&identifier=i&namespace=n&", Ok(query(b"w", b"n", b"i"))),
            ("namespace=a%20b+c&identifier=%ff%00%3D", Ok(query(b"default", b"a b c", b"\xff\x00="))),
            ("", missing("namespace, identifier")),
            ("namespace=n", missing("identifier")),
            ("namespace=&identifier=i", missing("namespace")),
            ("namespace=n&identifier", missing("identifier")),
            ("namespace=n&id=i", Err(QueryError::Unknown("id".into()))),
            ("namespace=n&namespace=n", Err(QueryError::Repeated("namespace"))),
            ("namespace=n&identifier=%f", Err(QueryError::Encoding("identifier"))),
            ("namespace=%zz&identifier=i", Err(QueryError::Encoding("namespace"))),
            (
                "namespace=n&counted=sha256%3Ax&window_ms=60000",
                Ok(KeyQuery {
                    is_counted: true,
                    window_ms: Some(60_000),
                    ..query(b"default", b"n", b"sha256:x")
                }),
            ),
            ("namespace=n&counted=a&identifier=a", Err(QueryError::Both)),
            (
                "namespace=n&identifier=i&window_ms=1",
                Err(QueryError::Number("window_ms", 1_000, 2_678_400_000)),
            ),
            (&long, Err(QueryError::Long("namespace"))),
        ];
        for (raw, expected) in cases {
            assert_eq!(KeyQuery::parse(raw), expected, "{raw}");
        }
    }

    #[test]
    fn limits() {
        let wrong = Err(QueryError::Number("limit", 1, 100));
        let cases = [
            ("", Ok(100)),
            ("limit=7", Ok(7)),
            ("limit=0", wrong.clone()),
            ("limit=101", wrong.clone()),
            ("limit=x", wrong),
        ];
        for (raw, expected) in cases {
            assert_eq!(limit(raw), expected, "{raw}");
        }
        assert_eq!(limit("a=1"), Err(QueryError::UnknownOfTop("a=1".into())));
    }
}
