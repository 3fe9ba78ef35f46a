//! Paths compared segment by segment, so that other spellings of a path that upstreams treat as equal cannot bypass a
//! rule: a trailing slash, and blanks and dots at the end of a segment, are ignored.

use crate::fields::Errors;
use crate::fields::Node;
use crate::matching::case;
use crate::rules::request::path::{self, segments, whole_segments};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

/// A pattern such as `/v1/*/login` or `/admin/**`.
#[derive(Clone, Debug)]
pub(in crate::rules) struct Segments {
    /// `None` matches any one segment.
    wanted: Box<[Option<Box<[u8]>>]>,
    /// Whether more segments may follow.
    below: bool,
}

impl Segments {
    pub fn read(text: &str, node: Node<'_>, errors: &mut Errors) -> Option<Segments> {
        const EXPECTED: &str = "segments such as \"/login\", \"/users/*/orders\" or \"/admin/**\"";
        let mut normal = Vec::new();
        path::normalise(text.as_bytes(), &mut normal);
        let mut plain: Vec<u8> = Vec::new();
        for segment in segments(&normal) {
            plain.push(b'/');
            plain.extend_from_slice(segment);
        }
        if plain.is_empty() {
            plain.push(b'/');
        }
        if !text.starts_with('/') || path::without_query(text.as_bytes()) != text.as_bytes() {
            return node.reject(errors, "is not a path", EXPECTED);
        }
        if plain != text.as_bytes() {
            let expected = alloc::format!("the path {:?}", String::from_utf8_lossy(&plain));
            return node.reject(errors, "is not in the form in which paths are compared", expected);
        }
        let (head, below) = match text.strip_suffix("/**") {
            Some(head) => (head, true),
            None => (text, false),
        };
        if head.split('/').any(|segment| segment.contains('*') && segment != "*") {
            return node.reject(
                errors,
                "has a star next to other characters, or ** before its end",
                EXPECTED,
            );
        }
        let wanted = segments(head.as_bytes());
        let wanted = wanted.map(|segment| (segment != b"*").then(|| segment.into())).collect();
        Some(Segments { wanted, below })
    }

    /// How many bytes of a path it states, and whether it states how many segments the path has.
    pub fn literal(&self) -> (usize, bool) {
        // Each segment has a slash before it, also one that may be any; a path without segments is a slash.
        let literals = self
            .wanted
            .iter()
            .map(|wanted| wanted.as_ref().map_or(0, |segment| segment.len()).saturating_add(1));
        (literals.fold(0, usize::saturating_add).max(1), !self.below)
    }

    /// The segments with which every path that matches begins.
    pub fn head(&self) -> impl Iterator<Item = &[u8]> {
        self.wanted.iter().map_while(|wanted| wanted.as_deref())
    }

    /// Whether a path matches this pattern.
    pub fn matches(&self, path: &[u8], ignore_case: bool) -> bool {
        path.first() == Some(&b'/') && self.fits(segments(path), ignore_case)
    }

    /// Whether a path matches this pattern if a segment of dots or blanks, or an empty one, is one like any other.
    pub fn matches_whole(&self, path: &[u8], ignore_case: bool) -> bool {
        path.first() == Some(&b'/') && self.fits(whole_segments(path), ignore_case)
    }

    /// Whether a path matches this pattern without anything that is not compared but for a slash at its end.
    pub fn matches_as_written(&self, path: &[u8], ignore_case: bool) -> bool {
        let is_root = path == b"/";
        if is_root { self.matches(path, ignore_case) } else { self.matches_whole(path, ignore_case) }
    }

    fn fits<'a>(&self, mut found: impl Iterator<Item = &'a [u8]>, ignore_case: bool) -> bool {
        let mut each = self.wanted.iter();
        each.all(|wanted| match (wanted, found.next()) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(wanted), Some(found)) if ignore_case => case::equal(wanted, found),
            (Some(wanted), Some(found)) => **wanted == *found,
        }) && (self.below || found.next().is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::Value;

    fn read(text: &str) -> Option<Segments> {
        Segments::read(text, Node::root("configuration", &Value::Text(text.into())), &mut Errors::default())
    }

    #[test]
    fn patterns_match_whole_paths() {
        for (pattern, path, expected) in [
            ("/login", "/login", true),
            ("/login", "/login/", true),
            ("/login", "/login.", true),
            ("/login", "/login. ./", true),
            ("/login", "/login/...", true),
            ("/login", "/login/x", false),
            ("/login", "/x/login", false),
            ("/login", "/log in", false),
            ("/login", "/", false),
            ("/login", "login", false),
            ("/", "/", true),
            ("/", "/x", false),
            ("/", "*", false),
            ("/*", "/x", true),
            ("/*", "/", false),
            ("/*", "*", false),
            ("/u/*/x", "/u/1/x/", true),
            ("/u/*/x", "/u/1/2/x", false),
            ("/u/*/x", "/u/x", false),
            ("/a/**", "/a", true),
            ("/a/**", "/a./b/c", true),
            ("/a/**", "/ab", false),
            ("/**", "/", true),
            ("/**", "", false),
            ("/.well-known/x", "/.well-known/x", true),
        ] {
            assert_eq!(read(pattern).unwrap().matches(path.as_bytes(), false), expected, "{pattern} {path}");
        }
        assert!(read("/LogIn").unwrap().matches(b"/lOGiN/", true));
        assert!(!read("/login").unwrap().matches(b"/LOGIN", false));
    }

    #[test]
    fn patterns_that_can_never_match_are_refused() {
        for text in [
            "", "login", "/login/", "/login.", "/a//b", "/a;b", "/a?b", "/a*", "/**/b", "/***", "*",
            "/a/../b",
        ] {
            assert!(read(text).is_none(), "{text}");
        }
    }
}
