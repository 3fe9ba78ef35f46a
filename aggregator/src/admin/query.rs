//! The query of `/v1/keys`: which key is asked about, as bytes.
//!
//! Identifiers come from headers and need not be UTF-8, so the usual decoders into text would ask for another key.
//!
//! Leaves to others: what is known of the key (`keys`).

use weir_core::key::MAX_TEXT_BYTES;

/// Which key is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyQuery {
    /// `default` unless given.
    pub workspace: Vec<u8>,
    /// As in the rule.
    pub namespace: Vec<u8>,
    /// As a request carries it.
    pub identifier: Vec<u8>,
}

/// Why a query names no key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// What must be there is not, or is empty.
    #[error(
        "missing: {0}; ask for /v1/keys?namespace=…&identifier=…, and &workspace=… if it is not \"default\""
    )]
    Missing(String),
    /// Not one of the three.
    #[error("unknown parameter {0:?}; there are workspace, namespace and identifier")]
    Unknown(String),
    /// Given twice.
    #[error("{0} is given more than once")]
    Repeated(&'static str),
    /// Longer than any key's.
    #[error("{0} is longer than {MAX_TEXT_BYTES} bytes, so no key has it")]
    Long(&'static str),
    /// A `%` without two hexadecimal digits.
    #[error("{0} is not percent-encoded as it should be")]
    Encoding(&'static str),
}

impl KeyQuery {
    /// Reads a query string.
    pub fn parse(raw: &str) -> Result<KeyQuery, QueryError> {
        const NAMES: [&str; 3] = ["workspace", "namespace", "identifier"];
        let mut values: [Option<Vec<u8>>; 3] = [None, None, None];
        for pair in raw.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let found = NAMES.iter().zip(&mut values).find(|(known, _)| **known == name);
            let (known, place) = found.ok_or_else(|| QueryError::Unknown(name.to_owned()))?;
            let value = decode(value).ok_or(QueryError::Encoding(known))?;
            if place.replace(value).is_some() {
                return Err(QueryError::Repeated(known));
            }
        }
        let [workspace, namespace, identifier] = values;
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
        Ok(KeyQuery { workspace, namespace, identifier })
    }
}

/// Undoes percent-encoding, with `+` for a space.
pub(crate) fn decode(value: &str) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(value.len());
    let mut bytes = value.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'+' => b' ',
            b'%' => digit(bytes.next()?)? << 4 | digit(bytes.next()?)?,
            other => other,
        });
    }
    Some(decoded)
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(workspace: &[u8], namespace: &[u8], identifier: &[u8]) -> KeyQuery {
        KeyQuery {
            workspace: workspace.to_vec(),
            namespace: namespace.to_vec(),
            identifier: identifier.to_vec(),
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
            (&long, Err(QueryError::Long("namespace"))),
        ];
        for (raw, expected) in cases {
            assert_eq!(KeyQuery::parse(raw), expected, "{raw}");
        }
    }
}
