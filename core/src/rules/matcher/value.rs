//! Conditions on a value that a request may lack: whether it is there, or what it is.

use super::text::Text;
use crate::fields::{Errors, Fields};

/// The kinds of condition.
pub(in crate::rules) const KINDS: [&str; 6] = ["exact", "prefix", "suffix", "contains", "regex", "present"];

/// A condition on the value of a header or of metadata.
#[derive(Clone, Debug)]
pub(super) enum ValueTest {
    Present(bool),
    Value(Text),
}

impl ValueTest {
    pub fn read(fields: &Fields<'_>, errors: &mut Errors) -> Option<ValueTest> {
        let kind = fields.exactly_one(&KINDS, errors)?;
        let node = fields.get(kind)?;
        match kind {
            "present" => node.boolean(errors).map(ValueTest::Present),
            _ => Text::read(kind, node, errors).map(ValueTest::Value),
        }
    }
}
