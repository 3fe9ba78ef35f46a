//! Keys: what is counted, and its canonical bytes.
//!
//! A key is (workspace, namespace, identifier, duration, epoch, resolution). The limit is not part of it, so changing a limit keeps the
//! count. Every table, message and store uses the same canonical bytes. Different keys have different bytes, as each text is preceded by
//! its length.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hash::Hasher;
use siphasher::sip::SipHasher13;

/// Longest workspace, namespace or (canonical) identifier in bytes.
pub const MAX_TEXT_BYTES: usize = 64;
/// Longest canonical key in bytes.
pub const MAX_KEY_BYTES: usize = 1 + 3 * (1 + MAX_TEXT_BYTES) + 8 + 4 + 2;
/// Shortest window in milliseconds: one second.
pub const MIN_DURATION_MS: u64 = 1_000;
/// Longest window in milliseconds: 366 days.
pub const MAX_DURATION_MS: u64 = 366 * 24 * 3_600 * 1_000;
/// Highest number of cells in a window.
pub const MAX_RESOLUTION: u16 = 10;
/// Cells in a window of a rule with a hard limit. Partly covered cells count in full, so at most one part in eleven is lost.
pub const HARD_LIMIT_RESOLUTION: u16 = 10;

/// Prefix of the namespaces that only Weir counts in. No configuration, request or live control can name one.
pub const RESERVED_PREFIX: &str = "~";

const VERSION: u8 = 1;

/// Whether a namespace is one that only Weir counts in.
pub fn is_reserved(namespace: &[u8]) -> bool {
    namespace.starts_with(RESERVED_PREFIX.as_bytes())
}

/// A key's parts, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyParts<'a> {
    /// The workspace; at most 64 bytes.
    pub workspace: &'a [u8],
    /// The namespace of the limit; at most 64 bytes.
    pub namespace: &'a [u8],
    /// The canonical identifier; at most 64 bytes.
    pub identifier: &'a [u8],
    /// The window in milliseconds, 1 s to 366 days.
    pub duration_ms: u64,
    /// The epoch: 0, or the revision of the newest reset.
    pub epoch: u32,
    /// Cells in a window: 1, or up to [`MAX_RESOLUTION`] with a hard limit (see [`crate::model::window`]).
    pub resolution: u16,
}

/// A namespace of a workspace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Namespace<T> {
    /// The workspace.
    pub workspace: T,
    /// Its name.
    pub name: T,
}

/// Why bytes are not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// A format of a newer version of Weir.
    #[error("unknown key version {0}")]
    Version(u8),
    /// Too short, too long, or a text in it is too long.
    #[error("malformed key")]
    Malformed,
    /// The duration is outside 1 s to 366 days.
    #[error("window of {0} ms is outside 1 s to 366 days")]
    Duration(u64),
    /// The resolution is 0, too fine, or does not divide the duration.
    #[error("resolution {0} does not divide the window")]
    Resolution(u16),
}

impl<'a> KeyParts<'a> {
    /// The namespace with its workspace.
    pub fn whole_namespace(&self) -> Namespace<&'a [u8]> {
        Namespace { workspace: self.workspace, name: self.namespace }
    }

    /// Appends the canonical bytes to `out`; fails for parts that [`KeyParts::decode`] would reject.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), KeyError> {
        self.check()?;
        out.push(VERSION);
        for text in [self.workspace, self.namespace, self.identifier] {
            out.push(u8::try_from(text.len()).map_err(|_| KeyError::Malformed)?);
            out.extend_from_slice(text);
        }
        out.extend_from_slice(&self.duration_ms.to_le_bytes());
        out.extend_from_slice(&self.epoch.to_le_bytes());
        out.extend_from_slice(&self.resolution.to_le_bytes());
        Ok(())
    }

    /// Reads canonical bytes; every byte must belong to the key.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, KeyError> {
        let (&version, rest) = bytes.split_first().ok_or(KeyError::Malformed)?;
        if version != VERSION {
            return Err(KeyError::Version(version));
        }
        let (workspace, rest) = text(rest)?;
        let (namespace, rest) = text(rest)?;
        let (identifier, rest) = text(rest)?;
        let (duration, rest) = rest.split_first_chunk::<8>().ok_or(KeyError::Malformed)?;
        let (epoch, rest) = rest.split_first_chunk::<4>().ok_or(KeyError::Malformed)?;
        let resolution: &[u8; 2] = rest.try_into().map_err(|_| KeyError::Malformed)?;
        let parts = KeyParts {
            workspace,
            namespace,
            identifier,
            duration_ms: u64::from_le_bytes(*duration),
            epoch: u32::from_le_bytes(*epoch),
            resolution: u16::from_le_bytes(*resolution),
        };
        parts.check()?;
        Ok(parts)
    }

    /// Length of one cell in milliseconds; at least 1.
    pub fn cell_ms(&self) -> u64 {
        self.duration_ms.checked_div(u64::from(self.resolution)).unwrap_or(self.duration_ms).max(1)
    }

    /// Checks that the parts are a valid key.
    pub fn check(&self) -> Result<(), KeyError> {
        if [self.workspace, self.namespace, self.identifier].iter().any(|t| t.len() > MAX_TEXT_BYTES) {
            return Err(KeyError::Malformed);
        }
        if !(MIN_DURATION_MS..=MAX_DURATION_MS).contains(&self.duration_ms) {
            return Err(KeyError::Duration(self.duration_ms));
        }
        let divides = self.duration_ms.checked_rem(u64::from(self.resolution)) == Some(0);
        if self.resolution > MAX_RESOLUTION || !divides {
            return Err(KeyError::Resolution(self.resolution));
        }
        Ok(())
    }
}

