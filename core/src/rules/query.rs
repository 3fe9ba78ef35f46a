//! Query parameters of a request target, decoded.
//!
//! `+` is a space, as in forms: `a+b` and `a%20b` are the same to an upstream, so they are one identifier. The
//! first parameter of a name counts. Malformed escapes stand for themselves.

use super::path::hex_byte;

/// The value of the first parameter `name`, byte by byte.
pub(super) fn parameter<'a>(target: &'a [u8], name: &[u8]) -> Option<impl Iterator<Item = u8> + 'a> {
    let target = target.split(|byte| *byte == b'#').next()?;
    let (_, query) = split_once(target, b'?')?;
    query.split(|byte| *byte == b'&').find_map(|pair| {
        let (key, value) = split_once(pair, b'=').unwrap_or((pair, &[]));
        Decoded(key).eq(name.iter().copied()).then_some(Decoded(value))
    })
}

/// `bytes` before and after the first `separator`.
pub(super) fn split_once(bytes: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let at = memchr::memchr(separator, bytes)?;
    let (before, after) = bytes.split_at_checked(at)?;
    Some((before, after.split_first()?.1))
}

struct Decoded<'a>(&'a [u8]);

impl Iterator for Decoded<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        if let [b'%', high, low, tail @ ..] = self.0
            && let Some(byte) = hex_byte(*high, *low)
        {
            self.0 = tail;
            return Some(byte);
        }
        let (byte, tail) = self.0.split_first()?;
        self.0 = tail;
        Some(if *byte == b'+' { b' ' } else { *byte })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn parameters() {
        for (target, expected) in [
            ("/x?key=a", Some("a")),
            ("/x?other=1&key=a&key=b", Some("a")),
            ("/x?%6bey=%41%2b+c", Some("A+ c")),
            ("/x?key", Some("")),
            ("/x?key=", Some("")),
            ("/x?key=a=b?c", Some("a=b?c")),
            ("/x?key=%zz%4", Some("%zz%4")),
            ("/x?keys=a&Key=b", None),
            ("/x#?key=a", None),
            ("/x?a=b#&key=c", None),
            ("/x", None),
            ("", None),
        ] {
            let found = parameter(target.as_bytes(), b"key").map(|value| value.collect::<Vec<u8>>());
            assert_eq!(found.as_deref(), expected.map(str::as_bytes), "{target}");
        }
    }
}
