//! Secret identifiers are replaced by a keyed digest: HMAC-SHA-256 (RFC 2104), of which 128 bits are kept.
//!
//! With a plain digest, a person with access to the counts could test guessed secrets against it.

use crate::fields::Errors;
use crate::fields::Fields;
use crate::fields::{Value, quoted};
use crate::matching::canonical::DIGEST_PREFIX;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::ops::RangeInclusive;
use sha2::{Digest, Sha256};

/// Every digest begins with this prefix, by which it can be recognised.
const PREFIX: &[u8] = b"hmac:";

/// Whether a text may be an identifier of a rule whose identifiers are digests: one of those or of a long text, what stands for a value that
/// is missing, ambiguous or unlisted, or everybody.
pub fn is_digest(identifier: &[u8]) -> bool {
    let begins = |prefix: &&[u8]| identifier.starts_with(prefix);
    [PREFIX, DIGEST_PREFIX, b"\\"].iter().any(begins) || identifier == b"*"
}

/// Length of the longest name of an environment variable, in bytes.
pub(super) const VARIABLE_BYTES_MAX: usize = 255;
const BLOCK_BYTES: usize = 64;
const DIGEST_BYTES_KEPT: usize = 16;

/// Returns the value of an environment variable by its name; `None` if it is not set, or not passed to the filter.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Replaces the value of each variable when a configuration is checked outside its Envoy.
pub const STAND_IN: &str = "stands-for-a-secret";

/// The format of one kind of secret. Errors end in logs, so they never contain a value: it may be the secret with one
/// wrong character.
pub(super) struct SecretKind<T> {
    /// The field with the secret.
    pub field: &'static str,
    /// The field with the name of an environment variable that has it.
    pub variable_field: &'static str,
    pub problem: &'static str,
    pub expected: &'static str,
    /// The allowed lengths in bytes.
    pub bytes: RangeInclusive<usize>,
    /// The beginning of secrets that are no secrets, as examples have them.
    pub published: Option<&'static str>,
    pub make: fn(&str) -> T,
}

impl<T> SecretKind<T> {
    fn read(&self, text: &str) -> Option<T> {
        let fits = self.bytes.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        let is_published = self.published.is_some_and(|published| text.starts_with(published));
        (fits && !is_published).then(|| (self.make)(text))
    }
}

/// Reads a secret from its field, or from the environment variable that its other field names. Returns `Some(None)` if neither
/// is given.
pub(super) fn read_secret<T>(
    fields: &Fields<'_>,
    kind: &SecretKind<T>,
    variables: Variables<'_>,
    errors: &mut Errors,
) -> Option<Option<T>> {
    let SecretKind { field: name, variable_field: variable, .. } = *kind;
    if fields.get(name).is_some() && fields.get(variable).is_some() {
        return fields.exactly_one(&[name, variable], errors).and(None);
    }
    let given = fields.optional(name, errors, |node, errors| {
        let secret = if let Value::Text(text) = node.value { kind.read(text) } else { None };
        secret.or_else(|| errors.reject(&node.path, kind.problem, kind.expected))
    })?;
    let read = fields.optional(variable, errors, |node, errors| {
        let name = node.visible(VARIABLE_BYTES_MAX, errors)?;
        let Some(value) = variables(name) else {
            let problem = format!("the filter has no environment variable {}", quoted(name));
            return errors.reject(&node.path, problem, "one listed in vm_config.environment_variables");
        };
        let problem = format!("the value of the environment variable {} cannot be used", quoted(name));
        kind.read(&value).or_else(|| errors.reject(&node.path, problem, kind.expected))
    })?;
    Some(given.or(read))
}

/// The secret of manifests and examples, which protects nothing.
pub const PLACEHOLDER: &str = "change-me";

/// `hash_key`, as the states of the two hash functions after its blocks. It is never printed.
#[derive(Clone)]
pub struct SecretKey {
    inner: Sha256,
    outer: Sha256,
}

impl SecretKey {
    pub(super) const KIND: SecretKind<SecretKey> = SecretKind {
        field: "hash_key",
        variable_field: "hash_key_env",
        problem: "it is not a key",
        expected: "16 to 1024 printable ASCII characters without spaces, a random text that is not published",
        bytes: 16..=1_024,
        published: Some(PLACEHOLDER),
        make: |text| SecretKey::new(text.as_bytes()),
    };

    fn new(key: &[u8]) -> SecretKey {
        let mut block = [0_u8; BLOCK_BYTES];
        let digest = Sha256::digest(key);
        let key: &[u8] = if key.len() > BLOCK_BYTES { &digest } else { key };
        block.iter_mut().zip(key).for_each(|(to, from)| *to = *from);
        SecretKey {
            inner: Sha256::new_with_prefix(block.map(|byte| byte ^ 0x36)),
            outer: Sha256::new_with_prefix(block.map(|byte| byte ^ 0x5c)),
        }
    }

    fn digest(&self, text: &[u8]) -> [u8; 32] {
        let inner = self.inner.clone().chain_update(text).finalize();
        self.outer.clone().chain_update(inner).finalize().into()
    }

    /// Appends the digest of a raw identifier: `hmac:` and 32 hexadecimal digits.
    pub fn write(&self, raw: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(PREFIX);
        for byte in self.digest(raw).iter().take(DIGEST_BYTES_KEPT) {
            out.extend([byte >> 4, byte & 0xf].map(hex_digit));
        }
    }
}

fn hex_digit(nibble: u8) -> u8 {
    b"0123456789abcdef".get(usize::from(nibble)).copied().unwrap_or(b'0')
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn hex(bytes: &[u8]) -> String {
        let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 0xf].map(hex_digit));
        digits.map(char::from).collect()
    }

    /// RFC 4231, test cases 1, 2 and 6.
    #[test]
    fn digests_are_those_of_the_standard() {
        for (key, text, expected) in [
            (
                vec![0x0b; 20],
                &b"Hi There"[..],
                "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
            ),
            (
                b"Jefe".to_vec(),
                b"what do ya want for nothing?",
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
            ),
            (
                vec![0xaa; 131],
                b"Test Using Larger Than Block-Size Key - Hash Key First",
                "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
            ),
        ] {
            let key = SecretKey::new(&key);
            assert_eq!(hex(&key.digest(text)), expected);
            let mut written = Vec::new();
            key.write(text, &mut written);
            assert_eq!(written, [PREFIX, &expected.as_bytes()[..32]].concat());
        }
    }
}
