//! Conditions on metadata: what filters before this one have written of a request, such as a field of its body.

use super::text::Text;
use super::value::ValueTest;
use crate::fields::{Errors, Node};
use crate::rules::request::property::{Content, Property};
use crate::rules::request::{Request, trim};
use alloc::format;
use alloc::vec::Vec;

pub(in crate::rules) const FIELDS: [&str; 10] =
    ["filter", "typed", "key", "exact", "prefix", "suffix", "contains", "regex", "present", "invert"];

/// One condition on metadata. `invert` negates its result, so an inverted condition on a value holds for a request without the value.
#[derive(Clone, Debug)]
pub(in crate::rules) struct MetadataCondition {
    property: Property,
    test: ValueTest,
    invert: bool,
}

impl MetadataCondition {
    pub fn read(node: Node<'_>, errors: &mut Errors) -> Option<MetadataCondition> {
        let fields = node.object(&FIELDS, errors)?;
        let property = Property::read_metadata_fields(&fields, errors);
        let test = ValueTest::read(&fields, errors);
        let invert = fields.or("invert", false, errors, |node, errors| node.boolean(errors));
        Some(MetadataCondition { property: property?, test: test?, invert: invert? })
    }

    /// Whether it has a regular expression.
    pub fn is_expression(&self) -> bool {
        matches!(self.test, ValueTest::Value(Text::Regex(_)))
    }

    /// A condition on the value holds for a list if it holds for one of its items.
    pub fn matches<R: Request + ?Sized>(&self, request: &R, buffer: &mut Vec<u8>) -> bool {
        buffer.clear();
        if !request.property(self.property.path(), buffer) {
            buffer.clear();
        }
        let holds = match &self.test {
            // As in an identifier, an empty value counts as none.
            ValueTest::Present(wanted) => buffer.is_empty() != *wanted,
            ValueTest::Value(text) => match self.property.content(buffer) {
                Content::List(items) => {
                    let mut found = false;
                    items.for_each(|item| found |= is_met(text, self.property.content(item)));
                    found
                }
                content => !buffer.is_empty() && is_met(text, content),
            },
        };
        holds != self.invert
    }
}

/// Whether a single value is as the text demands; numbers and booleans are compared as identifiers show them.
fn is_met(text: &Text, value: Content<'_>) -> bool {
    match value {
        Content::Text(value) => text.matches(trim(value)),
        Content::Number(number) => text.matches(format!("{number}").as_bytes()),
        Content::Integer(number) => text.matches(format!("{number}").as_bytes()),
        Content::Bool(value) => text.matches(if value { b"true" } else { b"false" }),
        Content::List(_) | Content::Map => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::{Bounds, Value};
    use crate::rules::testing::TestRequest;
    use alloc::string::{String, ToString};

    fn read(json: &str) -> Result<MetadataCondition, String> {
        let mut errors = Errors::default();
        let json = Value::parse(json.as_bytes(), Bounds::OF_A_FILE).unwrap();
        let condition = MetadataCondition::read(Node::root("metadata", &json), &mut errors);
        errors.finish(condition).map_err(|errors| errors.to_string())
    }

    #[test]
    fn conditions_on_metadata() {
        const LIST: &[u8] = b"\x02\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0a\0\0b\0\0";
        const MAP: &[u8] = b"\x01\0\0\0\x01\0\0\0\x01\0\0\0a\0b\0";
        let request = TestRequest::get("/")
            .metadata(&["mcp", "method"], " tools/call ")
            .metadata(&["mcp", "empty"], "")
            .property(b"metadata\0filter_metadata\0mcp\0params\0n", &42.0f64.to_le_bytes())
            .property(b"metadata\0filter_metadata\0mcp\0yes", &[1])
            .property(b"metadata\0filter_metadata\0mcp\0list", LIST)
            .property(b"metadata\0filter_metadata\0mcp\0map", MAP)
            .property(b"metadata\0filter_metadata\0mcp\0nothing", &[0; 4])
            .property(b"metadata\0typed_filter_metadata\0ai\0n", &7_i64.to_le_bytes());
        for (of, test, expected) in [
            (r#""filter": "mcp", "key": "method""#, r#""exact": "tools/call""#, true),
            (r#""filter": "mcp", "key": "method""#, r#""prefix": "tools/""#, true),
            (r#""filter": "mcp", "key": "method""#, r#""regex": "tools""#, false),
            (r#""filter": "mcp", "key": "method""#, r#""exact": "tools/list", "invert": true"#, true),
            (r#""filter": "mcp", "key": "method""#, r#""present": true"#, true),
            (r#""filter": "mcp", "key": "none""#, r#""present": false"#, true),
            (r#""filter": "mcp", "key": "none""#, r#""contains": "a""#, false),
            (r#""filter": "mcp", "key": "none""#, r#""exact": "a", "invert": true"#, true),
            (r#""filter": "mcp", "key": "empty""#, r#""present": false"#, true),
            (r#""filter": "mcp", "key": "empty""#, r#""regex": ".*""#, false),
            (r#""filter": "mcp", "key": ["params", "n"]"#, r#""exact": "42""#, true),
            (r#""filter": "mcp", "key": "yes""#, r#""exact": "true""#, true),
            (r#""filter": "mcp", "key": "list""#, r#""exact": "b""#, true),
            (r#""filter": "mcp", "key": "list""#, r#""exact": "c""#, false),
            (r#""filter": "mcp", "key": "list""#, r#""present": true"#, true),
            (r#""filter": "mcp", "key": "map""#, r#""regex": ".*""#, false),
            (r#""filter": "mcp", "key": "map""#, r#""present": true"#, true),
            (r#""filter": "mcp", "key": "nothing""#, r#""regex": ".*""#, false),
            (r#""typed": "ai", "key": "n""#, r#""exact": "7""#, true),
            (r#""filter": "ai", "key": "n""#, r#""present": true"#, false),
        ] {
            let condition = read(&format!("{{{of}, {test}}}")).unwrap();
            assert_eq!(condition.matches(&request, &mut Vec::from(*b"x")), expected, "{of} {test}");
        }
    }

    #[test]
    fn errors() {
        for (json, problem) in [
            (r#"{"filter": "a", "key": "k"}"#, "exact"),
            (r#"{"filter": "a", "key": "k", "exact": "a", "prefix": "b"}"#, "prefix"),
            (r#"{"key": "k", "exact": "a"}"#, "filter"),
            (r#"{"filter": "a", "typed": "b", "key": "k", "exact": "a"}"#, "typed"),
            (r#"{"filter": "a", "exact": "a"}"#, "key"),
            (r#"{"filter": "a", "key": ["k\u0000"], "exact": "a"}"#, "zero byte"),
            (r#"{"filter": "a", "key": "k", "regex": "("}"#, "regular expression"),
            (r#"{"filter": "a", "key": "k", "present": "yes"}"#, "boolean"),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.contains(problem), "{json}\n{error}");
        }
    }
}
