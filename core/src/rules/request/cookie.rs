//! The values of one cookie in a `cookie` header.
//!
//! Quotes around a value are removed, as many upstreams do. `identifier` does the percent-decoding.

use super::query::split_once;

/// The cookie's values in one line of the header, in order. Names are case-sensitive (RFC 6265).
pub(in crate::rules) fn cookies<'a>(line: &'a [u8], name: &[u8]) -> impl Iterator<Item = &'a [u8]> {
    line.split(|byte| *byte == b';').filter_map(move |pair| {
        let (key, value) = split_once(pair, b'=')?;
        (key.trim_ascii() == name).then(|| unquoted(value.trim_ascii()))
    })
}

fn unquoted(value: &[u8]) -> &[u8] {
    match value {
        [b'"', inner @ .., b'"'] => inner,
        _ => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn values_are_found_in_order() {
        for (line, expected) in [
            ("session=a", &["a"][..]),
            ("a=b; session=c; session=d", &["c", "d"]),
            ("a=b;session=c", &["c"]),
            (" session = c ", &["c"]),
            ("session=\"q\"", &["q"]),
            ("session=\"", &["\""]),
            ("session=\"\"", &[""]),
            ("session=a=b", &["a=b"]),
            ("session=", &[""]),
            ("session", &[]),
            ("Session=a; xsession=b", &[]),
            ("", &[]),
            (";;;=;", &[]),
        ] {
            let found: Vec<_> = cookies(line.as_bytes(), b"session").collect();
            let expected: Vec<_> = expected.iter().map(|value| value.as_bytes()).collect();
            assert_eq!(found, expected, "{line}");
        }
    }
}
