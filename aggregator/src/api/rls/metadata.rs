//! A descriptor's `metadata`: `google.protobuf.Struct` as values of a configuration.
//!
//! Source: `google/protobuf/struct.proto`.

use std::collections::BTreeMap;
use weir_core::fields::{Errors, Node, Path, Value};

/// Deepest nesting of a descriptor's metadata. Envoy refuses messages of more than 100 levels, of which each level here takes
/// three.
pub const MAX_DEPTH: usize = 16;
/// Longest encoding of a descriptor's metadata, in bytes.
pub const MAX_BYTES: usize = 16 * 1024;

/// `google.protobuf.Struct`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Struct {
    /// The fields, by name.
    #[prost(btree_map = "string, message", tag = "1")]
    pub fields: BTreeMap<String, Member>,
}

/// `google.protobuf.Value`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Member {
    /// The value; absent in a malformed message.
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4, 5, 6")]
    pub kind: Option<Kind>,
}

/// `google.protobuf.Value.kind`.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Kind {
    /// `NullValue`, which has one member.
    #[prost(int32, tag = "1")]
    Null(i32),
    /// A number.
    #[prost(double, tag = "2")]
    Number(f64),
    /// A string.
    #[prost(string, tag = "3")]
    Text(String),
    /// A boolean.
    #[prost(bool, tag = "4")]
    Bool(bool),
    /// An object.
    #[prost(message, tag = "5")]
    Object(Struct),
    /// A list.
    #[prost(message, tag = "6")]
    List(Members),
}

/// `google.protobuf.ListValue`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Members {
    /// The values, in order.
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<Member>,
}

impl Struct {
    /// Reads an object of a configuration.
    pub fn read(node: &Node<'_>, errors: &mut Errors) -> Option<Struct> {
        let Some(Kind::Object(read)) = member(node, MAX_DEPTH, errors)?.kind else {
            return node.reject(errors, "is not an object", "an object");
        };
        let bytes = prost::Message::encoded_len(&read);
        if bytes > MAX_BYTES {
            return node.reject(errors, &format!("has {bytes} bytes"), format!("at most {MAX_BYTES}"));
        }
        Some(read)
    }

    /// The value that a configuration would contain.
    pub fn into_value(self) -> Value<'static> {
        let field = |(name, member): (String, Member)| (name.into(), member.into_value());
        Value::Object(self.fields.into_iter().map(field).collect())
    }

    /// Adds the fields of `other` that are missing here, at all depths of objects.
    pub fn add(&mut self, other: &Struct) {
        for (name, member) in &other.fields {
            match (self.fields.get_mut(name).map(|own| &mut own.kind), &member.kind) {
                (None, _) => drop(self.fields.insert(name.clone(), member.clone())),
                (Some(Some(Kind::Object(own))), Some(Kind::Object(other))) => own.add(other),
                (Some(_), _) => {}
            }
        }
    }

    /// With one more field.
    pub fn with(mut self, name: &str, kind: Kind) -> Struct {
        self.fields.insert(name.to_owned(), Member { kind: Some(kind) });
        self
    }
}

impl Member {
    fn into_value(self) -> Value<'static> {
        match self.kind {
            None | Some(Kind::Null(_)) => Value::Null,
            Some(Kind::Number(number)) => Value::Float(number),
            Some(Kind::Text(text)) => Value::Text(text.into()),
            Some(Kind::Bool(bool)) => Value::Bool(bool),
            Some(Kind::Object(object)) => object.into_value(),
            Some(Kind::List(list)) => Value::List(list.values.into_iter().map(Member::into_value).collect()),
        }
    }
}

fn member(node: &Node<'_>, levels: usize, errors: &mut Errors) -> Option<Member> {
    let Some(below) = levels.checked_sub(1) else {
        return node.reject(errors, "is nested too deep", format!("at most {MAX_DEPTH} levels of metadata"));
    };
    let kind = match node.value {
        Value::Null => Kind::Null(0),
        Value::Bool(bool) => Kind::Bool(*bool),
        // A protobuf number is a double.
        Value::Unsigned(number) => Kind::Number(*number as f64),
        Value::Negative(number) => Kind::Number(*number as f64),
        Value::Float(number) => Kind::Number(*number),
        Value::Text(text) => Kind::Text(text.clone().into_owned()),
        Value::List(_) => {
            let read = |node: Node<'_>, errors: &mut Errors| member(&node, below, errors);
            Kind::List(Members { values: node.list(0..=usize::MAX, "values", errors, read)? })
        }
        Value::Object(entries) => {
            let mut fields = BTreeMap::new();
            for (name, value) in entries {
                let node = Node { value, path: Path::Field(&node.path, name) };
                let member = member(&node, below, errors)?;
                if fields.insert(name.clone().into_owned(), member).is_some() {
                    return errors.reject(&node.path, "it is given twice", "one value");
                }
            }
            Kind::Object(Struct { fields })
        }
    };
    Some(Member { kind: Some(kind) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    fn read(json: &str) -> Result<Struct, String> {
        let value = Value::parse(json.as_bytes(), weir_core::fields::Bounds::OF_A_FILE).unwrap();
        let mut errors = Errors::keeping(3);
        let read = Struct::read(&Node::root("metadata", &value), &mut errors);
        errors.finish(read).map_err(|errors| errors.to_string())
    }

    #[test]
    fn a_value_survives_the_way_over_the_wire() {
        let json = r#"{"a": {"b": [1, 2.5, -3, "x", true, null]}, "c": {}}"#;
        let decoded = Struct::decode(read(json).unwrap().encode_to_vec().as_slice()).unwrap();
        assert_eq!(decoded, read(json).unwrap());
        let back = decoded.clone().into_value();
        assert_eq!(Struct::read(&Node::root("", &back), &mut Errors::keeping(1)), Some(decoded));
        // The bytes as another implementation writes them.
        let bytes = b"\x0a\x0a\x0a\x01k\x12\x05\x1a\x03abc";
        assert_eq!(Struct::decode(bytes.as_slice()).unwrap(), read(r#"{"k": "abc"}"#).unwrap());
    }

    #[test]
    fn deep_long_and_ambiguous_metadata_is_refused() {
        let deep = format!("{}1{}", r#"{"a":"#.repeat(20), "}".repeat(20));
        let long = format!(r#"{{"a": "{}"}}"#, "x".repeat(MAX_BYTES));
        for (json, expected) in [
            (deep.as_str(), "is nested too deep"),
            (&long, "bytes"),
            (r#"{"a": 1, "a": 2}"#, "a: it is given twice"),
            ("[]", "is not an object"),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
