//! Query parameters of a request target, decoded.
//!
//! `+` is a space, as in forms: `a+b` and `a%20b` are equal to an upstream, so they are one identifier. Malformed
//! escapes are kept as they are. Some upstreams separate parameters by `;` as well, and some take other names for the same, so a
//! parameter next to a `;` or of such a name is ambiguous. So is one with `%u` and four hexadecimal digits, which ASP.NET decodes.

use super::names::is_alias;

/// The values of the parameter `name`, not yet decoded, in order; `None` for one that only some upstreams take for it.
pub(in crate::rules) fn parameters<'a>(
    target: &'a [u8],
    name: &[u8],
) -> impl Iterator<Item = Option<&'a [u8]>> {
    let target = target.split(|byte| *byte == b'#').next().unwrap_or_default();
    let query = split_once(target, b'?').map(|(_, query)| query).unwrap_or_default();
    query.split(|byte| *byte == b'&').flat_map(move |pair| {
        let certain = memchr::memchr(b';', pair).is_none();
        pair.split(|byte| *byte == b';').filter_map(move |pair| {
            let (key, value) = split_once(pair, b'=').unwrap_or((pair, &[]));
            let key = Decoded { bytes: key, form: true };
            match key.clone().eq(name.iter().copied()) {
                true => Some((certain && !has_unicode_escape(value)).then_some(value)),
                false => (is_alias(key.clone(), name) || is_alias(UnicodeDecoded(key), name)).then_some(None),
            }
        })
    })
}

fn has_unicode_escape(text: &[u8]) -> bool {
    memchr::memchr_iter(b'%', text).any(|at| text.get(at..).and_then(unicode_escape).is_some())
}

/// The number of an escape `%uXXXX` at the beginning, and what follows it.
fn unicode_escape(text: &[u8]) -> Option<(u32, &[u8])> {
    let [b'%', b'u' | b'U', digits @ ..] = text else { return None };
    let (digits, tail) = digits.split_at_checked(4)?;
    let add = |number: u32, digit: &u8| Some(number << 4 | char::from(*digit).to_digit(16)?);
    Some((digits.iter().try_fold(0, add)?, tail))
}

/// The same as [`Decoded`], with each escape `%uXXXX` of an ASCII character decoded too.
struct UnicodeDecoded<'a>(Decoded<'a>);

impl Iterator for UnicodeDecoded<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        if let Some((number, tail)) = unicode_escape(self.0.bytes)
            && let Ok(byte) = u8::try_from(number)
        {
            self.0.bytes = tail;
            return Some(byte);
        }
        self.0.next()
    }
}

/// The value of two hexadecimal digits.
pub(in crate::rules) fn hex_byte(high: u8, low: u8) -> Option<u8> {
    let high = char::from(high).to_digit(16)?;
    let low = char::from(low).to_digit(16)?;
    u8::try_from(high << 4 | low).ok()
}

/// The parts of `bytes` before and after the first `separator`.
pub(in crate::rules) fn split_once(bytes: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let at = memchr::memchr(separator, bytes)?;
    let (before, after) = bytes.split_at_checked(at)?;
    Some((before, after.split_first()?.1))
}

/// Percent-decodes byte by byte; with `form`, `+` is a space.
#[derive(Clone)]
pub(in crate::rules) struct Decoded<'a> {
    pub bytes: &'a [u8],
    pub form: bool,
}

impl Iterator for Decoded<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        if let [b'%', high, low, tail @ ..] = self.bytes
            && let Some(byte) = hex_byte(*high, *low)
        {
            self.bytes = tail;
            return Some(byte);
        }
        let (byte, tail) = self.bytes.split_first()?;
        self.bytes = tail;
        Some(if self.form && *byte == b'+' { b' ' } else { *byte })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;
    use alloc::vec::Vec;

    #[test]
    fn values_are_found_in_order() {
        for (target, expected) in [
            ("/x?key=a", &[Some("a")][..]),
            ("/x?other=1&key=a&key=b", &[Some("a"), Some("b")]),
            ("/x?%6bey=%41%2b+c", &[Some("A+ c")]),
            ("/x?key", &[Some("")]),
            ("/x?key=", &[Some("")]),
            ("/x?key=a=b?c", &[Some("a=b?c")]),
            ("/x?key=%zz%4", &[Some("%zz%4")]),
            ("/x?key=a;b", &[None]),
            ("/x?a=1;key=a&key=b", &[None, Some("b")]),
            ("/x?a=1;b=2&key=%3b", &[Some(";")]),
            ("/x?keys=a&kex=b", &[]),
            ("/x?key=%u0061&key=%U00e9", &[None, None]),
            ("/x?key=%u006&key=%u006g", &[Some("%u006"), Some("%u006g")]),
            ("/x?%u006bey=a&k%u0065%79=b&%u016bey=c", &[None, None]),
            ("/x?[key]=a&key]=b&]key=c", &[None, None, None]),
            ("/x?Key=a&key=b&key[]=c", &[None, Some("b"), None]),
            ("/x#?key=a", &[]),
            ("/x?a=b#&key=c", &[]),
            ("/x", &[]),
            ("", &[]),
        ] {
            let decoded = |bytes| String::from_utf8(Decoded { bytes, form: true }.collect()).unwrap();
            let found: Vec<_> =
                parameters(target.as_bytes(), b"key").map(|value| value.map(decoded)).collect();
            let expected: Vec<_> = expected.iter().map(|value| value.map(String::from)).collect();
            assert_eq!(found, expected, "{target}");
        }
    }
}
