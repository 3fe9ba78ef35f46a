//! The normalised path, so that `/api/../admin`, `//admin` and `/%61dmin` cannot bypass a rule for `/admin`.
//!
//! Query and fragment are removed. Escapes are decoded, except those of `/ \ ; % ? #` and of control characters, whose
//! hex digits become upper case. Path parameters (`;` and the rest of its segment) are removed. `\` is treated as `/`,
//! as Envoy does. Repeated slashes are merged and dot segments removed. An escaped slash (`%2F`) stays escaped, since
//! the upstream decides whether it separates segments. Time is linear in the length of the path.

use alloc::vec::Vec;

/// The part of a request target before its query and fragment.
pub(in crate::rules) fn without_query(target: &[u8]) -> &[u8] {
    target.split(|byte| matches!(byte, b'?' | b'#')).next().unwrap_or_default()
}

/// Writes the normalised path of a request target to `out`. `*` and an empty path are not changed.
pub(in crate::rules) fn normalise(target: &[u8], out: &mut Vec<u8>) {
    out.clear();
    let path = without_query(target);
    if path.is_empty() || path == b"*" {
        out.extend_from_slice(path);
        return;
    }
    out.push(b'/');
    let mut rest = path;
    while let Some((unit, tail)) = next_unit(rest) {
        match unit {
            Unit::Byte(b'/' | b'\\') => {
                close_segment(out);
                if out.last() != Some(&b'/') {
                    out.push(b'/');
                }
            }
            Unit::Byte(b';') => {
                let end = memchr::memchr2(b'/', b'\\', tail).unwrap_or(tail.len());
                rest = tail.get(end..).unwrap_or_default();
                continue;
            }
            Unit::Byte(byte) => out.push(byte),
            Unit::Escape(high, low) => out.extend_from_slice(&[b'%', high, low]),
        }
        rest = tail;
    }
    close_segment(out);
}

/// The segment with this `number`, from 1, of a normalised path; never empty.
pub(in crate::rules) fn segment(path: &[u8], number: usize) -> Option<&[u8]> {
    path.split(|byte| *byte == b'/').nth(number).filter(|segment| !segment.is_empty())
}

/// The value of two hexadecimal digits.
pub(in crate::rules) fn hex_byte(high: u8, low: u8) -> Option<u8> {
    let high = char::from(high).to_digit(16)?;
    let low = char::from(low).to_digit(16)?;
    u8::try_from(high << 4 | low).ok()
}

enum Unit {
    Byte(u8),
    Escape(u8, u8),
}

/// The next byte of the path, decoded if that does not change the path's meaning, and the rest.
fn next_unit(rest: &[u8]) -> Option<(Unit, &[u8])> {
    if let [b'%', high, low, tail @ ..] = rest
        && let Some(byte) = hex_byte(*high, *low)
    {
        let unit = match byte {
            b'/' | b'\\' | b';' | b'%' | b'?' | b'#' | 0..=8 | 10..=31 | 127 => {
                Unit::Escape(high.to_ascii_uppercase(), low.to_ascii_uppercase())
            }
            byte => Unit::Byte(byte),
        };
        return Some((unit, tail));
    }
    rest.split_first().map(|(byte, tail)| (Unit::Byte(*byte), tail))
}

/// Removes the last segment if it is `.`, and also the one before if it is `..`. What was removed is never visited
/// again, so that the total time stays linear.
fn close_segment(out: &mut Vec<u8>) {
    let start = segment_start(out);
    match out.get(start..) {
        Some(b".") => out.truncate(start),
        Some(b"..") => {
            out.truncate(start);
            if out.len() > 1 {
                out.pop();
                let parent = segment_start(out);
                out.truncate(parent);
            }
        }
        _ => {}
    }
}

/// The position after the last slash.
fn segment_start(out: &[u8]) -> usize {
    memchr::memrchr(b'/', out).map_or(0, |slash| slash.saturating_add(1))
}

/// The segments of a normalised path, without trailing blanks and dots. None of them is empty.
pub(in crate::rules) fn segments(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').map(without_tail).filter(|segment| !segment.is_empty())
}

fn without_tail(mut segment: &[u8]) -> &[u8] {
    while let [rest @ .., b' ' | b'\t' | b'.'] = segment {
        segment = rest;
    }
    segment
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;
    use alloc::vec;

    fn check(target: &[u8], expected: &[u8]) {
        let mut out = vec![1, 2, 3];
        normalise(target, &mut out);
        assert_eq!(out, expected, "{}", String::from_utf8_lossy(target));
    }

    #[test]
    fn paths_are_normalised() {
        for (target, expected) in [
            ("/", "/"),
            ("", ""),
            ("*", "*"),
            ("?a=b", ""),
            ("/admin", "/admin"),
            ("/admin/", "/admin/"),
            ("/admin?x=/../y", "/admin"),
            ("/admin#x?y", "/admin"),
            ("/api/../admin", "/admin"),
            ("/api/%2e%2E/admin", "/admin"),
            ("/api/.%2e/admin", "/admin"),
            ("//admin", "/admin"),
            ("///a////b//", "/a/b/"),
            ("/%61dmin", "/admin"),
            ("/a/./b/.", "/a/b/"),
            ("/a/b/..", "/a/"),
            ("/..", "/"),
            ("/../../..", "/"),
            ("/../x/../../y", "/y"),
            ("/a//../b", "/b"),
            ("/a/...", "/a/..."),
            ("/.a/..b/c..", "/.a/..b/c.."),
            ("/a\\..\\admin", "/admin"),
            ("/a%2fb%2F", "/a%2Fb%2F"),
            ("/%25%36%31", "/%2561"),
            ("/%7Eme%2d%5f", "/~me-_"),
            ("/%", "/%"),
            ("/%4", "/%4"),
            ("/%zz%4", "/%zz%4"),
            ("/%%61", "/%a"),
            ("admin", "/admin"),
            ("../admin", "/admin"),
            ("/caf\u{e9}", "/caf\u{e9}"),
            ("/caf%c3%A9", "/caf\u{e9}"),
            ("/a%20b%09%3a%40%2B", "/a b\t:@+"),
            ("/%00%7f%3b%5c%3F%23", "/%00%7F%3B%5C%3F%23"),
            ("/admin;a=b", "/admin"),
            ("/admin;a=b;c/x;/y", "/admin/x/y"),
            ("/x/..;a=b/admin", "/admin"),
            ("/x/..;\\admin", "/admin"),
            ("/x/.;/admin;", "/x/admin"),
            ("/;x", "/"),
            (";x", "/"),
        ] {
            check(target.as_bytes(), expected.as_bytes());
        }
        check(b"/\xff\x00/../\xfe", b"/\xfe");
    }

    #[test]
    fn segments_count_from_one() {
        for (path, number, expected) in [
            ("/a/b/", 1, Some("a")),
            ("/a/b/", 2, Some("b")),
            ("/a/b/", 3, None),
            ("/a/b", 4, None),
            ("/", 1, None),
            ("", 1, None),
            ("*", 1, None),
        ] {
            let found = segment(path.as_bytes(), number);
            assert_eq!(found, expected.map(str::as_bytes), "{path} {number}");
        }
    }

    #[test]
    fn long_climbing_paths_stay_linear() {
        let mut target = b"/x".repeat(100_000);
        target.extend(b"/..".repeat(100_001));
        check(&target, b"/");
    }
}
