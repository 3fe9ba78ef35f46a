//! Identifiers with another limit than their rule's, or with none. Which of several applies is `pattern_map`'s.

use super::algorithm::AlgorithmKind;
use super::pattern::pattern_of;
use crate::fields::Errors;
use crate::fields::Value;
use crate::fields::{Fields, Node};
use crate::matching::glob::{self, Pattern};
use crate::matching::pattern_map::PatternMap;

/// Most overrides of one rule.
pub(in crate::rules) const OVERRIDES_MAX: usize = 10_000;

pub(in crate::rules) const IDENTIFIER_BYTES_MAX: usize = 1_024;
pub(in crate::rules) const FIELDS: [&str; 3] = ["identifier", "limit", "exempt"];
/// An override has exactly one of these fields.
pub(in crate::rules) const KINDS: [&str; 2] = ["limit", "exempt"];

/// What replaces the rule's limit for an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Override {
    /// This limit; 0 denies every request with a cost above 0.
    Limit(u64),
    /// No limit: the request is neither decided nor counted.
    Exempt,
}

/// All overrides of one rule.
#[derive(Clone, Debug, Default)]
pub(in crate::rules) struct Overrides {
    /// The number of listed overrides.
    pub count: usize,
    by_identifier: PatternMap<Override>,
}

impl Overrides {
    /// Reads `overrides` of a rule with this algorithm.
    pub fn read(node: Node<'_>, kind: AlgorithmKind, errors: &mut Errors) -> Option<Overrides> {
        let read = |node: Node<'_>, errors: &mut Errors| read_entry(node, kind, errors);
        let entries = node.list(0..=OVERRIDES_MAX, "overrides", errors, read)?;
        let count = entries.len();
        match PatternMap::build(entries) {
            Some(by_identifier) => Some(Overrides { count, by_identifier }),
            None => errors.reject(&node.path, "its patterns are too large in total", "fewer patterns"),
        }
    }

    /// The override of a raw identifier.
    pub fn find(&self, raw: &[u8], scratch: &mut glob::Scratch) -> Option<Override> {
        self.by_identifier.find(raw, scratch)
    }
}

fn read_entry(node: Node<'_>, kind: AlgorithmKind, errors: &mut Errors) -> Option<(Pattern, Override)> {
    let fields = node.object(&FIELDS, errors)?;
    let pattern = fields.required("identifier", "an identifier or a pattern with *", errors, read_pattern);
    let value = read_value(&fields, kind, errors);
    Some((pattern?, value?))
}

fn read_pattern(node: Node<'_>, errors: &mut Errors) -> Option<Pattern> {
    let text = node.text(IDENTIFIER_BYTES_MAX, errors)?;
    pattern_of(text, &node, IDENTIFIER_BYTES_MAX, errors)
}

fn read_value(fields: &Fields<'_>, kind: AlgorithmKind, errors: &mut Errors) -> Option<Override> {
    match fields.exactly_one(&KINDS, errors)? {
        "limit" => kind.read_most(fields.get("limit")?, errors).map(Override::Limit),
        _ => match fields.get("exempt")? {
            Node { value: Value::Bool(true), .. } => Some(Override::Exempt),
            node => node.reject(errors, "has no effect", "true"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::Bounds;
    use alloc::format;
    use alloc::string::String;
    use alloc::vec::Vec;

    fn read(json: &str) -> Overrides {
        let mut errors = Errors::default();
        let json = Value::parse(json.as_bytes(), Bounds::OF_A_FILE).unwrap();
        let overrides =
            Overrides::read(Node::root("configuration", &json), AlgorithmKind::Window, &mut errors);
        errors.finish(overrides).unwrap_or_else(|errors| panic!("{errors}"))
    }

    #[test]
    fn exact_then_most_literal_then_first() {
        let overrides = read(
            r#"[{"identifier": "*", "limit": 1}, {"identifier": "*", "limit": 99},
                {"identifier": "acme-*", "limit": 2}, {"identifier": "*-prod", "limit": 3},
                {"identifier": "acme-x-*", "limit": 4}, {"identifier": "acme-*-prod", "exempt": true},
                {"identifier": "acme-1", "limit": 5}, {"identifier": "acme-1", "limit": 98},
                {"identifier": "star\\*", "limit": 6}, {"identifier": "a\\|b|\\-", "limit": 7},
                {"identifier": "star\\**", "limit": 8}]"#,
        );
        for (identifier, expected) in [
            ("other", Override::Limit(1)),
            ("", Override::Limit(1)),
            ("acme-", Override::Limit(2)),
            ("acme-1", Override::Limit(5)),
            ("acme-12", Override::Limit(2)),
            ("acme-prod", Override::Limit(2)),
            ("umbrella-prod", Override::Limit(3)),
            ("acme-x-1", Override::Limit(4)),
            ("acme-y-prod", Override::Exempt),
            ("acme-x-prod", Override::Exempt),
            ("star*", Override::Limit(6)),
            ("star*x", Override::Limit(8)),
            ("starx", Override::Limit(1)),
            (r"a\|b|\-", Override::Limit(7)),
        ] {
            let found = overrides.find(identifier.as_bytes(), &mut glob::Scratch::default());
            assert_eq!(found, Some(expected), "{identifier}");
        }
    }

    #[test]
    fn ten_thousand_overrides() {
        let entry = |n: usize| match n % 2 {
            0 => format!(r#"{{"identifier": "user-{n}", "limit": {n}}}"#),
            _ => format!(r#"{{"identifier": "*-user-{n}", "limit": {n}}}"#),
        };
        let entries: Vec<String> = (0..OVERRIDES_MAX).map(entry).collect();
        let overrides = read(&format!("[{}]", entries.join(",")));
        let mut scratch = glob::Scratch::default();
        for (identifier, expected) in [
            ("user-42", Some(Override::Limit(42))),
            ("x-user-9999", Some(Override::Limit(9999))),
            ("x-user-99990", None),
            ("user-43", None),
        ] {
            assert_eq!(overrides.find(identifier.as_bytes(), &mut scratch), expected, "{identifier}");
        }
    }
}
