//! The values of one cookie in a `cookie` header.
//!
//! Quotes around a value are removed, as many upstreams do, and so are the escapes in quotes that Python's library undoes: a `\` and
//! three octal digits, or any other byte behind a `\`. `identifier` does the percent-decoding.
//!
//! Names and values are ASCII without blanks (RFC 6265). Python's library ends an unquoted value at a blank, and takes what is
//! before a blank for a flag; Django, Werkzeug and Node also drop blanks that are not ASCII around names and values.
//! `cookie-parser` of Express reads JSON behind `j:`.

use super::names::is_alias;
use super::query::{Decoded, split_once};
use alloc::vec::Vec;
use core::cell::OnceCell;

/// The cookie's values in one line of the header, as they are written, in order; `None` for one that some upstreams take for
/// another value or another cookie. Names are case-sensitive (RFC 6265).
pub(in crate::rules) fn cookies<'a>(line: &'a [u8], name: &[u8]) -> impl Iterator<Item = Option<&'a [u8]>> {
    // The whole line is searched once, as a client chooses the number of pairs.
    let is_named = OnceCell::new();
    let is_named = move || *is_named.get_or_init(|| memchr::memmem::find(line, name).is_some());
    line.split(|byte| *byte == b';').filter_map(move |pair| {
        let pair = pair.trim_ascii();
        let (key, value) = split_once(pair, b'=')?;
        let (key, value) = (key.trim_ascii(), value.trim_ascii());
        if key == name {
            let certain =
                !has_open_quote(value) && !hides(pair, name) && !ends_early(value) && !is_json(value);
            return Some(certain.then_some(value));
        }
        if has_open_quote(value) && is_named() || hides(pair, name) {
            return Some(None);
        }
        let key = without_blanks(key);
        (key == name || is_alias(Decoded { bytes: key, form: false }, name)).then_some(None)
    })
}

/// Whether some upstreams find another cookie of the name in a pair.
fn hides(pair: &[u8], name: &[u8]) -> bool {
    let ends = |byte: &u8| matches!(byte, b' ' | b'\t' | b',' | b'"');
    let mut parts = pair.split(ends).skip(1);
    parts.any(|part| part.strip_prefix(name).is_some_and(|rest| matches!(rest, [] | [b'=', ..])))
}

/// Whether some upstreams take a part of a value for all of it.
fn ends_early(value: &[u8]) -> bool {
    let is_quoted = value.starts_with(b"\"");
    let has_blank = || value.iter().any(|byte| matches!(byte, b' ' | b'\t'));
    without_blanks(value).len() < value.len() || !is_quoted && has_blank()
}

/// Whether Express' `cookie-parser` takes a value for JSON, whose text has many spellings.
fn is_json(value: &[u8]) -> bool {
    let value = value.strip_prefix(b"\"").unwrap_or(value);
    let mut decoded = Decoded { bytes: value, form: false };
    decoded.next() == Some(b'j') && decoded.next() == Some(b':')
}

/// The text without what may be a blank that is not ASCII, at both ends.
fn without_blanks(mut text: &[u8]) -> &[u8] {
    let is_outside = |byte: &u8| !byte.is_ascii() || byte.is_ascii_whitespace();
    while let [byte, rest @ ..] = text
        && is_outside(byte)
    {
        text = rest;
    }
    while let [rest @ .., byte] = text
        && is_outside(byte)
    {
        text = rest;
    }
    text
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

    /// Were the whole line searched for each pair, this would take an hour.
    #[test]
    fn the_time_is_linear_in_the_length_of_the_line() {
        let line = b"=\";".repeat(4 * 1_024 * 1_024);
        assert_eq!(cookies(&line, b"session").count(), 0);
    }

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
            ("session=b path=/", &[None]),
            ("session=b [1", &[None]),
            ("session=b\tc", &[None]),
            ("session=\"b c\"", &[Some("b c")]),
            ("session=b; secure session=c", &[Some("b"), None]),
            ("session=b; \u{a0}session=c", &[Some("b"), None]),
            ("session\u{3000}=c", &[None]),
            ("session=b\u{a0}", &[None]),
            ("session=\u{2003} b", &[None]),
            ("session=b\u{e9}c", &[Some("b\u{e9}c")]),
            ("session=\"\"", &[Some("")]),
            (r#"session=j:"a""#, &[None]),
            ("session=%6a%3A%22a%22", &[None]),
            (r#"session="j:1""#, &[None]),
            ("session=aj:b", &[Some("aj:b")]),
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