fn text(bytes: &[u8]) -> Result<(&[u8], &[u8]), KeyError> {
    let (&len, rest) = bytes.split_first().ok_or(KeyError::Malformed)?;
    rest.split_at_checked(usize::from(len)).ok_or(KeyError::Malformed)
}

/// A checked key, cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    bytes: Arc<[u8]>,
}

impl Key {
    /// Checks canonical bytes from outside.
    pub fn parse(bytes: &[u8]) -> Result<Key, KeyError> {
        KeyParts::decode(bytes)?;
        Ok(Key { bytes: bytes.into() })
    }

    /// Builds the key of `parts`.
    pub fn new(parts: &KeyParts<'_>) -> Result<Key, KeyError> {
        let mut bytes = Vec::with_capacity(MAX_KEY_BYTES);
        parts.encode(&mut bytes)?;
        Ok(Key { bytes: bytes.into() })
    }

    /// The canonical bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The key's parts.
    pub fn parts(&self) -> KeyParts<'_> {
        // The bytes were checked when the key was made, so the empty parts below are not reached.
        KeyParts::decode(&self.bytes).unwrap_or(KeyParts {
            workspace: b"",
            namespace: b"",
            identifier: b"",
            duration_ms: MIN_DURATION_MS,
            epoch: 0,
            resolution: 1,
        })
    }
}

/// Secret of the hash that places keys; random for each table, so that a client cannot choose keys of one bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HashKey(pub u64, pub u64);

/// 64-bit keyed fingerprint of canonical key bytes (SipHash-1-3).
pub fn fingerprint(key: &[u8], secret: HashKey) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(secret.0, secret.1);
    hasher.write(key);
    hasher.finish()
}

/// Identifies a node: an Envoy process from the creation of its table to its erasure, or an embedded limiter. 128 random bits.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub [u8; 16]);

impl NodeId {
    /// Reads an id from the wire; it must have 16 bytes that are not all zero.
    pub fn parse(bytes: &[u8]) -> Option<NodeId> {
        let id: [u8; 16] = bytes.try_into().ok()?;
        (id != [0; 16]).then_some(NodeId(id))
    }
}

impl core::fmt::Display for NodeId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl core::fmt::Debug for NodeId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "NodeId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parts<'a>(texts: &'a [Vec<u8>; 3], duration_ms: u64, epoch: u32) -> KeyParts<'a> {
        let [workspace, namespace, identifier] = texts;
        KeyParts { workspace, namespace, identifier, duration_ms, epoch, resolution: 1 }
    }

    fn texts() -> impl Strategy<Value = [Vec<u8>; 3]> {
        let text = || prop::collection::vec(any::<u8>(), 0..MAX_TEXT_BYTES);
        (text(), text(), text()).prop_map(|(a, b, c)| [a, b, c])
    }

    proptest! {
        #[test]
        fn encoding_is_reversible_and_so_unambiguous(
            t in texts(), d in MIN_DURATION_MS..MAX_DURATION_MS, e in any::<u32>()
        ) {
            let key = Key::new(&parts(&t, d, e)).unwrap();
            prop_assert!(key.as_bytes().len() <= MAX_KEY_BYTES);
            prop_assert_eq!(key.parts(), parts(&t, d, e));
        }

        #[test]
        fn arbitrary_bytes_are_a_canonical_key_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..250)) {
            if let Ok(key) = Key::parse(&bytes) {
                prop_assert_eq!(Key::new(&key.parts()).unwrap(), key);
            }
        }
    }

    #[test]
    fn bad_keys_are_refused() {
        let good = [b"w".to_vec(), b"n".to_vec(), b"i".to_vec()];
        let long = [vec![b'x'; 65], b"n".to_vec(), b"i".to_vec()];
        let cases = [
            (parts(&long, 1_000, 0), KeyError::Malformed),
            (parts(&good, 999, 0), KeyError::Duration(999)),
            (parts(&good, MAX_DURATION_MS + 1, 0), KeyError::Duration(MAX_DURATION_MS + 1)),
            (KeyParts { resolution: 0, ..parts(&good, 1_000, 0) }, KeyError::Resolution(0)),
            (KeyParts { resolution: 7, ..parts(&good, 1_000, 0) }, KeyError::Resolution(7)),
        ];
        for (parts, expected) in cases {
            assert_eq!(Key::new(&parts), Err(expected), "{parts:?}");
        }
        assert_eq!(Key::parse(&[9]), Err(KeyError::Version(9)));
        assert_eq!(Key::parse(&[]), Err(KeyError::Malformed));
    }

    use std::vec;
}
