//! One cookie out of a `cookie` header.
//!
//! Values stand as they are sent: not decoded, quotes kept. The first cookie of a name counts.

use super::query::split_once;

/// The cookie's value in one line of the header. Names are case-sensitive (RFC 6265).
pub(super) fn cookie<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    line.split(|byte| *byte == b';').find_map(|pair| {
        let (key, value) = split_once(pair, b'=')?;
        (key.trim_ascii() == name).then(|| value.trim_ascii())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies() {
        for (line, expected) in [
            ("session=a", Some("a")),
            ("a=b; session=c; session=d", Some("c")),
            ("a=b;session=c", Some("c")),
            (" session = c ", Some("c")),
            ("session=\"q\"", Some("\"q\"")),
            ("session=a=b", Some("a=b")),
            ("session=", Some("")),
            ("session", None),
            ("Session=a; xsession=b", None),
            ("", None),
            (";;;=;", None),
        ] {
            assert_eq!(cookie(line.as_bytes(), b"session"), expected.map(str::as_bytes), "{line}");
        }
    }
}
