//! The values that a part may have, `one_of`, and what becomes of a request with another one. Without such a list a client that invents
//! values gets a fresh count for each of them.

use super::escape::push_escaped;
use crate::fields::{Errors, Fields, Node};
use crate::rules::request::trim;
use alloc::boxed::Box;
use alloc::vec::Vec;

pub(super) const ONE_OF: &str = "one_of";
pub(super) const ON_UNLISTED: &str = "on_unlisted";
/// Most values of one part.
pub(in crate::rules) const VALUES_MAX: usize = 256;
pub(in crate::rules) const VALUE_BYTES_MAX: usize = 64;

/// Replaces a part whose value is not listed. No value can produce it.
pub(super) const UNLISTED: &[u8] = br"\~";

/// `one_of` and `on_unlisted`.
#[derive(Clone, Debug)]
pub(in crate::rules) struct Listed {
    /// As they are in a raw identifier, in ascending order.
    values: Box<[Box<[u8]>]>,
    on_unlisted: Unlisted,
}

/// What to do with a request whose value is not listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(in crate::rules) enum Unlisted {
    /// All such requests share one key.
    #[default]
    Shared,
    /// They are denied.
    Deny,
    /// The rule does not apply to them.
    Skip,
}

impl Unlisted {
    pub const WORDS: [(&str, Unlisted); 3] =
        [("shared", Unlisted::Shared), ("deny", Unlisted::Deny), ("skip", Unlisted::Skip)];
}

impl Listed {
    /// Reads `one_of` and `on_unlisted` of a part, whose values may be in lower case; `None` within if neither is given.
    pub fn read(is_lower: bool, fields: &Fields<'_>, errors: &mut Errors) -> Option<Option<Listed>> {
        let values = fields
            .optional(ONE_OF, errors, |node, errors| node.list(1..=VALUES_MAX, "values", errors, read_value));
        let on_unlisted =
            fields.optional(ON_UNLISTED, errors, |node, errors| node.word(&Unlisted::WORDS, errors));
        if let Some(node) = fields.get(ON_UNLISTED).filter(|_| fields.get(ONE_OF).is_none()) {
            return node.reject(errors, "has no effect without one_of", "it only beside one_of");
        }
        let Some(mut values) = values? else { return on_unlisted.map(|_| None) };
        if is_lower {
            values.iter_mut().for_each(|value| value.make_ascii_lowercase());
        }
        values.sort_unstable();
        values.dedup();
        Some(Some(Listed { values: values.into(), on_unlisted: on_unlisted?.unwrap_or_default() }))
    }

    /// Whether the rule does not apply to a request whose value is not listed.
    pub fn skips(&self) -> bool {
        self.on_unlisted == Unlisted::Skip
    }

    /// Replaces the value that begins at `start` if it is not listed, and returns what to do then.
    pub fn apply(&self, start: usize, out: &mut Vec<u8>) -> Option<Unlisted> {
        let value = out.get(start..).unwrap_or_default();
        if self.values.binary_search_by(|listed| (**listed).cmp(value)).is_ok() {
            return None;
        }
        out.truncate(start);
        out.extend_from_slice(UNLISTED);
        Some(self.on_unlisted)
    }
}

fn read_value(node: Node<'_>, errors: &mut Errors) -> Option<Box<[u8]>> {
    let text = node.text(VALUE_BYTES_MAX, errors)?;
    if trim(text.as_bytes()).len() < text.len() {
        return node.reject(errors, "begins or ends with a blank", "a value without blanks around it");
    }
    let mut escaped = Vec::new();
    push_escaped(text.as_bytes(), &mut escaped);
    Some(escaped.into())
}
