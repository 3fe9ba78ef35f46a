//! Conditions on one piece of text: exact, prefix, suffix, contains or a regular expression.
//!
//! Text is bytes. A regular expression must match the whole text, as in Envoy. It has ASCII classes (`\w`, `\d`,
//! `(?i)`), runs in time linear in the text, and its compiled size is bounded.

use crate::fields::Errors;
use crate::fields::Node;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::ToString;
use regex::bytes::{Regex, RegexBuilder};

/// The longest text that a condition may contain.
pub(in crate::rules) const TEXT_BYTES_MAX: usize = 4_096;

/// Compiled size of one regular expression, and of its lazily built automaton. It suffices for large alternations.
const REGEX_BYTES_MAX: usize = 128 * 1_024;

/// A condition on text.
#[derive(Clone, Debug)]
pub(in crate::rules) enum Text {
    Exact(Box<[u8]>),
    Prefix(Box<[u8]>),
    Suffix(Box<[u8]>),
    Contains(Box<[u8]>),
    Regex(Regex),
}

impl Text {
    /// Reads the condition of the field `kind`.
    pub fn read(kind: &str, node: Node<'_>, errors: &mut Errors) -> Option<Text> {
        let text = node.text(TEXT_BYTES_MAX, errors)?;
        let bytes = || text.as_bytes().into();
        match kind {
            "exact" => Some(Text::Exact(bytes())),
            "prefix" => Some(Text::Prefix(bytes())),
            "suffix" => Some(Text::Suffix(bytes())),
            "contains" => Some(Text::Contains(bytes())),
            _ => read_regex(text, node, errors).map(Text::Regex),
        }
    }

    pub fn matches(&self, value: &[u8]) -> bool {
        match self {
            Text::Exact(text) => **text == *value,
            Text::Prefix(text) => value.starts_with(text),
            Text::Suffix(text) => value.ends_with(text),
            Text::Contains(text) => memchr::memmem::find(value, text).is_some(),
            Text::Regex(regex) => regex.is_match(value),
        }
    }
}

/// The text is first compiled alone, so that the error shows what the operator wrote, and the text cannot close the
/// added group.
fn read_regex(text: &str, node: Node<'_>, errors: &mut Errors) -> Option<Regex> {
    let expected = format!("a regular expression, compiled to at most {} KiB", REGEX_BYTES_MAX >> 10);
    match compile(text).and_then(|_| compile(&format!(r"\A(?:{text})\z"))) {
        Ok(regex) => Some(regex),
        Err(error) => {
            let why = error.to_string().replace('\n', " ");
            node.reject(errors, &format!("is not a usable regular expression: {why}"), expected)
        }
    }
}

fn compile(text: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(text)
        .unicode(false)
        .dot_matches_new_line(true)
        .size_limit(REGEX_BYTES_MAX)
        .dfa_size_limit(REGEX_BYTES_MAX)
        .nest_limit(64)
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::Value;

    fn text(kind: &str, pattern: &str) -> Option<Text> {
        Text::read(kind, Node::root("configuration", &Value::Text(pattern.into())), &mut Errors::default())
    }

    #[test]
    fn conditions() {
        for (kind, pattern, value, expected) in [
            ("exact", "ab", &b"ab"[..], true),
            ("exact", "ab", b"abc", false),
            ("prefix", "ab", b"abc", true),
            ("prefix", "ab", b"a", false),
            ("suffix", "bc", b"abc", true),
            ("contains", "b", b"abc", true),
            ("contains", "b", b"", false),
            ("regex", "a|ab", b"ab", true),
            ("regex", "a|ab", b"abc", false),
            ("regex", "a", b"xax", false),
            ("regex", "(?i)AB", b"ab", true),
            ("regex", r"\d+", b"12", true),
            ("regex", r"\d+", "١".as_bytes(), false),
            ("regex", ".*", b"\xff\n\x00", true),
            ("regex", "a$", b"a\n", false),
            ("regex", "é+", "éé".as_bytes(), true),
        ] {
            let found = text(kind, pattern).unwrap().matches(value);
            assert_eq!(found, expected, "{kind} {pattern} {value:?}");
        }
    }

    #[test]
    fn unusable_expressions_are_refused() {
        for pattern in ["(", "a)(b", "[", "a{1000}{1000}", "", r"(?P<x>a)\1", &"(".repeat(200)] {
            assert!(text("regex", pattern).is_none(), "{pattern}");
        }
    }
}
