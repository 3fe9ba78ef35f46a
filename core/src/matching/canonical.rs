//! The canonical form of an identifier, as keys contain it: the raw identifier if it is short, a digest otherwise.

use alloc::vec::Vec;
use sha2::{Digest, Sha256};

/// Longest canonical identifier in bytes.
pub const MAX_IDENTIFIER_BYTES: usize = 64;

/// Prefix of every digest. A raw identifier with this prefix is always digested.
pub const DIGEST_PREFIX: &[u8] = b"sha256:";

/// Length of every digest.
pub const DIGEST_BYTES: usize = 50;

/// Appends the canonical form of a raw identifier: itself up to 64 bytes, else `sha256:` and the digest in
/// base64url without padding (50 bytes). Different raw identifiers have different canonical ones.
pub fn canonical_identifier(raw: &[u8], out: &mut Vec<u8>) {
    if raw.len() <= MAX_IDENTIFIER_BYTES && !raw.starts_with(DIGEST_PREFIX) {
        out.extend_from_slice(raw);
    } else {
        out.extend_from_slice(DIGEST_PREFIX);
        push_base64url(&Sha256::digest(raw), out);
    }
}

/// Appends a canonical identifier with its epoch, for stores without a place for the epoch. In epoch 0 it is the identifier itself, else
/// one that no request can have, as `\@` does not occur in identifiers.
pub fn identifier_in_epoch(canonical: &[u8], epoch: u32, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(canonical);
    if epoch == 0 {
        return;
    }
    out.extend_from_slice(br"\@");
    out.extend_from_slice(&epoch.to_be_bytes());
    let Some(whole) = out.get(start..) else { return };
    if whole.len() > MAX_IDENTIFIER_BYTES {
        let digest = Sha256::digest(whole);
        out.truncate(start);
        out.extend_from_slice(DIGEST_PREFIX);
        push_base64url(&digest, out);
    }
}

/// The identifier and the epoch that [`identifier_in_epoch`] was given, unless their digest stands for them.
pub fn split_epoch(stored: &[u8]) -> (&[u8], u32) {
    let parts = stored.len().checked_sub(6).and_then(|at| stored.split_at_checked(at));
    match parts {
        Some((canonical, [b'\\', b'@', epoch @ ..])) => {
            (canonical, epoch.try_into().map_or(0, u32::from_be_bytes))
        }
        _ => (stored, 0),
    }
}

/// RFC 4648's URL-safe alphabet, without padding.
fn push_base64url(bytes: &[u8], out: &mut Vec<u8>) {
    for chunk in bytes.chunks(3) {
        let mut padded = [0_u8; 4];
        padded.iter_mut().skip(1).zip(chunk).for_each(|(to, from)| *to = *from);
        let group = u32::from_be_bytes(padded);
        let sextets = [group >> 18, group >> 12, group >> 6, group];
        let used = chunk.len().saturating_add(1);
        out.extend(sextets.iter().take(used).map(|sextet| base64url_digit(sextet & 0x3f)));
    }
}

fn base64url_digit(sextet: u32) -> u8 {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    usize::try_from(sextet).ok().and_then(|at| DIGITS.get(at).copied()).unwrap_or(b'_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use alloc::format;
    use alloc::string::String;
    use proptest::prelude::*;

    #[test]
    fn long_identifiers_become_digests() {
        let canonical = |raw: &[u8]| {
            let mut out = Vec::new();
            canonical_identifier(raw, &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(canonical(b""), "");
        assert_eq!(canonical(&[b'a'; 64]), "a".repeat(64));
        // printf 'a%.0s' {1..65} | openssl dgst -sha256 -binary | basenc --base64url
        assert_eq!(canonical(&[b'a'; 65]), "sha256:Y1NhxIu56rFBmOduqKt_GkFoXWrWKqkUbTAdTxfrCuA");
        // printf 'sha256:' | openssl dgst -sha256 -binary | basenc --base64url
        assert_eq!(canonical(b"sha256:"), "sha256:n9cUzm9jw7MgyUS3DoCl0QX9Lz4tMK4vqBNw4iP1DQc");
    }

    #[test]
    fn identifiers_in_epochs_are_distinct() {
        let (short, long) = ([b'a'; 58], [b'a'; 59]);
        let mut all = Vec::new();
        for (canonical, epoch) in
            [(&short[..], 0), (&short, 1), (&short, 2), (&long, 0), (&long, 1), (&long, u32::MAX)]
        {
            let mut out = b"before".to_vec();
            identifier_in_epoch(canonical, epoch, &mut out);
            let stored = &out["before".len()..];
            let is_digest = stored.starts_with(DIGEST_PREFIX);
            let expected = if is_digest { (stored, 0) } else { (canonical, epoch) };
            assert_eq!(split_epoch(stored), expected);
            let identifier = out.split_off(6);
            assert_eq!(out, b"before");
            assert!(identifier.len() <= MAX_IDENTIFIER_BYTES);
            all.push(identifier);
        }
        assert_eq!(all[0], short);
        assert_eq!(all[1], [&short[..], br"\@", &[0, 0, 0, 1]].concat());
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 6);
    }

    proptest! {
        #[test]
        fn canonical_identifiers_are_short_and_distinct(
            raws in proptest::collection::vec("(sha256:)?[ab]{0,80}", 1..50)
        ) {
            let mut seen: BTreeMap<Vec<u8>, String> = BTreeMap::new();
            for raw in raws {
                let mut out = Vec::new();
                canonical_identifier(raw.as_bytes(), &mut out);
                prop_assert!(out.len() <= MAX_IDENTIFIER_BYTES);
                let earlier = seen.entry(out).or_insert_with(|| raw.clone());
                prop_assert_eq!(&*earlier, &raw, "{}", format!("{earlier} and {raw} have the same canonical identifier"));
            }
        }
    }
}
