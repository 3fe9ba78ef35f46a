//! A pattern over identifiers or names, as `overrides` and limits by plan have it.

use crate::fields::{Errors, Node};
use crate::matching::glob::Pattern;
use alloc::format;

/// The pattern of a text, which `node` has as its value or its name.
pub(in crate::rules) fn pattern_of(
    text: &str,
    node: &Node<'_>,
    bytes_max: usize,
    errors: &mut Errors,
) -> Option<Pattern> {
    const EXPECTED: &str = r"parts joined by |, where \\ is a backslash, \| a bar, \- a missing part, \~ a value that is not listed, \* a star, and * matches anything";
    if text.is_empty() || text.len() > bytes_max {
        let expected = format!("a pattern of 1 to {bytes_max} bytes");
        return errors.reject(&node.path, format!("its pattern has {} bytes", text.len()), expected);
    }
    match Pattern::parse(text.as_bytes()) {
        Some(pattern) => Some(pattern),
        None => {
            // Of a rule with hash it is a secret.
            errors.reject(&node.path, "has a backslash before another character", EXPECTED)
        }
    }
}
