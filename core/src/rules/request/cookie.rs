//! The values of one cookie in a `cookie` header.
//!
//! Quotes around a value are removed, as many upstreams do, and so are the escapes in quotes that Python's library undoes: a `\` and
//! three octal digits, or any other byte behind a `\`. `identifier` does the percent-decoding.

use super::names::is_alias;
use super::query::{Decoded, split_once};
use alloc::vec::Vec;

/// The cookie's values in one line of the header, as they are written, in order; `None` for one that some upstreams take for
/// another value or another cookie. Names are case-sensitive (RFC 6265).
pub(in crate::rules) fn cookies<'a>(line: &'a [u8], name: &[u8]) -> impl Iterator<Item = Option<&'a [u8]>> {
    line.split(|byte| *byte == b';').filter_map(move |pair| {
        let (key, value) = split_once(pair, b'=')?;
        let (key, value) = (key.trim_ascii(), value.trim_ascii());
        if key == name {
            return Some((!has_open_quote(value) && !hides(value, name)).then_some(value));
        }
        if has_open_quote(value) && memchr::memmem::find(line, name).is_some() || hides(value, name) {
            return Some(None);
        }
        is_alias(Decoded { bytes: key, form: false }, name).then_some(None)
    })
}

/// Whether some upstreams find the cookie in another one's value: Python's library also ends a cookie at a blank.
fn hides(value: &[u8], name: &[u8]) -> bool {
    let ends = |byte: &u8| matches!(byte, b' ' | b'\t' | b',' | b'"');
    let mut parts = value.split(ends).skip(1);
    parts.any(|part| part.strip_prefix(name).is_some_and(|rest| matches!(rest, [] | [b'=', ..])))
}

/// Whether a value begins with a quote that nothing closes. Some upstreams read on behind the `;` then.
fn has_open_quote(value: &[u8]) -> bool {
    let Some(rest) = value.strip_prefix(b"\"") else { return false };
    let Some(inner) = rest.strip_suffix(b"\"") else { return true };
    let escapes = inner.iter().rev().take_while(|byte| **byte == b'\\').count();
    !escapes.is_multiple_of(2)
}

/// The value without quotes, and without escapes in them. `buffer` is for a value with escapes.
pub(in crate::rules) fn unquoted<'a>(value: &'a [u8], buffer: &'a mut Vec<u8>) -> &'a [u8] {
    let [b'"', inner @ .., b'"'] = value else { return value };
    if memchr::memchr(b'\\', inner).is_none() {
        return inner;
    }
    buffer.clear();
    let mut rest = inner;
    loop {
        let (byte, tail) = match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..] => {
                ((a & 3) << 6 | (b & 7) << 3 | (c & 7), tail)
            }
            [b'\\', byte, tail @ ..] | [byte, tail @ ..] => (*byte, tail),
            [] => return buffer,
        };
        buffer.push(byte);
        rest = tail;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_in_order() {
        for (line, expected) in [
            ("session=a", &[Some("a")][..]),
            ("a=b; session=c; session=d", &[Some("c"), Some("d")]),
            ("a=b;session=c", &[Some("c")]),
            (" session = c ", &[Some("c")]),
            ("session=\"q\"", &[Some("q")]),
            (r#"session="\161\"\\\401\z""#, &[Some(r#"q"\401z"#)]),
            (r"session=\161", &[Some(r"\161")]),
            ("session=\"", &[None]),
            ("session=\"a;b\"", &[None]),
            (r#"session="a\""#, &[None]),
            (r#"session="a\\""#, &[Some(r"a\")]),
            ("a=b session=c", &[None]),
            ("session=b; a=b session=c", &[Some("b"), None]),
            (r#"x="; session=b; y="; session=c"#, &[None, Some("b"), None, Some("c")]),
            (r#"x="; y=b"#, &[]),
            ("a=b sessions=c xsession=d", &[]),
            ("session=\"\"", &[Some("")]),
            ("session=a=b", &[Some("a=b")]),
            ("session=", &[Some("")]),
            ("session", &[]),
            ("Session=a; xsession=b; sessionx=c", &[None]),
            ("s%45ssion=a", &[None]),
            ("", &[]),
            (";;;=;", &[]),
        ] {
            let found: Vec<_> = cookies(line.as_bytes(), b"session")
                .map(|value| value.map(|value| unquoted(value, &mut Vec::from(*b"earlier")).to_vec()))
                .collect();
            let expected: Vec<_> =
                expected.iter().map(|value| value.map(|value| value.as_bytes().to_vec())).collect();
            assert_eq!(found, expected, "{line}");
        }
    }
}
